# SPDX-License-Identifier: Apache-2.0
"""What the fake server remembers: its settings and its jobs, in files that all commands share under one lock."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from tests.fakes.scripts import locked

if TYPE_CHECKING:
    from collections.abc import Mapping
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


class Store:
    """The directory of one fake server; the commands find it through PBS_CONF_FILE, as the real ones do."""

    def __init__(self, conf: Path) -> None:
        """``conf`` is the fake's pbs.conf, which is JSON."""
        self.directory = conf.parent
        self.settings: Settings = json.loads(conf.read_text())

    @classmethod
    def of_environment(cls) -> Store:
        """Return the server that the environment chooses."""
        return cls(Path(os.environ["PBS_CONF_FILE"]))

    @property
    def down(self) -> bool:
        """True while the server plays dead."""
        return (self.directory / "down").exists()

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
