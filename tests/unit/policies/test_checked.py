# SPDX-License-Identifier: Apache-2.0
"""What a site's own policy answers is looked at: what cannot be followed is refused, told once, and nothing is done.

The scheduler and the queues go on, and follow the policy again as soon as it answers well. Koala's own policies would
all pass.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import PolicyAnswerError
from koala_adapter.model import ClusterName
from koala_adapter.outcome import JobState
from koala_adapter.policies.checked import CheckedMalleability, CheckedPlacement, CheckedQueues
from koala_adapter.queueing.backfill import POLICIES, Easy, make_cluster_scheduler
from koala_adapter.queueing.queue import ARRIVAL, LocalJob, PriorityWeights
from koala_adapter.scheduler.actions import OfferProcessors, ReportRefusedAnswer, SubmitPlaceholders
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.policies import (
    MALLEABILITY_POLICIES,
    Direction,
    MalleabilityPolicy,
    Step,
    carry_out,
)
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.placement.policies import PLACEMENT_POLICIES
from koala_adapter.scheduler.placement.policy import (
    ComponentRequest,
    Infeasible,
    Insufficient,
    Placed,
    PlacedComponent,
    PlacementPolicy,
)
from koala_adapter.simulation.models import make_model
from koala_adapter.simulation.replay import Policy, replay
from koala_adapter.simulation.replay import Site as SimulatedSite
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import Site, component, job, of_kind
from tests.unit.scheduler.test_malleability import BOUNDS, POLICY_NAMES, SCENES, VALUES, Bounds, Scene
from tests.unit.scheduler.test_placement import Views, view_sets
from tests.unit.scheduler.test_policies import all_requests

DESCRIBED = "policy 'placement.mine' (site:MINE) of site 1.2"
A, B = ClusterName("a"), ClusterName("b")


class Scripted(PlacementPolicy):
    """Answers what a test wants."""

    name = "mine"
    splits = True

    def __init__(self) -> None:
        self.answer: Any = None

    def place(self, requests: Any, views: Any) -> Any:  # noqa: ANN401 - anything
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(requests, views) if callable(self.answer) else self.answer


def on(cluster: object, processors: object, name: object = "c0", piece: object = None) -> PlacedComponent:
    made: Any = PlacedComponent
    placed: PlacedComponent = made(component=name, cluster=cluster, processors=processors, piece=piece)
    return placed


def placed(*parts: object) -> Placed:
    """Return a placement, of anything."""
    made: Any = Placed
    answer: Placed = made(components=parts)
    return answer


def scripted(answer: object) -> tuple[Scripted, Policies]:
    """Return a policy that answers so, and the policies of a site that has it."""
    policy = Scripted()
    policy.answer = answer
    return policy, Policies(placement={**OWN.placement, "mine": CheckedPlacement(policy, DESCRIBED)})


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ZeroDivisionError("boom"), "raises ZeroDivisionError: boom"),
        (None, "is None, not Placed, Insufficient or Infeasible"),
        ("a", "is a str, not Placed"),
        (Insufficient(reason=""), "gives no reason"),
        (Infeasible(reason=3), "gives no reason"),  # type: ignore[arg-type]
        (Placed(components=7), "has a int for a tuple of components"),  # type: ignore[arg-type]
        (placed(), "leaves component 'c0' out"),
        (placed("c0"), "places a str, not a PlacedComponent"),
        (placed(on(A, 3, name="other")), "places component 'other', which it was not asked about"),
        (placed(on("nowhere", 3)), "on 'nowhere', which is no cluster of the site"),
        (placed(on([], 3)), "on a list, which is no cluster"),
        (placed(on(A, 3), on(A, 3)), "splits component 'c0', which is to stay whole"),
        (placed(on(A, 2)), "on 2 processors, it asks for 3"),
        (placed(on(A, 4)), "on 4 processors, it asks for 3"),
        (placed(on(A, -3)), "on -3 processors"),
        (placed(on(A, "3")), "on '3' processors"),
        (placed(on(A, processors=True)), "on True processors"),
        (placed(on(B, 3)), "where it can never run: needs 3 processors, at most 2 can be used there"),
        (placed(on(A, 3, piece=2)), "shares 2 processors of component 'c0', its minimum is 3"),
        (placed(on(A, 3, piece=9)), "with 9 of its minimum on 3 processors"),
        (lambda _, views: views.update(a=None), "raises AttributeError"),
    ],
)
def test_a_placement_that_cannot_be_followed(answer: object, problem: str) -> None:
    """The job waits, `koala explain` and the log say why, once; when the policy is well again, the job is placed."""
    policy, policies = scripted(answer)
    site = Site({"a": 4, "b": 2}, policies=policies)
    done = site.submit(job("1", 3, placement="mine"))
    (told,) = of_kind(ReportRefusedAnswer, done)
    assert told.reason.startswith(f"the answer of {DESCRIBED} was refused: it ")
    assert problem in told.reason
    assert not of_kind(SubmitPlaceholders, site.actions)
    said = site.explained(policies=policies)
    assert said.endswith(f" T{told.reason[1:]}.")
    assert site.record("1").state is JobState.WAITING
    site.pass_time(60.0)
    assert len(of_kind(ReportRefusedAnswer, site.actions)) == 1
    policy.answer = placed(on(A, 3))
    site.pass_time(60.0)
    assert site.placed("1") == {"c0": ("a", 3)}
    assert not site.record("1").refused_answer


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ((on(A, 2), on(A, 1)), "places two pieces of component 'c0' on one cluster"),
        ((on(A, 2, piece=2), on(B, 1)), "does not say what share of component 'c0' a piece is"),
    ],
)
def test_pieces_that_cannot_be_placed(parts: tuple[PlacedComponent, ...], problem: str) -> None:
    _, policies = scripted(placed(*parts))
    one = replace(component("c0", 3), flexible=True)
    (told,) = of_kind(
        ReportRefusedAnswer, Site({"a": 4, "b": 2}, policies=policies).submit(job("1", one, placement="mine"))
    )
    assert problem in told.reason


def test_more_than_there_is_room_for_is_refused() -> None:
    """Also when each component alone would fit."""
    _, policies = scripted(placed(on(A, 3, "x"), on(A, 3, "y")))
    site = Site({"a": 4, "b": 4}, policies=policies)
    done = site.submit(job("1", component("x", 3), component("y", 3), placement="mine"))
    (told,) = of_kind(ReportRefusedAnswer, done)
    assert "places 6 processors on 'a', which has room for 4" in told.reason


def test_a_job_whose_policy_never_answers_well_is_given_up_after_its_tries() -> None:
    _, policies = scripted(ZeroDivisionError("boom"))
    site = Site({"a": 4}, Parameters(maximum_tries=3), policies=policies)
    site.submit(job("1", 3, placement="mine"), job("2", 3))
    assert site.placed("2") == {"c0": ("a", 3)}
    site.pass_time(3600.0)
    outcome = site.outcome("1")
    assert outcome.state is JobState.NOT_PLACED
    assert "raises ZeroDivisionError: boom" in outcome.detail


@pytest.mark.parametrize("policy", sorted(PLACEMENT_POLICIES))
@given(view_sets(), all_requests())
def test_own_placements_would_pass(policy: str, views: Views, requests: list[ComponentRequest]) -> None:
    if not PLACEMENT_POLICIES[policy].splits:
        requests = [replace(one, splittable=False) for one in requests]
    CheckedPlacement(PLACEMENT_POLICIES[policy], DESCRIBED).place(requests, views)


# ---- malleability ---------------------------------------------------------------------------------------------------


class Told(MalleabilityPolicy):
    """Asks whom a test wants."""

    name = "mine"

    def __init__(self, *, rebalances: bool = False) -> None:
        self.rebalances = rebalances
        self.answer: Callable[[Any], Any] = lambda _: []

    def messages(self, running: Any, step: Any) -> Any:  # noqa: ANN401, ARG002 - anything
        return self.answer(list(running))

    def _grow(self, running: Any, step: Any) -> Any:  # noqa: ANN401 - anything
        raise NotImplementedError

    def _shrink(self, running: Any, step: Any) -> Any:  # noqa: ANN401 - anything
        raise NotImplementedError


def fail(jobs: list[Any]) -> None:
    raise KeyError(len(jobs))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (fail, "raises KeyError: 2"),
        (lambda _: None, "is a NoneType, not a list"),
        (lambda jobs: jobs, "for a job with a number of processors"),
        (lambda _: [("1", 1)], "asks a str that is no malleable job that runs on the cluster"),
        (lambda jobs: [(jobs[0], 1), (jobs[0], 1)], "asks a job twice"),
        (lambda jobs: [(jobs[0], 0)], "no number of processors, or 0"),
        (lambda jobs: [(jobs[0], 1.5)], "for a change that is no number of processors"),
        (lambda jobs: [(jobs[0], -1)], "takes 1 processors from a job in a step that gives out some"),
        (lambda jobs: [(jobs[0], 4), (jobs[1], 4)], "gives out 8 processors, there are 6"),
    ],
)
def test_messages_that_cannot_be_sent(answer: Callable[[Any], Any], problem: str) -> None:
    """No application hears of them, the step is over, `koala explain` and the log say why, and others go on."""
    policy = Told()
    policies = Policies(malleability={"mine": CheckedMalleability(policy, "policy 'malleability.mine'")})
    site = MalleableSite({"a": 10}, policy="mine", policies=policies)
    site.start(job("0", 2))
    for id_ in ("1", "2"):
        site.start(malleable(id_, part(2, 9)))
    policy.answer = answer
    site.finish("0")
    site.poll("a", 10, idle=6, ours=4)
    (told,) = of_kind(ReportRefusedAnswer, site.actions)
    assert problem in told.reason
    assert not of_kind(OfferProcessors, site.actions)
    said = site.explained(policies=policies)
    assert said.endswith(f" T{told.reason[1:]}.")
    site.submit(job("3", 2))
    assert site.placed("3") == {"c0": ("a", 2)}
    policy.answer = lambda jobs: [(jobs[0], 1)]
    site.run("3")
    site.finish("3")
    site.poll("a", 10, idle=6, ours=4)
    (offer,) = of_kind(OfferProcessors, site.actions)
    assert offer.processors == 1
    assert not site.state.clusters[A].refused_answer


@pytest.mark.parametrize(
    ("direction", "number", "amount", "problem"),
    [
        (Direction.SHRINK, 0, -5, "asks a job of 6 processors, which needs 4, to give up 5"),
        (Direction.SHRINK, 0, 1, "gives 1 processors to a job in a step that frees some"),
        (Direction.GROW, 1, 1, "asks a job whose size is changing already"),
        (Direction.GROW, 2, 1, "asks a job again that has declined in this step"),
    ],
)
def test_jobs_that_cannot_be_asked(direction: Direction, number: int, amount: int, problem: str) -> None:
    policy, scene = Told(), Scene((4, 6, 9), (1, 2, 9), (1, 2, 9))
    scene.running.begin(scene.jobs[1])
    step = Step(direction=direction, remaining=4)
    step.answered(scene.jobs[2].order, 2, 0)
    policy.answer = lambda jobs: [(jobs[number], amount)]
    with pytest.raises(PolicyAnswerError, match=problem):
        CheckedMalleability(policy, "a policy").messages(scene.running, step)


@given(bounds=SCENES, value=VALUES, policy=POLICY_NAMES, direction=st.sampled_from(Direction), seed=st.integers(0, 99))
def test_own_messages_would_pass(
    bounds: list[Bounds], value: int, policy: str, direction: Direction, seed: int
) -> None:
    """Nothing is refused that koala's own policies send, and a step goes as it goes without being looked at."""
    looked_at, bare = Scene(*bounds), Scene(*bounds)
    thorough = random.Random(seed).random() < 0.5
    step = Step(direction=direction, remaining=value, thorough=thorough)
    checked = CheckedMalleability(MALLEABILITY_POLICIES[policy], "a policy")
    changed = carry_out(checked, looked_at.running, step, looked_at.ask)
    assert changed == bare.step(policy, direction, value, thorough=thorough)
    assert looked_at.said == bare.said


