# SPDX-License-Identifier: Apache-2.0
"""When jobs waited for processors and used them, from their reports: by cluster, in rows, and summed up. No I/O."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING

from koala_adapter.report.page import Table
from koala_adapter.report.timeaxis import HOUR, moment
from koala_adapter.report.values import JobReport, run_time, waiting_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import tzinfo


# -- Occupation: when processors were waited for and used ----------------------------------------------------
# A report has the time at which all processors of a component were held, how long that took, and the latest changes
# of its size. So placeholders handed back before that are unknown, and before the first known change a component is
# taken to have had one size.

NOTE = (
    "Made of the reports of jobs: placeholders that were handed back before a job started are not in it, nor are those "
    "of earlier attempts of a job that was run again; of a malleable job's changes of size there are the latest twenty."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupation:
    """Placeholders of one component with the same times; these are in seconds since the epoch."""

    job_id: str
    component: str
    cluster: str
    processors: int
    """How many placeholders."""
    asked_at: float
    """From when on they waited in the queue."""
    begun_at: float
    """From when on the job used them."""
    ended_at: float

    @property
    def waited(self) -> float:
        """Seconds that the job waited."""
        return self.begun_at - self.asked_at

    @property
    def used(self) -> float:
        """Processor seconds that the job used."""
        return (self.ended_at - self.begun_at) * self.processors


def occupations(reports: Iterable[JobReport], since: float | None = None) -> list[Occupation]:
    """Return the placeholders of all jobs that waited or were launched, in the order of their submission.

    ``since``: what is over before that time is left out, and the rest cut off there; None: nothing is.
    """
    found = [one for report in reports for one in _of_job(report)]
    if since is not None:
        found = [
            replace(one, asked_at=max(since, one.asked_at), begun_at=max(since, one.begun_at))
            for one in found
            if one.ended_at > since
        ]
    return sorted(found, key=lambda one: (one.asked_at, one.job_id, one.component, one.cluster))


def by_cluster(found: Iterable[Occupation]) -> dict[str, list[Occupation]]:
    """Return the placeholders of each cluster, by its name."""
    sorts: dict[str, list[Occupation]] = {}
    for one in found:
        sorts.setdefault(one.cluster, []).append(one)
    return dict(sorted(sorts.items()))


def lanes(found: Iterable[Occupation]) -> Iterator[tuple[Occupation, int, int]]:
    """Yield the rows of a chart in which the placeholders of a cluster are drawn without overlap.

    Each item has some of them, their first row and the number of rows; they take the lowest rows that are free.
    """
    free: list[tuple[int, int]] = [(0, 1 << 62)]
    busy: list[tuple[float, int, int]] = []
    for one in sorted((one for one in found if one.ended_at > one.begun_at), key=lambda one: one.begun_at):
        while busy and busy[0][0] <= one.begun_at:
            _, first, end = heappop(busy)
            _give_back(free, first, end)
        left = one.processors
        while left:
            first, end = free.pop(0)
            taken = min(left, end - first)
            if first + taken < end:
                free.insert(0, (first + taken, end))
            heappush(busy, (one.ended_at, first, first + taken))
            yield one, first, taken
            left -= taken


def _give_back(free: list[tuple[int, int]], first: int, end: int) -> None:
    """Add rows to a sorted list of disjoint ranges of free rows."""
    place = bisect(free, (first, end))
    if place < len(free) and free[place][0] == end:
        end = free.pop(place)[1]
    if place and free[place - 1][1] == first:
        place -= 1
        first = free.pop(place)[0]
    free.insert(place, (first, end))


def levels(spans: Iterable[tuple[float, float, int]]) -> list[tuple[float, int]]:
    """Return (time, number) at each change, from spans of (begin, end, number)."""
    changes: Counter[float] = Counter()
    for begin, end, count in spans:
        changes[begin] += count
        changes[end] -= count
    times = sorted(changes)
    return list(zip(times, accumulate(changes[at] for at in times), strict=True))


def used(found: Iterable[Occupation]) -> list[tuple[float, int]]:
    """Return used processors over time, as (time, processors) at each change."""
    return levels((one.begun_at, one.ended_at, one.processors) for one in found)


def awaited(found: Iterable[Occupation]) -> list[tuple[float, int]]:
    """Return waiting placeholders over time, as (time, number) at each change."""
    return levels((one.asked_at, one.begun_at, one.processors) for one in found)


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
            if count := sum(one.held + one.queued for one in parts):
                yield Occupation(
                    job_id=report.id,
                    component=name,
                    cluster=cluster,
                    processors=count,
                    asked_at=min(until, until - waited),
                    begun_at=until,
                    ended_at=until,
                )
            continue
        steps = _sizes(report, name, cluster, report.size_at_last(name, cluster))
        for (begin, end, grown_after), count in Counter(_spans(steps, until)).items():
            asked = max(report.submitted_at, launched - waited) if begin == launched else begin - grown_after
            yield Occupation(
                job_id=report.id,
                component=name,
                cluster=cluster,
                processors=count,
                asked_at=min(asked, begin),
                begun_at=begin,
                ended_at=max(begin, end),
            )


def _sizes(report: JobReport, component: str, cluster: str, latest: int) -> list[tuple[float, int, float]]:
    """Return each size of a component on a cluster with its time, and how long added processors were waited for."""
    launched = report.launched_at or report.submitted_at
    steps, size = [], latest
    for change in reversed(report.size_changes):
        if (change.component, change.cluster) == (component, cluster):
            steps.append((max(launched, change.at), size, change.waited))
            size = change.before
    return [(launched, size, 0.0), *reversed(steps)]


def _spans(steps: Sequence[tuple[float, int, float]], until: float) -> Iterator[tuple[float, float, float]]:
    """Return begin, end and waiting time of each processor; the last that was added goes first."""
    begun: list[tuple[float, float]] = []
    for at, size, waited in steps:
        while len(begun) > size:
            begin, had_waited = begun.pop()
            yield begin, at, had_waited
        begun += [(at, waited)] * (size - len(begun))
    yield from ((begin, until, had_waited) for begin, had_waited in begun)


# -- Tables --------------------------------------------------------------------------------------------------


def cluster_table(found: Sequence[Occupation]) -> Table:
    """Return the table of used processor time by cluster."""
    return Table(
        name="clusters",
        title="Clusters",
        columns=("cluster", "placeholders", "mean wait (s)", "longest wait (s)", "used (processor hours)"),
        rows=[
            (
                name,
                number := sum(one.processors for one in some),
                sum(one.waited * one.processors for one in some) / number,
                max(one.waited for one in some),
                sum(one.used for one in some) / HOUR,
            )
            for name, some in by_cluster(found).items()
        ],
    )


def job_table(reports: Sequence[JobReport], found: Sequence[Occupation], zone: tzinfo | None) -> Table:
    """Return the table of jobs: processors, times, outcome."""
    hours: Counter[str] = Counter()
    for one in found:
        hours[one.job_id] += one.used / HOUR  # type: ignore[assignment] # sums, which need not be whole
    return Table(
        name="jobs",
        title="Jobs",
        columns=(
            *("job", "name", "state", "processors", "waited (s)", "ran (s)", "used (processor hours)"),
            *("processor time (%)", "memory (MiB)", "exit", "submitted", "launched", "ended", "reason"),
        ),
        rows=[
            (
                report.id,
                report.name,
                report.state.value,
                sum(one.processors for one in report.components),
                waiting_time(report),
                run_time(report),
                hours[report.id],
                *_usage(report),
                None if report.outcome is None else report.outcome.exit_code,
                *(moment(at, zone) for at in (report.submitted_at, report.launched_at, report.finished_at)),
                reason(report),
            )
            for report in reports
        ],
    )


def reason(report: JobReport) -> str:
    """Return why a job failed or is unfinished; empty when it ended well."""
    return report.explanation if report.outcome is None else report.outcome.detail


def placeholder_table(found: Sequence[Occupation], zone: tzinfo | None) -> Table:
    """Return the table of placeholders: when submitted, used and released."""
    return Table(
        name="placeholders",
        title="Placeholders",
        columns=("cluster", "job", "component", "placeholders", "asked", "used from", "until"),
        rows=[
            (
                *(one.cluster, one.job_id, one.component, one.processors),
                *(moment(at, zone) for at in (one.asked_at, one.begun_at, one.ended_at)),
            )
            for one in found
        ],
    )


def usage_table(found: Sequence[Occupation], zone: tzinfo | None) -> Table:
    """Return the table of used processors of each cluster over time."""
    return Table(
        name="in-use",
        title="Processors in use",
        columns=("cluster", "from", "processors"),
        rows=[(name, moment(at, zone), level) for name, some in by_cluster(found).items() for at, level in used(some)],
    )


def _usage(report: JobReport) -> tuple[float | None, float | None]:
    """Return the processor time of a job in per cent of the time held, and the largest memory of a rank in MiB."""
    usage = report.usage
    if usage is None or not usage.measured:
        return None, None
    return 100 * usage.share, usage.memory_bytes / 2**20
