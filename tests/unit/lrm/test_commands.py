# SPDX-License-Identifier: Apache-2.0
"""Running commands: what they get, what they give back, and that they are bounded in time and rate."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm.commands import EXPORTED, CommandResult, CommandRunner, child_environment, login_name
from koala_adapter.testing import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.anyio

ALLOWED = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LC_ALL", "TZ", "LANG"}
LEAKS = ("SLURM_CPU_BIND", "SBATCH_ACCOUNT", "SGE_ROOT", "PBS_JOBID", "PMI_RANK", "LD_PRELOAD", "MY_SECRET")

names = st.text(st.characters(categories=["Lu", "Nd"], include_characters="_"), min_size=1, max_size=20)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(extra=st.dictionaries(names, values, max_size=5))
def test_environment_is_built(extra: Mapping[str, str]) -> None:
    """A child gets the known few variables and what was added, nothing else of ours."""
    environment = child_environment(extra)
    assert set(environment) <= ALLOWED | set(extra)
    assert {name: environment[name] for name in extra} == extra


@pytest.mark.parametrize("name", LEAKS)
async def test_nothing_leaks_into_a_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a batch system, of a user or of the loader that are set around us do not reach a command."""
    monkeypatch.setenv(name, "leaked")
    result = await CommandRunner().run(["env"])
    lines = result.text.splitlines()
    assert not [line for line in lines if "leaked" in line]
    assert {line.partition("=")[0] for line in lines} <= ALLOWED


async def test_home_is_that_of_the_password_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME and USER are those of the effective user, whatever the shell around us says."""
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.setenv("USER", "somebody")
    entry = pwd.getpwuid(os.geteuid())
    result = await CommandRunner().run(["sh", "-c", 'echo "$HOME $USER $LOGNAME $LC_ALL"'])
    assert result.text == f"{entry.pw_dir} {entry.pw_name} {entry.pw_name} C.UTF-8\n"
    assert login_name() == entry.pw_name


@pytest.mark.parametrize(
    ("ours", "exported"),
    [
        ({"LC_ALL": "de_DE.UTF-8", "LANG": "fr_FR", "LC_TIME": "C"}, {"LANG": "de_DE.UTF-8"}),
        ({"LC_ALL": "", "LANG": "fr_FR", "LC_TIME": "C"}, {"LANG": "fr_FR", "LC_TIME": "C"}),
        ({"LC_ALL": ""}, {}),
    ],
)
async def test_what_is_exported_to_jobs_has_the_locale_of_the_caller(
    ours: Mapping[str, str], exported: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """LC_ALL, in which commands print what can be read, stays with these commands; LANG can be replaced by a job."""
    for name in [name for name in os.environ if name in {"LANG", "LANGUAGE"} or name.startswith("LC_")]:
        monkeypatch.delenv(name)
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    for added, own in ((EXPORTED, {}), ({}, {"LC_ALL": "C.UTF-8"})):
        lines = (await CommandRunner().run(["env"], environment=added)).text.splitlines()
        seen = dict(line.split("=", 1) for line in lines)
        assert {name: value for name, value in seen.items() if name.startswith(("LC_", "LANG"))} == {**exported, **own}


async def test_runner_and_call_add_to_the_environment() -> None:
    """Variables of the cluster and of one command are added; the command's own win."""
    runner = CommandRunner(environment={"SLURM_CONF": "/a", "SGE_CELL": "default"})
    result = await runner.run(["sh", "-c", 'echo "$SLURM_CONF $SGE_CELL"'], environment={"SLURM_CONF": "/b"})
    assert result.text == "/b default\n"


async def test_bytes_go_in_and_come_out_whole() -> None:
    """Standard input is passed as bytes, output is returned as bytes; undecodable ones never fail, then or later."""
    raw = bytes(range(256)) * 1000
    result = await CommandRunner().run(["cat"], stdin=raw)
    assert result.stdout == raw
    assert result.text.encode("utf-8").startswith(raw[:128] + rb"\x80\x81")


async def test_exit_status_is_no_error() -> None:
    """A command that fails is reported, not raised: LRM commands fail to say good news."""
    result = await CommandRunner().run(["sh", "-c", "echo out; echo oh no >&2; exit 7"])
    assert (result.returncode, result.text, result.complaint) == (7, "out\n", "oh no")


