# SPDX-License-Identifier: Apache-2.0
"""Cleaning and reaping: remove what is left of old jobs, and cancel placeholders without an owner.

The first part is ``koala clean`` on a state directory, the second ``koala reap`` on the clusters of a site.
"""

from __future__ import annotations

import re
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmError
from koala_adapter.host.regularfile import paths_below
from koala_adapter.lrm.listing import is_users
from koala_adapter.lrm.rate import SUFFIX, UNUSED_AFTER, remove_window, unused_windows
from koala_adapter.model import BatchKey, JobId, LrmJob, LrmJobId, LrmJobState, PlaceholderId
from koala_adapter.report.sitevalues import CleanReport, Removed
from koala_adapter.service.opening import SiteHosts, close_lrm, make_lrm
from koala_adapter.service.sweepfiles import first_job

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from koala_adapter.config.sitefile import ClusterConfig, SiteConfig
    from koala_adapter.lrm import Lrm, PluginDefinition
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.journal import Journal


# -- Cleaning: directories of jobs that ended long ago -------------------------------------------------------
# First the journal notes that a job is cleaned away, then its directory is renamed, and then that is removed. A
# process killed in between leaves a renamed directory, which the next cleaning removes, and never a job with only
# half of its results.

CLEANED = ".cleaned-"
"""Begins the name of a directory that is being removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Directories found below a state directory."""

    entries: tuple[Path, ...]
    """Below its directory of jobs."""
    old: frozenset[Path]
    """Entries of jobs that are not known, and in which nothing has been written for so long."""
    windows: tuple[Path, ...]
    words: tuple[tuple[BatchKey, Path], ...]
    """What placeholders said long ago, with their submissions."""


@dataclass(slots=True, kw_only=True)
class Chosen:
    """Jobs and files to be removed or spared."""

    report: CleanReport
    """All but what is removed."""
    reports: Removed
    paths: dict[str, list[Path]]
    """Directories and files, by the sort that they are of in a report."""


