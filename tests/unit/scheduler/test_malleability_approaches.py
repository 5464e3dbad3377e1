# SPDX-License-Identifier: Apache-2.0
"""Who comes first under PRA and PWA, and where room is made, on counts."""

from __future__ import annotations

from koala_adapter.scheduler.malleable.jobmanagement import Shrinkable, cluster_to_shrink
from koala_adapter.scheduler.parameters import Approach


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
