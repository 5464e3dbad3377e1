# SPDX-License-Identifier: Apache-2.0
"""What waiting jobs are to say of their place and start, and which of that is worth a request now. Pure.

A note is one line of text. What a job shows is read back from it, so a scheduler that was started anew writes nothing
that is right already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import LrmJobId

EXACT_PLACES = 10
"""So many places at the head of a queue are told exactly; of those behind, a change by more than one in ten matters."""
START_STEP = 120.0
"""Seconds by which a start must have moved before that is told, or a tenth of the time until then if that is more."""

_NOT_QUEUED = "not in the queue"
_NOTE = re.compile(
    rf"(?:place (?P<place>[1-9][0-9]{{0,9}})(?:, starts by (?P<start>[0-9 :-]+))?|{_NOT_QUEUED})"
    r", as of (?P<written>[0-9 :-]+)",
    re.ASCII,
)


class Minutes(Protocol):
    """How times of day are written, in whole minutes."""

    def __hash__(self) -> int:
        """Tell ways of writing apart."""

    def text(self, time: float) -> str:
        """Return the minute of a time."""

    def time(self, text: str) -> float | None:
        """Return the beginning of a minute; None for what is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Where a job stands."""

    place: int | None
    """Its place in the queue, from 1; None: it is not in the queue now."""
    start: float | None = None
    """Its latest start, by the time of day; None: nothing is promised yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedJob:
    """A job, what it shows, and what it should."""

    job: LrmJobId
    shown: str
    answer: Answer | None
    """None: it runs, and is to show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteChange:
    """A note to be written, or taken away."""

    job: LrmJobId
    text: str
    """Empty: it is taken away."""


def note_text(answer: Answer, minutes: Minutes, *, now: float) -> str:
    """Return the note of a job. A start is rounded up to minutes."""
    if answer.place is None:
        said = _NOT_QUEUED
    elif answer.start is None:
        said = f"place {answer.place}"
    else:
        said = f"place {answer.place}, starts by {minutes.text(ceil(answer.start / 60) * 60)}"
    return f"{said}, as of {minutes.text(now)}"


@lru_cache(maxsize=65_536)
def read_note(text: str, minutes: Minutes) -> Answer | None:
    """Return what a note says; None: it says nothing, or is not of this kind."""
    match = _NOTE.fullmatch(text)
    if match is None or minutes.time(match["written"]) is None:
        return None
    start = None if match["start"] is None else minutes.time(match["start"])
    if start is None and match["start"] is not None:
        return None
    return Answer(place=None if match["place"] is None else int(match["place"]), start=start)


def is_outdated(told: Answer, answer: Answer, *, now: float) -> bool:
    """Tell whether what a job shows is wrong enough to be written anew."""
    if told.place is None or answer.place is None:
        return told.place is not answer.place
    moved = abs(answer.place - told.place)
    nearest = min(answer.place, told.place)
    if moved > (0 if nearest <= EXACT_PLACES else nearest / 10):
        return True
    if told.start is None or answer.start is None:
        return told.start is not answer.start
    return abs(answer.start - told.start) > max(START_STEP, (answer.start - now) / 10)


def changes_due(jobs: Iterable[NotedJob], minutes: Minutes, *, now: float, most: int) -> list[NoteChange]:
    """Return the notes to be written now, ``most`` of them at most, ``now`` by the time of day.

    First what is wrong at the head of the queue, then jobs that were told nothing yet and those that show a place and
    have none, then what is wrong further behind; each in the order of the queue.
    """
    found: list[tuple[int, float, NotedJob]] = []
    for job in jobs:
        rank = _rank(job, minutes, now)
        if rank is not None:
            place = job.answer.place if job.answer is not None else None
            found.append((rank, inf if place is None else place, job))
    found.sort(key=lambda one: one[:2])
    return [
        NoteChange(job=job.job, text="" if job.answer is None else note_text(job.answer, minutes, now=now))
        for _, _, job in found[: max(0, most)]
    ]


def _rank(job: NotedJob, minutes: Minutes, now: float) -> int | None:
    """Return how soon a job comes to its turn, the lowest first; None: nothing is to be written."""
    if job.answer is None or job.answer.place is None:
        if not job.shown:
            return None
        told = read_note(job.shown, minutes)
        return None if job.answer is not None and told is not None and told.place is None else 1
    head = job.answer.place <= EXACT_PLACES
    told = read_note(job.shown, minutes)
    if told is None:
        return 0 if head else 1
    if not is_outdated(told, job.answer, now=now):
        return None
    return 0 if head else 2
