# SPDX-License-Identifier: Apache-2.0
"""The tables of a site file as models: keys, meanings, units, bounds, and what must go together.

This is the reference: docs/site-file.md and docs/site.schema.json are made from it.
"""

from __future__ import annotations

import socket
from typing import Self

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from koala_adapter.config.diagnosis import inconsistent, show_value
from koala_adapter.config.fields import (
    SECONDS,
    AbsolutePath,
    DirectiveArgument,
    Flag,
    FlagName,
    Host,
    MebibytesPerSecond,
    Name,
    PlacementName,
    QueueName,
    Seconds,
    Whole,
    WholeSeconds,
)
from koala_adapter.model import ClusterName, Directives
from koala_adapter.plugin.limits import URGENT_SHARE, WINDOW

ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - named here to be told from an address that nodes can reach
HEARTBEATS_PER_LEASE = 3
FIRST_UNPRIVILEGED_PORT = 1024
REQUESTS_PER_POLL = 2
"""One listing of jobs and one of nodes: the least that a poll costs."""


class ControlCenterConfig(BaseModel, frozen=True, extra="forbid"):
    """Where the control center listens, how nodes reach it, and how long agents and it wait for each other."""

    listen: Host = Field(
        default="0.0.0.0",  # noqa: S104 - nodes must reach it; agents prove themselves with a one-time token over TLS
        description="Address on which the control center listens; 0.0.0.0 is every IPv4 address of this host.",
    )
    port: Whole = Field(
        default=0,
        ge=0,
        le=65_535,
        description="TCP port on which it listens, 1024 or higher; 0: a free one is chosen once and kept.",
    )
    address: Host | None = Field(
        default=None,
        description="Host name or IP address by which nodes reach it. Default: the address it listens on when that is "
        "a single one, else this host's name.",
    )
    lease: Seconds = Field(
        default=300,
        ge=1,
        le=86_400,
        json_schema_extra=SECONDS,
        description="An agent without contact for so long ends its application and itself. At least three heartbeats.",
    )
    heartbeat: Seconds = Field(
        default=20,
        ge=0.1,
        le=3600,
        json_schema_extra=SECONDS,
        description="Time between two signs of life of an agent.",
    )
    registration_timeout: Seconds = Field(
        default=120,
        ge=1,
        le=86_400,
        json_schema_extra=SECONDS,
        description="A placeholder that runs in its LRM, but whose agent has not reported for so long, is MISSING.",
    )
    output_files_per_rank_mib: Whole = Field(
        default=100,
        ge=0,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Bound of the output_files that are fetched from one rank. Those beyond it are named.",
    )
    output_files_per_job_mib: Whole = Field(
        default=1024,
        ge=0,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Bound of the output_files of all ranks of a job together.",
    )

    @property
    def node_address(self) -> str:
        """The address by which nodes reach the control center, where a cluster does not say otherwise."""
        if self.address is not None:
            return self.address
        return socket.gethostname() if self.listen in ANY_ADDRESS else self.listen

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        if 0 < self.port < FIRST_UNPRIVILEGED_PORT:
            problems.append((("port",), f"found {self.port}, allowed is 0, or 1024 to 65535: lower ones need root"))
        if self.lease < HEARTBEATS_PER_LEASE * self.heartbeat:
            least = HEARTBEATS_PER_LEASE * self.heartbeat
            text = f"found {self.lease:g}, allowed is at least three heartbeats ({least:g} seconds)"
            problems.append((("lease",), text))
        if self.address in ANY_ADDRESS:
            text = f"found {show_value(self.address)}, allowed is an address that nodes can connect to"
            problems.append((("address",), text))
        if problems:
            raise inconsistent(*problems)
        return self


