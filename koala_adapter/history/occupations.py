# SPDX-License-Identifier: Apache-2.0
"""When each placeholder waited and was used, worked out from the reports of jobs. Pure.

A report tells of a component when its processors were all held, how long that took, and the latest changes of its size;
so placeholders that were handed back before are not seen, and before the first change that is known a job is taken to
have had one size.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from koala_adapter.api.reports import JobReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupation:
    """One placeholder; times in seconds since the epoch."""

    job_id: str
    component: str
    cluster: str
    asked_at: float
    """From when on it waited in the queue."""
    begun_at: float
    """From when on the job used it."""
    ended_at: float

    @property
    def waited(self) -> float:
        """Seconds."""
        return self.begun_at - self.asked_at

    @property
    def used(self) -> float:
        """Seconds."""
        return self.ended_at - self.begun_at


def occupations(reports: Iterable[JobReport]) -> list[Occupation]:
    """Return the placeholders of all jobs that were launched or wait, in the order in which they were asked for."""
    found = [one for report in reports for one in _of_job(report)]
    return sorted(found, key=lambda one: (one.asked_at, one.job_id, one.component, one.cluster))


def within(found: Iterable[Occupation], since: float) -> list[Occupation]:
    """Return what is not over before a time, cut off there."""
    return [
        Occupation(
            job_id=one.job_id,
            component=one.component,
            cluster=one.cluster,
            asked_at=max(since, one.asked_at),
            begun_at=max(since, one.begun_at),
            ended_at=one.ended_at,
        )
        for one in found
        if one.ended_at > since
    ]


def lanes(found: Sequence[Occupation]) -> list[int]:
    """Return for each placeholder of one cluster a row in which it overlaps with no other: the lowest that is free.

    ``found`` is in the order of ``asked_at``.
    """
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    rows, opened = [], 0
    for one in found:
        while busy and busy[0][0] <= one.asked_at:
            heappush(free, heappop(busy)[1])
        if free:
            row = heappop(free)
        else:
            row, opened = opened, opened + 1
        heappush(busy, (one.ended_at, row))
        rows.append(row)
    return rows


def _of_job(report: JobReport) -> Iterator[Occupation]:
    until = report.finished_at or report.reported_at
    launched = report.launched_at
    now = ((one.name, one.cluster) for one in report.components)
    earlier = ((one.component, one.cluster) for one in report.size_changes)
    for name, cluster in dict.fromkeys((*now, *earlier)):
        if cluster is None:
            continue
        parts = [one for one in report.components if (one.name, one.cluster) == (name, cluster)]
        waited = max((one.waited or 0.0 for one in parts), default=0.0)
        if launched is None:
            for _ in range(sum(one.held + one.queued for one in parts)):
                yield Occupation(
                    job_id=report.id,
                    component=name,
                    cluster=cluster,
                    asked_at=min(until, until - waited),
                    begun_at=until,
                    ended_at=until,
                )
            continue
        steps = _sizes(report, name, cluster, report.size_at_last(name, cluster))
        for begin, end, grown_after in _spans(steps, until):
            asked = max(report.submitted_at, launched - waited) if begin == launched else begin - grown_after
            yield Occupation(
                job_id=report.id,
                component=name,
                cluster=cluster,
                asked_at=min(asked, begin),
                begun_at=begin,
                ended_at=max(begin, end),
            )


def _sizes(report: JobReport, component: str, cluster: str, latest: int) -> list[tuple[float, int, float]]:
    """Return from when on a component had how many processors on a cluster, and for how long it had waited for them."""
    launched = report.launched_at or report.submitted_at
    steps, size = [], latest
    for change in reversed(report.size_changes):
        if (change.component, change.cluster) == (component, cluster):
            steps.append((max(launched, change.at), size, change.waited))
            size = change.before
    return [(launched, size, 0.0), *reversed(steps)]


def _spans(steps: Sequence[tuple[float, int, float]], until: float) -> Iterator[tuple[float, float, float]]:
    """Return begin, end and waiting time of each processor: who came last goes first."""
    begun: list[tuple[float, float]] = []
    for at, size, waited in steps:
        while len(begun) > size:
            begin, had_waited = begun.pop()
            yield begin, at, had_waited
        begun += [(at, waited)] * (size - len(begun))
    yield from ((begin, until, had_waited) for begin, had_waited in begun)
