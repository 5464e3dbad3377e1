# SPDX-License-Identifier: Apache-2.0
"""The reports of the jobs that a running service has in its state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.api.negotiated import negotiated
from koala_adapter.api.reportbuilder import BY_THEMSELVES, job_report

if TYPE_CHECKING:
    from koala_adapter.api.reports import JobReport
    from koala_adapter.model import JobId
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.service import Service


def live_report(service: Service, job_id: JobId, *, to_keep: bool = False) -> JobReport:
    """Return the report of a job as it is now; ``to_keep``: without what will pass. Raises JobNotFoundError."""
    directory = service.applications.directory / job_id
    record = service.scheduler.job(job_id)
    return job_report(
        service.scheduler,
        record,
        now=service.now(),
        wall_offset=service.clock.offset,
        output_directory=str(directory),
        warned=service.sizes.warned(job_id),
        trouble=_trouble(service, job_id, journal="" if to_keep else service.trouble),
        negotiated=negotiated(service.journal.negotiations, record, service.now()),
        files=service.applications.results.concluded(directory),
        sweep=service.sweeps.progress(record.job),
        concluded=record.state in BY_THEMSELVES and not (record.live and _in_contact(service, record)),
    )


def report_to_keep(service: Service, job_id: JobId) -> str:
    """Return the report of a job that has ended, as JSON."""
    return live_report(service, job_id, to_keep=True).to_json()


def _in_contact(service: Service, record: JobRecord) -> bool:
    """Tell whether an agent of a job is connected, which may have something to say yet."""
    placeholders = service.state.placeholders
    connected = (placeholders.get(id_) for id_ in service.reception.connected)
    return any(one is not None and one.job_id == record.job.id for one in connected)


def _trouble(service: Service, job_id: JobId, *, journal: str) -> str:
    """``journal``: why that cannot be written at present."""
    over = service.state.jobs[job_id].state.final
    undecided = f"Nothing is decided until this is over: {journal}." if journal else ""
    unwritten = service.applications.unwritten.trouble(job_id, over=over)
    return " ".join(filter(None, (service.sizes.complaint(job_id), unwritten, undecided)))
