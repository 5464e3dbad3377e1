# SPDX-License-Identifier: Apache-2.0
"""Bricks: clients call servers over a network, and monitors tell the scheduler what was (Takefusa 2001).

A grid is a star: nodes in local domains, each domain joined to one wide-area backbone. Every node is a client and a
server. Chance makes the grid, the calls and the tasks of others, each from its own seed, so that all schedulers that
are compared meet the same grid and the same calls. In this order: the network, servers, the choice of a server, the
simulation.

Units: seconds, Mbit, Mbit/s, Mop (a million operations), Mop/s.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeAlias

from koala_adapter.simulation.world import FIRST, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koala_adapter.simulation.world import EventHandle


# -- The network ---------------------------------------------------------------------------------------------
# Transfers are fluids: at every moment each has its max-min fair share of the links on its path (the rate of no
# transfer can be raised without lowering that of one which has no more). Shares change only when a transfer begins or
# ends, so these are the only events.

LinkNumber = int
WIDE_AREA_LATENCY = 0.005
"""Seconds from a local domain to the backbone, or back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A local domain: what is in it shares one network, and one link to the backbone."""

    name: str
    bandwidth: float
    """Mbit/s, shared by all transfers into, out of and within it."""
    uplink: float
    """Mbit/s of the link to the backbone; transfers in both directions share it."""
    latency: float = 0.0001
    """Seconds until a transfer begins."""
    uplink_latency: float = WIDE_AREA_LATENCY
    """Seconds added to each transfer over the link."""


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """A transfer of data over the network; compared by identity."""

    links: tuple[LinkNumber, ...]
    on_end: Callable[[], object]
    left: float
    """Megabits not yet arrived, when its rate last changed."""
    rate: float = 0.0
    """Mbit/s at present; 0 before the data begin to arrive."""
    rate_since: float = 0.0
    """When its rate last changed."""
    ends_at: float = inf
    """When it ends at its present rate."""

    def change_rate(self, rate: float, now: float) -> None:
        """Set the rate from ``now`` on."""
        self.left = max(0.0, self.left - self.rate * (now - self.rate_since))
        self.rate, self.rate_since = rate, now
        self.ends_at = now + self.left / rate


class Network:
    """Domains around a backbone with the transfers between them, which share bandwidth fairly."""

    def __init__(self, engine: Engine, domains: Sequence[Domain]) -> None:
        """Build the network, without transfers. Local networks are numbered first, then the links to the backbone."""
        self._engine = engine
        self._numbers = {one.name: number for number, one in enumerate(domains)}
        self.bandwidth = [one.bandwidth for one in domains] + [one.uplink for one in domains]
        """Of each link."""
        self._latency = [one.latency for one in domains] + [one.uplink_latency for one in domains]
        self.transfers: list[Transfer] = []
        """Whose data arrive at present, in the order in which they began to."""
        self._wake: EventHandle | None = None

    def send(self, source: str, target: str, megabits: float, on_end: Callable[[], object]) -> Transfer:
        """Start a transfer between two domains; ``on_end`` is called when it is complete."""
        transfer = Transfer(links=self.path(source, target), on_end=on_end, left=megabits)
        latency = sum(self._latency[link] for link in transfer.links)
        self._engine.after(latency, lambda: self._begin(transfer), rank=FIRST)
        return transfer

    def path(self, source: str, target: str) -> tuple[LinkNumber, ...]:
        """Return the links between two domains. Raises KeyError for an unknown one."""
        here, there, domains = self._numbers[source], self._numbers[target], len(self._numbers)
        return (here,) if here == there else (here, domains + here, domains + there, there)

    def users(self) -> Sequence[int]:
        """Return the number of transfers on each link now, as a network monitor measures it."""
        counts = [0] * len(self.bandwidth)
        for transfer in self.transfers:
            for link in transfer.links:
                counts[link] += 1
        return counts

    def throughput(self, source: str, target: str, users: Sequence[int]) -> float:
        """Return the bandwidth (Mbit/s) of one more transfer, given the transfers on each link (see :meth:`users`).

        It is the narrowest of the equal shares on its way.
        """
        return min(self.bandwidth[link] / (users[link] + 1) for link in self.path(source, target))

    def _begin(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)
        self._share()

    def _finish(self) -> None:
        """Remove the transfers that are complete."""
        now = self._engine.now
        self._wake = None
        done = sorted((one for one in self.transfers if one.ends_at <= now), key=lambda one: one.ends_at)
        self.transfers = [one for one in self.transfers if one.ends_at > now]
        self._share()
        for transfer in done:
            transfer.on_end()

    def _share(self) -> None:
        """Give each transfer its fair rate, and wait for the first one that ends."""
        for transfer, rate in self._fair():
            if rate != transfer.rate:
                transfer.change_rate(rate, self._engine.now)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self.transfers:
            self._wake = self._engine.at(min(one.ends_at for one in self.transfers), self._finish, rank=FIRST)

    def _fair(self) -> list[tuple[Transfer, float]]:
        """Compute fair rates by progressive filling: the narrowest share first, then the rest again."""
        left = list(self.bandwidth)
        users = {link: count for link, count in enumerate(self.users()) if count}
        rates: list[tuple[Transfer, float]] = []
        unsettled = list(self.transfers)
        while users:
            share, narrowest = min((left[link] / count, link) for link, count in users.items())
            settled = [one for one in unsettled if narrowest in one.links]
            unsettled = [one for one in unsettled if narrowest not in one.links]
            for transfer in settled:
                rates.append((transfer, share))
                for link in transfer.links:
                    left[link] = max(0.0, left[link] - share)
                    users[link] -= 1
                    if not users[link]:
                        del users[link]
        return rates


# -- Servers -------------------------------------------------------------------------------------------------
# They work first come, first served, beside tasks of others, and remember how loaded they were.


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTasks:
    """Tasks of other users at a server: Poisson arrivals, exponential lengths."""

    utilization: float
    """Share of the server's time that they take; 0: there are none."""
    mean_seconds: float = 60.0
    """Mean length on this server."""


