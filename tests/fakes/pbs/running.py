# SPDX-License-Identifier: Apache-2.0
"""Starting jobs on fake vnodes, running their scripts, and noting how they end."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.fakes.pbs.placing import place
from tests.fakes.pbs.state import NO_ELEMENT, OVER, Job, Store

if TYPE_CHECKING:
    from tests.fakes.pbs.state import State

KILL_DELAY = 1.0
STARTING_SECONDS = 10.0
"""Bound on the time in which a script that was started has a process."""
WALLTIME_EXCEEDED = -29
TERMINATED, FINISHED, FAILED = 91, 92, 93
SHELL_SIGNAL, SIGNAL = 128, 256


def schedule(store: Store, state: State) -> None:
    """Start every job that waits for nothing else and fits, in order of submission."""
    for job in state.jobs if state.scheduling else ():
        if job.letter == "W" and time.time() >= job.begin:
            job.letter, job.substate = "Q", 10
        if job.letter == "Q" and not job.queue and not state.holds[str(job.number)]:
            exec_vnode = place(store, state, job)
            if exec_vnode:
                start(store, job, exec_vnode)


def start(store: Store, job: Job, exec_vnode: str) -> None:
    """Start a job, wherever that is."""
    job.letter, job.substate, job.exec_vnode = "R", 42, exec_vnode
    job.started, job.ended, job.status, job.fate = time.time(), 0.0, None, ""
    job.runs += 1
    store.process(job).unlink(missing_ok=True)
    job.runner = os.fork()
    if job.runner == 0:
        _be_runner(store, job)


def _be_runner(store: Store, job: Job) -> NoReturn:
    """Run a job, in a process that keeps nothing of the command that started it, and end."""
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(nothing, descriptor)
        # Among them the lock on the state, and the pipes of which somebody waits for the end.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _run(store, job)
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
    """Take a running job's processes away; what comes of it is seen when they are gone."""
    job.letter, job.substate, job.fate = "E", 50, fate
    send(store, job, signal.SIGTERM)
    send(store, job, signal.SIGCONT)
    with contextlib.suppress(OSError):
        os.kill(job.runner, signal.SIGUSR1)


def delete(state: State, job: Job) -> None:
    """Note that a job was deleted, which runs no more."""
    job.letter, job.substate, job.ended = "F" if job.element == NO_ELEMENT else "X", TERMINATED, time.time()
    close_array(state, job)


def close_array(state: State, job: Job) -> None:
    """End an array all of whose elements are over: they leave the listing together."""
    siblings = state.siblings(job)
    if all(one.letter in OVER for one in siblings):
        for one in siblings:
            one.letter = "F"


def _run(store: Store, job: Job) -> None:
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: told.append(number))
    process = _script(store, job)
    store.process(job).with_suffix(".new").write_text(str(process.pid))
    store.process(job).with_suffix(".new").replace(store.process(job))
    deadline = time.monotonic() + job.walltime
    while process.poll() is None and not told and time.monotonic() < deadline:
        time.sleep(0.02)
    timed_out = process.poll() is None and not told
    status = _kill(process) if process.poll() is None else process.returncode
    with store.locked() as state:
        (found,) = [one for one in state.jobs if (one.number, one.element) == (job.number, job.element)]
        _note_end(state, found, WALLTIME_EXCEEDED if timed_out and not found.fate else status)
        schedule(store, state)


def _script(store: Store, job: Job) -> subprocess.Popen[bytes]:
    entry = pwd.getpwuid(os.geteuid())
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": entry.pw_dir,
        "USER": job.user,
        "PBS_JOBNAME": job.name,
        "PBS_QUEUE": store.settings["queue"],
        **job.environment,
        "PBS_JOBID": store.identity(job),
    }
    if job.element != NO_ELEMENT:
        environment |= {"PBS_ARRAY_INDEX": str(job.element), "PBS_ARRAY_ID": store.array(job)}
    with Path(job.output.replace("^array_index^", str(job.element))).open("ab") as output:
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
        process.wait(KILL_DELAY)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _note_end(state: State, job: Job, status: int) -> None:
    job.ended = time.time()
    if job.fate == "requeued":
        job.letter, job.substate, job.exec_vnode, job.started, job.ended = "Q", 10, "", 0.0, 0.0
        return
    job.letter = "F" if job.element == NO_ELEMENT else "X"
    if job.fate:
        job.substate, job.status = TERMINATED, SIGNAL + signal.SIGTERM
    elif status == WALLTIME_EXCEEDED:
        job.substate, job.status = FAILED, status
    else:
        # The script is a child of the shell that PBS starts, which tells of its death in its own way.
        job.status = SHELL_SIGNAL - status if status < 0 else status
        job.substate = FAILED if job.status else FINISHED
    close_array(state, job)
