# SPDX-License-Identifier: Apache-2.0
"""What a site file may say about a local cluster, and the description of the cluster that follows from it."""

from __future__ import annotations

import os
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from koala_local.layout import KILL_WAIT, Layout, NodeSlots

NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class LocalSettings(BaseModel):
    """The ``[clusters.settings]`` table of a cluster with ``plugin = "local"``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    processors: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Processors (slots) of the whole cluster, on one simulated node. Default: as this host has.",
    )
    nodes: int | None = Field(
        default=None, ge=1, le=10_000, description="Number of simulated nodes, called n1, n2 and so on."
    )
    node_names: tuple[NodeName, ...] = Field(
        default=(), description="Names of the simulated nodes, in place of their number."
    )
    processors_per_node: int | None = Field(
        default=None, ge=1, le=10_000, description="Processors (slots) of each simulated node. Default: 1."
    )
    walltime_limit: int | None = Field(
        default=None, ge=1, description="Longest walltime of a job in seconds. Default: no limit."
    )
    idle_seconds: float = Field(
        default=600.0,
        gt=0,
        description="Seconds without jobs and without requests after which the cluster's daemon ends by itself.",
    )
    remember_seconds: float = Field(
        default=600.0, ge=0, description="Seconds for which ended jobs stay listed, with the way they ended."
    )
    kill_wait: float = Field(
        default=KILL_WAIT,
        ge=0,
        description="Seconds from SIGTERM, with which a job is ended, to SIGKILL for what does not listen.",
    )
    answer_seconds: float = Field(
        default=30.0,
        gt=0,
        description="Seconds within which the daemon must answer; otherwise the cluster counts as out of reach.",
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.processors is not None and (self.nodes or self.node_names or self.processors_per_node):
            message = "give processors alone, or nodes (or node_names) with processors_per_node"
            raise ValueError(message)
        if self.nodes is not None and self.node_names:
            message = "give nodes or node_names, not both"
            raise ValueError(message)
        if len(set(self.node_names)) != len(self.node_names):
            message = "node_names must be different from each other"
            raise ValueError(message)
        return self

    @property
    def layout(self) -> Layout:
        """The cluster that these settings describe."""
        if self.nodes is None and not self.node_names and self.processors_per_node is None:
            each = self.processors or os.cpu_count() or 1
        else:
            each = self.processors_per_node or 1
        names: tuple[str, ...] = self.node_names
        names = names or tuple(f"n{number}" for number in range(1, (self.nodes or 1) + 1))
        return Layout(
            nodes=tuple(NodeSlots(name=name, processors=each) for name in names),
            walltime_limit=self.walltime_limit,
            idle_seconds=self.idle_seconds,
            remember_seconds=self.remember_seconds,
            kill_wait=self.kill_wait,
        )
