# SPDX-License-Identifier: Apache-2.0
"""The plugin of docs/plugins.md, complete with its test file and its fake, as a third party has it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.local_koala import LIVENESS

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
sys.path.append(str(EXAMPLE))
example: Any = importlib.import_module("test_koala_tinyq")

test_banners_are_no_ids = example.test_banners_are_no_ids
test_unknown_words_are_unknown = example.test_unknown_words_are_unknown
test_complaints = example.test_complaints


class TestTinyq(example.TestTinyq):  # type: ignore[misc] # a module that is found at run time
    """The kit as in the example, but for what needs running jobs."""

    runs_jobs = False


@pytest.mark.nightly
class TestTinyqRuns(example.TestTinyq):  # type: ignore[misc] # likewise
    """All of it."""


@pytest.mark.timeout(400)
def test_a_job_runs_through_the_plugin(tmp_path: Path) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    installed = tmp_path / "koala_tinyq-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    offers = [
        f"[{group}]\n{name} = {found}"
        for group, names in project["entry-points"].items()
        for name, found in names.items()
    ]
    (installed / "entry_points.txt").write_text("\n".join(offers) + "\n")
    (tmp_path / "server").mkdir()
    site = tmp_path / "site.toml"
    site.write_text(
        '[control_center]\nlisten = "127.0.0.1"\n'
        '[[clusters]]\nname = "tiny"\nplugin = "tinyq"\npoll_interval = 1\nrequests_per_minute = 600\n'
        f'[clusters.settings]\ncommand = "{EXAMPLE / "tinyq.py"}"\nserver = "{tmp_path / "server"}"\n'
    )
    command = [sys.executable, "-m", "koala_adapter.cli", "--site", str(site), "--state", str(tmp_path / "state")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(EXAMPLE)])}
    done = subprocess.run(
        [*command, "run", "-n", "2", "--", "sh", "-c", "echo $KOALA_RANK of $KOALA_SIZE on $KOALA_CLUSTER"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIVENESS * 3,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["c1/0: 0 of 2 on tiny", "c1/1: 1 of 2 on tiny"]
