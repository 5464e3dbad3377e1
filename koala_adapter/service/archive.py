# SPDX-License-Identifier: Apache-2.0
"""Keeps the reports of finished jobs: at their end, when that is corrected, and when the last of them has come in."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from koala_adapter.model import JobId
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.journal import Journal


class Archive:
    """Reports of jobs that have ended, in the journal."""

    def __init__(
        self,
        journal: Journal,
        *,
        state: Callable[[], State],
        applications: Applications,
        make_report: Callable[[JobId], str],
        ending: Iterable[JobId],
    ) -> None:
        """``make_report`` returns JSON. ``ending``: jobs with an outcome whose placeholders are not all gone."""
        self._journal = journal
        self._state = state
        self._applications = applications
        self._make_report = make_report
        self._ending = set(ending)
        self._complete = False

    def catch_up(self) -> None:
        """Keep the reports of what had ended, or was corrected, before a kill. Raises JournalBlockedError."""
        for job_id, record in self._state().jobs.items():
            if record.outcome is not None and self._journal.finished.outcome(job_id) != asdict(record.outcome):
                self.keep(job_id)
        self._complete = True

    def conclude(self, unfinished: Iterable[JobId]) -> None:
        """Note at an orderly end that the reports of all jobs but the unfinished ones are kept.

        Raises JournalBlockedError.
        """
        if self._complete:
            self.close_over()
            self._journal.leave_closing_note(unfinished)

    def keep(self, job_id: JobId) -> None:
        """Keep the report of a finished job as it is now, in place of an earlier one. Raises JournalBlockedError."""
        record = self._state().jobs[job_id]
        finished_at = record.finished_at or self._state().now or 0.0
        self._journal.finished.keep(job_id, finished_at, self._make_report(job_id))

    def ended(self, job_id: JobId) -> None:
        """Keep the report of a job that has just ended. Raises JournalBlockedError."""
        self._applications.forget(job_id)
        self._ending.add(job_id)
        self.keep(job_id)

    def close_over(self) -> None:
        """Keep once more what is over: until its last placeholder was gone, files of its ranks have come in.

        Raises JournalBlockedError.
        """
        jobs = self._state().jobs
        for job_id in [id_ for id_ in self._ending if id_ not in jobs or not jobs[id_].live]:
            if job_id in jobs:
                self.keep(job_id)
            self._ending.discard(job_id)
            self._applications.results.forget(self._applications.directory / job_id)
