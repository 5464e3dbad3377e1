# SPDX-License-Identifier: Apache-2.0
"""Checks of answers of a site's own policies before they are followed: placement, malleability, queue.

Each part wraps a policy of the site in one of the same interface. All three only compute; they read no files and no
clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar, cast

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.queueing.queue import ARRIVAL, ClusterScheduler, LocalJob, PriorityWeights, Reservation
from koala_adapter.scheduler.malleable.policies import Direction, J, MalleabilityPolicy, MalleableJob, RunningJobs, Step
from koala_adapter.scheduler.placement.policy import Infeasible, Insufficient, Placed, PlacedComponent, PlacementPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.queueing.backfill import MakeQueue
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest, PlacementResult


# -- Placement: does the answer place all components within the room? ----------------------------------------


class CheckedPlacement(PlacementPolicy):
    """Placement policy that passes on another's answers and raises PolicyAnswerError for invalid ones."""

    def __init__(self, policy: PlacementPolicy, described: str) -> None:
        """``described``: the policy and its entry point, as a person is told."""
        self.name = policy.name
        self.splits = bool(policy.splits)
        self._policy = policy
        self._described = described

    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> PlacementResult:
        """Return where the components go. Raises PolicyAnswerError for an answer that cannot be followed."""
        try:
            result: object = self._policy.place(list(requests), MappingProxyType(views))
        except Exception as error:
            raise PolicyAnswerError.raised(self._described, error) from error
        problem = next(_placement_problems(result, requests, views), "")
        if problem or not isinstance(result, Placed | Insufficient | Infeasible):
            raise PolicyAnswerError.of(self._described, problem)
        return result


