# SPDX-License-Identifier: Apache-2.0
"""The daemon of the plugin ``local`` through its life: started on demand, killed, started again, left alone."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from koala_adapter.model import EndReason, LrmJob, LrmJobId, LrmJobState
from koala_adapter.testing import Batch, Trial
from koala_local.client import program
from koala_local.jobs import UNHEARD, Fields, JobRecord, decode, encode
from koala_local.lrm import PLUGIN, LocalSettings
from koala_local.processes import process_birth
from tests.local_koala import daemon_pid, end_daemon
from tests.undertest import start_plugin

Make = Callable[..., Awaitable[Trial]]
ONE_BYTE_LEFT = 107
"""Longest path of a Unix socket that the system takes."""


PROBE = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
print("connected", flush=True)
try:
    client.sendall(sys.argv[2].encode())
    client.shutdown(socket.SHUT_WR)
    print(client.recv(100))
except (BrokenPipeError, ConnectionResetError):
    print("refused")
"""
"""Asks a daemon as another user would, without our package."""


async def start_trial(directory: Path, **settings: object) -> Trial:
    """Start a cluster of two processors with its state under ``directory``."""
    valid = LocalSettings.model_validate({"processors": 2, "answer_seconds": 60, **settings})
    unknown = LrmJobId("999_1")
    return Trial(
        await start_plugin(PLUGIN, valid, directory, processors=2, unknown_id=unknown, patience=120, poll_interval=0.05)
    )


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Give a function that starts a cluster; at the end its jobs and its daemon are ended."""
    made: list[Trial] = []

    async def make_trial(**settings: object) -> Trial:
        made.append(await start_trial(tmp_path, **settings))
        return made[-1]

    yield make_trial
    for trial in made:
        await trial.close()
    await end_daemon(tmp_path / "state")


@pytest.fixture
async def trial(make: Make) -> Trial:
    """Start a cluster of two processors."""
    return await make()


def state_of(trial: Trial) -> Path:
    """Return the private directory of a cluster."""
    return trial.under_test.context.state_directory


async def kill(trial: Trial) -> None:
    """Kill the daemon; the next request starts another."""
    await end_daemon(state_of(trial), signal.SIGKILL)


async def job_of(trial: Trial, batch: Batch, index: int = 1) -> LrmJob:
    return (await trial.jobs(batch))[batch.ids[index - 1]]


async def wait_gone(trial: Trial, pid: int) -> None:
    """Wait until a process has ended (what init has not collected counts as ended)."""

    async def alive() -> bool:
        return bool(process_birth(pid))

    await trial.until(alive, lambda lives: not lives, what=f"end of process {pid}")


def wakings(pid: int) -> int:
    """Return how often a process has waited for something and gone on."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].partition("\n")[0])


async def talk(trial: Trial, raw: bytes) -> Fields:
    """Send bytes to the daemon and return what it answers."""
    async with await anyio.connect_unix(state_of(trial) / "socket") as stream:
        await stream.send(raw)
        await stream.send_eof()
        return decode(await stream.receive())


# -- killed and started again -------------------------------------------------------------------------------------


async def test_running_jobs_are_adopted(trial: Trial) -> None:
    batch = await trial.submit(count=2)
    await trial.wait_running(batch)
    before, first = batch.reports(), daemon_pid(state_of(trial))
    await kill(trial)
    assert await trial.states(batch) == [LrmJobState.RUNNING] * 2
    assert daemon_pid(state_of(trial)) != first
    assert batch.reports() == before
    assert [batch.starts(index) for index in (1, 2)] == [1, 1]


async def test_end_of_adopted_jobs_is_seen_but_not_known(trial: Trial) -> None:
    """An adopted job's end is noticed at once; its exit status cannot be known, so it is LOST, never a success."""
    batch = await trial.submit(exit_code=3)
    await trial.wait_running(batch)
    await kill(trial)
    await trial.wait_states(batch, LrmJobState.RUNNING)
    batch.go()
    await trial.wait_ended(batch)
    job = await job_of(trial, batch)
    assert (job.end, job.exit_code, job.signal) == (EndReason.LOST, None, None)
    assert job.reason


