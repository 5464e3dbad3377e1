# SPDX-License-Identifier: Apache-2.0
"""Local users who bypass the scheduler, and nodes that fail: what happens to a cluster without our doing.

Each cluster has its own stream of chance, made from the seed and its name, so that a cluster more or fewer does not
change what happens at the others.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel, Failures


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalUse:
    """A job that a local user submits to the cluster's batch system."""

    submitted_at: float
    processors: int
    run: float
    """Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A node is away for a while."""

    begins_at: float
    ends_at: float
    node: int
    """From 0."""


def stream(seed: int, what: str, name: str) -> random.Random:
    """Return the stream of chance of one thing at one cluster."""
    return random.Random(f"{seed}/{what}/{name}")


def local_users(cluster: ClusterModel, load: BackgroundLoad, seed: int) -> Iterator[LocalUse]:
    """Yield the jobs of a cluster's local users without end, in order of time; none when they use nothing.

    Arrivals are a Poisson process, run times exponential, sizes geometric and cut at the size of the cluster; the rate
    is chosen so that the mean demand is the utilization asked for.
    """
    if load.utilization <= 0:
        return
    chance = stream(seed, "local users", cluster.name)
    most = cluster.processors
    mean_size = _mean_size(load.mean_size, most)
    rate = load.utilization * most / (mean_size * load.mean_run)
    time = 0.0
    while True:
        time += chance.expovariate(rate)
        size = min(most, _geometric(chance, load.mean_size))
        yield LocalUse(submitted_at=time, processors=size, run=chance.expovariate(1.0 / load.mean_run))


def outages(cluster: ClusterModel, failures: Failures, seed: int) -> Iterator[Outage]:
    """Yield the outages of a cluster's nodes without end, in order of time.

    Failures come as a Poisson process over all nodes that are up; a node that is away cannot fail.
    """
    chance = stream(seed, "failures", cluster.name)
    time = 0.0
    back_at: dict[int, float] = {}
    while True:
        time += chance.expovariate(cluster.nodes / failures.mean_time_between)
        node = chance.randrange(cluster.nodes)
        repair = chance.expovariate(1.0 / failures.mean_repair)
        if back_at.get(node, 0.0) <= time:
            back_at[node] = time + repair
            yield Outage(begins_at=time, ends_at=time + repair, node=node)


def _geometric(chance: random.Random, mean: float) -> int:
    """Return a whole number from 1 with this mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1.0 - chance.random()) / math.log(1.0 - 1.0 / mean))


def _mean_size(mean: float, most: int) -> float:
    """Return the mean of the geometric sizes when they are cut at ``most``: the sum of P(size > k) for k < most."""
    if mean <= 1:
        return 1.0
    beyond = 1.0 - 1.0 / mean
    return (1.0 - beyond**most) * mean
