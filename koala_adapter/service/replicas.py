# SPDX-License-Identifier: Apache-2.0
"""Koala's information service on files (KOALA's RLS): which cluster has which input file of a job.

It knows the catalogue that the site file names for a cluster, which is read where the cluster's batch system is, and
what koala has put into the cache of a site. The scheduler is told by events, of input files of unfinished jobs alone:
a catalogue may name many more.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio import to_thread

from koala_adapter.errors import JobRefusedError, LrmError, LrmUnavailableError
from koala_adapter.host.containment import contained
from koala_adapter.model import CACHED, LOGICAL, InputFile, Job
from koala_adapter.outcome import JobState
from koala_adapter.report.sitevalues import ClusterFiles
from koala_adapter.scheduler.events import FilesFound
from koala_adapter.sites.catalogue import LONGEST_CATALOGUE, Catalogue, CatalogueError, listed, read_catalogue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.service.core import Core
    from koala_adapter.service.staging import Stager

# -- Reading a catalogue where it is -------------------------------------------------------------------------

READ_SECONDS = 60.0
"""Seconds after which a file system is not waited for any longer."""
DEEPEST = 8
"""Levels of a directory that are listed."""
LATER = 75
"""Exit status of the script for a file that was written just now, EX_TEMPFAIL of sysexits.h."""
SCRIPT = """
identity() { stat -L -c '%F|%i|%s|%y' -- "$1"; }
before=$(identity "$1") || exit 1
if [ -d "$1" ]; then
    echo "$before"
    cd -- "$1" && find . -maxdepth "$4" -xtype f -printf '%P\\0' | head -c "$2"
elif [ -f "$1" ]; then
    age=$(($(date +%s) - $(stat -L -c %Y -- "$1")))
    if [ $age -ge 0 ] && [ $age -lt 2 ]; then exit 75; fi
    echo "$before"
    [ "$before" = "$3" ] || head -c "$2" -- "$1" || exit 1
else
    echo "it is neither a file nor a directory" >&2
    exit 1
