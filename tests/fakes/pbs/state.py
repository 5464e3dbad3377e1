# SPDX-License-Identifier: Apache-2.0
"""The state of a fake PBS, and which vnodes its jobs get."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from tests.fakes.scripts import Directory, locked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


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
