# SPDX-License-Identifier: Apache-2.0
"""Counts: cheap while nobody asks, within bounds whatever is counted."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.metrics.catalogue import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.metrics.catalogue import Metric

MOST_SERIES = 1000
"""Sets of label values that one metric may have; what comes beyond counts together."""
OTHER = "other"
"""Value of each label of what comes beyond."""


@dataclass(slots=True)
class Distribution:
    """How many values lie in each bucket of a histogram, and their sum."""

    counts: list[int]
    """By bucket, the infinite one last; not cumulative."""
    total: float = 0.0


@dataclass(slots=True)
class Series:
    """The values of one metric by those of its labels."""

    numbers: dict[tuple[str, ...], float] = field(default_factory=dict)
    """Of a gauge or a counter."""
    distributions: dict[tuple[str, ...], Distribution] = field(default_factory=dict)
    """Of a histogram."""


class Meter:
    """What one process counts. Gauges are read when somebody asks: see :meth:`read_with`."""

    def __init__(self) -> None:
        """Nothing is counted yet."""
        self._series: dict[Metric, Series] = {}
        self._sources: list[Callable[[Meter], None]] = []

    def read_with(self, source: Callable[[Meter], None]) -> None:
        """Have ``source`` set gauges whenever the metrics are read."""
        self._sources.append(source)

    def add(self, metric: Metric, *labels: str, amount: float = 1.0) -> None:
        """Count on. ``labels``: the values, in the order of the metric's labels."""
        numbers = self._of(metric, Kind.COUNTER).numbers
        key = _bounded(numbers, labels)
        numbers[key] = numbers.get(key, 0.0) + amount

    def set(self, metric: Metric, *labels: str, value: float) -> None:
        """Set a gauge, or a counter that somebody else counts."""
        numbers = self._of(metric, Kind.COUNTER if metric.kind is Kind.COUNTER else Kind.GAUGE).numbers
        numbers[_bounded(numbers, labels)] = value

    def observe(self, metric: Metric, *labels: str, seconds: float) -> None:
        """Count a time in its bucket; less than 0, as after a change of the clock, counts as 0."""
        distributions = self._of(metric, Kind.HISTOGRAM).distributions
        key = _bounded(distributions, labels)
        found = distributions.setdefault(key, Distribution([0] * (len(metric.bounds) + 1)))
        value = max(0.0, seconds)
        found.counts[bisect_left(metric.bounds, value)] += 1
        found.total += value

    def read(self) -> Mapping[Metric, Series]:
        """Return everything as it is now. Gauges that no source sets any more are gone."""
        for metric, series in self._series.items():
            if metric.kind is Kind.GAUGE:
                series.numbers.clear()
        for source in self._sources:
            source(self)
        return self._series

    def _of(self, metric: Metric, kind: Kind) -> Series:
        if metric.kind is not kind:
            raise TypeError(f"{metric.name} is a {metric.kind}, not a {kind}")
        found = self._series.get(metric)
        if found is None:
            found = self._series[metric] = Series()
        return found


def _bounded(known: Mapping[tuple[str, ...], object], labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels themselves, or those of all that is too much."""
    return labels if labels in known or len(known) < MOST_SERIES else (OTHER,) * len(labels)
