# SPDX-License-Identifier: Apache-2.0
"""What the fake PBS knows, in one locked file, and what becomes of its jobs."""

from __future__ import annotations

import getopt
import os
import pwd
import re
import signal
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tests.fakes.scripts import Directory, Refusal, detach, end_script, locked, run_script

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager


NO_ELEMENT = -1
WAITING = "QW"
ALIVE = "RSE"
OVER = "XF"
MOVED = "M"


class Settings(TypedDict):
    """Contents of the fake's pbs.conf."""

    server: str
    release: str
    nodes: dict[str, int]
    """Processors of each vnode."""
    queue: str
    max_array_size: int
    history: bool
    operators: list[str]
    site_hook: bool
    """conf/pbs_queuejob.py is at work: jobs come in with an operator's hold."""
    peers: dict[str, str]
    """The pbs.conf of each other server to which jobs may be moved."""
    routes: dict[str, str]
    """Destination of each routing queue."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One job or array element."""

    number: int
    element: int
    """-1 for a job that is no array."""
    name: str
    user: str
    select: str
    place: str
    walltime: int
    output: str
    rerunnable: bool
    submitted: float
    arguments: str
    environment: dict[str, str]
    """Of -v."""
    letter: str = "Q"
    substate: int = 10
    exec_vnode: str = ""
    started: float = 0.0
    ended: float = 0.0
    status: int | None = None
    runs: int = 0
    begin: float = 0.0
    runner: int = 0
    """Process id of the process that runs the script and waits for it."""
    known_as: str = ""
    """Its id, where another server gave it."""
    queue: str = ""
    """The routing queue that it waits in, or where it was moved to; empty: the queue of the server."""
    fate: str = ""
    """What has come of it by our doing: deleted, requeued."""


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that changes."""

    next_number: int = 1
    jobs: list[Job] = field(default_factory=list)
    holds: dict[str, str] = field(default_factory=dict)
    """Kinds of hold of each job, and array, by its number."""
    comments: dict[str, str] = field(default_factory=dict)
    """That operators gave to jobs, and arrays, that wait, by their numbers."""
    scheduling: bool = True
    offline: list[str] = field(default_factory=list)

    def siblings(self, job: Job) -> list[Job]:
        """Return the elements of a job's array, or the job alone."""
        return [other for other in self.jobs if other.number == job.number]


class Store(Directory[Settings]):
    """The directory of one fake server."""

    variable = "PBS_CONF_FILE"

    def identity(self, job: Job) -> str:
        """Return the id as PBS prints it."""
        if job.known_as:
            return job.known_as
        element = "" if job.element == NO_ELEMENT else f"[{job.element}]"
        return f"{job.number}{element}.{self.settings['server']}"

    def array(self, job: Job) -> str:
        """Return the id of a job's array."""
        return f"{job.number}[].{self.settings['server']}"

    def script(self, job: Job) -> Path:
        """Copy of the job's script, private to its user."""
        return self.directory / "spool" / f"{job.number}.SC"

    def process(self, job: Job) -> Path:
        """File with the process group of the running script."""
        return self.directory / "spool" / f"{job.number}.{job.element}.pid"

    def locked(self) -> AbstractContextManager[State]:
        """Give the state, and write it back if nothing went wrong; one process at a time."""
        return locked(self.directory, _read, State)


def _read(raw: Mapping[str, Any]) -> State:
    return State(**{**raw, "jobs": [Job(**job) for job in raw["jobs"]]})


# Which processors of the fake are free, and where the chunks of a job go.

_SELECT = re.compile(r"\d+(:[a-z_]+=[^:+]+)*(\+\d+(:[a-z_]+=[^:+]+)*)*")


def is_selection(text: str) -> bool:
    """Tell whether a text is one that the server takes."""
    return bool(_SELECT.fullmatch(text))


def chunks_of(select: str) -> list[dict[str, str]]:
    """Return the resources of each chunk."""
    found: list[dict[str, str]] = []
    for part in select.split("+"):
        count, *words = part.split(":")
        found += [dict(word.split("=", 1) for word in words)] * int(count)
    return found


def processors_of(select: str) -> int:
    """Return all processors of a selection."""
    return sum(int(chunk.get("ncpus", "1")) for chunk in chunks_of(select))


def places_of(exec_vnode: str) -> dict[str, int]:
    """Return the processors on each vnode of an exec_vnode."""
    counts: dict[str, int] = {}
    for part in exec_vnode.replace("(", "").replace(")", "").split("+"):
        name, *words = part.split(":")
        if name:
            counts[name] = counts.get(name, 0) + int(dict(word.split("=", 1) for word in words).get("ncpus", "1"))
    return counts


def used_processors(state: State, vnode: str) -> int:
    """Return the processors of a vnode that jobs have; those of suspended ones are given back."""
    return sum(
        places_of(job.exec_vnode).get(vnode, 0) for job in state.jobs if job.letter in ALIVE and job.letter != "S"
    )


def place(store: Store, state: State, job: Job) -> str | None:
    """Return the exec_vnode with which a job can start now; None when there is no room."""
    free: Mapping[str, int] = store.settings["nodes"]
    left = {name: count - used_processors(state, name) for name, count in free.items() if name not in state.offline}
    parts = []
    before: set[str] = set()
    for chunk in chunks_of(job.select):
        count = int(chunk.get("ncpus", "1"))
        allowed = [name for name in left if chunk.get("vnode", name) == name]
        if "scatter" in job.place:
            allowed = [name for name in allowed if name not in before]
        elif "pack" in job.place and before:
            allowed = [name for name in allowed if name in before]
        name = next((name for name in allowed if left[name] >= count), None)
        if name is None:
            return None
        left[name] -= count
        before.add(name)
        parts.append(f"({name}:ncpus={count})")
    return "+".join(parts)


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
