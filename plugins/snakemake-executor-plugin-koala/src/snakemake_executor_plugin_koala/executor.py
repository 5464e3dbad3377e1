# SPDX-License-Identifier: Apache-2.0
"""Snakemake's executor ``koala``: jobs of Snakemake as jobs of koala, and the executor itself.

Snakemake hands jobs to the executor, which hands them to koala's service and tells Snakemake how they ended.
"""

from __future__ import annotations

import dataclasses
import re
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
        "threads",
        "walltime",
        "working_directory",
    }
)
"""Keys of a job that Snakemake has words of its own for, or that would make it another kind of job."""
GPUS = ("gpu", "gpus", "nvidia_gpu", "amd_gpu")
"""Resources that are a number of GPUs; ``gpu_model`` is their kind."""
GRES = re.compile(r"gpu(?::(?P<kind>[\w.+-]+))?:(?P<number>[0-9]+)")
"""The resource gres, in the words of Slurm."""
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
    """Return the koala job for a job of Snakemake.

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
        **{**_slot(job), **_own_keys(job)},
    )


def _slot(job: JobExecutorInterface) -> dict[str, Any]:
    """Return what a job needs on its node, by the keys of a job file."""
    found: dict[str, Any] = {"threads": job.threads}
    if isinstance(memory := job.resources.get("mem_mb"), int) and memory > 0:
        found["memory"] = memory
    if isinstance(disk := job.resources.get("disk_mb"), int) and disk > 0 and not _is_default_disk(job, disk):
        found["scratch"] = disk
    if gpus := _gpus(job):
        found["gpus"] = gpus
    return {key: value for key, value in found.items() if (key, value) != ("threads", 1)}


def _is_default_disk(job: JobExecutorInterface, disk: int) -> bool:
    """Return whether a job asks only for Snakemake's default disk, which many sites cannot provide."""
    if job.is_group():
        return True  # a sum of what its parts have
    default = max(2 * getattr(job.input, "size_mb", 0), 1000) if job.input else 50_000
    return abs(disk - default) <= 1


def _gpus(job: JobExecutorInterface) -> int | str:
    gres = GRES.fullmatch(str(job.resources.get("gres", "")))
    numbers = [value for name in GPUS if isinstance(value := job.resources.get(name), int)]
    number = int(gres["number"]) if gres else max(numbers, default=0)
    kind = (gres["kind"] if gres else None) or job.resources.get("gpu_model")
    return f"{kind}:{number}" if number and kind else number


def _problems(job: JobExecutorInterface) -> Iterator[str]:
    tasks, gres = job.resources.get("tasks"), job.resources.get("gres")
    if isinstance(tasks, int) and tasks > 1:
        yield f"resource tasks: found {tasks}, allowed is 1: a job of Snakemake is one process here"
    if gres is not None and not GRES.fullmatch(str(gres)):
        yield f'resource gres: found "{gres}", allowed is "gpu:N" or "gpu:KIND:N"'
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
    """Runs each job of a workflow on a cluster of the site that has what the job needs."""

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
        """Number of cores for Snakemake on the node, unless its job says so."""
        return 1

    def get_job_args(self, job: JobExecutorInterface) -> str:
        """Return the arguments of the Snakemake on the node: it may use the processors that its job has."""
        # Of two options of one name the last one counts; the first is that of all jobs.
        return f"{super().get_job_args(job)} --cores {job.threads}"

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
            reports = reports_of(self._site, [one.external_jobid for one in active_jobs]) if active_jobs else {}
        for one in active_jobs:
            report = reports.get(one.external_jobid)
            if isinstance(report, koala.JobNotFoundError):
                self.report_job_error(one, msg=f"koala: {_words(report)} ")
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


def reports_of(site: koala.Site, ids: Sequence[str]) -> Mapping[str, koala.JobReport | koala.JobNotFoundError]:
    """Return reports of jobs, and an error for each that the service does not know.

    Nothing while no service answers, which says nothing of the jobs.
    """
    found: dict[str, koala.JobReport | koala.JobNotFoundError] = {}
    try:
        # One that was ended or has failed meanwhile is started again, and goes on with the jobs.
        site.begin_service()
        latest = {one.id: one for one in site.information().jobs(max(LATEST, 2 * len(ids)))}
        for one in ids:
            try:
                found[one] = latest.get(one) or site.job(one).report()
            except koala.JobNotFoundError as error:
                found[one] = error
    except koala.KoalaError as error:
        print(f"koala: {_words(error)}", file=sys.stderr)  # noqa: T201 - Snakemake's loggers print no warnings of plugins
        return {}
    return found


def _words(error: koala.KoalaError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
