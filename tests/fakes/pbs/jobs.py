# SPDX-License-Identifier: Apache-2.0
"""Which jobs a command of a fake PBS means, how they run, and how they move to another server."""

from __future__ import annotations

import getopt
import os
import pwd
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fakes.pbs.state import MOVED, NO_ELEMENT, OVER, WAITING, Job, Store, place
from tests.fakes.scripts import Refusal, detach, end_script, run_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.fakes.pbs.state import State


# Command lines of the fake, and the words in which PBS refuses.

UNKNOWN_JOB, FINISHED_JOB, INVALID_REQUEST, BAD_STATE, UNAUTHORIZED = 153, 35, 156, 168, 159

_ID = re.compile(r"(\d+)(?:\[(?:(\d*)|(\d+)-(\d+))\])?(\.[\w.-]+)?")


def parse(arguments: Sequence[str], known: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the values of each option, and the words behind them; ``known`` as for getopt(3)."""
    try:
        pairs, words = getopt.getopt(list(arguments), known)
    except getopt.GetoptError as error:
        raise Refusal(f"illegal -{error.opt} value\nusage: see the manual", 2) from error
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found, words


def selected(store: Store, state: State, text: str, *, ended: bool = False) -> list[Job]:
    """Return the jobs that an id, or a range of elements, names. Raises Refusal in PBS's words.

    ``ended``: those that are over are meant, too.
    """
    match = _ID.fullmatch(text)
    shown = text if match and match[5] else f"{text}.{store.settings['server']}"
    given = text.partition(".")[2] or store.settings["server"]
    found = [
        job
        for job in state.jobs
        if match
        and (job.known_as == text if job.known_as or given != store.settings["server"] else job.number == int(match[1]))
        and (ended or job.letter != MOVED)
    ]
    if not match or not found or ("[" in text) != (found[0].element != NO_ELEMENT):
        raise Refusal(f"Unknown Job Id {shown}", UNKNOWN_JOB)
    if not ended and all(job.letter == "F" for job in found):
        raise Refusal(f"Job has finished {shown}", FINISHED_JOB)
    wanted = _elements(match)
    if wanted is not None:
        found = [job for job in found if job.element in wanted]
        if not found:
            raise Refusal(f"Invalid request {shown}", INVALID_REQUEST)
    return found


def _elements(match: re.Match[str]) -> range | None:
    if match[2]:
        return range(int(match[2]), int(match[2]) + 1)
    return range(int(match[3]), int(match[4]) + 1) if match[3] else None


def whole(store: Store, state: State, text: str) -> Job:
    """Return a job, or any element of an array. Raises Refusal for what can be done to whole arrays only."""
    found = selected(store, state, text)
    if "[" in text and "[]" not in text:
        raise Refusal(f"Invalid request {text}", INVALID_REQUEST)
    return found[0]


def is_over(job: Job) -> bool:
    """Tell whether a job has ended."""
    return job.letter in OVER


# Starting jobs on fake vnodes, running their scripts, and noting how they end.

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


# Moving jobs to another fake server, and commands that follow them there, as the real ones do.

MOVED_SUBSTATE = 94
NO_ANSWER = 255


def qmove(store: Store, arguments: list[str]) -> None:
    """Move waiting jobs; no arrays: another server refuses them."""
    _, (destination, *ids) = parse(arguments, "")
    with store.locked() as state:
        for text in ids:
            for job in selected(store, state, text):
                if job.element != NO_ELEMENT or job.letter not in WAITING:
                    raise Refusal(f"Job rejected by all possible destinations {text}", 191)
                move(store, state, job, destination)


def move(store: Store, state: State, job: Job, destination: str) -> None:
    """Give a job to another server; our own remembers to which."""
    there = peer(store, destination.rpartition("@")[2])
    with there.locked() as other:
        number = other.next_number
        other.next_number += 1
        other.holds[str(number)] = state.holds[str(job.number)]
        moved = replace(job, number=number, known_as=store.identity(job), queue="")
        other.jobs.append(moved)
        there.script(moved).touch(mode=0o700)
        there.script(moved).write_bytes(store.script(job).read_bytes())
        schedule(there, other)
    job.letter, job.substate, job.queue = MOVED, MOVED_SUBSTATE, destination


def peer(store: Store, server: str) -> Store:
    """Return another server. Raises Refusal when it is not known, or does not answer."""
    there = Store(Path(store.settings["peers"][server])) if server in store.settings["peers"] else None
    if there is None or there.down:
        raise Refusal(f"cannot connect to server {server} (errno=15010)", NO_ANSWER)
    return there


def followed(store: Store, arguments: list[str]) -> tuple[Store, list[str]]:
    """Return the server that a command goes to, and its arguments: of ``ID@SERVER`` that, else where the job is."""
    *options, last = arguments or [""]
    id_, at, server = last.partition("@")
    if at and not any(word in last for word in ",="):
        here = server == store.settings["server"]
        return (store if here else peer(store, server)), [*options, *([id_] if id_ else [])]
    if "-x" in options:
        return store, arguments
    with store.locked() as state:
        left = [job for job in state.jobs if job.letter == MOVED and store.identity(job) == last]
    return (peer(store, left[0].queue.rpartition("@")[2]), arguments) if left else (store, arguments)
