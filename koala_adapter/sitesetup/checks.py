# SPDX-License-Identifier: Apache-2.0
"""The checks of ``koala check``: progress shown to the user, this host, each cluster, all clusters side by side."""

from __future__ import annotations

import math
import os
import socket
import stat
import sys
import tempfile
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from koala_adapter import __version__
from koala_adapter.api.statedirectory import socket_path
from koala_adapter.config.sitefile import ANY_ADDRESS, shortest_poll_interval
from koala_adapter.errors import KoalaError, LrmError
from koala_adapter.lrm import CheckResult
from koala_adapter.lrm.commands import THIS_HOST
from koala_adapter.lrm.rate import URGENT_SHARE, WINDOW
from koala_adapter.outcome import JobState
from koala_adapter.service.clusters import read_cluster
from koala_adapter.service.opening import SiteHosts, close_lrm, make_lrm
from koala_adapter.service.replicas import read_at
from koala_adapter.sitesetup.sitecheck import SiteCheck
from koala_adapter.sitesetup.trial import Meeting, Trial, TrialCenter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.api.client import Client
    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.lrm import Lrm, PluginDefinition
    from koala_adapter.lrm.commands import CommandRunner
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.model import Queue
    from koala_adapter.service.clusters import ClusterReading


# -- Progress of a check, shown to the user ------------------------------------------------------------------

SOON = 2.0
"""Seconds without an answer from which on that is told."""
TOLD_EVERY = 1.0
"""Seconds."""


class Progress:
    """Shows the progress of a cluster's check."""

    def __init__(self, tell: Callable[[str], None], commands: CommandRunner) -> None:
        """``commands``: runs the commands of batch systems; progress names those that have not returned."""
        self._tell = tell
        self._commands = commands
        self._step = ""

    def __call__(self, step: str) -> None:
        """Show the present step."""
        self._step = step
        self._tell(step)

    async def tell_waits(self) -> None:
        """Show requests without an answer and their waiting time, until cancelled."""
        while True:
            await anyio.sleep(TOLD_EVERY)
            awaited = self._commands.awaited
            if awaited is not None and awaited[1] >= SOON:
                name, seconds = awaited
                self._tell(f"{self._step}: no answer of {name} for {seconds:.0f} s")


# -- This host: everything that needs no cluster -------------------------------------------------------------

OLDEST_PYTHON = (3, 11)


class Installation(Protocol):
    """Parts of the installation to be checked, each loaded on demand; loading may raise KoalaError."""

    @property
    def plugins(self) -> Mapping[str, PluginDefinition]:
        """The installed plugins."""

    @property
    def directory(self) -> Path:
        """The state directory, there or not."""

    @property
    def site_file(self) -> Path:
        """Path of the site file."""

    @property
    def site(self) -> SiteConfig:
        """The validated site file."""

    @property
    def client(self) -> Client:
        """The service, whether it runs or not."""


def check_host(installation: Installation) -> Iterator[CheckResult]:
    """Check everything that needs no cluster; what builds on a failure is left out."""
    yield _python()
    yield _package()
    plugins = _guarded("plugins", lambda: ", ".join(sorted(dict(installation.plugins))))
    yield plugins
    directory = _guarded("state directory", lambda: _state_directory(installation))
    yield directory
    if directory.ok:
        yield _service(installation)
    if plugins.ok:
        site = _guarded("site file", lambda: _site_file(installation))
        yield site
        if site.ok:
            yield _address(installation.site)


def _python() -> CheckResult:
    version = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= OLDEST_PYTHON
    return CheckResult(
        subject="Python", ok=ok, found=f"{version} in {sys.executable}", remedy="install Python 3.11 or newer"
    )


def _package() -> CheckResult:
    try:
        installed = metadata.version("koala-adapter")
    except metadata.PackageNotFoundError:
        remedy = "pip install koala-adapter: without its metadata no plugin is found"
        return CheckResult(subject="koala-adapter", ok=False, found=f"{__version__}, not installed", remedy=remedy)
    ok = installed == __version__
    found = __version__ if ok else f"{__version__}, but its metadata say {installed}"
    return CheckResult(subject="koala-adapter", ok=ok, found=found, remedy="install it again: pip install ...")


