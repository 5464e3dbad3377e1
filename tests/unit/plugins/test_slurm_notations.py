# SPDX-License-Identifier: Apache-2.0
"""Slurm's notations: job ids of array elements, host lists, durations and points in time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import LrmNotFoundError
from koala_adapter.lrm.commands import portions
from koala_adapter.wire.hostlists import expand
from koala_slurm.words import (
    ARGUMENTS_PER_COMMAND,
    array_ids,
    array_index,
    compacted,
    duration,
    minutes,
    moment,
    waiting_elements,
)

ELEMENTS = st.sets(st.integers(min_value=0, max_value=3000))


def expanded(argument: str) -> set[str]:
    """Return the ids that an argument names, by an independent reading of the notation."""
    job, _, elements = argument.partition("_")
    if not elements:
        return {job}
    found = set()
    for item in elements.strip("[]").split(","):
        first, _, last = item.partition("-")
        found |= {f"{job}_{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_ids_of_an_array() -> None:
    """Ids come in the order of the indices, from 1."""
    assert array_ids("7", 3) == ("7_1", "7_2", "7_3")
    assert [array_index(job) for job in ("7_3", "7_0", "7", "7+1", "x")] == [3, 0, None, None, None]


@pytest.mark.parametrize(
    ("jobs", "arguments"),
    [
        ([], ()),
        (["5"], ("5",)),
        (["5_3"], ("5_3",)),
        (["5_1", "5_2", "5_3"], ("5_[1-3]",)),
        (["5_3", "5_1", "5_1"], ("5_[1,3]",)),
        (["5_1", "5_2", "6_7", "8", "5_9"], ("5_[1-2,9]", "6_7", "8")),
        (["5_1", "5"], ("5",)),
        (["7_1", "7_2"], ("7",)),
        (["7_2"], ("7_2",)),
        (["7_1", "7_2", "7_3"], ("7_[1-3]",)),
        (["9+1"], ("9+1",)),
    ],
)
def test_compacted(jobs: list[str], arguments: tuple[str, ...]) -> None:
    """Elements of one array share an argument; array 7, known to have two, is named as a whole only when it is."""
    assert compacted(jobs, {"7": 2, "6": 0}) == arguments


@given(st.dictionaries(st.integers(min_value=1, max_value=10**6), ELEMENTS, max_size=5))
def test_compacted_names_exactly_these(wanted: dict[int, set[int]]) -> None:
    """No job is lost and none is added, and an argument stays within bounds."""
    jobs = {f"{job}_{element}" for job, elements in wanted.items() for element in elements}
    arguments = compacted(sorted(jobs))
    assert set().union(*map(expanded, arguments)) == jobs
    assert all(len(argument) < 12_000 for argument in arguments)


@pytest.mark.parametrize(
    "wrong", ["", "x", "1 2", "1_", "_1", "1_2_3", "-1", "1;2", "1\n", "1_[2]", "9" * 20, "\uff11"]
)
def test_wrong_ids_do_not_reach_a_command(wrong: str) -> None:
    """What has not the form of an id names no job."""
    with pytest.raises(LrmNotFoundError):
        compacted(["1", wrong])


@pytest.mark.parametrize(
    ("waiting", "numbers"),
    [("1-4", [1, 2, 3, 4]), ("0,7-9%2", [0, 7, 8, 9]), ("10-20:5", [10, 15, 20]), ("2-9:3", [2, 5, 8])],
)
def test_waiting_elements(waiting: str, numbers: list[int]) -> None:
    """Ranges, single numbers, steps and a limit of running elements are understood."""
    assert list(waiting_elements(waiting)) == numbers


@pytest.mark.parametrize("waiting", ["", "1-4,...", "x", "1-", "1-9:0", "0-9999999", "1,,2"])
def test_waiting_elements_that_are_not_understood(waiting: str) -> None:
    """A list that was cut short, or an absurd one, is an error and never a part of the truth."""
    with pytest.raises(ValueError, match="array elements"):
        waiting_elements(waiting)


def test_chunks_are_complete_and_bounded() -> None:
    """Many arguments are spread over several commands, none lost."""
    arguments = [str(number) for number in range(2 * ARGUMENTS_PER_COMMAND + 1)]
    parts = list(portions(arguments, ARGUMENTS_PER_COMMAND))
    assert [len(part) for part in parts] == [ARGUMENTS_PER_COMMAND, ARGUMENTS_PER_COMMAND, 1]
    assert [argument for part in parts for argument in part] == arguments


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", ()),
        ("(null)", ()),
        ("None assigned", ()),
        ("n1", ("n1",)),
        ("n1,m2", ("n1", "m2")),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10,12]-ib,login1", ("n08-ib", "n09-ib", "n10-ib", "n12-ib", "login1")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("n[1-", ("n[1-",)),
        ("n[a-b]", ("n[a-b]",)),
        ("n[3-1]", ("n[3-1]",)),
        ("n[1-999999999]", ("n[1-999999999]",)),
        ("n[1-99999]m[1-99999]", ("n[1-99999]m[1-99999]",)),
    ],
)
def test_host_list(text: str, hosts: tuple[str, ...]) -> None:
    """Brackets are expanded with their leading zeros; what is nonsense stays as it is and costs nothing."""
    assert expand(text) == hosts


@given(st.text(alphabet="n[]-,0123456789", max_size=40))
def test_host_list_of_anything(text: str) -> None:
    """Any text is expanded within bounds, without an exception."""
    assert len(expand(text)) <= 100_000 * 40


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 300),
        ("05:30", 330),
        ("01:30:00", 5400),
        ("2-00:00:00", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("UNLIMITED", None),
        ("infinite", None),
        ("INVALID", None),
        ("", None),
        ("1-2-3", None),
        ("::", None),
    ],
)
def test_duration(text: str, seconds: int | None) -> None:
    """All of Slurm's forms of a duration are read; anything else is no limit."""
    assert duration(text) == seconds


@given(st.integers(min_value=1, max_value=10**8))
def test_minutes_cover_the_seconds(seconds: int) -> None:
    """Whole minutes are enough for the seconds, and less than one minute more."""
    assert 0 <= minutes(seconds) * 60 - seconds < 60


@pytest.mark.parametrize("text", ["N/A", "Unknown", "None", "0", "", "NONE", "2026-13-01T00:00:00", "yesterday"])
def test_no_point_in_time(text: str) -> None:
    """What is no point in time is None."""
    assert moment(text) is None


def test_point_in_time() -> None:
    """Seconds are taken as they are, ISO times as local time."""
    assert moment("1795258933") == 1795258933.0
    now = int(time.time())
    assert moment(time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))) == pytest.approx(now, abs=3600)


@given(st.text())
def test_point_in_time_of_anything(text: str) -> None:
    """Any text gives a number or None."""
    found = moment(text)
    assert found is None or re.search(r"[1-9]", text)
