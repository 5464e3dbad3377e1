# SPDX-License-Identifier: Apache-2.0
"""Charts of jobs in clock time, as SVG: by cluster, by job, and processors in use. No I/O.

Colours are those of style.css, which a page has and a file of its own brings along. States are told apart by hatching
and marks, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.outcome import JobState
from koala_adapter.report.history import Occupation, awaited, by_cluster, lanes, used
from koala_adapter.report.markup import Markup, joined, tag
from koala_adapter.report.timeaxis import Period, duration, moment
from koala_adapter.report.values import JobReport, run_time, waiting_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import tzinfo

    Link: TypeAlias = Callable[[str], str]
    """Returns the address of the page of a job."""


# -- Looks of states -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Colour, mark and hatching of a job state."""

    kind: str
    """Class of style.css."""
    mark: str = ""
    """Character that tells it apart without colours."""
    hatched: bool = False


WAITING = Look(kind="waiting", mark="…")
GOES_ON = Look(kind="running", mark="↻")
"""Of a run from whose saved state the job goes on."""
_LOOKS = {
    JobState.LAUNCHING: Look(kind="running", mark="▸"),
    JobState.RUNNING: Look(kind="running", mark="▸"),
    JobState.COMPLETED: Look(kind="completed", mark="✓"),
    JobState.FAILED: Look(kind="failed", mark="✕", hatched=True),
    JobState.CANCELLED: Look(kind="cancelled", mark="⊘", hatched=True),
    JobState.LOST: Look(kind="lost", mark="?", hatched=True),
    JobState.NOT_PLACED: Look(kind="cancelled", mark="-", hatched=True),
    JobState.REFUSED: Look(kind="failed", mark="!", hatched=True),
}


def look(state: JobState) -> Look:
    """Return colour, mark and hatching of a state."""
    return _LOOKS.get(state, WAITING)


# -- Values and drawing of a chart ---------------------------------------------------------------------------

