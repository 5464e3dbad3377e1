# SPDX-License-Identifier: Apache-2.0
"""Running applications of a service: one runner for each launched job, and the reports of ended jobs.

In this order: which output files cannot be written at present, the applications between the scheduler's ranks and the
agents' tasks, and the archive that keeps the reports of ended jobs in the journal.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Protocol

import structlog

from koala_adapter import runners
from koala_adapter.application.shipping import FILE_NAME, library_file
from koala_adapter.errors import JobRefusedError, KoalaError, ProtocolError
from koala_adapter.host.containment import contained, report_defect
from koala_adapter.model import EndReason, Job, JobId, Launcher, MpiResize, PlaceholderId, RunnerName, TaskEnd
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.report.values import ATTEMPTS
from koala_adapter.runners.nodes import ClusterSoftware
from koala_adapter.runners.runner import (
    LAUNCHER_TASK,
    AddressedLaunch,
    Application,
    ProcessRunner,
    Reaction,
    Runner,
    Sending,
    by_placeholder,
    task_id,
)
from koala_adapter.runners.workers import SweepRunner, WorkersRunner
from koala_adapter.scheduler.events import Event, RankEnded, RankMeasured
from koala_adapter.service.inputfiles import INPUT, InputStore
from koala_adapter.service.relays import Relays
from koala_adapter.service.results import Results, ResultStore
from koala_adapter.service.staging import Stager
from koala_adapter.sites.contents import DIRECTORY as CACHE
from koala_adapter.vjm import channel
from koala_adapter.vjm.channel import FileAck, FilePiece, LaunchFile, TaskFiles, TaskReport, TunnelAsked
from koala_adapter.vjm.listener import Route, TaskListener, TaskMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.runners.runner import Order
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.core import Core
    from koala_adapter.service.information import Information
    from koala_adapter.service.sweeps import Sweeps


# -- Output files that cannot be written ---------------------------------------------------------------------
# They are reported to the user with the job, and logged.

log = structlog.get_logger()


class UnwrittenOutput:
    """Streams whose files cannot be written, with the reason, by job."""

    def __init__(self) -> None:
        self._found: dict[JobId, dict[tuple[str, str], tuple[Path, str]]] = {}

    def note(self, task: str, stream: str, file: Path, why: str) -> bool:
        """Record a failed write; return whether it is news."""
        job_id = _job(task)
        found = self._found.setdefault(job_id, {})
        news = found.get((task, stream)) != (file, why)
        if why not in {known for _, known in found.values()}:
            # Once for a reason: a full disk meets all ranks of a job at the same time.
            log.error("output cannot be written; it is tried again", job=job_id, file=str(file), error=why)
        found[task, stream] = (file, why)
        return news

    def written(self, task: str, stream: str) -> None:
        """Record a successful write."""
        job_id = _job(task)
        found = self._found.get(job_id)
        if found is not None and found.pop((task, stream), None) is not None and not found:
            del self._found[job_id]
            log.info("output can be written again", job=job_id)

    def forget(self, job_id: JobId) -> None:
        """Drop the streams of a job."""
        self._found.pop(job_id, None)

    def keep_only(self, jobs: Collection[JobId]) -> None:
        """Drop the streams of other jobs."""
        self._found = {job_id: found for job_id, found in self._found.items() if job_id in jobs}

    def trouble(self, job_id: JobId, *, over: bool) -> str:
        """Return a message for the user about unwritten output; empty: there is none. ``over``: the job has ended."""
        found = self._found.get(job_id)
        if not found:
            return ""
        file, why = next(iter(found.values()))
        others = "" if len(found) == 1 else f" and {len(found) - 1} other file{'s' if len(found) > 2 else ''}"  # noqa: PLR2004
        if over:
            return f"The end of its output could not be written to {file}{others}: {why}."
        return (
            f"Its output cannot be written to {file}{others}: {why}. Nothing is lost: it is tried again, and what "
            "writes more than 1 MiB waits until it works."
        )


def _job(task: str) -> JobId:
    return JobId(task.partition(":")[0])


# -- Runners of launched jobs --------------------------------------------------------------------------------


class SpeakingJob(Protocol):
    """A job whose processes speak with the service (protocol)."""

    def said(self, record: JobRecord, rank: int, frame: bytes) -> None:
        """Process a frame of a process."""

    def in_contact(self, record: JobRecord, rank: int) -> None:
        """Register that the agent of a process is in contact."""

    def out_of_contact(self, rank: int) -> None:
        """Register that the agent of a process is out of contact."""


class SpeakingJobs(Protocol):
    """Owner of all of them (protocol)."""

    def speaking(self, record: JobRecord) -> AbstractContextManager[SpeakingJob | None]:
        """Give one of them during a block, after which its deadline is looked at; None: it does not run."""


class Applications(TaskListener):
    """Starts applications in held placeholders and follows their tasks."""

    def __init__(self, core: Core, information: Information, sweeps: Sweeps) -> None:
        """``information``: told of the transfers of input files. ``sweeps``: followed with their jobs."""
        self._core = core
        self.directory = core.directory / "jobs"
        """Output and input files, a directory for each job."""
        self._sweeps = sweeps
        self.inputs = InputStore(core.directory, core.name_prefix)
        self.stager = Stager(core, self.inputs, information)
        self._runners: dict[JobId, Runner] = {}
        self._sending = Sending(self._order)
        self.unwritten = UnwrittenOutput()
        settings = core.site.control_center
        store = ResultStore(
            per_rank=settings.output_files_per_rank_mib * 1024**2, per_job=settings.output_files_per_job_mib * 1024**2
        )
        self.results = Results(self._rank_directory, store)
        """What ranks leave in files."""
        self._by_placeholder: tuple[tuple[Rank, ...], Mapping[PlaceholderId, Sequence[Rank]]] = ((), {})
        """The ranks of the job that was looked at last, by their placeholders: all of its placeholders end together."""
        self.relays = Relays(core)
        self.speaking_jobs: SpeakingJobs | None = None
        """Once there may be any."""

    def keep_input(self, job: Job) -> None:
        """Copy a job's input files to the service's own directory, so that later changes do not matter.

        Raises JobRefusedError, and leaves nothing then.
        """
        try:
            self._sweeps.keep(job)
            self.inputs.keep(job)
        except OSError as error:
            self.forget(job.id)
            message = f"input file {error.filename}: {error.strerror}"
            raise JobRefusedError(message, hint="check the job file") from error

    def forget(self, job_id: JobId) -> None:
        """Drop the runner of a job that has ended, and its input files."""
        self._runners.pop(job_id, None)
        self.relays.forget(job_id)
        self.unwritten.keep_only(self._core.state.jobs)
        self._sending.forget(job_id)
        self._sweeps.forget(job_id)
        self.inputs.forget(job_id)

    def end_attempt(self, job_id: JobId, number: int) -> None:
        """Drop the runner of a job that may run again; its input files stay."""
        log.info("an attempt of a job ended", job=job_id, attempt=number)
        self.relays.forget(job_id)
        self._runners.pop(job_id, None)
        self._sending.forget(job_id)

    def set_aside(self, record: JobRecord) -> None:
        """Move output of earlier attempts away before the next one writes. Raises OSError.

        What is there is that of the last attempt that was launched here. Those after it have left nothing: the service
        was killed before it could launch them.
        """
        directory = self.directory / record.job.id
        attempts = directory / ATTEMPTS
        missing = [
            attempts / str(number)
            for number in range(1, record.attempts_over + 1)
            if not (attempts / str(number)).exists()
        ]
        if not missing:
            return
        unfinished = attempts / f".{missing[0].name}"
        for one in (directory, attempts, unfinished):
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in list(directory.iterdir()):
            if left.name not in {INPUT, ATTEMPTS}:
                left.rename(unfinished / left.name)
        unfinished.rename(missing[0])
        for one in missing[1:]:
            one.mkdir(mode=0o700)
        self.results.forget(directory)
        self.unwritten.forget(record.job.id)

    def launch(self, job_id: JobId) -> None:
        """Start a job's application; agents out of contact are told when they are back."""
        record = self._core.state.jobs[job_id]
        runner = self._runner(record)
        if runner is not None:
            self._sending.add(runner.launches())

    def registered(self, placeholder: PlaceholderId, tasks: Sequence[TaskReport]) -> None:
        """Update an agent that registered, and the records by its report on tasks."""
        record = self._job_in(placeholder)
        runner = None if record is None else self._runner(record)
        if record is None or runner is None:
            return
        self.relays.in_contact(placeholder)
        known = {report.task for report in tasks}
        for report in tasks:
            if report.task.startswith(f"{record.job.id}:") and self._owns(placeholder, report.task):
                self._tell(runner, report)
        for rank in runner.application.ranks_in.get(placeholder, ()):
            self._sending.add(one for one in runner.launches_in(rank) if one.launch.task not in known)
            self.order(runner.asked_again(rank, self._core.now()))
            if runner.speaks and self.speaking_jobs is not None:
                with self.speaking_jobs.speaking(record) as job:
                    if job is not None:
                        job.in_contact(record, rank.rank)

    def disconnected(self, placeholder: PlaceholderId) -> None:
        """Prepare to repeat what was on its way to an agent out of contact."""
        self._sending.lost(placeholder)
        record = self._job_in(placeholder)
        runner = None if record is None else self._runners.get(record.job.id)
        if record is not None and runner is not None and runner.speaks and self.speaking_jobs is not None:
            for rank in runner.application.ranks_in.get(placeholder, ()):
                with self.speaking_jobs.speaking(record) as job:
                    if job is not None:
                        job.out_of_contact(rank.rank)

    # ---- what agents say of tasks (TaskListener) --------------------------------------------------------------------

    def on_report(self, placeholder: PlaceholderId, report: TaskMessage) -> None:
        """Handle a message of an agent on a task; one on a task that is not the agent's own has no effect."""
        match report:
            case channel.TaskStarted(task=task):
                self.started(placeholder, task)
            case channel.TaskEnded(task=task, end=end):
                self.ended(placeholder, task, end)
            case channel.Application(task=task, data=frame):
                self._said(placeholder, task, frame)
            case channel.Listening():
                self.relays.listens(placeholder, report)
            case channel.Forwarded():
                self.relays.forwards(placeholder, report)

    def _said(self, placeholder: PlaceholderId, task: str, frame: bytes) -> None:
        runner = self._runner_of(task) if self._owns(placeholder, task) else None
        rank = None if runner is None else runner.rank_of(task)
        if runner is not None and runner.speaks and rank is not None and self.speaking_jobs is not None:
            record = self._core.state.jobs[runner.application.job.id]
            with self.speaking_jobs.speaking(record) as job:
                if job is not None:
                    job.said(record, rank, frame)

    def _tell(self, runner: Runner, report: TaskReport) -> None:
        events = list(runner.started(report.task, self._core.now()))
        if report.end is not None:
            events += runner.ended(report.task, self._measured(report.task, report.end), self._core.now())
        for event in events:
            self._report_new(event)

    def _report_new(self, event: Event) -> None:
        """Report an event to the scheduler unless its records have it."""
        if isinstance(event, RankEnded) and event.rank is not None:
            record = self._core.state.jobs.get(event.job_id)
            if record is not None and event.rank in record.ends:
                return
        self._core.loop.post(event)

    def started(self, placeholder: PlaceholderId, task: str) -> None:
        """Register that an agent started a task of its own."""
        self._sending.arrived(task)
        self.relays.in_contact(placeholder)
        runner = self._runner_of(task) if self._owns(placeholder, task) else None
        for event in runner.started(task, self._core.now()) if runner else ():
            self._core.loop.post(event)

    def ended(self, placeholder: PlaceholderId, task: str, end: TaskEnd) -> None:
        """Register that a task of the agent ended."""
        self._sending.arrived(task)
        if not self._owns(placeholder, task):
            return
        self.relays.task_ended(placeholder, task)
        end, runner = self._measured(task, end), self._runner_of(task)
        for event in runner.ended(task, end, self._core.now()) if runner else ():
            self._report_new(event)

    def _measured(self, task: str, end: TaskEnd) -> TaskEnd:
        """Report a rank's usage once; return its end without usage.

        An event of its own: not every end of a task ends a rank (MPI), and a job may have ended before its ranks.
        """
        job_id, _, rank = task.partition(":")
        record = self._core.state.jobs.get(JobId(job_id))
        if end.usage is not None and record is not None and rank.isdecimal() and int(rank) not in record.measured:
            now, usage = self._core.now(), end.usage
            self._core.loop.post(RankMeasured(time=now, job_id=record.job.id, rank=int(rank), usage=usage))
        return replace(end, usage=None)

    def _owns(self, placeholder: PlaceholderId, task: str) -> bool:
        return self.output_path(placeholder, task) is not None

    def on_output(self, task: str, stream: str, offset: int, data: bytes) -> None:
        """Process new output of a task, which its file already has."""
        self.unwritten.written(task, stream)
        runner = self._runner_of(task)
        if runner is not None:
            self._react(runner.output_of(task, stream, offset, data, self._core.now()))
        self._core.note_change()

    def on_unwritten(self, task: str, stream: str, file: Path, why: str) -> None:
        if self.unwritten.note(task, stream, file, why):
            self._core.note_change()

    def on_written(self, task: str, stream: str) -> None:
        self.unwritten.written(task, stream)
        self._core.note_change()

    def take_file(self, placeholder: PlaceholderId, piece: FilePiece) -> FileAck:
        return self.results.take(placeholder, piece)

    async def check_file(self, placeholder: PlaceholderId, piece: FilePiece) -> FileAck:
        return await self.results.check(placeholder, piece)

    def files_done(self, placeholder: PlaceholderId, files: TaskFiles) -> None:
        self.results.conclude(placeholder, files)

    async def route(self, placeholder: PlaceholderId, asked: TunnelAsked) -> Route | None:
        return await self.relays.route(placeholder, asked)

    def _react(self, reaction: Reaction) -> None:
        self._sending.add(reaction.launches)
        for event in reaction.events:
            self._report_new(event)

    def output_path(self, placeholder: PlaceholderId, task: str) -> Path | None:
        """Return where a task's output goes, without ``.out`` or ``.err``; None: the task is not that agent's."""
        job_id, _, tail = task.partition(":")
        record = self._core.state.jobs.get(JobId(job_id))
        if record is None:
            return None
        if tail == LAUNCHER_TASK:
            mine = record.ranks and record.ranks[0].placeholder == placeholder
            return self.directory / job_id / LAUNCHER_TASK if mine else None
        if not tail.isdecimal() or int(tail) >= len(record.ranks):
            return None
        rank = record.ranks[int(tail)]
        if rank.placeholder != placeholder:
            return None
        return self.directory / job_id / rank.component / str(rank.component_rank)

    def input_path(self, placeholder: PlaceholderId, task: str, content: str) -> Path | None:
        """Return where an input file is, by the digest of its content; None: the task is not that agent's."""
        if not self._owns(placeholder, task):
            return None
        kept = self.inputs.path(JobId(task.partition(":")[0]), content)
        return kept if kept.exists() else self._core.directory / CACHE / content

    def _rank_directory(self, placeholder: PlaceholderId, task: str) -> Path | None:
        return None if task.endswith(f":{LAUNCHER_TASK}") else self.output_path(placeholder, task)

    def files_under_way(self, placeholder: PlaceholderId) -> bool:
        """Return whether output files of a rank are arriving or may still arrive."""
        found = self._core.state.placeholders.get(placeholder)
        record = None if found is None else self._core.state.jobs.get(found.job_id)
        if record is None or not any(one.output_files for one in record.job.components):
            return False
        return any(
            rank.rank in record.started
            and record.job.component(rank.component).output_files
            and self.results.under_way(placeholder, task_id(record.job.id, rank.rank))
            for rank in self._ranks_in(record).get(placeholder, ())
        )

    def _ranks_in(self, record: JobRecord) -> Mapping[PlaceholderId, Sequence[Rank]]:
        """Return a job's ranks by placeholder, cached until they change."""
        ranks, found = self._by_placeholder
        if ranks is not record.ranks:
            found = by_placeholder(record.ranks)
            self._by_placeholder = record.ranks, found
        return found

    def _order(self, one: AddressedLaunch) -> bool:
        try:
            return self._core.center.tell(one.placeholder, one.launch)
        except ProtocolError as error:  # for one, files that have grown between the check and their copying
            self._cannot_launch(one.launch.task, str(error))
            return False

    def _cannot_launch(self, task: str, why: str) -> None:
        job_id, _, rank = task.partition(":")
        log.warning("application cannot be launched", job=job_id, error=why)
        end = TaskEnd(reason=EndReason.LAUNCH_FAILED, exit_code=1, detail=why)
        number = int(rank) if rank.isdecimal() else None
        self._core.loop.post(RankEnded(time=self._core.now(), job_id=JobId(job_id), rank=number, end=end))

    def _job_in(self, placeholder: PlaceholderId) -> JobRecord | None:
        found = self._core.state.placeholders.get(placeholder)
        if found is None or found.state is not PlaceholderState.LAUNCHED:
            return None
        return self._core.state.jobs.get(found.job_id)

    def _runner_of(self, task: str) -> Runner | None:
        record = self._core.state.jobs.get(JobId(task.partition(":")[0]))
        return None if record is None else self._runner(record)

    def _runner(self, record: JobRecord) -> Runner | None:
        if record.state not in {JobState.LAUNCHING, JobState.RUNNING}:
            return None
        job = record.job
        if job.id not in self._runners:
            try:
                self.set_aside(record)
                made = _runner_class(job)
                self._runners[job.id] = runner = made(self._application(record))
                self._reread(job.id, runner)
            except Exception as error:  # noqa: BLE001 - whatever it is, the job ends by it, and nothing else
                if not isinstance(error, OSError | KoalaError):
                    report_defect("launching a job", error, job=job.id)
                self._runners.pop(job.id, None)
                self._cannot_launch(task_id(job.id, LAUNCHER_TASK if job.launcher is Launcher.MPI else 0), str(error))
                return None
        return self._runners[job.id]

    def _application(self, record: JobRecord, former: Application | None = None) -> Application:
        """Return a job as placed, with its present ranks.

        ``former``: the same job with other ranks, whose files are not read again. Raises OSError, KoalaError.
        """
        job = record.job
        if former is None:
            files: Mapping[str, tuple[LaunchFile, ...]] = {
                c.name: self.inputs.launch_files(job.id, c) for c in job.components
            }
        else:
            files = former.files
        library = self._library(job) if former is None else former.library
        ranks = tuple(rank for rank in record.ranks if rank.rank not in record.departed)
        software = {
            one.name: ClusterSoftware(
                setup=one.setup, software=one.software, container_runtime=one.container_runtime or ""
            )
            for one in self._core.site.clusters
        }
        application = Application(
            job=job,
            ranks=ranks,
            files=files,
            replicas={name: one.found for name, one in self._core.state.clusters.items()},
            library=library,
            software=software,
            attempt=record.attempts_over + 1,
            places=self._places(record),
            share=self.inputs.share(job.id),
            relay=self.relays.plan(job),
        )
        application.check_clusters()
        return application

    def _places(self, record: JobRecord) -> tuple[str, ...]:
        """Return where nodes may find large input files: the caches of sites, and the contents that are kept here."""
        site = self._core.site
        configs = [site.cluster(claim.cluster) for claim in record.claims if claim.cluster]
        remotes = [site.remote_site(config) for config in configs if site.cache_bound(config)]
        caches = dict.fromkeys(f"{one.directory if one else self._core.directory}/{CACHE}" for one in remotes)
        return (*caches, str(self.inputs.contents))

    def workers(self, record: JobRecord) -> WorkersRunner | None:
        """Return the runner of a job with workers; None for other jobs and those that do not run."""
        runner = self._runner(record)
        return runner if isinstance(runner, WorkersRunner) else None

    def adaptive(self, record: JobRecord) -> AdaptiveRunner | None:
        """Return the runner of a job whose processes change together; None for others and those that do not run."""
        runner = self._runner(record)
        return runner if isinstance(runner, runners.AdaptiveRunner) else None

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        """Start the processes of new ranks of a running job."""
        runner = self._runner(record)
        if runner is None:
            return
        try:
            self._sending.add(runner.grow(self._application(record, runner.application), ranks))
        except (OSError, KoalaError) as error:
            self._cannot_launch(task_id(record.job.id, min(ranks)), str(error))

    def order(self, orders: Iterable[Order]) -> None:
        """Send orders to agents; those out of contact get them when they register."""
        for one in orders:
            if isinstance(one, AddressedLaunch):
                self._sending.add([one])
            else:
                self._core.center.tell(one.placeholder, one.signal)

    def _reread(self, job_id: JobId, runner: Runner) -> None:
        """Let a new runner parse the launcher's earlier output, after a restart."""
        printed = self.directory / job_id / f"{LAUNCHER_TASK}.out"
        if printed.exists():
            self._react(
                runner.output_of(task_id(job_id, LAUNCHER_TASK), "out", 0, printed.read_bytes(), self._core.now())
            )

    def _library(self, job: Job) -> tuple[LaunchFile, ...]:
        """Return the library files that are put beside a process. Raises OSError, KoalaError."""
        if job.runner is RunnerName.SWEEP:
            return self._sweeps.library(job)
        if job.runner is not RunnerName.ADAPTIVE:
            return ()
        return (LaunchFile(target=FILE_NAME, mode=0o600, content=library_file().encode()),)


