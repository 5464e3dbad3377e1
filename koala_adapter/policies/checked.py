# SPDX-License-Identifier: Apache-2.0
"""The queue of one cluster under a site's own policy, whose answers are looked at before anything starts. Pure.

What waits, runs and is free is counted here, too. A policy that starts what does not wait, or more than is free, or
fails, starts nothing in that pass; in the next one it is made anew and told all that is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.queueing.local_queue import ClusterScheduler, LocalJob, Reservation
from koala_adapter.queueing.priority import ARRIVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.queueing.policies import MakeQueue
    from koala_adapter.queueing.priority import PriorityWeights

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQueues:
    """Makes queues under a policy whose answers are looked at."""

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
    """A queue that starts what a policy starts, if that can be done.

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
        """See ClusterScheduler."""
        self._waiting[job] = job.processors
        self._tell(lambda policy: policy.submit(job))

    def withdraw(self, job: LocalJob, now: float) -> None:
        """See ClusterScheduler."""
        if job not in self._waiting:
            raise ValueError(job.id)
        del self._waiting[job]
        self._tell(lambda policy: policy.withdraw(job, now))

    def end(self, job: LocalJob, now: float) -> None:
        """See ClusterScheduler."""
        _, processors = self._running.pop(job)
        self.free += processors
        self._tell(lambda policy: policy.end(job, now))
        job.entry = None

    def resize(self, processors: int, now: float) -> None:
        """See ClusterScheduler."""
        self.free += processors - self.processors
        self.processors = processors
        self._tell(lambda policy: policy.resize(processors, now))

    def revise(
        self, job: LocalJob, now: float, *, estimate: float | None = None, priority: float | None = None
    ) -> None:
        """See ClusterScheduler."""
        if job not in self._running and job not in self._waiting:
            raise ValueError(job.id)
        self._tell(lambda policy: policy.revise(job, now, estimate=estimate, priority=priority))
        if self._policy is None:
            job.estimate = job.estimate if estimate is None else estimate
            job.priority = job.priority if priority is None else priority

    def adopt(self, job: LocalJob, started_at: float, now: float) -> None:
        """See ClusterScheduler."""
        self._started(job, job.processors, started_at)
        self._tell(lambda policy: policy.adopt(job, started_at, now))

    # What to do

    def schedule(self, now: float) -> list[LocalJob]:
        """See ClusterScheduler."""
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
        """See ClusterScheduler."""
        told = self._tell(lambda policy: list(policy.waiting)) or []
        return told if len(told) == len(self._waiting) and self._waiting.keys() == set(told) else list(self._waiting)

    @property
    def running(self) -> Sequence[LocalJob]:
        """See ClusterScheduler."""
        return sorted(self._running, key=lambda job: (self._running[job][0] + job.estimate, str(job.id)))

    @property
    def demanded(self) -> int:
        """See ClusterScheduler."""
        waiting = sum(processors for processors in self._waiting.values() if processors <= self.processors)
        return self.processors - self.free + waiting

    def counters(self) -> Mapping[str, int]:
        """See ClusterScheduler."""
        return dict(self._tell(lambda policy: policy.counters()) or {}) | {"passes": self.passes}

    def reservations(self, now: float) -> Mapping[LocalJob, float]:
        """See ClusterScheduler."""
        told = self._tell(lambda policy: dict(policy.reservations(now))) or {}
        return {job: at for job, at in told.items() if job in self._waiting and isinstance(at, int | float)}

    def reservation(self, job: LocalJob, now: float) -> Reservation:
        """See ClusterScheduler. Of a policy at fault it says that."""
        order = list(self.waiting)
        position = order.index(job) + 1
        told = None if self.trouble else self._tell(lambda policy: policy.reservation(job, now))
        if isinstance(told, Reservation):
            return told
        return Reservation(start=None, position=position, reason=self.trouble or "its policy does not say why")

    # The policy

    def _make_policy(self, now: float) -> None:
        """Make the policy, and tell it all that is known here."""
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
        """Return what the policy answers; None when it fails."""
        if self._policy is None:
            return None
        try:
            return told(self._policy)
        except Exception as error:  # noqa: BLE001 - likewise
            self._refuse(PolicyAnswerError.raised(self._queues.described, error))
            return None

    def _refuse(self, error: PolicyAnswerError) -> None:
        """Do without the policy until it is made anew."""
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
