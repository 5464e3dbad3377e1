# SPDX-License-Identifier: Apache-2.0
"""The files of ``koala report``: one page with charts and tables of jobs, the charts as SVG, and data (CSV, JSON)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.report.history import (
    NOTE,
    cluster_table,
    job_table,
    occupations,
    placeholder_table,
    usage_table,
)
from koala_adapter.report.markup import Markup, isolated, joined, tag
from koala_adapter.report.page import Result, csv_text, result_json
from koala_adapter.report.timeaxis import moment, zone_name
from koala_adapter.report.views import (
    MOST_ROWS,
    chart_sections,
    charts,
    cluster_use,
    document,
    job_view,
    jobs_table,
    recent,
    style,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo
    from pathlib import Path

    from koala_adapter.report.page import Heading
    from koala_adapter.report.sitevalues import NegotiationReport
    from koala_adapter.report.values import JobReport


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