class Server:
    """A server with one queue, whose past load can be read as a monitor saw it."""

    def __init__(self, name: str, performance: float, others: OtherTasks, chance: Random) -> None:
        """Create an idle server at time 0; ``performance`` in Mop/s."""
        self.name = name
        self.performance = performance
        self._others = others
        self._chance = chance
        self._arrivals: list[float] = []
        self._ends: list[float] = []
        self._next_other = self._draw_other(0.0)

    def arrive(self, operations: float, now: float) -> float:
        """Add a job of ``work`` Mop; return the time of its end. Arrivals must be in order of time."""
        self._catch_up(now)
        return self._enqueue(now, operations / self.performance)

    def load(self, now: float) -> int:
        """Return the number of jobs running and waiting, those that arrive at ``now`` included."""
        self._catch_up(now)
        return bisect_right(self._arrivals, now) - bisect_right(self._ends, now)

    def _enqueue(self, at: float, seconds: float) -> float:
        start = max(at, self._ends[-1]) if self._ends else at
        self._arrivals.append(at)
        self._ends.append(start + seconds)  # in order: nobody overtakes
        return start + seconds

    def _catch_up(self, now: float) -> None:
        while self._next_other is not None and self._next_other <= now:
            self._enqueue(self._next_other, self._chance.expovariate(1.0 / self._others.mean_seconds))
            self._next_other = self._draw_other(self._next_other)

    def _draw_other(self, after: float) -> float | None:
        if self._others.utilization <= 0.0:
            return None
        return after + self._chance.expovariate(self._others.utilization / self._others.mean_seconds)


# -- Choice of a server --------------------------------------------------------------------------------------
# Deadline scheduling of calls (Takefusa 2001): a client sends data, the server computes, the client receives the
# result. Each call has a deadline. A server's price is its performance, so the best choice is not the fastest server
# but the slowest that is in time. Load is the number of jobs at a server. This part does no I/O.