def _guarded(subject: str, look: Callable[[], str]) -> CheckResult:
    """Return the result of ``look``, or a failed result for what it raises."""
    try:
        return CheckResult(subject=subject, ok=True, found=look())
    except KoalaError as error:
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=error.hint)
    except OSError as error:
        return CheckResult(subject=subject, ok=False, found=str(error))


def _state_directory(installation: Installation) -> str:
    directory = installation.directory
    socket_path(directory)
    if not directory.exists():
        return f"{directory} (not there yet; made when needed)"
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o077:
        raise KoalaError(f"{directory} is open to others (mode {mode:o})", hint=f"chmod 700 {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise KoalaError(f"{directory} is not writable", hint=f"chmod 700 {directory}")
    return f"{directory} (private)"


def _service(installation: Installation) -> CheckResult:
    pid = installation.client.pid()
    found = "none runs; `koala run` and `koala submit` need none" if pid is None else f"runs (pid {pid})"
    return CheckResult(subject="service", ok=True, found=found)


def _site_file(installation: Installation) -> str:
    names = ", ".join(cluster.name for cluster in installation.site.enabled_clusters)
    return f"{installation.site_file} ({names or 'no cluster takes jobs of koala'})"


def _address(site: SiteConfig) -> CheckResult:
    """Check that the names by which nodes are to find this host mean something, at least here."""
    center = site.control_center
    addresses = dict.fromkeys(site.node_address(one) for one in site.enabled_clusters if one.site is None)
    for address in addresses:
        try:
            found = {str(entry[4][0]) for entry in socket.getaddrinfo(address, None)}
        except OSError as error:
            remedy = "set control_center.address to a name or address of this host that nodes can reach"
            said = f"{address!r} has no address here: {error.strerror or error}"
            return CheckResult(subject="address for nodes", ok=False, found=said, remedy=remedy)
        if center.listen in ANY_ADDRESS and found <= {"127.0.0.1", "127.0.1.1", "::1"} and not _all_local(site):
            remedy = "set control_center.address to an address of this host that nodes can reach"
            said = f"{address!r} is {', '.join(sorted(found))}, where every node finds only itself"
            return CheckResult(subject="address for nodes", ok=False, found=said, remedy=remedy)
    port = str(center.port) if center.port else "a port that is chosen once"
    found_ = f"{', '.join(addresses) or 'no cluster is here'}; listens on {center.listen}, {port}"
    return CheckResult(subject="address for nodes", ok=True, found=found_)


def _all_local(site: SiteConfig) -> bool:
    return all(cluster.plugin == "local" for cluster in site.enabled_clusters)


# -- One cluster, from the outside in ------------------------------------------------------------------------

LISTINGS_AS_OWNER = 30
"""Listings a minute of a scheduler that starts all jobs."""
LEAST_RATE = 60
"""Starts a minute below which an outside scheduler keeps processors idle."""
REACH_TIME = 10.0
"""Seconds that a request may take until its cluster is known to answer: a person waits for it, and Slurm's own commands
give up after as long (MessageTimeout)."""
UNANSWERED = (
    f"see whether the batch system is up; this check waits {REACH_TIME:.0f} s for its first answer, "
    "jobs as long as the settings of the cluster say"
)
MOST_JOBS = 1000
"""Of a running service, the latest ones, whose walltimes are compared with the limits of queues."""
STEP_TIME = 60.0 + WINDOW
"""Seconds that each step of a cluster's check may take, its wait for the bound of requests included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCheck:
    """Checks one cluster."""

    config: ClusterConfig
    plugins: Mapping[str, PluginDefinition]
    directory: Path
    """The state directory."""
    tell: Callable[[str], None]
    """Hears what is being looked at."""
    center: TrialCenter | None
    """Where a placeholder is to report; None: none is submitted."""
    timeout: float
    """Seconds that a placeholder may take to report."""
    outside: bool = False
    """Look also at what an outside scheduler needs."""
    asked: Sequence[AskedTime] = ()
    """Walltimes that jobs of a running service wait for."""
    host: LrmHost = THIS_HOST
    """Where the batch system is."""
    meeting: Meeting | None = None
    """Of placeholders at several sites, which try whether they can connect."""

    async def run(self) -> list[CheckResult]:
        """Return what was found; what builds on a failure is left out."""
        try:
            lrm, commands = make_lrm(self.config, self.plugins, self.directory, host=self.host)
        except (OSError, KoalaError) as error:
            return [CheckResult(subject="plugin", ok=False, found=str(error))]
        progress = Progress(self.tell, commands)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(progress.tell_waits)
                results = await replace(self, tell=progress).look(lrm, commands)
                tasks.cancel_scope.cancel()
            return results
        finally:
            await close_lrm(lrm)

    async def look(self, lrm: Lrm, commands: CommandRunner) -> list[CheckResult]:
        """Return what was found of a cluster whose plugin has not started yet."""
        results: list[CheckResult] = []
        self.tell("starting")
        commands.patience = REACH_TIME
        try:
            with anyio.fail_after(STEP_TIME):
                await lrm.start()
        except (LrmError, TimeoutError) as error:
            remedy = UNANSWERED if commands.unanswered else _hint(error)
            start = CheckResult(subject="start", ok=False, found=_said(error), remedy=remedy)
            return [*results, start, *await self._plugin_checks(lrm), *self._untried(lrm)]
        commands.patience = REACH_TIME if commands.unanswered else None
        results += await self._plugin_checks(lrm)
        commands.patience = REACH_TIME if commands.unanswered else None
        if not any(result.subject == "version" for result in results):
            results.append(await self._step("version", lrm.version))
        results.append(await self._step("nodes", lambda: self._nodes(lrm, commands.host.user)))
        answers = results[-1].ok
        if not answers and commands.unanswered:
            return [*results, *self._untried(lrm)]  # each further question would wait as long
        results.append(await self._queue(lrm))
        results.append(self._requests(lrm))
        if self.config.catalogue is not None:
            catalogue = self.config.catalogue
            results.append(await self._step("catalogue", lambda: self._catalogue(catalogue)))
        if answers and self.outside:
            self.tell("trying whether jobs come in held")
            results += [self._rate_of_starts(lrm), *await lrm.check_outside()]
        if not answers:
            results += self._untried(lrm)
        elif self.center is not None and lrm.capabilities.submit:
            trial = Trial(
                self.center,
                self.config,
                lrm,
                commands,
                timeout=self.timeout,
                tell=self.tell,
                meeting=self.meeting,
            )
            results += await trial.run()
        return results

    def _untried(self, lrm: Lrm) -> list[CheckResult]:
        """Return what is said of a trial placeholder that is not submitted, as its batch system does not answer."""
        if self.center is None or not lrm.capabilities.submit:
            return []
        remedy = "mend what fails above, and check again"
        found = "not tried, as the batch system does not answer: whether it takes submissions is not known"
        return [CheckResult(subject="placeholder", ok=False, found=found, remedy=remedy)]

    async def _plugin_checks(self, lrm: Lrm) -> list[CheckResult]:
        self.tell("looking at commands and libraries")
        try:
            with anyio.fail_after(2 * STEP_TIME):
                return list(await lrm.check())
        except TimeoutError as error:
            return [CheckResult(subject="plugin", ok=False, found=_said(error))]

    async def _step(self, subject: str, look: Callable[[], Awaitable[str]]) -> CheckResult:
        self.tell(f"asking for {subject}")
        try:
            with anyio.fail_after(STEP_TIME):
                return CheckResult(subject=subject, ok=True, found=await look())
        except (LrmError, TimeoutError) as error:
            return CheckResult(subject=subject, ok=False, found=_said(error), remedy=_hint(error))

    async def _nodes(self, lrm: Lrm, user: str) -> str:
        reading = await read_cluster(self.config, lrm, name_prefix="koala-", user=user, read_at=0.0)
        if not reading.processors:
            raise LrmError("it lists no processors", hint="check the queue, and the settings, of this cluster")
        kept = self.config.parameters.threshold
        threshold = f", {kept} of them left to local users" if kept else ""
        if kept >= reading.processors:
            raise LrmError(
                f"threshold {kept} leaves nothing of its {reading.processors} processors",
                hint="lower `threshold` in the site file",
            )
        nodes = f"{len(reading.nodes)} node{'s' if len(reading.nodes) != 1 else ''}"
        return f"{nodes}, {_places(reading)}, {reading.idle} idle{threshold}"

    async def _catalogue(self, path: str) -> str:
        read = await read_at(self.host, path)
        if read is None:
            raise LrmError(f"catalogue {path} is being written just now", hint="try again in some seconds")
        return f"{path}: {len(read.catalogue.paths)} files and directories"

    async def _queue(self, lrm: Lrm) -> CheckResult:
        name = self.config.queue
        return await self._step(f"queue {name}" if name else "queue", lambda: self._queue_found(lrm))

    async def _queue_found(self, lrm: Lrm) -> str:
        queues = await lrm.queues()
        name = self.config.queue
        chosen = [queue for queue in queues if (queue.name == name if name else queue.default)]
        if name and not chosen and not lrm.capabilities.lists_queues:
            return f"{name} is asked for by its name; the LRM does not say whether there is such a queue"
        if name and not chosen:
            known = ", ".join(queue.name for queue in queues) or "none"
            raise LrmError(f"there is no queue {name!r}; there are: {known}", hint="correct `queue` in the site file")
        if not chosen:
            return f"the LRM chooses among {', '.join(queue.name for queue in queues) or 'its own'}"
        return self._described(chosen[0])

    def _described(self, queue: Queue) -> str:
        if not queue.up:
            raise LrmError(f"{queue.name} is not open", hint="wait until it is, or name another `queue`")
        limit, ours = queue.walltime_limit, self.config.parameters.walltime_limit
        if limit is None:
            return f"{queue.name}, no walltime limit"
        waiting = [one for one in self.asked if self.config.name in one.clusters or not one.clusters]
        longest = max(waiting, key=lambda one: one.seconds, default=None)
        if ours is None and longest is not None and longest.seconds > limit:
            raise LrmError(
                f"{queue.name} grants at most {limit} s; here job {longest.job_id} would ask for {longest.seconds} s, "
                "and never start",
                hint=f"set walltime_limit = {limit} for this cluster, so that koala places such jobs elsewhere",
            )
        if ours is not None and ours > limit:
            raise LrmError(
                f"{queue.name} grants at most {limit} s, the site file promises {ours} s",
                hint=f"set walltime_limit = {limit} for this cluster",
            )
        advice = "" if ours is not None else f"; say walltime_limit = {limit} in the site file, so that koala knows it"
        return f"{queue.name}, walltime limit {limit} s{advice}"

    def _requests(self, lrm: Lrm) -> CheckResult:
        config, each = self.config, lrm.requests_per_poll
        shortest = shortest_poll_interval(config.requests_per_minute, each)
        found = f"a poll costs up to {each}, every {config.poll_interval:g} s, of {config.requests_per_minute} a minute"
        remedy = f"set poll_interval to {math.ceil(10 * shortest) / 10:g} s or more, or raise requests_per_minute"
        return CheckResult(subject="requests", ok=config.poll_interval >= shortest, found=found, remedy=remedy)

    def _rate_of_starts(self, lrm: Lrm) -> CheckResult:
        """Say how many jobs a minute can be started within the bound, listings every other second counted."""
        bound, listings = self.config.requests_as_owner, LISTINGS_AS_OWNER * lrm.requests_per_poll
        rate = max(0, int(bound * (1 - URGENT_SHARE)) - listings) // lrm.requests_per_start
        wanted = -(-(LEAST_RATE * lrm.requests_per_start + listings) * 5 // 4)
        found = f"about {rate} starts a minute, of {bound} requests a minute"
        remedy = f"leave requests_per_minute out of the site file, or give {wanted} or more"
        return CheckResult(subject="rate of starts", ok=rate >= LEAST_RATE, found=found, remedy=remedy)


def _places(reading: ClusterReading) -> str:
    """Return how many placeholders a cluster has room for, and why they are fewer than its processors."""
    processors = sum(node.processors for node in reading.nodes)
    if processors == reading.processors:
        return f"{processors} processors"
    whole = any((reading.queue or "") in node.whole_queues for node in reading.nodes)
    given = "whole nodes" if whole else "whole cores or sockets"
    return f"{processors} processors with room for {reading.processors} placeholders, as each job is given {given}"


def _said(error: BaseException) -> str:
    if isinstance(error, KoalaError):
        return error.message
    return f"no answer within {STEP_TIME:.0f} s"


def _hint(error: BaseException) -> str:
    return error.hint if isinstance(error, KoalaError) else "is the batch system up?"


# -- All clusters side by side -------------------------------------------------------------------------------
# Findings are reported in the order of the site file.


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedTime:
    """Walltime of waiting jobs, with the time for their start."""

    job_id: str
    seconds: int
    clusters: frozenset[str]
    """Where it is, or must be; empty: anywhere."""


def asked_times(installation: Installation) -> list[AskedTime]:
    """Return the walltimes of the waiting jobs of a running service; none when it does not answer."""
    with suppress(KoalaError):
        if installation.client.pid() is None:
            return []
        parameters = installation.site.parameters
        more = int(parameters.launch_margin + parameters.placeholder_life)
        return [
            AskedTime(
                job_id=job.id,
                seconds=job.walltime + more,
                clusters=frozenset(one.cluster for one in job.components if one.cluster is not None),
            )
            for job in installation.client.jobs(MOST_JOBS)
            if job.state in {JobState.WAITING, JobState.CLAIMING}
        ]
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Subject of check results: a cluster, a site, the way between two sites, or this host."""

    site: str | None = None
    cluster: str | None = None
    between: bool = False

    @classmethod
    def of(cls, config: ClusterConfig) -> Place:
        """Return the place of a cluster."""
        return cls(site=config.site, cluster=config.name)

    def __str__(self) -> str:
        """Return what a person is told of it."""
        general = "between sites" if self.between else "this host"
        return self.cluster or (f"site {self.site}" if self.site else general)


class _Results:
    """The results of places, which are reported in order, and what is being looked at meanwhile."""

    def __init__(
        self,
        clusters: Sequence[ClusterConfig],
        tell: Callable[[Mapping[str, str]], None],
        found: Callable[[Place, Sequence[CheckResult]], None],
    ) -> None:
        """The order is that of the clusters; a site comes before the first of its own."""
        places = [place for one in clusters for place in (Place(site=one.site), Place.of(one)) if place != Place()]
        self._awaited = list(dict.fromkeys(places))
        self._progress: dict[str, str] = {}
        self._done: dict[Place, Sequence[CheckResult]] = {}
        self._tell = tell
        self._found = found

    def show(self, place: Place, text: str) -> None:
        """Tell what is being looked at."""
        self._progress[str(place)] = text
        self._tell(self._progress)

    def take(self, place: Place, results: Sequence[CheckResult]) -> None:
        """Take in the results of a place; none: it could not be looked at."""
        self._done[place] = results
        self._progress.pop(str(place), None)
        while self._awaited and self._awaited[0] in self._done:
            first = self._awaited.pop(0)
            if self._done[first]:
                self._found(first, self._done[first])


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """Options of ``koala check``."""

    timeout: float | None
    """Seconds that a placeholder may take to report; None: none is submitted."""
    outside: bool
    """Look also at what an outside scheduler needs."""
    only: tuple[str, ...] = ()
    """Names of the clusters to be looked at; empty: all that are in use."""


async def check_clusters(
    installation: Installation,
    options: CheckOptions,
    *,
    tell: Callable[[Mapping[str, str]], None],
    found: Callable[[Place, Sequence[CheckResult]], None],
) -> None:
    """Check the clusters side by side, and before them the sites that they are at.

    ``tell`` hears what is being looked at in each place that is not checked yet. ``found`` gets the results of each
    place when those before it are there; and for this host, what keeps placeholders from being tried at all.
    """
    clusters = [config for config in installation.site.clusters if _is_checked(installation, config, options)]
    results = _Results(clusters, tell, found)
    asked = await anyio.to_thread.run_sync(asked_times, installation)
    async with AsyncExitStack() as stack:
        center_tasks = await stack.enter_async_context(anyio.create_task_group())
        center: TrialCenter | None = None
        if options.timeout is not None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="koala-check-")))
            center, trouble = await _listen(installation, directory, center_tasks)
            if trouble is not None:
                found(Place(), [trouble])
        meeting = None if center is None else Meeting(center, clusters)
        hosts = await stack.enter_async_context(SiteHosts(installation.site.sites, installation.directory))
        checks = [
            ClusterCheck(
                config=config,
                plugins=installation.plugins,
                directory=installation.directory,
                tell=partial(results.show, Place.of(config)),
                center=center,
                timeout=options.timeout or 0.0,
                outside=options.outside,
                asked=asked,
                host=hosts.at(config.site),
                meeting=meeting,
            )
            for config in clusters
        ]
        async with anyio.create_task_group() as tasks:
            if meeting is not None:
                tasks.start_soon(meeting.run)
            tasks.start_soon(_check_all, [check for check in checks if check.config.site is None], results)
            for remote in installation.site.sites:
                if there := [check for check in checks if check.config.site == remote.name]:
                    place = Place(site=remote.name)
                    site = SiteCheck(
                        config=remote,
                        host=hosts.at(remote.name),
                        center=None if center is None else center.address_here,
                        tell=partial(results.show, place),
                    )
                    tasks.start_soon(_check_at_site, site, there, results)
        if meeting is not None and meeting.sites:
            found(Place(between=True), meeting.results())
        center_tasks.cancel_scope.cancel()


