# SPDX-License-Identifier: Apache-2.0
"""PSI/J's executor "koala": settings, jobs of PSI/J as jobs of koala, and the executor itself.

PSI/J hands jobs to the executor, which hands them to koala's service and tells PSI/J how they get on.
"""

from __future__ import annotations

import dataclasses
import glob
import logging
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psij import (
    InvalidJobException,
    JobExecutor,
    JobExecutorConfig,
    JobState,
    JobStatus,
    ResourceSpecV1,
    SubmitException,
)

import koala_adapter as koala

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from os import PathLike

    from psij import Job, JobAttributes, JobSpec


# -- Settings ------------------------------------------------------------------------------------------------


class KoalaExecutorConfig(JobExecutorConfig):
    """Site file and state directory for the executor."""

    def __init__(self, site: str | PathLike[str] | None = None, state: str | PathLike[str] | None = None) -> None:
        """``site``, ``state``: site file and state directory of koala, by default those of its command line."""
        super().__init__()
        self.site = site
        self.state = state


# -- Jobs and states -----------------------------------------------------------------------------------------
# Jobs of PSI/J as jobs of koala, and states of koala's jobs as those of PSI/J.

PREFIX = "koala."
"""Begins the names of custom attributes that are for koala; those of others are left alone."""
MPI = frozenset({"mpirun", "mpiexec", "srun", "aprun", "jsrun"})
PLAIN = frozenset({None, "single", "multiple"})
BYTES_PER_MIB = 1024**2
RESERVED = frozenset({"command", "components", "processors", "walltime", "working_directory", "environment", "name"})
"""Keys of a job that PSI/J has words of its own for."""
SHELL = 'input=$1; before=$2; shift 2; [ -z "$before" ] || . "$before"; [ -z "$input" ] || exec <"$input"; exec "$@"'
"""Sources a file, takes its input from another, and becomes the program; empty: neither."""
STATES: Mapping[koala.JobState, JobState] = {
    koala.JobState.WAITING: JobState.QUEUED,
    koala.JobState.CLAIMING: JobState.QUEUED,
    koala.JobState.LAUNCHING: JobState.QUEUED,
    koala.JobState.RUNNING: JobState.ACTIVE,
    koala.JobState.COMPLETED: JobState.COMPLETED,
    koala.JobState.CANCELLED: JobState.CANCELED,
}
"""All others are failures."""


def koala_job(spec: JobSpec) -> koala.Job:
    """Return the job of koala that a specification asks for.

    Raises InvalidJobException with all that koala cannot do for it.
    """
    resources = spec.resources if isinstance(spec.resources, ResourceSpecV1) else ResourceSpecV1()
    problems = list(_problems(spec, resources))
    if problems:
        raise InvalidJobException(f"koala: {'; '.join(problems)}")
    described: dict[str, Any] = {
        "command": _command(spec),
        "processors": resources.computed_process_count,
        "walltime": max(1, math.ceil(spec.attributes.duration.total_seconds())),
        "environment": spec.environment or {},
    }
    if spec.name:
        described["name"] = Path(spec.name).name
    if spec.directory is not None:
        described["working_directory"] = spec.directory
    if spec.attributes.queue_name:
        described["cluster"] = spec.attributes.queue_name
    if spec.launcher in MPI:
        described["launcher"] = "mpi"
    return koala.Job(**{**described, **_slot(resources, spec.attributes), **_own_attributes(spec)})


def _slot(resources: ResourceSpecV1, attributes: JobAttributes) -> dict[str, Any]:
    """Return each process's resources by the keys of a job file; PSI/J gives memory for the whole job, in bytes."""
    found = {
        "threads": resources.cpu_cores_per_process,
        "gpus": resources.gpu_cores_per_process,
        "exclusive": resources.exclusive_node_use or None,
        "account": attributes.account,
    }
    if resources.memory:
        found["memory"] = math.ceil(resources.memory / resources.computed_process_count / BYTES_PER_MIB)
    return {key: value for key, value in found.items() if value is not None}


def _problems(spec: JobSpec, resources: ResourceSpecV1) -> Iterator[str]:
    yield from _program_problems(spec, resources.computed_process_count)
    yield from _attribute_problems(spec.attributes)


def _program_problems(spec: JobSpec, processes: int) -> Iterator[str]:
    if not spec.executable:
        yield "there is no executable"
    if not spec.inherit_environment:
        yield "inherit_environment: found False, allowed is True: processes get the environment of their node"
    if spec.post_launch is not None:
        yield "post_launch: koala has none; do it in the program"
    if spec.launcher not in MPI | PLAIN:
        yield f"launcher: found {spec.launcher!r}, allowed is {', '.join(sorted({*MPI, 'single', 'multiple'}))}"
    if spec.launcher == "single" and processes > 1:
        yield f"launcher: found 'single' for {processes} processes, allowed is 'multiple'"


def _attribute_problems(attributes: JobAttributes) -> Iterator[str]:
    if attributes.reservation_id:
        yield f"reservation_id: allowed is {PREFIX}directives, a mapping of clusters to arguments that name it there"
    known = {one.name for one in dataclasses.fields(koala.Job)} - RESERVED
    for name in attributes.custom_attributes or {}:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known:
            yield f"custom attribute {name}: allowed is {PREFIX} and one of {', '.join(sorted(known))}"


def _command(spec: JobSpec) -> list[str]:
    command = [str(spec.executable), *(spec.arguments or [])]
    if spec.stdin_path is None and spec.pre_launch is None:
        return command
    input_file, before = (str(one) if one is not None else "" for one in (spec.stdin_path, spec.pre_launch))
    return ["/bin/sh", "-c", SHELL, "sh", input_file, before, *command]


def _own_attributes(spec: JobSpec) -> dict[str, Any]:
    given = spec.attributes.custom_attributes or {}
    return {name.removeprefix(PREFIX): value for name, value in given.items() if name.startswith(PREFIX)}


def psij_state(report: koala.JobReport) -> JobState:
    """Return the state of a job in the words of PSI/J."""
    return STATES.get(report.state, JobState.FAILED)


def copy_output(report: koala.JobReport, spec: JobSpec) -> None:
    """Write what the processes wrote to the files that a specification names, rank after rank. Raises OSError."""
    for path, suffix in ((spec.stdout_path, ".out"), (spec.stderr_path, ".err")):
        if path is None:
            continue
        target = path if spec.directory is None else spec.directory / path
        with target.open("wb") as file:
            for source in _outputs(Path(report.output_directory), suffix):
                file.write(source.read_bytes())


def _outputs(directory: Path, suffix: str) -> list[Path]:
    # Not Path.glob, which in Python 3.11 fails where the service removes the input files of the job meanwhile.
    found = [directory / name for name in glob.iglob(f"*/*{suffix}", root_dir=directory)]  # noqa: PTH207
    found = [path for path in found if path.stem.isdecimal()]
    return sorted(found, key=lambda path: (path.parent.name, int(path.stem)))


# -- The executor --------------------------------------------------------------------------------------------

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
        """Bind a new job to an existing one of koala. Raises InvalidJobException and SubmitException."""
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
        """Report states of jobs until all have ended; later jobs start another thread."""
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
        """Return reports of jobs; empty while no service answers."""
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