P_LOAD = 1.0
"""Load by which one assigned and unfinished call raises the forecast of its server, where load is corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that is both a client and a server."""

    name: str
    domain: str
    performance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A computation that a client requests."""

    client: Node
    submitted_at: float
    send: float
    """Mbit to the server."""
    receive: float
    """Mbit back."""
    operations: float
    """Mop."""
    deadline: float
    """Time at which the client must have received all."""


@dataclass(frozen=True, slots=True)
class ServerForecast:
    """Predicted bandwidth, load and performance of a server for one client."""

    name: str
    throughput: float
    """Mbit/s to the server, and back."""
    performance: float
    """Mop/s of the server when it has nothing else to do."""
    load: float
    """Jobs there; each takes an equal part of the performance."""

    def response_time(self, call: Call, more_load: float = 0.0) -> float:
        """Return the seconds from sending to having received: Ts = Wsend/Psend + Wrecv/Precv + Ws/Pserv."""
        transfers = call.send / self.throughput + call.receive / self.throughput
        return transfers + execution_time(call, self.performance, self.load + more_load)


def execution_time(call: Call, performance: float, load: float) -> float:
    """Return the seconds that a server of ``performance`` (Mop/s) needs beside ``load`` other jobs."""
    return call.operations * (load + 1.0) / performance


def choose(estimates: Sequence[float], time_left: float, opt: float | None) -> int:
    """Return the index of the chosen server.

    ``estimates``: the response time (seconds) at each server, at least one. ``time_left``: seconds until the deadline,
    negative when it is over. ``opt``: None for greedy scheduling, which takes the shortest response time whatever the
    deadline; else the share of the time left, more than 0 and at most 1, that the paper's algorithm aims at:
    T_target = time left x Opt. Chosen is the smallest T_target - Ts that is not negative; where there is none, the
    smallest absolute difference. The first of equal ones counts.
    """
    in_time = [] if opt is None else [estimate for estimate in estimates if estimate <= time_left * opt]
    # Beyond the target the nearest estimate is the shortest one.
    return estimates.index(max(in_time) if in_time else min(estimates))


Correction: TypeAlias = Literal["none", "shared", "own"]
"""Load correction: none, by one scheduler that knows all calls, or by one for each client that knows its own."""


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """Parameters of a scheduler: algorithm, fallbacks, load correction."""

    opt: float | None
    """None: greedy. See :func:`choose`."""
    fallbacks: int = 0
    """How often a server may send back an arriving call that it cannot finish in time."""
    correction: Correction = "none"


class CallScheduler:
    """Assigns calls to servers and counts each server's unfinished calls.

    Load correction: monitors see a new load late, so each unfinished call that was assigned to a server adds ``p_load``
    to the load that is forecast for it.
    """

    def __init__(self, variant: Variant) -> None:
        """Create a scheduler with no call assigned."""
        self._opt = variant.opt
        self._p_load = 0.0 if variant.correction == "none" else P_LOAD
        self.unfinished: Counter[str] = Counter()
        """Calls assigned to each server and neither completed nor sent back."""

    def assign(self, call: Call, forecasts: Sequence[ServerForecast], now: float) -> ServerForecast:
        """Return the forecast of the server for a call and count the call as unfinished there."""
        estimates = [one.response_time(call, self._p_load * self.unfinished[one.name]) for one in forecasts]
        chosen = forecasts[choose(estimates, call.deadline - now, self._opt)]
        self.unfinished[chosen.name] += 1
        return chosen


# -- The simulation ------------------------------------------------------------------------------------------

HOUR = 3600.0
DAY = 24 * HOUR
DOMAINS = 10
NODES_PER_DOMAIN = (5, 10)
LOCAL_BANDWIDTH, WIDE_AREA_BANDWIDTH = (50.0, 100.0), (500.0, 1000.0)
PERFORMANCE = (100.0, 500.0)
"""These pairs and the next are ranges of uniform distributions."""
DATA = (100.0, 5000.0)
"""Mbit that a call sends, and as much again that it receives (each drawn by itself)."""
OPERATIONS = (1_500.0, 1_080_000.0)
OTHERS = OtherTasks(utilization=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Nodes and domains of a simulated grid."""

    nodes: tuple[Node, ...]
    domains: tuple[Domain, ...]

    @property
    def mean_performance(self) -> float:
        """Mean of the servers, Mop/s."""
        return fmean(node.performance for node in self.nodes)

    @property
    def mean_bandwidth(self) -> float:
        """Mean bandwidth of the local domains (Mbit/s), which are narrower than the links between them."""
        return fmean(domain.bandwidth for domain in self.domains)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """Deadline, end and cost of a completed call."""

    deadline: float
    received_at: float
    cost: float
    """Performance of the server that did it, Mop/s."""
    fallbacks: int

    @property
    def failed(self) -> bool:
        """Whether the result came after the deadline."""
        return self.received_at > self.deadline


def make_grid(seed: int) -> Grid:
    """Return the random grid of a seed."""
    chance = Random(f"grid {seed}")
    nodes: list[Node] = []
    domains: list[Domain] = []
    for number in range(1, DOMAINS + 1):
        name = f"domain{number}"
        local, uplink = chance.uniform(*LOCAL_BANDWIDTH), chance.uniform(*WIDE_AREA_BANDWIDTH)
        domains.append(Domain(name=name, bandwidth=local, uplink=uplink))
        nodes += [
            Node(name=f"{name}-{index}", domain=name, performance=chance.uniform(*PERFORMANCE))
            for index in range(1, chance.randint(*NODES_PER_DOMAIN) + 1)
        ]
    return Grid(nodes=tuple(nodes), domains=tuple(domains))


