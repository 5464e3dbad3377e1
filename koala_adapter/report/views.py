# SPDX-License-Identifier: Apache-2.0
"""Parts of pages on clusters and jobs as HTML, for ``koala web`` and for the files of ``koala report``.

These files are one page with charts and tables of jobs, the charts as SVG, and data (CSV, JSON).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

from koala_adapter.report.charts import cluster_chart, job_chart, legend, look, period_of, usage_chart
from koala_adapter.report.history import (
    NOTE,
    by_cluster,
    cluster_table,
    job_table,
    occupations,
    placeholder_table,
    reason,
    usage_table,
)
from koala_adapter.report.markup import Content, Markup, document, isolated, joined, scrollable, table, tag
from koala_adapter.report.page import Heading, Result, csv_text, result_json
from koala_adapter.report.timeaxis import Period, duration, moment, zone_name
from koala_adapter.report.values import ComponentReport, JobReport, counted, run_time, waiting_time
from koala_adapter.slots import ranks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo
    from pathlib import Path

    from koala_adapter.outcome import JobState
    from koala_adapter.report.charts import Link
    from koala_adapter.report.history import Occupation
    from koala_adapter.report.sitevalues import ClusterReport, NegotiationReport


# -- Documents, tables and figures ---------------------------------------------------------------------------


def style() -> str:
    """Return the style sheet of all pages."""
    return resources.files("koala_adapter.report").joinpath("style.css").read_text(encoding="utf-8")


def figure(drawing: Markup, name: str, caption: Content) -> Markup:
    """Return a chart with its caption."""
    return tag("figure", scrollable(drawing, name), tag("figcaption", caption))


def state_word(state: JobState) -> Markup:
    """Return a state in its colour, with its mark."""
    one = look(state)
    return tag("span", f"{one.mark} {state.value}", class_=f"state {one.kind}")


def _time(at: float | None, zone: tzinfo | None) -> Markup:
    return tag("time", moment(at, zone))


# -- Clusters ------------------------------------------------------------------------------------------------


def cluster_cards(clusters: Sequence[ClusterReport], zone: tzinfo | None) -> Markup:
    """Return a card for each cluster: idle processors, ours, and those of others."""
    return tag("ul", *(_card(one, zone) for one in clusters), class_="cards")


def _card(one: ClusterReport, zone: tzinfo | None) -> Markup:
    parts: list[Content] = [tag("h3", one.name)]
    if one.processors is not None:
        idle, others = one.idle or 0, one.others or 0
        ours = max(0, one.processors - idle - others - one.down)
        shares = {"ours": ours, "others": others, "idle": idle, "down": one.down}
        parts.append(_shares(shares, one.processors))
        words = [f"{count} {name}" for name, count in shares.items() if count or name != "down"]
        parts.append(tag("p", f"{', '.join(words)} of {counted(one.processors, 'processor')}"))
    if one.gpus:
        parts.append(tag("p", f"{one.gpus_idle} of {counted(one.gpus, 'GPU')} idle"))
    if one.closed:
        parts.append(tag("p", "Nothing is placed here: ", isolated(one.closed), class_="notice"))
    placeholders = f"{counted(one.placeholders, 'placeholder')}, {one.placeholders_queued} of them queued; " if (
        one.placeholders
    ) else ""  # fmt: skip
    waiting = f"others wait for {one.others_waiting}; " if one.others_waiting else ""
    read = f"{one.lrm or one.plugin}, seen {moment(one.polled_at, zone)}"
    parts.append(tag("p", f"{placeholders}{waiting}{read}", class_="faint"))
    return tag("li", *parts)


def _shares(shares: dict[str, int], whole: int) -> Markup:
    x, parts = 0.0, []
    for name, count in shares.items():
        width = 200.0 * count / max(1, whole)
        parts.append(tag("rect", x=x, y=0, width=width, height=14, class_=f"share-{name}"))
        x += width
    parts.append(tag("rect", x=0.5, y=0.5, width=199, height=13, class_="frame"))
    return tag(
        "svg", *parts, class_="chart shares", viewBox="0 0 200 14", preserveAspectRatio="none", aria_hidden="true"
    )


def cluster_use(found: Sequence[Occupation]) -> Markup:
    """Return the table of processor time that jobs used on each cluster."""
    columns = (
        ("cluster", ""), ("placeholders", "number"), ("mean wait", "number"), ("longest wait", "number"),
        ("processor time", "number"),
    )  # fmt: skip
    rows = []
    for name, some in by_cluster(found).items():
        number = sum(one.processors for one in some)
        cells = (
            f"{number:,}",
            duration(sum(one.waited * one.processors for one in some) / number),
            duration(max(one.waited for one in some)),
            duration(sum(one.used for one in some)),
        )
        rows.append(tag("tr", tag("td", name), *(tag("td", cell, class_="number") for cell in cells)))
    return table(columns, rows, "Clusters")


# -- Jobs ----------------------------------------------------------------------------------------------------


def jobs_table(
    reports: Sequence[JobReport], href: Link, zone: tzinfo | None, *, name: str = "Jobs", anchors: bool = False
) -> Markup:
    """Return a table with one row for each job. ``name``: of the table; ``anchors``: rows have the id ``job-ID``."""
    columns = (
        ("job", "number"), ("name", ""), ("state", ""), ("processors", "number minor"), ("clusters", "minor"),
        ("submitted", "minor"), ("waited", "number minor"), ("ran", "number"), ("exit", "number minor"),
        ("why", "minor"),
    )  # fmt: skip
    rows = []
    for one in reports:
        placed = sorted({part.cluster for part in one.components if part.cluster})
        address = href(one.id)
        rows.append(
            tag(
                "tr",
                tag("td", tag("a", one.id, href=address) if address and not anchors else one.id, class_="number"),
                tag("td", isolated(one.name), class_="name", title=one.name),
                tag("td", state_word(one.state), progress(one)),
                tag("td", sum(part.processors * part.slot.threads for part in one.components), class_="number minor"),
                tag("td", ", ".join(placed) or "-", class_="minor"),
                tag("td", _time(one.submitted_at, zone), class_="when minor"),
                tag("td", duration(waiting_time(one)), class_="number minor"),
                tag("td", duration(run_time(one)), class_="number"),
                tag("td", "-" if one.outcome is None else one.outcome.exit_code, class_="number minor"),
                tag("td", isolated(reason(one)), class_="why minor", title=reason(one)),
                id=f"job-{one.id}" if anchors else None,
            )
        )
    return table(columns, rows, name)


def progress(report: JobReport) -> Content:
    """Return the progress of a sweep; empty for other jobs."""
    sweep = report.sweep
    return None if sweep is None else f" {sweep.done} of {sweep.total}, {sweep.failed} failed"


def totals(reports: Sequence[JobReport]) -> str:
    """Return the number of jobs in each state."""
    found = Counter(one.state.value for one in reports)
    return f"{counted(len(reports), 'job')}: {', '.join(f'{number} {state}' for state, number in found.most_common())}"


def job_view(report: JobReport, negotiations: Sequence[NegotiationReport], zone: tzinfo | None) -> Iterator[Markup]:
    """Yield the sections of a job's page, without its output; each has an id."""
    ended = "" if report.outcome is None else f", exit code {report.outcome.exit_code}"
    facts: tuple[tuple[str, Content], ...] = (
        ("state", joined(state_word(report.state), progress(report), ended)),
        ("user", isolated(report.user)),
        ("kind", report.kind),
        ("waited", duration(waiting_time(report))),
        ("ran", f"{duration(run_time(report))}, of at most {duration(report.walltime)}"),
        *_placing(report),
        *_usage(report),
    )
    terms = [part for name, value in facts for part in (tag("dt", name), tag("dd", value))]
    why = tag("p", isolated(report.explanation)) if report.explanation else None
    yield tag("section", tag("h2", "Now" if report.outcome is None else "Outcome"), tag("dl", *terms), why, id="facts")
    ran_and_ended = report.launched_at is not None and report.finished_at is not None
    yield tag("section", tag("h2", "Timeline"), timeline(report, negotiations, zone), id="timeline")
    yield tag("section", tag("h2", "Slots by node"), _components(report.components, ended=ran_and_ended), id="slots")
    found = occupations([report])
    if any(one.used for one in found):
        period = period_of(found, [], report.reported_at, zone)
        drawing = joined(
            figure(
                usage_chart(found, period, "sizes"), "Size over time",
                "Processors of the job on each cluster; the line is what it waited for.",
            ),
            figure(cluster_chart(found, [report], period, lambda _: ""), "Processors of the job", NOTE),
        )  # fmt: skip
        yield tag("section", tag("h2", "Size over time"), drawing, id="sizes")
    if negotiations:
        yield tag("section", tag("h2", "Negotiations"), _negotiations(negotiations, zone), id="negotiations")


