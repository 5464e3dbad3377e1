# SPDX-License-Identifier: Apache-2.0
"""What is kept of each job of the batch system, what is decided for it, and what is told of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobId  # noqa: TC001 - the codec of happenings reads annotations at run time

if TYPE_CHECKING:
    from koala_adapter.batchsystem.startlog import Pin
    from koala_adapter.model import LrmJob
    from koala_adapter.ordering.allocation import Allocation
    from koala_adapter.queueing.local_queue import LocalJob


class Phase(StrEnum):
    """How far koala has come with the start of a job."""

    LEFT_OUT = "left out"
    """It may not be started now; the reason is kept."""
    WAITING = "waiting"
    STARTING = "starting"
    """We decided to start it, and the batch system does not show it started yet."""
    RETURNING = "returning"
    """It did not start in time, or was queued again, and is to be put in hold and untied from its nodes."""
    RUNNING = "running"


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
