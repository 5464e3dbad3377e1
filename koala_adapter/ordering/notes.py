# SPDX-License-Identifier: Apache-2.0
"""Leaves with each waiting job its place and latest start, where its user looks anyway (``squeue -o %k``).

What a job shows is believed as it is listed, so nothing has to be kept over a restart. Each note is a request to the
batch system: they get a share of the requests, one goes after the other, and none holds up a decision or a start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import structlog

from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.model import LrmJobState
from koala_adapter.ordering.entries import Phase
from koala_adapter.ordering.listedjobs import WAITING, array_of
from koala_adapter.ordering.localminutes import LocalMinutes
from koala_adapter.ordering.queuenotes import Answer, NotedJob, changes_due
from koala_adapter.plugin.limits import RequestWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.mirror import Mirror
    from koala_adapter.ordering.queuenotes import NoteChange
    from koala_adapter.plugin import Lrm

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
