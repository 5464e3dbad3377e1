# SPDX-License-Identifier: Apache-2.0
"""A site in Python: its service, started on demand, its jobs and clusters; and sites inside this machine."""

from __future__ import annotations

import shutil
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.api.client import Client, new_submission, stand_by, unanswered
from koala_adapter.api.closedjournal import closed_journal
from koala_adapter.api.statedirectory import JOURNAL_NAME, check_directory, ended_within, prepare_directory
from koala_adapter.config.locations import SiteFileState, locate_site_file, state_directory
from koala_adapter.config.tomlfile import toml_of
from koala_adapter.errors import ConfigurationError, KoalaError, ServiceAbsentError, ServiceUnavailableError
from koala_adapter.model import Job as CheckedJob
from koala_adapter.python.jobs import JobHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from koala_adapter.api.closedjournal import ClosedJournal
    from koala_adapter.api.offline import JournalView
    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.lrm import PluginDefinition
    from koala_adapter.python.description import Job
    from koala_adapter.python.jobs import JobResult
    from koala_adapter.report.sitevalues import ClusterReport
    from koala_adapter.scheduler.knownpolicies import Policies


# -- The site ------------------------------------------------------------------------------------------------

ASKING = 60.0
"""Seconds that a cluster may take to answer when no service knows it already."""
ENDING = 30.0
"""Seconds that a service which is about to end may take, and one that was asked to end."""
LOOK_AGAIN = 0.2
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
    ) -> None:
        """``file``, ``state``: as for :meth:`load`; here nothing is read or checked before it is used.

        ``notice``: is told in one line when the site file has changed since the service read it.
        """
        self._notice = notice
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
        from koala_adapter.lrm import load_plugins

        return load_plugins()

    @cached_property
    def policies(self) -> Policies:
        """What the scheduler may use: koala's own policies and the installed ones. Raises PluginError."""
        from koala_adapter.policies.loading import load_policies

        return load_policies()

    @cached_property
    def file(self) -> Path:
        """The site file; where there is none, that of the running service. Raises ConfigurationError."""
        found = locate_site_file(self._named_file)
        if found is not None:
            return found
        in_force = self.client.site_in_force()
        if in_force is not None and in_force.digest:
            return Path(in_force.path)
        from koala_adapter.sitesetup.find import no_site_file_here

        raise no_site_file_here(self.plugins)

    @cached_property
    def file_state(self) -> SiteFileState:
        """The site file as it was when it was read, or just before. Raises ConfigurationError."""
        return SiteFileState.of(self.file)

    @cached_property
    def config(self) -> SiteConfig:
        """What the site file says. Raises ConfigurationError."""
        from koala_adapter.config.sitefile import load_site

        _ = self.file_state
        return load_site(self.file, self.plugins)

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
        from koala_adapter.config.jobfile import job_of_values, load_job
        from koala_adapter.lrm.commands import login_name

        self.check_in_force()
        if isinstance(job, str | PathLike):
            return load_job(Path(job), user=login_name(), site=self.config)
        return job_of_values(job.values(), source=source, user=login_name(), directory=Path.cwd(), site=self.config)

    def submit(self, job: Job | str | PathLike[str] | CheckedJob) -> JobHandle:
        """Hand a job to the service, and start one if none runs; return a handle on the job.

        ``job``: a description, the path of a job file, or what :meth:`checked` returned. Raises ConfigurationError,
        JobRefusedError and ServiceUnavailableError.
        """
        wanted = job if isinstance(job, CheckedJob) else self.checked(job)
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

        until, submission = time.monotonic() + ENDING, new_submission()
        lost: ServiceUnavailableError | None = None
        while True:
            self.begin_service()
            try:
                job_id = self.client.submit(job, submission=submission)
            except ServiceUnavailableError as error:
                if not isinstance(error, ServiceAbsentError):  # it may have taken the job, and then knows this name
                    lost = lost or error
                if time.monotonic() > until:
                    raise unanswered(lost) if lost else error from None
                time.sleep(LOOK_AGAIN)
                continue
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

    def information(self, *, before_reading: Callable[[], None] = lambda: None) -> Client | ClosedJournal | JournalView:
        """Return who tells of jobs: the service, or what its journal says when none runs.

        ``before_reading`` is called before all of a journal is read, which may not be necessary. Raises
        ServiceUnavailableError when there has never been a service.
        """
        if self.client.running():
            return self.client

        def whole() -> JournalView:
            before_reading()
            return self.recorded()

        return closed_journal(self.directory / JOURNAL_NAME, whole) or whole()

    def recorded(self) -> JournalView:
        """Return what the journal says. Raises ServiceUnavailableError when there has never been a service."""
        from koala_adapter.api.offline import recorded

        return recorded(self.directory, self.policies)

    def clusters(self, tell: Callable[[str], None] = lambda _names: None) -> list[ClusterReport]:
        """Return the clusters as the service sees them, or as they answer now where none runs.

        ``tell`` hears which clusters have not answered yet. What is wrong with one is in its report.
        """
        if self.client.running():
            self.check_in_force()
            return self.client.clusters()
        from anyio.from_thread import start_blocking_portal

        from koala_adapter.api.offline import answer_report, ask_clusters, read_record

        prepare_directory(self.directory)
        record = read_record(self.directory, self.policies)
        with start_blocking_portal() as portal:  # in a thread: the caller may have an event loop running in this one
            answers = portal.call(lambda: ask_clusters(self.config, self.plugins, record, timeout=ASKING, tell=tell))
        return [answer_report(record, answer) for answer in answers]

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
        other = Site(self._named_file, state=self._named_state, notice=self._notice)
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