async def test_jobs_that_ended_unwatched_are_lost(trial: Trial) -> None:
    """A job that ends while no daemon runs is listed as LOST by the next one."""
    batch = await trial.submit()
    await trial.wait_running(batch)
    pid = int(batch.reports()["1"][2])
    await kill(trial)
    descriptor = os.pidfd_open(pid)
    batch.go()
    await anyio.wait_readable(descriptor)
    os.close(descriptor)
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).end is EndReason.LOST


async def test_waiting_jobs_wait_on(trial: Trial) -> None:
    full = await trial.submit(count=2)
    await trial.wait_running(full)
    queued, held = await trial.submit(count=2), await trial.submit(held=True)
    await kill(trial)
    assert await trial.states(queued) == [LrmJobState.QUEUED] * 2
    assert await trial.states(held) == [LrmJobState.HELD]
    full.go()
    await trial.wait_running(queued)
    assert await trial.states(held) == [LrmJobState.HELD]


async def test_adopted_jobs_can_be_cancelled(trial: Trial) -> None:
    batch = await trial.submit(count=2)
    await trial.wait_running(batch)
    await kill(trial)
    await trial.lrm.cancel(batch.ids)
    await trial.wait_ended(batch)
    assert {job.end for job in (await trial.jobs(batch)).values()} == {EndReason.CANCELLED}
    for _, _, pid, *_ in batch.reports().values():
        await wait_gone(trial, int(pid))


async def test_walltime_runs_on_over_a_kill(trial: Trial) -> None:
    batch = await trial.submit(walltime=600)
    await trial.wait_running(batch)
    before = await job_of(trial, batch)
    await kill(trial)
    after = await job_of(trial, batch)
    assert (after.started_at, after.ends_at) == (before.started_at, before.ends_at)
    await trial.lrm.modify(batch.ids[0], walltime=1)
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).end is EndReason.WALLTIME


async def test_suspended_jobs_stay_suspended(trial: Trial) -> None:
    batch = await trial.submit()
    await trial.wait_running(batch)
    await trial.lrm.suspend(batch.ids)
    await kill(trial)
    assert await trial.states(batch) == [LrmJobState.SUSPENDED]
    await trial.lrm.resume(batch.ids)
    batch.go()
    await trial.wait_ended(batch)


async def test_numbers_are_never_used_again(make: Make) -> None:
    trial = await make(remember_seconds=0)
    first = await trial.submit(wait=False)
    await trial.wait_ended(first)
    await kill(trial)
    second = await trial.submit(wait=False)
    assert first.ids != second.ids


# -- started on demand, ending by itself --------------------------------------------------------------------------


async def test_idle_daemon_ends_and_comes_back(make: Make) -> None:
    trial = await make()
    batch = await trial.submit()
    await make(idle_seconds=0.5)
    await trial.lrm.version()
    descriptor = os.pidfd_open(daemon_pid(state_of(trial)))  # while there is a job, so while it is there
    batch.go()
    with anyio.fail_after(120):
        await anyio.wait_readable(descriptor)
    os.close(descriptor)
    assert not (state_of(trial) / "socket").exists()
    assert (await job_of(trial, batch)).exit_code == 0


@pytest.mark.parametrize("held", [True, False])
async def test_daemon_with_jobs_stays(make: Make, held: bool) -> None:  # noqa: FBT001
    """A daemon with a held or a running job does not end, though nobody asks."""
    trial = await make()
    batch = await trial.submit(held=held)
    await make(idle_seconds=0.2)
    await trial.lrm.version()
    first = daemon_pid(state_of(trial))
    before = wakings(first)

    async def looks() -> int:
        return wakings(first) - before

    # It wakes for nothing but to look whether it has been idle for long enough.
    await trial.until(looks, lambda times: times > 3, what="looks whether the daemon is to end")
    assert daemon_pid(state_of(trial)) == first
    assert await trial.states(batch) == [LrmJobState.HELD if held else LrmJobState.RUNNING]


async def test_one_daemon_for_all_who_ask_at_once(trial: Trial) -> None:
    await kill(trial)
    versions: list[str] = []

    async def ask() -> None:
        versions.append(await trial.lrm.version())

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask)
    assert len(versions) == 4
    ours = [
        pid.name
        async for pid in anyio.Path("/proc").glob("[0-9]*")
        if str(state_of(trial)).encode() in await _arguments(pid)
    ]
    assert ours == [str(daemon_pid(state_of(trial)))]


async def _arguments(process: anyio.Path) -> bytes:
    try:
        return await (process / "cmdline").read_bytes()
    except OSError:
        return b""