class Cleaning:
    """One cleaning of a state directory."""

    def __init__(
        self, directory: Path, journal: Journal, state: State, *, older: float, now: float, log: Path | None = None
    ) -> None:
        """``older``: seconds since the end of a job; ``now``: by the clock of the service whose journal it is.

        ``log``: what no service writes to at present.
        """
        self._jobs = directory / "jobs"
        self._directory = directory
        self._journal = journal
        self._state = state
        self._older = older
        self._now = now
        self._log = log
        self._ended_before = now - older
        self._written_before = time.time() - older

    def known(self) -> frozenset[str]:
        """Return the jobs whose directories need not be searched, as they are known now.

        Raises JournalError.
        """
        return frozenset({*self._state.jobs, *dict(self._journal.finished.before(self._ended_before))})

    def look(self, known: Collection[str]) -> Seen:
        """Return the directories that exist; slow, and callable in a thread as it only reads directories."""
        entries = tuple(_entries(self._jobs))
        unknown = (path for path in entries if path.name not in known and not path.name.startswith(CLEANED))
        return Seen(
            entries=entries,
            old=frozenset(path for path in unknown if self._is_old(path)),
            windows=tuple(self._windows()),
            words=tuple(self._words()),
        )

    def later(self) -> Iterator[dict[str, str | None]]:
        """Yield jobs that ended later than the limit, with their sweeps' directories. Raises JournalError."""
        yield from self._journal.finished.sweeps_since(self._ended_before)

    def choose(self, seen: Seen, later: Mapping[str, str | None]) -> Chosen:
        """Choose what to remove of what `look` returned earlier.

        ``later``: all that :meth:`later` yields. Raises JournalError.
        """
        records = self._state.jobs
        old = {id_: None for id_, record in records.items() if self._is_over(record)}
        lengths = dict(self._journal.finished.before(self._ended_before))
        old |= {JobId(id_): None for id_ in lengths if id_ not in records}
        needed = self._needed_sweeps(old, later)
        jobs = [id_ for id_ in old if id_ not in needed]
        unfinished = [id_ for id_, record in records.items() if not record.state.final or record.live]
        known = {*records, *later} - {*unfinished, *old}
        sizes = [lengths[id_] for id_ in jobs if id_ in lengths]
        return Chosen(
            report=CleanReport(
                dry_run=True,
                older=self._older,
                jobs=tuple(jobs),
                removed=(),
                unfinished=len(unfinished),
                newer=len(known),
                continued=tuple(id_ for id_ in old if id_ in needed),
            ),
            reports=Removed(what="reports", number=len(sizes), size=sum(sizes)),
            paths={
                "directories": list(self._directories(seen, set(jobs), {*records, *known, *needed})),
                "request windows": list(seen.windows),
                "words of placeholders": [path for batch, path in seen.words if batch not in self._state.batches],
                "logs": [] if self._log is None or not self._is_old(self._log) else [self._log],
            },
        )

    def _is_over(self, record: JobRecord) -> bool:
        finished_at = record.finished_at
        return record.state.final and not record.live and finished_at is not None and finished_at < self._ended_before

    def _needed_sweeps(self, old: Collection[str], later: Mapping[str, str | None]) -> set[str]:
        """Return the jobs whose directories have sweeps that spared jobs use."""
        needed: set[str] = {first_job(one.job) for id_, one in self._state.jobs.items() if id_ not in old}
        needed |= {Path(one).parent.name for one in later.values() if one is not None}
        return needed

    def _directories(self, seen: Seen, jobs: Collection[str], kept: Collection[str]) -> Iterator[Path]:
        for path in seen.entries:
            name = path.name
            if name in jobs or name.startswith(CLEANED):
                yield path
            elif name not in kept and (self._journal.finished.cleaned_at(name) is not None or path in seen.old):
                yield path  # of a job that a killed cleaning has given up, or that was never taken in

    def _windows(self) -> list[Path]:
        now = min(time.time(), self._written_before + UNUSED_AFTER)
        return unused_windows(self._directory / "requests", now=now)

    def _words(self) -> Iterator[tuple[BatchKey, Path]]:
        """Yield old output files of placeholders, with their submissions."""
        for cluster in _entries(self._directory / "clusters"):
            for path in _entries(cluster / "output"):
                batch = path.name.removesuffix(".out").rpartition(".")[0]
                if batch and self._is_old(path):
                    yield BatchKey(batch), path

    def _is_old(self, path: Path) -> bool:
        """Return whether nothing was written lately; False when that is unknown."""
        try:
            return all(one.lstat().st_mtime < self._written_before for one in (path, *paths_below(path)))
        except OSError:
            return False

    def give_up(self, chosen: Chosen, forget: Callable[[tuple[JobId, ...]], None]) -> None:
        """Drop the records of chosen jobs, so that :meth:`remove` may remove their files.

        ``forget``: has the scheduler drop its records. Raises JournalBlockedError and DefectError, with nothing
        removed.
        """
        remembered = tuple(JobId(id_) for id_ in chosen.report.jobs if id_ in self._state.jobs)
        if remembered:
            forget(remembered)
        self._journal.finished.clean(chosen.report.jobs, self._now)

    def remove(self, chosen: Chosen, *, dry_run: bool) -> CleanReport:
        """Remove files of dropped jobs and return the report; slow, callable in a thread.

        ``dry_run``: nothing is removed, and the report tells what would be.
        """
        removed: list[Removed] = []
        trouble: list[str] = []
        if not dry_run:
            chosen.paths["directories"] = list(_renamed(chosen.paths["directories"], trouble))
        for what, paths in chosen.paths.items():
            number = size = 0
            for path in paths:
                of_this = _size(path)
                try:
                    if not dry_run:
                        _remove(path)
                except OSError as error:
                    trouble.append(f"{error.filename or path}: {error.strerror or error}")
                    continue
                number, size = number + 1, size + of_this
            removed.append(Removed(what=what, number=number, size=size))
        removed.insert(1, chosen.reports)
        told = tuple(one for one in removed if one.number)
        return replace(chosen.report, dry_run=dry_run, removed=told, trouble=tuple(trouble))


def _renamed(directories: Iterable[Path], trouble: list[str]) -> Iterator[Path]:
    """Rename directories of jobs before removal, so that no job has half of its results."""
    for path in directories:
        new = path if path.name.startswith(CLEANED) else path.with_name(f"{CLEANED}{path.name}")
        try:
            yield path.rename(new)
        except OSError as error:
            trouble.append(f"{path}: {error.strerror or error}")


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _size(path: Path) -> int:
    """Return the bytes of the files at and below a path, as far as they can be seen."""
    size = 0
    for one in (path, *paths_below(path)):
        with suppress(OSError):
            status = one.lstat()
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


def _remove(path: Path) -> None:
    """Remove a file or a directory; no error when it is gone. Raises OSError."""
    with suppress(FileNotFoundError):
        if path.suffix == SUFFIX:
            remove_window(path)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


# -- Reaping: placeholders in no journal of ours -------------------------------------------------------------
# First the clusters are listed, then the journal is read. A job that was listed and is in no journal read afterwards
# cannot be a submission under way, because a submission is journaled before the LRM is asked. So this is safe beside
# a running service.

PREFIX = "koala-"
NAME = re.compile(r"koala-([0-9a-f]{8})-\d+")
"""Names of our LRM jobs: koala, the instance (one for each state directory), the number of the submission."""
ASKING = 60.0
"""Seconds that a cluster may take to answer."""
LOOK = 1.0
"""Seconds between two looks at what was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """Names and tokens that a state directory owns by its journal."""

    instance: str
    """Part of the names of its LRM jobs."""
    placeholders: Collection[PlaceholderId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A placeholder without an owner."""

    cluster: str
    id: str
    name: str
    instance: str
    ours: bool
    """True when it is of this state directory."""
    state: str
    node: str


