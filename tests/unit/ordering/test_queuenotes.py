# SPDX-License-Identifier: Apache-2.0
"""What waiting jobs say of their place: it can be read back, is written when it is wrong, and settles."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.model import LrmJobId
from koala_adapter.ordering.notes import (
    EXACT_PLACES,
    START_STEP,
    Answer,
    LocalMinutes,
    NotedJob,
    changes_due,
    is_outdated,
    note_text,
    read_note,
)

MINUTES = LocalMinutes(UTC)
NOW = datetime(2026, 11, 23, 14, 5, 30, tzinfo=UTC).timestamp()

places = st.integers(min_value=1, max_value=1_000_000)
starts = st.none() | st.floats(min_value=NOW, max_value=NOW + 10_000_000)
answers = st.builds(Answer, place=places, start=starts) | st.just(Answer(place=None))


def noted(number: int, answer: Answer | None, shown: str = "") -> NotedJob:
    """Return a job that shows something and should show something."""
    return NotedJob(job=LrmJobId(str(number)), shown=shown, answer=answer)


def said(answer: Answer) -> str:
    """Return the note that says so now."""
    return note_text(answer, MINUTES, now=NOW)


def due(*jobs: NotedJob, most: int = 100, now: float = NOW) -> list[tuple[str, str]]:
    """Return what is to be written now."""
    return [(change.job, change.text) for change in changes_due(jobs, MINUTES, now=now, most=most)]


def test_a_note_says_place_start_and_its_own_time() -> None:
    """A start is rounded up, as it is the latest; without a promise there is none, without a place neither."""
    start = NOW + 3600
    assert said(Answer(place=3, start=start)) == "place 3, starts by 2026-11-23 15:06, as of 2026-11-23 14:05"
    assert said(Answer(place=3)) == "place 3, as of 2026-11-23 14:05"
    assert said(Answer(place=None)) == "not in the queue, as of 2026-11-23 14:05"


@given(answers)
def test_a_note_can_be_read_back(answer: Answer) -> None:
    """What was written is not written again, although it is said in minutes only; and every LRM can keep it."""
    text = said(answer)
    told = read_note(text, MINUTES)
    assert told is not None
    assert told.place == answer.place
    assert not is_outdated(told, answer, now=NOW)
    assert due(noted(1, answer, text)) == []
    assert text.isascii()
    assert text.isprintable()
    assert not set(text) & set("\"'[]{}=;\\")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mine",
        "place 0, as of 2026-11-23 14:05",
        "place 3",
        "place 3, as of 2026-13-23 14:05",
        "place 3, starts by never, as of 2026-11-23 14:05",
        "place 3, starts by 2026-11-23 14:05:06, as of 2026-11-23 14:05",
    ],
)
def test_what_is_no_note_is_replaced(text: str) -> None:
    """Nothing is concluded from it."""
    assert read_note(text, MINUTES) is None
    assert due(noted(1, Answer(place=3), text)) == [("1", said(Answer(place=3)))]


@pytest.mark.parametrize(
    ("told", "now", "outdated"),
    [
        (Answer(place=3), Answer(place=2), True),
        (Answer(place=12), Answer(place=10), True),
        (Answer(place=200), Answer(place=185), False),
        (Answer(place=200), Answer(place=170), True),
        (Answer(place=3), Answer(place=3, start=NOW + 60), True),
        (Answer(place=3, start=NOW + 60), Answer(place=3), True),
        (Answer(place=3, start=NOW + 600), Answer(place=3, start=NOW + 600 - START_STEP), False),
        (Answer(place=3, start=NOW + 600), Answer(place=3, start=NOW + 600 + START_STEP + 1), True),
        (Answer(place=3, start=NOW + 36_000), Answer(place=3, start=NOW + 33_000), False),
        (Answer(place=3, start=NOW + 36_000), Answer(place=3, start=NOW + 30_000), True),
        (Answer(place=None), Answer(place=3), True),
        (Answer(place=3), Answer(place=None), True),
    ],
)
def test_what_matters(told: Answer, now: Answer, *, outdated: bool) -> None:
    """Places at the head of the queue are exact; behind, and of starts, only large differences matter."""
    assert is_outdated(told, now, now=NOW) is outdated


def test_the_head_of_the_queue_comes_first_and_then_who_was_told_nothing() -> None:
    """Within the same, in the order of the queue; jobs that run are to show nothing."""
    wrong = said(Answer(place=1_000))
    jobs = [
        noted(1, Answer(place=500), wrong),
        noted(2, Answer(place=400), wrong),
        noted(3, Answer(place=300)),
        noted(4, Answer(place=None), wrong),
        noted(5, None, wrong),
        noted(6, Answer(place=200)),
        noted(7, Answer(place=EXACT_PLACES), wrong),
        noted(8, Answer(place=1)),
        noted(9, None),
        noted(10, Answer(place=None)),
    ]
    assert [job for job, _ in due(*jobs)] == ["8", "7", "6", "3", "4", "5", "2", "1"]
    assert dict(due(*jobs))["5"] == ""
    assert dict(due(*jobs))["4"].startswith("not in the queue")
    assert [job for job, _ in due(*jobs, most=2)] == ["8", "7"]
    assert due(*jobs, most=0) == []


shown_texts = st.just("") | st.text(max_size=20) | answers.map(said)


@given(st.lists(st.tuples(st.none() | answers, shown_texts), max_size=40), st.integers(min_value=1, max_value=7))
def test_it_settles_within_the_bound(jobs: list[tuple[Answer | None, str]], most: int) -> None:
    """Never more than so many at once, none twice, and after enough of them all is right and nothing is written."""
    shown = {str(number): noted(number, answer, text) for number, (answer, text) in enumerate(jobs)}
    written: list[str] = []
    for _ in range(len(jobs) // most + 1):
        changes = due(*shown.values(), most=most)
        assert len(changes) <= most
        for job, text in changes:
            shown[job] = replace(shown[job], shown=text)
            written.append(job)
    assert due(*shown.values()) == []
    assert len(written) == len(set(written))
    for one in shown.values():
        if one.answer is None:
            assert one.shown == ""
        elif one.answer.place is not None:
            told = read_note(one.shown, MINUTES)
            assert told is not None
            assert not is_outdated(told, one.answer, now=NOW)
