# SPDX-License-Identifier: Apache-2.0
"""The page of ``koala report``: when each placeholder waited and was used, from the reports of jobs. No I/O.

First the occupation of processors is reconstructed, then it is drawn as figures and tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Result, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koala_adapter.report.values import JobReport


# -- Occupation: when each placeholder waited and was used ---------------------------------------------------
# A report has the time at which all processors of a component were held, how long that took, and the latest changes
# of its size. So placeholders handed back before that are unknown, and before the first known change a component is
# taken to have had one size.


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
        """Seconds that the job waited."""
        return self.begun_at - self.asked_at

    @property
    def used(self) -> float:
        """Seconds that the job ran."""
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


# -- Figures and tables --------------------------------------------------------------------------------------

HOUR = 3600.0
NOTE = (
    "Made of the reports of jobs: placeholders that were handed back before a job started are not in it, and of a "
    "malleable job's changes of size the latest twenty."
)
UNITS = ((3 * 86_400.0, 86_400.0, "days"), (3 * HOUR, HOUR, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""Longer than, seconds of a unit, its name."""
MOST_ROWS = 400
"""Placeholders beside each other that can be told apart in a picture; of more, those of a component are one bar."""
MOST_NAMED = 7
"""Jobs with a colour of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Period of time that a figure shows."""

    begin: float
    """Seconds since the epoch."""
    end: float
    zone: tzinfo = UTC

    @property
    def unit(self) -> tuple[float, str]:
        """Seconds of a unit in which its length is a number that one can read, and the unit's name."""
        length = self.end - self.begin
        return next((seconds, name) for least, seconds, name in UNITS if length >= least)

    def place(self, at: float) -> float:
        """Return the position of a time on the axis."""
        return (at - self.begin) / self.unit[0]

    @property
    def label(self) -> str:
        """Label of the axis."""
        return f"{self.unit[1]} since {datetime.fromtimestamp(self.begin, self.zone):%Y-%m-%d %H:%M:%S}"


def history(reports: Sequence[JobReport], *, since: float | None, now: float, zone: tzinfo = UTC) -> Result:
    """Return pictures and tables of jobs. ``since``: what is over before that is left out; None: nothing is."""
    found = occupations(reports)
    if since is not None:
        found = within(found, since)
    begin = min((one.asked_at for one in found), default=now)
    end = max((one.ended_at for one in found), default=now)
    period = Period(begin=begin, end=max(end, begin + 1.0), zone=zone)
    names = sorted({one.cluster for one in found})
    by_cluster = {name: [one for one in found if one.cluster == name] for name in names}
    concerned = {one.job_id for one in found}
    shown = [report for report in reports if since is None or report.id in concerned]
    figures = [_gantt(by_cluster, period), _in_use(by_cluster, period)] if found else []
    return Result(
        findings=(),
        figures=figures,
        tables=[_clusters(by_cluster), _jobs(shown, by_cluster)],
        notes=[NOTE],
    )


# ---- figures --------------------------------------------------------------------------------------------------------


def _gantt(by_cluster: Mapping[str, Sequence[Occupation]], period: Period) -> Figure:
    rows = {name: lanes(found) for name, found in by_cluster.items()}
    if sum(max(one, default=0) + 1 for one in rows.values()) > MOST_ROWS:
        by_cluster = {name: _by_component(found) for name, found in by_cluster.items()}
        rows = {name: lanes(found) for name, found in by_cluster.items()}
    names: list[str] = []
    placed: list[tuple[Occupation, int]] = []
    for name, found in by_cluster.items():
        first = len(names)
        placed += [(one, first + row) for one, row in zip(found, rows[name], strict=True)]
        names += [name, *[""] * max(rows[name], default=0)]
    return Figure(
        name="placeholders",
        title="Placeholders by cluster",
        x_label=period.label,
        y_label="one row for each placeholder at a time",
        kind="timeline",
        categories=names,
        series=list(_bars(placed, period)),
        x_range=(0.0, period.place(period.end)),
        caption="Each bar is a placeholder: first the time that it waited, then the time that its job used it.",
    )


def _by_component(found: Sequence[Occupation]) -> list[Occupation]:
    """Return one for all placeholders of a component that have the same times."""
    return list(dict.fromkeys(found))


def _bars(placed: Sequence[tuple[Occupation, int]], period: Period) -> Iterator[Series]:
    used: dict[str, list[tuple[Occupation, int]]] = {}
    jobs = list(dict.fromkeys(one.job_id for one, _ in placed))
    for one, row in placed:
        own = len(jobs) <= MOST_NAMED or jobs.index(one.job_id) < MOST_NAMED - 1
        if one.used > 0:
            used.setdefault(f"job {one.job_id}" if own else "other jobs", []).append((one, row))
    waiting = [(one.asked_at, one.begun_at, row) for one, row in placed if one.waited > 0]
    if waiting:
        yield _series("waits", waiting, period)
    for label, bars in used.items():
        yield _series(label, [(one.begun_at, one.ended_at, row) for one, row in bars], period)


def _series(label: str, bars: Sequence[tuple[float, float, int]], period: Period) -> Series:
    return Series(
        label=label,
        x=[period.place(begin) for begin, _, _ in bars],
        high=[period.place(end) for _, end, _ in bars],
        y=[float(row) for _, _, row in bars],
    )


def _in_use(by_cluster: Mapping[str, Sequence[Occupation]], period: Period) -> Figure:
    return Figure(
        name="in-use",
        title="Processors that jobs use",
        x_label=period.label,
        y_label="processors",
        kind="step",
        series=[_steps(name, found, period) for name, found in by_cluster.items()],
        x_range=(0.0, period.place(period.end)),
        caption="Of koala's jobs; what waits or is handed back is not in it.",
    )


def _steps(name: str, found: Sequence[Occupation], period: Period) -> Series:
    changes: dict[float, int] = {period.begin: 0, period.end: 0}
    for one in found:
        changes[one.begun_at] = changes.get(one.begun_at, 0) + 1
        changes[one.ended_at] = changes.get(one.ended_at, 0) - 1
    times, level, levels = sorted(changes), 0, []
    for at in times:
        level += changes[at]
        levels.append(float(level))
    return Series(label=name, x=[period.place(at) for at in times], y=levels)


# ---- tables ---------------------------------------------------------------------------------------------------------


def _clusters(by_cluster: Mapping[str, Sequence[Occupation]]) -> Table:
    return Table(
        name="clusters",
        title="Clusters",
        columns=("cluster", "placeholders", "mean wait (s)", "longest wait (s)", "used (processor hours)"),
        rows=[
            (
                name,
                len(found),
                sum(one.waited for one in found) / len(found),
                max(one.waited for one in found),
                sum(one.used for one in found) / HOUR,
            )
            for name, found in by_cluster.items()
        ],
    )


def _jobs(reports: Sequence[JobReport], by_cluster: Mapping[str, Sequence[Occupation]]) -> Table:
    every = [one for found in by_cluster.values() for one in found]
    used = {report.id: sum(one.used for one in every if one.job_id == report.id) / HOUR for report in reports}
    return Table(
        name="jobs",
        title="Jobs",
        columns=("job", "name", "state", "processors", "waited (s)", "ran (s)", "used (processor hours)", "exit"),
        rows=[
            (
                report.id,
                report.name,
                report.state.value,
                sum(one.processors for one in report.components),
                (report.launched_at or report.finished_at or report.reported_at) - report.submitted_at,
                None if report.launched_at is None else (report.finished_at or report.reported_at) - report.launched_at,
                used[report.id],
                None if report.outcome is None else report.outcome.exit_code,
            )
            for report in reports
        ],
    )
