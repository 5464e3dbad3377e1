# SPDX-License-Identifier: Apache-2.0
"""Jobs of a batch system as its outside scheduler knows them: entries, listed jobs, and suitable nodes. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from koala_adapter.model import OCCUPYING, WAITING, HoldOwner, LrmJob, LrmJobId, LrmJobState, NodeState, Queue
from koala_adapter.ordering.allocation import NodeRoom, Pools, allocate, node_request, pools_of, rooms_of, serves

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.lrm.listing import Listing
    from koala_adapter.queueing.queue import LocalJob


# -- Entries: what is kept of each job, decided for it, and reported of it -----------------------------------


class Phase(StrEnum):
    """Progress of koala's start of a job."""

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
    """A listed job with the properties that its scheduler derives from it."""

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
    tried_in: int = 0
    """Number of the round of passes in which nodes were last sought for it."""
    pool: int | None = None
    estimate: int = 0
    estimate_assumed: bool = False
    """No limit of its run time is known."""
    local: LocalJob | None = None
    """What the pool's policy knows it as, while it does."""
    nodes: tuple[tuple[str, int], ...] = ()
    """Where it runs, or is to."""
    requeues: int = 0
    """How often it had been queued again when it was last seen to run or to wait."""
    promised: float | None = None
    """First start that was reserved for it."""


class JobEventKind(StrEnum):
    """Kinds of events of a queue."""

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
class JobEvent:
    """An event of a queue, as shown by ``koala schedule``."""

    time: float
    kind: JobEventKind
    job_id: LrmJobId
    user: str = ""
    processors: int = 0
    detail: str = ""
    at: float | None = None
    """The start that is reserved."""
    nodes: tuple[tuple[str, int], ...] = field(default=())


# -- Listed jobs: which are ours to start, their order, their shape ------------------------------------------
# Only a job held by the site's hook (docs/schedule.md) waits for us. A job that its user, or the batch system itself,
# keeps from starting is left out of the queue, with the reason, until that has passed.

_DIGITS = re.compile(r"(\d+)")


class JobCategory(Enum):
    """Whether koala schedules a listed job, and if not, why."""

    OURS = "ours to start"
    LEFT_OUT = "left out"
    OCCUPYING = "occupying"
    OVER = "over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules that decide which listed jobs koala schedules."""

    shadow: bool = False
    """Take what the batch system itself schedules: jobs that are queued, not those in hold."""
    user_holds: bool = False
    """Jobs in user hold are ours, too: where the site's own hold looks the same."""
    one_node: bool = False
    """A job can only be started on one node: where the batch system itself divides it among several."""
    one_by_one: bool = False
    """Elements of a job array can only be started one after the other."""
    default_walltime: int = 86_400
    """Seconds for jobs that say nothing where the queue has no limit either."""


def category_of(job: LrmJob, rules: Rules, *, now: float, ours: bool = False) -> tuple[JobCategory, str]:
    """Return the category of a job, and why it is left out where it is.

    ``now``: the time of day. ``ours``: we put it in hold again ourselves.
    """
    if job.state is LrmJobState.ENDED:
        return JobCategory.OVER, ""
    if job.state in OCCUPYING:
        return JobCategory.OCCUPYING, ""
    if job.state not in WAITING:
        return JobCategory.LEFT_OUT, f"its state is not known to us: {job.raw_state or job.state.value}"
    problem = _hold_problem(job, rules, ours=ours) or _other_problem(job, now)
    return (JobCategory.LEFT_OUT, problem) if problem else (JobCategory.OURS, "")


def _hold_problem(job: LrmJob, rules: Rules, *, ours: bool) -> str:
    if rules.shadow:
        return "" if job.state is LrmJobState.QUEUED else "it is in hold"
    if job.state is LrmJobState.QUEUED:
        return "it is not in hold, so the batch system itself starts it (it came in past the site's submission piece)"
    if job.hold is HoldOwner.USER and not (rules.user_holds or ours):
        return "its user holds it"
    if job.hold is HoldOwner.SYSTEM:
        return "the batch system holds it" + (f" ({job.reason})" if job.reason else "")
    return ""


def _other_problem(job: LrmJob, now: float) -> str:
    if job.obstacle:
        return job.obstacle
    if job.dependent:
        # That it is in hold, too, is not why it waits.
        why = "" if "held" in job.reason.lower() else job.reason
        return "it waits for other jobs" + (f" ({why})" if why else "")
    if job.eligible_at is not None and job.eligible_at > now:
        return "its begin time has not come"
    return ""


def estimate(job: LrmJob, queues: Mapping[str, Queue], rules: Rules) -> int:
    """Return for how long (seconds) a job may run: its walltime, else its queue's limit, else the site's default."""
    known = known_limit(job, queues)
    return rules.default_walltime if known is None else known


def known_limit(job: LrmJob, queues: Mapping[str, Queue]) -> int | None:
    """Return for how long (seconds) a job may run by its walltime or its queue's limit; None: neither is known."""
    if job.walltime:
        return job.walltime
    if job.started_at is not None and job.ends_at is not None and job.ends_at > job.started_at:
        return max(1, round(job.ends_at - job.started_at))
    limits = [queue.walltime_limit for name, queue in queues.items() if serves(job.queue, name)]
    return min((limit for limit in limits if limit), default=None)


