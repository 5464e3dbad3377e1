# SPDX-License-Identifier: Apache-2.0
"""The units for systemd: it takes them as they are, and they run what there is."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from koala_adapter.cli.koala import koala

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "conf").glob("*.service"))
GUIDE = (ROOT / "docs" / "admin-guide.md").read_text(encoding="utf-8")
PROGRAM = "/opt/koala/bin/koala"
SERVERS = [path for path in UNITS if "give-back" not in path.name]
AGAIN = 15
"""Seconds within which a scheduler that hangs schedules again; a second of them for its start."""


def read(path: Path) -> RawConfigParser:
    """Return a unit's settings."""
    parser = RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign] # the names are told apart by case
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def test_there_are_units_for_all_that_serves() -> None:
    """And one that gives the queue back."""
    names = ["koala-give-back@.service", "koala-schedule@.service", "koala-wiki@.service", "koala.service"]
    assert [path.name for path in UNITS] == [*names, "koala@.service"]


@pytest.mark.parametrize("give_back", [False, True], ids=["as-it-comes", "gives-back"])
def test_systemd_takes_them(tmp_path: Path, *, give_back: bool) -> None:
    """Without a word, also with the line by which the queue is given back. The program is put where this one is."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    here = tmp_path / "koala"
    here.write_text(f"#!{sys.executable}\n")
    here.chmod(0o755)
    for path in UNITS:
        text = path.read_text(encoding="utf-8").replace("%h/.local/bin/koala", PROGRAM).replace(PROGRAM, str(here))
        (tmp_path / path.name).write_text(text.replace("#OnFailure=", "OnFailure=") if give_back else text)
    instances = [path.name.replace("@.", "@root.") for path in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in instances)],
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_UNIT_PATH": f"{tmp_path}:", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "koala" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_they_run_commands_that_there_are(path: Path) -> None:
    """With options that koala knows, on paths that the manual names."""
    program, *arguments = shlex.split(read(path)["Service"]["ExecStart"])
    assert program in {PROGRAM, "%h/.local/bin/koala"}
    done = CliRunner().invoke(koala, [*(one.replace("%i", "a") for one in arguments), "--help"])
    assert (done.exit_code, done.output[:6]) == (0, "Usage:")
    named = [one for one in (program, *arguments) if one.startswith("/")]
    assert [one for one in named if one not in GUIDE and str(Path(one).parent.parent) not in GUIDE] == []


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.name)
def test_what_is_killed_or_hangs_comes_back(path: Path) -> None:
    """Soon, but not where trying again does not help."""
    service = read(path)["Service"]
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    assert service["RestartPreventExitStatus"] == "245 246"
    if "@" in path.name and "koala@" not in path.name:
        assert int(service["WatchdogSec"]) + int(service["RestartSec"]) < AGAIN - 1
        assert service["StateDirectoryMode"] == "0700"


def test_the_queue_is_given_back_until_a_scheduler_is_there_again() -> None:
    """Also when the batch system does not answer at first; never beside a scheduler."""
    unit = read(ROOT / "conf" / "koala-give-back@.service")
    assert (unit["Service"]["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    assert unit["Unit"]["Conflicts"] == unit["Unit"]["After"] == "koala-schedule@%i.service koala-wiki@%i.service"
    # Or a scheduler that is started beside the other would fail, and its failure give back the queue of both.
    assert read(ROOT / "conf" / "koala-schedule@.service")["Unit"]["Conflicts"] == "koala-wiki@%i.service"
    assert read(ROOT / "conf" / "koala-wiki@.service")["Unit"]["Conflicts"] == "koala-schedule@%i.service"
    for path in UNITS:
        if "schedule" in path.name or "wiki" in path.name:
            assert "#OnFailure=koala-give-back@%i.service" in path.read_text(encoding="utf-8")