WIDTH = 960.0
HEAD = 20.0
"""Height of the title of a panel, and again of the labels of its time axis."""
GAP = 14.0
MARKS = 8
"""Labels of a time axis."""
LETTER = 6.4
"""Width of a character, about."""
LETTERS = 11.0
"""Height of a line of them."""
NARROWEST = 1.5
"""A bar that is narrower cannot be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a chart, from one time to another."""

    begin: float
    end: float
    row: float
    rows: float
    look: Look
    title: str
    """What is shown where one points at it."""
    label: str = ""
    """What is written on it if it has room."""
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Part of a chart with rows and a time axis of its own."""

    title: str
    period: Period
    rows: int
    height: float
    """Of its rows together."""
    bars: Sequence[Bar] = ()
    names: Sequence[tuple[str, str]] = ()
    """Name and address of each row."""
    area: Sequence[tuple[float, int]] = ()
    """From when on how many rows are filled."""
    line: Sequence[tuple[float, int]] = ()
    """From when on up to which row a line is drawn."""


def chart(name: str, alternative: str, panels: Sequence[Panel], *, gutter: float = 44.0) -> Markup:
    """Draw panels one below the other as SVG. ``name``: prefix of ids in it; ``gutter``: width for row names."""
    top, parts = 0.0, [_hatching(name)]
    for panel in panels:
        parts.append(_panel(name, panel, top, gutter))
        top += 2 * HEAD + panel.height + GAP
    return tag(
        "svg", tag("title", alternative), *parts,
        xmlns="http://www.w3.org/2000/svg", class_="chart", viewBox=f"0 0 {WIDTH:g} {top:g}",
        # What has links inside is no picture to those who hear it.
        role="group" if Markup("<a ") in "".join(parts) else "img",
        aria_label=alternative,
    )  # fmt: skip


def _hatching(name: str) -> Markup:
    line = tag("path", d="M0 0V8", class_="hatch")
    pattern = tag(
        "pattern", line, id=f"{name}-hatch", width=6, height=8, patternUnits="userSpaceOnUse",
        patternTransform="rotate(40)",
    )  # fmt: skip
    return tag("defs", pattern)


def _panel(name: str, panel: Panel, top: float, gutter: float) -> Markup:
    first, low = top + 2 * HEAD, top + 2 * HEAD + panel.height
    unit = panel.height / max(1, panel.rows)

    def across(at: float) -> float:
        return gutter + (WIDTH - gutter - 1) * period.share(at)

    period = panel.period
    parts = [tag("text", panel.title, x=0, y=top + 13, class_="heading")]
    written_to = 0.0
    for at, label in period.marks(MARKS):
        x, half = across(at), len(label) * LETTER / 2
        place = min(max(x, gutter + half), WIDTH - half)
        parts.append(tag("path", d=f"M{x:.1f} {first:g}V{low:g}", class_="grid"))
        if place - half > written_to:
            parts.append(tag("text", label, x=place, y=first - 5, text_anchor="middle"))
            written_to = place + half
    parts.append(tag("path", d=f"M{gutter:g} {first:g}V{low:g}H{WIDTH - 1:g}", class_="axis"))
    if not panel.names:
        parts.append(tag("text", panel.rows, x=gutter - 5, y=first + 10, text_anchor="end"))
        if panel.height >= 2 * LETTERS:
            parts.append(tag("text", 0, x=gutter - 5, y=low, text_anchor="end"))
    for row, (text, href) in enumerate(panel.names):
        written = tag("text", text, x=0, y=first + (row + 0.5) * unit + 4)
        parts.append(tag("a", written, href=href) if href else written)
    if panel.area:
        parts.append(tag("path", d=f"{_steps(panel.area, across, low, unit, closed=True)}Z", class_="area"))
    if any(level for _, level in panel.line):
        parts.append(tag("path", d=_steps(panel.line, across, low, unit), class_="line"))
    for one in panel.bars:
        # The first job is at the top of its chart, the first processor at the bottom.
        y = first + one.row * unit if panel.names else low - (one.row + one.rows) * unit
        parts.append(_bar(name, one, across, y, one.rows * unit))
    return tag("g", *parts)


def _steps(
    levels: Sequence[tuple[float, int]],
    across: Callable[[float], float],
    low: float,
    unit: float,
    *,
    closed: bool = False,
) -> str:
    begin = f"M{across(levels[0][0]):.1f} {low:.1f}"
    steps = "".join(f"H{across(at):.1f}V{low - level * unit:.1f}" for at, level in levels)
    return f"{begin}{steps}{f'V{low:.1f}' if closed else ''}"


def _bar(name: str, bar: Bar, across: Callable[[float], float], y: float, height: float) -> Markup:
    x = across(bar.begin)
    width = max(NARROWEST, across(bar.end) - x)
    place = {"x": x, "y": y, "width": width, "height": height}
    parts = [None if bar.href else tag("title", bar.title), tag("rect", **place)]
    if bar.look.hatched:
        parts.append(tag("rect", **place, fill=f"url(#{name}-hatch)", class_="over"))
    fits = [text for text in (bar.label, bar.look.mark) if text and len(text) * LETTER * 1.15 + 4 < width]
    if fits and height >= LETTERS:
        parts.append(tag("text", fits[0], x=x + width / 2, y=y + height / 2 + 4, text_anchor="middle"))
    drawn = tag("g", *parts, class_=f"bar {bar.look.kind}")
    return tag("a", tag("title", bar.title), drawn, href=bar.href) if bar.href else drawn


# -- Charts of jobs ------------------------------------------------------------------------------------------

ROW = 15.0
"""Height of a row where there are few."""
HIGHEST = 300.0
"""Height of the rows of a cluster, at most."""
TOGETHER = 40
"""Jobs below one time axis."""
SIDE = 190.0
"""Space for the names of jobs."""


def period_of(found: Iterable[Occupation], reports: Iterable[JobReport], now: float, zone: tzinfo | None) -> Period:
    """Return the period that a chart of these jobs covers."""
    times = [at for one in found for at in (one.asked_at, one.ended_at)]
    times += [at for one in reports for at in (one.submitted_at, one.finished_at or one.reported_at)]
    begin, end = min(times, default=now), max(times, default=now)
    return Period(begin=begin, end=max(end, begin + 1.0), zone=zone)


def cluster_chart(found: Sequence[Occupation], reports: Iterable[JobReport], period: Period, href: Link) -> Markup:
    """Draw which job used which processors of each cluster. ``href``: address of job pages; empty: no links."""
    known = {one.id: one for one in reports}
    panels = []
    for name, some in by_cluster(found).items():
        placed = list(lanes(some))
        rows = max((first + count for _, first, count in placed), default=0)
        if rows:
            bars = [_of_cluster(lane, known[lane[0].job_id], period, href) for lane in placed]
            height = min(HIGHEST, rows * ROW)
            panels.append(
                Panel(title=f"{name}, at most {rows} in use", period=period, rows=rows, height=height, bars=bars)
            )
    return chart("by-cluster", "Processors of each cluster by the job that used them", panels)


def _of_cluster(lane: tuple[Occupation, int, int], report: JobReport, period: Period, href: Link) -> Bar:
    one, first, count = lane
    going = report.finished_at is None or one.ended_at < report.finished_at
    return Bar(
        begin=one.begun_at, end=one.ended_at, row=first, rows=count,
        # Processors that a job gave back before its end had no part in that.
        look=look(JobState.RUNNING if report.finished_at is None else JobState.COMPLETED if going else report.state),
        title=f"job {job_line(report, period.zone)}; {one.component} on {one.cluster}: {one.processors} from "
        f"{moment(one.begun_at, period.zone)} to {moment(one.ended_at, period.zone)}",
        # Where there is no other job to go to, bars are those of components.
        label=one.job_id if href(report.id) else one.component, href=href(report.id),
    )  # fmt: skip


def job_chart(reports: Sequence[JobReport], period: Period, href: Link) -> Markup:
    """Draw when each job waited and ran, one row for each."""
    panels = []
    for begin in range(0, len(reports), TOGETHER):
        some = reports[begin : begin + TOGETHER]
        own = period_of((), some, period.end, period.zone)
        own = replace(own, begin=max(own.begin, period.begin))
        between = f"job {some[0].id}" + (f" to {some[-1].id}" if len(some) > 1 else "")
        panels.append(
            Panel(
                title=between,
                period=own,
                rows=len(some),
                height=len(some) * ROW,
                names=[(shortened(f"{one.id} {one.name}"), href(one.id)) for one in some],
                bars=[bar for row, one in enumerate(some) for bar in _of_job(one, row, own)],
            )
        )
    return chart("by-job", "When each job waited and ran", panels, gutter=SIDE)


def _of_job(report: JobReport, row: int, period: Period) -> Iterator[Bar]:
    title, asked = job_line(report, period.zone), report.submitted_at
    until = report.finished_at or report.reported_at
    runs = [
        (one.launched_at, one.ended_at, GOES_ON if one.goes_on else look(one.outcome.state), one.end)
        for one in report.attempts
    ]
    if report.launched_at is not None:
        runs.append((report.launched_at, until, look(report.state), report.state.value))
    for begin, end, shown, word in runs:
        if asked < begin:
            yield Bar(begin=asked, end=begin, row=row + 0.3, rows=0.4, look=WAITING, title=title)
        label = f"{shown.mark} {word}"
        yield Bar(begin=begin, end=end, row=row + 0.08, rows=0.84, look=shown, title=title, label=label)
        asked = end
    if report.launched_at is None and asked < until:
        yield Bar(begin=asked, end=until, row=row + 0.3, rows=0.4, look=WAITING, title=title)
    if report.launched_at is None and report.state.final:
        # It did not run again: a mark where it ended.
        width = (period.end - period.begin) * 14 / WIDTH
        begin = min(until, period.end - width)
        yield Bar(begin=begin, end=begin + width, row=row + 0.08, rows=0.84, look=look(report.state), title=title)


def usage_chart(found: Sequence[Occupation], period: Period, name: str = "in-use") -> Markup:
    """Draw used and awaited processors over time, one panel for each cluster."""
    panels = []
    for cluster, some in by_cluster(found).items():
        area, line = used(some), awaited(some)
        most = max(level for _, level in area)
        waits = max(level for _, level in line)
        title = f"{cluster}: at most {most} used" + (f", {waits} waiting (line)" if waits else "")
        panels.append(Panel(title=title, period=period, rows=max(1, most, waits), height=64.0, area=area, line=line))
    return chart(name, "Processors in use on each cluster over time", panels)


def job_line(report: JobReport, zone: tzinfo | None) -> str:
    """Return a job as one line of plain text."""
    ran = run_time(report)
    lasted = "" if ran is None else f", ran {duration(ran)}"
    exited = "" if report.outcome is None else f", exit {report.outcome.exit_code}"
    times = f"submitted {moment(report.submitted_at, zone)}, waited {duration(waiting_time(report))}{lasted}{exited}"
    return f"{report.id} {shortened(report.name, 60)}: {report.state.value}; {times}"


def shortened(text: str, most: int = 26) -> str:
    """Cut a text at a length, with an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def legend(name: str) -> Markup:
    """Return the meaning of the colours, hatching and marks of a chart."""
    words = {"waiting": WAITING} | {
        state.value: look(state)
        for state in (JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.LOST)
    }
    words["saved its state, goes on"] = GOES_ON
    items = []
    for word, one in words.items():
        place = {"x": 0.0, "y": 0.0, "width": 26.0, "height": 14.0}
        over = tag("rect", **place, fill=f"url(#{name}-legend-hatch)", class_="over") if one.hatched else None
        text = tag("text", one.mark, x=13, y=11, text_anchor="middle")
        shape = tag("g", tag("rect", **place), over, text, class_=f"bar {one.kind}")
        hatching = _hatching(f"{name}-legend") if one is WAITING else None
        sample = tag("svg", hatching, shape, class_="chart sample", viewBox="0 0 26 14", aria_hidden="true")
        items.append(tag("li", sample, " ", word))
    return tag("ul", joined(*items), class_="legend")