async def _check_all(checks: Sequence[ClusterCheck], results: _Results) -> None:
    async def one(check: ClusterCheck) -> None:
        found = await check.run()
        _stay_away(check)
        results.take(Place.of(check.config), found)

    async with anyio.create_task_group() as tasks:
        for check in checks:
            tasks.start_soon(one, check)


async def _check_at_site(site: SiteCheck, there: Sequence[ClusterCheck], results: _Results) -> None:
    """Check a site, and its clusters if it can be connected."""
    found = await site.run()
    results.take(Place(site=site.config.name), found)
    if found[0].ok:
        await _check_all(there, results)
        return
    for check in there:
        _stay_away(check)
        results.take(Place.of(check.config), [])


def _stay_away(check: ClusterCheck) -> None:
    """Have no agent of a cluster waited for any more."""
    if check.meeting is not None:
        check.meeting.stay_away(check.config.cluster_name)


def _is_checked(installation: Installation, config: ClusterConfig, options: CheckOptions) -> bool:
    """Return whether a cluster is checked: it is named, or enabled.

    Where nothing can be submitted it is not enabled, and yet scheduled from outside.
    """
    if options.only:
        return config.name in options.only
    return config.enabled or not installation.plugins[config.plugin].capabilities.submit


async def _listen(
    installation: Installation, directory: Path, tasks: TaskGroup
) -> tuple[TrialCenter | None, CheckResult | None]:
    """Return a control center that listens, or why it cannot."""
    center = TrialCenter(installation.site, directory, state=installation.directory)
    try:
        await center.serve(tasks)
    except KoalaError as error:
        return None, CheckResult(subject="control center", ok=False, found=error.message, remedy=error.hint)
    return center, None
