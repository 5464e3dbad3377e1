# SPDX-License-Identifier: Apache-2.0
"""Running commands: what they get, what they give back, and the base of plugins that run them."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnreachableError
from koala_adapter.lrm.commands import (
    EXPORTED,
    CommandResult,
    CommandRunner,
    CommandSystem,
    ComplaintTable,
    child_environment,
    complaints,
    login_name,
    only_id,
    parsed,
    portions,
)
from koala_adapter.lrm.rate import Priority
from koala_adapter.testing import eventually

ALLOWED = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LC_ALL", "TZ", "LANG"}
LEAKS = ("SLURM_CPU_BIND", "SBATCH_ACCOUNT", "SGE_ROOT", "PBS_JOBID", "PMI_RANK", "LD_PRELOAD", "MY_SECRET")

names = st.text(st.characters(categories=["Lu", "Nd"], include_characters="_"), min_size=1, max_size=20)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@given(extra=st.dictionaries(names, values, max_size=5))
def test_environment_is_built(extra: Mapping[str, str]) -> None:
    environment = child_environment(extra)
    assert set(environment) <= ALLOWED | set(extra)
    assert {name: environment[name] for name in extra} == extra


async def test_nothing_leaks_into_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LEAKS:
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


async def test_bytes_go_in_and_come_out_whole() -> None:
    """Standard input is passed as bytes, output is returned as bytes; undecodable ones never fail, then or later."""
    raw = bytes(range(256)) * 1000
    result = await CommandRunner().run(["cat"], stdin=raw)
    assert result.stdout == raw
    assert result.text.encode("utf-8").startswith(raw[:128] + rb"\x80\x81")


async def test_arguments_are_no_shell_text() -> None:
    awkward = "$(id) `id` ; | & > '\" * \\ ü"
    result = await CommandRunner().run(["printf", "%s", awkward])
    assert result.text == awkward
    assert result.argv == ("printf", "%s", awkward)


async def test_no_answer_in_time_is_unavailable() -> None:
    with anyio.fail_after(60), pytest.raises(LrmUnavailableError, match=r"did not answer within 0\.5 s"):
        await CommandRunner().run(["sleep", "60"], timeout=0.5)


async def test_a_command_that_is_given_up_is_killed(tmp_path: Path) -> None:
    """So is what it has started."""
    target = tmp_path / "pids"
    script = 'sleep 600 & echo $$ $! > "$0.new"; mv "$0.new" "$0"; wait'

    async def told() -> bool:
        return target.exists()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(CommandRunner().run, ["sh", "-c", script, str(target)])
        await eventually(told, bool, what="the command runs", seconds=90)
        tasks.cancel_scope.cancel()
    pids = target.read_text().split()
    assert len(pids) == 2

    async def gone() -> bool:
        return not any([await anyio.Path("/proc", pid, "cwd").exists() for pid in pids])

    await eventually(gone, bool, what="the killed command and its child are gone", seconds=90)


async def test_missing_program_is_unavailable() -> None:
    """A program that is not there makes the LRM unavailable, with the way out."""
    with pytest.raises(LrmUnavailableError, match="No such file") as caught:
        await CommandRunner().run(["/nonexistent/sbatch"])
    assert "install" in caught.value.hint


async def test_submissions_wait_less_than_polls() -> None:
    """What polls may not use any more is there for a submission, and the last requests for what is urgent."""
    runner = CommandRunner(per_minute=10)
    for _ in range(8):
        await runner.admit()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runner.admit)
        await anyio.wait_all_tasks_blocked()
        assert 50 < runner.waits() <= 60
        with runner.submitting():
            await runner.admit()
        assert runner.window.total == 9
        assert runner.waits(Priority.SUBMISSION) == 0
        tasks.cancel_scope.cancel()
    assert runner.waits() == 0
    assert (before := runner.put_off) > 0
    with anyio.fail_after(60):
        await runner.run(["true"], urgent=True)
    assert (runner.window.total, runner.put_off) == (10, before)


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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = await anyio.run_process([sys.executable, "-c", DIES], cwd=tmp_path, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    (tmp_path / "die").touch()
    whole = tmp_path / "whole"

    async def there() -> bool:
        return whole.exists()

    await eventually(there, bool, what="the command has read all", seconds=90)
    assert int(whole.read_text()) == 1_000_000


# The base of plugins that run commands, with complaints of OpenPBS.

COMPLAINTS = ComplaintTable(
    system="PBS",
    known=(
        *complaints(LrmUnreachableError, {"cannot connect to server": "start pbs_server"}),
        *complaints(LrmNotFoundError, {"unknown job id": "", "job has finished": ""}),
        *complaints(LrmRejectedError, {"unknown queue": "name one that qstat -Q lists", "unauthorized request": ""}),
    ),
)
BEING_DELETED = ("request invalid for state of job",)
"""What qdel says of a job that it has begun to delete."""


def parse_names(text: str) -> list[str]:
    """Return the names of jobs in what qstat prints."""
    return [job["Job_Name"] for job in json.loads(text).get("Jobs", {}).values()]


@pytest.fixture
def pbs(tmp_path: Path) -> CommandSystem:
    """Return the commands of a server that prints what a test has laid out; see `says`."""
    return CommandSystem(
        CommandRunner(per_minute=6000), COMPLAINTS, directory=tmp_path, environment={"PBS_SERVER": "vm"}, timeout=30.0
    )


def says(directory: Path, program: str, *, out: str = "", err: str = "", status: int = 0) -> None:
    """Put a program there that prints this, and notes its arguments and server."""
    lines = (
        "#!/bin/sh",
        f'echo "$PBS_SERVER $*" >> {shlex.quote(str(directory / "calls"))}',
        f"printf %s {shlex.quote(out)}",
        f"printf %s {shlex.quote(err)} >&2",
        f"exit {status}",
    )
    (directory / program).write_text("\n".join(lines))
    (directory / program).chmod(0o755)


@pytest.mark.parametrize(
    ("err", "status", "error"),
    [
        ("Connection refused\nqstat: cannot connect to server vm (errno=15010)\n", 255, LrmUnreachableError),
        ("qstat: Unknown Job Id 99999.vm\n", 153, LrmNotFoundError),
        ("qstat: something new\n", 1, LrmUnavailableError),
        ("", 1, LrmUnavailableError),
    ],
)
async def test_a_failed_listing_is_no_empty_one(
    pbs: CommandSystem, tmp_path: Path, err: str, status: int, error: type[LrmError]
) -> None:
    """PBS prints a JSON object without jobs then, too: the exit status and the complaint decide."""
    says(tmp_path, "qstat", out='{"pbs_server": "vm"}', err=err, status=status)
    with pytest.raises(LrmError, match="PBS: listing of jobs failed") as caught:
        await pbs.read(("qstat", "-f"), action="listing of jobs")
    assert type(caught.value) is error


@pytest.mark.parametrize("text", ["", "{", '{"Jobs": {"1.vm": {}}}', '{"Jobs": [1]}', "[]", '{"Jobs": {"1.vm": 7}}'])
def test_what_cannot_be_read_is_no_answer(text: str) -> None:
    with pytest.raises(LrmUnavailableError, match="qstat printed what cannot be read") as caught:
        parsed(parse_names, text, source="qstat")
    assert repr(text) in caught.value.message


async def test_changes_and_cancels(pbs: CommandSystem, tmp_path: Path) -> None:
    says(tmp_path, "qhold")
    await pbs.change(("qhold", "1.vm"), action="hold")
    says(tmp_path, "qhold", err="qhold: Unauthorized Request  1.vm\n")
    with pytest.raises(LrmRejectedError, match="hold failed"):
        await pbs.change(("qhold", "1.vm"), action="hold")
    for gone in ("qdel: Job has finished 84.vm", "qdel: Unknown Job Id 9.vm", "qdel: Request invalid for state of job"):
        says(tmp_path, "qdel", err=f"{gone}\n", status=35)
        await pbs.cancel(("qdel", "84.vm"), gone=BEING_DELETED)
    says(tmp_path, "qdel", err="qdel: Unauthorized Request  1.vm\nqdel: cannot connect to server vm\n", status=162)
    with pytest.raises(LrmUnreachableError):
        await pbs.cancel(("qdel", "1.vm", "2.vm"))
    says(tmp_path, "qdel", status=134)
    with pytest.raises(LrmUnavailableError, match="without a word"):
        await pbs.cancel(("qdel", "1.vm"))


async def test_the_version_is_asked_once(pbs: CommandSystem, tmp_path: Path) -> None:
    def version(text: str) -> str | None:
        found = re.search(r"pbs_version = (\S+)", text)
        return found[1] if found else None

    says(tmp_path, "qstat", out="nothing")
    with pytest.raises(LrmUnavailableError, match="printed no version: 'nothing'"):
        await pbs.version(("qstat", "--version"), version)
    says(tmp_path, "qstat", out="pbs_version = 23.06.06")
    assert [await pbs.version(("qstat", "--version"), version) for _ in range(2)] == ["23.06.06"] * 2
    assert (tmp_path / "calls").read_text().splitlines() == ["vm --version"] * 2


def test_ids_among_banners() -> None:
    pattern = re.compile(r"[0-9]+(\[\])?\.[\w.-]+")
    assert only_id("Welcome\n102.vm\n", pattern) == "102.vm"
    for text in ("", "102.vm\n103.vm\n"):
        with pytest.raises(LrmUnavailableError):
            only_id(text, pattern)


def test_portions_are_complete_and_bounded() -> None:
    assert list(portions(["1", "2", "3"], 2)) == [("1", "2"), ("3",)]
    assert list(portions([], 2)) == []


async def test_settings_are_asked_for_once(pbs: CommandSystem, tmp_path: Path) -> None:
    """An answer serves all who read it, each in its own way, until it is too old for one."""
    says(tmp_path, "qmgr", out="a = 1")
    assert await pbs.setting(["qmgr"], str.strip, action="reading") == "a = 1"
    says(tmp_path, "qmgr", out="a = 2")
    assert await pbs.setting(["qmgr"], str.upper) == "A = 1"
    assert await pbs.setting(["qmgr", "-a"], str.strip) == "a = 2"
    assert await pbs.setting(["qmgr"], str.strip, within=-1.0) == "a = 2"
    assert await pbs.setting(["qmgr"], str.strip) == "a = 2"


async def test_a_failure_is_no_answer_that_is_kept(pbs: CommandSystem, tmp_path: Path) -> None:
    """Nor is what could not be read, or what another process kept and this one cannot read."""

    def strictly(text: str) -> str:
        if "=" not in text:
            raise LrmUnavailableError("cannot be read")
        return text.strip()

    says(tmp_path, "qmgr", out="a = 0", err="connection refused", status=1)
    with pytest.raises(LrmError):
        await pbs.setting(["qmgr"], strictly, action="reading")
    assert await pbs.setting(["qmgr"], strictly) == "a = 0"
    says(tmp_path, "qmgr", out="rubbish")
    with pytest.raises(LrmUnavailableError):
        await pbs.setting(["qmgr"], strictly)
    assert await pbs.setting(["qmgr"], str.strip) == "rubbish"
    says(tmp_path, "qmgr", out="a = 1")
    assert await pbs.setting(["qmgr"], strictly) == "a = 1"
