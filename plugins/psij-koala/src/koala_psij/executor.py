# SPDX-License-Identifier: Apache-2.0
"""The executor: PSI/J hands it jobs, it hands them to koala's service, and tells PSI/J how they get on."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from psij import InvalidJobException, JobExecutor, JobState, JobStatus, SubmitException

import koala_adapter as koala
from koala_psij.config import KoalaExecutorConfig
from koala_psij.description import copy_output, koala_job, psij_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psij import Job, JobExecutorConfig

POLL_INTERVAL = 0.5
"""Seconds between two looks at the jobs that have not ended."""
LATEST = 100
"""Jobs that are asked for at once, at least."""

logger = logging.getLogger(__name__)


class KoalaJobExecutor(JobExecutor):
    """Runs jobs on all clusters of a koala site. It may be used by several threads."""

    def __init__(self, url: str | None = None, config: JobExecutorConfig | None = None) -> None:
        """``url``: the site file; default: that of ``config``, else that of koala's command line.

        Raises koala_adapter.ConfigurationError when the site file is not right.
        """
        super().__init__(url=url, config=config or KoalaExecutorConfig())
        state = getattr(config, "state", None)
        named = url.removeprefix("file://") if url else getattr(config, "site", None)
        self._site = koala.Site.load(named, state=state)
        self._lock = threading.Lock()
        self._active: dict[str, list[Job]] = {}
        """By the ids of koala: several may stand for the same one."""
        self._poller: threading.Thread | None = None
        self._wake = threading.Event()

    def submit(self, job: Job) -> None:
        """Submit a job. Raises InvalidJobException, and SubmitException when no service of koala can be had."""
        spec = self._check_job(job)
        try:
            handle = self._site.submit(koala_job(spec))
        except (koala.ConfigurationError, koala.JobRefusedError) as error:
            job.executor = None
            raise InvalidJobException(str(error), error) from error
        except koala.KoalaError as error:
            job.executor = None
            raise SubmitException(str(error), error, transient=error.transient) from error
        except InvalidJobException:
            job.executor = None
            raise
        self._follow(job, handle.id)

    def cancel(self, job: Job) -> None:
        """Cancel a job; its status tells when that is done. Raises SubmitException when the service cannot be told."""
        if job.native_id is None:
            raise SubmitException("koala: the job was never submitted")
        try:
            self._site.job(job.native_id).cancel()
        except koala.KoalaError as error:
            raise SubmitException(str(error), error, transient=error.transient) from error
        self._wake.set()

    def list(self) -> list[str]:
        """Return the ids of the latest jobs that koala knows; none where there has never been a service."""
        try:
            return [handle.id for handle in self._site.jobs(limit=1000)]
        except koala.ServiceUnavailableError:
            return []

    def attach(self, job: Job, native_id: str) -> None:
        """Have a new job stand for one of koala. Raises InvalidJobException and SubmitException."""
        if job.status.state != JobState.NEW:
            raise InvalidJobException("koala: the job must be in the state NEW")
        try:
            self._site.job(native_id).report()
        except koala.JobNotFoundError as error:
            raise InvalidJobException(str(error), error) from error
        except koala.KoalaError as error:
            raise SubmitException(str(error), error, transient=error.transient) from error
        job.executor = self
        self._follow(job, native_id)

    def _follow(self, job: Job, native_id: str) -> None:
        job._native_id = native_id  # noqa: SLF001 - as PSI/J's own executors set it
        self._set_job_status(job, JobStatus(JobState.QUEUED, metadata={"nativeId": native_id}))
        with self._lock:
            self._active.setdefault(native_id, []).append(job)
            if self._poller is None:
                self._poller = threading.Thread(target=self._poll, name="koala: status of PSI/J's jobs", daemon=True)
                self._poller.start()

    def _poll(self) -> None:
        """Tell the states of the jobs until all have ended; the next one begins another thread."""
        while True:
            with self._lock:
                active = list(self._active)
                if not active:
                    self._poller = None
                    return
            for report in self._reports(active):
                self._tell(report)
            self._wake.wait(POLL_INTERVAL)
            self._wake.clear()

    def _reports(self, active: Sequence[str]) -> Sequence[koala.JobReport]:
        """Return what is known of jobs; nothing while no service answers, which says nothing of them."""
        try:
            latest = {one.id: one for one in self._site.information().jobs(max(LATEST, 2 * len(active)))}
            older = [self._older(one) for one in active if one not in latest]
        except koala.ServiceUnavailableError as error:
            logger.warning("koala: %s", error)
            return []
        except koala.KoalaError:
            logger.exception("koala: the states of jobs cannot be read")
            return []
        return [latest[one] for one in active if one in latest] + [one for one in older if one is not None]

    def _older(self, native_id: str) -> koala.JobReport | None:
        try:
            return self._site.job(native_id).report()
        except koala.JobNotFoundError as error:
            with self._lock:
                jobs = self._active.pop(native_id, [])
            for job in jobs:
                self._set_job_status(job, JobStatus(JobState.FAILED, message=str(error)))
            return None

    def _tell(self, report: koala.JobReport) -> None:
        with self._lock:
            # One that is attached from now on finds no entry, and makes one.
            jobs = self._active.pop(report.id) if report.outcome is not None else list(self._active[report.id])
        for job in jobs:
            self._tell_one(job, report)

    def _tell_one(self, job: Job, report: koala.JobReport) -> None:
        state, outcome = psij_state(report), report.outcome
        if outcome is None:
            self._set_job_status(job, JobStatus(state, message=report.explanation))
            return
        message = outcome.detail
        try:
            if job.spec is not None:
                copy_output(report, job.spec)
        except OSError as error:
            state, message = (
                JobState.FAILED,
                f"its output cannot be written: {error}; it is in {report.output_directory}",
            )
        metadata: dict[str, object] = {"nativeId": report.id, "state": report.state.value}
        self._set_job_status(
            job, JobStatus(state, message=message or None, exit_code=outcome.exit_code, metadata=metadata)
        )