def layout_of(job: LrmJob) -> tuple[tuple[str, int], ...]:
    """Return the processors of a running job by node, as far as the batch system tells."""
    if job.layout or not job.nodes:
        return job.layout
    each, more = divmod(job.processors, len(job.nodes))
    return tuple((name, each + (number < more)) for number, name in enumerate(job.nodes))


def difference(layout: tuple[tuple[str, int], ...], nodes: tuple[tuple[str, int], ...]) -> str:
    """Return how a job's actual nodes differ from those of its start, in words; empty when they do not."""
    if sorted(layout) == sorted(nodes):
        return ""
    if dict(layout).keys() != dict(nodes).keys():
        return "on other nodes than we said"
    alone = all(count >= dict(nodes)[name] for name, count in layout)
    return "with more processors than it asked for" if alone else "with other processors on each than we said"


def turn(id_: LrmJobId, submitted_at: float | None) -> tuple[float, tuple[int | str, ...], str]:
    """Sort key of jobs by submission; at equal times by the batch system's job numbers.

    Numbers within an id count as numbers: ``9`` before ``10``, ``12_3`` and ``12.3`` before ``12_10`` and ``12.10``.
    """
    if id_.isdecimal():
        return submitted_at or 0.0, ("", int(id_), ""), id_
    parts = tuple(int(part) if part.isdecimal() else part for part in _DIGITS.split(id_))
    return submitted_at or 0.0, parts, id_


def in_order(jobs: Iterable[LrmJob]) -> list[LrmJob]:
    """Sort jobs by submission; batch systems list them in any order, Slurm the newest first."""
    return sorted(jobs, key=lambda job: turn(job.id, job.submitted_at))


# -- Suitability: on which nodes a job could start if nothing else ran ---------------------------------------
# The answers are kept until nodes or queues change.


class Suitability:
    """Checks of jobs against the nodes and queues that exist, busy or not."""

    def __init__(self) -> None:
        """Create an empty list of jobs."""
        self.pools = Pools(nodes={}, queues={}, default=None)
        self._queues: Mapping[str, Queue] = {}
        self._rooms: tuple[NodeRoom, ...] = ()
        self._seen: object = None
        self._fits: dict[object, int | str] = {}
        """The processors that jobs take of their nodes, or why they do not fit there, by what they ask of them."""
        self._served: dict[str, tuple[int | None, str]] = {}

    def follow(self, listing: Listing) -> bool:
        """Update nodes and queues from a listing; return whether they are unchanged."""
        seen = [
            (
                node.name,
                node.state is NodeState.UP,
                node.processors,
                node.grain,
                node.queue_grains,
                node.whole_queues,
                node.memory_mib,
                node.features,
                node.queues,
            )
            for node in listing.nodes
        ]
        if (seen, listing.queues) == self._seen:
            return True
        self._seen = (seen, listing.queues)
        self._queues = listing.queues
        self._fits.clear()
        self._served.clear()
        unused = (replace(node, processors_used=0, memory_used_mib=0) for node in listing.nodes)
        self._rooms = tuple(rooms_of(unused, {}, {}).values())
        self.pools = pools_of(listing.nodes, listing.queues)
        return False

    def pool_for(self, job: LrmJob) -> tuple[int | None, str]:
        """Return the pool for a job, and why it can never start there; empty when it can."""
        if job.queue not in self._served:
            self._served[job.queue] = self._pool_of(job.queue)
        pool, problem = self._served[job.queue]
        return pool, problem or self._problem(job)

    def processors_of(self, job: LrmJob) -> int:
        """Return how many processors a job occupies: whole cores, or whole nodes when it is exclusive."""
        fit = self._fit(job)
        return job.processors if isinstance(fit, str) else fit

    def _problem(self, job: LrmJob) -> str:
        fit = self._fit(job)
        if not isinstance(fit, str):
            return ""
        why = fit.removesuffix(" now").removesuffix(" for it")
        return f"even with nothing else running on the nodes that are up: {why}"

    def _fit(self, job: LrmJob) -> int | str:
        wanted = node_request(job)
        if wanted not in self._fits:
            found = allocate(job, self._rooms)
            nodes = {room.node.name: room.node for room in self._rooms}
            self._fits[wanted] = (
                found if isinstance(found, str) else sum(nodes[name].gives(job, count) for name, count in found)
            )
        return self._fits[wanted]

    def _pool_of(self, wanted: str) -> tuple[int | None, str]:
        """Return the pool of a queue or list of queues, and why its jobs cannot start there now."""
        pool = self.pools.of_queue(wanted)
        if pool is None:
            return None, f"no node serves queue {wanted}" if wanted else "it names no queue"
        serving = [queue for name, queue in self._queues.items() if serves(wanted, name)]
        if serving and not any(queue.up for queue in serving):
            return pool, f"queue {serving[0].name} is down"
        return pool, ""
