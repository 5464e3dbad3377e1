# SPDX-License-Identifier: Apache-2.0
"""The scheduler: a pure state machine from events to actions (DESIGN section 4).

``service.py`` drives it against real clusters, the simulator and the fault tests against simulated ones. The same
events give the same actions, byte for byte; the journal is the list of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.errors import JobNotFoundError, JobRefusedError
from koala_adapter.model import EndReason, JobId, PlaceholderId, TaskEnd
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.claiming import check_complete, place, refuse, retake, scan_queue
from koala_adapter.scheduler.context import Context
from koala_adapter.scheduler.finishing import finish, placeholder_failed, rank_ended
from koala_adapter.scheduler.lifecycle import (
    SILENCE_MARGIN,
    end_placeholder,
    ending_timer,
    forget_placeholder,
    life_timer,
    maximum_tries,
    registration_timer,
    setback,
    start_life,
    tries_used_up,
)
from koala_adapter.scheduler.outcome import JobState, PlaceholderState, outcome_without_code
from koala_adapter.scheduler.placement import POLICIES, infeasibility
from koala_adapter.scheduler.queue import PlacementQueue
from koala_adapter.scheduler.records import (
    Claim,
    ClusterRecord,
    JobRecord,
    PlaceholderRecord,
    State,
    Timer,
    TimerKind,
)

if TYPE_CHECKING:
    from koala_adapter.model import BatchKey, Job
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.placement import PlacementResult

LAUNCHED_STATES = (JobState.LAUNCHING, JobState.RUNNING)


class Scheduler:
    """Takes events, gives actions; knows nothing of how either travels."""

    def __init__(self, state: State | None = None) -> None:
        """Start empty, or go on from a snapshot of :attr:`state`."""
        self.state = state or State()
        self._queue = PlacementQueue()
        for record in self.state.jobs.values():
            if record.state is JobState.WAITING and record.not_before <= 0:
                self._queue.push(record.job)

    @property
    def next_wakeup(self) -> float | None:
        """Time at which a TimeReached event is wanted; None when nothing is awaited."""
        return self.state.timers[0].at if self.state.timers else None

    def handle(self, event: ev.Event) -> list[Action]:
        """Take in one event and return what is to be done now. Time must not run backwards by more than clocks do."""
        context = Context(state=self.state, queue=self._queue, now=event.time)
        while (timer := self.state.due_timer(event.time)) is not None:
            self._fire(context, timer)
        self._take_in(context, event)
        self._settle(context)
        return context.effects.actions()

    def plan(self, job: Job, now: float) -> PlacementResult:
        """Return where a job would go now, without submitting it."""
        context = Context(state=self.state, queue=self._queue, now=now)
        return place(context, _new_record(job), context.views())

    def job(self, job_id: str) -> JobRecord:
        """Return the record of a job. Raises JobNotFoundError."""
        try:
            return self.state.jobs[JobId(job_id)]
        except KeyError:
            message = f"no job {job_id!r}"
            raise JobNotFoundError(message, hint="`koala status` lists the jobs") from None

    def queue_position(self, job_id: JobId) -> int | None:
        """Return the 1-based place of a job in the placement queue; None when it is not there."""
        ordered = self._queue.ordered()
        return ordered.index(job_id) + 1 if job_id in self._queue else None

    def _settle(self, context: Context) -> None:
        """Finish what ended, then place what may have become placeable, until nothing more follows."""
        while context.outcomes or context.scan_wanted:
            while context.outcomes:
                record, outcome = context.outcomes.pop(0)
                finish(context, record, outcome)
            if context.scan_wanted:
                context.scan_wanted = False
                scan_queue(context)
        if len(self._queue) and not self.state.scan_timer_set:
            self.state.scan_timer_set = True
            self.state.set_timer(context.now + self.state.parameters.scan_interval, TimerKind.SCAN)

    # ---- events ---------------------------------------------------------------------------------------------------

    def _take_in(self, context: Context, event: ev.Event) -> None:  # noqa: C901, PLR0912 - one plain line per kind of event
        match event:
            case ev.Configured():
                self._configured(context, event)
            case ev.JobSubmitted():
                self._job_submitted(context, event)
            case ev.CancelRequested():
                self._cancel_requested(context, event)
            case ev.ClusterPolled():
                self._cluster_polled(context, event)
            case ev.ClusterUnavailable():
                self._cluster_unavailable(event)
            case ev.BatchSubmitted():
                self._batch_submitted(context, event)
            case ev.BatchRejected():
                self._batch_failed(context, event.batch, event.reason, rejected=True)
            case ev.BatchAbsent():
                self._batch_failed(context, event.batch, event.reason, rejected=False)
            case ev.BatchUncertain():
                self._batch_uncertain(event)
            case ev.PlaceholderStarted():
                self._placeholder_started(event)
            case ev.PlaceholderHeld():
                self._placeholder_held(context, event)
            case ev.PlaceholderSilent():
                self._placeholder_silent(event)
            case ev.PlaceholderEnding():
                self._placeholder_ending(context, event)
            case ev.PlaceholderEnded():
                self._placeholder_ended(context, event)
            case ev.RankStarted():
                self._rank_started(event)
            case ev.RankEnded():
                self._rank_ended(context, event)
            case _:
                pass  # TimeReached: nothing beyond the timers, which every event fires first

    def _configured(self, context: Context, event: ev.Configured) -> None:
        self.state.parameters = event.parameters
        for record in self.state.clusters.values():
            record.configured = False
        for parameters in event.clusters:
            cluster = self.state.clusters.setdefault(parameters.name, ClusterRecord(parameters=parameters))
            cluster.parameters = parameters
            cluster.configured = True
        context.scan_wanted = True

    def _job_submitted(self, context: Context, event: ev.JobSubmitted) -> None:
        job = event.job
        if job.id in self.state.jobs:
            message = f"job {job.id} exists already"
            raise JobRefusedError(message, hint="submit it under another id")
        record = _new_record(job)
        self.state.jobs[job.id] = record
        never = self._impossible(context, record)
        if never is not None:
            refuse(context, record, never)
        else:
            self._enqueue(context, record)

    def _impossible(self, context: Context, record: JobRecord) -> str | None:
        if record.job.placement not in POLICIES:
            return f"there is no placement policy {record.job.placement!r}; there are: {', '.join(sorted(POLICIES))}"
        views = context.views()
        for component in record.job.components:
            if component.cluster is not None and component.cluster not in views:
                known = ", ".join(sorted(views)) or "none"
                return f"component {component.name!r} asks for cluster {component.cluster!r}; configured are: {known}"
        return infeasibility(context.requests(record), views)

    def _enqueue(self, context: Context, record: JobRecord) -> None:
        state = self.state
        record.not_before = 0.0
        record.queued_at_scan = state.scans
        self._queue.push(record.job)
        last = state.scans + max(1, maximum_tries(context, record) - record.tries)
        state.tries_end.setdefault(last, []).append(record.job.id)
        context.scan_wanted = True

    def _cancel_requested(self, context: Context, event: ev.CancelRequested) -> None:
        record = self.state.jobs.get(event.job_id)
        if record is not None and not record.state.final:
            detail = f"cancelled by the user while {record.state.value}"
            outcome = outcome_without_code(JobState.CANCELLED, EndReason.CANCELLED, detail)
            context.outcomes.append((record, outcome))

    def _cluster_polled(self, context: Context, event: ev.ClusterPolled) -> None:
        cluster = self.state.clusters.get(event.cluster)
        if cluster is None:
            return
        cluster.processors, cluster.idle, cluster.ours_polled = event.processors, event.idle, event.ours
        cluster.polled_at, cluster.unavailable = event.time, None
        context.scan_wanted = True
        self._refuse_impossible(context)

    def _refuse_impossible(self, context: Context) -> None:
        """Once every cluster has been seen, jobs that could only be hoped to fit are known to fit or not."""
        if any(cluster.processors is None for cluster in self.state.clusters.values() if cluster.configured):
            return
        views = context.views()
        for job_id in self._queue.ordered() if len(self._queue) <= len(views) * 100 else []:
            record = self.state.jobs[job_id]
            result = infeasibility(context.requests(record), views)
            if result is not None:
                refuse(context, record, result)

    def _cluster_unavailable(self, event: ev.ClusterUnavailable) -> None:
        cluster = self.state.clusters.get(event.cluster)
        if cluster is not None:
            cluster.unavailable = event.reason

    def _batch_submitted(self, context: Context, event: ev.BatchSubmitted) -> None:
        batch = self.state.batches.get(event.batch)
        if batch is None or batch.lrm_ids is not None:
            return
        batch.lrm_ids, batch.uncertain = event.lrm_ids, None
        for placeholder in self._placeholders_in(batch.key, batch.count):
            if placeholder.id.index <= len(event.lrm_ids):
                placeholder.lrm_id = event.lrm_ids[placeholder.id.index - 1]
            if placeholder.state is PlaceholderState.SUBMITTED:
                self.state.change(placeholder, PlaceholderState.QUEUED)
            elif placeholder.state is PlaceholderState.ENDING:
                end_placeholder(context, placeholder, force=True)

    def _placeholders_in(self, batch: BatchKey, count: int) -> list[PlaceholderRecord]:
        ids = (PlaceholderId(batch=batch, index=index) for index in range(1, count + 1))
        return [self.state.placeholders[id_] for id_ in ids if id_ in self.state.placeholders]

    def _batch_failed(self, context: Context, key: BatchKey, reason: str, *, rejected: bool) -> None:
        batch = self.state.batches.get(key)
        if batch is None:
            return
        record = self.state.jobs[batch.job_id]
        claim = record.claim(batch.component)
        for placeholder in self._placeholders_in(batch.key, batch.count):
            forget_placeholder(context, placeholder)
        if rejected:
            claim.excluded[batch.cluster] = reason
            never = infeasibility([context.request(record, claim)], context.views())
            if never is not None:
                refuse(
                    context,
                    record,
                    f"{batch.cluster} refused the placeholders of {claim.component!r}: {reason}",
                )
                return
            claim.cluster, claim.processors = None, 0
        setback(context, record, f"{batch.cluster}: {reason}", pause=not rejected)

    def _batch_uncertain(self, event: ev.BatchUncertain) -> None:
        batch = self.state.batches.get(event.batch)
        if batch is not None and batch.lrm_ids is None:
            batch.uncertain = event.reason

    def _placeholder_started(self, event: ev.PlaceholderStarted) -> None:
        placeholder = self.state.placeholders.get(event.placeholder)
        if placeholder is None or placeholder.state not in {
            PlaceholderState.SUBMITTED,
            PlaceholderState.QUEUED,
        }:
            return
        self.state.change(placeholder, PlaceholderState.STARTED)
        placeholder.started_at = event.time
        at = event.time + self.state.parameters.registration_timeout
        self.state.set_timer(at, TimerKind.REGISTRATION, placeholder=placeholder.id)

    def _placeholder_held(self, context: Context, event: ev.PlaceholderHeld) -> None:
        placeholder = self.state.placeholders.get(event.placeholder)
        if placeholder is None:
            return
        placeholder.host, placeholder.address, placeholder.silent_since = event.host, event.address, None
        placeholder.ends_at = event.ends_at
        placeholder.started_at = placeholder.started_at or event.time
        self.state.clusters[placeholder.cluster].missing_in_a_row = 0
        record = self.state.jobs[placeholder.job_id]
        if placeholder.state is PlaceholderState.ENDING:
            end_placeholder(context, placeholder)
        elif placeholder.state is not PlaceholderState.LAUNCHED:
            self.state.change(placeholder, PlaceholderState.HELD)
            placeholder.held_at = placeholder.held_at or event.time
            start_life(context, record)
            check_complete(context, record)

    def _placeholder_silent(self, event: ev.PlaceholderSilent) -> None:
        placeholder = self.state.placeholders.get(event.placeholder)
        if placeholder is not None and placeholder.silent_since is None:
            placeholder.silent_since = event.time
            at = event.time + self.state.parameters.lease + SILENCE_MARGIN
            self.state.set_timer(at, TimerKind.SILENCE, placeholder=placeholder.id)

    def _placeholder_ending(self, context: Context, event: ev.PlaceholderEnding) -> None:
        placeholder = self.state.placeholders.get(event.placeholder)
        if placeholder is not None and placeholder.state is not PlaceholderState.ENDING:
            self._give_up(context, placeholder, TaskEnd(reason=event.reason, detail=event.detail))
            end_placeholder(context, placeholder)

    def _placeholder_ended(self, context: Context, event: ev.PlaceholderEnded) -> None:
        placeholder = self.state.placeholders.get(event.placeholder)
        if placeholder is not None:
            if placeholder.state is not PlaceholderState.ENDING:
                self._give_up(context, placeholder, TaskEnd(reason=event.reason, detail=event.detail))
            forget_placeholder(context, placeholder)

    def _give_up(self, context: Context, placeholder: PlaceholderRecord, end: TaskEnd) -> None:
        """Take an ending placeholder out of its job: a launched job ends with it, a claiming one claims another."""
        record = self.state.jobs[placeholder.job_id]
        claim = record.claim(placeholder.component)
        if placeholder.id in claim.placeholders:
            claim.placeholders.remove(placeholder.id)
        if record.state in LAUNCHED_STATES:
            placeholder_failed(context, record, placeholder, end)
        elif record.state is JobState.CLAIMING:
            detail = f": {end.detail}" if end.detail else ""
            setback(
                context,
                record,
                f"placeholder {placeholder.id} on {placeholder.cluster} {end.reason.value}{detail}",
            )

    def _rank_started(self, event: ev.RankStarted) -> None:
        record = self.state.jobs.get(event.job_id)
        if record is not None and record.state is JobState.LAUNCHING:
            record.started.add(event.rank)
            if len(record.started) == len(record.ranks):
                record.state = JobState.RUNNING

    def _rank_ended(self, context: Context, event: ev.RankEnded) -> None:
        record = self.state.jobs.get(event.job_id)
        if record is not None:
            rank_ended(context, record, event.rank, event.end)

    # ---- timers ---------------------------------------------------------------------------------------------------

    def _fire(self, context: Context, timer: Timer) -> None:
        if timer.kind is TimerKind.SCAN:
            self._scan_timer(context)
        elif timer.kind is TimerKind.PAUSE:
            context.scan_wanted = True
        elif timer.job_id is not None and timer.job_id in self.state.jobs:
            self._fire_job(context, timer, self.state.jobs[timer.job_id])
        elif timer.placeholder is not None and timer.placeholder in self.state.placeholders:
            self._fire_placeholder(context, timer, self.state.placeholders[timer.placeholder])

    def _fire_job(self, context: Context, timer: Timer, record: JobRecord) -> None:
        if timer.kind is TimerKind.LIFE:
            life_timer(context, record)
        elif timer.kind is TimerKind.RETAKE:
            if record.state is JobState.CLAIMING and record.retake_at is not None and context.now >= record.retake_at:
                retake(context, record)
        elif timer.kind is TimerKind.BACKOFF:
            if record.state is JobState.WAITING and 0 < record.not_before <= context.now:
                self._enqueue(context, record)
        elif timer.kind is TimerKind.WALLTIME and record.state in LAUNCHED_STATES:
            detail = f"stopped at the job's walltime of {record.job.walltime} s"
            context.outcomes.append((record, outcome_without_code(JobState.FAILED, EndReason.WALLTIME, detail)))

    def _fire_placeholder(self, context: Context, timer: Timer, placeholder: PlaceholderRecord) -> None:
        if timer.kind is TimerKind.REGISTRATION:
            registration_timer(context, placeholder)
        elif timer.kind is TimerKind.ENDING:
            ending_timer(context, placeholder)
        elif timer.kind is TimerKind.SILENCE and placeholder.silent_since is not None:
            silent = context.now - placeholder.silent_since
            if silent >= self.state.parameters.lease and placeholder.state is not PlaceholderState.ENDING:
                detail = f"no contact with its agent for {silent:.0f} s; it has ended itself by its lease"
                self._give_up(context, placeholder, TaskEnd(reason=EndReason.LOST, detail=detail))
                end_placeholder(context, placeholder, force=True)

    def _scan_timer(self, context: Context) -> None:
        """Scan at the interval; each such scan is one try of every job that waits in the queue."""
        state = self.state
        state.scan_timer_set = False
        state.scans += 1
        context.scan_wanted = True
        for job_id in state.tries_end.pop(state.scans, []):
            record = state.jobs.get(job_id)
            if record is None or record.state is not JobState.WAITING or job_id not in self._queue:
                continue
            record.tries += state.scans - record.queued_at_scan
            record.queued_at_scan = state.scans
            tries_used_up(context, record)


def _new_record(job: Job) -> JobRecord:
    return JobRecord(job=job, claims=[Claim(component=component.name) for component in job.components])
