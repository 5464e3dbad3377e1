# SPDX-License-Identifier: Apache-2.0
"""Plain values that a service tells of its site: cleaning, sample submissions, clusters, plans and negotiations. Pure.

Apart from :mod:`koala_adapter.report.values`, which every command loads that shows a job. Units: times are in seconds
(points in time since the epoch), sizes in processors.
"""

from __future__ import annotations

from dataclasses import dataclass

from koala_adapter.slots import PLAIN, Slot

# -- What ``koala clean`` removed, or would remove -----------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Removed files or directories of one kind, counted."""

    what: str
    """``directories``, ``reports``, ``request windows``, ``words of placeholders`` or ``logs``."""
    number: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """Removed and spared files, as ``koala clean`` shows them."""

    dry_run: bool
    """Nothing was removed: this is what would be."""
    older: float
    """Seconds since the end of the youngest job of which anything is removed, at least."""
    jobs: tuple[str, ...]
    """Ids of the jobs of which nothing is left but their number, in the order of their ends."""
    removed: tuple[Removed, ...]
    unfinished: int
    """Jobs that are spared because they have not ended, or something of them is left in a batch system."""
    newer: int
    """Jobs that are spared because they ended later than that."""
    continued: tuple[str, ...] = ()
    """Jobs that are spared because a spared one goes on with their sweep."""
    trouble: tuple[str, ...] = ()
    """What could not be removed, and why."""

    @property
    def size(self) -> int:
        """Bytes of all removed files."""
        return sum(one.size for one in self.removed)


# -- Sample submissions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSubmission:
    """Submission of one component, not sent, as ``koala script`` shows it."""

    component: str
    command: tuple[str, ...]
    environment: dict[str, str]
    """Added to the small environment that commands get."""
    script: str
    note: str
    call: tuple[str, ...] = ()
    """The call of a library that is made in place of the command, which would do the same; empty: none is."""
    ranks: int = 1
    """Placeholders that are submitted."""
    slot: Slot = PLAIN
    """What each of them asks for."""