def make_calls(
    seed: int,
    grid: Grid,
    *,
    interval: float = HOUR,
    deadline_factor: tuple[float, float] = (1.0, 3.0),
    duration: float = DAY,
) -> list[Call]:
    """Return all clients' calls in order of time.

    ``interval``: mean seconds between two calls of one client (exponential). ``deadline_factor``: range of the time
    left at submission, as a multiple of what the call takes on an average server without other load. ``duration``:
    seconds during which clients call.
    """
    chance = Random(f"calls {seed}")
    calls: list[Call] = []
    for client in grid.nodes:
        at = chance.expovariate(1.0 / interval)
        while at < duration:
            send, receive = chance.uniform(*DATA), chance.uniform(*DATA)
            operations = chance.uniform(*OPERATIONS)
            usual = (send + receive) / grid.mean_bandwidth + operations / grid.mean_performance
            deadline = at + usual * chance.uniform(*deadline_factor)
            calls.append(
                Call(
                    client=client, submitted_at=at, send=send, receive=receive, operations=operations, deadline=deadline
                )
            )
            at += chance.expovariate(1.0 / interval)
    return sorted(calls, key=lambda one: one.submitted_at)


class Bricks:
    """One simulation of a grid, its clients and one scheduler, or with the correction "own" one for each client."""

    def __init__(self, seed: int, grid: Grid, variant: Variant, others: OtherTasks, monitor_interval: float) -> None:
        """Create an idle grid; ``seed``: of other users' tasks. ``monitor_interval``: seconds."""
        self._engine = Engine()
        self._grid = grid
        self._network = Network(self._engine, grid.domains)
        self._servers = {
            node.name: Server(node.name, node.performance, others, Random(f"others {seed} {node.name}"))
            for node in grid.nodes
        }
        self._domain_of = {node.name: node.domain for node in grid.nodes}
        shared = CallScheduler(variant)
        self._schedulers = {
            node.name: CallScheduler(variant) if variant.correction == "own" else shared for node in grid.nodes
        }
        self._fallbacks = variant.fallbacks
        self._interval = monitor_interval
        self._users = self._network.users()
        self._measured_at = 0.0
        self._loads: dict[str, float] = {}
        self._unfinished = 0
        self.records: list[CallRecord] = []

    def run(self, calls: Sequence[Call]) -> list[CallRecord]:
        """Simulate all calls; return their records in order of their ends."""
        for call in calls:
            self._engine.at(call.submitted_at, partial(self._schedule, call, 0))
        self._unfinished = len(calls)
        self._engine.after(self._interval, self._measure)
        self._engine.run()
        return self.records

    def _measure(self) -> None:
        """Measure links and servers, as monitors do at intervals; changes in between are not seen."""
        self._users = self._network.users()
        self._measured_at = self._engine.now
        self._loads.clear()
        if self._unfinished:
            self._engine.after(self._interval, self._measure)

    def _forecasts(self, client: Node) -> list[ServerForecast]:
        """Return what was measured last, as the forecast for each server."""
        ways = {
            domain.name: self._network.throughput(client.domain, domain.name, self._users)
            for domain in self._grid.domains
        }
        return [
            ServerForecast(node.name, ways[node.domain], node.performance, self._load(node.name))
            for node in self._grid.nodes
        ]

    def _load(self, name: str) -> float:
        """Return the measured load of a server; it changes only with measurements."""
        if name not in self._loads:
            self._loads[name] = float(self._servers[name].load(self._measured_at))
        return self._loads[name]

    def _schedule(self, call: Call, fallbacks: int) -> None:
        client = call.client
        chosen = self._schedulers[client.name].assign(call, self._forecasts(client), self._engine.now)
        arrived = partial(self._arrived, call, chosen, fallbacks)
        self._network.send(client.domain, self._domain_of[chosen.name], call.send, arrived)

    def _arrived(self, call: Call, chosen: ServerForecast, fallbacks: int) -> None:
        now, server = self._engine.now, self._servers[chosen.name]
        execution = execution_time(call, server.performance, server.load(now))
        late = call.deadline - now < execution + call.receive / chosen.throughput
        if late and fallbacks < self._fallbacks:
            self._schedulers[call.client.name].unfinished[chosen.name] -= 1
            self._schedule(call, fallbacks + 1)
        else:
            ends_at = server.arrive(call.operations, now)
            self._engine.at(ends_at, partial(self._computed, call, server, fallbacks))

    def _computed(self, call: Call, server: Server, fallbacks: int) -> None:
        received = partial(self._received, call, server, fallbacks)
        self._network.send(self._domain_of[server.name], call.client.domain, call.receive, received)

    def _received(self, call: Call, server: Server, fallbacks: int) -> None:
        self._schedulers[call.client.name].unfinished[server.name] -= 1
        self._unfinished -= 1
        self.records.append(
            CallRecord(
                deadline=call.deadline, received_at=self._engine.now, cost=server.performance, fallbacks=fallbacks
            )
        )


def failure_rate(records: Sequence[CallRecord]) -> float:
    """Return the share of calls that missed the deadline. Raises StatisticsError without calls."""
    return fmean(record.failed for record in records)


def mean_cost(records: Sequence[CallRecord]) -> float:
    """Return the mean performance (Mop/s) of the servers that were used, which is the paper's cost."""
    return fmean(record.cost for record in records)
