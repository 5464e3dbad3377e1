# SPDX-License-Identifier: Apache-2.0
"""A site in Python: its service, started on demand, its jobs and clusters; and sites inside this machine."""

from __future__ import annotations

import threading
import warnings
from contextlib import suppress
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter import config, lrm, policies, python, sitesetup
from koala_adapter.api.client import Client, stand_by
from koala_adapter.api.statedirectory import JOURNAL_NAME, check_directory, ended_within, require_journal
from koala_adapter.config.locations import SiteFileState, locate_site_file, state_directory
from koala_adapter.config.tomlfile import read_text
from koala_adapter.config.written import DescribedJob
from koala_adapter.errors import (
    ConfigurationError,
    KoalaError,
    ProtocolError,
    ServiceUnavailableError,
)
from koala_adapter.python.jobs import JobHandle, JobResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from koala_adapter.api.closedjournal import ClosedJournal
    from koala_adapter.api.offline import JournalView, WithoutService
    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.lrm import PluginDefinition
    from koala_adapter.model import Job as CheckedJob
    from koala_adapter.python.description import Job
    from koala_adapter.report.sitevalues import CleanReport, ClusterReport, PlanReport, SampleSubmission
    from koala_adapter.scheduler.knownpolicies import Policies


# -- The site ------------------------------------------------------------------------------------------------

FIRST_LOOK = 30.0
"""Seconds within which a service that has just started should have seen its clusters."""
ENDING = 30.0
"""Seconds that a service which is about to end may take, and one that was asked to end."""
LATEST = 50


