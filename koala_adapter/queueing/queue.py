# SPDX-License-Identifier: Apache-2.0
"""The queue of one cluster: priorities of its jobs, and the base class of all scheduling policies. Pure.

A priority is a weighted sum of queue time, size and user share, as in Maui and Slurm. The queue time grows equally fast
for all waiting jobs and so never changes their order: the *rank* of a job is fixed when it is submitted, and only the
share of its user, where that has a weight, is added at each pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from math import exp, inf, log
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# -- Priority weights and user shares ------------------------------------------------------------------------

HALF_LIFE = 86_400.0
"""Seconds in which what a user has used counts half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityWeights:
    """What a job's priority is made of; the job with the higher sum goes first, among equals the earlier submitted.

    The default is the order of arrival. A negative weight turns a term round: ``processors=-1`` favours small jobs.
    """

    queue_time: float = 1.0
    """Points for each second since the submission."""
    processors: float = 0.0
    """Points for each processor that the job asks for."""
    share: float = 0.0
    """Points that a user loses who has had all processor time used lately; a quarter of them for a quarter of it."""
    half_life: float = HALF_LIFE
    """Seconds in which past use counts half; used only with ``share``."""

    def __post_init__(self) -> None:
        """Raise ValueError for a half-life that is not positive."""
        if not self.half_life > 0:
            msg = f"the half-life of past use must be above 0 s, not {self.half_life:g}"
            raise ValueError(msg)


ARRIVAL = PriorityWeights()
"""Jobs go in order of submission."""


class UserShares:
    """Each user's share of recent use, in which older use counts less by a half-life.

    Use is processors held times seconds, added up continuously while jobs run, so running jobs count as well.
    """

    __slots__ = ("_decay", "_held", "_used", "_when")

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._decay = log(2) / half_life
        self._held: dict[str, int] = {}
        self._used: dict[str, float] = {}
        self._when = 0.0

    def hold(self, user: str, processors: int, now: float) -> None:
        """Add processors to those that a user holds; negative: subtract."""
        self._advance(now)
        self._held[user] = self._held.get(user, 0) + processors
        self._used.setdefault(user, 0.0)

    def shares(self, now: float) -> Mapping[str, float]:
        """Return each user's share of recent use, from 0 to 1, without users whose share is 0."""
        self._advance(now)
        total = sum(self._used.values())
        return {user: used / total for user, used in self._used.items()} if total > 0 else {}

    def _advance(self, now: float) -> None:
        """Apply the decay up to now and add the use since the last call."""
        passed = now - self._when
        if passed <= 0:
            return
        left = exp(-self._decay * passed)
        gained = (1 - left) / self._decay
        for user, used in self._used.items():
            self._used[user] = used * left + self._held[user] * gained
        self._when = now


# -- Jobs of a cluster, and the base class of its policies ---------------------------------------------------
# Policies differ in one method, ``ClusterScheduler.schedule``. Speed matters: a simulation executes these lines a
# million times, so there are plain lists, slots and no copies. The time is always given by the caller.

_rank = attrgetter("rank")
_turn = attrgetter("turn")

Turn: TypeAlias = "tuple[object, ...]"
"""What jobs of the same rank are compared by; of one kind for all jobs of a cluster."""


