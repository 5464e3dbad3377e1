# SPDX-License-Identifier: Apache-2.0
"""What the journal says without a service: read only, and replayed.

Nothing here changes anything, nor what a service that runs meanwhile believes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.adapters import adapter_of
from koala_adapter.api.cleaned import require_not_cleaned
from koala_adapter.api.negotiated import negotiated
from koala_adapter.api.reportbuilder import BY_THEMSELVES, job_report
from koala_adapter.api.reports import JobReport, in_order
from koala_adapter.api.statedirectory import JOURNAL_NAME
from koala_adapter.driver.recovery import rebuilt
from koala_adapter.errors import JobNotFoundError, ServiceUnavailableError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.scheduler import Scheduler
from koala_adapter.service.defects import SetAside, sentences
from koala_adapter.service.journal import Journal
from koala_adapter.service.neededpolicies import WithPolicies
from koala_adapter.service.results import read_ledger
from koala_adapter.service.sweepfiles import recorded_progress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from koala_adapter.api.negotiationreports import NegotiationReport
    from koala_adapter.model import JobId
    from koala_adapter.scheduler.knownpolicies import Policies

NO_INSTANCE = "00000000"
"""Stands for the name that a state directory gets when its first service starts."""


@dataclass(slots=True, kw_only=True)
class JournalView:
    """What the journal of a state directory says, as of one moment."""

    directory: Path
    scheduler: Scheduler = field(default_factory=Scheduler)
    instance: str = NO_INSTANCE
    port: int = 0
    """Where the control center listened last; 0: never."""
    archived: Mapping[str, JobReport] = field(default_factory=dict)
    """Finished jobs by id, oldest first."""
    clock: ServiceClock = field(default_factory=ServiceClock)
    set_aside: tuple[SetAside, ...] = ()
    """Events on which the scheduler failed."""

    @property
    def now(self) -> float:
        """The present time by the clock of the service whose journal it is."""
        return self.clock.now()

    @property
    def unfinished(self) -> list[JobId]:
        """Jobs that have no outcome yet or whose placeholders are not all gone."""
        jobs = self.scheduler.state.jobs.items()
        return [id_ for id_, record in jobs if not record.state.final or record.live]

    def defects(self) -> list[str]:
        """Return what is to be told of the events on which koala failed of late."""
        return sentences(self.set_aside, self.now)

    def job(self, job_id: str) -> JobReport:
        """Return the report of a job. Raises JobNotFoundError."""
        try:
            record = self.scheduler.job(job_id)
        except JobNotFoundError:
            if job_id in self.archived:
                return self.archived[job_id]
            if (self.directory / JOURNAL_NAME).exists():
                with Journal(self.directory / JOURNAL_NAME, read_only=True) as journal:
                    require_not_cleaned(journal, job_id, self.clock.offset)
            raise
        directory = self.directory / "jobs" / record.job.id
        with Journal(self.directory / JOURNAL_NAME, read_only=True) as journal:
            said = negotiated(journal.negotiations, record, self.now)
        return job_report(
            self.scheduler,
            record,
            now=self.now,
            wall_offset=self.clock.offset,
            output_directory=str(directory),
            trouble=self.archived[job_id].trouble if job_id in self.archived else "",
            negotiated=said,
            files=read_ledger(directory),
            sweep=recorded_progress(self.directory / "jobs", record.job),
            concluded=record.state in BY_THEMSELVES and not record.live,
        )

    def negotiations(self, *, job_id: str = "", number: int = 0, limit: int = 50) -> list[NegotiationReport]:
        """Return the latest negotiations as the journal has them now; as `Client.negotiations`."""
        from koala_adapter.api.negotiationbuilder import negotiation_reports

        with Journal(self.directory / JOURNAL_NAME, read_only=True) as journal:
            return negotiation_reports(
                journal.negotiations,
                self.scheduler.state,
                job_id=job_id,
                number=number,
                limit=limit,
                wall_offset=self.clock.offset,
            )

    def jobs(self, limit: int) -> list[JobReport]:
        """Return the latest jobs in order of submission."""
        live = {str(id_): self.job(id_) for id_ in self.scheduler.state.jobs}
        return sorted({**self.archived, **live}.values(), key=in_order)[-limit:]


def read_record(directory: Path, policies: Policies, *, archived: int = 0) -> JournalView:
    """Read the journal of a state directory, with so many finished jobs; an empty record when there is none.

    Raises JournalError, and ConfigurationError when a policy that the journal needs is not among ``policies``.
    """
    if not (directory / JOURNAL_NAME).exists():
        return JournalView(directory=directory, scheduler=Scheduler(policies=policies))
    with Journal(directory / JOURNAL_NAME, read_only=True) as journal:
        scheduler = rebuilt(WithPolicies(journal, policies), partial(Scheduler, policies=policies))
        reports = [adapter_of(JobReport).validate_json(text) for text in reversed(journal.finished.latest(archived))]
        return JournalView(
            directory=directory,
            scheduler=scheduler,
            clock=ServiceClock(before=journal.clock_reading(), latest=scheduler.state.now),
            instance=journal.value("instance") or NO_INSTANCE,
            port=int(journal.value("port") or "0"),
            archived={report.id: report for report in reports},
            set_aside=tuple(journal.events_set_aside()),
        )


def recorded(directory: Path, policies: Policies, *, archived: int = 0) -> JournalView:
    """Read the journal of a state directory in which a service has run. Raises ServiceUnavailableError otherwise."""
    if not (directory / JOURNAL_NAME).exists():
        message = f"no koala service runs in {directory}, and none ever has"
        raise ServiceUnavailableError(message, hint="run a job with `koala run JOB`, or start one with `koala serve`")
    return read_record(directory, policies, archived=archived)
