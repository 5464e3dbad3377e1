# SPDX-License-Identifier: Apache-2.0
"""Policies of malleability, and the growth that they request."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import JobKind
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.actions import GrantProcessors, OfferProcessors, RequestProcessors, TakeProcessors
from koala_adapter.scheduler.malleable.jobmanagement import Shrinkable, cluster_to_shrink
from koala_adapter.scheduler.malleable.policies import (
    MALLEABILITY_POLICIES,
    Direction,
    MalleableJob,
    RunningJobs,
    Step,
    carry_out,
    equal_sizes,
    levelled_sizes,
)
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.sizes import AcceptanceRule, AnySize, PowerOfTwo
from tests.unit.scheduler.malleable_site import MalleableSite, granted, malleable, part, requests
from tests.unit.scheduler.scheduler_site import A, component, job, of_kind, submissions

# -- Malleability policies on counts: each against cases computed by hand, and properties on random jobs.


GROW, SHRINK = Direction.GROW, Direction.SHRINK
Bounds = tuple[int, int, int]
"""Minimum, size, maximum."""


class Scene:
    """Jobs that started one after the other, and what was said to them."""

    def __init__(self, *bounds: Bounds, rules: Mapping[int, AcceptanceRule] | None = None) -> None:
        """``rules``: acceptance of the jobs (by number from 0) that do not take any size."""
        self.running: RunningJobs[MalleableJob] = RunningJobs()
        self.jobs = [
            MalleableJob(minimum=low, maximum=high, size=size, started_at=10.0 * n, number=n)
            for n, (low, size, high) in enumerate(bounds)
        ]
        for one in self.jobs:
            self.running.add(one)
        self.rules = rules or {}
        self.said: list[tuple[int, int, int]] = []
        """Job, message, answer."""

    def ask(self, job: MalleableJob, amount: int) -> int:
        """Answer as the application of the job would."""
        number = job.order[1]
        rule = self.rules.get(number, AnySize())
        answer = rule.answer(job.size, amount, job.minimum, job.maximum)
        self.said.append((number, amount, answer))
        return answer

    def step(self, policy: str, direction: Direction, value: int, *, thorough: bool = False) -> int:
        step = Step(direction=direction, remaining=value, thorough=thorough)
        return carry_out(MALLEABILITY_POLICIES[policy], self.running, step, self.ask)

    @property
    def sizes(self) -> list[int]:
        return [job.size for job in self.jobs]


TWO = PowerOfTwo()


def said(*amounts: int) -> list[tuple[int, int, int]]:
    """Return what is said to jobs that do all they are asked, one after the other."""
    return [(number, amount, amount) for number, amount in enumerate(amounts)]


THREE = ((2, 5, 5), (2, 2, 9), (2, 4, 9))


@pytest.mark.parametrize(
    ("policy", "bounds", "direction", "value", "changed", "said"),
    [
        # All of 10 is offered to the first, which has room for 3; the 7 left to the second, which takes them.
        ("fpsma", ((1, 2, 5), (1, 2, 9), (1, 2, 9)), GROW, 10, 10, [(0, 10, 3), (1, 7, 7)]),
        # All of 7 is requested from the last, which gives 3; the rest from the one before it.
        ("fpsma", ((2, 8, 9), (2, 8, 9), (2, 5, 9)), SHRINK, 7, -7, [(2, -7, -3), (1, -4, -4)]),
        # 11 over four jobs: 2 each, and 1 more to the three least recently started, or from the most recently started.
        ("egs", ((1, 2, 99), (1, 5, 99), (1, 2, 99), (1, 9, 99)), GROW, 11, 11, said(3, 3, 3, 2)),
        ("egs", ((1, 9, 99),) * 4, SHRINK, 11, -11, said(-2, -3, -3, -3)),
        # Less than one for each: the first two started get one each; shrinking, the last two lose one each.
        ("egs", ((1, 4, 9),) * 3, GROW, 2, 2, [(0, 1, 1), (1, 1, 1)]),
        ("egs", ((1, 5, 9), (1, 5, 9), (1, 4, 9)), SHRINK, 2, -2, [(1, -1, -1), (2, -1, -1)]),
        # As published: those at their maximum or minimum have a share, too, and decline it; nobody is asked instead.
        ("egs", THREE, GROW, 6, 4, [(0, 2, 0), (1, 2, 2), (2, 2, 2)]),
        ("egs", THREE, SHRINK, 4, -3, [(0, -1, -1), (1, -1, 0), (2, -2, -2)]),
        # In one round: what the small one cannot give is not requested from the large one.
        ("egs", ((2, 20, 30), (2, 3, 9)), SHRINK, 10, -6, [(0, -5, -5), (1, -5, -1)]),
        ("egs-repeated", ((2, 20, 30), (2, 3, 9)), SHRINK, 10, -10, [(0, -5, -5), (1, -5, -1), (0, -4, -4)]),
        # Jobs at their maximum have no share of what is given, those at their minimum none of what is taken.
        ("egs-repeated", THREE, GROW, 4, 4, [(1, 2, 2), (2, 2, 2)]),
        ("egs-repeated", THREE, SHRINK, 3, -3, [(0, -1, -1), (2, -2, -2)]),
        # 20 processors for three: 7, 7, 6, for which the largest gives some up first.
        ("equipartition", ((1, 12, 99), (1, 2, 99), (1, 2, 99)), GROW, 4, 4, [(0, -5, -5), (1, 5, 5), (2, 4, 4)]),
        # A step of 0 processors equalizes the sizes after a job has come.
        ("equipartition", ((1, 9, 99), (2, 2, 99)), GROW, 0, 0, [(0, -3, -3), (1, 3, 3)]),
        # 8 processors come from the two large ones, which end at one level; the small one is not touched.
        ("equipartition", ((1, 12, 99), (1, 9, 99), (1, 4, 99)), SHRINK, 8, -8, [(0, -5, -5), (1, -3, -3)]),
        # With 7 free, 2 and then 3 are doubled, for 4 the rest is too little; 4 are won back from the largest.
        ("folding", ((1, 4, 99), (1, 3, 99), (1, 2, 99)), GROW, 7, 5, [(2, 2, 2), (1, 3, 3)]),
        ("folding", ((1, 4, 99), (1, 6, 99), (1, 4, 99)), SHRINK, 4, -5, [(1, -3, -3), (2, -2, -2)]),
        # A job is doubled only to its maximum, and halved only to its minimum.
        ("folding", ((4, 5, 9), (1, 1, 2)), GROW, 20, 1, [(1, 1, 1)]),
        ("folding", ((4, 5, 9), (1, 2, 2)), SHRINK, 20, -1, [(1, -1, -1)]),
    ],
)
def test_what_a_policy_says_to_jobs(
    *,
    policy: str,
    bounds: tuple[Bounds, ...],
    direction: Direction,
    value: int,
    changed: int,
    said: list[tuple[int, int, int]],
) -> None:
    scene = Scene(*bounds)
    assert scene.step(policy, direction, value) == changed
    assert scene.said == said
    sizes = [size for _, size, _ in bounds]
    for number, _, answer in said:
        sizes[number] += answer
    assert scene.sizes == sizes


def test_fpsma_goes_on_after_a_refusal() -> None:
    """FT on 4 cannot use 3 more; the next job gets them."""
    scene = Scene((2, 4, 32), (2, 2, 46), rules={0: TWO})
    scene.step("fpsma", GROW, 3)
    assert scene.said == [(0, 3, 0), (1, 3, 3)]


@pytest.mark.parametrize("policy", ["egs", "egs-repeated"])
@pytest.mark.parametrize(("thorough", "changed", "more"), [(False, 4, []), (True, 6, [(1, 2, 2)])])
def test_egs_grows_in_one_round_as_in_the_paper(
    policy: str, changed: int, more: list[tuple[int, int, int]], *, thorough: bool
) -> None:
    """What a share was too large for stays free, unless the step is thorough: then the others are offered it."""
    scene = Scene((1, 2, 3), (1, 2, 99))
    assert scene.step(policy, GROW, 6, thorough=thorough) == changed
    assert scene.said == [(0, 3, 1), (1, 3, 3), *more]


def test_jobs_in_a_change_are_left_alone() -> None:
    scene = Scene((1, 4, 9), (1, 4, 9))
    scene.running.begin(scene.jobs[0])
    assert (scene.running.growth, scene.running.spare) == (5, 3)
    scene.step("egs", GROW, 4)
    scene.step("fpsma", SHRINK, 1)
    assert scene.sizes == [4, 7]
    scene.running.end(scene.jobs[0])
    scene.step("egs", GROW, 2)
    assert scene.sizes == [5, 8]


def test_sizes_out_of_bounds_are_refused() -> None:
    scene = Scene((2, 4, 9))
    for size in (1, 10):
        with pytest.raises(ValueError, match="not within"):
            scene.running.resize(scene.jobs[0], size)
        with pytest.raises(ValueError, match="not within"):
            MalleableJob(minimum=2, maximum=9, size=size, started_at=0.0, number=0)


@pytest.mark.parametrize(
    ("size", "amount", "minimum", "maximum", "answer"),
    [(4, 3, 2, 32, 0), (4, 13, 2, 32, 12), (16, 100, 2, 40, 16), (16, -1, 2, 32, -8), (16, -16, 3, 32, -12),
     (4, -1, 3, 32, 0)],
)  # fmt: skip
def test_power_of_two_rule(size: int, amount: int, minimum: int, maximum: int, answer: int) -> None:
    """Total sizes are powers of two, releases may exceed the request, and minima hold."""
    assert TWO.answer(size, amount, minimum, maximum) == answer
    assert TWO.largest(0) == 0


# ---- properties ---------------------------------------------------------------------------------------------------

BOUNDS = st.tuples(st.integers(1, 6), st.integers(0, 12), st.integers(0, 12)).map(
    lambda given: (given[0], given[0] + given[1], given[0] + given[1] + given[2])
)
SCENES = st.lists(BOUNDS, max_size=12)
VALUES = st.integers(0, 60)
POLICY_NAMES = st.sampled_from(sorted(MALLEABILITY_POLICIES))


@given(bounds=SCENES, value=VALUES, policy=POLICY_NAMES, direction=st.sampled_from(Direction), seed=st.integers(0, 99))
def test_bounds_and_value_hold_with_any_application(
    bounds: list[Bounds], value: int, policy: str, direction: Direction, seed: int
) -> None:
    """No more is given out than there is, no size leaves its bounds, and the counts stay true."""
    chance = random.Random(seed)
    rules: dict[int, AcceptanceRule] = {n: TWO for n in range(len(bounds)) if chance.random() < 0.5}
    scene = Scene(*bounds, rules=rules)
    before = sum(scene.sizes)
    changed = scene.step(policy, direction, value, thorough=chance.random() < 0.5)
    assert sum(scene.sizes) - before == changed
    assert all(low <= job.size <= high for job, (low, _, high) in zip(scene.jobs, bounds, strict=True))
    assert changed <= (value if direction is GROW else 0)
    assert scene.running.growth == sum(job.maximum - job.size for job in scene.jobs)
    assert scene.running.spare == sum(job.size - job.minimum for job in scene.jobs)
    assert scene.running.growable == [job for job in scene.jobs if job.size < job.maximum]
    assert scene.running.shrinkable == [job for job in scene.jobs if job.size > job.minimum]


@given(
    bounds=SCENES,
    value=st.integers(1, 60),
    direction=st.sampled_from(Direction),
    policy=st.sampled_from(["egs", "egs-repeated"]),
)
def test_egs_offers_exactly_the_value(bounds: list[Bounds], value: int, direction: Direction, policy: str) -> None:
    """The first round adds up to the value, goes one way only, and shares differ by 1 at most."""
    scene = Scene(*bounds)
    step = Step(direction=direction, remaining=value)
    messages = MALLEABILITY_POLICIES[policy].messages(scene.running, step)
    able = scene.running.growable if direction is GROW else scene.running.shrinkable
    able = scene.jobs if policy == "egs" else able
    if not able:
        assert messages == []
        return
    amounts = [amount for _, amount in messages]
    assert sum(amounts) == (value if direction is GROW else -value)
    assert len({amount > 0 for amount in amounts}) == 1
    shares = [abs(amount) for amount in amounts] + [0] * (len(able) - len(messages))
    assert max(shares) - min(shares) <= 1


@given(bounds=SCENES, value=VALUES, policy=st.sampled_from(["fpsma", "egs-repeated", "equipartition"]))
def test_shrinking_reaches_the_value_whenever_possible(bounds: list[Bounds], value: int, policy: str) -> None:
    """Applications that run on any size free exactly the value, or all down to their minima."""
    scene = Scene(*bounds)
    spare = scene.running.spare
    assert scene.step(policy, SHRINK, value) == -min(value, spare)
    assert all(amount < 0 for _, amount, _ in scene.said)


@given(bounds=SCENES, value=VALUES, policy=st.sampled_from(["fpsma", "egs", "egs-repeated"]))
def test_growing_to_the_end_leaves_nothing_that_anybody_could_take(
    bounds: list[Bounds], value: int, policy: str
) -> None:
    """A thorough step gives out all that there is, or all jobs stand at their maxima; nobody is shrunk."""
    scene = Scene(*bounds)
    growth = scene.running.growth
    assert scene.step(policy, GROW, value, thorough=True) == min(value, growth)
    assert all(amount > 0 for _, amount, _ in scene.said)


@given(bounds=st.lists(BOUNDS, min_size=1, max_size=12), value=VALUES)
def test_equipartition_sizes_are_equal_where_no_bound_holds(bounds: list[Bounds], value: int) -> None:
    """Sizes that neither minimum nor maximum holds differ by 1 at most; all processors are used, or all maxima."""
    scene = Scene(*bounds)
    total = sum(scene.sizes) + value
    scene.step("equipartition", GROW, value)
    free = [job.size for job in scene.jobs if job.minimum < job.size < job.maximum]
    assert max(free, default=0) - min(free, default=0) <= 1
    assert sum(scene.sizes) == min(total, sum(job.maximum for job in scene.jobs))
    for one in scene.jobs:  # a bound holds a job only on the side of it where the others are
        if free and one.size == one.minimum < one.maximum:
            assert one.size >= min(free) - 1
        if free and one.size == one.maximum > one.minimum:
            assert one.size <= max(free) + 1


@given(bounds=st.lists(BOUNDS, min_size=1, max_size=12), value=VALUES)
def test_levels(bounds: list[Bounds], value: int) -> None:
    jobs = Scene(*bounds).jobs
    total = sum(job.minimum for job in jobs) + value
    assert sum(equal_sizes(jobs, total)) == min(total, sum(job.maximum for job in jobs))
    down = levelled_sizes(jobs, value)
    assert sum(job.size for job in jobs) - sum(down) == min(value, sum(job.size - job.minimum for job in jobs))
    assert all(job.minimum <= size <= job.size for job, size in zip(jobs, down, strict=True))


@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9)), max_size=60))
def test_running_jobs_agree_with_a_plain_list(moves: list[tuple[int, int, int]]) -> None:
    running: RunningJobs[MalleableJob] = RunningJobs()
    plain: list[MalleableJob] = []
    for number, (kind, which, size) in enumerate(moves):
        if kind == 0 or not plain:
            job = MalleableJob(minimum=1, maximum=9, size=size, started_at=float(which), number=number)
            plain.append(job)
            running.add(job)
            continue
        job = plain[which % len(plain)]
        if kind == 1:
            running.resize(job, size)
        elif kind == 2:
            (running.end if job.busy else running.begin)(job)
        else:
            plain.remove(job)
            running.remove(job)
        ordered = sorted(plain, key=lambda job: job.order)
        idle = [job for job in ordered if not job.busy]
        assert list(running) == ordered
        assert running.growable == [job for job in idle if job.size < 9]
        assert running.shrinkable == [job for job in idle if job.size > 1]
        assert (running.growth, running.spare) == (sum(9 - j.size for j in idle), sum(j.size - 1 for j in idle))


# -- Who comes first under PRA and PWA, and where room is made, on counts ------------------------------------


def test_room_is_made_where_least_is_taken() -> None:
    """For 8 processors, B has most free of those where it is enough; A has more spare, C more free but too little."""
    clusters = [("a", Shrinkable(2, 20)), ("b", Shrinkable(4, 4)), ("c", Shrinkable(5, 2))]
    assert cluster_to_shrink(8, clusters) == ("b", 4)
    assert cluster_to_shrink(9, clusters) == ("a", 7)
    assert cluster_to_shrink(23, clusters) is None
    assert cluster_to_shrink(5, clusters) == ("c", 0)
    assert cluster_to_shrink(1, []) is None


# -- Applications that ask for more processors themselves, voluntary and mandatory, through the scheduler.


def still(size: dict[str, int], processors: int = 12) -> MalleableSite:
    """Return a site (approach none) with running jobs of minimum 2 and maximum 9."""
    site = MalleableSite({"a": processors}, Approach.NONE)
    for name, initial in size.items():
        site.start(malleable(name, part(2, 9), initial=initial))
    return site


def test_voluntary_wish() -> None:
    """It gets what is free, as far as it goes, and takes it in as any growth, under the number it was told."""
    site = still({"1": 4, "2": 5})
    actions = site.ask("1", 4)
    assert granted(actions) == [("1", 3, "no more is free")]
    assert submissions(actions) == {"a": 3}
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    assert taking.number == of_kind(GrantProcessors, actions)[0].number
    site.take(taking)
    assert site.sizes("1") == [7]


@pytest.mark.parametrize(
    ("sizes", "processors", "mandatory", "answer"),
    [
        ({"1": 7}, 5, False, (2, "its maximum is reached")),
        ({"1": 9}, 5, False, (0, "its maximum is reached")),
        ({"1": 4, "2": 4}, 4, True, (4, "")),
        # When the others cannot give enough it gets what is free, at once.
        ({"1": 3, "2": 4, "3": 3}, 6, True, (2, "the others could not give more")),
    ],
)
def test_wishes_that_shrink_nobody(
    sizes: dict[str, int], processors: int, answer: tuple[int, str], *, mandatory: bool
) -> None:
    actions = still(sizes).ask("1", processors, mandatory=mandatory)
    assert granted(actions) == [("1", *answer)]
    assert requests(actions) == []


def test_mandatory_wish_shrinks_others() -> None:
    """Two are free, the other two come from the other jobs; it is granted when these have really been released."""
    site = still({"1": 3, "2": 4, "3": 4}, processors=13)
    second, third = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    assert [(second.job_id, second.processors), (third.job_id, third.processors)] == [("2", 1), ("3", 1)]
    site.shrink_by(second)
    assert granted(site.actions) == []
    site.shrink_by(third)
    assert granted(site.actions) == [("1", 4, "")]
    (taking,) = of_kind(TakeProcessors, site.hold_stubs())
    site.take(taking)
    assert (site.sizes("1"), site.sizes("2"), site.sizes("3")) == ([7], [3], [3])


def test_what_is_promised_is_kept_from_waiting_jobs() -> None:
    site = still({"1": 3, "2": 7})
    (request,) = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    assert request.processors == 2
    assert "it asked for 4 more, and others give up processors for it" in site.explained()
    assert submissions(site.submit(job("late", 1))) == {}
    site.shrink_by(request)
    assert granted(site.actions) == [("1", 4, "")]
    assert site.record("late").state is JobState.WAITING


@pytest.mark.parametrize(
    ("ours", "asked", "answer"),
    [(6, [("2", 1)], []), (5, [], [("1", 0, "the others could not give more")])],
    ids=["one counted twice", "others take more than there is"],
)
def test_a_second_reading_decides_where_more_is_taken_than_there_is(
    ours: int, asked: list[tuple[str, int]], answer: list[tuple[str, int, str]]
) -> None:
    """A placeholder that started between the listings of jobs and of nodes counts twice, for one reading."""
    site = still({"1": 3, "2": 3})
    site.poll("a", 12, idle=0, ours=5)
    actions = site.ask("1", 1, mandatory=True)
    assert (requests(actions), granted(actions)) == ([], [])
    site.now += 1
    actions = site.poll("a", 12, idle=0, ours=ours)
    assert (requests(actions), granted(actions)) == (asked, answer)


def test_others_that_refuse() -> None:
    site = still({"1": 3, "2": 7})
    (request,) = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    assert granted(site.answer(request, 0)) == [("1", 2, "the others could not give more")]
    assert requests(site.actions) == [("2", 2)]


def test_others_that_never_release() -> None:
    site = MalleableSite({"a": 12}, Approach.NONE)
    for name, initial in {"1": 3, "2": 7}.items():
        site.start(malleable(name, part(2, 9), initial=initial, walltime=9000))
    (request,) = of_kind(RequestProcessors, site.ask("1", 4, mandatory=True))
    site.answer(request)
    assert granted(site.pass_time(299.0)) == []
    assert granted(site.pass_time(2.0)) == [("1", 2, "the others could not give more")]


def test_two_mandatory_wishes_are_granted_in_order() -> None:
    site = still({"1": 2, "2": 2, "3": 8})
    (first,) = of_kind(RequestProcessors, site.ask("1", 2, mandatory=True))
    assert site.ask("2", 2, mandatory=True) == []
    site.shrink_by(first)
    (second,) = of_kind(RequestProcessors, site.actions)[1:]
    site.shrink_by(second)
    assert granted(site.actions) == [("1", 2, ""), ("2", 2, "")]


def test_a_request_told_twice_is_taken_once() -> None:
    site = still({"1": 3})
    site.ask("1", 1, number=2)
    assert site.ask("1", 1, number=2) == []
    assert site.ask("1", 1, number=1) == []
    assert len(site.stubs()) == 1


def test_request_instead_of_an_answer() -> None:
    """Who asks for more while an offer is out has declined that offer."""
    site = MalleableSite({"a": 12})
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 9))))
    actions = site.ask("1", 3)
    assert granted(actions) == [("1", 3, "")]
    assert site.answer(offer, 5) == []
    assert site.state.clusters[A].offered == 0


def test_requests_that_nobody_can_grant() -> None:
    site = still({"1": 3})
    site.submit(malleable("2", part(2, 9)))
    assert granted(site.ask("2", 1)) == [("2", 0, "the job does not run")]
    site.rank_ends("1", 0)
    assert granted(site.ask("1", 1)) == [("1", 0, "the job does not run")]
    assert site.ask("1", 1, number=2, component_name="other") == []
    assert site.ask("nobody", 1) == []
    site = MalleableSite({"a": 12})
    site.start(job("r", component("m", 3, cluster="a")))
    assert granted(site.ask("r", 1)) == [("r", 0, f"a {JobKind.RIGID} job keeps its size")]
    site = still({"1": 3})
    site.ask("1", 1)
    assert granted(site.ask("1", 1, number=2)) == [("1", 0, "another change is under way")]


@pytest.mark.parametrize("which", ["asking", "giving"])
def test_end_of_a_job_while_others_shrink_for_a_wish(which: str) -> None:
    """Nothing stays reserved when the asking job ends; when a giving one ends, its processors are granted."""
    site = still({"1": 3, "2": 7})
    site.ask("1", 4, mandatory=True)
    site.cancel("1" if which == "asking" else "2")
    site.end_ending()
    assert site.state.clusters[A].promises == []
    assert site.state.clusters[A].offered == 0
    assert granted(site.actions) == ([] if which == "asking" else [("1", 4, "")])


def test_wish_of_one_of_several_components() -> None:
    site = MalleableSite({"a": 6, "b": 6}, Approach.NONE)
    site.start(malleable("1", part(2, 9, "a", "x"), part(2, 9, "b", "y")))
    assert submissions(site.ask("1", 3, component_name="y")) == {"b": 3}


def test_mandatory_wish_does_not_wait_for_levelling() -> None:
    """Equipartition that waits for released processors to come free makes way for who insists, or it never ends."""
    site = MalleableSite({"a": 10}, policy="equipartition")
    (offer,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 10), initial=8, walltime=9000)))
    site.answer(offer, 0)
    (request,) = of_kind(RequestProcessors, site.start(malleable("2", part(2, 10), walltime=9000)))
    assert site.ask("2", 3, mandatory=True) == []
    site.answer(request)
    site.release("1", 3)
    # Their batch system never says that the released ones are gone.
    assert site.state.clusters[A].ending == 3
    site.pass_time(site.parameters.placeholder_life)
    assert granted(site.actions) == [("2", 0, "the others could not give more")]
    assert site.state.clusters[A].promises == []


def test_why_a_wish_is_not_granted_in_full() -> None:
    """The bound that holds is told: what its owner wants, or what it has been offered elsewhere, not its maximum."""
    site = still({"1": 4})
    site.record("1").sizes_wanted["m"] = 5
    assert granted(site.ask("1", 3)) == [("1", 1, "its owner wants it to have 5")]
    site = MalleableSite({"a": 6, "b": 6})
    site.start(malleable("1", replace(component("m", 2, 9), flexible=True)))
    assert [one.cluster for one in of_kind(OfferProcessors, site.actions)] == ["a", "b"]
    first = of_kind(OfferProcessors, site.actions)[0]
    site.answer(first, 0)
    coming = site.record("1").coming("m")
    assert coming > 0
    ((_, got, why),) = granted(site.ask("1", 7 - coming + 1))
    assert (got, why) == (7 - coming, f"{coming} more are offered to it already, or on their way")