MEBIBYTE = 1024**2


def _placing(report: JobReport) -> Iterator[tuple[str, Content]]:
    """Yield how often a job could not be placed, or had to hand back what it held, if ever."""
    if report.tries > 1 or report.hand_backs:
        tries = "1 try" if report.tries == 1 else f"{report.tries} tries"
        yield "placing", f"{tries}, handed back {counted(report.hand_backs, 'time')}"


def _usage(report: JobReport) -> Iterator[tuple[str, Content]]:
    """Yield the usage of a job, where it is known."""
    usage = report.usage
    if usage is None or not usage.measured:
        return
    held = f"{duration(usage.used_seconds)} of {duration(usage.held_seconds)} held, {usage.share:.0%}"
    yield "processor time", held + (f"; {usage.uncounted} ranks not counted" if usage.uncounted else "")
    asked = f" of {usage.memory_asked_bytes / MEBIBYTE:,.0f} MiB" if usage.memory_asked_bytes else ""
    yield "memory", f"{usage.memory_bytes / MEBIBYTE:,.1f} MiB{asked} in the largest rank"


def timeline(report: JobReport, negotiations: Sequence[NegotiationReport], zone: tzinfo | None) -> Markup:
    """Return the events of a job with their times."""
    events: list[tuple[float, Content]] = [(report.submitted_at, "submitted")]
    if report.launched_at is not None:
        events.append((report.launched_at, f"all processors held after {duration(waiting_time(report))}, launched"))
    for run in report.attempts:
        where = ", ".join(run.clusters)
        events.append((run.launched_at, f"all processors held, attempt {run.number} launched on {where}"))
        ended = joined(f"attempt {run.number} {run.end}: ", isolated(run.outcome.detail))
        events.append((run.ended_at, ended))
    for one in report.size_changes:
        why = joined(": ", isolated(one.reason)) if one.reason else None
        size = f"{one.component} on {one.cluster}: {one.before} to {one.after} processors"
        events.append((one.at, joined(size, why)))
    events += [(one.latest_at, joined("negotiation: ", isolated(one.summary))) for one in negotiations]
    if report.finished_at is not None:
        detail = "" if report.outcome is None else report.outcome.detail
        events.append((report.finished_at, joined(report.state.value, ": " if detail else None, isolated(detail))))
    events.sort(key=lambda event: event[0])
    return tag("ol", *(tag("li", _time(at, zone), " ", what) for at, what in events), class_="timeline")


