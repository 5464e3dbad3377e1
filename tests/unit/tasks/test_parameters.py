# SPDX-License-Identifier: Apache-2.0
"""Parameters of sweeps: values as people write them, and the tasks that they make."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import Sweep, SweepAxis
from koala_adapter.tasks.sweep import Expansion, count_tasks, filled, lines_of, list_axis, range_axis


def values(text: str) -> list[str]:
    """Return what a range stands for."""
    axis = range_axis("a", text)
    assert axis is not None
    tasks = Expansion(Sweep(axes=(axis,)), {})
    return [tasks.row(task)["a"] for task in range(len(tasks))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1..3", ["1", "2", "3"]),
        ("3..1", ["3", "2", "1"]),
        ("0..10..5", ["0", "5", "10"]),
        ("0..1..0.25", ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ("-2..2..3", ["-2", "1"]),
        ("7..7", ["7"]),
        ("0.1..0.3..0.1", ["0.1", "0.2", "0.3"]),
    ],
)
def test_ranges(text: str, found: list[str]) -> None:
    """Both ends are values, and decimal fractions are exact."""
    assert values(text) == found


@pytest.mark.parametrize("text", ["1..3..0", "1..3..-1", "3..1..1"])
def test_a_range_without_end_is_refused(text: str) -> None:
    """Its step must lead from first to last."""
    with pytest.raises(ValueError, match="step leads"):
        range_axis("a", text)


@pytest.mark.parametrize("text", ["x", "1", "1..", "a..b", "1...3", ""])
def test_what_is_no_range(text: str) -> None:
    """It is something else, for others to refuse."""
    assert range_axis("a", text) is None


AXES = st.lists(st.lists(st.text("xyz", max_size=2), min_size=1, max_size=4), min_size=1, max_size=4)


@given(AXES)
def test_every_combination_is_a_task_once(lists: list[list[str]]) -> None:
    """In the order of nested loops; the numbers are those of the tasks."""
    axes = tuple(list_axis(f"p{number}", one) for number, one in enumerate(lists))
    tasks = Expansion(Sweep(axes=axes), {})
    assert len(tasks) == count_tasks(axes, together=False)
    assert [tuple(tasks.row(task).values()) for task in range(len(tasks))] == list(product(*lists))


@given(st.integers(1, 5), st.integers(1, 4))
def test_values_taken_together(count: int, axes: int) -> None:
    """The first ones are a task, then the second ones."""
    made = tuple(list_axis(f"p{axis}", [f"{axis}-{one}" for one in range(count)]) for axis in range(axes))
    tasks = Expansion(Sweep(axes=made, together=True), {})
    found = [list(tasks.row(task).values()) for task in range(len(tasks))]
    assert found == [[f"{axis}-{one}" for axis in range(axes)] for one in range(count)]


def test_a_table_is_one_parameter() -> None:
    """Its columns stay together, beside others."""
    table = SweepAxis(names=("a", "b"), count=2, rows=(("1", "x"), ("2", "y")))
    tasks = Expansion(Sweep(axes=(table, list_axis("c", ["p", "q"]))), {})
    assert [tasks.row(one) for one in range(len(tasks))] == [
        {"a": "1", "b": "x", "c": "p"},
        {"a": "1", "b": "x", "c": "q"},
        {"a": "2", "b": "y", "c": "p"},
        {"a": "2", "b": "y", "c": "q"},
    ]


def test_lines_of_a_file() -> None:
    """Empty lines are none; a file that has changed is refused."""
    lines = lines_of(b"one\n\ntwo words\n")
    axis = SweepAxis(names=("name",), count=2, file="/f")
    assert Expansion(Sweep(axes=(axis,)), {"/f": lines}).row(1) == {"name": "two words"}
    with pytest.raises(ConfigurationError, match="has 1 lines, and had 2"):
        Expansion(Sweep(axes=(axis,)), {"/f": ["one"]})


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("\ufeffone\ntwo", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("a\u0085b\nc\u2028d\ne\x0cf\ng\x1ch", ["a\u0085b", "c\u2028d", "e\x0cf", "g\x1ch"]),
        ("a\rb", ["a\rb"]),
    ],
)
def test_lines_end_at_line_feeds_alone(content: str, values: list[str]) -> None:
    """A byte-order mark is not part of the first value, and no other character cuts a value in two."""
    assert lines_of(content.encode()) == values


def test_only_parameters_give_way() -> None:
    """Other braces are the program's own; a value is not looked into again."""
    row = {"a": "{b}", "b": "2"}
    assert list(filled(["awk", "{print $1} {a}{b} {c}", "{b}"], row)) == ["awk", "{print $1} {b}2 {c}", "2"]
