# SPDX-License-Identifier: Apache-2.0
"""Bringing input files to the caches of sites, and of this host, before processors are claimed there.

To sites go large files, and everywhere files with logical names that are elsewhere.

What a cache has is not sent; what has come of a content before a connection broke, or the service was killed, is gone
on with. A site that is away, and a cache that is full of files of other jobs, are waited for. The cache keeps what
unfinished jobs of this service need, as far as they were placed at its site, and else what was used latest.
"""

from __future__ import annotations

import errno
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.config.tomlfile import show_size
from koala_adapter.errors import LrmUnavailableError
from koala_adapter.host.containment import contained
from koala_adapter.model import CACHED, LOGICAL, ClusterName, InputFile, JobId
from koala_adapter.scheduler.events import FilesFound, FilesStaged, StagingFailed, StagingProgressed
from koala_adapter.scheduler.placement.policies import is_below
from koala_adapter.service.core import Core, Nudge
from koala_adapter.service.inputfiles import InputStore, KeptFile
from koala_adapter.sites.contents import (
    Cache,
    Content,
    HostCache,
    PassingError,
    SiteCache,
    cached_path,
    digest_at,
    pieces_at,
)
from koala_adapter.sites.remotesite import RemoteSite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from anyio.abc import TaskGroup

    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.scheduler.actions import StageFiles
    from koala_adapter.service.information import Information, Routes

HERE = ""
"""In the place of a site's name: this host."""
AT_ONCE = 4
"""Contents on their way to one site at the same time."""
PAUSE = 5.0
"""Seconds until a site that was away, or a cache that was full, is tried again."""
TELL = 5.0
"""Seconds between two events on one transfer, at least."""
TELL_FIRST = 1.0
"""Seconds until its rate is told for the first time."""
CHANGE = 0.2
"""Share by which the expected end must move to be told."""
METER = 10.0
"""Seconds after which what went to a site is told to the information service."""
LEAST_METERED = 1024 * 1024
"""Bytes that tell something of the bandwidth."""
LEAST_DIRECT = 1024 * 1024
"""Bytes of a content that comes directly: a connection of its own costs more than a smaller one."""
PASSING = frozenset({errno.EAGAIN, errno.EBADMSG, errno.ESTALE})
"""Errors of a part of a content: one that was lost still writes to it, or it was not what it was said to be."""
MOST_FAULTS = 10
NO_CATALOGUE = "no catalogue has that name any more"
LOOK_INTERVAL = 15.0
"""Seconds until a site that was away at the start is asked again for what its cache has."""

log = structlog.get_logger()


class _FullError(Exception):
    """A cache has no room now: the files of other jobs are in it."""


@dataclass(slots=True)
class Transfer:
    """The files of one job on their way to one cluster."""

    job_id: JobId
    cluster: ClusterName
    files: dict[str, KeptFile]
    """By digest: of equal contents any."""
    named: tuple[InputFile, ...] = ()
    """Files with logical names; those that were found are in ``files``, too."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    missing: int = 0
    """Bytes that have yet to go."""
    waits_for: str = ""
    """Why nothing goes at present."""
    admitted: bool = False
    """There is room for all of them, and they are kept."""
    faults: int = 0
    """Faults at the site that may pass by themselves."""
    done: bool = False
    began: float = 0.0
    moved: int = 0
    """Bytes that went since then."""
    told_at: float = 0.0
    told_end: float = 0.0
    """Expected end that was told last."""
    source: str = ""
    """Site from which the latest content comes directly; empty: from this host."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())

    def rate(self, now: float) -> float | None:
        """Return bytes a second, as far as known."""
        return self.moved / (now - self.began) if self.moved and now > self.began else None