def _components(components: Sequence[ComponentReport], *, ended: bool) -> Markup:
    columns = (
        ("component", ""), ("cluster", ""), ("held", "number"), ("queued", "number minor"), ("waited", "number minor"),
        ("nodes", ""), ("each rank needs", "minor"),
    )  # fmt: skip
    rows = [
        tag(
            "tr",
            tag("td", one.name, class_="name"),
            tag("td", one.cluster or "-"),
            # What has ended holds nothing: it is told what it had.
            tag("td", f"{one.processors if ended else one.held} of {one.processors}", class_="number"),
            tag("td", one.queued, class_="number minor"),
            tag("td", duration(one.waited), class_="number minor"),
            tag("td", isolated(", ".join(one.nodes) or "-"), *_holds(one), class_="why"),
            tag("td", "1 processor" if one.slot.is_plain else ranks_of(one.processors, one.slot), class_="minor"),
        )
        for one in components
    ]
    return table(columns, rows, "Slots by node")


def _holds(one: ComponentReport) -> Iterator[Markup]:
    for hold in one.holds:
        yield tag("p", f"{hold.placeholders} kept waiting ({hold.holder}): ", isolated(hold.reason), class_="notice")


def _negotiations(negotiations: Sequence[NegotiationReport], zone: tzinfo | None) -> Markup:
    columns = (("id", "number"), ("process", "minor"), ("began", ""), ("state", ""), ("what", ""))
    rows = [
        tag(
            "tr",
            tag("td", one.number, class_="number"),
            tag("td", f"{one.component}/{one.rank}", class_="minor"),
            tag("td", _time(one.began_at, zone), class_="when"),
            tag("td", one.state),
            tag("td", isolated(one.summary), class_="why"),
        )
        for one in negotiations
    ]
    return table(columns, rows, "Negotiations")


# -- Charts of many jobs -------------------------------------------------------------------------------------

MOST_ROWS = 600
"""Jobs in one chart, the latest ones."""


def charts(
    reports: Sequence[JobReport], href: Link, *, since: float | None, now: float, zone: tzinfo | None
) -> dict[str, Markup]:
    """Return the charts of jobs by name: by cluster, in use, by job. Empty where there is nothing to be drawn.

    ``since``: what was over before that is left out; None: nothing is.
    """
    found = occupations(reports, since)
    shown = recent(reports, since)
    if not shown:
        return {}
    period = period_of(found, shown, now, zone) if since is None else Period(begin=since, end=now, zone=zone)
    drawn = {}
    if any(one.used for one in found):
        drawn["by-cluster"] = cluster_chart(found, shown, period, href)
        drawn["in-use"] = usage_chart(found, period)
    drawn["by-job"] = job_chart(shown[-MOST_ROWS:], period, href)
    return drawn


