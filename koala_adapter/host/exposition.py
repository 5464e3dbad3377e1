# SPDX-License-Identifier: Apache-2.0
"""What a meter has counted as OpenMetrics text, made by prometheus-client.

To import that takes half a tenth of a second of processor time, which only a process pays that is asked for metrics.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest

from koala_adapter.host.metrics import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from koala_adapter.host.metrics import Meter, Metric, Series


CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def openmetrics(meter: Meter) -> bytes:
    """Return all that a meter has counted as OpenMetrics text, which ends with ``# EOF``."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(meter))
    write: Callable[[CollectorRegistry], bytes] = generate_latest
    return write(registry)


class _Collector:
    """Passes a meter's metrics to prometheus-client."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def describe(self) -> list[Family]:
        """Return nothing: metrics are read only when asked for."""
        return []

    def collect(self) -> Iterator[Family]:
        """Return all metric families."""
        for metric, series in sorted(self._meter.read().items(), key=lambda item: item[0].name):
            yield _family(metric, series)


def _family(metric: Metric, series: Series) -> Family:
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        names = [*(repr(bound) for bound in metric.bounds), "+Inf"]
        for labels, found in series.distributions.items():
            buckets = list(zip(names, accumulate(map(float, found.counts)), strict=True))
            histogram.add_metric(labels, buckets, found.total)
        return histogram
    kind: type[CounterMetricFamily | GaugeMetricFamily]
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in series.numbers.items():
        family.add_metric(labels, value)
    return family