async def test_settings_reach_a_running_daemon(make: Make) -> None:
    trial = await make(processors=1)
    batch = await trial.submit(count=2)
    await trial.wait_states(batch, LrmJobState.RUNNING, LrmJobState.QUEUED)
    await make(processors=2)
    await trial.wait_running(batch)


def test_daemon_is_light() -> None:
    """The daemon imports neither pydantic nor anyio nor the command line: it runs on laptops."""
    program = "import sys, koala_local.daemon; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "koala_local" in done.stdout
    assert not [name for name in ("pydantic", "anyio", "click", "rich", "structlog") if f"'{name}'" in done.stdout]


async def test_deep_directories_work(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * ONE_BYTE_LEFT)
    deep.mkdir()
    trial = await start_trial(deep)
    try:
        assert len(str(state_of(trial) / "socket")) > ONE_BYTE_LEFT
        assert await trial.lrm.jobs() == ()
    finally:
        await end_daemon(state_of(trial))


def test_open_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    argv = [sys.executable, "-m", "koala_local.daemon", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "chmod 700" in done.stderr


# -- who may ask --------------------------------------------------------------------------------------------------


async def test_nothing_is_open_to_others(trial: Trial) -> None:
    """Directory, socket, scripts, store and output files are closed to all other users."""
    batch = await trial.submit()
    await trial.wait_running(batch)
    files = [state_of(trial), *state_of(trial).rglob("*.sh"), state_of(trial) / "socket", state_of(trial) / "jobs.db"]
    files += list((batch.directory / "output").iterdir())
    assert len(files) == 5
    assert [file for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
async def test_another_user_is_refused() -> None:
    raw = encode({"operation": "jobs", "prefix": ""})
    # Not under tmp_path: the way there is closed to others, and is shared with other runs, so it is not ours to open.
    with tempfile.TemporaryDirectory(prefix="koala-local-") as name:
        directory = Path(name)
        trial = await start_trial(directory)
        try:
            await refuse_another_user(trial, raw)
        finally:
            await end_daemon(state_of(trial))


async def refuse_another_user(trial: Trial, raw: bytes) -> None:
    """Open the way to the socket for all; see that another user connects and gets nothing, and that we do."""
    path = state_of(trial) / "socket"
    for part in (state_of(trial).parent, state_of(trial)):
        part.chmod(0o711)
    path.chmod(0o666)
    argv = ["/usr/bin/python3", "-c", PROBE, str(path), raw.decode()]
    done = await anyio.run_process(argv, check=False, stderr=subprocess.STDOUT, user="nobody", group="nogroup")
    # It got as far as the socket: what refuses is the look at the peer, not the way there.
    assert done.stdout.startswith(b"connected\n")
    assert done.stdout.splitlines()[1:] in ([b"b''"], [b"refused"])
    assert (await talk(trial, raw)).records("jobs", JobRecord) == ()


@pytest.mark.parametrize("raw", [b"", b"\xff\x00", b"[]", b'{"operation": 3}', b'{"operation": "jobs"}'])
async def test_nonsense_is_refused(trial: Trial, raw: bytes) -> None:
    assert (await talk(trial, raw)).text("error") == "rejected"
    assert await trial.lrm.version()


async def test_unknown_operation_is_refused(trial: Trial) -> None:
    """A newer client that asks for what this daemon does not know is told so."""
    answer = await talk(trial, encode({"operation": "grow"}))
    assert "cannot 'grow'" in answer.text("message")


async def test_client_that_says_nothing_disturbs_nobody(trial: Trial) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(state_of(trial) / "socket"))
        silent.setblocking(False)  # noqa: FBT003 - its only parameter
        assert await trial.lrm.version()
        with pytest.raises(BlockingIOError):
            silent.recv(1)  # nobody waited until it was given up


def test_what_is_sent_to_a_site_is_a_whole_program(tmp_path: Path) -> None:
    """It is started there without this package: a module that is missing from it is found here."""
    archive = tmp_path / "daemon.pyz"
    archive.write_bytes(program())
    asked = subprocess.run(
        [sys.executable, "-I", "-S", str(archive), str(tmp_path), "ask"], input=b"", capture_output=True, check=False
    )
    assert (asked.returncode, asked.stderr) == (UNHEARD, b"")
