# SPDX-License-Identifier: Apache-2.0
"""Koala's information service on the network (KOALA's NIP): how fast files get to each site, from here or from another.

First the ways from one site to another one, on which this host is not. Whether the gateways of two sites can connect is
found out by the first transfer that could go there, in one direction and then in the other one, and counts for a day.
Bandwidth and round trip are observed in each transfer, and before the first one in a small one, when a job waits whose
large files could go there.

Then the ways from here. Each real transfer counts. Where there was none for an hour, a small one is made while nothing
else goes to the site. The scheduler is told of noticeable changes by events, so that a replay decides by the same
numbers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import TYPE_CHECKING, Self

import anyio
import structlog
from anyio import to_thread

from koala_adapter import vjm
from koala_adapter.errors import JournalBlockedError, LrmError, LrmUnavailableError
from koala_adapter.host.containment import contained
from koala_adapter.outcome import JobState
from koala_adapter.report.sitevalues import ClusterNetwork, NodeConnection, SiteRoute
from koala_adapter.scheduler.events import BandwidthKnown
from koala_adapter.scheduler.placement.policies import is_below
from koala_adapter.sites.contents import (
    BrokenOffError,
    Pair,
    PassingError,
    Passport,
    UnreachableError,
    digest_at,
    pass_content,
    pass_trial,
)
from koala_adapter.sites.network import MEASURED, TRANSFER, NetworkEstimate, Route, differs
from koala_adapter.sites.remotesite import RemoteSite
from koala_adapter.vjm.certificate import fingerprint_of
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from koala_adapter.config.sitefile import ClusterConfig, RemoteSiteConfig, SiteConfig
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.core import Core
    from koala_adapter.service.journal import Journal
    from koala_adapter.sites.contents import Content, Passed

log = structlog.get_logger()


# -- What was observed, as the journal keeps it --------------------------------------------------------------

NETWORK = "network"
"""Key of the journal under which the estimates are kept, by site."""
ROUTES = "routes"
"""Key of the journal under which the routes are kept, by `route_key`."""


def route_key(source: str, target: str) -> str:
    """Return the key of the route from one site to another one. No name of a site has blanks."""
    return f"{source} to {target}"


@dataclass(slots=True)
class KnownNetwork:
    """What was observed of the network."""

    estimates: dict[str, NetworkEstimate] = field(default_factory=dict)
    """Of the ways from here, by the names of sites."""
    routes: dict[str, Route] = field(default_factory=dict)
    """Of the ways between sites, by `route_key`."""
    kept: bool = True
    """Whether the journal has all of it."""

    @classmethod
    def of(cls, journal: Journal) -> Self:
        """Return what a journal has kept."""
        estimates, routes = journal.value(NETWORK) or "{}", journal.value(ROUTES) or "{}"
        return cls(
            estimates=adapter_of(dict[str, NetworkEstimate]).validate_json(estimates),
            routes=adapter_of(dict[str, Route]).validate_json(routes),
        )

    def keep(self, journal: Journal) -> None:
        """Have a journal keep what is new, if it can be written now."""
        if not self.kept:
            estimates = adapter_of(dict[str, NetworkEstimate]).dump_json(self.estimates)
            routes = adapter_of(dict[str, Route]).dump_json(self.routes)
            with suppress(JournalBlockedError):  # at the next look
                journal.set_value(NETWORK, estimates.decode())
                journal.set_value(ROUTES, routes.decode())
                self.kept = True

    def report(
        self, config: ClusterConfig, site: SiteConfig | None, state: State, *, now: float, wall_offset: float
    ) -> ClusterNetwork:
        """Return what is known of the ways to a cluster. ``site``: None: nothing of other sites."""
        found = self.estimates.get(config.site or "", NetworkEstimate())
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
            routes=() if site is None else tuple(self._routes_to(config, site, now=now, wall_offset=wall_offset)),
        )

    def _routes_to(
        self, config: ClusterConfig, site: SiteConfig, *, now: float, wall_offset: float
    ) -> Iterator[SiteRoute]:
        """Yield what is known of the ways to a cluster's site from other ones."""
        known = sites_by_name(site)
        for source in known if config.site in known else ():
            route = self.routes.get(route_key(source, str(config.site)), Route())
            stated = known[str(config.site)].bandwidth_from.get(source)
            bandwidth = route.estimate.bandwidth(now) if stated is None else stated
            closed = route.is_closed(now)
            seen = route.closed_at if closed else route.estimate.moved_at if stated is None else None
            if bandwidth is not None or closed:
                yield SiteRoute(
                    site=source,
                    bandwidth=None if closed else bandwidth,
                    source="stated" if stated is not None else route.estimate.source,
                    observed_at=None if seen is None else seen + wall_offset,
                    latency=route.estimate.latency,
                    trouble=route.trouble if closed else "",
                )


