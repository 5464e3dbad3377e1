# SPDX-License-Identifier: Apache-2.0
"""Site files: which clusters there are, which plugin speaks to each, and the limits to be kept there.

First the tables as pydantic models, then the file read and checked as a whole.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from koala_adapter.config.diagnosis import ALSO_CALLED, Problems, inconsistent, not_among, show_value
from koala_adapter.config.fields import (
    FIRST_UNPRIVILEGED_PORT,
    SECONDS,
    AbsolutePath,
    Flag,
    Host,
    MailAddress,
    MebibytesPerSecond,
    Name,
    PlacementName,
    PlainText,
    PortRange,
    QueueName,
    Seconds,
    SetupLines,
    SoftwareName,
    SshDestination,
    WebAddress,
    Whole,
)
from koala_adapter.config.parameterkeys import values_of, with_parameters
from koala_adapter.config.slottable import DirectivesConfig, MapConfig
from koala_adapter.config.tomlfile import parse_document, read_document
from koala_adapter.errors import ConfigurationError
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.rate import URGENT_SHARE, WINDOW
from koala_adapter.model import ClusterName, MpiResize
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from koala_adapter.config.tomlfile import Document
    from koala_adapter.lrm import PluginDefinition

# -- The tables ----------------------------------------------------------------------------------------------
# docs/site-file.md and docs/site.schema.json are made from these models.

ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - named here to be told from an address that nodes can reach
HEARTBEATS_PER_LEASE = 3
TIMES_OF_AGENTS = ("lease", "await_suspended", "registration_timeout")
"""Parameters of the scheduler that the control center keeps to as well: they stand in its table."""
REQUESTS_PER_POLL = 2
"""One listing of jobs and one of nodes: the least that a poll costs."""


@with_parameters(Parameters, only=TIMES_OF_AGENTS)
class ControlCenterConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
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
    negotiation_listen: Host = Field(
        default="127.0.0.1",
        description="Address on which programs that negotiate for jobs are listened for, with a one-time token and not "
        "encrypted; on a port that is chosen when one first asks for it.",
    )
    heartbeat: Seconds = Field(
        default=20,
        ge=0.1,
        le=3600,
        json_schema_extra=SECONDS,
        description="Time between two signs of life of an agent.",
    )
    output_files_per_rank_mib: Whole = Field(
        default=10_240,
        ge=0,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Bound of the output_files that are fetched from one rank. Those beyond it are named.",
    )
    output_files_per_job_mib: Whole = Field(
        default=51_200,
        ge=0,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Bound of the output_files of all ranks of a job together.",
    )
    cache_mib: Whole = Field(
        default=10_240,
        ge=0,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Room for input files with logical names that come from elsewhere for jobs on clusters of this "
        "host, in `cache` of the state directory. What was used longest ago makes room for others. 0: none come.",
    )

    @property
    def address_here(self) -> str:
        """The address at which this host itself finds the control center."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen, self.listen)  # noqa: S104 - told from others

    @property
    def node_address(self) -> str:
        """The address by which nodes reach the control center, where a cluster does not say otherwise."""
        if self.address is not None:
            return self.address
        return socket.gethostname() if self.listen in ANY_ADDRESS else self.listen

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = []
        lease = Parameters(**values_of(Parameters, self)).lease
        if 0 < self.port < FIRST_UNPRIVILEGED_PORT:
            problems.append((("port",), f"found {self.port}, allowed is 0, or 1024 to 65535: lower ones need root"))
        if lease < HEARTBEATS_PER_LEASE * self.heartbeat:
            least = HEARTBEATS_PER_LEASE * self.heartbeat
            text = f"found {lease:g}, allowed is at least three heartbeats ({least:g} seconds)"
            problems.append((("lease",), text))
        if self.address in ANY_ADDRESS:
            text = f"found {show_value(self.address)}, allowed is an address that nodes can connect to"
            problems.append((("address",), text))
        if problems:
            raise inconsistent(*problems)
        return self