class Site:
    """The clusters of a site file, and the service that runs jobs there for one state directory.

    The service is that which answers; where none does, the first job starts one in the background, as `koala submit`
    does. It goes on without this program, and ends by itself half an hour after the last job.

    As a context manager it leaves nothing behind: at the end of the block the jobs submitted in it are waited for, or
    cancelled if the block ends with an exception, and a service that was started for them ends.

    All methods may be called from several threads at once, and from inside an event loop, which they block.
    """

    def __init__(
        self,
        file: str | PathLike[str] | None = None,
        *,
        state: str | PathLike[str] | None = None,
        notice: Callable[[str], None] = warnings.warn,
        before_reading: Callable[[], None] = lambda: None,
    ) -> None:
        """``file``, ``state``: as for :meth:`load`; here nothing is read or checked before it is used.

        ``notice``: is told in one line when the site file has changed since the service read it. ``before_reading``:
        called before the site answers by itself, as no service runs.
        """
        self._notice = notice
        self._before_reading = before_reading
        self._named_file = None if file is None else Path(file)
        self._named_state = None if state is None else Path(state)
        self._lock = threading.Lock()
        self._begun: int | None = None
        self._blocks = 0
        self._submitted: set[str] = set()
        self._told_of_change = False

    @classmethod
    def load(cls, file: str | PathLike[str] | None = None, *, state: str | PathLike[str] | None = None) -> Self:
        """Read and check a site file.

        ``file``: default $KOALA_SITE, ~/.config/koala/site.toml or /etc/koala/site.toml. ``state``: the
        directory of the service's private state, default $KOALA_STATE or ~/.local/state/koala. Raises
        ConfigurationError.
        """
        site = cls(file, state=state)
        _ = site.config, site.directory
        return site

    def __repr__(self) -> str:
        """Return the site file and the state directory."""
        return f"koala.Site({str(self._named_file or '')!r}, state={str(self._named_state or '')!r})"

    # ---- where it is ------------------------------------------------------------------------------------------------

    @cached_property
    def plugins(self) -> Mapping[str, PluginDefinition]:
        """The installed plugins. Raises PluginError."""
        return lrm.load_plugins()

    @cached_property
    def policies(self) -> Policies:
        """What the scheduler may use: koala's own policies and the installed ones. Raises PluginError."""
        return policies.load_policies()

    @cached_property
    def file(self) -> Path:
        """The site file; where there is none, that of the running service. Raises ConfigurationError."""
        found = locate_site_file(self._named_file)
        if found is not None:
            return found
        in_force = self.client.site_in_force()
        if in_force is not None and in_force.digest:
            return Path(in_force.path)
        raise sitesetup.no_site_file_here(self.plugins)

    @cached_property
    def file_state(self) -> SiteFileState:
        """The site file as it was when it was read, or just before. Raises ConfigurationError."""
        return SiteFileState.of(self.file)

    @cached_property
    def config(self) -> SiteConfig:
        """What the site file says. Raises ConfigurationError."""
        _ = self.file_state
        return config.load_site(self.file, self.plugins)

    @cached_property
    def directory(self) -> Path:
        """The state directory, there or not. Raises ConfigurationError when it belongs to another user."""
        directory = state_directory(self._named_state)
        check_directory(directory)
        return directory

    @cached_property
    def client(self) -> Client:
        """The service of the state directory, whether it runs or not."""
        return Client(self.directory)

    def check_in_force(self, *, tell_change: bool = True) -> None:
        """Raise ConfigurationError if the service runs on another site file.

        ``tell_change``: give notice if the file has changed since the service read it.
        """
        in_force = self.client.site_in_force()
        if in_force is None or in_force.digest == self.file_state.digest:
            return
        if not in_force.is_file_of(self.file_state):
            message = f"the service in {self.directory} runs on the site file {in_force.path}, and not on {self.file}"
            way_out = f"use --site {in_force.path} or another --state directory, or end it with `koala serve --stop`"
            raise ConfigurationError(message, hint=way_out)
        if tell_change and not self._told_of_change:
            self._told_of_change = True
            self._notice(f"{in_force.path} has changed since the service read it; `koala serve --reload` takes it up")

    # ---- jobs -------------------------------------------------------------------------------------------------------

    def checked(self, job: Job | str | PathLike[str], *, source: str = "koala.Job") -> CheckedJob:
        """Return a job as the service takes it, checked against the site file.

        ``job``: a description, or the path of a job file. Input files of a description are relative to the current
        directory. ``source``: what refusals call a description. Raises ConfigurationError with all that is wrong, one
        problem per line.
        """
        if isinstance(job, str | PathLike):
            described = DescribedJob.of_file(Path(job), read_text(Path(job)))
        else:
            described = DescribedJob.of_values(job.values(), source=source)
        self.check_in_force()
        # The service has imported what checks a job, which takes several times as long as all else that is done here.
        with suppress(ServiceUnavailableError, ProtocolError):
            return self.client.check(described)
        return config.job_as_described(described, user=lrm.login_name(), site=self.config)

    def submit(self, job: Job | str | PathLike[str] | CheckedJob) -> JobHandle:
        """Hand a job to the service, and start one if none runs; return a handle on the job.

        ``job``: a description, the path of a job file, or what :meth:`checked` returned. Raises ConfigurationError,
        JobRefusedError and ServiceUnavailableError.
        """
        from concurrent.futures import ThreadPoolExecutor

        wanted = self.checked(job) if isinstance(job, str | PathLike | python.Job) else job
        with ThreadPoolExecutor(1) as thread:
            # Where Ctrl-C comes upon a submission, it must be known whether there is a job to be cancelled.
            submission = thread.submit(self._submit, wanted)
            try:
                job_id = submission.result()
            except KeyboardInterrupt:
                with suppress(KoalaError):
                    self.client.cancel(submission.result())
                raise
        return self.job(job_id)

    def _submit(self, job: CheckedJob) -> str:
        job_id = self.client.submit(job, begin=self.begin_service)
        self.note(job_id)
        return job_id

    def note(self, job_id: str) -> None:
        """Have a job waited for, or cancelled, at the end of the block in which it was submitted, if it was in one."""
        with self._lock:
            if self._blocks:
                self._submitted.add(job_id)

    def run(
        self,
        job: Job | str | PathLike[str] | CheckedJob,
        *,
        timeout: float | None = None,
        check: bool = True,
        show: bool = False,
    ) -> JobResult:
        """Run a job to its end, and leave no service behind that was started for it.

        ``timeout``: seconds; then, and when it is interrupted, the job is cancelled. ``check``: raise JobFailedError
        when it ends otherwise than well. ``show``: as :meth:`JobHandle.show`. Raises JobTimeoutError, and what
        :meth:`submit` raises.
        """
        with self.for_a_block() as there:
            handle = there.submit(job)
            try:
                return handle.ended(timeout, check=check, show=show)
            except BaseException:
                with suppress(KoalaError):
                    handle.cancel()
                raise

    def job(self, job_id: str) -> JobHandle:
        """Return a handle on a job by its id, whether there is such a job or not."""
        return JobHandle(self, job_id)

    def jobs(self, limit: int = LATEST) -> list[JobHandle]:
        """Return handles on the latest jobs in order of submission, ``limit`` of them at most."""
        return [self.job(report.id) for report in self.information().jobs(limit)]

    def information(self) -> Client | ClosedJournal | JournalView:
        """Return the source of information on jobs: the service, or the journal when none runs.

        Raises ServiceUnavailableError when there has never been a service.
        """
        if self.client.running():
            return self.client
        require_journal(self.directory)  # before what reads journals is imported
        from koala_adapter.api.closedjournal import closed_journal

        return closed_journal(self.directory / JOURNAL_NAME, self.recorded) or self.recorded()

    def recorded(self) -> JournalView:
        """Return the state that the journal has. Raises ServiceUnavailableError if there has never been a service."""
        require_journal(self.directory)  # before what reads journals is imported
        return self._offline.recorded()

    def plan(self, job: CheckedJob, tell: Callable[[str], None] = lambda _names: None) -> PlanReport:
        """Return where a job would go now, by the service, or by the clusters themselves where none runs.

        ``tell`` gets the names of clusters that have not answered yet.
        """
        if not self.client.running():
            return self._offline.plan(self.config, self.plugins, job, tell)
        self.client.wait_until_seen(FIRST_LOOK)
        return self.client.plan(job)

    def script(self, job: CheckedJob, cluster: str) -> tuple[list[SampleSubmission], str]:
        """Return what would be submitted to a cluster, and what in that is not certain yet. Nothing is sent."""
        if not self.client.running():
            return self._offline.script(self.config, self.plugins, job, cluster)
        return self.client.script(job, cluster), ""

    def clusters(self, tell: Callable[[str], None] = lambda _names: None) -> list[ClusterReport]:
        """Return the clusters as the service sees them, or as they answer now where none runs.

        ``tell`` gets the names of clusters that have not answered yet. What is wrong with one is in its report.
        """
        if not self.client.running():
            return self._offline.clusters(self.config, self.plugins, tell)
        self.check_in_force()
        return self.client.clusters()

    def clean(self, older: float, *, dry_run: bool) -> CleanReport:
        """Remove what is left of jobs that ended more than ``older`` seconds ago, or only tell; takes its time."""
        if not self.client.running():
            return self._offline.clean(older, dry_run=dry_run)
        if self._named_file is not None:
            self.check_in_force(tell_change=False)
        return self.client.clean(older, dry_run=dry_run)

    @cached_property
    def _offline(self) -> WithoutService:
        """Answers while no service runs."""
        from koala_adapter.api.offline import WithoutService

        self._before_reading()
        return WithoutService(self.directory, self.policies)

    # ---- the service ------------------------------------------------------------------------------------------------

    def begin_service(self) -> int | None:
        """Start a service if none answers; return its process id, or None if one ran already.

        Raises ServiceRunningError and ServiceUnavailableError.
        """
        if self.client.running():
            return None

        pid = stand_by(self.client, self.file)
        if pid is not None:
            with self._lock:
                self._begun = pid
        return pid

    def for_a_block(self) -> Site:
        """Return the same site for a block that is to end with its own jobs: within a block this one, else another.

        Jobs that other threads submit here meanwhile, outside of any block, are none of its affair.
        """
        with self._lock:
            if self._blocks:
                return self
        other = Site(
            self._named_file, state=self._named_state, notice=self._notice, before_reading=self._before_reading
        )
        known = ("plugins", "policies", "file", "file_state", "config", "directory", "client")
        other.__dict__.update({name: self.__dict__[name] for name in known if name in self.__dict__})
        return other

    def __enter__(self) -> Self:
        """Begin a block at whose end the jobs submitted in it are over."""
        with self._lock:
            self._blocks += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for the jobs, which are cancelled first after an exception; end the service if it is ours and idle."""
        with self._lock:
            self._blocks -= 1
            if self._blocks:
                return
            left, self._submitted = self._submitted, set()
            ours = self._begun is not None
        handles = [self.job(job_id) for job_id in sorted(left)]
        try:
            if kind is not None:
                for handle in handles:
                    with suppress(KoalaError):
                        handle.cancel()
            for handle in handles:
                if ours:
                    handle.wait_until_over()
                else:
                    handle.wait()
        finally:
            self._end_service()

    async def __aenter__(self) -> Self:
        """As the block without ``async``; its end does not block the event loop."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """As the end of the block without ``async``."""
        from anyio import CancelScope, to_thread

        with CancelScope(shield=True):
            await to_thread.run_sync(self.__exit__, kind, error, traceback)

    def _end_service(self) -> None:
        """End the service that was started here, unless it has got other jobs meanwhile; return when it is gone."""
        with self._lock:
            pid, self._begun = self._begun, None
        if pid is None:
            return
        with suppress(KoalaError):
            if self.client.pid() == pid and self.client.stop_if_idle():
                ended_within(pid, ENDING)


# -- Functions of everyday use -------------------------------------------------------------------------------
# Each uses the site file that a command would find, or a given one.


def submit(job: Job | str | PathLike[str], *, site: Site | None = None) -> JobHandle:
    """Hand a job, or a job file, to the service of a site; see :meth:`Site.submit`.

    ``site``: default :meth:`Site.load`. Who submits many jobs loads it once.
    """
    return (site or Site.load()).submit(job)


def run(
    job: Job | str | PathLike[str],
    *,
    timeout: float | None = None,
    check: bool = True,
    show: bool = False,
    site: Site | None = None,
) -> JobResult:
    """Run a job, or a job file, to its end and return how it ended; see :meth:`Site.run`."""
    return (site or Site.load()).run(job, timeout=timeout, check=check, show=show)


def clusters(*, site: Site | None = None) -> list[ClusterReport]:
    """Return the clusters: what is idle, what koala holds, how often it asks; see :meth:`Site.clusters`."""
    return (site or Site.load()).clusters()


def job(job_id: str, *, site: Site | None = None) -> JobHandle:
    """Return a handle on a job that was submitted earlier, by this program or any other."""
    return (site or Site.load()).job(job_id)


def jobs(limit: int = LATEST, *, site: Site | None = None) -> list[JobHandle]:
    """Return handles on the latest jobs in order of submission, ``limit`` of them at most."""
    return (site or Site.load()).jobs(limit)
