# SPDX-License-Identifier: Apache-2.0
"""The network of a simulated grid: local domains, wide-area links and transfers over them.

Transfers are fluids: at every moment each has its max-min fair share of the links on its path (the rate of no transfer
can be raised without lowering that of one which has no more). Shares change only when a transfer begins or ends, so
these are the only events. A path is the local domain of the sender, the wide-area links of the route with the fewest
links, and the local domain of the receiver. The calls of Bricks (Takefusa 2001) travel over it.

Units: seconds, Mbit, Mbit/s.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.simulation.world import FIRST, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from koala_adapter.simulation.world import EventHandle


LinkNumber = int


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A local domain: what is in it shares one network."""

    name: str
    bandwidth: float = 1000.0
    """Mbit/s, shared by all transfers into, out of and within it."""
    latency: float = 0.0001
    """Seconds until a transfer begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A wide-area link between two local domains; transfers in both directions share it."""

    between: tuple[str, str]
    bandwidth: float = 1000.0
    """Mbit/s, shared by all transfers over it."""
    latency: float = 0.005
    """Seconds added to each transfer over it."""


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """A transfer of data over the network; compared by identity."""

    number: int
    megabits: float
    links: tuple[LinkNumber, ...]
    started_at: float
    on_end: Callable[[Transfer], object] | None
    left: float
    """Megabits not yet arrived, when its rate last changed."""
    rate_since: float
    """When its rate last changed."""
    rate: float = 0.0
    """Mbit/s at present; 0 during the latency and after the end."""
    ended_at: float | None = None
    version: int = 0
    """Counts changes of the rate."""

    def change_rate(self, rate: float, now: float) -> None:
        """Set the rate from ``now`` on."""
        self.left = max(0.0, self.left - self.rate * (now - self.rate_since))
        self.rate_since = now
        self.rate = rate
        self.version += 1


