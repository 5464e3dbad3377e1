# SPDX-License-Identifier: Apache-2.0
"""All jobs of a service that change their size: one object each, one loop with their deadlines, and the port.

While a program is connected for a job, koala negotiates the size with it; while none is, the job changes its size as if
there were no such programs.
"""

from __future__ import annotations

from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JobRefusedError, NegotiationError
from koala_adapter.host.containment import contained
from koala_adapter.model import JobId, RunnerName
from koala_adapter.outcome import LAUNCHED_STATES, JobState
from koala_adapter.scheduler import actions as act
from koala_adapter.service.sizes.adaptive import AdaptiveJob
from koala_adapter.service.sizes.bargaining import SizedJob, Surroundings
from koala_adapter.service.sizes.kept import NegotiationKeeper
from koala_adapter.service.sizes.offers import NEGOTIATOR
from koala_adapter.service.sizes.port import Access, NegotiationPort
from koala_adapter.service.sizes.workers import WorkersJob, answer_of
from koala_adapter.sizes import Decision

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from anyio.abc import TaskGroup

    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.core import Core

log = structlog.get_logger()


class Sizes:
    """All running jobs that may change their size, and programs that negotiate for them."""

    def __init__(self, core: Core, applications: Applications) -> None:
        self._core = core
        self._applications = applications
        self._port = NegotiationPort(core.site.control_center.negotiation_listen, self)
        self._around = Surroundings(core, applications, self._port, NegotiationKeeper(core))
        self._jobs: dict[JobId, SizedJob] = {}
        self._complaints: dict[JobId, str] = {}
        """Of jobs that have ended, until they are forgotten: people ask why they did."""
        self._deadlines: dict[JobId, float] = {}
        """When a job is to be called if nothing happens to it before; most have none."""
        self._awaited = inf
        """The deadline for which :meth:`run` waits."""
        self._moved = anyio.Event()
        """Set, and replaced, when there is an earlier one."""
        applications.speaking_jobs = self

    def start(self, tasks: TaskGroup) -> None:
        """Start listening for programs if one is expected, and watch jobs' deadlines."""
        self._port.open(tasks)
        tasks.start_soon(self.run)

    # ---- one job ---------------------------------------------------------------------------------------------------

    def job(self, record: JobRecord) -> SizedJob | None:
        """Return the object of a job, created if needed; None for an adaptive job that does not run."""
        job_id, known = record.job.id, self._jobs.get(record.job.id)
        if record.job.runner is not RunnerName.ADAPTIVE:
            if known is None:
                known = self._jobs[job_id] = WorkersJob(self._around, record.job)
            return known
        runner = self._applications.adaptive(record)
        if runner is None:
            self._drop(job_id)
            return None
        if not isinstance(known, AdaptiveJob) or known.runner is not runner:
            known = self._jobs[job_id] = AdaptiveJob(self._around, runner)
        return known

    def _running(self, job_id: JobId) -> tuple[JobRecord, SizedJob] | None:
        """Return a job that can negotiate now; None when it does not run."""
        record = self._core.state.jobs.get(job_id)
        job = None if record is None or record.state is not JobState.RUNNING else self.job(record)
        return None if record is None or job is None else (record, job)

    def _drop(self, job_id: JobId) -> None:
        job = self._jobs.pop(job_id, None)
        if job is not None and job.complaint:
            self._complaints[job_id] = job.complaint
        self._look_again(job_id)

    # ---- what the scheduler wants ----------------------------------------------------------------------------------

    def follow(self, touched: Iterable[JobId]) -> None:
        """Update jobs from the records after an event."""
        for job_id in touched:
            with contained("following a change of size", job=job_id):
                self._follow(job_id)
        for job_id in [one for one in self._complaints if one not in self._core.state.jobs]:
            del self._complaints[job_id]

    def _follow(self, job_id: JobId) -> None:
        record, represented = self._core.state.jobs.get(job_id), self._port.represents(job_id)
        if record is None or record.state.final:
            known = self._jobs.get(job_id)
            self._drop(job_id)
            if represented or (known is not None and known.negotiated):
                self._port.close(job_id)
        elif job_id in self._jobs or (record.state in LAUNCHED_STATES and (represented or record.job.has_workers)):
            job = self.job(record)
            if job is not None:
                job.follow(record)
                self._look_again(job_id)

    def carry_out(self, action: act.SizeAction) -> None:
        """Carry out an action of the scheduler that concerns sizes of jobs; jobs of constant size decline offers."""
        record = self._core.state.jobs.get(action.job_id)
        job = None if record is None else self.job(record)
        if record is not None and job is not None:
            job.carry_out(record, action)
            self._look_again(action.job_id)
        elif isinstance(action, act.OfferProcessors | act.RequestProcessors):
            log.warning("declined, as the application keeps its size", job=action.job_id)
            self._core.loop.post(answer_of(self._core.now(), action.job_id, action.number, Decision(0)))

    def resume(self) -> None:
        """Continue what the records show as under way, after a restart."""
        records = [one for one in self._core.state.jobs.values() if one.state is JobState.RUNNING]
        for record in records:
            job = self.job(record) if record.job.has_workers else None
            if isinstance(job, WorkersJob):
                with contained("resuming a negotiation", job=record.job.id):
                    job.restore(record)
                    self._look_again(record.job.id)
        for record in records:
            if record.job.runner is not RunnerName.RANKS:
                with contained("resuming a change of size", job=record.job.id):
                    job = self.job(record)
                    if job is not None:
                        job.resume(record)
                        self._look_again(record.job.id)

    # ---- what processes say (SpeakingJobs) -------------------------------------------------------------------------

    @contextmanager
    def speaking(self, record: JobRecord) -> Iterator[AdaptiveJob | None]:
        """Give an adaptive job while its processes are heard; None for another one, or when it does not run."""
        job = self.job(record)
        yield job if isinstance(job, AdaptiveJob) else None
        self._look_again(record.job.id)

    # ---- what programs say that negotiate --------------------------------------------------------------------------

    async def access(self, record: JobRecord) -> Access:
        """Return one-time access for a negotiating program; an unused earlier one becomes void.

        Raises JobRefusedError for a job that does not negotiate; ServiceRunningError when the port cannot be opened.
        """
        check_negotiable(record)
        return await self._port.access(record.job.id)

    def program_came(self, job_id: JobId) -> None:
        """Send a new program what may have been lost, and present offers."""
        known = self._jobs.get(job_id)
        if known is not None:
            known.negotiated = True
        found = self._running(job_id)
        if found is not None:
            record, job = found
            job.bargaining.in_contact(NEGOTIATOR)
            job.bargaining.follow(record)
            self._look_again(job_id)

    def program_said(self, job_id: JobId, payload: bytes) -> None:
        """Process a program's template. Raises NegotiationError when it is invalid or the job does not run."""
        found = self._running(job_id)
        if found is None:
            raise NegotiationError("the job does not run")
        record, job = found
        try:
            job.hear(record, NEGOTIATOR, payload)
            if isinstance(job, WorkersJob):
                job.have_workers_leave(record)
        finally:
            self._look_again(job_id)

    def program_went(self, job_id: JobId) -> None:
        """End a lost program's negotiations without agreement."""
        found = self._running(job_id)
        if found is not None:
            record, job = found
            job.bargaining.out_of_contact(record, NEGOTIATOR)
            self._look_again(job_id)

    # ---- deadlines -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Call jobs at their deadlines until cancelled."""
        while True:
            self.time_passed()
            self._awaited, moved = self.next_deadline(), self._moved
            with anyio.move_on_after(max(0.0, self._awaited - self._core.now())):
                await moved.wait()

    def time_passed(self) -> None:
        """Call the jobs whose deadlines have passed."""
        now = self._core.now()
        due = {job_id: at for job_id, at in self._deadlines.items() if at <= now}
        for job_id in sorted(due, key=due.__getitem__):
            self._deadlines.pop(job_id, None)
            with contained("a deadline of a change of size", job=job_id):
                found = self._running(job_id)
                if found is None:
                    self._drop(job_id)
                else:
                    record, job = found
                    job.time_passed(record)
                    self._look_again(job_id)

    def next_deadline(self) -> float:
        """Return the next deadline; infinity: none."""
        return min(self._deadlines.values(), default=inf)

    def _look_again(self, job_id: JobId) -> None:
        """Update a job's deadline."""
        job = self._jobs.get(job_id)
        at = None if job is None else job.next_deadline()
        if at is None:
            self._deadlines.pop(job_id, None)
            return
        self._deadlines[job_id] = at
        if at < self._awaited:
            self._moved.set()
            self._moved = anyio.Event()

    # ---- what people are told --------------------------------------------------------------------------------------

    def warned(self, job_id: JobId) -> str:
        """Return a sentence on how many processes know of the near end of their walltime; empty: none."""
        record, job = self._core.state.jobs.get(job_id), self._jobs.get(job_id)
        over = record is None or record.state.final
        told = job.warned if isinstance(job, AdaptiveJob) and not over else 0
        have = "has" if told == 1 else "have"
        return f"{told} of its processes {have} been told that the end of the walltime is near." if told else ""

    def complaint(self, job_id: JobId) -> str:
        """Return the last complaint about processes of a job; empty: none."""
        job = self._jobs.get(job_id)
        return (job.complaint if job is not None else "") or self._complaints.get(job_id, "")


def check_negotiable(record: JobRecord) -> None:
    """Raise JobRefusedError when no program can negotiate for a job."""
    job = record.job
    if record.state.final:
        raise JobRefusedError(f"job {job.id} has ended", hint="`koala status` shows the jobs that run")
    able = [one.name for one in job.components if job.changes_size(one.name)]
    if not job.kind.varies or not able:
        hint = 'only jobs of kind = "malleable" or "evolving" negotiate it'
        raise JobRefusedError(f"job {job.id} keeps its size", hint=hint)
    if len(able) > 1:
        raise JobRefusedError(f"job {job.id}: several components can change: {', '.join(able)}", hint="one is allowed")
