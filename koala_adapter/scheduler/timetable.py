# SPDX-License-Identifier: Apache-2.0
"""Timers in the order in which they fire, and moving them when the clock or the service stood still.

A timer is kept only by the record that it concerns: setting it again replaces it, and it disappears with the record.
The order is made from the records. Entries that their record no longer keeps are skipped, so handlers of timers need
not check whether they still hold.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from koala_adapter.scheduler.sizechange import Change, ChangePhase
from koala_adapter.scheduler.timers import Due, Timer, TimerKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord, State


# -- Moving timers: downtime, postponement -------------------------------------------------------------------

AWAITS_AGENTS = frozenset(
    {
        TimerKind.REGISTRATION,
        TimerKind.WALLTIME,
        TimerKind.LIFE,
        TimerKind.CHANGE,
        TimerKind.LAST_RANKS,
        TimerKind.STAGING,
        TimerKind.RESERVATION,
    }
)
"""Timers that judge by what agents, and transfers of files, have not said."""


def advance(state: State, time: float) -> float:
    """Return the time of an event, at least that of the latest one."""
    state.now = time if state.now is None else max(state.now, time)
    return state.now


def give_time(state: State, timetable: Timetable, now: float) -> None:
    """Postpone timers that fell due while the service was down, until agents can have reported.

    An agent that could not report is not MISSING, ranks may have ended well in time, and the last processor may be
    there: first let them say so. What an application was asked is asked again when its agents are back: from then on it
    has all of its time for the answer.
    """
    _move_timers(state, lambda kind, at, placeholder: _after_downtime(state, kind, at, placeholder, now))
    _await_answers(state, now + state.parameters.registration_timeout + state.parameters.answer_timeout)
    timetable.rebuild()


def _await_answers(state: State, until: float) -> None:
    """Postpone the time-outs of offers to ``until`` at the earliest."""
    for change in (change for job in state.jobs.values() for change in job.changes.values()):
        if change.phase is ChangePhase.ASKED and change.due is not None:
            change.due = change.due._replace(at=max(change.due.at, until))


def postpone(state: State, timetable: Timetable, now: float, seconds: float) -> None:
    """Have the timers that are due fire ``seconds`` later."""
    _move_timers(state, lambda _kind, at, _placeholder: now + seconds if at <= now else at)
    timetable.rebuild()


def _after_downtime(
    state: State, kind: TimerKind, at: float, placeholder: PlaceholderRecord | None, now: float
) -> float:
    """Return the new time of a timer that was set before the service was down."""
    if kind in AWAITS_AGENTS and at <= now:
        return now + state.parameters.registration_timeout
    if kind is TimerKind.ENDING and placeholder is not None and placeholder.host:
        # Its agent may hold the last output of a job, and has yet to find out that the service is back.
        return max(at, now + state.parameters.registration_timeout)
    return at


def _move_timers(state: State, moved: Callable[[TimerKind, float, PlaceholderRecord | None], float]) -> None:
    """Move each timer to the time that ``moved`` returns."""
    if state.scan_due is not None:
        state.scan_due = state.scan_due._replace(at=moved(TimerKind.SCAN, state.scan_due.at, None))
    for placeholder in state.placeholders.values():
        for kind, due in placeholder.timers.items():
            placeholder.timers[kind] = due._replace(at=moved(kind, due.at, placeholder))
    for job in state.jobs.values():
        for kind, due in job.timers.items():
            job.timers[kind] = due._replace(at=moved(kind, due.at, None))
        for change in job.changes.values():
            if change.due is not None:
                change.due = change.due._replace(at=moved(TimerKind.CHANGE, change.due.at, None))


# -- The timetable -------------------------------------------------------------------------------------------


class Timetable:
    """Sets timers and finds the next one."""

    def __init__(self, state: State) -> None:
        """Put the timers that the records keep in order."""
        self._state = state
        self._heap: list[Timer] = []
        self._pause_ends: set[tuple[ClusterName | None, float]] = set()
        """Which pauses of clusters are in the heap, by their ends."""
        self.rebuild()

    def __len__(self) -> int:
        return sum(self._stands(timer) for timer in self._heap)

    def rebuild(self) -> None:
        """Rebuild the order of timers from the records."""
        self._heap = [*self._of_clusters(), *self._of_jobs()]
        heapq.heapify(self._heap)
        self._pause_ends = {(timer.cluster, timer.at) for timer in self._heap if timer.kind is TimerKind.PAUSE}

    def _of_jobs(self) -> Iterator[Timer]:
        state = self._state
        for job_id, record in state.jobs.items():
            for kind, due in record.timers.items():
                yield Timer(*due, kind, job_id=job_id)
            for change in record.changes.values():
                if change.due is not None:
                    yield Timer(*change.due, TimerKind.CHANGE, job_id=job_id)
        for id_, placeholder in state.placeholders.items():
            for kind, due in placeholder.timers.items():
                yield Timer(*due, kind, placeholder=id_)

    def _of_clusters(self) -> Iterator[Timer]:
        state = self._state
        if state.scan_due is not None:
            yield Timer(*state.scan_due, TimerKind.SCAN)
        for name, cluster in state.clusters.items():
            for at in dict.fromkeys(_pauses(cluster)):
                if state.now is None or at > state.now:
                    yield Timer(at, 0, TimerKind.PAUSE, cluster=name)

    # ---- setting --------------------------------------------------------------------------------------------------

    def for_job(self, record: JobRecord, kind: TimerKind, at: float) -> None:
        """Set a job's timer; replaces one of the same kind."""
        if kind not in record.timers or record.timers[kind].at != at:
            due = record.timers[kind] = self._numbered(at)
            heapq.heappush(self._heap, Timer(*due, kind, job_id=record.job.id))

    def for_placeholder(self, placeholder: PlaceholderRecord, kind: TimerKind, at: float) -> None:
        """Set a placeholder's timer; replaces one of the same kind."""
        if kind not in placeholder.timers or placeholder.timers[kind].at != at:
            due = placeholder.timers[kind] = self._numbered(at)
            heapq.heappush(self._heap, Timer(*due, kind, placeholder=placeholder.id))

    def for_change(self, record: JobRecord, change: Change, at: float) -> None:
        """Set the timer of a change."""
        change.due = self._numbered(at)
        heapq.heappush(self._heap, Timer(*change.due, TimerKind.CHANGE, job_id=record.job.id))

    def for_cluster(self, cluster: ClusterRecord, at: float) -> None:
        """Set the timer for the end of a cluster's pause."""
        timer = Timer(*self._numbered(at), TimerKind.PAUSE, cluster=cluster.parameters.name)
        if (timer.cluster, at) not in self._pause_ends:  # several pauses may end at one time
            self._pause_ends.add((timer.cluster, at))
            heapq.heappush(self._heap, timer)

    def for_scan(self, at: float) -> None:
        """Set the timer for the next scan of the queue."""
        due = self._state.scan_due = self._numbered(at)
        heapq.heappush(self._heap, Timer(*due, TimerKind.SCAN))

    def _numbered(self, at: float) -> Due:
        self._state.timers_set += 1
        return Due(at, self._state.timers_set)

    # ---- what comes next ------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float | None:
        """Time of the earliest timer; None without timers."""
        while self._heap and not self._stands(self._heap[0]):
            self._pop()
        return self._heap[0].at if self._heap else None

    def take_due(self, now: float) -> Timer | None:
        """Remove and return the earliest timer if its time has come."""
        at = self.next_at
        if at is None or at > now:
            return None
        timer = self._pop()
        self._take_from_record(timer)
        return timer

    def _pop(self) -> Timer:
        timer = heapq.heappop(self._heap)
        self._pause_ends.discard((timer.cluster, timer.at))
        return timer

    def _stands(self, timer: Timer) -> bool:
        """Return whether a timer is still the one that its record has."""
        state = self._state
        if timer.kind is TimerKind.SCAN:
            due = state.scan_due
        elif timer.cluster is not None:
            return timer.at in _pauses(state.clusters[timer.cluster])
        elif timer.placeholder is not None:
            placeholder = state.placeholders.get(timer.placeholder)
            due = None if placeholder is None else placeholder.timers.get(timer.kind)
        else:
            record = None if timer.job_id is None else state.jobs.get(timer.job_id)
            if timer.kind is TimerKind.CHANGE:
                return record is not None and change_due(record, timer) is not None
            due = None if record is None else record.timers.get(timer.kind)
        return due is not None and due.number == timer.number

    def _take_from_record(self, timer: Timer) -> None:
        state = self._state
        if timer.kind is TimerKind.SCAN:
            state.scan_due = None
        elif timer.placeholder is not None:
            del state.placeholders[timer.placeholder].timers[timer.kind]
        elif timer.job_id is not None and timer.kind is not TimerKind.CHANGE:
            del state.jobs[timer.job_id].timers[timer.kind]


def change_due(record: JobRecord, timer: Timer) -> Change | None:
    """Return the change of a timer; None when it is over."""
    for change in record.changes.values():
        if change.due is not None and change.due.number == timer.number:
            return change
    return None


def _pauses(cluster: ClusterRecord) -> list[float]:
    shrinking = (cluster.no_shrink_before, cluster.fruitless_until)
    growing = (cluster.no_growth_before, cluster.balanced_until)
    ends = (cluster.paused_until, cluster.first_look_until, *growing, *shrinking)
    doubts = (job.blocked_from for job in cluster.others_waiting)
    return [at for at in (*ends, *doubts) if at is not None]
