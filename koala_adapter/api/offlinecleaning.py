# SPDX-License-Identifier: Apache-2.0
"""Removes what is left of jobs that ended long ago, where no service runs that would do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.api.offline import recorded
from koala_adapter.api.statedirectory import JOURNAL_NAME, LOG_NAME, ownership
from koala_adapter.scheduler.events import JobsForgotten
from koala_adapter.service.cleaning import Cleaning
from koala_adapter.service.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.model import JobId
    from koala_adapter.scheduler.knownpolicies import Policies
    from koala_adapter.service.cleanreport import CleanReport


def clean(directory: Path, policies: Policies, *, older: float, dry_run: bool) -> CleanReport:
    """Remove what is left of jobs that ended more than ``older`` seconds ago, or only tell, where no service runs.

    Raises ServiceUnavailableError when there has never been one, ServiceRunningError when another process owns the
    directory, and ConfigurationError and JournalError as for :func:`read_record`.
    """
    if dry_run:
        return _clean(directory, policies, older=older, dry_run=True)
    recorded(directory, policies)  # before anything is made here
    with ownership(directory, "koala clean", way_out="try again in a moment"):
        return _clean(directory, policies, older=older, dry_run=False)


def _clean(directory: Path, policies: Policies, *, older: float, dry_run: bool) -> CleanReport:
    record = recorded(directory, policies)
    state = record.scheduler.state
    log = directory / LOG_NAME
    with Journal(directory / JOURNAL_NAME, read_only=dry_run) as journal:
        cleaning = Cleaning(directory, journal, state, older=older, now=record.now, log=log)
        chosen = cleaning.choose()
        if dry_run:
            return cleaning.tell(chosen)

        def forget(job_ids: tuple[JobId, ...]) -> None:
            # As of the latest event: what is due meanwhile is for the next service to see to, which can act on it.
            journal.append(JobsForgotten(time=state.now or 0.0, job_ids=job_ids))

        closed_well = journal.closed_well
        cleaning.give_up(chosen, forget)
        if closed_well:
            journal.leave_closing_note(record.unfinished)
        return cleaning.remove(chosen)