fi
[ "$before" = "$(identity "$1")" ] || exit 75
"""
"""Prints what a file is, and then its content, or the files below a directory. A file is not read while it is written:
that it was changed less than two seconds ago, or during the reading, is taken for that."""


@dataclass(frozen=True, slots=True)
class Read:
    """A catalogue as it was read."""

    identity: str
    """What changes when the file does."""
    catalogue: Catalogue


async def read_at(host: LrmHost, path: str, known: Read | None = None) -> Read | None:
    """Return the catalogue at a path of a host: ``known`` if it is the same; None: it is being written just now.

    Raises LrmError, also for one that cannot be used.
    """
    try:
        with anyio.fail_after(READ_SECONDS):
            return await _read_at(host, path, known)
    except TimeoutError:
        raise LrmUnavailableError(f"catalogue {path}: its file system does not answer") from None
    except (CatalogueError, OSError) as error:
        hint = "`koala docs placement` says what a catalogue is"
        raise LrmUnavailableError(f"catalogue {path}: {error}", hint=hint) from error


async def _read_at(host: LrmHost, path: str, known: Read | None) -> Read | None:
    most = LONGEST_CATALOGUE + 1
    argv = ["sh", "-c", SCRIPT, "sh", path, str(most), "" if known is None else known.identity, str(DEEPEST)]
    status, output, complaint = await host.run(argv)
    if status == LATER:
        return None
    if status:
        lines = complaint.decode("utf-8", "replace").strip().splitlines()
        raise CatalogueError(lines[-1] if lines else f"exit status {status}")
    first, _, content = output.partition(b"\n")
    identity = first.decode("utf-8", "replace")
    if known is not None and known.identity == identity and not content:
        return known
    read = partial(listed, directory=path) if identity.startswith("directory|") else read_catalogue
    return Read(identity, await to_thread.run_sync(read, content))


STAT_SECONDS = 10.0
"""Seconds for file systems to tell the sizes of files."""


async def size_at(host: LrmHost, path: str) -> int | None:
    """Return the bytes of a regular file of a host; None: it is none, or the host does not tell."""
    with suppress(LrmError, OSError, ValueError):
        _, output, _ = await host.run(["stat", "-L", "-c", "%F|%s", "--", path])
        kind, _, size = output.decode("utf-8", "replace").partition("|")
        if kind.startswith("regular"):
            return int(size)
    return None


async def sizes_at(host: LrmHost, paths: Mapping[str, str]) -> Mapping[str, int]:
    """Return the bytes of those regular files of a host whose sizes it tells within STAT_SECONDS.

    ``paths``: of the files, by any keys; the result has the same ones.
    """
    sizes: dict[str, int] = {}
    with anyio.move_on_after(STAT_SECONDS):
        for key, path in paths.items():
            size = await size_at(host, path)
            if size is not None:
                sizes[key] = size
    return sizes


def place_of(file: InputFile, catalogue: Catalogue) -> str | None:
    """Return where a file is by a catalogue; None: it has none."""
    if file.logical:
        return catalogue.place_of(file.source.removeprefix(LOGICAL))
    return file.source if catalogue.has(file.source) else None


def files_report(config: ClusterConfig, read: Read | None, trouble: str) -> ClusterFiles:
    """Return what is known of the files of a cluster from the site file and its catalogue."""
    return ClusterFiles(
        stated=len(config.parameters.files),
        catalogue=config.catalogue or "",
        entries=None if read is None else len(read.catalogue.paths),
        trouble=trouble,
    )


# -- Which cluster has which input file ----------------------------------------------------------------------

LOOK_INTERVAL = 60.0
"""Seconds between two looks at whether a catalogue has changed."""
LOOK_SOON = 3.0
"""Seconds before the next look where one is being written just now."""
FORGET_INTERVAL = 600.0
"""Seconds between two looks at which files no unfinished job needs any more."""

log = structlog.get_logger()


class Replicas:
    """Which cluster has which input file. Runs beside the clusters of a service."""

    def __init__(self, core: Core, stager: Stager) -> None:
        """Nothing is known yet, but for what the scheduler was told earlier. ``stager`` fills the caches of sites."""
        self._core = core
        self._stager = stager
        self._read: dict[str, Read] = {}
        """What was read last, by cluster."""
        self.troubles: dict[str, str] = {}
        """Why the catalogue of a cluster cannot be read at present."""
        self._sizes: dict[str, int] = {}
        """Bytes of files with logical names that jobs have named."""
        self._looked = anyio.Event()
        self._unsettled: set[str] = set()
        """Clusters whose catalogues were being written when they were looked at."""

    def report(self, config: ClusterConfig) -> ClusterFiles:
        """Return what is known of the files of a cluster."""
        record = self._core.state.clusters.get(config.cluster_name)
        found = {} if record is None else record.found
        return replace(
            files_report(config, self._read.get(config.name), self.troubles.get(config.name, "")),
            found=len(found),
            cached=sum(not place or place.startswith(CACHED) for place in found.values()),
        )

    async def run(self) -> None:
        """Look again and again until cancelled."""
        told_at, cached = -FORGET_INTERVAL, False
        while True:
            changed = await self.look()
            await self.learn(self._needed()[0].values())
            if changed or cached or anyio.current_time() - told_at > FORGET_INTERVAL:
                told_at = anyio.current_time()
                self.tell()
            with anyio.move_on_after(LOOK_SOON if self._unsettled else LOOK_INTERVAL) as waiting:
                await self._stager.changed.wait()
            cached = not waiting.cancelled_caught

    async def look(self) -> bool:
        """Read the catalogues that have changed, and tell whether one has."""
        before = dict(self._read)
        async with anyio.create_task_group() as tasks:
            for config in self._core.site.enabled_clusters:
                if config.catalogue is not None:
                    tasks.start_soon(self._look_at, config, config.catalogue)
        if not self._unsettled:
            self._looked.set()
        return self._read != before

    async def _look_at(self, config: ClusterConfig, path: str) -> None:
        name = config.name
        self._unsettled.discard(name)
        with contained("reading a catalogue", cluster=name):
            try:
                read = await read_at(self._core.lrm_hosts[name], path, self._read.get(name))
            except LrmError as error:
                if self.troubles.get(name) != error.message:
                    log.warning("a catalogue cannot be read", cluster=name, reason=error.message)
                self.troubles[name] = error.message
                return
            self.troubles.pop(name, None)
            if read is None:
                self._unsettled.add(name)
            elif read is not self._read.get(name):
                self._read[name] = read
                log.info("a catalogue was read", cluster=name, entries=len(read.catalogue.paths))

    def _place(self, config: ClusterConfig, file: InputFile) -> str | None:
        """Return where a cluster has a file, empty for koala's own cache; None: it has not, as far as is known."""
        read = self._read.get(config.name)
        place = None if read is None else place_of(file, read.catalogue)
        if place is not None:
            return place
        if config.site is not None and not file.logical and self._stager.held(config.site, file):
            return ""
        return None

    async def learn(self, files: Iterable[InputFile]) -> None:
        """Find out the sizes of files with logical names, as far as the clusters answer that have them."""
        with anyio.move_on_after(STAT_SECONDS):
            for file in files:
                if file.logical and file.source not in self._sizes:
                    await self._learn_size(file)

    async def _learn_size(self, file: InputFile) -> None:
        for config, path in self._holders(file):
            size = await size_at(self._core.lrm_hosts[config.name], path)
            if size is not None:
                self._sizes[file.source] = size
                return

    def _holders(self, file: InputFile) -> list[tuple[ClusterConfig, str]]:
        """Return the clusters whose catalogues list a file, each with the file's path there."""
        places = ((one, self._place(one, file)) for one in self._core.site.enabled_clusters if one.catalogue)
        return [(one, place) for one, place in places if place]

    def _bringable(self, config: ClusterConfig, files: Iterable[InputFile]) -> dict[str, int]:
        """Return the files with logical names that can be brought to a cluster, which lacks them, with their sizes."""
        record = self._core.state.clusters[config.cluster_name]
        return {
            file.source: self._sizes[file.source]
            for file in files
            if record.parameters.stages
            and file.logical
            and file.source in self._sizes
            and not self._place(config, file)
            and self._holders(file)
        }

    async def ready(self) -> None:
        """Return when each catalogue was read, or failed to be, since the service has begun."""
        await self._looked.wait()

    def require(self, job: Job) -> None:
        """Raise JobRefusedError for a logical name that no cluster has."""
        for file in job.input_files:
            if file.logical and not any(file.source in record.found for _, record in self._clusters()):
                known = [one.name for one in self._core.site.enabled_clusters if one.catalogue is not None]
                where = f"those of {', '.join(known)}" if known else "the site file names none"
                troubles = "".join(f"; {name}: {trouble}" for name, trouble in self.troubles.items())
                message = f"input file {file.source}: no catalogue has that name ({where}{troubles})"
                raise JobRefusedError(message, hint="see `koala clusters --network`")

    def found(self, job: Job) -> list[FilesFound]:
        """Return what the scheduler does not know yet of the files of a job that is about to be submitted."""
        events = []
        for config, record in self._clusters():
            places = self._places(config, (file for file in job.input_files if file.source not in record.found))
            bringable = {**record.bringable, **self._bringable(config, job.input_files)}
            if places or bringable != record.bringable:
                events.append(
                    FilesFound(
                        time=self._core.now(),
                        cluster=config.cluster_name,
                        found=tuple(places.items()),
                        bringable=tuple(bringable.items()),
                    )
                )
        return events

    def tell(self) -> None:
        """Tell the scheduler what has changed for the files of its unfinished jobs."""
        needed, in_use = self._needed()
        for config, record in self._clusters():
            if config.catalogue is not None and config.name not in self._read:
                continue  # what an earlier service has found there still counts
            places = self._places(config, needed.values())
            new = tuple((source, place) for source, place in places.items() if record.found.get(source) != place)
            gone = tuple(source for source in record.found if source not in places and source not in in_use)
            bringable = self._bringable(config, needed.values())
            if new or gone or bringable != record.bringable:
                self._core.loop.post(
                    FilesFound(
                        time=self._core.now(),
                        cluster=config.cluster_name,
                        found=new,
                        gone=gone,
                        bringable=tuple(bringable.items()),
                    )
                )

    def _clusters(self) -> list[tuple[ClusterConfig, ClusterRecord]]:
        """Return the clusters of which anything can be known, with their records."""
        records = self._core.state.clusters
        known = ((one, records.get(one.cluster_name)) for one in self._core.site.enabled_clusters)
        found = [(one, record) for one, record in known if record is not None]
        return [(one, record) for one, record in found if one.catalogue or record.parameters.stages or record.found]

    def _needed(self) -> tuple[dict[str, InputFile], set[str]]:
        """Return the input files of unfinished jobs by source, and the sources of those that are placed already.

        What a placed job relies on is not taken away from it: its ranks say what is missing, if it is.
        """
        needed: dict[str, InputFile] = {}
        in_use: set[str] = set()
        for record in self._core.state.jobs.values():
            if not record.state.final:
                files = {file.source: file for file in record.job.input_files}
                needed.update(files)
                if record.state is not JobState.WAITING:
                    in_use.update(files)
        return needed, in_use

    def _places(self, config: ClusterConfig, files: Iterable[InputFile]) -> dict[str, str]:
        places = ((file.source, self._place(config, file)) for file in files)
        return {source: place for source, place in places if place is not None}
