# SPDX-License-Identifier: Apache-2.0
"""What ``koala check`` looks at: this host first, then each cluster from the outside in."""

from __future__ import annotations

import os
import socket
import stat
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import anyio

from koala_adapter import __version__
from koala_adapter.api.offline import close_lrm
from koala_adapter.api.statedirectory import socket_path
from koala_adapter.cli.trial import Trial
from koala_adapter.config.sitemodel import ANY_ADDRESS, shortest_poll_interval
from koala_adapter.errors import KoalaError, LrmError
from koala_adapter.plugin import CheckResult
from koala_adapter.plugin.commands import login_name
from koala_adapter.service.clusterdriver import make_lrm
from koala_adapter.service.poller import read_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from koala_adapter.cli.session import Session
    from koala_adapter.cli.trial import TrialCenter
    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.model import Queue
    from koala_adapter.plugin import Lrm

OLDEST_PYTHON = (3, 11)
START_TIME = 60.0
"""Seconds that a cluster may take for each step of its check."""


def check_host(session: Session) -> Iterator[CheckResult]:
    """Check everything that needs no cluster; what builds on a failure is left out."""
    yield _python()
    yield _package()
    plugins = _guarded("plugins", lambda: ", ".join(sorted(session.plugins)))
    yield plugins
    directory = _guarded("state directory", lambda: _state_directory(session))
    yield directory
    if directory.ok:
        yield _service(session)
    if plugins.ok:
        site = _guarded("site file", lambda: _site_file(session))
        yield site
        if site.ok:
            yield _address(session.site)


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
    """Make a result of what ``look`` returns or raises."""
    try:
        return CheckResult(subject=subject, ok=True, found=look())
    except KoalaError as error:
        return CheckResult(subject=subject, ok=False, found=error.message, remedy=error.hint)
    except OSError as error:
        return CheckResult(subject=subject, ok=False, found=str(error))


def _state_directory(session: Session) -> str:
    directory: Path = session.directory
    socket_path(directory)
    if not directory.exists():
        return f"{directory} (not there yet; made when needed)"
    mode = stat.S_IMODE(directory.stat().st_mode)
    if mode & 0o077:
        raise KoalaError(f"{directory} is open to others (mode {mode:o})", hint=f"chmod 700 {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise KoalaError(f"{directory} is not writable", hint=f"chmod 700 {directory}")
    return f"{directory} (private)"


def _service(session: Session) -> CheckResult:
    pid = session.client.pid()
    found = "none runs; `koala run` and `koala submit` need none" if pid is None else f"runs (pid {pid})"
    return CheckResult(subject="service", ok=True, found=found)


def _site_file(session: Session) -> str:
    names = ", ".join(cluster.name for cluster in session.site.enabled_clusters)
    return f"{session.site_file} ({names or 'no cluster takes jobs of koala'})"


def _address(site: SiteConfig) -> CheckResult:
    """Check that the names by which nodes are to find this host mean something, at least here."""
    center = site.control_center
    addresses = dict.fromkeys(site.node_address(cluster) for cluster in site.enabled_clusters)
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
    found_ = f"{', '.join(addresses) or 'none needed'}; listens on {center.listen}, {port}"
    return CheckResult(subject="address for nodes", ok=True, found=found_)


def _all_local(site: SiteConfig) -> bool:
    return all(cluster.plugin == "local" for cluster in site.enabled_clusters)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterCheck:
    """Checks one cluster."""

    session: Session
    config: ClusterConfig
    tell: Callable[[str], None]
    """Hears what is being looked at."""
    center: TrialCenter | None
    """Where a placeholder is to report; None: none is submitted."""
    timeout: float
    """Seconds that a placeholder may take to report."""
    outside: bool = False
    """Look also at what an outside scheduler needs."""

    async def run(self) -> list[CheckResult]:
        """Return what was found; what builds on a failure is left out."""
        try:
            lrm, _ = make_lrm(self.config, self.session.plugins, self.session.directory)
        except (OSError, KoalaError) as error:
            return [CheckResult(subject="plugin", ok=False, found=str(error))]
        try:
            return await self._look(lrm)
        finally:
            await close_lrm(lrm)

    async def _look(self, lrm: Lrm) -> list[CheckResult]:
        self.tell("starting")
        try:
            with anyio.fail_after(START_TIME):
                await lrm.start()
        except (LrmError, TimeoutError) as error:
            start = CheckResult(subject="start", ok=False, found=_said(error), remedy=_hint(error))
            return [start, *await self._plugin_checks(lrm)]
        results = await self._plugin_checks(lrm)
        if not any(result.subject == "version" for result in results):
            results.append(await self._step("version", lrm.version))
        results.append(await self._step("nodes", lambda: self._nodes(lrm)))
        answers = results[-1].ok
        results.append(await self._queue(lrm))
        results.append(self._requests(lrm))
        if answers and self.outside:
            self.tell("trying whether jobs come in held")
            results += await lrm.check_outside()
        if answers and self.center is not None and lrm.capabilities.submit:
            trial = Trial(self.center, self.config, lrm, timeout=self.timeout, tell=self.tell)
            results += await trial.run()
        return results

    async def _plugin_checks(self, lrm: Lrm) -> list[CheckResult]:
        self.tell("looking at commands and libraries")
        try:
            with anyio.fail_after(2 * START_TIME):
                return list(await lrm.check())
        except TimeoutError as error:
            return [CheckResult(subject="plugin", ok=False, found=_said(error))]

    async def _step(self, subject: str, look: Callable[[], Awaitable[str]]) -> CheckResult:
        self.tell(f"asking for {subject}")
        try:
            with anyio.fail_after(START_TIME):
                return CheckResult(subject=subject, ok=True, found=await look())
        except (LrmError, TimeoutError) as error:
            return CheckResult(subject=subject, ok=False, found=_said(error), remedy=_hint(error))

    async def _nodes(self, lrm: Lrm) -> str:
        reading = await read_cluster(self.config, lrm, name_prefix="koala-", user=login_name(), read_at=0.0)
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
        return f"{nodes}, {reading.processors} processors, {reading.idle} idle{threshold}"

    async def _queue(self, lrm: Lrm) -> CheckResult:
        name = self.config.queue
        return await self._step(f"queue {name}" if name else "queue", lambda: self._queue_found(lrm))

    async def _queue_found(self, lrm: Lrm) -> str:
        queues = await lrm.queues()
        name = self.config.queue
        chosen = [queue for queue in queues if (queue.name == name if name else queue.default)]
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
        remedy = f"set poll_interval to {shortest:g} s or more, or raise requests_per_minute"
        return CheckResult(subject="requests", ok=config.poll_interval >= shortest, found=found, remedy=remedy)


def _said(error: BaseException) -> str:
    if isinstance(error, KoalaError):
        return error.message
    return f"no answer within {START_TIME:.0f} s"


def _hint(error: BaseException) -> str:
    return error.hint if isinstance(error, KoalaError) else "is the batch system up?"