@given(bounds=st.lists(BOUNDS, min_size=2, max_size=3))
def test_a_step_that_goes_on_for_ever_is_ended(bounds: list[Bounds]) -> None:
    """A policy that rebalances takes from one and gives to another, again and again."""
    policy, scene = Told(rebalances=True), Scene(*((1, high, high + 5) for _, _, high in bounds))
    policy.answer = lambda jobs: [(max(jobs, key=lambda one: one.size), -1)]
    step = Step(direction=Direction.GROW, remaining=0, rounds=9_990)
    sizes = [job.size for job in scene.jobs]
    if sum(sizes) - len(sizes) > 10:
        with pytest.raises(PolicyAnswerError, match="goes on after 10000 rounds"):
            carry_out(CheckedMalleability(policy, "a policy"), scene.running, step, scene.ask)


# -- Policies of queues, which start only what waits and fits.


Change: TypeAlias = "Callable[[list[LocalJob], list[LocalJob]], Any]"
DESCRIBED_QUEUE = "policy 'queue.mine' (site:MINE) of site 1.2"
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
            make=self.make, described=DESCRIBED_QUEUE, refused=lambda error: self.told.append(error.message)
        )
        self.queue = queues(4, weights=ARRIVAL)
        self.jobs = [LocalJob(str(number), number, 10.0, float(number)) for number in (1, 2, 3)]
        for one in self.jobs:
            self.queue.submit(one)

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
    assert told == f"the answer of {DESCRIBED_QUEUE} was refused: it {problem}"
    assert (watched.queue.free, len(watched.queue.waiting), watched.queue.wake_at) == (4, 3, inf)
    assert watched.queue.reservation(watched.jobs[2], 6.0).reason == told
    watched.change = lambda picked, _: picked
    assert watched.queue.schedule(7.0) == watched.jobs[:2]
    assert (watched.queue.free, watched.queue.waiting, watched.queue.trouble) == (1, [watched.jobs[2]], "")
    watched.queue.end(watched.jobs[0], 8.0)
    watched.queue.end(watched.jobs[1], 8.0)
    assert watched.queue.schedule(8.0) == [watched.jobs[2]]


