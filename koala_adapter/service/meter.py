# SPDX-License-Identifier: Apache-2.0
"""Metrics of a service: counters that follow each handled event, and gauges read from the state on request."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from koala_adapter.host import metrics as metric
from koala_adapter.host.metrics import Meter, process_meter
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import events as ev

if TYPE_CHECKING:
    from koala_adapter.lrm.commands import CommandRunner
    from koala_adapter.model import JobId
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.scheduler.sizechange import SizeChange
    from koala_adapter.service.core import Core


class ServiceMeter:
    """Metrics of a service."""

    def __init__(self, core: Core) -> None:
        """Count nothing yet; gauges are read from ``core``."""
        self.meter = process_meter("serve")
        self._core = core
        self._counted: dict[JobId, SizeChange] = {}
        """The latest change of size that is counted, of each job that had one."""
        self.meter.read_with(self._read)

    def watch(self, cluster: str, commands: CommandRunner) -> None:
        """Count the requests to a cluster's batch system."""
        commands.count_in(self.meter, cluster)

    def handled(self, event: ev.Event) -> None:
        """Count the changes by a handled event."""
        match event:
            case ev.Configured():
                # Earlier changes belong to previous processes.
                records = self._core.state.jobs.items()
                self._counted |= {id_: record.size_changes[-1] for id_, record in records if record.size_changes}
            case ev.ClusterUnavailable():
                self.meter.add(metric.CLUSTER_FAILURES, event.cluster)
            case ev.PlaceholderHeld():
                self._count_wait(event)
            case ev.RankMeasured():
                self.meter.add(metric.PROCESSOR_SECONDS_USED, amount=event.usage.processor_seconds)
                self.meter.add(metric.BYTES_READ, amount=event.usage.read_bytes)
                self.meter.add(metric.BYTES_WRITTEN, amount=event.usage.written_bytes)
        job_id = getattr(event, "job_id", None)
        record = None if job_id is None else self._core.state.jobs.get(job_id)
        if record is not None and record.size_changes:
            self._count_changes(record)

    def launched(self, job_id: JobId) -> None:
        """Count the launch of a job."""
        record = self._core.state.jobs.get(job_id)
        if record is None:
            return
        self.meter.add(metric.JOB_STARTS)
        if record.launched_at is not None and not record.attempts_over:
            self.meter.observe(metric.JOB_WAITING, seconds=record.launched_at - record.job.submitted_at)
        for claim in record.claims:
            if claim.cluster is not None and claim.waited is not None:
                self.meter.observe(metric.CLAIMING, claim.cluster, seconds=claim.waited)

    def set_aside(self, events: int) -> None:
        """Count events on which the scheduler failed."""
        self.meter.add(metric.DEFECTS, amount=events)

    def ended(self, job_id: JobId, outcome: JobState) -> None:
        """Count the end of a job."""
        self.meter.add(metric.JOB_ENDS, outcome.value)
        record = self._core.state.jobs.get(job_id)
        if record is not None:
            self.meter.add(metric.PROCESSOR_SECONDS_HELD, amount=record.held_seconds)
        self._counted.pop(job_id, None)

    # ---- what an event has changed --------------------------------------------------------------------------------

    def _count_wait(self, event: ev.PlaceholderHeld) -> None:
        state = self._core.state
        record = state.placeholders.get(event.placeholder)
        if record is not None and record.held_at is not None and record.held_at == state.now:
            self.meter.observe(metric.PLACEHOLDER_WAITING, record.cluster, seconds=record.held_at - record.submitted_at)

    def _count_changes(self, record: JobRecord) -> None:
        changes = record.size_changes
        last = self._counted.get(record.job.id)
        self._counted[record.job.id] = changes[-1]
        new = changes[changes.index(last) + 1 :] if last in changes else changes if last is None else changes[-1:]
        for change in new:
            by = change.after - change.before
            direction = "grow" if by > 0 else "shrink"
            self.meter.add(metric.SIZE_CHANGES, change.cluster, direction)
            self.meter.add(metric.SIZE_CHANGE_PROCESSORS, change.cluster, direction, amount=abs(by))

    # ---- what there is --------------------------------------------------------------------------------------------

    def _read(self, meter: Meter) -> None:
        state = self._core.state
        meter.set(metric.JOURNAL_BLOCKED, value=float(bool(self._core.trouble)))
        jobs = Counter(record.state for record in state.jobs.values() if not record.state.final)
        for job_state in JobState:
            if not job_state.final:
                meter.set(metric.JOBS, job_state.value, value=jobs[job_state])
        placeholders = Counter((record.cluster, record.state) for record in state.placeholders.values())
        for name, cluster in state.clusters.items():
            for placeholder_state in PlaceholderState:
                count = placeholders[name, placeholder_state]
                meter.set(metric.PLACEHOLDERS, name, placeholder_state.value, value=count)
            if not cluster.configured:
                continue
            seen = cluster.unavailable is None and cluster.processors is not None
            meter.set(metric.CLUSTER_UP, name, value=float(seen))
            if cluster.processors is not None:
                meter.set(metric.CLUSTER_PROCESSORS, name, value=cluster.processors)
                meter.set(metric.CLUSTER_IDLE, name, value=cluster.idle)
