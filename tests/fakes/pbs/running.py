# SPDX-License-Identifier: Apache-2.0
"""Starting jobs on fake vnodes, running their scripts, and noting how they end."""

from __future__ import annotations

import os
import pwd
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.pbs.placing import place
from tests.fakes.pbs.state import NO_ELEMENT, OVER, Job, Store
from tests.fakes.scripts import detach, end_script, run_script, signal_script

if TYPE_CHECKING:
    from tests.fakes.pbs.state import State

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
    job.runner = detach(lambda: _run(store, job))


def send(store: Store, job: Job, number: int) -> None:
    """Send a signal to all processes of a job's script, once it has some."""
    signal_script(store.process(job), number)


def end(store: Store, job: Job, fate: str) -> None:
    """Take a running job's processes away; what comes of it is seen when they are gone."""
    job.letter, job.substate, job.fate = "E", 50, fate
    end_script(store.process(job), job.runner)


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
    ended = run_script(
        store.script(job),
        output=Path(job.output.replace("^array_index^", str(job.element))),
        environment=_environment(store, job),
        process_file=store.process(job),
        seconds=job.walltime,
    )
    with store.locked() as state:
        (found,) = [one for one in state.jobs if (one.number, one.element) == (job.number, job.element)]
        _note_end(state, found, WALLTIME_EXCEEDED if ended.timed_out and not found.fate else ended.status)
        schedule(store, state)


def _environment(store: Store, job: Job) -> dict[str, str]:
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
    return environment


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
