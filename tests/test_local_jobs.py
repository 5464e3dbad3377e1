# SPDX-License-Identifier: Apache-2.0
"""Jobs of the plugin ``local`` beyond the conformance kit: their processes, environment, files and limits."""

from __future__ import annotations

import os
import pwd
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.sitefile import ClusterConfig
from koala_adapter.errors import LrmNotFoundError, LrmRejectedError
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import BatchKey, EndReason, LrmJobState
from koala_adapter.service.clusters import read_cluster
from koala_adapter.testing.trial import begin_start
from koala_local import processes as process
from tests.local_daemon import end_daemon
from tests.test_local_daemon import job_of, start_trial, state_of, wait_gone
from tests.unit.plugins.test_local_parts import SAMPLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from koala_adapter.testing import Trial

pytestmark = pytest.mark.anyio


@pytest.fixture
async def trial(tmp_path: Path) -> AsyncIterator[Trial]:
    """Start a cluster of two nodes with one processor each."""
    trial = await start_trial(tmp_path, processors=None, nodes=2, walltime_limit=3600)
    yield trial
    await trial.close()
    await end_daemon(state_of(trial))


@pytest.fixture
async def gentle(tmp_path: Path) -> AsyncIterator[Trial]:
    """Start a cluster of a processor, where jobs have all the time that they need to end."""
    trial = await start_trial(tmp_path, processors=1, kill_wait=600)
    yield trial
    await trial.close()
    await end_daemon(state_of(trial))


async def read_pid(trial: Trial, path: Path) -> int:
    """Wait for a process id that a job has written."""
    return int(await trial.wait_file(path))


async def test_others_that_wait_are_counted(trial: Trial) -> None:
    running = await trial.submit(count=2)
    await trial.wait_states(running, LrmJobState.RUNNING, LrmJobState.RUNNING)
    waiting, _ = await trial.submit(count=3), await trial.submit(held=True)
    settings = ClusterConfig.model_validate({"name": "a", "plugin": "local"})

    async def others_of(prefix: str) -> tuple[int, ...]:
        user = login_name()
        reading = await read_cluster(settings, trial.lrm, name_prefix=prefix, user=user, read_at=0.0, others=True)
        return reading.others_waiting

    assert await others_of("koala-k-") == (1, 1, 1)
    assert await others_of(waiting.key) == ()


STRAY = 'setsid sh -c \'echo $$ > "$0/.stray"; mv "$0/.stray" "$0/stray"; exec sleep 300\' "$d" &'
"""Starts a process in a session of its own."""


async def test_strays_end_with_their_job(trial: Trial) -> None:
    batch = await trial.submit(body=STRAY)
    pid = await read_pid(trial, batch.directory / "stray")
    assert process.process_birth(pid)
    batch.go()
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).exit_code == 0
    await wait_gone(trial, pid)


async def test_cancel_ends_what_does_not_listen(trial: Trial) -> None:
    """A job that ignores SIGTERM is killed some seconds later, with its strays, and counts as cancelled."""
    batch = await trial.submit(body=f"trap '' TERM\n{STRAY}")
    pid = await read_pid(trial, batch.directory / "stray")
    await trial.lrm.cancel(batch.ids)
    await trial.wait_ended(batch)
    job = await job_of(trial, batch)
    assert (job.end, job.signal) == (EndReason.CANCELLED, signal.SIGKILL)
    await wait_gone(trial, pid)


async def test_cancel_lets_the_script_clean_up(gentle: Trial) -> None:
    """SIGTERM comes first, so a script can end in order; meanwhile it is shown as ending."""
    trial = gentle
    wait = 'until [ -e "$d/enough" ]; do sleep 0.1; done'
    body = f'trap \'echo bye > "$d/.bye"; mv "$d/.bye" "$d/bye"; {wait}; exit 5\' TERM; : > "$d/ready"'
    batch = await trial.submit(body=body)
    await trial.wait_file(batch.directory / "ready")
    await trial.lrm.cancel(batch.ids)
    assert await trial.wait_file(batch.directory / "bye") == b"bye\n"
    assert await trial.states(batch) == [LrmJobState.ENDING]
    (batch.directory / "enough").touch()
    await trial.wait_ended(batch)
    job = await job_of(trial, batch)
    assert (job.end, job.exit_code) == (EndReason.CANCELLED, 5)


