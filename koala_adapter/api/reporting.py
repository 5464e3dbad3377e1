# SPDX-License-Identifier: Apache-2.0
"""Makes reports from the state, in the service; who only reads them needs nothing of this."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from koala_adapter.api.clusterreports import ClusterReport, PlannedComponent, PlanReport
from koala_adapter.api.formersizes import former_sizes
from koala_adapter.api.reports import ComponentReport, HoldReport, JobReport, SizeChangeReport
from koala_adapter.scheduler.claiming.holds import hold_groups
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.placement.policy import Placed
from koala_adapter.service.results import files_report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import Job
    from koala_adapter.scheduler import Scheduler
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.records import Claim, JobRecord, State
    from koala_adapter.service.clusterdriver import ClusterDriver
    from koala_adapter.sweeps.progress import SweepProgress
    from koala_adapter.vjm.channel import TaskFiles

BY_THEMSELVES = frozenset({JobState.COMPLETED, JobState.FAILED})
"""States of jobs whose processes ended when they pleased."""


def plan_report(scheduler: Scheduler, job: Job, *, now: float) -> PlanReport:
    """Return where a job would go now. Nothing is submitted."""
    clusters = scheduler.state.clusters
    closed = {name: closed_reason(record, now) for name, record in clusters.items() if record.configured}
    result = scheduler.plan(job, now)
    components: tuple[PlannedComponent, ...] = ()
    if isinstance(result, Placed):
        components = tuple(
            PlannedComponent(
                component=one.component,
                cluster=one.cluster,
                processors=one.processors,
                idle=clusters[one.cluster].available,
            )
            for one in result.components
        )
    return PlanReport(
        result=type(result).__name__.lower(),
        reason="" if isinstance(result, Placed) else result.reason,
        components=components,
        closed={name: reason for name, reason in closed.items() if reason is not None},
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
    files: Mapping[str, TaskFiles] = MappingProxyType({}),
    sweep: SweepProgress | None = None,
    concluded: bool = False,
) -> JobReport:
    """Return the report of a job of the scheduler.

    ``wall_offset``: seconds to add to its times for those that people's clocks show now. ``negotiated``: what came of
    its negotiations, in words. ``warned``: who knows that its time is nearly over. ``files``: what is known of those of
    its ranks. ``sweep``: how far its tasks are. ``concluded``: nothing more comes from its processes.
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
        explanation=" ".join(filter(None, (explained, warned, negotiated, trouble))),
        placeholders_left=record.live,
        output_directory=output_directory,
        trouble=trouble,
        files=files_report(record, files),
        sweep=sweep,
        concluded=concluded,
        size_changes=tuple(
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
        ),
    )


def _component(state: State, record: JobRecord, claim: Claim, now: float, former: int) -> ComponentReport:
    component = record.job.component(claim.component)
    placeholders = [state.placeholders[id_] for id_ in claim.placeholders if id_ in state.placeholders]
    ours = (PlaceholderState.HELD, PlaceholderState.LAUNCHED)
    waiting = (PlaceholderState.SUBMITTED, PlaceholderState.QUEUED)
    held = [p for p in placeholders if p.state in ours]
    where = ("", claim.cluster)  # pieces of one component are on several clusters
    ranks = [rank for rank in record.ranks if rank.component == claim.component and rank.cluster in where]
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
        hosts=tuple(sorted({rank.host for rank in ranks} or {p.host for p in held if p.host})),
        first_rank=ranks[0].rank if ranks else None,
        waited=waited,
        holds=tuple(
            HoldReport(holder=one.holder or "unknown", reason=one.reason, placeholders=one.count, since=one.since)
            for one in hold_groups(placeholders)
        ),
    )


def _others(record: ClusterRecord, down: int) -> int | None:
    return None if record.processors is None else max(0, record.processors - record.idle - record.ours_polled - down)


def cluster_report(state: State, driver: ClusterDriver, *, now: float, wall_offset: float) -> ClusterReport:
    """Return the report of a cluster of the service; ``wall_offset`` as in :func:`job_report`."""
    record = state.clusters.get(driver.name)
    window = driver.commands.window
    latest = driver.poller.latest
    down = 0 if latest is None else latest.down
    return ClusterReport(
        name=driver.name,
        plugin=driver.config.plugin,
        lrm=driver.version,
        closed="not enabled in the site file" if record is None else closed_reason(record, now),
        processors=None if record is None else record.processors,
        idle=None if record is None or record.processors is None else record.idle,
        others=None if record is None else _others(record, down),
        threshold=driver.config.parameters.threshold,
        placeholders=0 if record is None else record.managed,
        placeholders_queued=0 if record is None else record.queued,
        available=0 if record is None else record.available,
        polled_at=None if latest is None else latest.read_at + wall_offset,
        requests=window.total,
        largest_requests_per_minute=window.largest,
        requests_per_minute=window.per_minute,
        requests_last_minute=window.recent(),
        others_waiting=0 if record is None else sum(job.processors for job in record.others_waiting),
        down=down,
    )