def leftovers(
    cluster: str, listing: Iterable[LrmJob], owned: Owned, *, user: str, all_instances: bool
) -> list[Leftover]:
    """Return the jobs in a listing that are placeholders of this user's and belong to no known service.

    ``all_instances``: also those of other state directories, of which nothing is known.
    """
    found = []
    for job in listing:
        name = NAME.fullmatch(job.name)
        if name is None or not is_users(job, user) or job.state in {LrmJobState.ENDED, LrmJobState.ENDING}:
            continue
        ours = name[1] == owned.instance
        known = PlaceholderId(batch=BatchKey(job.name), index=job.array_index or 1) in owned.placeholders
        if (ours and not known) or (all_instances and not ours):
            found.append(
                Leftover(
                    cluster=cluster,
                    id=job.id,
                    name=job.name,
                    instance=name[1],
                    ours=ours,
                    state=job.state.value,
                    node=", ".join(job.nodes),
                )
            )
    return found


class Reaper:
    """Looks for leftovers in all clusters of a site, and cancels them."""

    def __init__(self, site: SiteConfig, plugins: Mapping[str, PluginDefinition], directory: Path) -> None:
        """``directory``: the state directory."""
        self._site = site
        self._plugins = plugins
        self._directory = directory
        self.found: list[Leftover] = []
        self.stayed: list[Leftover] = []
        """Still there after they were cancelled."""
        self.trouble: dict[str, str] = {}
        """Clusters that did not answer, and why."""

    async def find(self, read_owned: Callable[[], Owned], *, all_instances: bool, tell: Callable[[str], None]) -> None:
        """List all clusters and return placeholders without an owner; see :func:`leftovers`."""
        listings: dict[str, tuple[LrmJob, ...]] = {}
        users: dict[str, str] = {}

        async def ask(config: ClusterConfig) -> None:
            async def jobs(lrm: Lrm, host: LrmHost) -> None:
                listings[config.name] = await lrm.jobs(name_prefix=PREFIX)
                users[config.name] = host.user

            await self._with_lrm(hosts, config, jobs)

        async with self._hosts() as hosts, anyio.create_task_group() as tasks:
            for config in self._site.clusters:
                tell(f"asking {config.name}")
                tasks.start_soon(ask, config)
        owned = read_owned()  # after the listings: a submission is journaled before it is sent
        for name, listing in listings.items():
            self.found += leftovers(name, listing, owned, user=users[name], all_instances=all_instances)

    async def cancel(self, timeout: float, *, tell: Callable[[str], None]) -> None:
        """Cancel leftovers and wait until they are gone, at most ``timeout`` seconds."""
        by_cluster: dict[str, dict[LrmJobId, Leftover]] = {}
        for one in self.found:
            by_cluster.setdefault(one.cluster, {})[LrmJobId(one.id)] = one
        left = dict(by_cluster)

        async def end(name: str, wanted: dict[LrmJobId, Leftover]) -> None:
            async def cancel(lrm: Lrm, _: LrmHost) -> None:
                await lrm.cancel(list(wanted))
                with anyio.move_on_after(timeout):
                    while left[name]:
                        listing = {job.id: job for job in await lrm.jobs(name_prefix=PREFIX)}
                        left[name] = {id_: one for id_, one in wanted.items() if _is_there(listing.get(id_))}
                        tell(f"{sum(map(len, left.values()))} are still ending")
                        if left[name]:
                            await anyio.sleep(LOOK)

            await self._with_lrm(hosts, self._site.cluster(name), cancel)

        async with self._hosts() as hosts, anyio.create_task_group() as tasks:
            for name, wanted in by_cluster.items():
                tasks.start_soon(end, name, wanted)
        self.stayed = [one for wanted in left.values() for one in wanted.values()]

    def _hosts(self) -> SiteHosts:
        return SiteHosts(self._site.sites, self._directory)

    async def _with_lrm(
        self, hosts: SiteHosts, config: ClusterConfig, do: Callable[[Lrm, LrmHost], Awaitable[None]]
    ) -> None:
        """Use a cluster's LRM; errors are recorded."""
        host = hosts.at(config.site)
        lrm, _ = make_lrm(config, self._plugins, self._directory, host=host)
        try:
            with anyio.fail_after(ASKING):
                await lrm.start()
            await do(lrm, host)
        except LrmError as error:
            self.trouble[config.name] = error.message
        except TimeoutError:
            self.trouble[config.name] = f"no answer within {ASKING:.0f} s"
        finally:
            await close_lrm(lrm)


def _is_there(job: LrmJob | None) -> bool:
    return job is not None and job.state is not LrmJobState.ENDED
