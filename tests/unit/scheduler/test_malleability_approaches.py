# SPDX-License-Identifier: Apache-2.0
"""PRA, PWA, the threshold, and growth that an application asks for, on counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.scheduler.malleable.approaches import (
    Approach,
    Shrinkable,
    cluster_to_shrink,
    grow_on_request,
    growth_allowed,
)
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES
from tests.unit.scheduler.test_malleability import SCENES, Bounds, Scene


def request(scene: Scene, job: int, wanted: int, allowed: int, *, mandatory: bool, policy: str = "egs") -> int:
    """Let a job ask for more."""
    return grow_on_request(
        MALLEABILITY_POLICIES[policy],
        scene.running,
        scene.jobs[job],
        wanted,
        allowed=allowed,
        mandatory=mandatory,
        ask=scene.ask,
    )


def test_who_comes_first() -> None:
    """PRA prefers the running, PWA the waiting and alone shrinks for them; without an approach nobody is touched."""
    assert [a for a in Approach if a.running_first] == [Approach.PRA]
    assert [a for a in Approach if a.shrinks_for_waiting] == [Approach.PWA]


@pytest.mark.parametrize(
    ("idle", "managed", "threshold", "allowed"),
    [(10, 20, 0, 10), (10, 20, 5, 10), (10, 20, 15, 5), (10, 20, 25, 0), (0, 20, 0, 0), (-3, 0, 0, 0)],
)
def test_threshold_bounds_all_managed_jobs_together(idle: int, managed: int, threshold: int, allowed: int) -> None:
    """Of 40 processors the threshold stays free, whatever is idle."""
    assert growth_allowed(idle=idle, managed=managed, processors=40, threshold=threshold) == allowed


def test_room_is_made_where_least_is_taken() -> None:
    """For 8 processors, B has most free of those where it is enough; A has more spare, C more free but too little."""
    clusters = [("a", Shrinkable(2, 20)), ("b", Shrinkable(4, 4)), ("c", Shrinkable(5, 2))]
    assert cluster_to_shrink(8, clusters) == ("b", 4)
    assert cluster_to_shrink(9, clusters) == ("a", 7)
    assert cluster_to_shrink(23, clusters) is None
    assert cluster_to_shrink(5, clusters) == ("c", 0)
    assert cluster_to_shrink(1, []) is None


def test_voluntary_wish_gets_what_is_free() -> None:
    """Nobody is shrunk for it."""
    scene = Scene((2, 4, 9), (2, 9, 9))
    assert request(scene, 0, 5, 3, mandatory=False) == 3
    assert scene.sizes == [7, 9]
    assert scene.said == []


def test_mandatory_wish_shrinks_others() -> None:
    """Of 5 wanted 1 is free; the others give 2 each by EGS, the asking job pays nothing."""
    scene = Scene((2, 9, 9), (2, 4, 9), (2, 9, 9))
    assert request(scene, 1, 5, 1, mandatory=True) == 5
    assert scene.said == [(0, -2, -2), (2, -2, -2)]
    assert scene.sizes == [7, 9, 7]


def test_mandatory_wish_shrinks_nobody_in_vain() -> None:
    """When all others together cannot give what is missing, it is treated as a voluntary one."""
    scene = Scene((2, 4, 9), (2, 3, 9))
    assert request(scene, 0, 5, 2, mandatory=True) == 2
    assert scene.said == []
    assert scene.sizes == [6, 3]


def test_a_wish_ends_at_the_maximum() -> None:
    """No job gets more than its maximum, and none is shrunk for what cannot be used."""
    scene = Scene((2, 4, 6), (2, 9, 9))
    assert request(scene, 0, 50, 2, mandatory=True) == 2
    assert scene.said == []


@given(bounds=SCENES.filter(bool), wanted=st.integers(0, 40), allowed=st.integers(0, 20), mandatory=st.booleans())
def test_wishes_keep_all_bounds(
    bounds: list[Bounds],
    wanted: int,
    allowed: int,
    mandatory: bool,  # noqa: FBT001 - given by name
) -> None:
    """Nobody leaves its bounds, and no more than what is allowed is added in all."""
    scene = Scene(*bounds)
    before = scene.sizes
    got = request(scene, 0, wanted, allowed, mandatory=mandatory, policy="fpsma")
    assert scene.sizes[0] == before[0] + got <= scene.jobs[0].maximum
    assert all(job.size >= job.minimum for job in scene.jobs)
    assert sum(scene.sizes) - sum(before) <= allowed
    assert mandatory or scene.sizes[1:] == before[1:]
