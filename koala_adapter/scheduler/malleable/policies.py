# SPDX-License-Identifier: Apache-2.0
"""Malleability policies of one cluster, on counts of processors: who is asked to grow or shrink, and by how many.

The same policies serve the scheduler, where a processor is a placeholder, and the simulator of a million jobs, where it
is a number (CoreGRID TR-0092). A *step* grows or shrinks the running jobs of a cluster by a value, in rounds: the
messages of a round go out together, their answers are told to the step, then the next round is asked for until one is
empty. Amounts in messages and answers are signed: positive grows a job, negative shrinks it. `carry_out` does a whole
step where answers come at once.

Jobs in the middle of a change are left alone. But for EGS as published, jobs that stand at their maximum are not
offered anything, those at their minimum are not asked for anything, and shares are taken over the others. What else an
application can or cannot do is its own affair: it answers a message with the number that it accepts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import PlainSerializer

from koala_adapter.scheduler.malleable.runningjobs import MalleableJob, Order
from koala_adapter.scheduler.malleable.shares import equal_sizes, levelled_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.scheduler.malleable.runningjobs import RunningJobs

J = TypeVar("J", bound=MalleableJob)


class Direction(StrEnum):
    """Which way a step goes."""

    GROW = "grow"
    SHRINK = "shrink"


@dataclass(slots=True)
class Step:
    """How far growing or shrinking by a value has come. Plain data, so it can be kept in a snapshot."""

    direction: Direction
    remaining: int
    """Processors still to be given out (growing) or to be freed (shrinking)."""
    rounds: int = 0
    """Rounds of messages that were sent."""
    thorough: bool = False
    """Go on with growing until nobody takes more, also where the policy itself would leave it at less."""
    last: Order | None = None
    """Order of the job that was asked last."""
    unwilling: Annotated[set[Order], PlainSerializer(sorted)] = field(default_factory=set)
    """Jobs that accepted less than they were asked: in this step they are left alone."""

    def answered(self, order: Order, asked: int, accepted: int) -> None:
        """Take in the answer to a message; both amounts are signed."""
        self.last = order
        self.remaining -= accepted if self.direction is Direction.GROW else -accepted
        if abs(accepted) < abs(asked):
            self.unwilling.add(order)


class MalleabilityPolicy(ABC):
    """Says who is asked next in a step. Pure and without state of its own."""

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
    jobs down to one level, and nobody grows.
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
    """Do a whole step where answers come at once; return by how many processors all jobs together changed (signed).

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