async def test_requeued_job_can_be_cancelled(trial: Trial) -> None:
    batch = await trial.submit(body="trap '' TERM; : > \"$d/ready\"")
    await trial.wait_file(batch.directory / "ready")
    await trial.lrm.requeue(batch.ids)
    await trial.lrm.cancel(batch.ids)
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).end is EndReason.CANCELLED
    assert batch.starts(1) == 1


async def test_strays_of_the_first_run_spare_the_second(trial: Trial) -> None:
    batch = await trial.submit(body=STRAY)
    first = await read_pid(trial, batch.directory / "stray")
    (batch.directory / "stray").unlink()
    await trial.lrm.requeue(batch.ids)
    second = await read_pid(trial, batch.directory / "stray")
    await wait_gone(trial, first)
    # The daemon kills all strays of a run in one go, and answers only then.
    assert await trial.states(batch) == [LrmJobState.RUNNING]
    assert process.process_birth(second)
    batch.go()
    await trial.wait_ended(batch)
    await wait_gone(trial, second)


async def test_environment_is_built(trial: Trial) -> None:
    batch = await trial.submit(body='env -0 > "$d/.env"; mv "$d/.env" "$d/env"')
    raw = (await trial.wait_file(batch.directory / "env")).decode()
    seen = dict(item.split("=", 1) for item in raw.split("\0") if item)
    entry = pwd.getpwuid(os.geteuid())
    locale = {name for name in seen if name == "LANG" or name.startswith("LC_")}
    assert "LC_ALL" not in locale
    assert set(seen) - {"PWD", "OLDPWD", "SHLVL", "_", "TZ"} - locale == {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        process.JOB,
        process.TASK,
        process.NODE,
        process.MARK,
    }
    assert (seen["HOME"], seen["USER"]) == (entry.pw_dir, entry.pw_name)
    assert seen[process.NODE] in {"n1", "n2"}


async def test_script_file_goes_with_the_last_job(trial: Trial) -> None:
    scripts = state_of(trial) / "scripts"
    batch = await trial.submit(count=2)
    await trial.wait_running(batch)
    assert len(list(scripts.iterdir())) == 1
    await trial.lrm.cancel(batch.ids[:1])
    await trial.until(
        lambda: trial.states(batch),
        lambda states: states == [LrmJobState.ENDED, LrmJobState.RUNNING],
        what="one of two ended",
    )
    assert len(list(scripts.iterdir())) == 1
    batch.go()
    await trial.wait_ended(batch)
    assert list(scripts.iterdir()) == []


@pytest.mark.parametrize("obstacle", ["missing", "link", "directory"])
async def test_output_that_cannot_be_opened(trial: Trial, obstacle: str) -> None:
    batch = trial.prepare(count=1)
    output = batch.directory / "output"
    name = output / f"{batch.key}.1.out"
    if obstacle == "missing":
        output.rmdir()
    elif obstacle == "link":
        name.symlink_to(batch.directory / "elsewhere")
    else:
        name.mkdir()
    sent = await trial.send(batch)
    await trial.wait_ended(sent)
    job = await job_of(trial, sent)
    assert job.end is EndReason.LAUNCH_FAILED
    assert "cannot start" in job.reason
    assert not (batch.directory / "elsewhere").exists()
    other = await trial.submit()
    await trial.wait_running(other)