def _placement_problems(
    result: object, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> Iterator[str]:
    """Yield what is wrong with a placement, each as the end of a sentence "it ...".

    Only the first is used, as later checks rely on earlier ones.
    """
    if isinstance(result, Insufficient | Infeasible):
        if not (isinstance(result.reason, str) and result.reason):
            yield "gives no reason"
        return
    if not isinstance(result, Placed):
        yield f"is {_kind(result)}, not Placed, Insufficient or Infeasible"
    elif not isinstance(result.components, tuple | list):
        yield f"has {_kind(result.components)} for a tuple of components"
    else:
        wanted = {request.component.name: request for request in requests}
        for part in result.components:
            yield from _problems_of_part(part, wanted, views)
        for request in requests:
            parts = [part for part in result.components if part.component == request.component.name]
            yield from _problems_of_component(request, parts)
        for cluster in {part.cluster: None for part in result.components}:
            processors = sum(part.processors for part in result.components if part.cluster == cluster)
            if processors > (room := max(0, views[cluster].room)):
                yield f"places {processors} processors on {cluster!r}, which has room for {room}"


def _problems_of_part(
    part: object, wanted: Mapping[str, ComponentRequest], views: Mapping[ClusterName, ClusterView]
) -> Iterator[str]:
    if not isinstance(part, PlacedComponent):
        yield f"places {_kind(part)}, not a PlacedComponent"
        return
    if not isinstance(part.component, str) or part.component not in wanted:
        yield f"places component {_shown(part.component)}, which it was not asked about"
    placed = f"places component {_shown(part.component)}"
    if not isinstance(part.cluster, str) or part.cluster not in views:
        yield f"{placed} on {_shown(part.cluster)}, which is no cluster of the site"
    if not _is_count(part.processors):
        yield f"{placed} on {_shown(part.processors)} processors"
    if part.piece is not None and not (_is_count(part.piece) and part.piece <= part.processors):
        yield f"{placed} with {_shown(part.piece)} of its minimum on {part.processors} processors"
    view = views[part.cluster]
    if (never := wanted[part.component].never(view)) is not None:
        yield f"{placed} on {_shown(part.cluster)}, where it can never run: {never}"
    if view.closed is not None:
        yield f"{placed} on {_shown(part.cluster)}, which is {view.closed}"


def _problems_of_component(request: ComponentRequest, parts: Sequence[PlacedComponent]) -> Iterator[str]:
    component = request.component
    if not parts:
        yield f"leaves component {component.name!r} out"
    if len(parts) > 1 and not request.splittable:
        yield f"splits component {component.name!r}, which is to stay whole"
    if len({part.cluster for part in parts}) < len(parts):
        yield f"places two pieces of component {component.name!r} on one cluster"
    processors = sum(part.processors for part in parts)
    if not component.minimum <= processors <= component.maximum:
        allowed = str(component.minimum) + (f" to {component.maximum}" if component.maximum > component.minimum else "")
        yield f"places component {component.name!r} on {processors} processors, it asks for {allowed}"
    shares = [part.piece for part in parts if part.piece is not None]
    if len(parts) > 1 and len(shares) < len(parts):
        yield f"does not say what share of component {component.name!r} a piece is"
    if shares and sum(shares) != component.minimum:
        yield f"shares {sum(shares)} processors of component {component.name!r}, its minimum is {component.minimum}"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _shown(value: object) -> str:
    """Return a value for messages, reproducibly: simple values as written, others by their type."""
    return repr(value) if isinstance(value, str | int | float | None) else _kind(value)


# -- Malleability: can the messages of a round be sent? ------------------------------------------------------
# An application declines what it cannot do, so a message may ask for more than its bounds allow. It may never ask for
# more than there is, nor ask an application that has declined already: otherwise a step would not end.

MOST_ROUNDS = 10_000
"""Of one step: a policy that rebalances could take and give for ever."""


class CheckedMalleability(MalleabilityPolicy):
    """Malleability policy that passes on another's messages and raises PolicyAnswerError for invalid ones."""

    def __init__(self, policy: MalleabilityPolicy, described: str) -> None:
        """``described``: the policy and its entry point, as a person is told."""
        self.name = policy.name
        self.rebalances = bool(policy.rebalances)
        self._policy = policy
        self._described = described

    def messages(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        """Return the offers and requests of one step. Raises PolicyAnswerError for messages that cannot be sent."""
        given = replace(step, unwilling=set(step.unwilling))
        try:
            round_: object = self._policy.messages(running, given)
        except Exception as error:
            raise PolicyAnswerError.raised(self._described, error) from error
        problem = next(_message_problems(round_, running, step, rebalances=self.rebalances), "")
        if problem:
            raise PolicyAnswerError.of(self._described, problem)
        sent = cast("list[tuple[J, int]]", round_)
        step.rounds += 1 if sent or given.rounds != step.rounds else 0
        return list(sent)

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        return self._policy._grow(running, step)  # noqa: SLF001 - a policy of its own kind

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        return self._policy._shrink(running, step)  # noqa: SLF001 - a policy of its own kind


def _message_problems(answer: object, running: RunningJobs[J], step: Step, *, rebalances: bool) -> Iterator[str]:
    """Yield what is wrong with a round of messages, each as the end of a sentence "it ...".

    Only the first is used, as later checks rely on earlier ones.
    """
    if not isinstance(answer, list | tuple):
        yield f"is a {type(answer).__name__}, not a list of jobs with numbers of processors"
        return
    if answer and rebalances and step.rounds >= MOST_ROUNDS:
        yield f"goes on after {MOST_ROUNDS} rounds"
    here = {id(job) for job in running} if answer else set()
    asked: set[int] = set()
    for message in answer:
        if not (isinstance(message, tuple) and len(message) == 2):  # noqa: PLR2004 - a pair
            yield f"has a {type(message).__name__} for a job with a number of processors"
        job, amount = message
        if not isinstance(job, MalleableJob) or id(job) not in here:
            yield f"asks a {type(job).__name__} that is no malleable job that runs on the cluster"
        if id(job) in asked:
            yield "asks a job twice in one round"
        asked.add(id(job))
        yield from _problems_of_amount(job, amount, step, rebalances=rebalances)
    given_out = sum(max(0, amount) for _, amount in answer)
    if given_out > max(0, step.remaining):
        yield f"gives out {given_out} processors, there are {max(0, step.remaining)}"


def _problems_of_amount(job: MalleableJob, amount: object, step: Step, *, rebalances: bool) -> Iterator[str]:
    if not isinstance(amount, int) or isinstance(amount, bool) or amount == 0:
        yield "asks a job for a change that is no number of processors, or 0"
        return
    if job.busy:
        yield "asks a job whose size is changing already"
    if job.order in step.unwilling:
        yield "asks a job again that has declined in this step"
    grows = step.direction is Direction.GROW
    if grows and amount < 0 and not rebalances:
        yield f"takes {-amount} processors from a job in a step that gives out some"
    if not grows and amount > 0:
        yield f"gives {amount} processors to a job in a step that frees some"
    spare = job.size - job.minimum
    if amount < 0 and -amount > (spare if grows else max(spare, step.remaining)):
        yield f"asks a job of {job.size} processors, which needs {job.minimum}, to give up {-amount}"


# -- The queue of one cluster: may the chosen jobs start? ----------------------------------------------------
# Waiting and running jobs and free processors are counted here as well. A policy that starts a job that does not wait,
# or more than is free, or that fails, starts nothing in that pass; in the next pass it is made anew and told all jobs.

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQueues:
    """Factory of queues under an installed policy whose answers are checked."""

    make: MakeQueue
    described: str
    """The policy and its entry point, as a person is told."""
    refused: Callable[[PolicyAnswerError], None] | None = None
    """Hears once of each fault, and all goes on; None: it is raised, as a simulation by such a policy is worth nothing.
    """

    def __call__(self, processors: int, /, *, weights: PriorityWeights) -> CheckedQueue:
        """Return an empty queue for a cluster of so many processors."""
        return CheckedQueue(processors, weights=weights, queues=self)


class CheckedQueue(ClusterScheduler):
    """Queue that passes on the starts of an installed policy, after checking them.

    Where its faults are raised, each method may raise PolicyAnswerError.
    """

    __slots__ = ("_policy", "_queues", "_running", "_waiting", "trouble")

    def __init__(self, processors: int, *, weights: PriorityWeights = ARRIVAL, queues: CheckedQueues) -> None:
        super().__init__(processors, weights=weights)
        self._queues = queues
        self._waiting: dict[LocalJob, int] = {}
        """Jobs that wait, in the order in which they came, with their processors."""
        self._running: dict[LocalJob, tuple[float, int]] = {}
        """Jobs that run, with their starts and processors."""
        self._policy: ClusterScheduler | None = None
        """None: it has failed, or has not been made yet."""
        self.trouble = ""
        """Why nothing was started in the latest pass; empty when all is well."""
        self._make_policy(0.0)

    # What happened

    def submit(self, job: LocalJob) -> None:
        self._waiting[job] = job.processors
        self._tell(lambda policy: policy.submit(job))

    def withdraw(self, job: LocalJob, now: float) -> None:
        if job not in self._waiting:
            raise ValueError(job.id)
        del self._waiting[job]
        self._tell(lambda policy: policy.withdraw(job, now))

    def end(self, job: LocalJob, now: float) -> None:
        _, processors = self._running.pop(job)
        self.free += processors
        self._tell(lambda policy: policy.end(job, now))
        job.entry = None

    def resize(self, processors: int, now: float) -> None:
        self.free += processors - self.processors
        self.processors = processors
        self._tell(lambda policy: policy.resize(processors, now))

    def revise(
        self, job: LocalJob, now: float, *, estimate: float | None = None, priority: float | None = None
    ) -> None:
        if job not in self._running and job not in self._waiting:
            raise ValueError(job.id)
        self._tell(lambda policy: policy.revise(job, now, estimate=estimate, priority=priority))
        if self._policy is None:
            job.estimate = job.estimate if estimate is None else estimate
            job.priority = job.priority if priority is None else priority

    def adopt(self, job: LocalJob, started_at: float, now: float) -> None:
        self._started(job, job.processors, started_at)
        self._tell(lambda policy: policy.adopt(job, started_at, now))

    def put_back(self, jobs: Mapping[LocalJob, float], now: float) -> None:
        self._waiting.update((job, job.processors) for job in jobs)
        self._tell(lambda policy: policy.put_back(jobs, now))

    # What to do

    def schedule(self, now: float) -> list[LocalJob]:
        self.passes += 1
        self.wake_at = inf
        if self._policy is None:
            self._make_policy(now)
        answer = self._tell(lambda policy: (policy.schedule(now), policy.wake_at))
        if answer is None:
            return []
        picked, wake_at = answer
        problem = self._problem_of(picked) or _problem_of_time(wake_at, now)
        if problem:
            self._refuse(PolicyAnswerError.of(self._queues.described, problem))
            return []
        for job in picked:
            self._started(job, self._waiting.pop(job), now)
        self.wake_at, self.trouble = wake_at, ""
        return list(picked)

    def _problem_of(self, picked: object) -> str:
        if not isinstance(picked, list | tuple):
            return f"starts a {type(picked).__name__}, not a list of jobs"
        strange = next((job for job in picked if not isinstance(job, LocalJob) or job not in self._waiting), None)
        if isinstance(strange, LocalJob):
            return f"starts job {strange.id}, which does not wait"
        if strange is not None or None in picked:
            return "starts what is no job"
        if len(set(picked)) < len(picked):
            return "starts a job twice"
        wanted = sum(self._waiting[job] for job in picked)
        return f"starts jobs on {wanted} processors, {max(0, self.free)} are free" if wanted > self.free else ""

    def _started(self, job: LocalJob, processors: int, at: float) -> None:
        self._running[job] = at, processors
        self.free -= processors
        job.started_at = at

    # What can be asked

    @property
    def waiting(self) -> Sequence[LocalJob]:
        told = self._tell(lambda policy: list(policy.waiting)) or []
        return told if len(told) == len(self._waiting) and self._waiting.keys() == set(told) else list(self._waiting)

    @property
    def running(self) -> Sequence[LocalJob]:
        return sorted(self._running, key=lambda job: (self._running[job][0] + job.estimate, str(job.id)))

    def counters(self) -> Mapping[str, int]:
        return dict(self._tell(lambda policy: policy.counters()) or {}) | {"passes": self.passes}

    def reservations(self, now: float) -> Mapping[LocalJob, float]:
        told = self._tell(lambda policy: dict(policy.reservations(now))) or {}
        return {job: at for job, at in told.items() if job in self._waiting and isinstance(at, int | float)}

    def reservation(self, job: LocalJob, now: float) -> Reservation:
        """Return the reservation of a job; while the policy has failed, that is its reason."""
        order = list(self.waiting)
        position = order.index(job) + 1
        told = None if self.trouble else self._tell(lambda policy: policy.reservation(job, now))
        if isinstance(told, Reservation):
            return told
        return Reservation(start=None, position=position, reason=self.trouble or "its policy does not say why")

    # The policy

    def _make_policy(self, now: float) -> None:
        """Create the policy and add all known jobs to it."""
        for job in self._waiting:
            job.started_at = job.entry = None
        try:
            policy = self._queues.make(self.processors, weights=self.weights)
            for job, (at, _) in sorted(self._running.items(), key=lambda one: one[1][0]):
                job.entry = None
                policy.adopt(job, at, now)
            for job in self._waiting:
                policy.submit(job)
        except Exception as error:  # noqa: BLE001 - a site's own code fails in whatever way it does
            self._refuse(PolicyAnswerError.raised(self._queues.described, error))
        else:
            self._policy = policy

    def _tell(self, told: Callable[[ClusterScheduler], T]) -> T | None:
        """Call the policy and return its answer; None when it raises."""
        if self._policy is None:
            return None
        try:
            return told(self._policy)
        except Exception as error:  # noqa: BLE001 - a policy may raise anything
            self._refuse(PolicyAnswerError.raised(self._queues.described, error))
            return None

    def _refuse(self, error: PolicyAnswerError) -> None:
        """Stop asking the policy until it is created again."""
        self._policy = None
        if self._queues.refused is None:
            raise error
        if error.message != self.trouble:
            self.trouble = error.message
            self._queues.refused(error)


def _problem_of_time(wake_at: object, now: float) -> str:
    if isinstance(wake_at, int | float) and wake_at > now:
        return ""
    shown = wake_at if isinstance(wake_at, int | float) else f"a {type(wake_at).__name__}"
    return f"wants to be asked again at {shown}, at {now:g}"