def test_a_policy_that_cannot_be_made_starts_nothing_until_it_can() -> None:
    """It is made anew with each pass, and learns of all jobs then."""
    can_be_made = False

    def make(processors: int, /, *, weights: PriorityWeights) -> Easy:
        if not can_be_made:
            raise OSError("no such file")
        return Easy(processors, weights=weights)

    told: list[str] = []
    queue = CheckedQueues(make=make, described="policy 'mine'", refused=lambda one: told.append(one.message))(
        4, weights=ARRIVAL
    )
    waiting = LocalJob("1", 3, 10.0, 0.0)
    queue.submit(waiting)
    assert queue.schedule(1.0) == []
    assert set(told) == {"the answer of policy 'mine' was refused: it raises OSError: no such file"}
    can_be_made = True
    assert queue.schedule(2.0) == [waiting]


@pytest.mark.parametrize("at", [5.0, -1.0, nan, None])
def test_a_policy_does_not_stop_the_clock(at: Any) -> None:  # noqa: ANN401 - anything

    class Impatient(Faulty):
        def schedule(self, now: float) -> list[LocalJob]:
            self.wake_at = at
            return super(Easy, self).schedule(now) if now < 0 else []

    queues = CheckedQueues(make=Impatient, described=DESCRIBED_QUEUE)
    with pytest.raises(PolicyAnswerError, match="wants to be asked again at"):
        queues(4, weights=ARRIVAL).schedule(5.0)


