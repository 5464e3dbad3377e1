# SPDX-License-Identifier: Apache-2.0
"""A site's own queue policy starts only what waits and fits; at fault it starts nothing, is told, and made anew."""

from __future__ import annotations

import random
from math import inf, nan
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.policies.checked import CheckedQueues
from koala_adapter.queueing.backfill import POLICIES, Easy, make_cluster_scheduler
from koala_adapter.queueing.queue import ARRIVAL, LocalJob
from koala_adapter.simulation.models import make_model
from koala_adapter.simulation.replay import Policy, Site, replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.queueing.queue import PriorityWeights

Change: TypeAlias = "Callable[[list[LocalJob], list[LocalJob]], Any]"
DESCRIBED = "policy 'queue.mine' (site:MINE) of site 1.2"
STRANGER = LocalJob("stranger", 1, 10.0, 0.0)


class Faulty(Easy):
    """EASY, whose answers a test changes."""

    __slots__ = ("change",)

    def __init__(self, processors: int, *, weights: PriorityWeights = ARRIVAL) -> None:
        super().__init__(processors, weights=weights)
        self.change: Callable[[list[LocalJob]], Any] = lambda picked: picked

    def schedule(self, now: float) -> Any:  # noqa: ANN401 - anything
        return self.change(super().schedule(now))


def failing(picked: list[LocalJob], _: list[LocalJob]) -> None:
    raise ZeroDivisionError(len(picked))


class Watched:
    """A queue of four processors under a faulty policy, and what was told of it."""

    def __init__(self) -> None:
        self.change: Change = lambda picked, _: picked
        """What becomes of the jobs that EASY starts; it is also given all that ever came."""
        self.told: list[str] = []
        queues = CheckedQueues(
            make=self.make, described=DESCRIBED, refused=lambda error: self.told.append(error.message)
        )
        self.queue = queues(4, weights=ARRIVAL)
        self.jobs = [LocalJob(str(number), number, 10.0, float(number)) for number in (1, 2, 3)]
        for job in self.jobs:
            self.queue.submit(job)

    def make(self, processors: int, /, *, weights: PriorityWeights) -> Faulty:
        policy = Faulty(processors, weights=weights)
        policy.change = self._change
        return policy

    def _change(self, picked: list[LocalJob]) -> Any:  # noqa: ANN401 - anything
        return self.change(picked, self.jobs)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (failing, "raises ZeroDivisionError: 2"),
        (lambda *_: None, "starts a NoneType, not a list of jobs"),
        (lambda *_: ["1"], "starts what is no job"),
        (lambda picked, _: [*picked, picked[0]], "starts a job twice"),
        (lambda *_: [STRANGER], "starts job stranger, which does not wait"),
        (lambda _, jobs: jobs, "starts jobs on 6 processors, 4 are free"),
    ],
)
def test_what_cannot_be_started(change: Change, problem: str) -> None:
    """Nothing starts, it is told once, and each job says why it waits; a policy that is well again goes on."""
    watched = Watched()
    watched.change = change
    for now in (5.0, 6.0):
        assert watched.queue.schedule(now) == []
    (told,) = watched.told
    assert told == f"the answer of {DESCRIBED} was refused: it {problem}"
    assert (watched.queue.free, len(watched.queue.waiting), watched.queue.wake_at) == (4, 3, inf)
    assert watched.queue.reservation(watched.jobs[2], 6.0).reason == told
    watched.change = lambda picked, _: picked
    assert watched.queue.schedule(7.0) == watched.jobs[:2]
    assert (watched.queue.free, watched.queue.waiting, watched.queue.trouble) == (1, [watched.jobs[2]], "")
    watched.queue.end(watched.jobs[0], 8.0)
    watched.queue.end(watched.jobs[1], 8.0)
    assert watched.queue.schedule(8.0) == [watched.jobs[2]]


@pytest.mark.parametrize("at", [5.0, -1.0, nan, None])
def test_a_policy_does_not_stop_the_clock(at: Any) -> None:  # noqa: ANN401 - anything

    class Impatient(Faulty):
        def schedule(self, now: float) -> list[LocalJob]:
            self.wake_at = at
            return super(Easy, self).schedule(now) if now < 0 else []

    queues = CheckedQueues(make=Impatient, described=DESCRIBED)
    with pytest.raises(PolicyAnswerError, match="wants to be asked again at"):
        queues(4, weights=ARRIVAL).schedule(5.0)


def own(policy: str, **_: object) -> CheckedQueues:
    """Return one of koala's own policies as if it were a site's."""

    def make(processors: int, /, *, weights: PriorityWeights) -> Any:  # noqa: ANN401 - a queue
        return make_cluster_scheduler(policy, processors, weights=weights)

    return CheckedQueues(make=make, described=DESCRIBED)


@pytest.mark.parametrize("policy", POLICIES)
def test_own_policies_would_pass(policy: str) -> None:
    """A workload is replayed as without being looked at, with the same counts."""
    workload = make_model("model:lublin", jobs=300, seed=4, processors=64)
    sites = (Site(name="one", processors=64),)
    workload = workload.fitting(64)
    bare = replay(workload, Policy(name=policy), sites)
    looked_at = replay(workload, Policy(name="mine", make=own(policy)), sites)
    assert looked_at.starts == bare.starts
    assert looked_at.counters == bare.counters


def test_a_simulation_by_a_policy_at_fault_ends() -> None:
    """With what is wrong: its results would be worth nothing."""
    queues = CheckedQueues(make=lambda processors, *, weights: Broken(processors, weights=weights), described=DESCRIBED)
    queue = queues(4, weights=ARRIVAL)
    queue.submit(LocalJob("1", 1, 10.0, 0.0))
    with pytest.raises(PolicyAnswerError, match=r"'queue\.mine'.*starts job stranger"):
        queue.schedule(1.0)


class Broken(Easy):
    """Starts what it was never told of."""

    def schedule(self, now: float) -> list[LocalJob]:
        super().schedule(now)
        return [STRANGER]


@given(seed=st.integers(0, 10_000))
def test_a_policy_that_answers_anything(seed: int) -> None:
    """Only what waits starts, never more than is free, and the counts are those of whoever drives it."""
    chance = random.Random(seed)
    watched = Watched()
    queue, waiting, running = watched.queue, set(watched.jobs), set[LocalJob]()

    def anything(picked: list[LocalJob], _: list[LocalJob]) -> Any:  # noqa: ANN401 - anything
        choices: list[Any] = [picked, picked, picked[:1], picked * 2, [STRANGER], list(waiting), None, 7, [None]]
        if chance.random() < 0.2:
            raise KeyError(seed)
        return chance.choice(choices)

    watched.change = anything
    for now in range(10, 60):
        draw = chance.random()
        if draw < 0.4:
            job = LocalJob(f"j{now}", chance.randint(1, 5), 10.0, float(now))
            queue.submit(job)
            waiting.add(job)
        elif draw < 0.7 and running:
            job = chance.choice(sorted(running))
            queue.end(job, now)
            running.remove(job)
        elif draw < 0.8 and waiting:
            job = chance.choice(sorted(waiting))
            queue.withdraw(job, now)
            waiting.remove(job)
        started = queue.schedule(now)
        assert len(set(started)) == len(started)
        assert waiting.issuperset(started)
        waiting.difference_update(started)
        running.update(started)
        assert queue.free == 4 - sum(job.processors for job in running) >= 0
        assert set(queue.waiting) == waiting
        assert set(queue.running) == running
        for job in waiting:
            assert queue.reservation(job, now).reason
