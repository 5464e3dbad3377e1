# SPDX-License-Identifier: Apache-2.0
"""What ``koala schedule`` counts of one queue for whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.metrics import catalogue as metric
from koala_adapter.metrics.process import process_meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from koala_adapter.metrics.meter import Meter
    from koala_adapter.ordering.entries import JobEvent
    from koala_adapter.ordering.explanations import Overview
    from koala_adapter.ordering.shadow import ShadowReport


class QueueMeter:
    """Counts decisions, and tells where the queue, or its shadow, stands."""

    def __init__(self, cluster: str) -> None:
        """Nothing is counted yet."""
        self.meter = process_meter("schedule")
        self._cluster = cluster

    def tell(self, happened: Iterable[JobEvent]) -> None:
        """Count what happened."""
        for one in happened:
            self.meter.add(metric.QUEUE_EVENTS, self._cluster, one.kind.value)

    def read_queue(self, overview: Callable[[], Overview]) -> None:
        """Tell where the queue stands whenever the metrics are read."""

        def read(meter: Meter) -> None:
            found = overview()
            counts = {
                "waiting": found.waiting,
                "starting": found.starting,
                "running": found.running,
                "left out": found.left_out,
            }
            for state, count in counts.items():
                meter.set(metric.QUEUE_JOBS, self._cluster, state, value=count)
            meter.set(metric.QUEUE_PROCESSORS, self._cluster, value=found.processors)
            meter.set(metric.QUEUE_FREE, self._cluster, value=found.free)

        self.meter.read_with(read)

    def read_shadow(self, report: Callable[[], ShadowReport]) -> None:
        """Tell how a shadow's decisions differ whenever the metrics are read."""

        def read(meter: Meter) -> None:
            found = report()
            for start, count in {"earlier": found.earlier, "later": found.later, "same": found.same}.items():
                meter.set(metric.SHADOW_JOBS, self._cluster, start, value=count)
            ours, theirs = found.mean_wait_ours, found.mean_wait_theirs
            meter.set(metric.SHADOW_WAIT, self._cluster, "koala", value=ours)
            meter.set(metric.SHADOW_WAIT, self._cluster, "lrm", value=theirs)
            meter.set(metric.SHADOW_GAIN, self._cluster, value=theirs - ours)

        self.meter.read_with(read)
