# SPDX-License-Identifier: Apache-2.0
"""Reports made of the scheduler's state: jobs, clusters and plans, live and to be kept.

In this order: the sizes that components of an ended job had, what its negotiations came to, reports of the
scheduler's state, and those of a running service. Programs that only read reports do not need this module.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from koala_adapter import api
from koala_adapter.lrm.rate import Priority
from koala_adapter.model import ClusterName, Component, Job, JobId, RunnerName
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.report.sitevalues import ClusterReport, PlannedComponent, PlannedTravel, PlanReport
from koala_adapter.report.values import (
    RANKS_LISTED,
    AttemptReport,
    ComponentReport,
    HoldReport,
    JobReport,
    RankUsage,
    SizeChangeReport,
    TransferReport,
    UsageReport,
)
from koala_adapter.scheduler.claiming.connections import doubts, must_connect, said_untried
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.ends import is_requeued
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.placement.policies import missing_files, size_mib, transfer_seconds, travels
from koala_adapter.scheduler.placement.policy import ClusterView, Placed, PlacedComponent
from koala_adapter.scheduler.reports import hold_groups
from koala_adapter.service.results import files_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from koala_adapter.lrm.listing import Listing
    from koala_adapter.report.values import SweepProgress
    from koala_adapter.scheduler import Scheduler
    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.records import Claim, JobRecord, State
    from koala_adapter.service.clusters import ClusterDriver
    from koala_adapter.service.records import NegotiationStore
    from koala_adapter.service.service import Service
    from koala_adapter.vjm.channel import TaskFiles


# -- Former sizes of the components of ended jobs ------------------------------------------------------------


def former_sizes(record: JobRecord) -> Mapping[tuple[str, ClusterName | None], int]:
    """Return the largest sizes of components by cluster, for jobs whose workers have left; else nothing.

    As far back as changes of size are kept.
    """
    if not record.state.final:
        return {}
    left = {claim.component for claim in record.claims if claim.processors}
    found: dict[tuple[str, ClusterName | None], int] = {}
    for component in {claim.component for claim in record.claims} - left:
        sizes: Counter[ClusterName] = Counter()
        most: Counter[ClusterName] = Counter()
        for change in reversed(record.size_changes):
            if change.component == component:
                sizes[change.cluster] = change.before
                most = max(most, sizes.copy(), key=lambda one: one.total())
        found.update(((component, cluster), size) for cluster, size in most.items() if size)
    return found


# -- What negotiations of a job came to ----------------------------------------------------------------------
# The code that parses them is imported with the first job that has negotiated.


def negotiated(store: NegotiationStore, record: JobRecord, now: float) -> str:
    """Return the results of a job's latest negotiations in words; empty when there were none."""
    if record.job.runner is RunnerName.RANKS:
        return ""  # such a job keeps its size
    return api.job_negotiations(store, record, now)


# -- Reports of jobs, clusters and plans ---------------------------------------------------------------------