# -- A temporary site inside this machine, for trials and tests ----------------------------------------------
# All of it is removed at the end of the block.


@contextmanager
def local_site(clusters: Sequence[str] = ("alpha", "beta"), *, processors: int = 4) -> Iterator[Site]:
    """Have clusters of ``processors`` processors each, inside this machine, with a service of their own.

    They are batch systems with queues, only small. At the end of the block jobs that are left are waited for, or
    cancelled if it ends with an exception, and everything is removed.

    >>> with local_site(["alpha"], processors=2) as site:
    ...     [(cluster.name, cluster.processors) for cluster in site.clusters()]
    [('alpha', 2)]
    """
    from koala_adapter.api.offline import temporary_directory

    directory = temporary_directory("koala-")
    try:
        file, state = directory / "site.toml", directory / "state"
        state.mkdir(mode=0o700)
        file.write_text(local_site_text(directory, dict.fromkeys(clusters, processors)), encoding="utf-8")
        site = Site.load(file, state=state)
        try:
            with site:
                yield site
        finally:
            _end_all(site, state)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def local_site_text(
    directory: Path,
    clusters: Mapping[str, int],
    scheduler: Mapping[str, str | float] | None = None,
    cluster: Mapping[str, float] | None = None,
) -> str:
    """Return a site file of clusters inside this machine.

    ``directory``: for what placeholders print. ``clusters``: the processors of each, by name. ``scheduler`` and
    ``cluster``: settings of these tables beside, or in place of, the usual ones.
    """
    tables = [
        {
            "name": name,
            "plugin": "local",
            "poll_interval": 0.5,
            "requests_per_minute": 600,
            "output_directory": str(directory),
            **(cluster or {}),
            "settings": {"processors": processors, "idle_seconds": 60},
        }
        for name, processors in clusters.items()
    ]
    return toml_of(
        {
            "control_center": {"listen": "127.0.0.1", "lease": 60, "heartbeat": 1},
            "scheduler": {"scan_interval": 0.5, "launch_margin": 20, "placeholder_life": 300, **(scheduler or {})},
            "clusters": tables,
        }
    )


def _end_all(site: Site, state: Path) -> None:
    """End what the block has left: a service that another one of its programs began, jobs, and the clusters."""
    from anyio.from_thread import start_blocking_portal

    from koala_adapter.api.offline import ENDING, cancel_all, end_daemons, everywhere

    pid = site.client.pid()
    if pid is not None:
        with suppress(KoalaError):
            site.client.stop()
            ended_within(pid, ENDING)
    with start_blocking_portal() as portal:
        portal.call(everywhere, site.config, site.plugins, site.directory, cancel_all)
    end_daemons(state)
