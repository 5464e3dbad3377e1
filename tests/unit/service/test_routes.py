# SPDX-License-Identifier: Apache-2.0
"""Files that come to a site from another one: two real gateways on this host, to which stand-ins for ssh lead."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio

from koala_adapter.config.sitefile import ClusterConfig, ControlCenterConfig, RemoteSiteConfig, SiteConfig
from koala_adapter.host.clock import ServiceClock
from koala_adapter.model import CACHED, LARGEST_SENT, ClusterName, InputFile, Job
from koala_adapter.scheduler.actions import StageFiles
from koala_adapter.scheduler.events import BandwidthKnown, Configured, Event, FilesFound, FilesStaged, StagingProgressed
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.service.information import KnownNetwork
from koala_adapter.service.inputfiles import InputStore
from koala_adapter.service.journal import Journal
from koala_adapter.service.staging import Stager
from koala_adapter.sites.contents import digest_at
from koala_adapter.testing.trial import eventually
from tests.unit.scheduler.scheduler_site import Site, component, job
from tests.unit.service.test_staging import TimedCore, Told
from tests.unit.sites.test_contents import Two, two

__all__ = ["two"]

ONE, OTHER = ClusterName("one"), ClusterName("other")
NOWHERE = "255.255.255.255"
"""An address to which no connection can be made."""


class Home:
    """A service's part that stages files, with two sites."""

    def __init__(self, two: Two, directory: Path, address: str = "127.0.0.1") -> None:
        self.two = two
        self.world = Site({})
        self.core = TimedCore(self.world, directory)
        self.core.journal, self.core.clock = Journal(directory / "journal.sqlite"), ServiceClock()
        sites = {"leiden": two.one, "delft": two.other}
        self.core.site = SiteConfig(
            sites=tuple(
                RemoteSiteConfig(name=name, ssh="fs3", directory=str(place.directory), address=address)
                for name, place in sites.items()
            ),
            clusters=(
                ClusterConfig(name=ONE, plugin="slurm", site="leiden"),
                ClusterConfig(name=OTHER, plugin="slurm", site="delft"),
            ),
            control_center=ControlCenterConfig(listen="127.0.0.1"),
        )
        self.core.lrm_hosts = {ONE: two.one.site, OTHER: two.other.site}
        clusters = tuple(replace(one.parameters, stages=True) for one in self.core.site.clusters)
        self.world.post(Configured(time=self.world.now, parameters=Parameters(), clusters=clusters))
        self.inputs = InputStore(directory, "koala-k-")
        self.information = Told(self.core)
        self.routes = self.information.routes
        self.stager = Stager(self.core, self.inputs, self.information)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Run the stager during the block."""
        try:
            async with anyio.create_task_group() as tasks:
                self.stager.start(tasks, self.core.lrm_hosts)
                yield
                tasks.cancel_scope.cancel()
        finally:
            self.core.journal.close()

    def job(self, number: str, source: str) -> Job:
        """Return a new job with an input file."""
        file = InputFile(source=source, target="input", size=None if source.startswith("lfn:") else LARGEST_SENT + 1)
        made = job(number, replace(component("x", 1), input_files=(file,)))
        self.inputs.keep(made)
        self.world.submit(made)
        return made

    async def staged(self, made: Job, cluster: ClusterName) -> None:
        """Have the files of a job brought to a cluster, and wait until they are there."""
        files = made.components[0].input_files
        self.stager.stage(StageFiles(job_id=made.id, cluster=cluster, files=files))

        async def done() -> list[Event]:
            return [one for one in self.core.posted if isinstance(one, FilesStaged) and one.cluster == cluster]

        await eventually(done, bool, what=f"files are at {cluster}", seconds=60)

    def told(self) -> dict[tuple[ClusterName | None, ClusterName], float | None]:
        """Return the bandwidths that the scheduler was told, by clusters."""
        found = [one for one in self.core.posted if isinstance(one, BandwidthKnown)]
        return {(one.source, one.cluster): one.bandwidth for one in found}


async def test_a_file_comes_from_the_site_that_has_it(two: Two, tmp_path: Path) -> None:
    """The second site gets it from the cache of the first one; what is seen counts for the next placement."""
    home = Home(two, tmp_path)
    async with home.serving():
        await home.staged(home.job("1", str(two.path)), ONE)
        assert [site for site, _ in home.information.sent] == ["leiden"]
        await home.staged(home.job("2", str(two.path)), OTHER)
        assert [site for site, _ in home.information.sent] == ["leiden"]
        assert two.there.exists()
        sources = {one.source for one in home.core.posted if isinstance(one, StagingProgressed) and one.job_id == "2"}
        assert sources <= {"", "leiden"}
        await home.routes.look()
        assert (home.told()[ONE, OTHER] or 0) > 0
        assert home.routes.bandwidth("leiden", "delft") == home.told()[ONE, OTHER]
        assert home.routes.bandwidth("delft", "leiden") is None
        home.information.known.keep(home.core.journal)
        assert KnownNetwork.of(home.core.journal) == home.information.known


async def test_sites_that_cannot_connect_are_remembered(two: Two, tmp_path: Path) -> None:
    """The file goes from here then, and no connection is tried again before a day is over."""
    home = Home(two, tmp_path, NOWHERE)
    async with home.serving():
        await home.staged(home.job("1", str(two.path)), ONE)
        await home.staged(home.job("2", str(two.path)), OTHER)
        assert [site for site, _ in home.information.sent] == ["leiden", "delft"]
        assert not home.routes.is_open("leiden", "delft")
        (report,) = home.information.report(home.core.site.clusters[1]).routes
        assert report.bandwidth is None
        assert NOWHERE in report.trouble
        home.world.now += 86_400
        assert home.routes.is_open("leiden", "delft")


async def test_a_file_with_a_logical_name_comes_from_another_site(two: Two, tmp_path: Path) -> None:
    """Through here where there is no other way. It is a content of the cache, of which the launch is told."""
    home = Home(two, tmp_path, NOWHERE)
    place = ("lfn:big", str(two.path))
    home.core.loop.post(FilesFound(time=home.world.now, cluster=ONE, found=(place,)))
    async with home.serving():
        await home.staged(home.job("1", "lfn:big"), OTHER)
        assert two.there.read_bytes() == two.path.read_bytes()
        found = home.world.state.clusters[OTHER].found["lfn:big"]
        assert found == f"{CACHED}{two.digest}/{two.path.stat().st_size}"
        assert [site for site, _ in home.information.sent] == ["delft"]


async def test_a_route_is_measured_when_a_waiting_job_could_use_it(two: Two, tmp_path: Path) -> None:
    """Nothing is moved before, and once in an hour."""
    home = Home(two, tmp_path)
    async with home.serving():
        assert await digest_at(two.one.site, str(two.path))  # the sites are connected
        await home.routes.look()
        assert not home.information.known.routes
        home.job("1", str(two.path))
        home.core.loop.post(FilesFound(time=home.world.now, cluster=ONE, found=((str(two.path), str(two.path)),)))
        await home.routes.look()
        assert list(home.information.known.routes) == ["leiden to delft"]
        first = home.information.known.routes["leiden to delft"].estimate
        assert (first.source, first.latency is not None) == ("measured", True)
        await home.routes.look()
        assert home.information.known.routes["leiden to delft"].estimate == first
        await home.routes.measure_all()
        assert sorted(home.information.known.routes) == ["delft to leiden", "leiden to delft"]
        assert set(home.told()) == {(ONE, OTHER), (OTHER, ONE)}


async def test_what_the_site_file_states_counts(two: Two, tmp_path: Path) -> None:
    """In the place of what is observed, and nothing is measured for it."""
    home = Home(two, tmp_path)
    leiden, delft = home.core.site.sites
    sites = (leiden, delft.model_copy(update={"bandwidth_from": {"leiden": 80.0}}))
    home.core.site = home.core.site.model_copy(update={"sites": sites})
    async with home.serving():
        home.job("1", str(two.path))
        home.core.loop.post(FilesFound(time=home.world.now, cluster=ONE, found=((str(two.path), str(two.path)),)))
        await home.routes.look()
        assert (home.told(), home.information.known.routes) == ({(ONE, OTHER): 80.0}, {})
        forbidden = leiden.model_copy(update={"direct": False})
        home.core.site = home.core.site.model_copy(update={"sites": (forbidden, sites[1])})
        await home.routes.look()
        assert home.told() == {(ONE, OTHER): None}
