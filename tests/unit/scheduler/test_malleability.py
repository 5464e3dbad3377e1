# SPDX-License-Identifier: Apache-2.0
"""Malleability policies on counts: each against cases computed by hand, and properties on random jobs."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

if TYPE_CHECKING:
    from collections.abc import Mapping


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
        for job in self.jobs:
            self.running.add(job)
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
        """Carry out a step."""
        step = Step(direction=direction, remaining=value, thorough=thorough)
        return carry_out(MALLEABILITY_POLICIES[policy], self.running, step, self.ask)

    @property
    def sizes(self) -> list[int]:
        """Sizes of all jobs."""
        return [job.size for job in self.jobs]


TWO = PowerOfTwo()


def test_fpsma_grows_the_first_started_first() -> None:
    """All of 10 is offered to the first, which has room for 3; the 7 left to the second, which takes them."""
    scene = Scene((1, 2, 5), (1, 2, 9), (1, 2, 9))
    assert scene.step("fpsma", GROW, 10) == 10
    assert scene.said == [(0, 10, 3), (1, 7, 7)]
    assert scene.sizes == [5, 9, 2]


def test_fpsma_shrinks_the_last_started_first() -> None:
    """All of 7 is requested from the last, which gives 3; the rest from the one before it."""
    scene = Scene((2, 8, 9), (2, 8, 9), (2, 5, 9))
    assert scene.step("fpsma", SHRINK, 7) == -7
    assert scene.said == [(2, -7, -3), (1, -4, -4)]
    assert scene.sizes == [8, 4, 2]


def test_fpsma_goes_on_after_a_refusal() -> None:
    """FT on 4 cannot use 3 more; the next job gets them."""
    scene = Scene((2, 4, 32), (2, 2, 46), rules={0: TWO})
    scene.step("fpsma", GROW, 3)
    assert scene.said == [(0, 3, 0), (1, 3, 3)]


def test_egs_grows_all_equally_with_a_bonus_to_the_first_started() -> None:
    """11 over four jobs: 2 each, and 1 more to the three least recently started."""
    scene = Scene((1, 2, 99), (1, 5, 99), (1, 2, 99), (1, 9, 99))
    assert scene.step("egs", GROW, 11) == 11
    assert scene.said == [(0, 3, 3), (1, 3, 3), (2, 3, 3), (3, 2, 2)]
    assert scene.sizes == [5, 8, 5, 11]


def test_egs_shrinks_all_equally_with_a_malus_to_the_last_started() -> None:
    """11 over four jobs: 2 each, and 1 more from the three most recently started."""
    scene = Scene((1, 9, 99), (1, 9, 99), (1, 9, 99), (1, 9, 99))
    assert scene.step("egs", SHRINK, 11) == -11
    assert scene.said == [(0, -2, -2), (1, -3, -3), (2, -3, -3), (3, -3, -3)]
    assert scene.sizes == [7, 6, 6, 6]


def test_egs_with_less_than_one_for_each() -> None:
    """Of 2 processors for three jobs the first two started get one each; shrinking, the last two lose one each."""
    scene = Scene((1, 4, 9), (1, 4, 9), (1, 4, 9))
    scene.step("egs", GROW, 2)
    assert scene.sizes == [5, 5, 4]
    scene.step("egs", SHRINK, 2)
    assert scene.sizes == [5, 4, 3]


def test_egs_asks_all_running_jobs_once() -> None:
    """As published: those at their maximum or minimum have a share, too, and decline it; nobody is asked instead."""
    scene = Scene((2, 5, 5), (2, 2, 9), (2, 4, 9))
    assert scene.step("egs", GROW, 6) == 4
    assert scene.said == [(0, 2, 0), (1, 2, 2), (2, 2, 2)]
    scene = Scene((2, 5, 5), (2, 2, 9), (2, 4, 9))
    assert scene.step("egs", SHRINK, 4) == -3
    assert scene.said == [(0, -1, -1), (1, -1, 0), (2, -2, -2)]


def test_egs_shrinks_in_one_round() -> None:
    """What the small one cannot give is not requested from the large one."""
    scene = Scene((2, 20, 30), (2, 3, 9))
    assert scene.step("egs", SHRINK, 10) == -6
    assert scene.said == [(0, -5, -5), (1, -5, -1)]
    assert scene.sizes == [15, 2]


def test_repeated_egs_leaves_out_those_that_cannot() -> None:
    """Jobs at their maximum have no share of what is given, those at their minimum none of what is taken."""
    scene = Scene((2, 5, 5), (2, 2, 9), (2, 4, 9))
    scene.step("egs-repeated", GROW, 4)
    assert scene.said == [(1, 2, 2), (2, 2, 2)]
    scene = Scene((2, 5, 5), (2, 2, 9), (2, 4, 9))
    scene.step("egs-repeated", SHRINK, 3)
    assert scene.said == [(0, -1, -1), (2, -2, -2)]


@pytest.mark.parametrize("policy", ["egs", "egs-repeated"])
def test_egs_grows_in_one_round_as_in_the_paper(policy: str) -> None:
    """What a share was too large for stays free, unless the step is thorough: then the others are offered it."""
    scene = Scene((1, 2, 3), (1, 2, 99))
    assert scene.step(policy, GROW, 6) == 4
    assert scene.said == [(0, 3, 1), (1, 3, 3)]
    scene = Scene((1, 2, 3), (1, 2, 99))
    assert scene.step(policy, GROW, 6, thorough=True) == 6
    assert scene.said == [(0, 3, 1), (1, 3, 3), (1, 2, 2)]


def test_repeated_egs_shrinks_until_the_value_is_reached() -> None:
    """What the small one cannot give is requested from the large one."""
    scene = Scene((2, 20, 30), (2, 3, 9))
    assert scene.step("egs-repeated", SHRINK, 10) == -10
    assert scene.said == [(0, -5, -5), (1, -5, -1), (0, -4, -4)]
    assert scene.sizes == [11, 2]


def test_equipartition_makes_all_nearly_equal() -> None:
    """20 processors for three: 7, 7, 6, for which the largest gives some up first."""
    scene = Scene((1, 12, 99), (1, 2, 99), (1, 2, 99))
    assert scene.step("equipartition", GROW, 4) == 4
    assert scene.said == [(0, -5, -5), (1, 5, 5), (2, 4, 4)]
    assert scene.sizes == [7, 7, 6]


def test_equipartition_makes_room_in_the_balance_with_nothing_free() -> None:
    """A step of 0 processors equalizes the sizes after a job has come."""
    scene = Scene((1, 9, 99), (2, 2, 99))
    assert scene.step("equipartition", GROW, 0) == 0
    assert scene.sizes == [6, 5]


def test_equipartition_brings_the_largest_down() -> None:
    """8 processors come from the two large ones, which end at one level; the small one is not touched."""
    scene = Scene((1, 12, 99), (1, 9, 99), (1, 4, 99))
    assert scene.step("equipartition", SHRINK, 8) == -8
    assert scene.sizes == [7, 6, 4]


def test_folding_doubles_the_smallest_and_halves_the_largest() -> None:
    """With 7 free, 2 and then 3 are doubled, for 4 the rest is too little; 4 are won back from the largest."""
    scene = Scene((1, 4, 99), (1, 3, 99), (1, 2, 99))
    assert scene.step("folding", GROW, 7) == 5
    assert scene.said == [(2, 2, 2), (1, 3, 3)]
    assert scene.sizes == [4, 6, 4]
    assert scene.step("folding", SHRINK, 4) == -5
    assert scene.said[2:] == [(1, -3, -3), (2, -2, -2)]
    assert scene.sizes == [4, 3, 2]


def test_folding_stays_within_bounds() -> None:
    """A job is doubled only to its maximum, and halved only to its minimum."""
    scene = Scene((4, 5, 9), (1, 1, 2))
    assert scene.step("folding", GROW, 20) == 1
    assert scene.step("folding", SHRINK, 20) == -1
    assert scene.sizes == [5, 1]


def test_jobs_in_a_change_are_left_alone() -> None:
    """Neither share nor message for a job whose last change is not through; afterwards it counts again."""
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
    """No job is made or resized below its minimum or above its maximum."""
    scene = Scene((2, 4, 9))
    for size in (1, 10):
        with pytest.raises(ValueError, match="not within"):
            scene.running.resize(scene.jobs[0], size)
        with pytest.raises(ValueError, match="not within"):
            MalleableJob(minimum=2, maximum=9, size=size, started_at=0.0, number=0)


def test_power_of_two_rule() -> None:
    """Total sizes are powers of two, releases may exceed the request, and minima hold."""
    assert TWO.answer(4, 3, 2, 32) == 0
    assert TWO.answer(4, 13, 2, 32) == 12
    assert TWO.answer(16, 100, 2, 40) == 16
    assert TWO.answer(16, -1, 2, 32) == -8
    assert TWO.answer(16, -16, 3, 32) == -12
    assert TWO.answer(4, -1, 3, 32) == 0
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
    for job in scene.jobs:  # a bound holds a job only on the side of it where the others are
        if free and job.size == job.minimum < job.maximum:
            assert job.size >= min(free) - 1
        if free and job.size == job.maximum > job.minimum:
            assert job.size <= max(free) + 1


@given(bounds=st.lists(BOUNDS, min_size=1, max_size=12), value=VALUES)
def test_levels(bounds: list[Bounds], value: int) -> None:
    """Both ways of levelling add up and stay within the bounds."""
    jobs = Scene(*bounds).jobs
    total = sum(job.minimum for job in jobs) + value
    assert sum(equal_sizes(jobs, total)) == min(total, sum(job.maximum for job in jobs))
    down = levelled_sizes(jobs, value)
    assert sum(job.size for job in jobs) - sum(down) == min(value, sum(job.size - job.minimum for job in jobs))
    assert all(job.minimum <= size <= job.size for job, size in zip(jobs, down, strict=True))


@given(
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9)), max_size=60),
)
def test_running_jobs_agree_with_a_plain_list(moves: list[tuple[int, int, int]]) -> None:
    """Whatever is added, removed, resized and marked busy: lists, order and sums are those of a recount."""
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


def test_who_comes_first() -> None:
    """PRA prefers the running, PWA the waiting and alone shrinks for them; without an approach nobody is touched."""
    assert [a for a in Approach if a.running_first] == [Approach.PRA]
    assert [a for a in Approach if a.shrinks_for_waiting] == [Approach.PWA]


def test_room_is_made_where_least_is_taken() -> None:
    """For 8 processors, B has most free of those where it is enough; A has more spare, C more free but too little."""
    clusters = [("a", Shrinkable(2, 20)), ("b", Shrinkable(4, 4)), ("c", Shrinkable(5, 2))]
    assert cluster_to_shrink(8, clusters) == ("b", 4)
    assert cluster_to_shrink(9, clusters) == ("a", 7)
    assert cluster_to_shrink(23, clusters) is None
    assert cluster_to_shrink(5, clusters) == ("c", 0)
    assert cluster_to_shrink(1, []) is None
