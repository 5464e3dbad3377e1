# SPDX-License-Identifier: Apache-2.0
"""Notes in the comments of waiting jobs: place in the queue and latest start, written to the batch system.

In this order: times of day in whole minutes, the writer, and the rules that decide which note is worth a request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from math import ceil, inf
from typing import TYPE_CHECKING, Protocol, cast

import structlog

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.lrm.rate import RequestWindow
from koala_adapter.model import LrmJobState
from koala_adapter.ordering.jobs import WAITING, Phase, array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import tzinfo

    from koala_adapter.lrm import Lrm
    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.mirror import Mirror


# -- Times of day in whole minutes, in one time zone ---------------------------------------------------------

_FORM = "%Y-%m-%d %H:%M"


@dataclass(frozen=True, slots=True)
class LocalMinutes:
    """Writes times such as ``2026-11-23 15:27``, and reads them."""

    zone: tzinfo | None = None
    """None: that of this host."""

    def text(self, time: float) -> str:
        """Return the minute of a time (seconds since the epoch)."""
        return datetime.fromtimestamp(time, self.zone).strftime(_FORM)

    def time(self, text: str) -> float | None:
        """Return the beginning of a minute; None for what is none."""
        try:
            return datetime.strptime(text, _FORM).replace(tzinfo=self.zone).timestamp()
        except (ValueError, OverflowError, OSError):
            return None


# -- The writer of notes -------------------------------------------------------------------------------------
# Users see the notes in the listings of the batch system (``squeue -o %k``).
#
# The note that a job shows is taken from the listing, so nothing has to be kept over a restart. Each note is a
# request to the batch system: notes get a share of the requests, go one after the other, and delay neither a decision
# nor a start.

SHARE = 10
"""One in so many requests may be a note."""
AT_ONCE = 20
"""Notes that are decided on together: what comes next may be worth more by then."""
AGAIN = 20.0
"""Seconds before the note of a job is changed again."""
REFUSED = 600.0
"""Seconds before that is tried again when the batch system did not want it."""
RUNNING = frozenset({LrmJobState.RUNNING, LrmJobState.SUSPENDED})

log = structlog.get_logger()


class NoteWriter:
    """Keeps what the jobs of one batch system show in step with its queue."""

    def __init__(self, lrm: Lrm, *, requests_per_minute: int, clock: Callable[[], float]) -> None:
        """``requests_per_minute``: the bound for everything that is asked; ``clock``: that of the listings."""
        self._lrm = lrm
        self._window = RequestWindow(requests_per_minute // SHARE)
        self._clock = clock
        self._minutes = LocalMinutes()
        self._not_before: dict[str, float] = {}
        """When the note of a job, or of its array, may be written again; a listing that is older is not believed."""
        self._busy = False
        self._refused = False

    def due(self, mirror: Mirror) -> list[NoteChange]:
        """Return what is to be written now, as the last listing and the last decision have it."""
        listing = mirror.listing
        if self._busy or listing is None or mirror.standings is None:
            return []
        if self._window.wait(self._clock(), urgent=True):
            return []
        self._not_before = {key: time for key, time in self._not_before.items() if time > listing.read_at}
        jobs = (job for job in noted_jobs(mirror, listing.offset) if _key(mirror, job.job) not in self._not_before)
        return changes_due(jobs, self._minutes, now=listing.time_of_day, most=AT_ONCE)

    async def write(self, mirror: Mirror, changes: list[NoteChange]) -> None:
        """Write notes; those that find no room within the bound are left for later."""
        self._busy = True
        try:
            for change in changes:
                now = self._clock()
                if self._window.wait(now, urgent=True):
                    break
                self._window.record(now)
                if not await self._write(mirror, change):
                    break
        finally:
            self._busy = False

    async def _write(self, mirror: Mirror, change: NoteChange) -> bool:
        """Write one note; return False when the batch system does not answer."""
        ids = _together(mirror, change.job)
        if not ids:
            # It has gone, or was started, since that was decided.
            return True
        pause, answered = AGAIN, True
        try:
            await self._lrm.annotate(ids, change.text)
        except LrmUnavailableError as error:
            log.warning("a job's note may not have been written", job=change.job, error=str(error))
            answered = False
        except LrmError as error:
            self._tell_refusal(change.job, error)
            pause = REFUSED
        except Exception:
            # A defect of a plugin costs the notes, not the queue.
            log.exception("a plugin failed", job=change.job)
            pause = REFUSED
        self._not_before[_key(mirror, change.job)] = self._clock() + pause
        return answered

    def _tell_refusal(self, job: LrmJobId, error: LrmError) -> None:
        level = log.debug if self._refused else log.warning
        level("a job's note was refused; its user is told nothing", job=job, error=str(error))
        self._refused = True


def noted_jobs(mirror: Mirror, offset: float) -> Iterator[NotedJob]:
    """Yield the jobs that have a place, and those that show one without having it; of an array its first element.

    ``offset``: seconds to add to a time of our clock for the time of day.
    """
    entries, placed, arrays = mirror.entries, set[str](), set[str]()
    for local, place, start in mirror.standings.waiting() if mirror.standings is not None else ():
        entry = entries.get(cast("LrmJobId", local.id))
        if entry is None or entry.phase is not Phase.WAITING or entry.local is not local or entry.job.note is None:
            continue
        placed.add(entry.job.id)
        array = array_of(entry.job)
        if array is not None:
            if array in arrays:
                continue
            arrays.add(array)
        answer = Answer(place=place or None, start=None if start is None or not place else start + offset)
        yield NotedJob(job=entry.job.id, shown=entry.job.note, answer=answer)
    for job_id, entry in entries.items():
        if not entry.job.note or job_id in placed or entry.phase is Phase.STARTING:
            continue
        if entry.job.state in RUNNING:
            yield NotedJob(job=job_id, shown=entry.job.note, answer=None)
        elif entry.job.state in WAITING and array_of(entry.job) not in arrays:
            if (array := array_of(entry.job)) is not None:
                arrays.add(array)
            yield NotedJob(job=job_id, shown=entry.job.note, answer=Answer(place=None))


def _key(mirror: Mirror, job: LrmJobId) -> str:
    """Return what is the same for all jobs that get a note together."""
    entry = mirror.entries.get(job)
    waits = entry is not None and entry.job.state in WAITING
    return (array_of(entry.job) if entry is not None and waits else None) or job


def _together(mirror: Mirror, job: LrmJobId) -> list[LrmJobId]:
    """Return the jobs that get a note together: one, or all waiting elements of its array."""
    entry = mirror.entries.get(job)
    if entry is None or entry.phase is Phase.STARTING:
        return []
    array = array_of(entry.job) if entry.job.state in WAITING else None
    if array is None:
        return [job]
    return [
        other.job.id
        for other in mirror.entries.values()
        if other.job.state in WAITING and other.phase is not Phase.STARTING and array_of(other.job) == array
    ]


# -- Rules: the note of each job, and which notes are due (pure) ---------------------------------------------
# A note is one line of text. It is parsed when a job shows it, so a restarted scheduler does not rewrite notes that
# are still right.

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
