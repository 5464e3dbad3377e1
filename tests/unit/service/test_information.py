# SPDX-License-Identifier: Apache-2.0
"""What a service knows of the network: who is measured when, what the scheduler is told, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from koala_adapter.config.sitefile import ClusterConfig, RemoteSiteConfig, SiteConfig
from koala_adapter.errors import LrmUnavailableError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.lrm.commands import LocalHost
from koala_adapter.lrm.lrmhost import Measurement
from koala_adapter.model import ClusterName
from koala_adapter.scheduler.events import BandwidthKnown, Configured, NodesConnect
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.service.information import LOOK_INTERVAL, MEASURE_INTERVAL, Information
from koala_adapter.service.journal import Journal
from koala_adapter.sites.network import FORGOTTEN_AFTER, MIB
from tests.unit.scheduler.scheduler_site import Site
from tests.unit.service.standins import StandInCore

FAR, ALSO, STATED, NEAR = (ClusterName(name) for name in ("far", "also", "stated", "near"))
SITE = SiteConfig(
    sites=(RemoteSiteConfig(name="delft", ssh="fs3"), RemoteSiteConfig(name="leiden", ssh="das5")),
    clusters=(
        ClusterConfig(name=FAR, plugin="slurm", site="delft"),
        ClusterConfig(name=ALSO, plugin="slurm", site="delft"),
        ClusterConfig.model_validate({"name": STATED, "plugin": "slurm", "site": "leiden", "bandwidth": 100.0}),
        ClusterConfig(name=NEAR, plugin="slurm"),
    ),
)


class MeasuredHost(LocalHost):
    """A host to which a transfer of 4 MiB takes as long as a test says."""

    def __init__(self) -> None:
        self.seconds, self.measurements, self.busy, self.fails = 1.0, 0, False, False
        self.round_trips = 0

    @property
    def quiet(self) -> bool:
        return not self.busy

    async def measure(self, *, bandwidth: bool = True) -> Measurement:
        self.round_trips += 1
        if not bandwidth:
            return Measurement(size=0, seconds=0.0, latency=0.03)
        self.measurements += 1
        if self.fails:
            raise LrmUnavailableError("the connection to site delft was lost")
        return Measurement(size=4 * MIB, seconds=self.seconds, latency=0.04)


class Place:
    """A service's information on the network, which looks when it is told to."""

    def __init__(self, journal: Journal) -> None:
        self.world = Site({})
        self.core = StandInCore(self.world)
        self.core.site, self.core.journal, self.core.clock = SITE, journal, ServiceClock()
        self.host = MeasuredHost()
        self.core.lrm_hosts = {one.name: self.host for one in SITE.clusters}
        clusters = tuple(one.parameters for one in SITE.clusters)
        self.world.post(Configured(time=self.world.now, parameters=Parameters(), clusters=clusters))
        self.information = Information(self.core)

    async def look(self, after: float = LOOK_INTERVAL) -> None:
        self.world.now += after
        await self.information.look()

    def told(self) -> dict[ClusterName, float | None]:
        """Return what the scheduler was told since this was asked last."""
        found = {one.cluster: one.bandwidth for one in self.core.posted if isinstance(one, BandwidthKnown)}
        self.core.posted.clear()
        return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite")
    yield journal
    journal.close()


@pytest.fixture
def place(journal: Journal) -> Place:
    return Place(journal)


async def test_a_site_is_measured_once_an_hour_and_both_of_its_clusters_are_told(place: Place) -> None:
    await place.look()
    assert place.told() == {FAR: 4.0, ALSO: 4.0}
    await place.look()
    assert place.host.measurements == 1, "that whose bandwidth is stated is not measured"
    assert place.information.report(SITE.clusters[2]).latency == 0.03, "but for its latency"
    await place.look(MEASURE_INTERVAL)
    assert place.host.measurements == 2
    assert place.told() == {}, "nothing has changed"
    view = place.world.scheduler.state.clusters
    assert [view[name].bandwidth for name in (FAR, STATED, NEAR)] == [4.0, 100.0, None]


async def test_a_transfer_counts_and_puts_the_next_measurement_off(place: Place) -> None:
    place.information.transferred("delft", 512 * MIB, 64.0)
    await place.look()
    assert place.told() == {FAR: 8.0, ALSO: 8.0}
    assert place.host.measurements == 0
    report = place.information.report(SITE.clusters[0])
    assert (report.source, report.latency) == ("transfer", 0.03)
    place.information.transferred("delft", 512 * MIB, 64.0)
    await place.look(MEASURE_INTERVAL)
    assert (place.host.measurements, place.host.round_trips) == (1, 4), "an hour after the transfer"


async def test_a_site_to_which_something_goes_is_not_measured(place: Place) -> None:
    place.host.busy = True
    await place.look()
    assert place.host.measurements == 0
    place.host.busy = False
    await place.look()
    assert place.host.measurements == 1


async def test_a_measurement_that_fails_is_made_again_after_an_hour(place: Place) -> None:
    place.host.fails = True
    await place.look()
    await place.look()
    assert (place.host.measurements, place.told()) == (1, {})
    await place.look(MEASURE_INTERVAL)
    assert place.host.measurements == 2


async def test_what_was_observed_long_ago_is_not_known_any_more(place: Place) -> None:
    await place.look()
    place.host.busy = True
    await place.look(FORGOTTEN_AFTER)
    assert place.told() == {FAR: None, ALSO: None}
    assert place.information.report(SITE.clusters[0]).bandwidth is None


async def test_the_next_service_knows_it(place: Place, journal: Journal) -> None:
    await place.look()
    again = Place(journal)
    await again.look()
    assert again.host.measurements == 0
    assert again.information.report(SITE.clusters[0]).bandwidth == 4.0


async def test_which_nodes_connect_is_told_of_each_cluster(place: Place) -> None:
    place.world.post(NodesConnect(time=place.world.now, cluster=FAR, other=NEAR, connects=False))
    far, also, *_ = (place.information.report(one) for one in SITE.clusters)
    assert [(one.cluster, one.connects) for one in far.connections] == [(NEAR, False)]
    assert also.connections == ()