class Network:
    """Local domains and wide-area links with the transfers over them, which share bandwidth fairly."""

    def __init__(
        self,
        engine: Engine,
        domains: Iterable[Domain],
        links: Iterable[Link] = (),
    ) -> None:
        """Build the network."""
        self._engine = engine
        self._bandwidth: list[float] = []
        self._latency: list[float] = []
        self._domains: dict[str, LinkNumber] = {}
        self._neighbours: dict[str, list[tuple[str, LinkNumber]]] = {}
        for domain in domains:
            self._domains[domain.name] = self._add(domain.bandwidth, domain.latency)
            self._neighbours[domain.name] = []
        for link in links:
            number = self._add(link.bandwidth, link.latency)
            for one, other in (link.between, link.between[::-1]):
                self._neighbours[one].append((other, number))
        self._routes: dict[tuple[str, str], tuple[LinkNumber, ...]] = {}
        self._busy: list[dict[int, Transfer]] = [{} for _ in self._bandwidth]
        self._started = 0
        self._ends: list[tuple[float, int, int, Transfer]] = []
        self._wake: EventHandle | None = None

    # ---- what is asked of it --------------------------------------------------------------------------------------

    def send(
        self, source: str, target: str, megabits: float, on_end: Callable[[Transfer], object] | None = None
    ) -> Transfer:
        """Start a transfer between two domains; ``on_end`` is called when it is complete.

        Raises SimulationError when no route joins them.
        """
        links = self.route(source, target)
        self._started += 1
        now = self._engine.now
        transfer = Transfer(
            number=self._started,
            megabits=megabits,
            links=links,
            started_at=now,
            on_end=on_end,
            left=megabits,
            rate_since=now,
        )
        self._engine.after(sum(self._latency[link] for link in links), lambda: self._begin(transfer), rank=FIRST)
        return transfer

    def route(self, source: str, target: str) -> tuple[LinkNumber, ...]:
        """Return the links between two domains. Raises SimulationError for an unknown domain or no route."""
        found = self._routes.get((source, target))
        if found is None:
            found = self._routes[source, target] = self._find_route(source, target)
        return found

    def users(self) -> tuple[int, ...]:
        """Return the number of transfers on each link now, as a network monitor measures it."""
        return tuple(map(len, self._busy))

    def throughput(self, source: str, target: str, users: Sequence[int]) -> float:
        """Return the bandwidth (Mbit/s) of one more transfer, given the transfers on each link (see :meth:`users`).

        It is the narrowest of the equal shares on its way.
        """
        return min(self._bandwidth[link] / (users[link] + 1) for link in self.route(source, target))

    # ---- routes ---------------------------------------------------------------------------------------------------

    def _add(self, bandwidth: float, latency: float) -> LinkNumber:
        self._bandwidth.append(bandwidth)
        self._latency.append(latency)
        return len(self._bandwidth) - 1

    def _find_route(self, source: str, target: str) -> tuple[LinkNumber, ...]:
        for name in (source, target):
            if name not in self._domains:
                raise SimulationError(f"the network has no domain {name!r}")
        if source == target:
            return (self._domains[source],)
        between = self._fewest_links(source, target)
        if between is None:
            raise SimulationError(f"no route joins the domains {source!r} and {target!r}")
        return (self._domains[source], *between, self._domains[target])

    def _fewest_links(self, source: str, target: str) -> tuple[LinkNumber, ...] | None:
        """Return the route with the fewest links; of equal ones, that whose links were given first."""
        routes: dict[str, tuple[LinkNumber, ...]] = {source: ()}
        ahead = deque([source])
        while ahead and target not in routes:
            here = ahead.popleft()
            for name, link in self._neighbours[here]:
                if name not in routes:
                    routes[name] = (*routes[here], link)
                    ahead.append(name)
        return routes.get(target)

    # ---- events ---------------------------------------------------------------------------------------------------

    def _begin(self, transfer: Transfer) -> None:
        if transfer.megabits <= 0:
            self._ended(transfer)
            return
        for link in transfer.links:
            self._busy[link][transfer.number] = transfer
        self._share(transfer.links)

    def _finish(self) -> None:
        """Remove the transfers that are complete."""
        now = self._engine.now
        self._wake = None
        done = []
        while self._ends and self._ends[0][0] <= now:
            _, _, version, transfer = heapq.heappop(self._ends)
            if version == transfer.version and transfer.ended_at is None:
                done.append(transfer)
        touched: dict[LinkNumber, None] = {}
        for transfer in done:
            for link in transfer.links:
                del self._busy[link][transfer.number]
                touched[link] = None
            transfer.change_rate(0.0, now)
            transfer.left = 0.0
        self._share(touched)
        for transfer in done:
            self._ended(transfer)

    def _ended(self, transfer: Transfer) -> None:
        transfer.ended_at = self._engine.now
        if transfer.on_end is not None:
            transfer.on_end(transfer)

    # ---- fair shares ----------------------------------------------------------------------------------------------

    def _share(self, touched: Iterable[LinkNumber]) -> None:
        """Recompute the rates of all transfers that share a link, directly or through others, with a changed one."""
        now = self._engine.now
        for transfer, rate in self._fair(*self._affected(touched)):
            if rate != transfer.rate:
                transfer.change_rate(rate, now)
                end = now + transfer.left / rate
                heapq.heappush(self._ends, (end, transfer.number, transfer.version, transfer))
        self._set_alarm()

    def _affected(self, touched: Iterable[LinkNumber]) -> tuple[list[LinkNumber], dict[int, Transfer]]:
        links = dict.fromkeys(touched)
        ahead = list(links)
        transfers: dict[int, Transfer] = {}
        while ahead:
            for number, transfer in self._busy[ahead.pop()].items():
                if number not in transfers:
                    transfers[number] = transfer
                    new = [link for link in transfer.links if link not in links]
                    links.update(dict.fromkeys(new))
                    ahead += new
        return sorted(links), transfers

    def _fair(self, links: list[LinkNumber], transfers: dict[int, Transfer]) -> list[tuple[Transfer, float]]:
        """Compute fair rates by progressive filling: the narrowest share first, then the rest again."""
        left = {link: self._bandwidth[link] for link in links}
        users = {link: len(self._busy[link]) for link in links if self._busy[link]}
        rates: list[tuple[Transfer, float]] = []
        settled: set[int] = set()
        while users:
            share, narrowest = min((left[link] / count, link) for link, count in users.items())
            for number, transfer in self._busy[narrowest].items():
                if number in settled:
                    continue
                settled.add(number)
                rates.append((transfers[number], share))
                for link in transfer.links:
                    left[link] = max(0.0, left[link] - share)
                    users[link] -= 1
                    if not users[link]:
                        del users[link]
        return rates

    def _set_alarm(self) -> None:
        while self._ends and self._ends[0][2] != self._ends[0][3].version:
            heapq.heappop(self._ends)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._ends:
            self._wake = self._engine.at(self._ends[0][0], self._finish, rank=FIRST)
