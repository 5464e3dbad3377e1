# SPDX-License-Identifier: Apache-2.0
"""The state of a fake Slurm, and which processors its jobs get."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from tests.fakes.scripts import Directory, locked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path


class Settings(TypedDict):
    """Contents of the fake's slurm.conf."""

    cluster: str
    release: str
    nodes: dict[str, int]
    """Processors of each node."""
    partition: str
    max_array_size: int
    accounting: bool
    site_hook: bool
    """The site's submission hook marks jobs as those of an outside scheduler."""
    whole_nodes: bool
    """The partition says that it gives whole nodes; jobs get single processors all the same."""


@dataclass(slots=True, kw_only=True)
class Job:
    """One job or array element."""

    id: int
    array: int
    element: int
    """-1 for a job that is no array."""
    name: str
    user: str
    partition: str
    minutes: int
    output: str
    requeue: bool
    submitted: float
    environment: dict[str, str]
    state: str = "PENDING"
    reason: str = "None"
    node: str = ""
    processors: int = 1
    places: dict[str, int] = field(default_factory=dict)
    """Processors that it has on each node."""
    wanted: list[str] = field(default_factory=list)
    nodes_low: int = 1
    nodes_high: int = 0
    """Upper bound of its number of nodes; 0: none."""
    least: int = 1
    """Processors that it needs on each node."""
    reservation: str = ""
    comment: str = "(null)"
    admin_comment: str = "(null)"
    started: float = 0.0
    ended: float = 0.0
    status: int = 0
    """Wait status: exit code times 256, or a signal."""
    runner: int = 0
    """Process id of the process that runs the script and waits for it."""
    fate: str = ""
    """State to enter when the script has ended by our doing: CANCELLED, TIMEOUT, or PENDING for a requeue."""

    @property
    def identity(self) -> str:
        """The id as Slurm prints it."""
        return f"{self.array}" if self.element < 0 else f"{self.array}_{self.element}"

    @property
    def alive(self) -> bool:
        """True while the job holds a processor."""
        return self.state in {"RUNNING", "SUSPENDED", "COMPLETING"}


@dataclass(slots=True, kw_only=True)
class Reservation:
    """Cores that only jobs in it can have."""

    name: str
    cores: dict[str, int]


@dataclass(slots=True, kw_only=True)
class State:
    """Everything that changes."""

    next_id: int = 1
    jobs: list[Job] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)


class Store(Directory[Settings]):
    """The directory of one fake cluster."""

    variable = "SLURM_CONF"

    @property
    def release(self) -> tuple[int, ...]:
        """Major and minor number of the release that is played."""
        return tuple(int(number) for number in self.settings["release"].split(".")[:2])

    @property
    def exclusive_apart(self) -> bool:
        """True where sinfo does not tell which partitions give whole nodes."""
        return self.release >= (26, 5)

    def script(self, job: Job) -> Path:
        """Copy of the job's script, private to its user."""
        return self.directory / "spool" / f"{job.array}.sh"

    def process(self, job: Job) -> Path:
        """File with the process group of the running script."""
        return self.directory / "spool" / f"{job.id}.pid"

    def order(self, number: int) -> Path:
        """File with what is to be run for a job."""
        return self.directory / "spool" / f"{number}.json"

    def locked(self) -> AbstractContextManager[State]:
        """Give the state, and write it back if nothing went wrong; one process at a time."""
        return locked(self.directory, _read, State)


def _read(raw: Mapping[str, Any]) -> State:
    return State(
        next_id=raw["next_id"],
        jobs=[Job(**job) for job in raw["jobs"]],
        reservations=[Reservation(**one) for one in raw["reservations"]],
    )


# Which processors of the fake are free, and which of them a job gets: as Slurm does it, one node after the other.

LIST_IS_A_CHOICE_SINCE = (23, 11)
"""From here on a list of more nodes than a job needs says where it may start, before where it must."""


def used_processors(state: State, node: str) -> int:
    """Return the processors of a node that jobs have."""
    return sum(job.places.get(node, 0) for job in state.jobs if job.alive)


def free_processors(store: Store, state: State, node: str, reservation: str = "") -> int:
    """Return the processors of a node that a job can have, in a reservation or outside of all."""
    inside = {one.name: one.cores.get(node, 0) for one in state.reservations}
    if reservation:
        return inside[reservation] - _used_in(state, node, reservation)
    outside = used_processors(state, node) - sum(_used_in(state, node, name) for name in inside)
    return store.settings["nodes"][node] - sum(inside.values()) - outside


def _used_in(state: State, node: str, reservation: str) -> int:
    return sum(job.places.get(node, 0) for job in state.jobs if job.alive and job.reservation == reservation)


def place(store: Store, state: State, job: Job) -> dict[str, int] | None:
    """Return the processors on each node with which a job can start now; None when there are too few."""
    choice = store.release >= LIST_IS_A_CHOICE_SINCE and len(job.wanted) > job.nodes_low
    required = [] if choice else job.wanted
    others = job.wanted if choice else [name for name in store.settings["nodes"] if name not in required]
    low = max(job.nodes_low, len(required))
    high = job.nodes_high or len(store.settings["nodes"])
    return None if low > high else _fill(store, state, job, [*required, *others], low=low, high=high)


def _fill(store: Store, state: State, job: Job, nodes: Sequence[str], *, low: int, high: int) -> dict[str, int] | None:
    chosen: dict[str, int] = {}
    missing = job.processors
    for name in nodes:
        if len(chosen) == high or (missing == 0 and len(chosen) >= low):
            break
        kept = job.least * max(0, low - len(chosen) - 1)
        count = min(free_processors(store, state, name, job.reservation), missing - kept)
        if count >= job.least:
            chosen[name] = count
            missing -= count
    return chosen if missing == 0 and len(chosen) >= low else None
