# SPDX-License-Identifier: Apache-2.0
"""Starting jobs on fake nodes, running their scripts, and noting how they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.fakes.slurm.allocation import place
from tests.fakes.slurm.state import Job, Store

if TYPE_CHECKING:
    from tests.fakes.slurm.state import State

KILL_WAIT = 1.0
STARTING_SECONDS = 10.0
"""Bound on the time in which a script that was started has a process."""


def schedule(store: Store, state: State) -> None:
    """Start every pending job that fits, in order of submission."""
    for job in sorted(state.jobs, key=lambda job: job.id):
        if job.state != "PENDING" or job.reason.startswith("JobHeld"):
            continue
        places = place(store, state, job)
        if places:
            _start(store, job, places)
        else:
            job.reason = "Resources"


def _start(store: Store, job: Job, places: dict[str, int]) -> None:
    job.state, job.reason, job.started, job.ended, job.status = "RUNNING", "None", time.time(), 0.0, 0
    job.places, job.node = places, next(iter(places))
    job.fate = ""
    store.process(job).unlink(missing_ok=True)
    # Not read from the state: whoever cancels the job holds its lock, and waits for the script to have a process.
    store.order(job.id).write_text(json.dumps(asdict(job)))
    job.runner = os.fork()
    if job.runner == 0:
        _be_runner(store, job.id)


def _be_runner(store: Store, number: int) -> NoReturn:
    """Run a job, in a process that keeps nothing of the command that started it, and end."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        # Among them the lock on the state, and the pipes of which somebody waits for the end.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        run(store, number)
    finally:
        os._exit(0)


def send(store: Store, job: Job, number: int) -> None:
    """Send a signal to all processes of a job's script, once it has some."""
    deadline = time.monotonic() + STARTING_SECONDS
    while not store.process(job).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with contextlib.suppress(OSError, ValueError):
        os.killpg(int(store.process(job).read_text()), number)


def end(store: Store, job: Job, fate: str) -> None:
    """Take a running job's processes away; it enters the state ``fate`` when they are gone."""
    job.state, job.fate = "COMPLETING", fate
    send(store, job, signal.SIGTERM)
    send(store, job, signal.SIGCONT)
    with contextlib.suppress(OSError):
        os.kill(job.runner, signal.SIGUSR1)


def run(store: Store, number: int) -> None:
    """Run the script of a job to its end, note that, and start what now fits."""
    job = Job(**json.loads(store.order(number).read_text()))
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: told.append(number))
    process = _script(store, job)
    store.process(job).with_suffix(".new").write_text(str(process.pid))
    store.process(job).with_suffix(".new").replace(store.process(job))
    deadline = time.monotonic() + job.minutes * 60
    while process.poll() is None and not told and time.monotonic() < deadline:
        time.sleep(0.02)
    timed_out = process.poll() is None and not told
    status = _kill(process) if process.poll() is None else process.returncode
    with store.locked() as state:
        job = next(job for job in state.jobs if job.id == number)
        _note_end(job, status, "TIMEOUT" if timed_out and not job.fate else job.fate)
        schedule(store, state)


def _script(store: Store, job: Job) -> subprocess.Popen[bytes]:
    environment = {
        **job.environment,
        "SLURM_JOB_ID": str(job.id),
        "SLURM_ARRAY_JOB_ID": str(job.array),
        "SLURM_ARRAY_TASK_ID": str(job.element),
        "SLURMD_NODENAME": job.node,
    }
    name = job.output.replace("%%", "\0").replace("%x", job.name).replace("%a", str(job.element)).replace("\0", "%")
    with Path(name).open("ab") as output:
        return subprocess.Popen(
            [store.script(job)],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _note_end(job: Job, status: int, fate: str) -> None:
    job.status = -status if status < 0 else status << 8
    job.ended = time.time()
    if fate == "PENDING":
        job.reason = job.reason if job.reason == "JobHeldUser" else "None"
        job.state, job.node, job.started, job.ended = "PENDING", "", 0.0, 0.0
        job.places = {}
    elif fate:
        job.state = fate
    else:
        job.state = "FAILED" if status else "COMPLETED"
        job.reason = "NonZeroExitCode" if status else "None"
