# SPDX-License-Identifier: Apache-2.0
"""The scheduler: handles one event at a time and returns actions.

Drivers call ``Scheduler.handle``: the service with real clusters, the simulator and the tests of failures with
simulated ones. The same events give the same actions, byte for byte; the journal is the list of events. The class comes
first, with the order of the steps of one event, then the handlers of events and timers that belong to no other chapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import JobNotFoundError, JobRefusedError
from koala_adapter.model import ClusterName, EndReason, Job, JobId
from koala_adapter.outcome import JobState, outcome_without_code
from koala_adapter.scheduler import ends, reports
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming import claims, exchange, results, waiting
from koala_adapter.scheduler.claiming.plannedstart import ask_again, ask_for_reservations_again
from koala_adapter.scheduler.claiming.queue import PlacementQueue
from koala_adapter.scheduler.clusters import ClusterRecord, Connection
from koala_adapter.scheduler.context import Context
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable import changes, requests
from koala_adapter.scheduler.malleable.changes import open_added_clusters, stub_lost
from koala_adapter.scheduler.malleable.jobmanagement import JobManagement, SchedulerClusters
from koala_adapter.scheduler.malleable.requests import keep_to_wanted_sizes, place_lost, would_take
from koala_adapter.scheduler.malleable.steps import others_seen
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.records import Claim, JobRecord, State
from koala_adapter.scheduler.states import Ledger, Roster
from koala_adapter.scheduler.timers import Timer, TimerKind
from koala_adapter.scheduler.timetable import Timetable, advance, change_due, give_time, postpone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.context import Handlers, JobTimers, PlaceholderTimers, RecordedBatches
    from koala_adapter.scheduler.placement.policy import ClusterView, PlacementResult
    from koala_adapter.slots import Slot

SHRINK_PROOF = 3600.0
"""Seconds for which fewer processors must be seen before a cluster is taken to have lost the others for good."""


class Scheduler:
    """The pure core: takes events and returns actions."""

    def __init__(self, state: State | None = None, policies: Policies = OWN) -> None:
        """Start empty, or go on from a snapshot of :attr:`state`, with the same ``policies`` as before."""
        self.policies = policies
        self.state = State() if state is None else state
        self.ledger = Ledger(self.state)
        self.timetable = Timetable(self.state)
        self._queue = PlacementQueue(policies)
        waiting.rebuild(self._queue, self.state)
        self._roster = Roster(self.state.jobs.values())

    @property
    def next_wakeup(self) -> float | None:
        """Time at which a TimeReached event is wanted; None when nothing is awaited."""
        return self.timetable.next_at

    def handle(self, event: ev.Event, recorded: RecordedBatches | None = None) -> list[Action]:
        """Take in one event and return what is to be done now.

        ``recorded``: the submissions made before, when the event is handled again.

        Before anything is changed, raises JobRefusedError for a job whose id is known already, and ConfigurationError
        for a configuration with a policy that is not here. Events may be out of order.
        """
        if isinstance(event, ev.JobSubmitted) and event.job.id in self.state.jobs:
            raise JobRefusedError(f"job {event.job.id} exists already", hint="submit it under another id")
        if isinstance(event, ev.Configured):
            self.policies.require_malleability(event.parameters, *event.clusters)
        self._roster.touched.clear()
        context = self._context(advance(self.state, event.time), recorded)
        if isinstance(event, ev.Configured):
            give_time(self.state, self.timetable, context.now)
        elif isinstance(event, ev.TimersPostponed):
            postpone(self.state, self.timetable, context.now, event.seconds)
        while (timer := self.timetable.take_due(context.now)) is not None:
            self._fire(context, timer)
            _finish_ended(context)
        HANDLERS[type(event)](context, event)
        _finish_ended(context)
        self._decide(context)
        while context.outcomes or context.lost_stubs:  # what a decision has ended
            _finish_ended(context)
            self._decide(context)
        waiting.wake_for_scan(context)
        return context.effects.actions()

    def _decide(self, context: Context) -> None:
        keep_to_wanted_sizes(context)
        JobManagement(SchedulerClusters(context)).decide()

    def touched(self, event: ev.Event) -> dict[JobId, None]:
        """Return the jobs that the latest event (given) names, and the malleable jobs that it changed.

        In the records of no other malleable job is anything new that concerns its size or its processes.
        """
        named = getattr(event, "job_id", None)
        return self._roster.touched | ({} if named is None else {named: None})

    def plan(self, job: Job, now: float) -> PlacementResult:
        """Return where a job would go now, without submitting it."""
        context = self._context(now)
        return waiting.place(context, _new_record(job), context.views())

    def views(self, now: float) -> Mapping[ClusterName, ClusterView]:
        """Return the clusters as placement policies see them."""
        return self._context(now).views()

    def job(self, job_id: str) -> JobRecord:
        """Return the record of a job. Raises JobNotFoundError."""
        try:
            return self.state.jobs[JobId(job_id)]
        except KeyError:
            raise JobNotFoundError(f"no job {job_id!r}", hint="`koala status` lists the jobs") from None

    def shapes_on(self, cluster: ClusterName) -> tuple[Slot, ...]:
        """Return slot shapes, other than one processor, of unfinished jobs for a cluster."""
        return self.ledger.shapes_on(cluster)

    def queue_position(self, job_id: JobId) -> int | None:
        """Return the 1-based place of a job in the placement queue; None when it is not there."""
        return self._queue.place_in_order(job_id)

    def shrinks_for_others(self, cluster: ClusterName) -> bool:
        """Return whether malleable jobs on a cluster shrink for waiting jobs of other users."""
        return self.state.parameters.approach.shrinks_for_waiting and cluster in self._roster

    def growth_waits(self, cluster: ClusterName) -> bool:
        """Return whether a running malleable job would take processors that come free on a cluster."""
        growable = self._roster.on(cluster).growable
        if self.state.parameters.approach is Approach.NONE:
            wished = (job for job in growable if job.job_id in self._roster.limited)
            return any(would_take(self.state.jobs[job.job_id], job.claim) for job in wished)
        return bool(growable)

    def _context(self, now: float, recorded: RecordedBatches | None = None) -> Context:
        return Context(
            ledger=self.ledger,
            timetable=self.timetable,
            queue=self._queue,
            now=now,
            policies=self.policies,
            roster=self._roster,
            recorded=recorded,
        )

    def _fire(self, context: Context, timer: Timer) -> None:
        if timer.kind is TimerKind.SCAN:
            waiting.interval_scan(context)
        elif timer.kind is TimerKind.PAUSE:
            context.scan_wanted = True
        elif timer.placeholder is not None:
            PLACEHOLDER_TIMERS[timer.kind](context, self.state.placeholders[timer.placeholder])
        elif timer.job_id is not None:
            record = self.state.jobs[timer.job_id]
            if timer.kind is TimerKind.CHANGE:
                change = change_due(record, timer)
                if change is not None:
                    changes.Changes(context, record).late(change)
            else:
                JOB_TIMERS[timer.kind](context, record)


def _new_record(job: Job) -> JobRecord:
    return JobRecord(job=job, claims=[Claim(component=component.name) for component in job.components])


def _finish_ended(context: Context) -> None:
    """Finish the jobs that were found to have ended, before anything else happens to them; then what cannot grow."""
    while context.outcomes or context.lost_stubs:
        if context.outcomes:
            record, outcome = context.outcomes.pop(0)
            ends.finish(context, record, outcome)
        else:
            lost = context.lost_stubs.pop(0)
            if not place_lost(context, lost):
                stub_lost(context, lost)


def _only_time(context: Context, event: ev.TimeReached | ev.TimersPostponed) -> None:
    """Do nothing: timers fire with every event."""


def _configured(context: Context, event: ev.Configured) -> None:
    state = context.state
    state.parameters = event.parameters
    for record in state.clusters.values():
        record.configured = False
    for parameters in event.clusters:
        cluster = state.clusters.setdefault(parameters.name, ClusterRecord(parameters=parameters))
        cluster.parameters = parameters
        cluster.configured = True
    open_added_clusters(context)
    waiting.await_first_looks(context)
    waiting.rebuild(context.queue, state)
    ask_again(context)
    ask_for_reservations_again(context)
    waiting.refuse_impossible(context)
    context.scan_wanted = True


def _job_submitted(context: Context, event: ev.JobSubmitted) -> None:
    record = _new_record(event.job)
    context.ledger.add_job(record)
    if event.job.placement not in context.policies.placement:
        known = ", ".join(sorted(context.policies.placement))
        waiting.refuse(context, record, f"there is no placement policy {event.job.placement!r}; there are: {known}")
        return
    never = waiting.impossible(context.requests(record), context.views())
    if never is not None:
        waiting.refuse(context, record, never)
    else:
        waiting.enter(context, record)


def _cancel_requested(context: Context, event: ev.CancelRequested) -> None:
    record = context.state.jobs.get(event.job_id)
    if record is not None and not record.state.final:
        detail = f"cancelled by the user while {record.state.value}"
        outcome = outcome_without_code(JobState.CANCELLED, EndReason.CANCELLED, detail)
        context.outcomes.append((record, outcome))


def _cluster_polled(context: Context, event: ev.ClusterPolled) -> None:
    cluster = context.state.clusters.get(event.cluster)
    if cluster is None:
        return
    cluster.polled_at, cluster.unavailable = context.now, None
    waiting.looked_at(context, cluster)
    context.polled = event.cluster
    cluster.listed = event.processors > 0
    if not cluster.listed:
        cluster.idle = cluster.ours_polled = 0
        return
    cluster.ours_left = event.ours < cluster.ours_polled
    cluster.processors, cluster.idle, cluster.ours_polled = event.processors, event.idle, event.ours
    first_counts = {count.slot for count in event.slots} - {count.slot for count in cluster.slots}
    cluster.slots = list(event.slots)
    others_seen(context, cluster, event.others_waiting)
    if _measure(cluster, context.now) or first_counts:
        waiting.refuse_impossible(context)
    if cluster.room > 0 or event.cluster in context.roster:
        context.scan_wanted = True


def _slots_counted(context: Context, event: ev.SlotsCounted) -> None:
    cluster = context.state.clusters.get(event.cluster)
    if cluster is not None:
        counted = {count.slot for count in event.slots}
        cluster.slots = [*(one for one in cluster.slots if one.slot not in counted), *event.slots]


def _bandwidth_known(context: Context, event: ev.BandwidthKnown) -> None:
    cluster = context.state.clusters.get(event.cluster)
    if cluster is not None:
        if event.source is None:
            cluster.observed_bandwidth = event.bandwidth
        elif event.bandwidth is None:
            cluster.observed_bandwidth_from.pop(event.source, None)
        else:
            cluster.observed_bandwidth_from[event.source] = event.bandwidth


def _nodes_connect(context: Context, event: ev.NodesConnect) -> None:
    cluster = context.state.clusters.get(event.cluster)
    if cluster is not None:
        seen_at = context.now - event.age
        known = cluster.connections.get(event.other)
        if known is None or known.seen_at <= seen_at:
            cluster.connections[event.other] = Connection(connects=event.connects, seen_at=seen_at)
            claims.connection_seen(context)
            context.scan_wanted = True


def _files_found(context: Context, event: ev.FilesFound) -> None:
    cluster = context.state.clusters.get(event.cluster)
    if cluster is not None:
        cluster.found.update(event.found)
        for source in event.gone:
            cluster.found.pop(source, None)
        if event.bringable is not None:
            cluster.bringable = dict(event.bringable)
        context.scan_wanted = True


def _measure(cluster: ClusterRecord, now: float) -> bool:
    """Update the largest size seen of a cluster; return whether it may have grown."""
    seen, before = cluster.processors, cluster.largest
    if seen is None or seen == before:
        cluster.smaller_since = None
    elif before is None or seen > before:
        cluster.largest, cluster.smaller_since = seen, None
        return before is None
    elif cluster.smaller_since is None:
        cluster.smaller_since, cluster.largest_since = now, seen
    else:
        cluster.largest_since = max(cluster.largest_since, seen)
        if now - cluster.smaller_since >= SHRINK_PROOF:
            cluster.largest, cluster.smaller_since = cluster.largest_since, None
            if seen < cluster.largest:
                cluster.smaller_since, cluster.largest_since = now, seen
            return True
    return False


def _cluster_unavailable(context: Context, event: ev.ClusterUnavailable) -> None:
    cluster = context.state.clusters.get(event.cluster)
    if cluster is not None:
        cluster.unavailable = event.reason
        if event.awaited:
            waiting.await_first_look(context, cluster)
        else:
            waiting.looked_at(context, cluster)


HANDLERS: Handlers = {
    ev.Configured: _configured,
    ev.TimeReached: _only_time,
    ev.TimersPostponed: _only_time,
    ev.JobSubmitted: _job_submitted,
    ev.CancelRequested: _cancel_requested,
    ev.ClusterPolled: _cluster_polled,
    ev.SlotsCounted: _slots_counted,
    ev.BandwidthKnown: _bandwidth_known,
    ev.NodesConnect: _nodes_connect,
    ev.FilesFound: _files_found,
    ev.ClusterUnavailable: _cluster_unavailable,
    **results.HANDLERS,
    **exchange.HANDLERS,
    **reports.HANDLERS,
    **ends.HANDLERS,
    **changes.HANDLERS,
    **requests.HANDLERS,
}
JOB_TIMERS: JobTimers = {
    **waiting.JOB_TIMERS,
    **claims.JOB_TIMERS,
    **results.JOB_TIMERS,
    **exchange.JOB_TIMERS,
    **ends.JOB_TIMERS,
    **changes.JOB_TIMERS,
}
PLACEHOLDER_TIMERS: PlaceholderTimers = {**claims.PLACEHOLDER_TIMERS, **reports.PLACEHOLDER_TIMERS}
