# SPDX-License-Identifier: Apache-2.0
"""The world of a simulation: virtual time with its event queue, local users, and nodes that fail.

The order of events never depends on chance. Time is in seconds, whole or fractional, as the workload has it.
"""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel, Failures


# -- Virtual time and event queue ----------------------------------------------------------------------------
# Events of one instant go by their rank (lower first), then in the order in which they were entered. An interrupt
# between two events leaves the simulated world whole, so that a partial result can be shown.

FIRST = 0
"""Rank of what frees processors: seen by everything else that happens at the same instant."""
MIDDLE = 1
"""Rank of ordinary events."""
LAST = 2
"""Rank of decisions: they see all that happened at the instant."""
SETTLED = 3
"""Rank of what lets a job or a change be through, after all that follows from the decisions of the instant."""


class EventHandle:
    """A scheduled event, which can be cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], object]) -> None:
        """Store the function to call."""
        self.action: Callable[[], object] | None = action

    def cancel(self) -> None:
        """Cancel the event; no error when it is over."""
        self.action = None


class Engine:
    """Virtual clock with a queue of events."""

    __slots__ = ("_entered", "_events", "now")

    def __init__(self, start: float = 0.0) -> None:
        """Start the clock at ``start`` seconds with an empty queue."""
        self.now = start
        self._events: list[tuple[float, int, int, EventHandle]] = []
        self._entered = 0

    def at(self, time: float, action: Callable[[], object], *, rank: int = MIDDLE) -> EventHandle:
        """Schedule a call at a time; one in the past means now. Raises ValueError for NaN.

        Returns the handle with which it can be cancelled.
        """
        if not math.isfinite(time):
            raise ValueError(f"an event at {time} would never happen")
        handle = EventHandle(action)
        self._entered += 1
        heapq.heappush(self._events, (max(time, self.now), rank, self._entered, handle))
        return handle

    def after(self, seconds: float, action: Callable[[], object], *, rank: int = MIDDLE) -> EventHandle:
        """Schedule a call in ``seconds`` seconds."""
        return self.at(self.now + seconds, action, rank=rank)

    @property
    def waiting(self) -> int:
        """Number of events in the queue, cancelled ones included."""
        return len(self._events)

    @property
    def next_time(self) -> float | None:
        """Time of the next event; None when the queue is empty."""
        self._drop_cancelled()
        return self._events[0][0] if self._events else None

    def step(self) -> bool:
        """Process the next event; return False when there is none."""
        self._drop_cancelled()
        if not self._events:
            return False
        time, _, _, handle = heapq.heappop(self._events)
        action, handle.action = handle.action, None
        self.now = time
        if action is not None:
            action()
        return True

    def run(self, until: float = math.inf) -> None:
        """Process all events up to and including ``until``; the clock then shows the time of the last one.

        With a finite ``until`` the clock ends there.
        """
        while (time := self.next_time) is not None and time <= until:
            self.step()
        if math.isfinite(until):
            self.now = max(self.now, until)

    def _drop_cancelled(self) -> None:
        while self._events and self._events[0][3].action is None:
            heapq.heappop(self._events)


# -- Local users and failing nodes ---------------------------------------------------------------------------
# What happens to a cluster without our doing: its users bypass the scheduler, its nodes fail and are repaired.
#
# Each cluster has its own stream of chance, made from the seed and its name, so that a cluster more or fewer does not
# change what happens at the others.


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUse:
    """A job of a local user, submitted to the batch system directly."""

    submitted_at: float
    processors: int
    run: float
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node failure with its duration."""

    begins_at: float
    ends_at: float
    node: int
    """From 0."""


def rng_for(seed: int, what: str, name: str) -> random.Random:
    """Return the random number generator of one purpose at one cluster."""
    return random.Random(f"{seed}/{what}/{name}")


def local_users(cluster: ClusterModel, load: BackgroundLoad, seed: int) -> Iterator[LocalUse]:
    """Yield the jobs of a cluster's local users in order of time, without end; none when their load is 0.

    Arrivals are a Poisson process, run times exponential, sizes geometric and cut at the size of the cluster; the rate
    is chosen so that the mean demand is the utilization asked for.
    """
    if load.utilization <= 0:
        return
    rng = rng_for(seed, "local users", cluster.name)
    most = cluster.processors
    mean_size = _mean_size(load.mean_size, most)
    rate = load.utilization * most / (mean_size * load.mean_run)
    time = 0.0
    while True:
        time += rng.expovariate(rate)
        size = min(most, _geometric(rng, load.mean_size))
        yield LocalUse(submitted_at=time, processors=size, run=rng.expovariate(1.0 / load.mean_run))


def outages(cluster: ClusterModel, failures: Failures, seed: int) -> Iterator[Outage]:
    """Yield the node failures of a cluster in order of time, without end.

    Failures come as a Poisson process over all nodes that are up; a node that is away cannot fail.
    """
    rng = rng_for(seed, "failures", cluster.name)
    time = 0.0
    back_at: dict[int, float] = {}
    while True:
        time += rng.expovariate(cluster.nodes / failures.mean_time_between)
        node = rng.randrange(cluster.nodes)
        repair = rng.expovariate(1.0 / failures.mean_repair)
        if back_at.get(node, 0.0) <= time:
            back_at[node] = time + repair
            yield Outage(begins_at=time, ends_at=time + repair, node=node)


class Neighbourhood(Protocol):
    """A simulated cluster that has local users and nodes that fail."""

    def local_job(self, use: LocalUse, /) -> None:
        """Submit a job of a local user now."""

    def node_fails(self, node: int, /) -> None:
        """Remove a node (numbered from 0) and end the jobs on it."""

    def node_returns(self, node: int, /) -> None:
        """Add a failed node again."""


def schedule_background(
    engine: Engine,
    there: Neighbourhood,
    cluster: ClusterModel,
    *,
    load: BackgroundLoad | None,
    failures: Failures | None,
    seed: int,
    begin: float = 0.0,
) -> None:
    """Schedule the local users and node failures of a cluster from ``begin`` on; None for either: there are none."""
    if load is not None:
        _submit_next(engine, there, local_users(cluster, load, seed), begin)
    if failures is not None:
        _fail_next(engine, there, outages(cluster, failures, seed), begin)


def _submit_next(engine: Engine, there: Neighbourhood, uses: Iterator[LocalUse], begin: float) -> None:
    def submit(use: LocalUse) -> None:
        there.local_job(use)
        _submit_next(engine, there, uses, begin)

    if (use := next(uses, None)) is not None:
        engine.at(begin + use.submitted_at, partial(submit, use))


def _fail_next(engine: Engine, there: Neighbourhood, ahead: Iterator[Outage], begin: float) -> None:
    def fail(outage: Outage) -> None:
        there.node_fails(outage.node)
        engine.at(begin + outage.ends_at, partial(there.node_returns, outage.node), rank=FIRST)
        _fail_next(engine, there, ahead, begin)

    if (outage := next(ahead, None)) is not None:
        engine.at(begin + outage.begins_at, partial(fail, outage))


def _geometric(rng: random.Random, mean: float) -> int:
    """Return a geometrically distributed whole number from 1 with this mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / mean))


def _mean_size(mean: float, most: int) -> float:
    """Return the mean of the geometric sizes when they are cut at ``most``: the sum of P(size > k) for k < most."""
    if mean <= 1:
        return 1.0
    beyond = 1.0 - 1.0 / mean
    return (1.0 - beyond**most) * mean
