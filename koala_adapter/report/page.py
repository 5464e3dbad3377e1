# SPDX-License-Identifier: Apache-2.0
"""Results of an experiment or a replay, written as data files, figures and one self-contained HTML page.

The output does not depend on the day, the machine or the number of processes: the same run gives the same bytes. The
values of a result stand at the end.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from dataclasses import dataclass
from itertools import zip_longest
from math import isnan
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.report.figures import Drawing, Figure, draw
from koala_adapter.report.markup import Markup, document, joined, scrollable, table, tag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


# -- Writing CSV, JSON and HTML ------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; } .lead { font-size: 1.1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .92rem; }
.wide { overflow-x: auto; }
th, td { border-bottom: 1px solid #8886; padding: .35rem .7rem; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: #117a43; } .fails { color: #b3261e; } .open { color: #7a5c00; }
@media (prefers-color-scheme: dark) {
  .holds { color: #6fd39b; } .fails { color: #ff8a80; } .open { color: #e6c15c; }
  figure img { filter: invert(.9) hue-rotate(180deg); }
}
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figure img { width: 100%; height: auto; background: #fff; }
details { margin: 1.5rem 0; } pre { font-size: .82rem; line-height: 1.35; }
figcaption, .caption { font-size: .88rem; opacity: .85; } code { font-size: .9em; }
"""
VERDICTS = {True: ("holds", "holds"), False: ("fails", "does not hold"), None: ("open", "cannot tell")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Heading of a page: title, first sentences, and the command that makes the page."""

    title: str
    lead: str
    """One or two sentences."""
    command: str
    """What to type to get the same page."""


def write_result(directory: Path, heading: Heading, result: Result) -> Path:
    """Write data (CSV and JSON), figures (PNG and SVG) and the page; returns the page. Raises OSError."""
    for name in ("data", "figures"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    drawings = [draw(figure) for figure in result.figures]
    for figure, drawing in zip(result.figures, drawings, strict=True):
        (directory / "figures" / f"{figure.name}.png").write_bytes(drawing.png)
        (directory / "figures" / f"{figure.name}.svg").write_bytes(drawing.svg)
        (directory / "data" / f"{figure.name}.csv").write_text(figure_csv(figure), encoding="utf-8")
    for one in result.tables:
        text = csv_text([one.columns, *one.rows])
        (directory / "data" / f"{one.name}.csv").write_text(text, encoding="utf-8")
    for listing in result.listings:
        (directory / "data" / f"{listing.name}.txt").write_text(listing.text, encoding="utf-8")
    (directory / "result.json").write_text(result_json(heading, result), encoding="utf-8")
    page = directory / "index.html"
    page.write_text(page_html(heading, result, drawings), encoding="utf-8")
    return page


def figure_csv(figure: Figure) -> str:
    """Return the values of a figure, one point in each line."""
    rows: list[Sequence[Cell]] = [("series", "x", "y", "low", "high")]
    for series in figure.series:
        places: Sequence[Cell] = figure.categories if figure.kind == "bars" else series.x
        numbers = ([None if isnan(value) else value for value in some] for some in (series.y, series.low, series.high))
        rows.extend((series.label, *point) for point in zip_longest(places, *numbers))
    return csv_text(rows)


def csv_text(rows: Iterable[Sequence[Cell]]) -> str:
    """Return rows as CSV with line feeds; None is an empty cell."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def result_json(heading: Heading, result: Result) -> str:
    """Return findings, notes and tables as JSON; the points of the figures are in their CSV files."""
    content = {
        "title": heading.title,
        "command": heading.command,
        "findings": [
            {"claim": one.claim, "outcome": one.outcome, "holds": one.holds, "margin": one.margin}
            for one in result.findings
        ],
        "notes": list(result.notes),
        "tables": {
            table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in result.tables
        },
        "listings": {listing.name: f"data/{listing.name}.txt" for listing in result.listings},
        "figures": {figure.name: f"data/{figure.name}.csv" for figure in result.figures},
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def page_html(heading: Heading, result: Result, drawings: Sequence[Drawing]) -> str:
    """Return the page as HTML without external references."""
    parts = [
        tag("h1", heading.title),
        tag("p", heading.lead, class_="lead"),
        tag("p", "To get this page: ", tag("code", heading.command)),
        *_findings(result.findings),
        *_notes(result.notes),
        *_figures(result.figures, drawings),
        *map(_table, result.tables),
        *map(_listing, result.listings),
    ]
    return document(heading.title, tag("style", Markup(STYLE)), Markup("\n".join(parts)))


def _findings(findings: Sequence[Finding]) -> Iterator[Markup]:
    if findings:
        columns = [(name, "") for name in ("the paper says", "what came out here", "", "by how much")]
        rows = []
        for one in findings:
            kind, verdict = VERDICTS[one.holds]
            told = tag("td", verdict, class_=f"verdict {kind}")
            rows.append(tag("tr", tag("td", one.claim), tag("td", one.outcome), told, tag("td", one.margin)))
        yield tag("h2", f"Findings: {tally(findings)}")
        yield table(columns, rows, "Findings")


def _notes(notes: Sequence[str]) -> Iterator[Markup]:
    if notes:
        yield tag("h2", "What to know when reading this")
        yield tag("ul", *(tag("li", note) for note in notes))


def _figures(figures: Sequence[Figure], drawings: Sequence[Drawing]) -> Iterator[Markup]:
    if figures:
        drawn = []
        for figure, drawing in zip(figures, drawings, strict=True):
            data = base64.b64encode(drawing.svg).decode("ascii")
            image = tag("img", alt=figure.title, src=f"data:image/svg+xml;base64,{data}")
            drawn.append(tag("figure", image, tag("figcaption", figure.caption)))
        yield tag("h2", "Figures")
        yield tag("div", *drawn, class_="figures")


def _table(one: Table) -> Markup:
    numeric = [all(isinstance(row[i], int | float | None) for row in one.rows) for i in range(len(one.columns))]
    columns = [(name, "number" if is_number else "") for name, is_number in zip(one.columns, numeric, strict=True)]
    rows = [
        tag("tr", *(tag("td", shown(cell), class_=kind or None) for cell, (_, kind) in zip(row, columns, strict=True)))
        for row in one.rows
    ]
    caption = tag("p", one.caption, class_="caption") if one.caption else None
    return joined(tag("h2", one.title), table(columns, rows, one.title), caption)


def _listing(listing: Listing) -> Markup:
    return tag("details", tag("summary", listing.title), scrollable(tag("pre", listing.text), listing.title))


def shown(cell: Cell) -> str:
    """Format a cell for people: separators in large numbers, four digits of small ones."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or cell.is_integer():
        return f"{cell:,.0f}"
    return f"{cell:,.1f}" if abs(cell) >= 1000 else f"{cell:.4g}"  # noqa: PLR2004 - digits that can be read


# -- Values of a result: findings, tables, listings ----------------------------------------------------------

Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim of a paper, what came out here, and whether the claim holds."""

    claim: str
    """What the paper says, in our words."""
    outcome: str
    """What came out, with numbers."""
    holds: bool | None
    """Whether the claim holds here; None when this run cannot tell, and `outcome` says why."""
    margin: str = ""
    """By how much it holds or fails to."""


def tally(findings: Sequence[Finding]) -> str:
    """Return in words how many claims hold and how many cannot be judged."""
    held = sum(finding.holds is True for finding in findings)
    unknown = sum(finding.holds is None for finding in findings)
    return f"{held} of {len(findings)} hold" + (f", {unknown} cannot be told" if unknown else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Values in rows and columns."""

    name: str
    """Stem of its files."""
    title: str
    columns: Sequence[str]
    """Headings, with units."""
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Preformatted text."""

    name: str
    """Stem of its file."""
    title: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Findings, figures, tables and notes of an experiment."""

    findings: Sequence[Finding]
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    """What a reader must know to judge it: what was substituted, assumed or left out."""
    listings: Sequence[Listing] = ()
