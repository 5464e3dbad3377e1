# SPDX-License-Identifier: Apache-2.0
"""The sweeps of a service: opened with their jobs, told of when they are over, closed with their jobs.

Launchers connect to a port of the sweep's own. It is kept, so that after a restart of the service they find it where it
was; and it lies where nobody gets a port by chance meanwhile.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JobRefusedError, KoalaError
from koala_adapter.model import EndReason, RunnerName, TaskEnd
from koala_adapter.net.freeport import lasting_ports
from koala_adapter.pull.nodefiles import node_files
from koala_adapter.pull.server import TOKEN_BYTES
from koala_adapter.scheduler.events import RankEnded
from koala_adapter.scheduler.outcome import JobState
from koala_adapter.service.runningsweep import RunningSweep
from koala_adapter.service.sweepfiles import FOLDER, Contact, SweepFiles, first_job, recorded_progress
from koala_adapter.sweeps.launcher import SETTINGS
from koala_adapter.sweeps.progress import said
from koala_adapter.vjm import certificate
from koala_adapter.vjm.channel import LaunchFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.model import Job, JobId
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import State
    from koala_adapter.sweeps.progress import SweepProgress

PROGRAM = "koala_sweep.py"
TELLING = 0.5
"""Seconds between two times that who watches is told of further tasks."""

log = structlog.get_logger()


class Sweeps:
    """What a service does for jobs with runner ``sweep``."""

    def __init__(
        self,
        directory: Path,
        site: SiteConfig,
        *,
        state: Callable[[], State],
        clock: Callable[[], float],
        report: Callable[[Event], None],
        tell: Callable[[], None],
    ) -> None:
        """``directory``: of the service's state. ``tell``: something has changed that is no event."""
        self._jobs = directory / "jobs"
        self._certificates = directory / "certificate"
        self._site = site
        self._state = state
        self._clock = clock
        self._report = report
        self._tell = tell
        self._running: dict[JobId, RunningSweep] = {}
        self._closing: list[RunningSweep] = []
        self._over: set[JobId] = set()
        self._changed = anyio.Event()
        self._urgent = anyio.Event()
        """Set when something is to be done at once."""

    def files(self, job: Job) -> SweepFiles:
        """Return the directory of the sweep of a job."""
        return SweepFiles(self._jobs / first_job(job) / FOLDER)

    def keep(self, job: Job) -> None:
        """Keep what a sweep is made of. Raises OSError; JobRefusedError when another job is at the same one."""
        if job.sweep is None:
            return
        first = first_job(job)
        at_it = [one.job.id for one in self._state().jobs.values() if not one.state.final and _first(one.job) == first]
        if at_it:
            raise JobRefusedError(f"job {at_it[0]} is at this sweep", hint=f"see `koala status {at_it[0]}`")
        self.files(job).keep(job)

    def library(self, job: Job) -> tuple[LaunchFile, ...]:
        """Return the files of a launcher; the sweep is open then. Raises OSError, KoalaError."""
        sweep = self._open(job)
        contact = self.files(job).contact()
        if contact is None:
            raise AssertionError("an open sweep has a contact")
        settings = {
            "hosts": {"": self._site.control_center.node_address}
            | {one.name: self._site.node_address(one) for one in self._site.clusters},
            "port": contact.port,
            "token": contact.token,
            "fingerprint": certificate.load_or_create(self._certificates).fingerprint,
            "grace": job.components[0].retirement.grace,
            "patience": max(60.0, self._site.parameters.lease),
        }
        files = {**node_files("koala_adapter.sweeps", "launcher", PROGRAM), SETTINGS: json.dumps(settings).encode()}
        if sweep.over:
            self._note_change()
        return tuple(LaunchFile(target=name, mode=0o600, content=content) for name, content in files.items())

    def _open(self, job: Job) -> RunningSweep:
        if job.id in self._running:
            return self._running[job.id]
        if job.sweep is None:
            raise AssertionError("a job with a sweep")
        files = self.files(job)
        sweep = RunningSweep(job, files, files.expansion(job.sweep), changed=self._note_change)
        self._listen(sweep, files)
        self._running[job.id] = sweep
        return sweep

    def _listen(self, sweep: RunningSweep, files: SweepFiles) -> None:
        known = files.contact()
        token = secrets.token_hex(TOKEN_BYTES) if known is None else known.token
        ports = [*([] if known is None else [known.port]), *lasting_ports()]
        ours = certificate.load_or_create(self._certificates)
        for port in ports:
            contact = Contact(port=port, token=token)
            try:
                sweep.listen(self._site.control_center.listen, contact, ours)
            except OSError as error:
                failure = error
            else:
                files.keep_contact(contact)
                return
        raise KoalaError(f"no port to hand out tasks from: {failure.strerror}", hint="see control_center.listen")

    def progress(self, job: Job) -> SweepProgress | None:
        """Return how far the sweep of a job is; None: it has none."""
        if job.sweep is None:
            return None
        running = self._running.get(job.id)
        return recorded_progress(self._jobs, job) if running is None else running.progress

    def forget(self, job_id: JobId) -> None:
        """Close the sweep of a job that has ended."""
        sweep = self._running.pop(job_id, None)
        self._over.discard(job_id)
        if sweep is not None:
            sweep.save()
            self._closing.append(sweep)
            self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        if self._closing or any(one.over for id_, one in self._running.items() if id_ not in self._over):
            self._urgent.set()

    async def run(self) -> None:
        """Go on with the sweeps of running jobs, until cancelled; then close all."""
        try:
            for record in list(self._state().jobs.values()):
                if record.job.runner is RunnerName.SWEEP and record.state in {JobState.LAUNCHING, JobState.RUNNING}:
                    self._reopen(record.job)
            while True:
                await self._changed.wait()
                self._changed = anyio.Event()
                self._end_those_that_are_over()
                while self._closing:
                    await self._closing.pop().close()
                self._tell()
                with anyio.move_on_after(TELLING):
                    await self._urgent.wait()
                self._urgent = anyio.Event()
        finally:
            with anyio.CancelScope(shield=True):
                for sweep in (*self._closing, *self._running.values()):
                    await sweep.close()

    def _reopen(self, job: Job) -> None:
        try:
            self._open(job)
        except (OSError, KoalaError) as error:
            self._end(job.id, 1, f"the sweep cannot go on: {error}")
        else:
            self._note_change()

    def _end_those_that_are_over(self) -> None:
        for job_id, sweep in list(self._running.items()):
            if sweep.over and job_id not in self._over:
                progress = sweep.progress
                self._end(job_id, 1 if progress.failed else 0, said(progress) if progress.failed else "")

    def _end(self, job_id: JobId, status: int, detail: str) -> None:
        self._over.add(job_id)
        log.info("a sweep is over", job=job_id, status=status, detail=detail)
        end = TaskEnd(reason=EndReason.EXITED, exit_code=status, detail=detail)
        self._report(RankEnded(time=self._clock(), job_id=job_id, rank=None, end=end))


def _first(job: Job) -> JobId | None:
    return None if job.sweep is None else first_job(job)