class SchedulerConfig(BaseModel, frozen=True, extra="forbid"):
    """How jobs are placed, how long processors are held for a job, and when a cluster is paused."""

    scan_interval: Seconds = Field(
        default=15,
        ge=0.05,
        le=3600,
        json_schema_extra=SECONDS,
        description="Time between two scans of the placement queue.",
    )
    placement: PlacementName = Field(
        default="worst-fit",
        description="Placement policy of jobs that name none. worst-fit: the cluster with the most idle processors. "
        "close-to-files: the cluster that holds the input files, or gets them soonest. cluster-minimization: as few "
        "clusters as possible. flexible-cluster-minimization: the same, and flexible components are split. "
        "waiting-history: where earlier placeholders waited least.",
    )
    cluster_cost: Seconds = Field(
        default=30,
        ge=0,
        le=604_800,
        json_schema_extra=SECONDS,
        description="Only waiting-history: how much longer a job may be expected to wait to use one cluster less.",
    )
    placeholder_life: Seconds = Field(
        default=900,
        ge=1,
        le=604_800,
        json_schema_extra=SECONDS,
        description=(
            "Life cycle: how long, at most, a held placeholder waits for the others of its job before it is handed "
            "back."
        ),
    )
    backoff: Seconds = Field(
        default=60,
        ge=0.1,
        le=86_400,
        json_schema_extra=SECONDS,
        description=(
            "Shortest pause before a job whose placeholders were handed back tries again; it doubles with each try. "
            "It should be longer than the batch systems need to give to others what was handed back."
        ),
    )
    longest_backoff: Seconds = Field(
        default=3600,
        ge=0.1,
        le=604_800,
        json_schema_extra=SECONDS,
        description="Upper bound of that pause.",
    )
    maximum_tries: Whole = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Placement tries after which the submission of a job fails, where the job file gives no number.",
    )
    missing_limit: Whole = Field(
        default=3,
        ge=1,
        le=1000,
        description="So many MISSING placeholders in a row pause a cluster.",
    )
    pause: Seconds = Field(
        default=600,
        ge=1,
        le=86_400,
        json_schema_extra=SECONDS,
        description="How long a cluster is paused.",
    )
    launch_margin: WholeSeconds = Field(
        default=120,
        ge=0,
        le=86_400,
        json_schema_extra=SECONDS,
        description="Added to the walltime that is requested from LRMs, for launching and ending.",
    )
    reuse: Flag = Field(
        default=True,
        description="Hand the placeholders of a finished job to a waiting job of the same user, if they last.",
    )
    reorganize: Flag = Field(
        default=True,
        description="Resource reorganization: before held placeholders are handed back at the end of their life, give "
        "them to another job of the same user that waits for that cluster, in exchange for its place in the queue.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.longest_backoff < self.backoff:
            text = f"found {self.longest_backoff:g}, allowed is at least backoff ({self.backoff:g} seconds)"
            raise inconsistent((("longest_backoff",), text))
        return self


class DirectivesConfig(BaseModel, frozen=True, extra="forbid"):
    """What this site wants changed in every submission, because it has flags that it requires or forbids."""

    add: tuple[DirectiveArgument, ...] = Field(
        default=(),
        description='Arguments added to every submission, such as "--account=physics" or "-l h_vmem=2G".',
    )
    drop: tuple[FlagName, ...] = Field(
        default=(),
        description='Flags left out of every submission, by name, such as "--no-requeue".',
    )
    rename: dict[FlagName, FlagName] = Field(
        default={},
        description="Table: the flag as koala writes it = the flag as this site wants it.",
    )

    def to_directives(self) -> Directives:
        """Return the same in the form that plugins take."""
        return Directives(add=self.add, drop=self.drop, rename=tuple(self.rename.items()))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        both = sorted(set(self.drop) & set(self.rename))
        if both:
            problems = [
                (("rename", flag), f"{show_value(flag)} is also dropped: allowed is one of the two") for flag in both
            ]
            raise inconsistent(*problems)
        return self


class NoSettings(BaseModel, frozen=True, extra="forbid"):
    """Settings of a plugin that has none."""


class ClusterConfig(BaseModel, frozen=True, extra="forbid"):
    """One cluster: one batch system, the plugin that speaks to it, and the limits to be kept there."""

    name: Name = Field(description="Name of the cluster in job files, commands and reports.")
    plugin: Name = Field(
        description="Plugin that speaks to its LRM: local, slurm, sge, drmaa, wiki, or another that is installed."
    )
    enabled: Flag = Field(
        default=True,
        description="false: nothing is placed there, and it is not asked unless placeholders are left there.",
    )
    threshold: Whole = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="Idle processors always left to local users.",
    )
    queue: QueueName | None = Field(
        default=None,
        description="Partition (Slurm) or queue (Grid Engine) for placeholders. Default: the LRM's own default.",
    )
    walltime_limit: WholeSeconds | None = Field(
        default=None,
        ge=1,
        le=315_360_000,
        json_schema_extra=SECONDS,
        description="Longest walltime that this cluster grants. Default: no limit known.",
    )
    requests_per_minute: Whole = Field(
        default=60,
        ge=6,
        le=6000,
        description="Upper bound of requests to the LRM in any 60 seconds, of all kinds together.",
    )
    poll_interval: Seconds = Field(
        default=15,
        ge=0.1,
        le=3600,
        json_schema_extra=SECONDS,
        description="Time between two looks at jobs and nodes. Must fit requests_per_minute.",
    )
    placeholders_in_flight: Whole = Field(
        default=500,
        ge=1,
        le=1_000_000,
        description="Most placeholders that are queued here at once (the site's limit of submitted jobs per user).",
    )
    files: tuple[AbsolutePath, ...] = Field(
        default=(),
        description="Only close-to-files: files, and directories with all below them, that the nodes see under the "
        "same path as this host. Input files from there count as near; ranks are sent them in any case.",
    )
    bandwidth: MebibytesPerSecond | None = Field(
        default=None,
        gt=0,
        le=1_000_000,
        json_schema_extra={"x-unit": "MiB/s"},
        description="Only close-to-files: how fast files get from this host to the nodes. Default: not known.",
    )
    memory_mib: Whole | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Memory requested for each placeholder. Default: what the LRM gives when not asked.",
    )
    output_directory: AbsolutePath | None = Field(
        default=None,
        description="Directory on the nodes for what placeholders themselves print (not the application). Default: one "
        "in the state directory, for nodes that see it; others keep nothing.",
    )
    control_center_address: Host | None = Field(
        default=None,
        description="Address by which the nodes of this cluster reach the control center, when another one.",
    )
    token_directory: AbsolutePath | None = Field(
        default=None,
        description="Directory shared by this host and the nodes. The one-time token then travels in a file of mode "
        "0600 there, instead of in the job script.",
    )
    directives: DirectivesConfig = Field(
        default=DirectivesConfig(),
        description="Changes to every submission: see [clusters.directives].",
    )
    settings: SerializeAsAny[BaseModel] = Field(
        default=NoSettings(),
        description="The plugin's own settings: see [clusters.settings].",
    )

    @property
    def cluster_name(self) -> ClusterName:
        """The name as the model's type."""
        return ClusterName(self.name)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        shortest = shortest_poll_interval(self.requests_per_minute)
        if self.poll_interval < shortest:
            text = (
                f"found {self.poll_interval:g}, allowed is at least {shortest:g} seconds with requests_per_minute = "
                f"{self.requests_per_minute}: a poll costs {REQUESTS_PER_POLL} requests, a fifth is kept for cancelling"
            )
            raise inconsistent((("poll_interval",), text))
        return self