async def test_start_on_a_busy_node_waits(trial: Trial) -> None:
    busy, held = await trial.submit(), await trial.submit(held=True)
    await trial.wait_running(busy)
    (node,) = (await job_of(trial, busy)).nodes
    await begin_start(trial.lrm, held.ids[0], [node])
    other = await trial.submit()
    await trial.wait_running(other)
    assert await trial.states(held) == [LrmJobState.QUEUED]
    busy.go()
    await trial.wait_running(held)
    assert (await job_of(trial, held)).nodes == (node,)


async def test_start_on_impossible_nodes(trial: Trial) -> None:
    held = await trial.submit(held=True)
    with pytest.raises(LrmNotFoundError, match="no node n9"):
        await begin_start(trial.lrm, held.ids[0], ["n9"])
    with pytest.raises(LrmRejectedError, match="one processor"):
        await begin_start(trial.lrm, held.ids[0], ["n1", "n2"])
    assert await trial.states(held) == [LrmJobState.HELD]


async def test_wrong_states_are_refused(trial: Trial) -> None:
    running, held = await trial.submit(), await trial.submit(held=True)
    await trial.wait_running(running)
    with pytest.raises(LrmRejectedError, match="is running"):
        await trial.lrm.hold([*held.ids, *running.ids])
    with pytest.raises(LrmRejectedError, match="is held"):
        await trial.lrm.suspend([*running.ids, *held.ids])
    with pytest.raises(LrmRejectedError, match="no signal"):
        await trial.lrm.signal(running.ids, 999)
    assert await trial.states(running) == [LrmJobState.RUNNING]


async def test_walltime_limit(trial: Trial) -> None:
    with pytest.raises(LrmRejectedError, match="3601 s is not allowed"):
        await trial.submit(walltime=3601)
    batch = await trial.submit(walltime=3600)
    with pytest.raises(LrmRejectedError, match="not allowed"):
        await trial.lrm.modify(batch.ids[0], walltime=0)
    (queue,) = await trial.lrm.queues()
    assert queue.walltime_limit == 3600


async def test_shortened_walltime_ends_the_job(trial: Trial) -> None:
    batch = await trial.submit(walltime=600)
    await trial.wait_running(batch)
    started = (await job_of(trial, batch)).started_at
    assert started is not None

    async def age() -> float:
        return time.time() - started

    await trial.until(age, lambda seconds: seconds > 1, what="run of a second")
    await trial.lrm.modify(batch.ids[0], walltime=1)
    await trial.wait_ended(batch)
    assert (await job_of(trial, batch)).end is EndReason.WALLTIME


@pytest.mark.parametrize("key", ["", "../x", ".hidden", "a\0b"])
async def test_impossible_names_are_refused(trial: Trial, key: str) -> None:
    """A name that would lead out of the output directory is refused."""
    batch = trial.prepare()
    with pytest.raises(LrmRejectedError, match="cannot be a job name"):
        await trial.lrm.submit(replace(batch.submission, key=BatchKey(key)))


def test_closed_gate_runs_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n: > {tmp_path}/ran\n")
    job = replace(SAMPLE, output_directory=str(tmp_path))
    gated = process.start_gated(job, script=script, environment=process.job_environment(tmp_path, job))
    os.close(gated.gate)
    assert os.waitstatus_to_exitcode(os.waitpid(gated.pid, 0)[1]) == 125
    assert not (tmp_path / "ran").exists()
    again = process.start_gated(job, script=script, environment=process.job_environment(tmp_path, job))
    again.open()
    assert os.waitstatus_to_exitcode(os.waitpid(again.pid, 0)[1]) == 0
    assert (tmp_path / "ran").exists()


def test_identity_of_processes() -> None:
    birth = process.process_birth(os.getpid())
    assert process.is_alive(os.getpid(), birth)
    assert not process.is_alive(os.getpid(), birth + "1")
    assert not process.is_alive(os.getpid(), "")
    assert process.process_birth(2**22 + 1) == ""