class LocalJob:
    """A job of one cluster, as its scheduler needs to know it. Two jobs are equal only when they are the same object.

    The first group is given by the caller that submits; the second belongs to the :class:`ClusterScheduler` that has
    the job and is only to be read by others.
    """

    __slots__ = (
        "entry",
        "estimate",
        "id",
        "priority",
        "processors",
        "rank",
        "reserved_at",
        "started_at",
        "submitted_at",
        "turn",
        "user",
    )

    id: str | int
    """Whatever tells its owner which job this is, different for each job; the policies never look at it."""
    processors: int
    """Processors it needs all through its run, at least 1."""
    estimate: float
    """Seconds it is expected to run, at least as long as it is allowed to: its walltime limit."""
    submitted_at: float
    """When it was submitted, in the seconds of the clock that ``now`` is read from."""
    user: str
    """Whose it is; matters only where the share of users has a weight."""
    priority: float
    """Points added to the weighted sum."""
    turn: Turn
    """Among jobs of equal priority the lower goes first; where these are equal, too, the one submitted first."""

    rank: float
    """Its place in the queue: lower goes first."""
    started_at: float | None
    """When it was last started; None before."""
    entry: tuple[float, int, LocalJob] | None
    """While it runs: when it is expected to end, its processors, and itself."""
    reserved_at: float
    """Start that conservative backfill has reserved for it; infinity for none. Other policies do not set it."""

    def __init__(  # noqa: PLR0917 - one call for each of a million jobs: positions are faster than keywords
        self,
        id: str | int,  # noqa: A002 - the word of the field
        processors: int,
        estimate: float,
        submitted_at: float,
        user: str = "",
        priority: float = 0.0,
        turn: Turn = (),
    ) -> None:
        self.id = id
        self.processors = processors
        self.estimate = estimate
        self.submitted_at = submitted_at
        self.user = user
        self.priority = priority
        self.turn = turn
        self.started_at = None
        self.entry = None

    def __lt__(self, other: LocalJob) -> bool:
        """Order jobs with equal expected ends by id, so that runs are reproducible."""
        return str(self.id) < str(other.id)

    def __repr__(self) -> str:
        """Return id, processors and estimate, for failing tests."""
        return f"LocalJob({self.id!r}, {self.processors} x {self.estimate:g} s, submitted {self.submitted_at:g})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """When a waiting job is expected to start, and why it waits."""

    start: float | None
    """When it starts at the latest as long as all jobs end by their estimates; None: nothing is promised yet."""
    position: int
    """Its place in the queue, from 1; 0 when it was set aside because it is larger than the cluster."""
    reason: str
    """Why it waits, one sentence without a full stop."""


def why_waiting(job: LocalJob, position: int, start: float | None, *, free: int, processors: int) -> str:
    """Return why a job waits at its ``position`` (0: set aside) in the queue of a cluster of so many processors."""
    if not position:
        return f"it needs {job.processors} processors, the cluster has {processors} now"
    short = job.processors > free
    needs = f"it needs {job.processors} processors, {max(free, 0)} of {processors} are free"
    if start is not None:
        return f"{needs}; they are reserved for it" if short else "starting it now would delay a job before it"
    if position == 1:
        return needs
    ahead = "1 job is" if position == 2 else f"{position - 1} jobs are"  # noqa: PLR2004 - the second
    return f"{ahead} before it in the queue" + (f", and {needs}" if short else "")


class ClusterScheduler(ABC):
    """Queue of one cluster with the policy that starts its jobs; base of all policies.

    Its driver, live or in a simulation, tells what happened (:meth:`submit`, :meth:`end` ...), all that happened
    at one instant first, then asks once with :meth:`schedule` what to start. Times are seconds of any clock, ``now``
    never goes back. A job larger than the cluster is set aside: it waits without delaying others until
    :meth:`resize` makes the cluster large enough. A job that runs longer than its estimate is expected to end *now*, at
    each pass again.
    """

    __slots__ = (
        "_aside",
        "_changed",
        "_ends",
        "_queue",
        "_shares",
        "_smallest",
        "backfilled",
        "free",
        "passes",
        "processors",
        "wake_at",
        "weights",
    )

    processors: int
    """Size of the cluster now."""
    free: int
    """Processors that no job holds; below 0 after the cluster lost more than was idle."""
    passes: int
    """How many times :meth:`schedule` was asked."""
    backfilled: int
    """How many jobs were started before one that was ahead of them in the queue."""
    wake_at: float
    """A pass is due at this time even when nothing happens; infinity when none is. Read it after :meth:`schedule`."""

    def __init__(self, processors: int, *, weights: PriorityWeights = ARRIVAL) -> None:
        self.processors = self.free = processors
        self.weights = weights
        self.passes = self.backfilled = 0
        self.wake_at = inf
        self._queue: list[LocalJob] = []
        self._aside: list[LocalJob] = []
        self._ends: list[tuple[float, int, LocalJob]] = []
        self._shares = UserShares(weights.half_life) if weights.share else None
        self._smallest = 0
        self._changed = True

    # What happened

    def submit(self, job: LocalJob) -> None:
        """Add a job to the queue."""
        processors = job.processors
        if processors > self.processors:
            self._aside.append(job)
            return
        weights = self.weights
        rank = job.rank = job.submitted_at * weights.queue_time - processors * weights.processors - job.priority
        queue = self._queue
        if not queue:
            self._smallest = processors
        else:
            if processors < self._smallest:  # noqa: PLR1730 - a call costs more, and this runs for every job
                self._smallest = processors
            last = queue[-1]
            if rank <= last.rank and (rank < last.rank or job.turn < last.turn):
                first, behind = bisect_left(queue, rank, key=_rank), bisect_right(queue, rank, key=_rank)
                queue.insert(bisect_right(queue, job.turn, first, behind, key=_turn), job)
                self._changed = True
                return
        queue.append(job)

    def withdraw(self, job: LocalJob, now: float) -> None:
        """Remove a waiting job. Raises ValueError when it is not in the queue."""
        (self._aside if job in self._aside else self._queue).remove(job)
        self._changed = True
        self._on_withdrawn(job, now)

    def end(self, job: LocalJob, now: float) -> None:
        """Remove a job that has ended, early or late. Raises KeyError when it does not run.

        A start that failed is told by this too; then the job may be submitted once more.
        """
        entry = job.entry
        if entry is None:
            raise KeyError(job.id)
        job.entry = None
        ends = self._ends
        del ends[0 if ends[0] is entry else bisect_left(ends, entry)]
        self.free += entry[1]
        self._changed = True
        if self._shares is not None:
            self._shares.hold(job.user, -entry[1], now)

    def resize(self, processors: int, now: float) -> None:
        """Set the number of processors of the cluster; running jobs are not affected."""
        self.free += processors - self.processors
        self.processors = processors
        aside, self._aside = self._aside, [job for job in self._queue if job.processors > processors]
        self._queue = [job for job in self._queue if job.processors <= processors]
        for job in aside:
            self.submit(job)
        self._changed = True
        self._on_replanned(now)

    def revise(
        self, job: LocalJob, now: float, *, estimate: float | None = None, priority: float | None = None
    ) -> None:
        """Update the estimate (total seconds) and points of a waiting or running job."""
        if job.entry is not None:
            if estimate is not None and job.started_at is not None:
                del self._ends[bisect_left(self._ends, job.entry)]
                job.estimate = estimate
                job.entry = (job.started_at + estimate, job.entry[1], job)
                insort(self._ends, job.entry)
            self._changed = True
            self._on_replanned(now)
            return
        self.withdraw(job, now)
        job.estimate = job.estimate if estimate is None else estimate
        job.priority = job.priority if priority is None else priority
        self.submit(job)

    def adopt(self, job: LocalJob, started_at: float, now: float) -> None:
        """Add a running job that this queue did not start; it holds its processors."""
        self._start(job, started_at)
        self._changed = True
        self._on_replanned(now)

    def put_back(self, jobs: Mapping[LocalJob, float], now: float) -> None:  # noqa: ARG002 - for policies that reserve
        """Requeue started jobs that could not be started; :meth:`schedule` must not be called again at this instant.

        Each was told as ended or withdrawn before. The times are the earliest at which they may be able to start,
        which a policy may tell by :meth:`reservations`; the next pass decides as if it did not know of them.
        """
        for job in jobs:
            self.submit(job)

    # What to do

    @abstractmethod
    def schedule(self, now: float) -> list[LocalJob]:
        """Return the jobs to start now; from now on they count as running."""

    # What can be asked

    @property
    def waiting(self) -> Sequence[LocalJob]:
        """The waiting jobs in the order of the queue, then those set aside as larger than the cluster."""
        return [*self._queue, *self._aside]

    @property
    def running(self) -> Sequence[LocalJob]:
        """The running jobs in the order of their expected ends."""
        return [job for _, _, job in self._ends]

    def counters(self) -> Mapping[str, int]:
        """Return what the policy counted so far, by name."""
        return {"passes": self.passes, "backfilled": self.backfilled}

    @abstractmethod
    def reservations(self, now: float) -> Mapping[LocalJob, float]:
        """Return the waiting jobs that have a start reserved, with that start, in the order of the queue.

        What it tells belongs to the last pass; ask after :meth:`schedule`.
        """

    def reservation(self, job: LocalJob, now: float) -> Reservation:
        """Return when a waiting job is to start and why it waits. Raises ValueError when it does not wait here."""
        position = 0 if job in self._aside else self._queue.index(job) + 1
        start = self.reservations(now).get(job) if position else None
        reason = why_waiting(job, position, start, free=self.free, processors=self.processors)
        return Reservation(start=start, position=position, reason=reason)

    # For the policies

    def _start(self, job: LocalJob, now: float) -> None:
        """Mark a job as running; the caller removes it from the queue."""
        processors = job.processors
        job.started_at = now
        job.entry = entry = (now + job.estimate, processors, job)
        insort(self._ends, entry)
        self.free -= processors
        if self._shares is not None:
            self._shares.hold(job.user, processors, now)

    def _start_in_order(self, now: float) -> list[LocalJob]:
        """Start jobs from the head of the queue until one does not fit."""
        queue = self._queue
        count = 0
        for job in queue:
            if job.processors > self.free:
                break
            self._start(job, now)
            count += 1
        started = queue[:count]
        del queue[:count]
        return started

    def _order(self, now: float) -> None:
        """Sort the queue, where user shares change the order over time."""
        if self._shares is None:
            return
        shares, weight = self._shares.shares(now), self.weights.share
        self._queue.sort(key=lambda job: (job.rank + weight * shares.get(job.user, 0.0), job.submitted_at, job.turn))
        self._changed = True

    def _shadow(self, processors: int, now: float) -> tuple[float, int]:
        """Return when so many processors are free if jobs end by their estimates, and how many are free then.

        Every end up to and including that instant counts. More than are free now must be asked for.
        """
        free = self.free
        shadow = inf
        for end, held, _ in self._ends:
            if end > shadow:
                break
            free += held
            if shadow == inf and free >= processors:
                shadow = max(end, now)
        return shadow, free

    def _on_withdrawn(self, job: LocalJob, now: float) -> None:  # noqa: B027 - most policies need not do anything
        """Called when a waiting job was withdrawn; policies with reservations override it."""

    def _on_replanned(self, now: float) -> None:  # noqa: B027 - most policies need not do anything
        """Called when running jobs or cluster size changed unexpectedly; policies with reservations override it."""
