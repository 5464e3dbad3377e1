# SPDX-License-Identifier: Apache-2.0
"""Snakemake's executor ``koala``: jobs of Snakemake as jobs of koala, and the executor itself.

Snakemake hands jobs to the executor, which hands them to koala's service and tells Snakemake how they ended.
"""

from __future__ import annotations

import dataclasses
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

import koala_adapter as koala

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from snakemake_interface_executor_plugins.jobs import JobExecutorInterface


# -- Jobs of Snakemake as jobs of koala ----------------------------------------------------------------------

PREFIX = "koala_"
"""Begins the names of resources that are keys of a job file."""
OWN = frozenset(
    {
        "command",
        "components",
        "environment",
        "name",
        "processors",
        "runner",
        "sweep",
        "walltime",
        "working_directory",
    }
)
"""Keys of a job that Snakemake has words of its own for, or that would make it another kind of job."""
NOT_COUNTED = ("gpu", "gpus", "nvidia_gpu", "amd_gpu")
SECONDS = 60
"""The resource runtime is in minutes."""


def koala_job(
    job: JobExecutorInterface,
    script: str,
    *,
    directory: str,
    environment: Mapping[str, str],
    walltime: str,
) -> koala.Job:
    """Return the job of koala that a job of Snakemake asks for.

    ``script``: what a shell on the node is to do; ``walltime``: of jobs that do not say theirs. Raises
    ConfigurationError with all that koala cannot do for it.
    """
    problems = list(_problems(job))
    if problems:
        raise koala.ConfigurationError(f"job {job.jobid} ({job.name}): {'; '.join(problems)}")
    runtime = job.resources.get("runtime")
    return koala.Job(
        ["/bin/sh", "-c", script],
        name=f"{job.name}-{job.jobid}",
        walltime=runtime * SECONDS if isinstance(runtime, int) else walltime,
        working_directory=directory,
        environment=environment,
        **_own_keys(job),
    )


def _problems(job: JobExecutorInterface) -> Iterator[str]:
    if job.threads > 1:
        yield (
            f"threads: found {job.threads}, allowed is 1: a process of koala has one processor "
            "(`--max-threads 1` runs such rules with one)"
        )
    for name in ("tasks", *NOT_COUNTED):
        wanted = job.resources.get(name)
        if isinstance(wanted, int) and wanted > (name == "tasks"):
            yield f"resource {name}: found {wanted}, which koala cannot promise: it counts processors, one for each job"
    known = {one.name for one in dataclasses.fields(koala.Job)} - OWN
    for name in dict(job.resources.items()):  # by itself, what Snakemake has here goes through positions
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known:
            yield f"resource {name}: allowed is {PREFIX} and one of {', '.join(sorted(known))}"


def _own_keys(job: JobExecutorInterface) -> dict[str, Any]:
    return {name.removeprefix(PREFIX): value for name, value in job.resources.items() if name.startswith(PREFIX)}


# -- The executor --------------------------------------------------------------------------------------------

LATEST = 100
"""Jobs that are asked for at once, at least."""


class Executor(RemoteExecutor):
    """Runs each job of a workflow on one processor, of whichever cluster of the site has one."""

    def __post_init__(self) -> None:
        """Read the site. Raises WorkflowError."""
        settings = self.workflow.executor_settings
        self._walltime = settings.walltime
        self._left = ExitStack()
        try:
            site = koala.Site.load(settings.site, state=settings.state)
        except koala.KoalaError as error:
            raise WorkflowError(_words(error)) from error
        # At its end nothing is left behind: no job, and no service that was started for them.
        leaves_jobs = self.workflow.remote_execution_settings.immediate_submit
        self._site = site if leaves_jobs else self._left.enter_context(site)

    @property
    def cores(self) -> int:
        """What the Snakemake on the node may use: the one processor that its job has."""
        return 1

    def run_job(self, job: JobExecutorInterface) -> None:
        """Submit a job; one that koala does not take has failed."""
        try:
            handle = self._site.submit(
                koala_job(
                    job,
                    self.format_job_exec(job),
                    directory=str(self.workflow.workdir_init),
                    environment=self.envvars(),
                    walltime=self._walltime,
                )
            )
        except koala.KoalaError as error:
            self.report_job_error(SubmittedJobInfo(job), msg=f"koala: {_words(error)} ")
            return
        self.report_job_submission(SubmittedJobInfo(job, external_jobid=handle.id))

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """Tell Snakemake of the jobs that have ended, and yield the others."""
        async with self.status_rate_limiter:
            reports = self._reports([one.external_jobid for one in active_jobs]) if active_jobs else {}
        for one in active_jobs:
            report = reports.get(one.external_jobid)
            if isinstance(report, koala.JobNotFoundError):
                self.report_job_error(one, msg=f"koala: {_words(report)}. ")
            elif report is None or report.outcome is None:
                yield one
            elif report.state is koala.JobState.COMPLETED:
                self.report_job_success(one)
            else:
                message = f"koala: {report.outcome.detail or report.state.value}; see {report.output_directory}. "
                self.report_job_error(one, msg=message)

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel jobs; what has ended meanwhile is left alone."""
        for one in active_jobs:
            with suppress(koala.KoalaError):
                self._site.job(one.external_jobid).cancel()

    def shutdown(self) -> None:
        """Return when all is over."""
        super().shutdown()
        self._left.close()

    def _reports(self, ids: Sequence[str]) -> Mapping[str, koala.JobReport | koala.JobNotFoundError]:
        """Return what is known of jobs, or that the service knows one no more; nothing while no service answers."""
        try:
            # One that was ended or has failed meanwhile is started again, and goes on with the jobs.
            self._site.begin_service()
            latest = {one.id: one for one in self._site.information().jobs(max(LATEST, 2 * len(ids)))}
            return {one: latest.get(one) or self._report(one) for one in ids}
        except koala.KoalaError as error:
            print(f"koala: {_words(error)}", file=sys.stderr)  # noqa: T201 - Snakemake's loggers print no warnings of plugins
            return {}

    def _report(self, id_: str) -> koala.JobReport | koala.JobNotFoundError:
        try:
            return self._site.job(id_).report()
        except koala.JobNotFoundError as error:
            return error


def _words(error: koala.KoalaError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
