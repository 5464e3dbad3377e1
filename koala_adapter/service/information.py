# SPDX-License-Identifier: Apache-2.0
"""Koala's information service on the network (KOALA's NIP): how fast files get to each site, from here or from another.

Each real transfer counts. Where there was none for an hour, a small one is made while nothing else goes to the site.
The scheduler is told of noticeable changes by events, so that a replay decides by the same numbers.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalBlockedError, LrmError
from koala_adapter.host.containment import contained
from koala_adapter.report.sitevalues import ClusterNetwork, NodeConnection
from koala_adapter.scheduler.events import BandwidthKnown
from koala_adapter.service.routes import MEASURE_INTERVAL, MEASURE_SECONDS, Routes, routes_report
from koala_adapter.sites.network import MEASURED, TRANSFER, NetworkEstimate, differs
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.report.sitevalues import SiteRoute
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.core import Core

KEY = "network"
"""Key of the journal under which the estimates are kept, by site."""
LOOK_INTERVAL = 5.0
"""Seconds between two looks at which sites are to be measured, and at what is to be told to the scheduler."""

Estimates = dict[str, NetworkEstimate]
"""What was observed of the network, by the names of sites."""

log = structlog.get_logger()


class Information:
    """What is known of the network to each site. Runs beside the clusters of a service."""

    def __init__(self, core: Core) -> None:
        """Go on with what the journal has kept."""
        self._core = core
        self._estimates = kept_estimates(core.journal.value(KEY))
        self._tried: dict[str, float] = {}
        """When a measurement of a site was begun last, by this process."""
        self.routes = Routes(core)
        self._kept = True
        """Whether the journal has what is known."""

    @property
    def _clusters(self) -> Mapping[str, list[ClusterConfig]]:
        """Clusters by the site that they are at."""
        found: dict[str, list[ClusterConfig]] = {}
        for config in self._core.site.enabled_clusters:
            if config.site is not None:
                found.setdefault(config.site, []).append(config)
        return found

    def transferred(self, site: str, size: int, seconds: float) -> None:
        """Take in a transfer from this host to a site, or a part of one."""
        self._observe(site, self._estimate(site).moved(size, seconds, now=self._core.now(), source=TRANSFER))

    def report(self, config: ClusterConfig) -> ClusterNetwork:
        """Return what is known of the way to a cluster."""
        now, wall_offset = self._core.now(), self._core.clock.offset
        return network_report(
            config,
            self._estimates,
            self._core.state,
            routes=routes_report(config, self._core.site, self.routes.known, now=now, wall_offset=wall_offset),
            now=now,
            wall_offset=wall_offset,
        )

    async def run(self) -> None:
        """Look again and again until cancelled."""
        try:
            while True:
                await self.look()
                await anyio.sleep(LOOK_INTERVAL)
        finally:
            self._keep()
            self.routes.keep()

    async def look(self) -> None:
        """Measure the sites that are due, and tell the scheduler and the journal what is new."""
        for site, clusters in self._clusters.items():
            host = self._core.lrm_hosts[clusters[0].name]
            if host.quiet and not self._is_recent(self._tried.get(site), self._estimate(site).latency_at):
                stated = all(config.parameters.bandwidth is not None for config in clusters)
                moves = not stated and not self._is_recent(self._estimate(site).moved_at)
                await self._measure(site, host, bandwidth=moves)
        await self.routes.look()
        self._tell()
        self._keep()

    async def measure_all(self) -> None:
        """Measure the ways to all sites and between them now, one after the other."""
        for site, clusters in self._clusters.items():
            await self._measure(site, self._core.lrm_hosts[clusters[0].name], bandwidth=True)
        await self.routes.measure_all()
        self._tell()

    def _is_recent(self, *times: float | None) -> bool:
        """Tell whether one of some times was within the interval of measurements."""
        return any(time is not None and self._core.now() - time < MEASURE_INTERVAL for time in times)

    async def _measure(self, site: str, host: LrmHost, *, bandwidth: bool) -> None:
        self._tried[site] = self._core.now()
        with contained("measuring the network", site=site), anyio.move_on_after(MEASURE_SECONDS):
            try:
                found = await host.measure(bandwidth=bandwidth)
            except (LrmError, OSError) as error:
                log.info("the network to a site cannot be measured", site=site, error=str(error))
                return
            if found is not None:
                now = self._core.now()
                estimate = self._estimate(site).answered(found.latency, now=now)
                self._observe(site, estimate.moved(found.size, found.seconds, now=now, source=MEASURED))

    def _estimate(self, site: str) -> NetworkEstimate:
        return self._estimates.get(site, NetworkEstimate())

    def _observe(self, site: str, estimate: NetworkEstimate) -> None:
        self._estimates[site] = estimate
        self._kept = False

    def _tell(self) -> None:
        """Tell the scheduler what it does not know yet, where the site file states nothing."""
        now = self._core.now()
        for site, clusters in self._clusters.items():
            bandwidth = self._estimate(site).bandwidth(now)
            for config in clusters:
                record = self._core.state.clusters.get(config.cluster_name)
                stated = config.parameters.bandwidth is not None
                if record is not None and not stated and differs(record.observed_bandwidth, bandwidth):
                    self._core.loop.post(BandwidthKnown(time=now, cluster=config.cluster_name, bandwidth=bandwidth))

    def _keep(self) -> None:
        if not self._kept:
            with suppress(JournalBlockedError):  # at the next look
                self._core.journal.set_value(KEY, adapter_of(Estimates).dump_json(self._estimates).decode())
                self._kept = True


def kept_estimates(text: str | None) -> Estimates:
    """Return the estimates that a journal has kept."""
    return {} if text is None else adapter_of(Estimates).validate_json(text)


def network_report(
    config: ClusterConfig,
    estimates: Estimates,
    state: State,
    *,
    routes: tuple[SiteRoute, ...],
    now: float,
    wall_offset: float,
) -> ClusterNetwork:
    """Return what is known of the ways to a cluster."""
    found = estimates.get(config.site or "", NetworkEstimate())
    stated = config.parameters.bandwidth
    bandwidth = found.bandwidth(now) if stated is None else stated

    def shown(time: float | None) -> float | None:
        return None if time is None else time + wall_offset

    return ClusterNetwork(
        site=config.site or "",
        bandwidth=bandwidth,
        source="stated" if stated is not None else "" if bandwidth is None else found.source,
        observed_at=shown(found.moved_at) if stated is None and bandwidth is not None else None,
        latency=found.latency,
        latency_at=shown(found.latency_at),
        connections=tuple(
            NodeConnection(cluster=other, connects=connects, seen_at=seen_at + wall_offset)
            for name, other, connects, seen_at in state.connections(now)
            if name == config.name
        ),
        routes=routes,
    )