def _runner_class(job: Job) -> type[Runner]:
    """Return the class of a job's runner."""
    match job.runner, job.launcher:
        case RunnerName.WORKERS, _:
            return WorkersRunner
        case RunnerName.SWEEP, _:
            return SweepRunner
        case RunnerName.RANKS, Launcher.PROCESS:
            return ProcessRunner
        case RunnerName.RANKS, _:
            return runners.MpiRunner
        case _, Launcher.PROCESS:
            return runners.AdaptiveRunner
        case _:
            return runners.RestartedMpiRunner if job.mpi_resize is MpiResize.RESTART else runners.AdaptiveMpiRunner


# -- Reports of ended jobs -----------------------------------------------------------------------------------
# A report is kept when its job ends, when that end is corrected, and when no placeholder of the job is left, because
# files of its ranks may arrive until then.


class Archive:
    """Reports of jobs that have ended, in the journal."""

    def __init__(self, core: Core, applications: Applications, make_report: Callable[[JobId], str]) -> None:
        """``make_report`` returns JSON."""
        self._core = core
        self._journal = core.journal
        self._applications = applications
        self._make_report = make_report
        self._ending: set[JobId] = set()
        """Jobs with an outcome whose placeholders are not all gone."""
        self._complete = False

    def catch_up(self) -> None:
        """Keep reports of jobs that ended or were corrected before a kill. Raises JournalBlockedError."""
        for job_id, record in self._core.state.jobs.items():
            if record.state.final and record.live:
                self._ending.add(job_id)
            if record.outcome is not None and self._journal.finished.outcome(job_id) != asdict(record.outcome):
                self.keep(job_id)
        self._complete = True

    def conclude(self, unfinished: Iterable[JobId]) -> None:
        """Record at an orderly end which jobs are unfinished; all other reports are kept.

        Raises JournalBlockedError.
        """
        if self._complete:
            self.close_over()
            self._journal.leave_closing_note(unfinished)

    def keep(self, job_id: JobId) -> None:
        """Keep the present report of a finished job. Raises JournalBlockedError."""
        record = self._core.state.jobs[job_id]
        finished_at = record.finished_at or self._core.state.now or 0.0
        with contained("keeping the report of a job", job=job_id):
            self._journal.finished.keep(job_id, finished_at, self._make_report(job_id))

    def ended(self, job_id: JobId) -> None:
        """Keep the report of a job that has just ended. Raises JournalBlockedError."""
        self._applications.forget(job_id)
        self._ending.add(job_id)
        self.keep(job_id)

    def close_over(self) -> None:
        """Keep final reports again, as output files may have come after the jobs ended.

        Raises JournalBlockedError.
        """
        jobs = self._core.state.jobs
        for job_id in [id_ for id_ in self._ending if id_ not in jobs or not jobs[id_].live]:
            if job_id in jobs:
                self.keep(job_id)
            self._ending.discard(job_id)
            self._applications.results.forget(self._applications.directory / job_id)
