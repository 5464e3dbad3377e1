# SPDX-License-Identifier: Apache-2.0
"""What is kept of each job of the batch system, what is decided for it, and what is told of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobId  # noqa: TC001 - the codec of the record reads annotations at run time

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob
    from koala_adapter.ordering.allocation import Allocation
    from koala_adapter.queueing.local_queue import LocalJob


class Phase(StrEnum):
    """Where a job stands with us."""

    LEFT_OUT = "left out"
    """It may not be started now; the reason is kept."""
    WAITING = "waiting"
    STARTING = "starting"
    """We decided to start it, and the batch system does not show it started yet."""
    RETURNING = "returning"
    """It did not start in time, or was queued again, and is to be put in hold and untied from its nodes."""
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What of a job a batch system may show differently once we have tied it to nodes."""

    processors: int
    requested_nodes: tuple[str, ...] = ()
    nodes_wanted: int | None = None
    nodes_least: int = 1
    nodes_most: int | None = None
    tasks_per_node: int | None = None

    @classmethod
    def of(cls, job: LrmJob) -> Wishes:
        """Return those of a job that is not tied."""
        return cls(
            processors=job.processors,
            requested_nodes=job.requested_nodes,
            nodes_wanted=job.nodes_wanted,
            nodes_least=job.nodes_least,
            nodes_most=job.nodes_most,
            tasks_per_node=job.tasks_per_node,
        )

    def restored(self, job: LrmJob) -> LrmJob:
        """Return a job as it was before it was tied."""
        return replace(
            job,
            processors=self.processors,
            requested_nodes=self.requested_nodes,
            nodes_wanted=self.nodes_wanted,
            nodes_least=self.nodes_least,
            nodes_most=self.nodes_most,
            tasks_per_node=self.tasks_per_node,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """What is on record of a start before it is asked for, so that a kill at any time loses and doubles nothing."""

    job_id: LrmJobId
    submitted_at: float | None
    """Tells the job from a later one of the same number."""
    nodes: tuple[tuple[str, int], ...]
    wishes: Wishes
    """What its user insists on: what the batch system shows from now on is ours."""
    at: float
    """Like all times but ``submitted_at`` by our own clock."""
    failures: int = 0
    """How many starts have failed; one that was cut short by our own end did not."""
    not_before: float = 0.0
    """After a failed start: when the next one may be tried."""
    failure: str = ""
    """Why the last start failed, or that the job was queued again."""
    started: bool = False
    """It ran there: kept until it is over, because the batch system may queue it again."""


@dataclass(slots=True, eq=False)
class Entry:
    """One job as we know it."""

    job: LrmJob
    """As it was listed last, but with what its user insisted on before we tied it to nodes."""
    phase: Phase
    submitted: float = 0.0
    """By our clock, as it was when the job was first seen."""
    started: tuple[float, float] | None = None
    """When it started, in the words of the batch system and by our clock, as it was when that was first seen."""
    listed: LrmJob | None = None
    """Exactly as it was listed last."""
    reason: str = ""
    """Why it is left out."""
    passed_over: str = ""
    """Why the last pass did not start it although enough processors were free."""
    pool: int | None = None
    estimate: int = 0
    local: LocalJob | None = None
    """What the pool's policy knows it as, while it does."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Where it runs, or is to."""
    accepted_at: float | None = None
    """When the batch system had taken the start."""
    doubtful: bool = False
    """Whether it took the start is not known."""
    tied: bool = False
    """It was queued again, and has not been untied from its nodes yet."""
    requeues: int = 0
    """How often it had been queued again when it was last seen to run or to wait."""
    promised: float | None = None
    """First start that was reserved for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job to be started, and where."""

    job_id: LrmJobId
    allocation: Allocation
    pin: Pin


class Kind(StrEnum):
    """What may happen to a job."""

    SUBMITTED = "submitted"
    LEFT_OUT = "left out"
    RESERVED = "reserved"
    PASSED_OVER = "passed over"
    START = "start"
    STARTED = "started"
    NOT_STARTED = "not started"
    REQUEUED = "requeued"
    ADOPTED = "adopted"
    CHANGED = "changed"
    ENDED = "ended"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One line of what went on."""

    time: float
    kind: Kind
    job_id: LrmJobId
    user: str = ""
    processors: int = 0
    detail: str = ""
    at: float | None = None
    """The start that is reserved."""
    nodes: tuple[tuple[str, int], ...] = field(default=())
