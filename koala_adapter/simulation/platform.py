# SPDX-License-Identifier: Apache-2.0
"""Simulated platforms: clusters, local users, failures; from TOML files or by name.

A platform file describes what a simulation runs on::

    name = "two sites"

    [[clusters]]
    name = "north"
    nodes = 32
    processors_per_node = 4

    [[clusters]]
    name = "south"
    nodes = 16
    threshold = 4          # processors that managed jobs leave to local users

    [background]           # local users who bypass the scheduler
    utilization = 0.2

Units: seconds, processors. A speed of 1 is that of the machine on which run times were taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, model_validator

from koala_adapter.config.diagnosis import Problems, inconsistent, show_value
from koala_adapter.config.fields import SECONDS, Mebibytes, Name, Seconds, Title, Whole
from koala_adapter.config.tomlfile import KeyPath, read_document
from koala_adapter.model import ClusterName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


HINT = "`koala docs simulation` describes platform files"
MOST_PROCESSORS = 100_000_000
KIB_PER_MIB = 1024
NO_NETWORK = "simulations have no network: leave this out"


class BackgroundLoad(BaseModel, frozen=True, extra="forbid"):
    """Local users who submit to a cluster's batch system directly, past the scheduler."""

    utilization: float = Field(
        ge=0, le=1, description="Share of the cluster's processors that they ask for on average."
    )
    mean_run: Seconds = Field(
        default=600, gt=0, json_schema_extra=SECONDS, description="Mean run time of their jobs (exponential)."
    )
    mean_size: float = Field(
        default=4,
        ge=1,
        le=1e6,
        description="Mean processors of their jobs (geometric, never more than the cluster has).",
    )


class Failures(BaseModel, frozen=True, extra="forbid"):
    """Nodes fail and come back, each on its own, after exponential times."""

    mean_time_between: Seconds = Field(
        gt=0, json_schema_extra=SECONDS, description="Mean time for which one node stays up."
    )
    mean_repair: Seconds = Field(
        default=14_400, gt=0, json_schema_extra=SECONDS, description="Mean time until it is back."
    )


class ClusterModel(BaseModel, frozen=True, extra="forbid"):
    """A simulated cluster: its nodes, speed, local users and failures."""

    name: Name = Field(description="Name of the cluster, unique in the file.")
    nodes: Whole = Field(ge=1, le=10_000_000, description="Number of nodes.")
    processors_per_node: Whole = Field(default=1, ge=1, le=100_000, description="Processors of each node.")
    speed: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="Speed of its processors; a job of 60 s at speed 1 takes 30 s at speed 2.",
    )
    memory_per_node: Mebibytes | None = Field(
        default=None,
        description='Memory of each node, in MiB or as a text such as "64GiB". With --memory, jobs of a trace that ask '
        "for memory have room by it. Default: enough.",
    )
    threshold: Whole = Field(
        default=0, ge=0, description="Processors that all managed jobs together leave to local users."
    )
    background: BackgroundLoad | None = Field(
        default=None, description="Local users of this cluster. Default: those of the file's [background]."
    )
    failures: Failures | None = Field(
        default=None, description="Node failures. Default: those of the file's [failures]."
    )

    @property
    def processors(self) -> int:
        """Processors of all its nodes."""
        return self.nodes * self.processors_per_node

    def processors_taken(self, size: int, memory: float) -> int | None:
        """Return how many processors a job blocks: its own, and those left without memory by it.

        ``memory``: KiB for each of its processors; 0 or less: not told. None: no node has so much.
        """
        if memory <= 0 or self.memory_per_node is None:
            return size
        slots = min(self.processors_per_node, int(self.memory_per_node * KIB_PER_MIB // memory))
        return -(-size * self.processors_per_node // slots) if slots else None

    @property
    def cluster(self) -> ClusterName:
        """Its name, as the scheduler knows it."""
        return ClusterName(self.name)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.threshold >= self.processors:
            text = f"found {self.threshold}, allowed is less than the cluster's {self.processors} processors"
            raise inconsistent((("threshold",), text))
        return self


class Platform(BaseModel, frozen=True, extra="forbid"):
    """The simulated clusters of a file."""

    name: Title = Field(default="platform", description="What reports call it.")
    clusters: tuple[ClusterModel, ...] = Field(min_length=1, max_length=100_000, description="The clusters.")
    background: BackgroundLoad | None = Field(default=None, description="Local users of clusters that have none named.")
    failures: Failures | None = Field(default=None, description="Node failures of clusters that have none named.")

    @property
    def processors(self) -> int:
        """Processors of all clusters."""
        return sum(cluster.processors for cluster in self.clusters)

    @property
    def capacity(self) -> int:
        """Processors that managed jobs may use: all but the thresholds."""
        return sum(cluster.processors - cluster.threshold for cluster in self.clusters)

    def background_of(self, cluster: ClusterModel) -> BackgroundLoad | None:
        """Return the local users of a cluster; None when it has none."""
        return cluster.background or self.background

    def failures_of(self, cluster: ClusterModel) -> Failures | None:
        """Return how the nodes of a cluster fail; None when they do not."""
        return cluster.failures or self.failures

    def with_background(self, utilization: float) -> Platform:
        """Return the platform with local users who use the share ``utilization`` of each cluster; 0: none."""
        load = BackgroundLoad(utilization=utilization) if utilization > 0 else None
        clusters = tuple(cluster.model_copy(update={"background": None}) for cluster in self.clusters)
        return self.model_copy(update={"background": load, "clusters": clusters})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[KeyPath, str]] = []
        seen: dict[str, int] = {}
        for index, cluster in enumerate(self.clusters):
            if (first := seen.setdefault(cluster.name, index)) != index:
                text = f"found {show_value(cluster.name)}, the name of clusters[{first}]: allowed is a name of its own"
                problems.append((("clusters", index, "name"), text))
        if self.processors > MOST_PROCESSORS:
            problems.append(
                (("clusters",), f"found {self.processors} processors, allowed are {MOST_PROCESSORS} in all")
            )
        if problems:
            raise inconsistent(*problems)
        return self


def _network_keys(data: Mapping[str, object]) -> Iterator[KeyPath]:
    """Yield the keys that describe a network, which platform files may not have."""
    if "network" in data:
        yield ("network",)
    clusters = data.get("clusters")
    for index, cluster in enumerate(clusters if isinstance(clusters, list) else ()):
        if isinstance(cluster, dict) and "domain" in cluster:
            yield ("clusters", index, "domain")


def load_platform(path: Path) -> Platform:
    """Return the platform that the file at ``path`` describes. Raises ConfigurationError with all its problems."""
    document = read_document(path)
    problems = Problems(document, hint=HINT)
    for key in _network_keys(document.data):
        problems.add(key, NO_NETWORK)
    problems.refuse()
    return problems.accepted(problems.validated(Platform, document.data))


DAS3 = Platform(
    name="DAS-3",
    clusters=(
        ClusterModel(name="vu", nodes=85),
        ClusterModel(name="uva", nodes=41),
        ClusterModel(name="delft", nodes=68),
        ClusterModel(name="multimedian", nodes=46),
        ClusterModel(name="leiden", nodes=32),
    ),
)
"""The testbed of KOALA's experiments (TR-0092): 272 nodes in five clusters, one application process per node."""

PLATFORMS: Mapping[str, Platform] = {"das3": DAS3}
"""Platforms that can be named."""
