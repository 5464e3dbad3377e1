# SPDX-License-Identifier: Apache-2.0
"""The reports of the jobs that a running service has in its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.api.negotiated import negotiated
from koala_adapter.api.reportbuilder import job_report
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from koala_adapter.api.reports import JobReport
    from koala_adapter.model import JobId
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.service import Service

BY_THEMSELVES = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States of jobs whose processes ended when they pleased."""


def live_report(service: Service, job_id: JobId) -> JobReport:
    """Return the report of a job as it is now. Raises JobNotFoundError."""
    directory = service.applications.directory / job_id
    record = service.scheduler.job(job_id)
    return job_report(
        service.scheduler,
        record,
        now=service.now(),
        wall_offset=service.clock.offset,
        output_directory=str(directory),
        warned=service.sizes.warned(job_id),
        trouble=_trouble(service, job_id),
        negotiated=negotiated(service.journal.negotiations, record, service.now()),
        files=service.applications.results.concluded(directory),
        sweep=service.sweeps.progress(record.job),
        concluded=record.state in BY_THEMSELVES and not (record.live and _in_contact(service, record)),
    )


def report_to_keep(service: Service, job_id: JobId) -> str:
    """Return the report of a job that has ended, as JSON."""
    return live_report(service, job_id).to_json()


def _in_contact(service: Service, record: JobRecord) -> bool:
    """Tell whether an agent of a job is connected, which may have something to say yet."""
    placeholders = service.state.placeholders
    connected = (placeholders.get(id_) for id_ in service.reception.connected)
    return any(one is not None and one.job_id == record.job.id for one in connected)


def _trouble(service: Service, job_id: JobId) -> str:
    over = service.state.jobs[job_id].state.final
    journal = f"Nothing is decided until this is over: {service.trouble}." if service.trouble else ""
    unwritten = service.applications.unwritten.trouble(job_id, over=over)
    return " ".join(filter(None, (service.sizes.complaint(job_id), unwritten, journal)))