BY_THEMSELVES = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States of jobs whose processes ended when they pleased."""


def plan_report(scheduler: Scheduler, job: Job, *, now: float) -> PlanReport:
    """Return where a job would go now. Nothing is submitted."""
    clusters = scheduler.state.clusters
    closed = {name: closed_reason(record, now) for name, record in clusters.items() if record.configured}
    result = scheduler.plan(job, now)
    components: tuple[PlannedComponent, ...] = ()
    untried: set[frozenset[ClusterName]] = set()
    if isinstance(result, Placed):
        views = scheduler.views(now)
        components = tuple(_planned(job.component(one.component), one, clusters, views) for one in result.components)
        if must_connect(job):
            untried = doubts(scheduler.state, (one.cluster for one in result.components), now).untried
    return PlanReport(
        result=type(result).__name__.lower(),
        reason="" if isinstance(result, Placed) else result.reason,
        components=components,
        closed={name: reason for name, reason in closed.items() if reason is not None},
        untried=said_untried(untried) if untried else "",
    )


def _planned(
    component: Component,
    placed: PlacedComponent,
    clusters: Mapping[ClusterName, ClusterRecord],
    views: Mapping[ClusterName, ClusterView],
) -> PlannedComponent:
    slot, view = component.slot_on(placed.cluster), views[placed.cluster]
    missing = missing_files(component, view)
    seconds = transfer_seconds(missing, view, views)
    idle = clusters[placed.cluster].room_for(slot).available
    return PlannedComponent(
        component=placed.component,
        cluster=placed.cluster,
        processors=placed.processors,
        idle=idle,
        slot=slot,
        input_files=len(component.input_files),
        missing=tuple(file.source for file in missing),
        missing_mib=sum((size_mib(file) for file in missing), 0.0),
        transfer_seconds=None if seconds == inf else seconds,
        travels=tuple(
            PlannedTravel(
                source="" if one.source is None else clusters[one.source].place, mib=one.mib, bandwidth=one.rate
            )
            for one in travels(missing, view, views)
        ),
        expected_wait=None if placed.processors <= idle else view.expected_wait,
    )


def job_report(  # noqa: PLR0913 - all that is told of a job
    scheduler: Scheduler,
    record: JobRecord,
    *,
    now: float,
    wall_offset: float,
    output_directory: str,
    trouble: str = "",
    negotiated: str = "",
    warned: str = "",
    put_off: str = "",
    files: Mapping[str, TaskFiles] = MappingProxyType({}),
    sweep: SweepProgress | None = None,
    transfers: tuple[TransferReport, ...] = (),
    concluded: bool = False,
) -> JobReport:
    """Return the report of a job of the scheduler.

    ``wall_offset``: seconds to add to its times for those that people's clocks show now. ``negotiated``: what came of
    its negotiations, in words. ``warned``: who knows that its time is nearly over. ``put_off``: which of its
    submissions wait for the bound of requests. ``files``: what is known of those of its ranks. ``sweep``: how far its
    tasks are. ``concluded``: nothing more comes from its processes.
    """
    job = record.job

    def shown(time: float | None) -> float | None:
        return None if time is None else time + wall_offset

    position = scheduler.queue_position(job.id) if record.state is JobState.WAITING else None
    former = former_sizes(record)
    explained = explain(scheduler.state, position, record, now, policies=scheduler.policies)
    return JobReport(
        id=job.id,
        name=job.name,
        kind=job.kind.value,
        state=record.state,
        user=job.user,
        priority=job.priority,
        walltime=job.walltime,
        submitted_at=job.submitted_at + wall_offset,
        launched_at=shown(record.launched_at),
        finished_at=shown(record.finished_at),
        reported_at=now + wall_offset,
        queue_position=position,
        tries=record.tries,
        hand_backs=record.hand_backs,
        components=tuple(
            _component(scheduler.state, record, claim, now, former.get((claim.component, claim.cluster), 0))
            for claim in record.claims
            # A flexible component may have grown nowhere else.
            if claim.processors or (claim.component, claim.cluster) in former or not record.ranks
        ),
        outcome=record.outcome,
        explanation=" ".join(filter(None, (explained, put_off, warned, negotiated, trouble))),
        placeholders_left=record.live,
        output_directory=output_directory,
        trouble=trouble,
        files=files_report(record, files),
        sweep=sweep,
        transfers=transfers,
        concluded=concluded,
        usage=_usage(record, now),
        attempts=_attempts(record, wall_offset),
        size_changes=_size_changes(record, wall_offset),
    )


def _attempts(record: JobRecord, wall_offset: float) -> tuple[AttemptReport, ...]:
    return tuple(
        AttemptReport(
            number=one.number,
            launched_at=one.launched_at + wall_offset,
            ended_at=one.ended_at + wall_offset,
            clusters=one.clusters,
            outcome=one.outcome,
            goes_on=is_requeued(record.job, one.outcome),
        )
        for one in record.attempts
    )


def _size_changes(record: JobRecord, wall_offset: float) -> tuple[SizeChangeReport, ...]:
    return tuple(
        SizeChangeReport(
            at=one.at + wall_offset,
            component=one.component,
            cluster=one.cluster,
            before=one.before,
            after=one.after,
            reason=one.reason,
            waited=one.waited,
        )
        for one in record.size_changes
    )


def _usage(record: JobRecord, now: float) -> UsageReport | None:
    held = record.held_for(now)
    if not held and not record.usages:
        return None
    every = [
        RankUsage(rank=rank, component=record.ranks[rank].component, used=used)
        for rank, used in record.usages.items()
        if rank < len(record.ranks)  # between two attempts it has none, and the next one may have fewer
    ]
    every.sort(key=lambda one: (one.used.processor_seconds, one.rank))
    few = RANKS_LISTED // 2
    largest = max(every, key=lambda one: one.used.memory_bytes, default=None)
    gpus = [used.gpu_seconds for used in record.usages.values() if used.gpu_seconds is not None]
    return UsageReport(
        held_seconds=held,
        held_before_launch_seconds=(
            held - record.held_in_attempts if record.launched_at is None else record.held_before_launch
        ),
        used_seconds=sum(used.processor_seconds for used in record.usages.values()),
        system_seconds=sum(used.system_seconds for used in record.usages.values()),
        memory_bytes=0 if largest is None else largest.used.memory_bytes,
        memory_rank=None if largest is None else largest.rank,
        memory_asked_bytes=0 if largest is None else _memory_of(record, largest.rank),
        read_bytes=sum(used.read_bytes for used in record.usages.values()),
        written_bytes=sum(used.written_bytes for used in record.usages.values()),
        gpu_seconds=sum(gpus) if gpus else None,
        measured=len(every),
        uncounted=record.uncounted + len(record.ranks) - len(record.measured),
        by_rank=tuple(every if len(every) <= RANKS_LISTED else every[:few] + every[-few:]),
    )


def _memory_of(record: JobRecord, rank: int) -> int:
    """Return the memory in bytes that was requested for a rank; 0: none."""
    where = record.ranks[rank]
    slot = record.job.component(where.component).slot_on(where.cluster)
    return slot.memory_mib * 2**20 // slot.ranks


def _component(state: State, record: JobRecord, claim: Claim, now: float, former: int) -> ComponentReport:
    component = record.job.component(claim.component)
    placeholders = [state.placeholders[id_] for id_ in claim.placeholders if id_ in state.placeholders]
    ours = (PlaceholderState.HELD, PlaceholderState.LAUNCHED)
    waiting = (PlaceholderState.SUBMITTED, PlaceholderState.QUEUED)
    held = [p for p in placeholders if p.state in ours]
    # Pieces of one component are on several clusters.
    ranks = [one for one in record.ranks if (one.component, one.cluster) == (claim.component, claim.cluster)]
    on = Counter(rank.host for rank in ranks if rank.rank not in record.departed)
    on = on if ranks else Counter(p.host for p in held if p.host)
    hosts = tuple(sorted({rank.host for rank in ranks} or on))
    waited = claim.waited
    if placeholders and waited is None:
        last = max(now if p.held_at is None else p.held_at for p in placeholders)
        waited = max(0.0, last - max(record.job.submitted_at, min(p.submitted_at for p in placeholders)))
    return ComponentReport(
        name=claim.component,
        command=component.command,
        cluster=claim.cluster,
        processors=claim.processors or former or record.component_of(claim).minimum,
        held=len(held),
        queued=sum(p.state in waiting for p in placeholders),
        lrm_ids=claim.lrm_ids or tuple(p.lrm_id for p in placeholders if p.lrm_id),
        hosts=hosts,
        ranks_on=tuple(on[host] for host in hosts),
        first_rank=ranks[0].rank if ranks else None,
        waited=waited,
        slot=component.slot if claim.cluster is None else component.slot_on(claim.cluster),
        holds=tuple(
            HoldReport(
                holder=one.holder or "unknown",
                reason=one.reason,
                placeholders=one.count,
                since=one.since,
                in_hold=one.in_hold,
            )
            for one in hold_groups(placeholders)
        ),
    )


def _others(record: ClusterRecord, down: int) -> int | None:
    return None if record.processors is None else max(0, record.processors - record.idle - record.ours_polled - down)


def takes_nothing(obstacle: str) -> str | None:
    """Return why submissions to a cluster are known to fail; None when they are not."""
    return f"takes no placeholders: {obstacle}" if obstacle else None


def cluster_report(service: Service, driver: ClusterDriver) -> ClusterReport:
    """Return the report of a cluster of the service."""
    state, now = service.state, service.now()
    record = state.clusters.get(driver.name)
    window = driver.commands.window
    latest = driver.poller.latest
    down = 0 if latest is None else latest.down
    obstacle = takes_nothing(driver.lrm.submission_obstacle)
    return ClusterReport(
        name=driver.name,
        plugin=driver.config.plugin,
        lrm=driver.version,
        closed="not enabled in the site file" if record is None else closed_reason(record, now) or obstacle,
        processors=None if record is None else record.processors,
        idle=None if record is None or record.processors is None else record.idle,
        others=None if record is None else _others(record, down),
        threshold=driver.config.parameters.threshold,
        placeholders=len(state.placeholders.on(driver.name)),
        placeholders_queued=0 if record is None else record.queued,
        available=0 if record is None else record.available,
        polled_at=None if latest is None else latest.read_at + service.clock.offset,
        requests=window.total,
        largest_requests_per_minute=window.largest,
        requests_per_minute=window.per_minute,
        requests_last_minute=window.recent(),
        asked_again_in=driver.commands.waits(),
        others_waiting=0 if record is None else sum(job.processors for job in record.others_waiting),
        down=down,
        submission=driver.lrm.submission_way,
        network=service.information.report(driver.config),
        files=service.replicas.report(driver.config),
        **({} if latest is None else largest_of(latest)),
    )


def largest_of(listing: Listing) -> dict[str, Any]:
    """Return the largest slots that could start, for a report: idle processors of one node, and GPUs."""
    return {
        "largest_idle": listing.largest_idle,
        "gpus": sum(one.count for one in listing.gpus),
        "gpus_idle": sum(one.count - one.used for one in listing.gpus),
        "gpu_kinds": tuple(one.kind for one in listing.gpus if one.kind),
    }


# -- Reports of jobs in a running service --------------------------------------------------------------------


def live_report(service: Service, job_id: JobId, *, to_keep: bool = False) -> JobReport:
    """Return the present report of a job; ``to_keep``: without temporary values. Raises JobNotFoundError."""
    directory = service.applications.directory / job_id
    record = service.core.scheduler.job(job_id)
    return job_report(
        service.core.scheduler,
        record,
        now=service.now(),
        wall_offset=service.clock.offset,
        output_directory=str(directory),
        warned=service.sizes.warned(job_id),
        put_off=" ".join(filter(None, (_put_off(service, job_id), *_obstacles(service, job_id)))),
        trouble=_trouble(service, job_id, journal="" if to_keep else service.core.trouble),
        negotiated=negotiated(service.journal.negotiations, record, service.now()),
        files=service.applications.results.concluded(directory),
        sweep=service.sweeps.progress(record.job),
        transfers=tuple(_transfers(service, job_id)),
        concluded=record.state in BY_THEMSELVES and not (record.live and _in_contact(service, record)),
    )


def _obstacles(service: Service, job_id: JobId) -> Iterator[str]:
    """Yield why input files do not go on their way."""
    for one in service.applications.stager.of_job(job_id):
        if one.waits_for:
            yield f"Its input files for {one.cluster} wait: {one.waits_for}."


def _transfers(service: Service, job_id: JobId) -> Iterator[TransferReport]:
    for one in service.applications.stager.of_job(job_id):
        rate = None if one.waits_for else one.rate(service.now())
        yield TransferReport(
            cluster=one.cluster, size=one.size, missing=one.missing, rate=rate, waits_for=one.waits_for
        )


SHORTEST_TOLD = 2.0
"""Seconds for which a submission has to wait for the bound of requests, at least, where it is told."""


def _put_off(service: Service, job_id: JobId) -> str:
    """Return which clusters cannot be asked yet what a job waits for, as their bound of requests is used up."""
    record = service.state.jobs[job_id]
    told = []
    for name, driver in service.clusters.items():
        submits = driver.commands.waits(Priority.SUBMISSION)
        if submits >= SHORTEST_TOLD and _is_submitted(service.state, record, name):
            told.append(f"{_asked_enough(driver)}: the submission goes in {submits:.0f} s.")
        looks = driver.commands.waits()
        if looks >= SHORTEST_TOLD and _is_looked_for(service.state, record, name):
            told.append(f"{_asked_enough(driver)}: it is looked at again in {looks:.0f} s.")
    return " ".join(told)


def _asked_enough(driver: ClusterDriver) -> str:
    """Return in words that a cluster may not be asked now."""
    bound = driver.config.requests_per_minute
    return f"{driver.name} has been asked as often as its bound of {bound} a minute (requests_per_minute) allows"


def _is_submitted(state: State, record: JobRecord, name: ClusterName) -> bool:
    """Return whether placeholders of a job are being submitted to a cluster."""
    batches = (batch for batch in state.batches.values() if (batch.job_id, batch.cluster) == (record.job.id, name))
    return any(batch.lrm_ids is None and batch.uncertain is None for batch in batches)


def _is_looked_for(state: State, record: JobRecord, name: ClusterName) -> bool:
    """Return whether a job waits for a look at a cluster: for its slots there, or for the end of its placeholders."""
    cluster = state.clusters[name]
    slots = [one.slot_on(name) for one in record.job.components if one.cluster in {None, name}]
    unseen = record.state is JobState.WAITING and any(
        cluster.polled_at is None or not cluster.has_counted(slot) for slot in slots
    )
    return unseen or any(
        (one.job_id, one.cluster) == (record.job.id, name) and (record.state.final or one.waiting)
        for one in state.placeholders.values()
    )


def report_to_keep(service: Service, job_id: JobId) -> str:
    """Return the final report of an ended job as JSON."""
    return live_report(service, job_id, to_keep=True).to_json()


def _in_contact(service: Service, record: JobRecord) -> bool:
    """Return whether an agent of a job is connected."""
    placeholders = service.state.placeholders
    connected = (placeholders.get(id_) for id_ in service.core.center.connected)
    return any(one is not None and one.job_id == record.job.id for one in connected)


def _trouble(service: Service, job_id: JobId, *, journal: str) -> str:
    """Return what keeps a job from going on. ``journal``: why it cannot be written."""
    over = service.state.jobs[job_id].state.final
    undecided = f"Nothing is decided until this is over: {journal}." if journal else ""
    unwritten = service.applications.unwritten.trouble(job_id, over=over)
    return " ".join(filter(None, (service.sizes.complaint(job_id), unwritten, undecided)))