class SiteConfig(BaseModel, frozen=True, extra="forbid"):
    """A whole site file."""

    control_center: ControlCenterConfig = Field(
        default=ControlCenterConfig(),
        description="Where the control center listens: see [control_center].",
    )
    scheduler: SchedulerConfig = Field(
        default=SchedulerConfig(),
        description="How jobs are placed: see [scheduler].",
    )
    clusters: tuple[ClusterConfig, ...] = Field(
        min_length=1,
        description="The clusters, one [[clusters]] table for each: see there.",
    )

    @property
    def enabled_clusters(self) -> tuple[ClusterConfig, ...]:
        """The clusters on which something may be placed."""
        return tuple(cluster for cluster in self.clusters if cluster.enabled)

    def cluster(self, name: str) -> ClusterConfig:
        """Return the cluster called ``name``. Raises KeyError when there is none."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise KeyError(name)

    def node_address(self, cluster: ClusterConfig) -> str:
        """Return the address by which the nodes of ``cluster`` reach the control center."""
        return cluster.control_center_address or self.control_center.node_address


def shortest_poll_interval(requests_per_minute: int, requests_per_poll: int = REQUESTS_PER_POLL) -> float:
    """Return the shortest time (seconds) between polls that fits the bound, less the share of urgent requests."""
    ordinary = max(1, int(requests_per_minute * (1 - URGENT_SHARE)))
    polls = ordinary // requests_per_poll
    return WINDOW / polls if polls else WINDOW * requests_per_poll / ordinary