# -- Clusters and plans --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConnection:
    """Whether the nodes of a cluster can connect to those of another one, as agents found out."""

    cluster: str
    """The other one."""
    connects: bool
    seen_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRoute:
    """What is known of the way by which files come to a cluster directly from another site."""

    site: str
    """The other one."""
    bandwidth: float | None
    """MiB/s; None: nothing comes that way."""
    source: str
    """As that of ClusterNetwork."""
    observed_at: float | None = None
    """When it was seen last."""
    latency: float | None = None
    """Seconds of a round trip; None: not known."""
    trouble: str = ""
    """Why nothing comes that way; empty: it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNetwork:
    """What is known of the way from this host to a cluster, as ``koala clusters --network`` shows it."""

    site: str = ""
    """Site that it is at; empty: this host."""
    bandwidth: float | None = None
    """MiB/s of files to it; None: not known."""
    source: str = ""
    """``stated`` in the site file, ``transfer`` or ``measured`` by the latest observation; empty: not known."""
    observed_at: float | None = None
    """When a transfer or a measurement told of it last."""
    latency: float | None = None
    """Seconds of a round trip; None: not known."""
    latency_at: float | None = None
    connections: tuple[NodeConnection, ...] = ()
    """To the nodes of other clusters, as far as was found out of late."""
    routes: tuple[SiteRoute, ...] = ()
    """From other sites, as far as they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFiles:
    """What is known of the files that the nodes of a cluster have, as ``koala clusters --network`` shows it."""

    stated: int = 0
    """Files and directories in the site file."""
    catalogue: str = ""
    """Path of its catalogue there; empty: it has none."""
    entries: int | None = None
    """Files and directories in that; None: it was not read."""
    trouble: str = ""
    """Why it cannot be read at present."""
    found: int = 0
    """Input files of unfinished jobs that it has by its catalogue, or that koala has put there."""
    cached: int = 0
    """The latter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """A cluster as ``koala clusters`` shows it."""

    name: str
    plugin: str
    lrm: str | None
    closed: str | None
    """Why nothing is placed there at present; None: open."""
    processors: int | None
    idle: int | None
    others: int | None
    """Processors that jobs of others occupy."""
    threshold: int
    placeholders: int
    """All of ours that have not ended."""
    placeholders_queued: int
    available: int
    polled_at: float | None
    requests: int
    """Requests to the LRM since the service started."""
    largest_requests_per_minute: int
    requests_per_minute: int
    """The bound on them."""
    requests_last_minute: int = 0
    """Those of the last 60 seconds, those of other processes of this user included."""
    asked_again_in: float = 0.0
    """Seconds until a look that waits for the bound is made; 0: none waits."""
    others_waiting: int = 0
    """Processors that others want who wait in its queue; looked for where running malleable jobs shrink for them."""
    down: int = 0
    """Unused processors that no job could get, as their nodes are not up."""
    submission: str = ""
    """How placeholders are submitted, and why; empty where there is one way only."""
    largest_idle: int = 0
    """Most idle processors on one node: the largest slot that could start now."""
    gpus: int = 0
    """GPUs of its nodes, as far as its batch system tells."""
    gpus_idle: int = 0
    """Those of them that a job could get now."""
    gpu_kinds: tuple[str, ...] = ()
    """Their kinds, in the words of the batch system."""
    network: ClusterNetwork = ClusterNetwork()
    """What is known of the way to it."""
    files: ClusterFiles = ClusterFiles()
    """What is known of the files there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTravel:
    """Input files of a component that would come to its cluster from one place."""

    source: str
    """Site of the cluster that has them, or its name where it has none; empty: this host."""
    mib: float
    bandwidth: float | None
    """MiB/s; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedComponent:
    """Cluster and processors that a component would get."""

    component: str
    cluster: str
    processors: int
    """Slots, which are processors where each rank needs no more than one."""
    idle: int
    """Slots that a claim would get there at once; what is beyond them waits in the queue of the LRM."""
    slot: Slot = PLAIN
    """What each of its ranks needs there."""
    input_files: int = 0
    missing: tuple[str, ...] = ()
    """Those of its input files that the cluster does not have, as far as is known."""
    missing_mib: float = 0.0
    """Their size."""
    transfer_seconds: float | None = None
    """How long they take to get there; None: not known."""
    travels: tuple[PlannedTravel, ...] = ()
    """From where they come, each from where that is fastest."""
    expected_wait: float | None = None
    """Seconds for which its processors are expected to be waited for; None: they are idle, or nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """Where a job would go now, as ``koala plan`` shows it."""

    result: str
    """``placed``, ``insufficient`` (not now) or ``infeasible`` (never)."""
    reason: str
    """Why it is not placed; empty when it is."""
    components: tuple[PlannedComponent, ...]
    closed: dict[str, str]
    """Clusters on which nothing is placed at present, and why."""
    untried: str = ""
    """What its agents must find out before its processes start; empty: nothing."""


# -- Negotiations --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationMessageReport:
    """One message of a negotiation."""

    at: float
    sender: str
    """``koala`` or ``application``."""
    status: str
    """``NT_NEGOTIATION`` (an offer), ``NT_ACCEPTED`` and so on, as in the template."""
    processors: int
    """That it is about; 0: none."""
    reason: str
    template: str
    """The template as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationReport:
    """A negotiation as ``koala negotiations`` shows it."""

    number: int
    job_id: str
    component: str
    rank: int
    """Of the process that negotiated."""
    agreement_id: str
    initiator: str
    """``koala`` or ``application``."""
    direction: str
    """``grow`` or ``shrink``."""
    mandatory: bool
    asked: int
    """Processors in the first offer."""
    standing: int
    """Processors in the last offer, and then in the agreement."""
    state: str
    """``offered``, ``accepted``, ``agreed``, ``done``, ``rejected``, ``withdrawn``, ``expired``, ``broken`` or
    ``over`` (its job ended first)."""
    by: str
    """Who said what made it so: ``koala`` or ``application``."""
    reason: str
    """Why it is less, or why it ended; may be empty."""
    summary: str
    """All of it in one sentence."""
    began_at: float
    latest_at: float
    messages: tuple[NegotiationMessageReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NegotiationAccess:
    """Address and one-time token by which a program negotiates for a job."""

    host: str
    port: int
    token: str
    """Shown in the first frame of the connection."""
