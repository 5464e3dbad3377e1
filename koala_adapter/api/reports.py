# SPDX-License-Identifier: Apache-2.0
"""What people and programs are shown of jobs and clusters: values with a stable JSON form, made from the state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from koala_adapter.scheduler.claiming.holds import hold_groups
from koala_adapter.scheduler.context import closed_reason
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.outcome import JobOutcome, JobState, PlaceholderState
from koala_adapter.scheduler.placement.policy import Placed
from koala_adapter.service.results import NO_FILES, FilesReport, files_report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.model import Job
    from koala_adapter.scheduler import Scheduler
    from koala_adapter.scheduler.records import Claim, ClusterRecord, JobRecord, State
    from koala_adapter.service.clusterdriver import ClusterDriver
    from koala_adapter.vjm.channel import TaskFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReport:
    """Placeholders that do not start because somebody put them in hold in their batch system."""

    holder: str
    """``user`` (or a submission hook in the user's name), ``operator``, ``system`` or ``unknown``."""
    reason: str
    """The batch system's own word."""
    placeholders: int
    since: float
    """When the first of them was seen so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentReport:
    """Where one component is and what it holds; times in seconds."""

    name: str
    command: tuple[str, ...]
    cluster: str | None
    processors: int
    """Wanted: the placed number, or the minimum while nothing is placed."""
    held: int
    queued: int
    """Placeholders that wait in the LRM's queue."""
    lrm_ids: tuple[str, ...]
    hosts: tuple[str, ...]
    first_rank: int | None
    waited: float | None
    """From the submission of the first placeholder until the last one was held, or until now."""
    holds: tuple[HoldReport, ...] = ()
    """Those of the queued placeholders that are in hold there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """A job as ``koala status`` shows it."""

    id: str
    name: str
    kind: str
    state: JobState
    user: str
    priority: int
    walltime: int
    submitted_at: float
    launched_at: float | None
    finished_at: float | None
    reported_at: float
    queue_position: int | None
    tries: int
    hand_backs: int
    components: tuple[ComponentReport, ...]
    outcome: JobOutcome | None
    explanation: str
    placeholders_left: int
    """Placeholders that are not gone yet; a job is over when this is 0 and ``outcome`` is set."""
    output_directory: str
    trouble: str = ""
    """What keeps koala itself from going on, such as output or a journal that cannot be written; part of
    ``explanation``, too."""
    files: FilesReport = NO_FILES
    """Files that the ranks left."""

    @property
    def over(self) -> bool:
        """True when the job has its outcome and nothing of it is left in any LRM."""
        return self.outcome is not None and self.placeholders_left == 0

    def processes(self, component: str | None = None, rank: int | None = None) -> int:
        """Return how many processes it has: in all, of one component, or of one rank of each component."""
        sizes: dict[str, int] = {}
        for one in self.components:  # pieces of a component on several clusters have its name
            sizes[one.name] = sizes.get(one.name, 0) + one.processors
        chosen = [size for name, size in sizes.items() if component in (None, name)]
        return sum(chosen) if rank is None else sum(rank < size for size in chosen)

    def to_json(self) -> str:
        """Return the JSON form."""
        return JOB_REPORT.dump_json(self).decode()


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
    """Processors that nobody of ours occupies and that are not idle: jobs of others, and nodes that are down."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedComponent:
    """Where a component would go."""

    component: str
    cluster: str
    processors: int
    idle: int
    """Processors that a claim would get there at once; what is beyond them waits in the queue of the LRM."""


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


JOB_REPORT = TypeAdapter(JobReport)
CLUSTER_REPORT = TypeAdapter(ClusterReport)
PLAN_REPORT = TypeAdapter(PlanReport)


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


def job_report(
    scheduler: Scheduler,
    record: JobRecord,
    *,
    now: float,
    wall_offset: float,
    output_directory: str,
    trouble: str = "",
    files: Mapping[str, TaskFiles] = MappingProxyType({}),
) -> JobReport:
    """Return the report of a job of the scheduler.

    ``wall_offset``: seconds to add to its times for those that people's clocks show now. ``files``: what is known of
    those of its ranks.
    """
    job = record.job

    def shown(time: float | None) -> float | None:
        return None if time is None else time + wall_offset

    position = scheduler.queue_position(job.id) if record.state is JobState.WAITING else None
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
        components=tuple(_component(scheduler.state, record, claim, now) for claim in record.claims),
        outcome=record.outcome,
        explanation=" ".join(filter(None, (explained, trouble))),
        placeholders_left=record.live,
        output_directory=output_directory,
        trouble=trouble,
        files=files_report(record, files),
    )


def in_order(report: JobReport) -> tuple[int, str]:
    """Return what sorts reports by submission, whatever was done to the time of day between two jobs."""
    return (int(report.id) if report.id.isdecimal() else 0, report.id)


def of_the_past(report: JobReport) -> JobReport:
    """Return the report kept at a job's end as it is true now: the scheduler forgot the job, so nothing is left."""
    return replace(report, placeholders_left=0)


def _component(state: State, record: JobRecord, claim: Claim, now: float) -> ComponentReport:
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
        processors=claim.processors or record.component_of(claim).minimum,
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


def _others(record: ClusterRecord) -> int | None:
    return None if record.processors is None else max(0, record.processors - record.idle - record.ours_polled)


def cluster_report(state: State, driver: ClusterDriver, *, now: float, wall_offset: float) -> ClusterReport:
    """Return the report of a cluster of the service; ``wall_offset`` as in :func:`job_report`."""
    record = state.clusters.get(driver.name)
    window = driver.commands.window
    return ClusterReport(
        name=driver.name,
        plugin=driver.config.plugin,
        lrm=driver.version,
        closed="not enabled in the site file" if record is None else closed_reason(record, now),
        processors=None if record is None else record.processors,
        idle=None if record is None or record.processors is None else record.idle,
        others=None if record is None else _others(record),
        threshold=driver.config.threshold,
        placeholders=0 if record is None else record.managed,
        placeholders_queued=0 if record is None else record.queued,
        available=0 if record is None else record.available,
        polled_at=None if driver.poller.latest is None else driver.poller.latest.read_at + wall_offset,
        requests=window.total,
        largest_requests_per_minute=window.largest,
        requests_per_minute=window.per_minute,
    )
