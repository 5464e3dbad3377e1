# SPDX-License-Identifier: Apache-2.0
"""What is due first, of many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.service.sizes.jobs import Deadlines


def test_the_first_one_is_due_first_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, at in (("late", 9.0), ("soon", 2.0), ("next", 5.0)):
        deadlines.set(key, at)
    assert deadlines.first() == 2.0
    assert deadlines.due(5.0) == ["soon", "next"]
    assert (deadlines.due(5.0), deadlines.first(), len(deadlines)) == ([], 9.0, 1)


def test_another_time_takes_the_place_of_the_earlier_one() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("a", 7.0)
    deadlines.set("b", 3.0)
    deadlines.set("b", None)
    assert deadlines.due(6.0) == []
    assert deadlines.due(7.0) == ["a"]


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.integers(0, 9)), max_size=300))
def test_it_is_as_a_look_at_all_would_have_it(changes: list[tuple[int, int | None]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    plain: dict[int, int] = {}
    for key, at in changes:
        deadlines.set(key, at)
        plain.pop(key, None)
        if at is not None:
            plain[key] = at
        assert deadlines.first() == min(plain.values(), default=None)
    assert sorted(deadlines.due(5)) == sorted(key for key, at in plain.items() if at <= 5)
    assert len(deadlines) == sum(at > 5 for at in plain.values())
