# SPDX-License-Identifier: Apache-2.0
"""Claiming without reservation: turning placements into submitted placeholders, and a full hand into a launch.

KOALA's incremental claiming (PAPERS 1.1) with the virtual jobs of VJM (PAPERS 2): placeholders go to every chosen
cluster; when all are held the job starts; a component whose claim failed is placed again on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import BatchKey, EndReason, PlaceholderId
from koala_adapter.scheduler.actions import LaunchJob, Rank, SubmitPlaceholders
from koala_adapter.scheduler.lifecycle import end_placeholder, setback
from koala_adapter.scheduler.outcome import JobState, PlaceholderState, outcome_without_code
from koala_adapter.scheduler.placement import POLICIES, Infeasible, Insufficient, Placed
from koala_adapter.scheduler.records import BatchRecord, Claim, PlaceholderRecord, TimerKind

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.placement import ClusterView, PlacedComponent, PlacementResult
    from koala_adapter.scheduler.queue import Lane
    from koala_adapter.scheduler.records import JobRecord


def scan_queue(context: Context) -> None:
    """Try to place waiting jobs from head to tail."""
    views = context.views()

    def may_fit(lane: Lane) -> bool:
        cluster, need = lane
        if cluster is not None:
            view = views.get(cluster)
            return view is not None and view.closed is None and view.room >= need
        return any(view.closed is None and view.room >= need for view in views.values())

    for job_id in context.queue.scan(may_fit):
        record = context.state.jobs[job_id]
        result = place(context, record, views)
        if isinstance(result, Placed):
            context.queue.remove(job_id)
            claim_placement(context, record, result)
            for placed in result.components:
                views[placed.cluster] = context.view(context.state.clusters[placed.cluster])
        else:
            record.last_trouble = result.reason


def place(context: Context, record: JobRecord, views: dict[ClusterName, ClusterView]) -> PlacementResult:
    """Ask the job's placement policy where it would go now."""
    return POLICIES[record.job.placement].place(context.requests(record), views)


def claim_placement(context: Context, record: JobRecord, placed: Placed) -> None:
    """Submit placeholders for every component of a placement."""
    record.state = JobState.CLAIMING
    record.retake_at = None
    record.last_trouble = ""
    for component in placed.components:
        _fill(context, record, record.claim(component.component), component)


def _fill(context: Context, record: JobRecord, claim: Claim, placed: PlacedComponent) -> None:
    claim.cluster, claim.processors = placed.cluster, placed.processors
    if claim.missing > 0:
        _submit(context, record, claim, placed.cluster)


def _submit(context: Context, record: JobRecord, claim: Claim, cluster_name: ClusterName) -> None:
    state = context.state
    cluster = state.clusters[cluster_name]
    state.batches_made += 1
    key = BatchKey(f"koala-{state.parameters.instance}-{state.batches_made}")
    count = claim.missing
    walltime = int(record.job.walltime + state.parameters.launch_margin + state.parameters.placeholder_life)
    if cluster.parameters.walltime_limit is not None:
        walltime = min(walltime, cluster.parameters.walltime_limit)
    state.batches[key] = BatchRecord(
        key=key,
        cluster=cluster_name,
        job_id=record.job.id,
        component=claim.component,
        count=count,
        submitted_at=context.now,
        live=count,
    )
    for index in range(1, count + 1):
        id_ = PlaceholderId(batch=key, index=index)
        state.placeholders[id_] = PlaceholderRecord(
            id=id_,
            cluster=cluster_name,
            job_id=record.job.id,
            component=claim.component,
            state=PlaceholderState.SUBMITTED,
            submitted_at=context.now,
            walltime=walltime,
        )
        claim.placeholders.append(id_)
    cluster.managed += count
    cluster.queued += count
    record.live += count
    context.effects.add(SubmitPlaceholders(batch=key, cluster=cluster_name, count=count, walltime=walltime))


def retake(context: Context, record: JobRecord) -> None:
    """Claim again what a job is missing: all of it or nothing.

    A component that still has placeholders in a queue stays on its cluster; one that has none may move.
    """
    record.retake_at = None
    short = [claim for claim in record.claims if claim.missing > 0 or claim.cluster is None]
    homeless = [claim for claim in short if not claim.placeholders]
    settled = [claim for claim in short if claim.placeholders]
    views = context.views()
    trouble = _reserve(settled, views)
    if trouble is None and homeless:
        requests = [context.request(record, claim) for claim in homeless]
        result = POLICIES[record.job.placement].place(requests, views)
        if isinstance(result, Infeasible):
            refuse(context, record, result.reason)
            return
        if isinstance(result, Insufficient):
            trouble = result.reason
        else:
            for placed in result.components:
                _fill(context, record, record.claim(placed.component), placed)
    if trouble is not None:
        setback(context, record, trouble)
        return
    for claim in settled:
        if claim.cluster is not None:
            _submit(context, record, claim, claim.cluster)


def _reserve(settled: list[Claim], views: dict[ClusterName, ClusterView]) -> str | None:
    """Check room for what settled components miss; return the trouble when there is none."""
    needed: dict[ClusterName, int] = {}
    for claim in settled:
        if claim.cluster is not None:
            needed[claim.cluster] = needed.get(claim.cluster, 0) + claim.missing
    for name, processors in needed.items():
        view = views.get(name)
        if view is None or view.closed is not None:
            return f"{name}: {view.closed if view else 'no longer in the site file'}"
        if view.room < processors:
            return f"{name}: room for {max(0, view.room)} placeholders, {processors} more are needed"
    return None


def refuse(context: Context, record: JobRecord, reason: str) -> None:
    """End a job that can never run."""
    context.outcomes.append((record, outcome_without_code(JobState.REFUSED, EndReason.NOT_PLACED, reason)))


def check_complete(context: Context, record: JobRecord) -> None:
    """Launch a claiming job when everything it wants is held and will last long enough."""
    if record.state is not JobState.CLAIMING:
        return
    placeholders = context.state.placeholders_of(record)
    if any(not placeholder.held for placeholder in placeholders):
        return
    if any(claim.cluster is None or claim.missing for claim in record.claims):
        if record.retake_at is not None:
            retake(context, record)
        return
    short = [p for p in placeholders if p.ends_at is not None and p.ends_at - context.now < record.job.walltime]
    if short:
        _drain(context, record, short)
    else:
        _launch(context, record)


def _drain(context: Context, record: JobRecord, short: list[PlaceholderRecord]) -> None:
    """Hand back placeholders whose remaining walltime is too short for the job (walltime drain)."""
    for placeholder in short:
        record.claim(placeholder.component).placeholders.remove(placeholder.id)
        end_placeholder(context, placeholder)
    setback(context, record, f"{len(short)} held processors had less walltime left than the job needs")


def _launch(context: Context, record: JobRecord) -> None:
    record.state = JobState.LAUNCHING
    record.life_ends_at = None
    record.retake_at = None
    record.launched_at = context.now
    ranks: list[Rank] = []
    for claim in record.claims:
        for component_rank, id_ in enumerate(claim.placeholders):
            placeholder = context.state.placeholders[id_]
            context.state.change(placeholder, PlaceholderState.LAUNCHED)
            ranks.append(
                Rank(
                    rank=len(ranks),
                    component=claim.component,
                    component_rank=component_rank,
                    placeholder=id_,
                    host=placeholder.host,
                    address=placeholder.address,
                )
            )
    record.ranks = tuple(ranks)
    context.state.set_timer(context.now + record.job.walltime, TimerKind.WALLTIME, job_id=record.job.id)
    context.effects.add(LaunchJob(job_id=record.job.id, ranks=record.ranks))
