# SPDX-License-Identifier: Apache-2.0
"""Malleability policies of one cluster, on counts of processors: who is asked to grow or shrink, and by how many.

The same policies serve the scheduler, where a processor is a placeholder, and the simulator of a million jobs, where it
is a number (CoreGRID TR-0092). A *step* grows or shrinks the running jobs of a cluster by a value, in rounds: the
messages of a round go out together, their answers are told to the step, then the next round is asked for until one is
empty. Amounts in messages and answers are signed: positive grows a job, negative shrinks it. `carry_out` does a whole
step where answers come at once.

Jobs in the middle of a change are left alone. Except by EGS as published, jobs at their maximum are offered nothing,
those at their minimum are asked for nothing, and shares are computed over the others. An application answers each
message with the number that it accepts. In order: the running jobs, equal sizes, the policies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Generic, TypeVar

from pydantic import PlainSerializer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


# -- The running malleable jobs of one cluster ---------------------------------------------------------------
# They are kept in the order of their start and told apart by which can change. A step asks a few of perhaps thousands
# of jobs, so the first and last that can grow or shrink are at hand, and how much all of them could give or take is a
# number that is kept, not a sum that is computed.

Order = tuple[float, int]
"""Order of start: time, then running number."""


class MalleableJob:
    """A running malleable job (or its component on this cluster). Compared by identity; subclasses add what they need.

    ``size``: processors it has, those that it has accepted and is still getting included.
    ``number`` tells jobs apart that started at the same time; the pair must be unique within a cluster.
    """

    __slots__ = ("busy", "maximum", "minimum", "order", "size")

    def __init__(self, *, minimum: int, maximum: int, size: int, started_at: float, number: int) -> None:
        """Begin outside any :class:`RunningJobs`. Raises ValueError when the size is out of its bounds."""
        if not 0 <= minimum <= size <= maximum:
            raise ValueError(f"a size of {size} is not within {minimum} to {maximum}")
        self.minimum = minimum
        self.maximum = maximum
        self.size = size
        self.order: Order = (started_at, number)
        self.busy = False
        """True while a change is under way, during which no other begins."""


J = TypeVar("J", bound=MalleableJob)


class _Sorted(Generic[J]):
    """Jobs sorted by start."""

    __slots__ = ("jobs", "orders")

    def __init__(self) -> None:
        self.jobs: list[J] = []
        self.orders: list[Order] = []

    def add(self, job: J) -> None:
        order = job.order
        if not self.orders or self.orders[-1] < order:
            self.orders.append(order)
            self.jobs.append(job)
        else:
            at = bisect_left(self.orders, order)
            self.orders.insert(at, order)
            self.jobs.insert(at, job)

    def remove(self, job: J) -> None:
        at = bisect_left(self.orders, job.order)
        del self.orders[at]
        del self.jobs[at]


class RunningJobs(Generic[J]):
    """Running malleable jobs of one cluster, sorted by start for policies.

    Change ``size`` and ``busy`` of a job only through :meth:`resize`, :meth:`begin` and :meth:`end` while it is here.
    """

    __slots__ = ("_all", "_growable", "_shrinkable", "growth", "spare")

    def __init__(self) -> None:
        self._all: _Sorted[J] = _Sorted()
        self._growable: _Sorted[J] = _Sorted()
        self._shrinkable: _Sorted[J] = _Sorted()
        self.growth = 0
        """Processors by which the jobs could grow to their maxima, those with a change under way not counted."""
        self.spare = 0
        """Processors that the jobs could give up without going below their minima, those under a change left out."""

    def __len__(self) -> int:
        return len(self._all.jobs)

    def __iter__(self) -> Iterator[J]:
        """Yield all jobs, the least recently started first."""
        return iter(self._all.jobs)

    @property
    def growable(self) -> list[J]:
        """Jobs below their maximum without a change under way, the least recently started first. Do not change."""
        return self._growable.jobs

    @property
    def shrinkable(self) -> list[J]:
        """Jobs above their minimum without a change under way, the least recently started first. Do not change."""
        return self._shrinkable.jobs

    def add(self, job: J) -> None:
        """Take in a job that has started."""
        self._all.add(job)
        if not job.busy:
            self._count(job)

    def remove(self, job: J) -> None:
        """Take out a job that has ended."""
        if not job.busy:
            self._discount(job)
        self._all.remove(job)

    def begin(self, job: J) -> None:
        """Mark a job as changing."""
        if not job.busy:
            self._discount(job)
            job.busy = True

    def end(self, job: J) -> None:
        """Mark a job as not changing."""
        if job.busy:
            job.busy = False
            self._count(job)

    def resize(self, job: J, size: int) -> None:
        """Give a job another size. Raises ValueError when that is below its minimum or above its maximum."""
        before, minimum, maximum = job.size, job.minimum, job.maximum
        if not minimum <= size <= maximum:
            raise ValueError(f"a size of {size} is not within {minimum} to {maximum}")
        job.size = size
        if job.busy or size == before:
            return
        self.growth += before - size
        self.spare += size - before
        if before == maximum:
            self._growable.add(job)
        elif size == maximum:
            self._growable.remove(job)
        if before == minimum:
            self._shrinkable.add(job)
        elif size == minimum:
            self._shrinkable.remove(job)

    def rebound(self, job: J, *, minimum: int, maximum: int, size: int) -> None:
        """Give a job other bounds, and a size within them. Raises ValueError when it is not."""
        if not 0 <= minimum <= size <= maximum:
            raise ValueError(f"a size of {size} is not within {minimum} to {maximum}")
        if not job.busy:
            self._discount(job)
        job.minimum, job.maximum, job.size = minimum, maximum, size
        if not job.busy:
            self._count(job)

    def next_to_grow(self, after: Order | None) -> J | None:
        """Return the growable job that started next after ``after`` (None: the first of all)."""
        at = 0 if after is None else bisect_right(self._growable.orders, after)
        return self._growable.jobs[at] if at < len(self._growable.jobs) else None

    def next_to_shrink(self, before: Order | None) -> J | None:
        """Return the shrinkable job that started last before ``before`` (None: the last of all)."""
        orders = self._shrinkable.orders
        at = (len(orders) if before is None else bisect_left(orders, before)) - 1
        return self._shrinkable.jobs[at] if at >= 0 else None

    def _count(self, job: J) -> None:
        if job.size < job.maximum:
            self._growable.add(job)
            self.growth += job.maximum - job.size
        if job.size > job.minimum:
            self._shrinkable.add(job)
            self.spare += job.size - job.minimum

    def _discount(self, job: J) -> None:
        if job.size < job.maximum:
            self._growable.remove(job)
            self.growth -= job.maximum - job.size
        if job.size > job.minimum:
            self._shrinkable.remove(job)
            self.spare -= job.size - job.minimum


# -- Equal sizes within the bounds of the jobs, for equipartition --------------------------------------------


def equal_sizes(jobs: Sequence[MalleableJob], total: int) -> list[int]:
    """Return sizes as equal as the bounds allow that add up to ``total``, or to all maxima when it is more than that.

    The jobs are in the order of their start; ``total`` is at least the sum of the minima.
    """

    def used(level: int) -> int:
        return sum(min(max(level, job.minimum), job.maximum) for job in jobs)

    levels = range(1, 1 + max((job.maximum for job in jobs), default=0))
    highest = bisect_right(levels, total, key=used)  # at which all fit
    sizes = [min(max(highest, job.minimum), job.maximum) for job in jobs]
    left = total - sum(sizes)
    for at, job in enumerate(jobs):
        if left > 0 and job.minimum <= highest < job.maximum:
            sizes[at] += 1
            left -= 1
    return sizes


def levelled_sizes(jobs: Sequence[MalleableJob], value: int) -> list[int]:
    """Return the sizes after the largest jobs were brought down to one level so that ``value`` processors come free.

    No job goes below its minimum; where all together cannot give so many, all come down to their minima. Of those
    at the level, the least recently started may keep one more.
    """

    def used(level: int) -> int:
        return sum(max(job.minimum, min(job.size, level)) for job in jobs)

    most = sum(job.size for job in jobs) - value
    levels = range(1, 1 + max((job.size for job in jobs), default=0))
    highest = bisect_right(levels, most, key=used)  # that frees enough
    sizes = [max(job.minimum, min(job.size, highest)) for job in jobs]
    surplus = most - sum(sizes)
    for at, job in enumerate(jobs):
        if surplus > 0 and job.size > sizes[at] == highest:
            sizes[at] += 1
            surplus -= 1
    return sizes


# -- The policies --------------------------------------------------------------------------------------------


class Direction(StrEnum):
    """Which way a step goes."""

    GROW = "grow"
    SHRINK = "shrink"


@dataclass(slots=True)
class Step:
    """Progress of growing or shrinking by a value; plain data for snapshots."""

    direction: Direction
    remaining: int
    """Processors still to be given out (growing) or to be freed (shrinking)."""
    rounds: int = 0
    """Rounds of messages that were sent."""
    thorough: bool = False
    """Go on with growing until no job takes more, also where the policy itself would leave it at less."""
    last: Order | None = None
    """Order of the job that was asked last."""
    unwilling: Annotated[set[Order], PlainSerializer(sorted)] = field(default_factory=set)
    """Jobs that accepted less than they were asked: in this step they are left alone."""

    def answered(self, order: Order, asked: int, accepted: int) -> None:
        """Add the answer to a message; both amounts are signed."""
        self.last = order
        self.remaining -= accepted if self.direction is Direction.GROW else -accepted
        if abs(accepted) < abs(asked):
            self.unwilling.add(order)


class MalleabilityPolicy(ABC):
    """Chooses the jobs that are asked in a step; pure and stateless."""

    name: str
    rebalances: bool = False
    """True when a grow step of 0 processors makes sense: it changes the shares of jobs among one another."""

    def messages(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        """Return the next round: jobs and signed numbers of processors. Empty: the step is over."""
        if step.remaining <= 0 and not (self.rebalances and step.direction is Direction.GROW):
            return []
        step.rounds += 1
        return self._grow(running, step) if step.direction is Direction.GROW else self._shrink(running, step)

    @abstractmethod
    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        """Return the next round of a step that gives out processors."""

    @abstractmethod
    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        """Return the next round of a step that frees processors."""


class Fpsma(MalleabilityPolicy):
    """Favour previously started malleable applications: one job after the other, each is asked for all that remains.

    Growing begins with the least recently started job, shrinking with the most recently started.
    """

    name = "fpsma"

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        job = running.next_to_grow(step.last)
        return [] if job is None else [(job, step.remaining)]

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        job = running.next_to_shrink(step.last)
        return [] if job is None else [(job, -step.remaining)]


class Egs(MalleabilityPolicy):
    """Equi-grow and shrink as published: equal shares for all running jobs, sent at once, in one round.

    All means also those that stand at a bound and will decline; what they would have taken or given is left over. The
    remainder is a bonus of 1 to the least recently started jobs when growing, a malus of 1 to the most recently started
    ones when shrinking. Only a thorough growth goes on, over those that took their whole share.
    """

    name = "egs"

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        if step.rounds > 1 and not step.thorough:
            return []
        return _shares_to_grow(_idle(running, step), step.remaining)

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        return [] if step.rounds > 1 else _shares_to_shrink(_idle(running, step), step.remaining)


class EgsRepeated(MalleabilityPolicy):
    """Equi-grow and shrink over those that can: a value is reached whenever the jobs together can reach it.

    As :class:`Egs`, but jobs at a bound have no share, and shrinking goes on over those that can give more until the
    value is reached. Growing is one round unless the step is thorough.
    """

    name = "egs-repeated"

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        if step.rounds > 1 and not step.thorough:
            return []
        return _shares_to_grow(_willing(running.growable, step), step.remaining)

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        return _shares_to_shrink(_willing(running.shrinkable, step), step.remaining)


class Equipartition(MalleabilityPolicy):
    """Baseline: nearly the same number of processors for all, within their bounds.

    A grow step makes sizes that no bound holds differ by 1 at most (the least recently started jobs have the one more).
    For that it may shrink some jobs; they are asked first, in a round of their own. A shrink step brings the largest
    jobs down to one level, and no job grows.
    """

    name = "equipartition"
    rebalances = True

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        jobs = [job for job in running if not job.busy and job.order not in step.unwilling]
        total = sum(job.size for job in jobs) + step.remaining
        changes = [(job, target - job.size) for job, target in zip(jobs, equal_sizes(jobs, total), strict=True)]
        shrinking = [(job, change) for job, change in changes if change < 0]
        return shrinking or [(job, change) for job, change in changes if change > 0]

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        jobs = _willing(running.shrinkable, step)
        targets = levelled_sizes(jobs, step.remaining)
        changes = [(job, target - job.size) for job, target in zip(jobs, targets, strict=True)]
        return [(job, change) for job, change in changes if change < 0]


class Folding(MalleabilityPolicy):
    """Baseline: a job's size is doubled or halved, nothing else.

    The smallest jobs are doubled first (among equals the least recently started), the largest are halved first (among
    equals the most recently started). Halving a job can free more than was asked for.
    """

    name = "folding"

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        jobs = _willing(running.growable, step)
        messages, left = [], step.remaining
        for job in sorted(jobs, key=lambda job: (job.size, job.order)):
            more = max(1, job.size)  # a flexible component may have nothing on this cluster
            if more > left:
                break
            if job.size + more <= job.maximum:
                messages.append((job, more))
                left -= more
        return messages

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        jobs = _willing(running.shrinkable, step)
        messages, left = [], step.remaining
        for job in sorted(jobs, key=lambda job: (job.size, job.order), reverse=True):
            if left <= 0:
                break
            half = max(1, job.size // 2)
            if job.size - half >= job.minimum:
                messages.append((job, -half))
                left -= half
        return messages


MALLEABILITY_POLICIES: Mapping[str, MalleabilityPolicy] = {
    policy.name: policy for policy in (Fpsma(), Egs(), EgsRepeated(), Equipartition(), Folding())
}


def carry_out(policy: MalleabilityPolicy, running: RunningJobs[J], step: Step, ask: Callable[[J, int], int]) -> int:
    """Run a whole step with immediate answers; return the total change (signed).

    ``ask(job, amount)`` sends a message and returns what the application accepts, between 0 and the amount (a job that
    shrinks may give back more, never below its minimum). The jobs are resized here.
    """
    changed = 0
    while messages := policy.messages(running, step):
        for job, amount in messages:
            accepted = ask(job, amount)
            if accepted:
                running.resize(job, job.size + accepted)
                changed += accepted
            step.answered(job.order, amount, accepted)
    return changed


def _willing(jobs: list[J], step: Step) -> list[J]:
    unwilling = step.unwilling
    return [job for job in jobs if job.order not in unwilling] if unwilling else jobs


def _idle(running: RunningJobs[J], step: Step) -> list[J]:
    """Return all jobs without a change under way, also those at a bound, that were not unwilling in this step."""
    return [job for job in running if not job.busy and job.order not in step.unwilling]


def _shares_to_grow(jobs: list[J], value: int) -> list[tuple[J, int]]:
    """Return equal shares; the least recently started jobs have the one more."""
    if value < len(jobs):
        return [(job, 1) for job in jobs[:value]]
    if not jobs:
        return []
    share, bonus = divmod(value, len(jobs))
    return [(job, share + 1) for job in jobs[:bonus]] + [(job, share) for job in jobs[bonus:]]


def _shares_to_shrink(jobs: list[J], value: int) -> list[tuple[J, int]]:
    """Return equal shares, negative; the most recently started jobs have the one more."""
    if value < len(jobs):
        return [(job, -1) for job in jobs[-value:]]
    if not jobs:
        return []
    share, malus = divmod(value, len(jobs))
    favoured = len(jobs) - malus
    return [(job, -share) for job in jobs[:favoured]] + [(job, -share - 1) for job in jobs[favoured:]]