def sites_by_name(site: SiteConfig) -> Mapping[str, RemoteSiteConfig]:
    """Return the tables of other sites by their names."""
    return {one.name: one for one in site.sites}


# -- Ways from one site to another one -----------------------------------------------------------------------

MEASURE_INTERVAL = 3600.0
"""Seconds between two measurements of a site or a route, at least; a transfer within them stands for one."""
MEASURE_SECONDS = 60.0
"""Seconds after which a measurement is given up."""
PAUSE = 600.0
"""Seconds for which a route is not used whose connection was lost in the middle of a transfer."""


class Routes:
    """The ways between sites, of one service."""

    def __init__(self, core: Core, known: KnownNetwork) -> None:
        """``known``: what is known already, to which it adds."""
        self._core = core
        self._known = known
        self._tried: dict[str, float] = {}
        """When a route was measured last, by this process."""
        self._paused: dict[str, float] = {}
        """Until when a route is not used whose connection was lost."""

    # -- what is known -----------------------------------------------------------------------------------------------

    def _route(self, source: str, target: str) -> Route:
        return self._known.routes.get(route_key(source, target), Route())

    def _note(self, source: str, target: str, route: Route) -> None:
        self._known.routes[route_key(source, target)] = route
        self._known.kept = False

    def is_open(self, source: str, target: str) -> bool:
        """Tell whether something may go from one site to another one, as far as is known."""
        sites = sites_by_name(self._core.site)
        return (
            source != target
            and all(name in sites and sites[name].direct for name in (source, target))
            and not self._route(source, target).is_closed(self._core.now())
            and self._core.now() >= self._paused.get(route_key(source, target), 0.0)
        )

    def bandwidth(self, source: str, target: str) -> float | None:
        """Return MiB/s: what the site file states, else what was observed; None: not known, or nothing can go there."""
        if not self.is_open(source, target):
            return None
        stated = sites_by_name(self._core.site)[target].bandwidth_from.get(source)
        return self._route(source, target).estimate.bandwidth(self._core.now()) if stated is None else stated

    # -- use ---------------------------------------------------------------------------------------------------------

    async def pass_content(self, source: str, target: str, content: Content, came: Callable[[int], None]) -> None:
        """Move a content from one site to the cache of another one.

        Raises PassingError where that cannot be done in this way, and the errors of the receiver.
        """
        passed = await self._pass(source, target, lambda pair, passport: pass_content(pair, content, passport, came))
        self._observe(source, target, passed, TRANSFER)

    async def has(self, source: str, content: Content) -> bool:
        """Tell whether the file of a content is at a site as it was submitted."""
        try:
            return await digest_at(self._host(source), content.path) == (content.digest, content.size)
        except (OSError, LrmUnavailableError) as error:
            log.info("a file of another site cannot be used", source=source, path=content.path, reason=str(error))
            return False

    async def measure(self, source: str, target: str) -> None:
        """Measure the way from one site to another one by some MiB. Raises the errors of :meth:`pass_content`."""
        self._tried[route_key(source, target)] = self._core.now()
        self._observe(source, target, await self._pass(source, target, pass_trial), MEASURED)

    async def _pass(self, source: str, target: str, move: Callable[[Pair, Passport], Awaitable[Passed]]) -> Passed:
        """Move something, where the receiver listens if that is possible."""
        route, troubles = self._route(source, target), []
        passport = await to_thread.run_sync(_new_passport)
        for sender_listens in (route.sender_listens, not route.sender_listens):
            stated = sites_by_name(self._core.site)[source if sender_listens else target].address
            pair = Pair(
                sender=self._host(source),
                receiver=self._host(target),
                receiver_listens=not sender_listens,
                addresses=() if stated is None else (stated,),
            )
            try:
                passed = await move(pair, passport)
            except UnreachableError as error:
                troubles.append(str(error))
            except BrokenOffError as error:
                if error.connection:
                    self._paused[route_key(source, target)] = self._core.now() + PAUSE
                raise
            else:
                self._note(source, target, self._route(source, target).opened(sender_listens=sender_listens))
                return passed
        trouble = "; ".join(troubles)
        log.info("two sites cannot connect to each other", source=source, target=target, reason=trouble)
        self._note(source, target, self._route(source, target).closed(trouble, now=self._core.now()))
        raise UnreachableError(trouble)

    def _host(self, name: str) -> RemoteSite:
        for config in self._core.site.enabled_clusters:
            host = self._core.lrm_hosts.get(config.name)
            if config.site == name and isinstance(host, RemoteSite):
                return host
        raise LrmUnavailableError(f"site {name} has no cluster that is in use")

    def _observe(self, source: str, target: str, passed: Passed, how: str) -> None:
        now, route = self._core.now(), self._route(source, target)
        estimate = route.estimate.moved(passed.size, passed.seconds, now=now, source=how)
        if passed.latency is not None:
            estimate = estimate.answered(passed.latency, now=now)
        self._note(source, target, replace(route, estimate=estimate))

    # -- beside the clusters of a service ----------------------------------------------------------------------------

    async def look(self) -> None:
        """Measure a route that a waiting job could use, and tell the scheduler what is new."""
        for source, target in self._wanted():
            await self._try_measuring(source, target)
            break  # one at a time: they would measure each other
        self._tell()

    async def measure_all(self) -> None:
        """Measure all ways now, also those that could not be used when they were tried last."""
        names = sorted({str(one.site) for one in self._core.site.enabled_clusters if one.site is not None})
        for source, target in permutations([name for name in names if sites_by_name(self._core.site)[name].direct], 2):
            await self._try_measuring(source, target)
        self._tell()

    async def _try_measuring(self, source: str, target: str) -> None:
        with anyio.move_on_after(MEASURE_SECONDS):
            try:
                await self.measure(source, target)
            except (PassingError, OSError, LrmUnavailableError) as error:
                log.info("the way between two sites is not measured", source=source, target=target, reason=str(error))

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Yield the sites between which large files of a waiting job could go, and of which too little is known."""
        clusters = [one for one in self._core.site.enabled_clusters if one.site is not None]
        if len({one.site for one in clusters}) < 2:  # noqa: PLR2004 - one site has no other one
            return
        for record in self._core.state.jobs.values():
            if record.state is not JobState.WAITING or not any(one.has_large_files for one in record.job.components):
                continue
            for one, other in permutations(clusters, 2):
                if self._is_due(str(one.site), str(other.site)) and any(
                    self._has(one, file.source) and not self._has(other, file.source) for file in record.job.input_files
                ):
                    yield str(one.site), str(other.site)

    def _has(self, config: ClusterConfig, source: str) -> bool:
        record = self._core.state.clusters.get(config.cluster_name)
        found = {} if record is None else record.found
        return source in found or any(is_below(source, path) for path in config.parameters.files)

    def _is_due(self, source: str, target: str) -> bool:
        route = self._route(source, target)
        times = (route.estimate.moved_at, self._tried.get(route_key(source, target)))
        recent = any(time is not None and self._core.now() - time < MEASURE_INTERVAL for time in times)
        stated = source in (known := sites_by_name(self._core.site)) and source in known[target].bandwidth_from
        return not recent and not stated and self.is_open(source, target)

    def _tell(self) -> None:
        """Tell the scheduler what it does not know yet."""
        clusters = [one for one in self._core.site.enabled_clusters if one.site is not None]
        for one, other in permutations(clusters, 2):
            record = self._core.state.clusters.get(other.cluster_name)
            if record is None or one.site == other.site:
                continue
            found = self.bandwidth(str(one.site), str(other.site))
            if differs(record.observed_bandwidth_from.get(one.cluster_name), found):
                self._core.loop.post(
                    BandwidthKnown(
                        time=self._core.now(), cluster=other.cluster_name, source=one.cluster_name, bandwidth=found
                    )
                )


def _new_passport() -> Passport:
    """Return key and certificate for one transfer; takes most of a second the first time."""
    pem = vjm.new_pem("transfer").decode()
    return Passport(pem=pem, fingerprint=fingerprint_of(pem))


# -- Ways from here to each site -----------------------------------------------------------------------------

LOOK_INTERVAL = 5.0
"""Seconds between two looks at which sites are to be measured, and at what is to be told to the scheduler."""


class Information:
    """What is known of the network to each site. Runs beside the clusters of a service."""

    def __init__(self, core: Core) -> None:
        """Go on with what the journal has kept."""
        self._core = core
        self.known = KnownNetwork.of(core.journal)
        self._tried: dict[str, float] = {}
        """When a measurement of a site was begun last, by this process."""
        self.routes = Routes(core, self.known)

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
        return self.known.report(config, self._core.site, self._core.state, now=now, wall_offset=wall_offset)

    async def run(self) -> None:
        """Look again and again until cancelled."""
        try:
            while True:
                await self.look()
                await anyio.sleep(LOOK_INTERVAL)
        finally:
            self.known.keep(self._core.journal)

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
        self.known.keep(self._core.journal)

    async def measure_all(self) -> None:
        """Measure the ways to all sites and between them now, one after the other."""
        for site, clusters in self._clusters.items():
            await self._measure(site, self._core.lrm_hosts[clusters[0].name], bandwidth=True)
        await self.routes.measure_all()
        self._tell()
        self.known.keep(self._core.journal)

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
        return self.known.estimates.get(site, NetworkEstimate())

    def _observe(self, site: str, estimate: NetworkEstimate) -> None:
        self.known.estimates[site] = estimate
        self.known.kept = False

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
