# SPDX-License-Identifier: Apache-2.0
"""What the parts of the scheduler share while one event is handled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.actions import Effects
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.outcome import NOT_SEEN
from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest
from koala_adapter.scheduler.placement.waitinghistory import expected_wait
from koala_adapter.scheduler.roster import Roster, initial_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.model import BatchKey, ClusterName, Component
    from koala_adapter.scheduler.batchnumbers import Contents, RecordedBatches
    from koala_adapter.scheduler.claiming.queue import PlacementQueue
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.ledger import Ledger
    from koala_adapter.scheduler.outcome import JobOutcome
    from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord, State
    from koala_adapter.scheduler.timetable import Timetable


@dataclass(slots=True)
class Context:
    """State, queue and the actions collected so far, at one point in time."""

    ledger: Ledger
    timetable: Timetable
    queue: PlacementQueue
    now: float
    policies: Policies = OWN
    effects: Effects = field(default_factory=Effects)
    outcomes: list[tuple[JobRecord, JobOutcome]] = field(default_factory=list)
    """Jobs found to have ended, to be finished once the event's own handling is through."""
    scan_wanted: bool = False
    """Something changed that may let a waiting job be placed."""
    polled: ClusterName | None = None
    """The cluster that the event is a reading of."""
    roster: Roster = field(default_factory=Roster)
    """Running malleable jobs."""
    recorded: RecordedBatches | None = None
    """What was submitted when this event was handled for the first time, and later; None: this is the first time."""
    lost_stubs: list[PlaceholderRecord] = field(default_factory=list)
    """Placeholders gathered for growing jobs that are gone or going, to be dealt with once the event's own handling is
    through."""
    never_arrived: set[BatchKey] = field(default_factory=set)
    """Submissions that did not arrive, as the event tells: they were not refused, and another one may arrive."""
    state: State = field(init=False)
    """What the ledger keeps: everybody reads it."""

    def __post_init__(self) -> None:
        """Read what the ledger writes."""
        self.state = self.ledger.state

    def batch_number(self, contents: Contents) -> int:
        """Return the number of a submission: that which it was given before, or one that was never handed out."""
        state, largest, number = self.state, 0, None
        if self.recorded is not None:
            largest, number = self.recorded.largest, self.recorded.number_of(contents)
        if number is None:
            number = max(state.batches_made, largest) + 1
        state.batches_made = max(state.batches_made, number)
        return number

    def view(self, cluster: ClusterRecord) -> ClusterView:
        """Return what a placement policy may know of a cluster."""
        return ClusterView(
            name=cluster.parameters.name,
            capacity=cluster.largest_capacity,
            in_flight=cluster.parameters.placeholders_in_flight,
            room=cluster.room,
            available=cluster.available,
            load_free=cluster.load_free,
            walltime_limit=cluster.parameters.walltime_limit,
            closed=closed_reason(cluster, self.now),
            files=cluster.parameters.files,
            bandwidth=cluster.parameters.bandwidth,
            bandwidth_from=cluster.parameters.bandwidth_from,
            expected_wait=expected_wait(cluster, self.state, self.now),
        )

    def views(self) -> Views:
        """Return the views of all clusters of the site."""
        return Views(self)

    def request(self, record: JobRecord, claim: Claim) -> ComponentRequest:
        """Return what a claim asks of a placement policy."""
        return self._request(record, record.component_of(claim), claim)

    def _request(self, record: JobRecord, component: Component, claim: Claim) -> ComponentRequest:
        if record.job.kind is JobKind.MALLEABLE:
            component = replace(component, maximum=initial_size(component))
        return ComponentRequest(
            component=component,
            walltime=record.job.walltime + self.margin(),
            excluded=frozenset(claim.excluded),
            splittable=self.policies.may_split(record.job, component),
        )

    def margin(self) -> int:
        """Return the seconds asked from an LRM on top of a job's walltime, at least."""
        return int(self.state.parameters.launch_margin)

    def requests(self, record: JobRecord) -> list[ComponentRequest]:
        """Return the requests of all components of a job."""
        return [self._request(record, component, claim) for component, claim in record.components()]


class Views(Mapping["ClusterName", ClusterView]):
    """Views of the clusters of the site, each made when it is first looked at: of a thousand few are needed."""

    __slots__ = ("_clusters", "_context", "_made")

    def __init__(self, context: Context) -> None:
        """Look at the clusters as they are while this is used."""
        self._context = context
        self._clusters = {name: one for name, one in context.state.clusters.items() if one.configured}
        self._made: dict[ClusterName, ClusterView] = {}

    def __getitem__(self, name: ClusterName) -> ClusterView:
        """Return the view of a cluster. Raises KeyError when it is not in the site file."""
        view = self._made.get(name)
        if view is None:
            view = self._made[name] = self._context.view(self._clusters[name])
        return view

    def __setitem__(self, name: ClusterName, view: ClusterView) -> None:
        """Put another view in the place of a cluster's."""
        self._made[name] = view

    def __iter__(self) -> Iterator[ClusterName]:
        """Yield the names in the order of the site file."""
        return iter(self._clusters)

    def __len__(self) -> int:
        """Number of clusters."""
        return len(self._clusters)

    def __contains__(self, name: object) -> bool:
        """Tell whether a cluster is in the site file."""
        return name in self._clusters


def closed_reason(cluster: ClusterRecord, now: float) -> str | None:
    """Return why nothing is placed on a cluster at present; None when it is open."""
    if not cluster.configured:
        return "no longer in the site file"
    if cluster.unavailable is not None:
        return f"out of reach: {cluster.unavailable}"
    if cluster.processors is None:
        return NOT_SEEN
    if not cluster.listed:
        return "its batch system lists no processors"
    if cluster.paused_until is not None and now < cluster.paused_until:
        return f"paused for another {cluster.paused_until - now:.0f} s: {cluster.pause_reason}"
    return None
