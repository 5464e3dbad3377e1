# SPDX-License-Identifier: Apache-2.0
"""Bricks: clients call servers over a network of local domains, and monitors tell the scheduler what was (Takefusa).

A grid is a tree: nodes in local domains, each domain joined to one wide-area backbone. Every node is a client and a
server. Chance makes the grid, the calls and the tasks of others, each from its own seed, so that all schedulers that
are compared meet the same grid and the same calls.

Units: seconds, Mbit, Mbit/s, Mop, Mop/s.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from koala_adapter.simulation.deadline_policies import Call, CallScheduler, Fallback, ServerForecast, execution_time
from koala_adapter.simulation.engine import Engine
from koala_adapter.simulation.network import Network
from koala_adapter.simulation.platform import DomainModel, LinkModel
from koala_adapter.simulation.servers import OtherTasks, Server

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.simulation.deadline_policies import ServerChoice

BACKBONE = "backbone"
HOUR = 3600.0
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class GridParameters:
    """How grids are made; each pair is the range of a uniform distribution."""

    domains: int = 10
    nodes_per_domain: tuple[int, int] = (5, 10)
    local_bandwidth: tuple[float, float] = (50.0, 100.0)
    wide_area_bandwidth: tuple[float, float] = (500.0, 1000.0)
    performance: tuple[float, float] = (100.0, 500.0)
    others: OtherTasks = field(default_factory=lambda: OtherTasks(utilization=0.1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParameters:
    """How the calls of each client are made."""

    interval: float = HOUR
    """Mean seconds between two calls of one client (exponential)."""
    data: tuple[float, float] = (100.0, 5000.0)
    """Mbit sent, and as much again received (each drawn by itself)."""
    operations: tuple[float, float] = (1_500.0, 1_080_000.0)
    deadline_factor: tuple[float, float] = (1.0, 3.0)
    """Time left at submission, as a multiple of what the call takes on an average server that nobody else uses."""
    duration: float = DAY
    """Seconds during which clients call; all calls are followed to their end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that is both a client and a server."""

    name: str
    domain: str
    performance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Nodes, their domains, and the links to the backbone."""

    nodes: tuple[Node, ...]
    domains: tuple[DomainModel, ...]
    links: tuple[LinkModel, ...]

    @property
    def mean_performance(self) -> float:
        """Mean of the servers, Mop/s."""
        return fmean(node.performance for node in self.nodes)

    @property
    def mean_bandwidth(self) -> float:
        """Mean of the local domains, Mbit/s: they are narrower than what joins them."""
        return fmean(domain.bandwidth for domain in self.domains if domain.name != BACKBONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A call that a client is going to make."""

    number: int
    client: Node
    submitted_at: float
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """What became of a call."""

    submitted_at: float
    deadline: float
    received_at: float
    cost: float
    """Performance of the server that did it, Mop/s."""
    fallbacks: int

    @property
    def failed(self) -> bool:
        """Whether the result came after the deadline."""
        return self.received_at > self.deadline


def make_grid(seed: int, parameters: GridParameters) -> Grid:
    """Return the grid of a seed."""
    chance = Random(f"grid {seed}")
    nodes: list[Node] = []
    domains = [DomainModel(name=BACKBONE, bandwidth=parameters.wide_area_bandwidth[1])]
    links = []
    for number in range(1, parameters.domains + 1):
        name = f"domain{number}"
        domains.append(DomainModel(name=name, bandwidth=chance.uniform(*parameters.local_bandwidth)))
        links.append(LinkModel(between=(name, BACKBONE), bandwidth=chance.uniform(*parameters.wide_area_bandwidth)))
        nodes += [
            Node(name=f"{name}-{index}", domain=name, performance=chance.uniform(*parameters.performance))
            for index in range(1, chance.randint(*parameters.nodes_per_domain) + 1)
        ]
    return Grid(nodes=tuple(nodes), domains=tuple(domains), links=tuple(links))


def make_calls(seed: int, grid: Grid, parameters: CallParameters) -> list[PlannedCall]:
    """Return the calls of all clients in order of time."""
    chance = Random(f"calls {seed}")
    drawn: list[tuple[float, Node, Call]] = []
    for client in grid.nodes:
        at = chance.expovariate(1.0 / parameters.interval)
        while at < parameters.duration:
            send, receive = chance.uniform(*parameters.data), chance.uniform(*parameters.data)
            operations = chance.uniform(*parameters.operations)
            usual = (send + receive) / grid.mean_bandwidth + operations / grid.mean_performance
            deadline = at + usual * chance.uniform(*parameters.deadline_factor)
            drawn.append((at, client, Call(send=send, receive=receive, operations=operations, deadline=deadline)))
            at += chance.expovariate(1.0 / parameters.interval)
    drawn.sort(key=lambda one: one[0])
    return [
        PlannedCall(number=number, client=client, submitted_at=at, call=call)
        for number, (at, client, call) in enumerate(drawn)
    ]


class Predictor(Protocol):
    """Tells what comes next from what was measured."""

    def __call__(self, measured: Sequence[float], /) -> float:
        """Return the forecast; ``measured`` holds at least one value, the latest last."""


def last_value(measured: Sequence[float], /) -> float:
    """Forecast that all stays as it was last seen."""
    return measured[-1]


@dataclass(frozen=True, slots=True)
class Monitors:
    """How resources are watched: every ``interval`` seconds, ``memory`` measurements are kept for the predictor."""

    interval: float = 60.0
    memory: int = 1
    predictor: Predictor = last_value


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParameters:
    """What is compared."""

    choice: ServerChoice
    p_load: float = 0.0
    """Load correction; 0: none."""
    maximum_fallbacks: int = 0
    shared: bool = True
    """One scheduler for all clients; else one for each, which knows of no calls but its own client's."""


class Bricks:
    """One simulation of a grid, its clients and one scheduler."""

    def __init__(
        self, seed: int, grid: Grid, scheduler: SchedulerParameters, others: OtherTasks, monitors: Monitors
    ) -> None:
        """Start with an idle grid; the seed is that of the tasks of others."""
        self._engine = Engine()
        self._grid = grid
        self._network = Network(self._engine, grid.domains, grid.links, complete=False)
        self._servers = {
            node.name: Server(node.name, node.performance, others, Random(f"others {seed} {node.name}"))
            for node in grid.nodes
        }
        self._domain_of = {node.name: node.domain for node in grid.nodes}
        self._schedulers = dict.fromkeys(
            (node.name for node in grid.nodes), CallScheduler(scheduler.choice, p_load=scheduler.p_load)
        )
        if not scheduler.shared:
            for name in self._schedulers:
                self._schedulers[name] = CallScheduler(scheduler.choice, p_load=scheduler.p_load)
        self._fallback = Fallback(scheduler.maximum_fallbacks)
        self._monitors = monitors
        self._users: deque[tuple[int, ...]] = deque([self._network.users()], maxlen=monitors.memory)
        self._measured_at: deque[float] = deque([0.0], maxlen=monitors.memory)
        self._loads: dict[str, float] = {}
        self._unfinished = 0
        self.records: list[CallRecord] = []

    def run(self, calls: Sequence[PlannedCall]) -> list[CallRecord]:
        """Let all calls happen; return what became of them in the order of their ends."""
        for planned in calls:
            self._engine.at(planned.submitted_at, partial(self._schedule, planned, 0))
        self._unfinished = len(calls)
        self._engine.after(self._monitors.interval, self._measure)
        self._engine.run()
        return self.records

    def _measure(self) -> None:
        """Let the monitors see links and servers; what happens before the next time they do not see."""
        self._users.append(self._network.users())
        self._measured_at.append(self._engine.now)
        self._loads.clear()
        if self._unfinished:
            self._engine.after(self._monitors.interval, self._measure)

    def _forecasts(self, client: Node) -> list[ServerForecast]:
        throughput: dict[str, float] = {}
        for domain in self._grid.domains[1:]:
            seen = [self._network.throughput(client.domain, domain.name, users) for users in self._users]
            throughput[domain.name] = self._monitors.predictor(seen)
        forecasts = []
        for node in self._grid.nodes:
            way = throughput[node.domain]
            forecasts.append(ServerForecast(node.name, way, way, node.performance, self._load(node.name)))
        return forecasts

    def _load(self, name: str) -> float:
        """Return the predicted load of a server, which only changes when the monitors look."""
        load = self._loads.get(name)
        if load is None:
            server = self._servers[name]
            seen = [float(server.load(at)) for at in self._measured_at]
            load = self._loads[name] = self._monitors.predictor(seen)
        return load

    def _schedule(self, planned: PlannedCall, fallbacks: int) -> None:
        client = planned.client
        chosen = self._schedulers[client.name].assign(planned.call, self._forecasts(client), self._engine.now)
        domain = self._domain_of[chosen.name]
        self._network.send(
            client.domain, domain, planned.call.send, lambda _: self._arrived(planned, chosen, fallbacks)
        )

    def _arrived(self, planned: PlannedCall, chosen: ServerForecast, fallbacks: int) -> None:
        now, call, server = self._engine.now, planned.call, self._servers[chosen.name]
        back = self._fallback.wanted(
            time_left=call.deadline - now,
            execution=execution_time(call, server.performance, server.load(now)),
            receive=call.receive / chosen.receive_throughput,
            fallbacks=fallbacks,
        )
        if back:
            self._schedulers[planned.client.name].finished(chosen.name)
            self._schedule(planned, fallbacks + 1)
        else:
            ends_at = server.arrive(call.operations, now)
            self._engine.at(ends_at, lambda: self._computed(planned, chosen.name, fallbacks))

    def _computed(self, planned: PlannedCall, server: str, fallbacks: int) -> None:
        self._network.send(
            self._domain_of[server],
            planned.client.domain,
            planned.call.receive,
            lambda _: self._received(planned, server, fallbacks),
        )

    def _received(self, planned: PlannedCall, server: str, fallbacks: int) -> None:
        self._schedulers[planned.client.name].finished(server)
        self._unfinished -= 1
        self.records.append(
            CallRecord(
                submitted_at=planned.submitted_at,
                deadline=planned.call.deadline,
                received_at=self._engine.now,
                cost=self._servers[server].performance,
                fallbacks=fallbacks,
            )
        )


def failure_rate(records: Sequence[CallRecord]) -> float:
    """Return the share of calls whose result came after the deadline. Raises StatisticsError for no calls."""
    return fmean(record.failed for record in records)


def mean_cost(records: Sequence[CallRecord]) -> float:
    """Return the mean resource cost: the performance (Mop/s) of the servers that were used."""
    return fmean(record.cost for record in records)