async def test_arguments_are_no_shell_text() -> None:
    """Arguments reach the program as they are."""
    awkward = "$(id) `id` ; | & > '\" * \\ ü"
    result = await CommandRunner().run(["printf", "%s", awkward])
    assert result.text == awkward
    assert result.argv == ("printf", "%s", awkward)


async def test_time_out_kills(tmp_path: Path) -> None:
    """A command that does not end in time is killed, and the error says that its outcome is unknown."""
    target = tmp_path / "pid"
    with anyio.fail_after(60), pytest.raises(LrmUnavailableError, match="did not answer within 3 s"):
        await CommandRunner().run(["sh", "-c", 'echo $$ > "$0"; exec sleep 600', str(target)], timeout=3)

    async def gone() -> bool:
        pid = (await anyio.Path(target).read_text()).strip()
        return not await anyio.Path("/proc", pid, "cwd").exists()

    await eventually(gone, bool, what="the killed command is gone", seconds=90)


async def test_time_out_kills_what_the_command_started(tmp_path: Path) -> None:
    """Not only the command itself ends when its time is up, but its children, too."""
    target = tmp_path / "pid"
    with anyio.fail_after(60), pytest.raises(LrmUnavailableError):
        await CommandRunner().run(["sh", "-c", 'sleep 600 & echo $! > "$0"; wait', str(target)], timeout=3)

    async def gone() -> bool:
        pid = (await anyio.Path(target).read_text()).strip()
        return not await anyio.Path("/proc", pid, "cwd").exists()

    await eventually(gone, bool, what="the child of the killed command is gone", seconds=90)


async def test_missing_program_is_unavailable() -> None:
    """A program that is not there makes the LRM unavailable, with the way out."""
    with pytest.raises(LrmUnavailableError, match="No such file") as caught:
        await CommandRunner().run(["/nonexistent/sbatch"])
    assert "install" in caught.value.hint


async def test_each_command_counts() -> None:
    """Commands and admitted calls are counted together against the bound."""
    runner = CommandRunner(per_minute=10)
    await runner.run(["true"])
    await runner.admit()
    assert runner.window.total == 2


async def test_over_the_bound_one_waits() -> None:
    """When the ordinary part of the window is used up, an ordinary command waits and an urgent one goes."""
    runner = CommandRunner(per_minute=10)
    for _ in range(8):
        await runner.admit()
    with anyio.move_on_after(0.2) as scope:
        await runner.admit()
    assert scope.cancelled_caught
    assert runner.put_off > 0.1
    before = runner.put_off
    with anyio.fail_after(60):
        await runner.run(["true"], urgent=True)
    assert runner.window.total == 9
    assert runner.put_off == before


@pytest.mark.parametrize(
    ("stdout", "stderr", "complaint"),
    [
        (b"said\n", b"", "said"),
        (b"said\n", b" \n", "said"),
        (b"said\n", b"one\ntwo\n\nthree\nfour\n", "three / four"),
        (b"", b"\xff bad\n", "\N{REPLACEMENT CHARACTER} bad"),
        (b"", b"", ""),
    ],
)
def test_complaint(stdout: bytes, stderr: bytes, complaint: str) -> None:
    """A complaint is the last lines of standard error, or of standard output when that is empty."""
    assert CommandResult(argv=("x",), returncode=1, stdout=stdout, stderr=stderr).complaint == complaint


DIES = """
import os, signal, threading, time
import anyio
from koala_adapter.lrm.commands import CommandRunner


def die_when_it_reads():
    while not os.path.exists("reads"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


threading.Thread(target=die_when_it_reads).start()
script = "read first; touch reads; while [ ! -e die ]; do sleep 0.05; done; wc -c >whole.new; mv whole.new whole"
anyio.run(lambda: CommandRunner().run(["sh", "-c", script], stdin=b"first\\n" + b"x" * 1_000_000))
"""


async def test_input_is_whole_though_we_are_killed(tmp_path: Path) -> None:
    """A command that has not read all of it when we are killed, such as sbatch its script, never gets a part of it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = await anyio.run_process([sys.executable, "-c", DIES], cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (tmp_path / "die").touch()
    whole = tmp_path / "whole"

    async def there() -> bool:
        return whole.exists()

    await eventually(there, bool, what="the command has read all", seconds=90)
    assert int(whole.read_text()) == 1_000_000