@with_parameters(Parameters, without=TIMES_OF_AGENTS)
class SchedulerConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """How jobs are placed, how long processors are held for a job, and when a cluster is paused."""

    placement: PlacementName = Field(
        default="worst-fit",
        description="Placement policy of jobs that name none. worst-fit: the cluster with the most idle processors. "
        "close-to-files: the cluster that holds the input files, or gets them soonest. cluster-minimization: as few "
        "clusters as possible. flexible-cluster-minimization: the same, and flexible components are split. "
        "waiting-history: where earlier placeholders waited least.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        chosen = Parameters(**values_of(Parameters, self))
        if chosen.longest_backoff < chosen.backoff:
            text = f"found {chosen.longest_backoff:g}, allowed is at least backoff ({chosen.backoff:g} seconds)"
            raise inconsistent((("longest_backoff",), text))
        return self


class NoSettings(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Settings of a plugin that has none."""


@with_parameters(ClusterParameters)
class _PlacedCluster(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A cluster as the scheduler knows it: a class of its own so that its keys come before the others."""

    name: Name = Field(description="Name of the cluster in job files, commands and reports.")
    plugin: Name = Field(
        description="Plugin that speaks to its LRM: local, slurm, sge, pbs, drmaa, wiki, or another that is installed."
    )
    enabled: Flag = Field(
        default=True,
        description="false: nothing is placed there, and it is not asked unless placeholders are left there.",
    )


ContainerRuntime = Literal["apptainer", "singularity", "podman"]
"""Programs of which koala knows how they are called."""

REQUESTS_AS_OWNER = 1800
"""Requests a minute of a scheduler that starts all jobs, unless the site says otherwise: ten starts a second."""


class ClusterConfig(_PlacedCluster, defer_build=True):
    """One cluster: one batch system, the plugin that speaks to it, and the limits to be kept there."""

    site: Name | None = Field(
        default=None,
        description="Site whose login node has the commands of its batch system: the name of a [[sites]] table. "
        "Default: this host has them.",
    )
    queue: QueueName | None = Field(
        default=None,
        description="Partition (Slurm) or queue (Grid Engine) for placeholders. Default: the LRM's own default.",
    )
    requests_per_minute: Whole = Field(
        default=60,
        ge=6,
        le=6000,
        description="Upper bound of requests to the LRM in any 60 seconds, of all kinds together. Unless it is given, "
        f"`koala wiki serve` and `koala schedule`, which own the order of all jobs, keep to {REQUESTS_AS_OWNER}.",
    )
    poll_interval: Seconds = Field(
        default=15,
        ge=0.1,
        le=3600,
        json_schema_extra=SECONDS,
        description="Time between two looks at jobs and nodes, while nothing is about to change and no running job "
        "would take what comes free. Must fit requests_per_minute.",
    )
    mpi_resize: MpiResize = Field(
        default=MpiResize.RESTART,
        description="What the MPI of its nodes can do for a malleable MPI program. spawn: MPI_Comm_spawn, under "
        "mpiexec -launcher manual. restart: nothing; such a program is started anew with each change. `koala check` "
        "finds out.",
    )
    memory_mib: Whole | None = Field(
        default=None,
        ge=1,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Memory requested for each placeholder. Default: what the LRM gives when not asked.",
    )
    setup: SetupLines = Field(
        default=(),
        description="Lines that a shell runs on a node of this cluster before each rank, and before the lines of the "
        'job, such as "source /etc/profile".',
    )
    software: dict[SoftwareName, SetupLines] = Field(
        default={},
        description="Software that jobs can ask for by name, and the lines that make it available: see "
        "[clusters.software].",
    )
    container_runtime: ContainerRuntime | None = Field(
        default=None,
        description="Program that runs the containers of jobs on the nodes. Default: none does, and components with a "
        "container do not go there.",
    )
    catalogue: AbsolutePath | None = Field(
        default=None,
        description="File that lists files which the nodes of this cluster have, or a directory of such files, as they "
        "are seen where its batch system is: see [catalogues](placement.md#catalogues).",
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
    ask_socket: AbsolutePath | None = Field(
        default=None,
        description="Socket of this host at which `koala explain CLUSTER:ID` asks when you run no `koala schedule` of "
        "the cluster yourself: the one that an administrator has given to `koala schedule` as --ask-socket.",
    )
    directives: DirectivesConfig = Field(
        default_factory=DirectivesConfig,
        description="Changes to every submission: see [clusters.directives].",
    )
    map: MapConfig = Field(
        default_factory=MapConfig,
        description="How this site asks for what a slot needs: see [clusters.map].",
    )
    settings: SerializeAsAny[BaseModel] = Field(
        default_factory=NoSettings,
        description="The plugin's own settings: see [clusters.settings].",
    )

    @property
    def cluster_name(self) -> ClusterName:
        """Name of the cluster, as ClusterName."""
        return ClusterName(self.name)

    @property
    def parameters(self) -> ClusterParameters:
        """Parameters of the cluster for the scheduler."""
        return ClusterParameters(
            name=self.cluster_name,
            software=tuple(self.software),
            container_runtime=self.container_runtime or "",
            **values_of(ClusterParameters, self),
        )

    @property
    def changes(self) -> Directives:
        """What the site wants changed in submissions, in the form that plugins take."""
        given = self.directives
        return Directives(add=given.add, drop=given.drop, rename=tuple(given.rename.items()), map=self.map.to_map())

    @property
    def requests_as_owner(self) -> int:
        """Upper bound of requests a minute of a scheduler that orders all jobs of the cluster."""
        given = "requests_per_minute" in self.model_fields_set
        return self.requests_per_minute if given else REQUESTS_AS_OWNER

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


class RemoteSiteConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A site that is reached by ssh: the login node of its clusters."""

    name: Name = Field(description="Name of the site, for `site =` of clusters.")
    ssh: SshDestination = Field(
        description="What `ssh` is given to reach the login node: a host of ~/.ssh/config, or user@host. It must log "
        "in without a question, by a key or an agent, or after `koala login`."
    )
    ssh_options: tuple[PlainText, ...] = Field(
        default=(), description='Options that ssh is given before it, such as ["-F", "/path/of/config"].'
    )
    program: PlainText = Field(
        default="ssh",
        description="Program that is run in the place of OpenSSH's ssh, with the same arguments, such as gsissh.",
    )
    python: PlainText = Field(
        default="python3", description="Python 3.6 or newer on the login node: a name in its PATH, or a path."
    )
    directory: PlainText = Field(
        default="~/.koala",
        description="Directory of the user there for what nodes must read, such as job scripts of Grid Engine. "
        "The nodes must see it under the same path.",
    )
    cache_mib: Whole = Field(
        default=10_240,
        ge=0,
        le=16_777_216,
        json_schema_extra={"x-unit": "MiB"},
        description="Room for input files of jobs in `cache` below that directory. What was used longest ago "
        "makes room for others. 0: no cache; agents fetch large input files themselves.",
    )
    listen: Host | None = Field(
        default=None,
        description="Address of the login node at which agents reach koala. Default: it listens on all, and agents "
        "look for the login node by its own name.",
    )
    ports: PortRange | None = Field(
        default=None,
        description='First and last TCP port at which the gateway listens, such as "50000-50999", for a firewall\'s '
        "rule: one for agents, and one for each file on its way from or to another site. Default: any free ones.",
    )
    direct: Flag = Field(
        default=True,
        description="Whether input files may come from and go to other sites directly, where a gateway can connect to "
        "the other one. false: all go through this host.",
    )
    address: Host | None = Field(
        default=None,
        description="Address of the login node for the gateways of other sites. Default: those of its interfaces, "
        "and the one that ssh has reached.",
    )
    bandwidth_from: dict[Name, Annotated[MebibytesPerSecond, Field(gt=0, le=1_000_000)]] = Field(
        default={},
        json_schema_extra={"x-unit": "MiB/s"},
        description="How fast files get here directly from other sites, by their names, such as { leiden = 80 }. "
        "Default: what koala observes.",
    )
    lease: Seconds = Field(
        default=3600,
        ge=1,
        le=86_400,
        json_schema_extra=SECONDS,
        description="Agents of this site without contact for so long end their applications and themselves, in place "
        "of the lease of [control_center]. At least three heartbeats.",
    )

    @property
    def port_range(self) -> tuple[int, int]:
        """First and last port at which the gateway may listen; 0 and 0: any free one."""
        first, _, last = (self.ports or "0-0").partition("-")
        return int(first), int(last)


class MetricsConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Where metrics are told in the form of OpenMetrics."""

    listen: Host = Field(
        default="127.0.0.1",
        description="Address on which `koala serve`, `koala schedule` and `koala wiki serve` tell their metrics to "
        "every client: there is no password. By default only this host can.",
    )
    port: Whole | None = Field(
        default=None,
        ge=0,
        le=65_535,
        description="TCP port on which `koala serve` tells them; 0: any free one. Default: none. The others have "
        "`--metrics-port`.",
    )


class NotifyConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """How users are notified of the start, end or failure of jobs with ``notify`` in their job file."""

    command: tuple[PlainText, ...] = Field(
        default=(),
        description="Program and arguments that are run with a JSON object on standard input: event, id, name, user, "
        "state, exit_code, detail.",
    )
    webhook: WebAddress | None = Field(
        default=None, description="Address to which the same object is posted, with a line for people as text."
    )
    mail: MailAddress | None = Field(
        default=None, description="Address to which the same is mailed, by this host's sendmail."
    )

    @property
    def ways(self) -> bool:
        """Whether there is any way."""
        return bool(self.command or self.webhook or self.mail)


class SiteConfig(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """A whole site file."""

    control_center: ControlCenterConfig = Field(
        default_factory=ControlCenterConfig,
        description="Where the control center listens: see [control_center].",
    )
    scheduler: SchedulerConfig = Field(
        default_factory=SchedulerConfig,
        description="How jobs are placed: see [scheduler].",
    )
    metrics: MetricsConfig = Field(
        default_factory=MetricsConfig,
        description="Where metrics are told: see [metrics].",
    )
    notify: NotifyConfig = Field(
        default_factory=NotifyConfig,
        description="How jobs that want it are told of: see [notify].",
    )
    sites: tuple[RemoteSiteConfig, ...] = Field(
        default=(),
        description="Sites that are reached by ssh, one [[sites]] table for each: see there.",
    )
    clusters: tuple[ClusterConfig, ...] = Field(
        min_length=1,
        description="The clusters, one [[clusters]] table for each: see there.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        least = HEARTBEATS_PER_LEASE * self.control_center.heartbeat
        text = "found {:g}, allowed is at least three heartbeats of [control_center] ({:g} seconds)"
        problems = [
            (("sites", index, "lease"), text.format(one.lease, least))
            for index, one in enumerate(self.sites)
            if one.lease < least
        ]
        if problems:
            raise inconsistent(*problems)
        return self

    @property
    def enabled_clusters(self) -> tuple[ClusterConfig, ...]:
        """The clusters on which something may be placed."""
        return tuple(cluster for cluster in self.clusters if cluster.enabled)

    @property
    def parameters(self) -> Parameters:
        """What the scheduler is told of the site, but for the name of the instance."""
        return Parameters(**values_of(Parameters, self.control_center, self.scheduler))

    def cluster(self, name: str) -> ClusterConfig:
        """Return the cluster called ``name``. Raises ConfigurationError with the names of all clusters."""
        clusters = {cluster.name: cluster for cluster in self.clusters}
        if name not in clusters:
            raise ConfigurationError(
                f"no cluster {name!r}; there are: {', '.join(clusters)}", hint="give --cluster NAME"
            )
        return clusters[name]

    def remote_site(self, cluster: ClusterConfig) -> RemoteSiteConfig | None:
        """Return the site that a cluster is at; None: it is here."""
        return next((one for one in self.sites if one.name == cluster.site), None)

    def cache_bound(self, cluster: ClusterConfig) -> int:
        """Return the bytes of input files that may be kept where a cluster is; 0: none are brought there."""
        remote = self.remote_site(cluster)
        if remote is not None:
            return remote.cache_mib * 1024**2
        named = any(one.catalogue is not None for one in self.enabled_clusters)
        return self.control_center.cache_mib * 1024**2 if named else 0

    def lease(self, cluster: ClusterConfig) -> float:
        """Return the seconds without contact after which agents on a cluster end."""
        remote = self.remote_site(cluster)
        return self.parameters.lease if remote is None else remote.lease

    def may_be_far(self, cluster: str | None) -> bool:
        """Tell whether ranks may be at another site, from which they cannot connect to this host.

        ``cluster``: the only one that they may use; None: any.
        """
        return any(one.site is not None and cluster in {None, one.name} for one in self.enabled_clusters)

    def node_address(self, cluster: ClusterConfig) -> str:
        """Return the address by which the nodes of ``cluster``, which is here, reach the control center."""
        return cluster.control_center_address or self.control_center.node_address


def shortest_poll_interval(requests_per_minute: int, requests_per_poll: int = REQUESTS_PER_POLL) -> float:
    """Return the shortest time (seconds) between polls that fits the bound, less the share of urgent requests."""
    ordinary = max(1, int(requests_per_minute * (1 - URGENT_SHARE)))
    polls = ordinary // requests_per_poll
    return WINDOW / polls if polls else WINDOW * requests_per_poll / ordinary


# -- The file as a whole -------------------------------------------------------------------------------------

HINT = "`koala docs site-file` describes every key"


def load_site(path: Path, plugins: Mapping[str, PluginDefinition]) -> SiteConfig:
    """Return the site that the file at ``path`` describes, each cluster with the settings object of its plugin.

    Raises ConfigurationError with all problems of the file, one per line.
    """
    return _site(read_document(path), plugins)


def load_site_text(text: str, plugins: Mapping[str, PluginDefinition], *, source: str = "site file") -> SiteConfig:
    """Return the site that a TOML text describes; ``source`` is what refusals call it. Raises ConfigurationError."""
    return _site(parse_document(text, source=source), plugins)


def _site(document: Document, plugins: Mapping[str, PluginDefinition]) -> SiteConfig:
    problems = Problems(document, hint=HINT)
    data = dict(document.data)
    clusters = data.get("clusters")
    if isinstance(clusters, list):
        _check_together(problems, clusters, plugins)
        _check_sites(problems, clusters, data.get("sites", []), plugins)
        data["clusters"] = [
            {**table, "settings": _settings(problems, index, table, plugins)} if isinstance(table, dict) else table
            for index, table in enumerate(clusters)
        ]
    return problems.accepted(problems.validated(SiteConfig, data))


def _check_together(problems: Problems, clusters: list[object], plugins: Mapping[str, PluginDefinition]) -> None:
    """Check what concerns several clusters: names are given once, and placeholders can go to all that are enabled."""
    seen: dict[str, int] = {}
    outside = 0
    for index, table in enumerate(clusters):
        if not isinstance(table, dict):
            continue
        name, plugin, enabled = table.get("name"), table.get("plugin"), table.get("enabled", True)
        if isinstance(name, str) and seen.setdefault(name, index) != index:
            text = f"found {show_value(name)}, the name of clusters[{seen[name]}]: allowed is a name of its own"
            problems.add(("clusters", index, "name"), text)
        if isinstance(plugin, str) and plugin in plugins and not plugins[plugin].capabilities.submit:
            outside += 1
            if enabled is True:
                text = (
                    f"nothing can be submitted through the plugin {show_value(plugin)}, so no placeholder can go "
                    "there: allowed is enabled = false (`koala schedule` can order the jobs of its users)"
                )
                problems.add(("clusters", index, "enabled"), text)
    disabled = [isinstance(table, dict) and table.get("enabled") is False for table in clusters]
    if clusters and all(disabled) and not outside:
        problems.add(("clusters",), "every cluster has enabled = false: allowed is at least one enabled cluster")


HERE_ALONE = {
    "control_center_address": "agents there reach koala by the login node: see `listen` of the site",
    "token_directory": "this host does not share it",
    "ask_socket": "the socket is of this host",
}
"""Keys of clusters that mean nothing at another site, and why."""


def _check_sites(
    problems: Problems, clusters: list[object], sites: object, plugins: Mapping[str, PluginDefinition]
) -> None:
    """Check what concerns sites and their clusters together."""
    names = [table.get("name") for table in sites if isinstance(table, dict)] if isinstance(sites, list) else []
    for index, name in enumerate(names):
        if isinstance(name, str) and names.index(name) != index:
            problems.add(("sites", index, "name"), f"found {show_value(name)} twice: allowed is a name of its own")
    for index, table in enumerate(sites if isinstance(sites, list) else ()):
        stated = table.get("bandwidth_from") if isinstance(table, dict) else None
        others = [str(other) for other in names if other != table.get("name")] if isinstance(stated, dict) else []
        for other in (stated.keys() - set(others)) if isinstance(stated, dict) else ():
            problems.add(("sites", index, "bandwidth_from"), not_among(other, others, what="another site"))
    _check_clusters_of_sites(problems, clusters, names, plugins)


def _check_clusters_of_sites(
    problems: Problems, clusters: list[object], names: list[object], plugins: Mapping[str, PluginDefinition]
) -> None:
    """Check the clusters that are at sites."""
    for index, table in enumerate(clusters):
        if not isinstance(table, dict) or not isinstance(site := table.get("site"), str):
            continue
        if site not in names:
            problems.add(("clusters", index, "site"), not_among(site, [str(name) for name in names], what="a site"))
        plugin = table.get("plugin")
        if isinstance(plugin, str) and plugin in plugins and not plugins[plugin].sites:
            text = f"the plugin {show_value(plugin)} serves this host alone: allowed is no site"
            problems.add(("clusters", index, "site"), text)
        for key, why in HERE_ALONE.items():
            if key in table:
                problems.add(("clusters", index, key), f"allowed is no {key} with a site: {why}")


def _settings(
    problems: Problems, index: int, table: Mapping[str, object], plugins: Mapping[str, PluginDefinition]
) -> BaseModel:
    """Return the validated settings of one cluster; stand-in settings, with the problems noted, when they are wrong."""
    name = table.get("plugin")
    if not isinstance(name, str):
        return NoSettings()
    if name not in plugins:
        problems.add(("clusters", index, "plugin"), not_among(name, plugins, what="an installed plugin"))
        return NoSettings()
    given = table.get("settings", {})
    at = ("clusters", index, "settings")
    if not isinstance(given, dict):
        problems.add(at, f"found {show_value(given)}, allowed is a table: write [clusters.settings]")
        return NoSettings()
    model = plugins[name].settings
    known = ClusterConfig.model_fields
    above = {key: ALSO_CALLED.get(key, key) for key in given if ALSO_CALLED.get(key, key) in known}
    above = {key: meant for key, meant in above.items() if key not in model.model_fields}
    for key, meant in above.items():
        problems.add((*at, key), f"unknown key, allowed is {meant} one level up: in [[clusters]], before its settings")
    return problems.validated_strictly(model, {k: v for k, v in given.items() if k not in above}, at=at) or NoSettings()