def own(policy: str, **_: object) -> CheckedQueues:
    """Return one of koala's own policies as if it were a site's."""

    def make(processors: int, /, *, weights: PriorityWeights) -> Any:  # noqa: ANN401 - a queue
        return make_cluster_scheduler(policy, processors, weights=weights)

    return CheckedQueues(make=make, described=DESCRIBED_QUEUE)


@pytest.mark.parametrize("policy", POLICIES)
def test_own_policies_would_pass(policy: str) -> None:
    """A workload is replayed as without being looked at, with the same counts."""
    workload = make_model("model:lublin", jobs=300, seed=4, processors=64)
    sites = (SimulatedSite(name="one", processors=64),)
    workload = workload.fitting(64)
    bare = replay(workload, Policy(name=policy), sites)
    looked_at = replay(workload, Policy(name="mine", make=own(policy)), sites)
    assert looked_at.starts == bare.starts
    assert looked_at.counters == bare.counters


def test_a_simulation_by_a_policy_at_fault_ends() -> None:
    """With what is wrong: its results would be worth nothing."""
    queues = CheckedQueues(
        make=lambda processors, *, weights: Broken(processors, weights=weights), described=DESCRIBED_QUEUE
    )
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
def test_a_policy_that_answers_anything(seed: int) -> None:  # noqa: C901 - one case for each kind of event
    """Only what waits starts, never more than is free, and the counts are those of whoever drives it."""
    chance = random.Random(seed)
    watched = Watched()
    queue, waiting, running, size = watched.queue, set(watched.jobs), set[LocalJob](), 4

    def anything(picked: list[LocalJob], _: list[LocalJob]) -> Any:  # noqa: ANN401 - anything
        choices: list[Any] = [picked, picked, picked[:1], picked * 2, [STRANGER], list(waiting), None, 7, [None]]
        if chance.random() < 0.2:
            raise KeyError(seed)
        return chance.choice(choices)

    watched.change = anything
    for now in range(10, 60):
        draw = chance.random()
        if draw < 0.4:
            one = LocalJob(f"j{now}", chance.randint(1, 5), 10.0, float(now))
            queue.submit(one)
            waiting.add(one)
        elif draw < 0.7 and running:
            one = chance.choice(sorted(running))
            queue.end(one, now)
            running.remove(one)
        elif draw < 0.8 and waiting:
            one = chance.choice(sorted(waiting))
            queue.withdraw(one, now)
            waiting.remove(one)
        elif draw < 0.85 and waiting:
            one = chance.choice(sorted(waiting))
            queue.revise(one, now, estimate=20.0, priority=1.0)
            assert (one.estimate, one.priority) == (20.0, 1.0)
        elif draw < 0.9:
            one = LocalJob(f"a{now}", 1, 10.0, float(now))
            queue.adopt(one, float(now), now)
            running.add(one)
        elif draw < 0.95:
            size = chance.randint(3, 6)
            queue.resize(size, now)
        free = queue.free
        started = queue.schedule(now)
        assert len(set(started)) == len(started)
        assert waiting.issuperset(started)
        waiting.difference_update(started)
        running.update(started)
        assert queue.free == size - sum(one.processors for one in running)
        assert not started or 0 <= queue.free < free
        if started and chance.random() < 0.3:  # they got no nodes
            for one in started:
                queue.end(one, now)
            queue.put_back(dict.fromkeys(started, float(now)), now)
            waiting.update(started)
            running.difference_update(started)
        assert set(queue.waiting) == waiting
        assert set(queue.running) == running
        for one in waiting:
            assert queue.reservation(one, now).reason