class _Site:
    """A site, or this host, with a cache, and what is known of it."""

    def __init__(self, name: str, cache: Cache, bound: int) -> None:
        """``name``: HERE for this host."""
        self.name = name
        self.bound = bound
        self.cache = cache
        self.whole: set[str] = set()
        """Digests of what it has."""
        self.room = anyio.Lock()
        """Held while room is made, so that no two jobs count on the same."""
        self.lanes = anyio.CapacityLimiter(AT_ONCE)
        self.arriving: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        """By digest: one transfer sends it, others wait for that."""
        self.moving = self.moved = 0
        """Contents on their way, and bytes that went since ``since``."""
        self.since = 0.0


class Stager:
    """Carries out the wishes of the scheduler to have input files at clusters."""

    def __init__(self, core: Core, inputs: InputStore, information: Information) -> None:
        """``inputs`` has the files; ``information`` the ways from other sites, and is told of transfers from here."""
        self._core = core
        self._inputs = inputs
        self._information = information
        self._sites: dict[str, _Site] = {}
        self._transfers: dict[tuple[JobId, ClusterName], Transfer] = {}
        self._tasks: TaskGroup | None = None
        self._let_go = anyio.Event()
        """Set, and replaced, when files of a job may go."""
        self.changed = Nudge()
        """A cache has other contents than before."""

    def start(self, tasks: TaskGroup, hosts: Mapping[str, LrmHost]) -> None:
        """Begin, within ``tasks``. ``hosts``: by the names of clusters."""
        for config in self._core.site.enabled_clusters:
            bound, host = self._core.site.cache_bound(config), hosts.get(config.name)
            if bound and config.site is None:
                self._sites.setdefault(HERE, _Site(HERE, HostCache(self._core.directory), bound))
            elif bound and config.site is not None and isinstance(host, RemoteSite):
                self._sites.setdefault(config.site, _Site(config.site, SiteCache(host), bound))
        self._tasks = tasks
        for site in self._sites.values():
            tasks.start_soon(self._look_first, site)
        for transfer in self._transfers.values():
            tasks.start_soon(self._run, transfer)

    async def _look_first(self, site: _Site) -> None:
        """Learn what the cache of a site has from earlier."""
        while True:
            with contained("looking into the cache of a site", site=site.name):
                try:
                    site.whole |= set((await site.cache.look()).whole)
                except LrmUnavailableError:
                    await anyio.sleep(LOOK_INTERVAL)
                    continue
                except OSError as error:
                    log.info("the cache of a site cannot be used", site=site.name, error=str(error))
                self.changed.set()
            return

    # -- what the scheduler wants ------------------------------------------------------------------------------------

    def stage(self, action: StageFiles) -> None:
        """Bring files to a cluster, or report the progress of a transfer under way."""
        key = (action.job_id, action.cluster)
        transfer = self._transfers.get(key)
        try:
            files = {file.digest: file for file in self._kept(action)}
        except (OSError, ValueError) as error:  # so that the launch fails, with the same reason
            log.warning("input files are gone", job=action.job_id, error=str(error))
            files = {}
        named = tuple(file for file in action.files if file.logical)
        names = {file.source for file in named}
        if (
            transfer is None
            or names != {file.source for file in transfer.named}
            or files.keys() != {key for key, one in transfer.files.items() if one.source not in names}
        ):
            self.stop(*key)
            self._transfers[key] = transfer = Transfer(action.job_id, action.cluster, files, named)
            transfer.missing = transfer.size
            if self._tasks is not None:
                self._tasks.start_soon(self._run, transfer)
        elif transfer.done:
            self._core.loop.post(FilesStaged(time=self._core.now(), job_id=action.job_id, cluster=action.cluster))
        else:
            self._tell(transfer, always=True)

    def _kept(self, action: StageFiles) -> Iterator[KeptFile]:
        wanted = {file.source for file in action.files}
        job = self._core.state.jobs[action.job_id].job
        for component in job.components:
            if component.has_large_files and wanted.issuperset(file.source for file in component.files_sent):
                yield from self._inputs.files(job.id, component)

    def stop(self, job_id: JobId, cluster: ClusterName) -> None:
        """Bring files of a job no further, and let go of those that are there."""
        transfer = self._transfers.pop((job_id, cluster), None)
        if transfer is not None:
            transfer.scope.cancel()
            self._let_go.set()
            self._let_go = anyio.Event()

    # -- what is known -----------------------------------------------------------------------------------------------

    def held(self, site: str, file: InputFile) -> bool:
        """Tell whether the cache of a site has an input file, as it was kept last."""
        digests = self._inputs.digests(file)
        known = self._sites.get(site)
        return bool(digests) and known is not None and digests <= known.whole

    def of_job(self, job_id: JobId) -> Iterator[Transfer]:
        """Return the transfers of a job that are not over."""
        return (one for (job, _), one in self._transfers.items() if job == job_id and not one.done)

    # -- one transfer ------------------------------------------------------------------------------------------------

    async def _run(self, transfer: Transfer) -> None:
        site = self._site_of(transfer)
        with transfer.scope, contained("bringing input files to a site", job=transfer.job_id, site=site.name):
            while not transfer.done:
                error = await self._try(transfer, site)
                if isinstance(error, LrmUnavailableError):
                    await self._wait(transfer, error.message, anyio.Event())
                elif isinstance(error, _FullError):
                    text = f"the cache of {site.cache.where} is full of files of other jobs"
                    await self._wait(transfer, text, self._let_go)
                elif error is not None and error.errno in PASSING and transfer.faults < MOST_FAULTS:
                    transfer.faults += 1
                    # A file with a logical name may have changed since it was looked at.
                    transfer.files = {
                        digest: file for digest, file in transfer.files.items() if not file.source.startswith(LOGICAL)
                    }
                    await self._wait(transfer, f"at {site.cache.where}: {error}", anyio.Event())
                elif error is not None:
                    self._fail(transfer, f"input files cannot be brought to {site.cache.where}: {error}")
                    return

    async def _try(self, transfer: Transfer, site: _Site) -> LrmUnavailableError | _FullError | OSError | None:
        """Bring files to a site; return the error that prevented it, or None."""
        try:
            await self._bring(transfer, site)
        except (LrmUnavailableError, _FullError, OSError) as error:
            return error
        except ExceptionGroup as group:  # of several contents
            found = group.subgroup((LrmUnavailableError, OSError))
            first = None if found is None else found.exceptions[0]
            if isinstance(first, LrmUnavailableError | OSError):
                return first
            raise
        return None

    def _site_of(self, transfer: Transfer) -> _Site:
        config = self._core.site.cluster(transfer.cluster)
        return self._sites[config.site or HERE]

    async def _wait(self, transfer: Transfer, why: str, until: anyio.Event) -> None:
        new = transfer.waits_for != why
        if new:
            log.info("input files wait", job=transfer.job_id, cluster=transfer.cluster, reason=why)
        transfer.waits_for, transfer.moved, transfer.admitted = why, 0, False
        if not transfer.began:
            transfer.missing = transfer.size  # what is there already is not known
        # The scheduler would submit placeholders by an estimate that does not hold any more.
        self._tell(transfer, always=new and transfer.missing > 0)
        with anyio.move_on_after(PAUSE):
            await until.wait()

    async def _bring(self, transfer: Transfer, site: _Site) -> None:
        """Send what a site has not yet. Raises LrmUnavailableError, OSError and _FullError."""
        await self._identify(transfer)
        if transfer.size > site.bound:
            sizes = f"they have {show_size(transfer.size)}, its cache may have {show_size(site.bound)}"
            raise OSError(f"{sizes}: raise its cache_mib")
        found = await site.cache.look(transfer.files.keys())
        site.whole = (site.whole - transfer.files.keys()) | found.whole.keys()
        missing = {digest: file.size for digest, file in transfer.files.items() if digest not in found.whole}
        transfer.missing = sum(missing.values()) - sum(found.parts.get(digest, 0) for digest in missing)
        transfer.began, transfer.moved = self._core.now(), 0
        self._tell(transfer, always=bool(missing) and not transfer.waits_for)
        async with site.room:
            # Files of a job that waits for room are not kept: two of them could wait for each other.
            others = [one for one in self._transfers.values() if one.admitted and self._site_of(one) is site]
            keep = {digest for one in (transfer, *others) for digest in one.files}
            need = transfer.missing + sum(one.missing for one in others)
            if missing:
                removed, lacking = await site.cache.make_room(need, bound=site.bound, keep=keep)
                site.whole -= set(removed)
                if lacking:
                    raise _FullError
            transfer.admitted, transfer.waits_for = True, ""
        async with anyio.create_task_group() as tasks:
            for digest in missing:
                tasks.start_soon(self._send, transfer, site, digest)
        transfer.done, transfer.missing = True, 0
        names = {file.source for file in transfer.named}
        places = [(one.source, f"{CACHED}{one.digest}/{one.size}") for one in transfer.files.values()]
        if brought := tuple((source, place) for source, place in places if source in names):
            self._core.loop.post(FilesFound(time=self._core.now(), cluster=transfer.cluster, found=brought))
        self._core.loop.post(FilesStaged(time=self._core.now(), job_id=transfer.job_id, cluster=transfer.cluster))
        if missing:
            self.changed.set()

    async def _identify(self, transfer: Transfer) -> None:
        """Find out the contents of files with logical names. Raises LrmUnavailableError and OSError."""
        known = {one.source for one in transfer.files.values()}
        for file in transfer.named:
            if file.source in known:
                continue
            fault: LrmUnavailableError | OSError = OSError(f"{file.source}: {NO_CATALOGUE}")
            for host, path in self._holders(file.source):
                try:
                    digest, size = await digest_at(host, path)
                except (LrmUnavailableError, OSError) as error:
                    fault = error
                    continue
                transfer.files[digest] = KeptFile(
                    target=file.target, mode=0o400, size=size, modified=0, digest=digest, source=file.source
                )
                break
            else:
                raise fault

    def _holders(self, source: str) -> Iterator[tuple[LrmHost, str]]:
        """Yield where a file with a logical name is by the catalogues, with its paths."""
        for config in self._core.site.enabled_clusters:
            record = self._core.state.clusters.get(config.cluster_name)
            place = "" if record is None else record.found.get(source, "")
            if place.startswith("/"):
                yield self._core.lrm_hosts[config.name], place

    async def _send(self, transfer: Transfer, site: _Site, digest: str) -> None:
        async with site.arriving[digest], site.lanes:
            if digest in site.whole:  # with another job's files meanwhile
                transfer.missing -= transfer.files[digest].size
                return
            if not await self._send_directly(transfer, site, digest):
                await self._send_from_here(transfer, site, digest)
            site.whole.add(digest)

    async def _send_from_here(self, transfer: Transfer, site: _Site, digest: str) -> None:
        def sent(size: int) -> None:
            site.moved += size
            self._meter(site)
            self._came(transfer, size)

        # What has come of it is asked for now: a transfer that another job gave up may have brought some.
        offset = (await site.cache.look([digest])).parts.get(digest, 0)
        transfer.source, file = "", transfer.files[digest]
        self._meter(site, begins=1)
        try:
            if not file.source.startswith(LOGICAL):
                await site.cache.put_file(self._inputs.path(transfer.job_id, digest), digest, offset, sent)
                return
            holders = sorted(self._holders(file.source), key=lambda one: bool(one[0].trouble))
            if not holders:
                raise OSError(f"{file.source}: {NO_CATALOGUE}")
            host, path = holders[0]
            pieces = pieces_at(host, path, offset, sent)
            await site.cache.put(pieces, digest, size=file.size, offset=offset)
        finally:
            self._meter(site, begins=-1)

    async def _send_directly(self, transfer: Transfer, site: _Site, digest: str) -> bool:
        """Have another site send a content, where one can and is not slower, and tell whether it is there now."""
        routes, size = self._information.routes, transfer.files[digest].size
        if site.name == HERE or size < LEAST_DIRECT:
            return False
        for source, path in self._origins(routes, transfer, site, digest):
            offset = (await site.cache.look([digest])).parts.get(digest, 0)
            content = Content(path=path, digest=digest, size=size, offset=offset)
            transfer.source = source
            try:
                if path.startswith("/") and not await routes.has(source, content):
                    continue
                await routes.pass_content(source, site.name, content, lambda size: self._came(transfer, size))
            except PassingError as error:
                log.info("a file does not come directly", source=source, target=site.name, reason=str(error))
            else:
                log.info("a file has come directly", source=source, target=site.name, size=size - offset)
                return True
        return False

    def _origins(self, routes: Routes, transfer: Transfer, site: _Site, digest: str) -> list[tuple[str, str]]:
        """Return the sites that may send a content directly, with its paths there, the fastest first.

        Those of which no bandwidth is known come before: it is found out so.
        """
        file, found = transfer.files[digest], dict[str, str]()
        for config in self._core.site.enabled_clusters:
            record = self._core.state.clusters.get(config.cluster_name)
            places = {} if record is None else record.found
            held = (*config.parameters.files, *(path for path in places.values() if path))
            if config.site is not None and file.source.startswith(LOGICAL):
                if (path := places.get(file.source, "")).startswith("/"):
                    found[config.site] = path
            elif config.site is not None and any(is_below(file.source, path) for path in held):
                found[config.site] = file.source
        caches = [name for name, other in self._sites.items() if name != HERE and digest in other.whole]
        found |= dict.fromkeys(caches, cached_path(digest))
        target = self._core.state.clusters.get(transfer.cluster)
        least = 0.0 if target is None or file.source.startswith(LOGICAL) else target.bandwidth or 0.0
        rates = {name: routes.bandwidth(name, site.name) for name in found if routes.is_open(name, site.name)}
        usable = {name: inf if rate is None else rate for name, rate in rates.items() if rate is None or rate >= least}
        return [(name, found[name]) for name in sorted(usable, key=lambda name: -usable[name])]

    def _came(self, transfer: Transfer, size: int) -> None:
        transfer.missing = max(0, transfer.missing - size)
        transfer.moved += size
        self._tell(transfer)
        self._core.note_change()

    def _meter(self, site: _Site, begins: int = 0) -> None:
        """Tell what went to a site after a while, and when nothing goes any more."""
        if site.name == HERE:
            return
        now = self._core.now()
        if begins > 0 and not site.moving:
            site.since, site.moved = now, 0
        site.moving += begins
        seconds = now - site.since
        if (seconds >= METER or not site.moving) and site.moved >= LEAST_METERED and seconds > 0:
            self._information.transferred(site.name, site.moved, seconds)
            site.since, site.moved = now, 0

    # -- what is told ------------------------------------------------------------------------------------------------

    def _tell(self, transfer: Transfer, *, always: bool = False) -> None:
        """Tell the scheduler how far files are, if that makes a difference to what was told."""
        now = self._core.now()
        rate = None if transfer.waits_for else transfer.rate(now)
        end = now + transfer.missing / rate if rate else 0.0
        moved = abs(end - transfer.told_end) > CHANGE * max(1.0, transfer.told_end - now)
        pause = TELL if transfer.told_end else TELL_FIRST
        if always or (now - transfer.told_at >= pause and moved):
            transfer.told_at, transfer.told_end = now, end
            self._core.loop.post(
                StagingProgressed(
                    time=now,
                    job_id=transfer.job_id,
                    cluster=transfer.cluster,
                    missing_bytes=transfer.missing,
                    source=transfer.source,
                    rate=rate,
                )
            )

    def _fail(self, transfer: Transfer, reason: str) -> None:
        log.warning("input files cannot be staged", job=transfer.job_id, cluster=transfer.cluster, reason=reason)
        self._transfers.pop((transfer.job_id, transfer.cluster), None)
        self._core.loop.post(
            StagingFailed(time=self._core.now(), job_id=transfer.job_id, cluster=transfer.cluster, reason=reason)
        )