def recent(reports: Sequence[JobReport], since: float | None) -> list[JobReport]:
    """Return the jobs that ended after ``since`` or have not ended; None: all jobs."""
    return [one for one in reports if since is None or (one.finished_at or one.reported_at) > since]


CAPTIONS = {
    "by-cluster": "One row for each processor in use at a time; the number on a bar is that of its job.",
    "in-use": "Of koala's jobs alone; the line is what waits in the queue of the batch system.",
    "by-job": "A thin bar is the time that a job waited, a thick one the time that it ran; it ends with its state.",
}
TITLES = {"by-cluster": "By cluster", "in-use": "Processors in use", "by-job": "By job"}


def chart_sections(drawn: dict[str, Markup]) -> Iterator[Markup]:
    """Yield one section of a page for each chart."""
    for name, drawing in drawn.items():
        shown = figure(drawing, TITLES[name], CAPTIONS[name])
        yield tag("section", tag("h2", TITLES[name]), legend(name) if name != "in-use" else None, shown, id=name)


def job_title(report: JobReport) -> Markup:
    """Return the heading of the page of a job."""
    return tag("h1", f"Job {report.id} ", isolated(report.name))


# -- The files of ``koala report`` ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs of a report, and the period that it covers."""

    reports: Sequence[JobReport]
    negotiations: Sequence[NegotiationReport] = ()
    """Those of the job, where there is one alone."""
    since: float | None = None
    """What was over before that time is left out; None: nothing is."""
    now: float
    """Seconds since the epoch."""
    zone: tzinfo | None = None
    """None: that of this host."""


def write_jobs(directory: Path, heading: Heading, jobs: Jobs) -> Path:
    """Write the page, its charts and its data; return the page. Raises OSError."""
    shown = recent(jobs.reports, jobs.since)
    found = occupations(shown, jobs.since)
    drawn = charts(shown, row_of, since=jobs.since, now=jobs.now, zone=jobs.zone)
    for name in ("data", "figures"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    sheet = tag("style", Markup(style()))
    for name, drawing in drawn.items():
        file = directory / "figures" / f"{name}.svg"
        file.write_text(drawing.replace("<title>", f"{sheet}<title>", 1), encoding="utf-8")
    tables = (
        cluster_table(found), job_table(shown, found, jobs.zone), placeholder_table(found, jobs.zone),
        usage_table(found, jobs.zone),
    )  # fmt: skip
    for one in tables:
        text = csv_text([one.columns, *one.rows])
        (directory / "data" / f"{one.name}.csv").write_text(text, encoding="utf-8")
    result = Result(findings=(), tables=tables[:2], notes=[NOTE])
    (directory / "result.json").write_text(result_json(heading, result), encoding="utf-8")
    page = directory / "index.html"
    page.write_text(document(heading.title, sheet, tag("main", _body(heading, jobs, shown, drawn))), encoding="utf-8")
    return page


def row_of(job_id: str) -> str:
    """Return the link to a job's row on the page."""
    return f"#job-{job_id}"


def _body(heading: Heading, jobs: Jobs, shown: Sequence[JobReport], drawn: dict[str, Markup]) -> Iterator[Markup]:
    yield tag("h1", isolated(heading.title))
    yield tag("p", heading.lead)
    told = f"Made on {moment(jobs.now, jobs.zone)} {zone_name(jobs.now, jobs.zone)}. To get this page: "
    yield tag("p", told, tag("code", heading.command), class_="faint")
    if len(jobs.reports) == 1 and jobs.since is None:
        yield from job_view(jobs.reports[0], jobs.negotiations, jobs.zone)
        return
    if not shown:
        yield tag("p", "There was no job.", class_="notice")
        return
    yield tag("section", tag("h2", "Clusters"), cluster_use(occupations(shown, jobs.since)))
    yield from chart_sections(drawn)
    if len(shown) > MOST_ROWS:
        yield tag("p", f"By job, the chart has the latest {MOST_ROWS} of them; all are in the table.", class_="notice")
    listed = jobs_table(shown, row_of, jobs.zone, anchors=True)
    yield tag("section", tag("h2", "Jobs"), tag("p", totals(shown)), listed)
    yield tag("footer", joined(tag("p", NOTE)))
