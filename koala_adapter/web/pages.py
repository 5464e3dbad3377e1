# SPDX-License-Identifier: Apache-2.0
"""Pages of ``koala web`` as HTML, made of reports and of the ends of files with the output of processes."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from koala_adapter.outcome import JobState
from koala_adapter.report.history import occupations
from koala_adapter.report.markup import Content, Markup, document, isolated, joined, tag
from koala_adapter.report.selection import JobSelection
from koala_adapter.report.timeaxis import DAY, HOUR, moment, zone_name
from koala_adapter.report.values import ATTEMPTS, JobReport, counted
from koala_adapter.report.views import (
    MOST_ROWS,
    chart_sections,
    charts,
    cluster_cards,
    cluster_use,
    job_title,
    job_view,
    jobs_table,
    recent,
    totals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import tzinfo

    from koala_adapter.errors import KoalaError
    from koala_adapter.report.sitevalues import ClusterReport, NegotiationReport

SECTIONS = {"": "Now", "chart": "Chart", "history": "History"}
"""Pages that every page leads to, by their path."""
PAUSE = 1
"""Seconds between two looks of a live page, at least."""
OUTPUT_PAUSE = 5
"""Seconds between two looks at what a job prints."""
SLOW_PAUSE = 15
"""Seconds after which the chart, which takes long to make, is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What all pages share: addresses, time zone, permission for actions."""

    base: str
    """Path of the first page, with a slash at its end."""
    where: str
    """State directory, as people know it."""
    now: float
    """Seconds since the epoch."""
    live: bool
    """A service answers; else all of it is from its journal."""
    zone: tzinfo | None = None
    """None: that of this host."""
    proof: str = ""
    """What forms that change something must bring along; empty: there are none."""

    def job(self, job_id: str) -> str:
        """Return the address of a job's page."""
        return f"{self.base}jobs/{quote(job_id, safe='')}"

    def page(
        self, title: str, current: str | None, *sections: Content, pause: int | None = PAUSE, every: int | None = None
    ) -> str:
        """Return a whole page. ``current``: path of the page; None: it is none of SECTIONS.

        ``pause``: seconds between two looks, at least; None: it stays as it is. ``every``: seconds after which it is
        looked at again also where no change was told.
        """
        links = (
            tag("a", name, href=self.base + path, aria_current="page" if path == current else None)
            for path, name in SECTIONS.items()
        )
        head = (
            tag("link", rel="stylesheet", href=f"{self.base}style.css"),
            tag("link", rel="icon", href=f"{self.base}icon.svg"),
            tag("script", src=f"{self.base}live.js", defer=True),
        )
        at = f"As of {moment(self.now, self.zone)} {zone_name(self.now, self.zone)}"
        state = "live" if self.live else "from the journal: no service runs. One is started by koala serve."
        lost = tag("p", "koala web has ended: this page is not live.", id="lost", class_="notice", hidden=True)
        return document(
            f"{title} - koala",
            head,
            (
                tag("a", "To the content", class_="skip", href="#content"),
                tag("header", tag("nav", *links, aria_label="Pages"), tag("span", self.where, class_="where")),
                tag(
                    "main", lost, *sections, tag("section", tag("p", f"{at}, {state}", class_="faint"), id="as-of"),
                    id="content", data_pause=pause, data_every=every, data_events=f"{self.base}events",
                ),
            ),
        )  # fmt: skip


# -- Now -----------------------------------------------------------------------------------------------------

LATEST = 25
"""Jobs that have ended of which the first page tells."""


def overview(frame: Frame, clusters: Sequence[ClusterReport], reports: Sequence[JobReport]) -> str:
    """Return the first page: clusters, unfinished jobs and the latest ended ones."""
    going = [one for one in reports if not one.over]
    ended = [one for one in reversed(reports) if one.over][:LATEST]
    cards = cluster_cards(clusters, frame.zone) if clusters else tag("p", "Clusters are known while a service runs.")
    unfinished = (
        jobs_table(going, frame.job, frame.zone, name="Unfinished jobs") if going else tag("p", "No job is unfinished.")
    )
    older = tag("p", tag("a", "All jobs", href=f"{frame.base}history"))
    listed = (
        jobs_table(ended, frame.job, frame.zone, name="Jobs that have ended")
        if ended
        else tag("p", "No job has ended.")
    )
    return frame.page(
        "Now", "", tag("h1", "Clusters and jobs"),
        tag("section", tag("h2", "Clusters"), cards, id="clusters"),
        tag("section", tag("h2", "Unfinished jobs"), unfinished, id="unfinished"),
        tag("section", tag("h2", "Ended"), listed, older, id="ended"),
    )  # fmt: skip


# -- One job -------------------------------------------------------------------------------------------------

SHOWN_OUTPUTS = 4
"""Files whose ends are on the page of the job."""


def job_page(
    frame: Frame,
    report: JobReport,
    negotiations: Sequence[NegotiationReport],
    outputs: Sequence[Output],
    tails: Sequence[tuple[Output, Tail]],
) -> str:
    """Return the page of a job. ``tails``: the ends of some of its outputs."""
    action = None
    if frame.proof and report.outcome is None:
        proof = tag("input", type="hidden", name="proof", value=frame.proof)
        button = tag("button", f"Cancel job {report.id}", type="submit", class_="danger")
        form = tag("form", proof, button, method="post", action=f"{frame.job(report.id)}/cancel")
        action = tag("section", tag("details", tag("summary", "Cancel this job"), form), id="cancel")
    sections = job_view(report, negotiations, frame.zone)
    output = tag("section", tag("h2", "Output"), *_outputs(frame, report, outputs, tails), id="output")
    every = OUTPUT_PAUSE if report.outcome is None else None
    return frame.page(f"Job {report.id}", None, job_title(report), *sections, output, action, every=every)


def _outputs(
    frame: Frame, report: JobReport, outputs: Sequence[Output], tails: Sequence[tuple[Output, Tail]]
) -> Iterator[Markup]:
    if not outputs:
        yield tag("p", "Nothing was printed.")
    for one, tail in tails:
        yield tag("h3", tag("a", name_of(one), href=_address(frame, report, one)))
        yield _text(one, tail)
    shown = {one for one, _ in tails}
    for attempt, some in groupby((one for one in outputs if one not in shown), key=lambda one: one.attempt):
        links = [tag("li", tag("a", name_of(one), href=_address(frame, report, one))) for one in some]
        what = f"Output of attempt {attempt}" if attempt else "Further output"
        yield tag("details", tag("summary", f"{what}: {counted(len(links), 'file')}"), tag("ul", *links))
    yield tag("p", "Files in ", tag("code", report.output_directory), class_="faint")


def name_of(one: Output) -> str:
    """Return the name of a file of output."""
    run = f"attempt {one.attempt}: " if one.attempt else ""
    return f"{run}{one.component}/{one.rank} {one.stream}, {one.size:,} bytes"


def _address(frame: Frame, report: JobReport, one: Output) -> str:
    asked = {"component": one.component, "rank": one.rank, "stream": one.stream}
    run = {"attempt": one.attempt} if one.attempt else {}
    return f"{frame.job(report.id)}/output?{urlencode(asked | run)}"


def _text(one: Output, tail: Tail) -> Markup:
    before = tag("p", f"{tail.skipped:,} bytes before this are left out.", class_="faint") if tail.skipped else None
    return joined(before, tag("pre", tail.text, tabindex=0, role="region", aria_label=name_of(one)))


def output_page(frame: Frame, report: JobReport, one: Output, tail: Tail) -> str:
    """Return the page of one file of output."""
    back = tag("p", tag("a", f"Job {report.id}", href=frame.job(report.id)), " ", isolated(report.name))
    text = tag("section", _text(one, tail), id="text")
    every = OUTPUT_PAUSE if report.outcome is None else None
    return frame.page(f"Output of job {report.id}", None, tag("h1", name_of(one)), back, text, every=every)


# -- History and chart ---------------------------------------------------------------------------------------

PER_PAGE = 100
PERIODS = {"1h": HOUR, "6h": 6 * HOUR, "1d": DAY, "7d": 7 * DAY, "30d": 30 * DAY, "all": None}
"""Times that can be chosen, in seconds; None: all."""
ANY_FAILURE = "any failure"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Conditions of a search in the history."""

    words: str = ""
    """Text in the name, a command, a node, an id of a batch system or the reason."""
    state: str = ""
    """A state, or ANY_FAILURE; empty: any."""
    since: str = "all"
    """One of PERIODS."""
    first: int = 0
    """How many jobs are passed over, from the latest one."""

    def selection(self, now: float) -> JobSelection:
        """Return the conditions as a JobSelection."""
        return JobSelection(
            since=begin_of(self.since, now),
            states=tuple(state for state in JobState if state.value == self.state),
            failed=self.state == ANY_FAILURE,
            word=self.words.strip(),
        )

    @property
    def most(self) -> int:
        """Number of jobs to be read for one page and for knowing whether another one follows."""
        return self.first + PER_PAGE + 1

    def address(self, base: str, first: int) -> str:
        """Return the address of the page of results that begins at job ``first``."""
        asked = {"q": self.words, "state": self.state, "since": self.since, "first": first}
        return f"{base}history?{urlencode(asked)}"


def begin_of(period: str, now: float) -> float | None:
    """Return when a period of PERIODS begins; None for all jobs."""
    length = PERIODS.get(period)
    return None if length is None else now - length


def history_page(frame: Frame, search: Search, reports: Sequence[JobReport]) -> str:
    """Return the page of found jobs, latest first. ``reports``: the jobs, at most ``search.most``."""
    found = reports[::-1]
    shown = found[search.first : search.first + PER_PAGE]
    steps = []
    if search.first:
        newer = search.address(frame.base, max(0, search.first - PER_PAGE))
        steps.append(tag("a", "Newer", href=newer, rel="prev"))
    if search.first + PER_PAGE < len(found):
        steps.append(tag("a", "Older", href=search.address(frame.base, search.first + PER_PAGE), rel="next"))
    listed = jobs_table(shown, frame.job, frame.zone) if shown else tag("p", "No job is like that.", class_="notice")
    return frame.page(
        "History", "history", tag("h1", "History"), _search_form(frame, search),
        tag("section", tag("p", totals(shown)), listed, tag("p", *(joined(one, " ") for one in steps)), id="found"),
        pause=None,
    )  # fmt: skip


def _search_form(frame: Frame, search: Search) -> Markup:
    states = [("", "any"), (ANY_FAILURE, ANY_FAILURE), *((state.value, state.value) for state in JobState)]
    return tag(
        "form",
        tag("label", "Text", tag("input", type="search", name="q", value=search.words, size=24)),
        tag("label", "State", _select("state", states, search.state)),
        tag("label", "Ended within", _select("since", [(one, one) for one in PERIODS], search.since)),
        tag("button", "Search", type="submit"),
        class_="search", action=f"{frame.base}history", role="search",
    )  # fmt: skip


def _select(name: str, options: Sequence[tuple[str, str]], chosen: str) -> Markup:
    shown = (tag("option", text, value=value, selected=value == chosen) for value, text in options)
    return tag("select", *shown, name=name)


def chart_page(frame: Frame, since: str, reports: Sequence[JobReport], most: int) -> str:
    """Return the page of charts. ``since``: one of PERIODS. ``most``: number of jobs that were asked for."""
    begin = begin_of(since, frame.now)
    shown = recent(reports, begin)
    drawn = charts(shown, frame.job, since=begin, now=frame.now, zone=frame.zone)
    choices = (
        joined(tag("a", one, href=f"{frame.base}chart?since={one}", aria_current="true" if one == since else None), " ")
        for one in PERIODS
    )
    bounds = []
    if len(reports) >= most:
        bounds.append(tag("p", f"These are the latest {most:,} jobs: there may be more.", class_="notice"))
    if len(shown) > MOST_ROWS:
        few = f"By job, the chart has the latest {MOST_ROWS} of {counted(len(shown), 'job')}."
        bounds.append(tag("p", few, class_="notice"))
    return frame.page(
        "Chart", "chart", tag("h1", "Jobs in clock time"), tag("nav", *choices, aria_label="Time shown"),
        tag("section", tag("p", totals(shown)), *bounds, cluster_use(occupations(shown, begin)), id="sums"),
        *chart_sections(drawn), pause=SLOW_PAUSE,
    )  # fmt: skip


def error_page(frame: Frame, error: KoalaError) -> str:
    """Return a page with an error message."""
    hint = tag("p", error.hint, class_="faint") if error.hint else None
    return frame.page("Trouble", None, tag("section", tag("h1", "Trouble"), tag("p", error.message), hint, id="error"))


# -- Output of processes -------------------------------------------------------------------------------------
# Ends of the files in which it is kept, as far as a page has room for them.

SUFFIXES = {"stdout": ".out", "stderr": ".err"}
MOST_FILES = 2000
"""Files of a component that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A file of output of one rank."""

    component: str
    rank: int
    stream: str
    """``stdout`` or ``stderr``."""
    size: int
    attempt: int = 0
    """Number of an earlier run of the job; 0: the latest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last lines of a file."""

    text: str
    skipped: int
    """Bytes before it."""


def outputs(report: JobReport) -> list[Output]:
    """Return the files with output that are not empty, by component and rank: of the latest run, then of earlier ones.

    The earlier runs come in the order in which they ended, the last one first.
    """
    runs = (0, *(one.number for one in reversed(report.attempts)))
    return [output for run in runs for output in _of_run(report, run)]


def _of_run(report: JobReport, attempt: int) -> list[Output]:
    found = []
    for component in dict.fromkeys(one.name for one in report.components):
        with suppress(OSError), os.scandir(_directory(report, attempt) / component) as entries:
            for _, entry in zip(range(MOST_FILES), entries, strict=False):
                stem, suffix = os.path.splitext(entry.name)  # noqa: PTH122 - a name and no path
                stream = next((name for name, one in SUFFIXES.items() if one == suffix), "")
                if stream and stem.isdecimal() and (size := entry.stat(follow_symlinks=False).st_size):
                    one = Output(component=component, rank=int(stem), stream=stream, size=size, attempt=attempt)
                    found.append(one)
    return sorted(found, key=lambda one: (one.component, one.rank, one.stream != "stdout"))


def _directory(report: JobReport, attempt: int) -> Path:
    directory = Path(report.output_directory)
    return directory / ATTEMPTS / str(attempt) if attempt else directory


def tail(report: JobReport, one: Output, most: int) -> Tail | None:
    """Return at most the last ``most`` bytes of a file, from the beginning of a line; None: it is there no more."""
    path = _directory(report, one.attempt) / one.component / f"{one.rank}{SUFFIXES[one.stream]}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        skipped = max(0, status.st_size - most)
        file.seek(skipped)
        data = file.read(most)
    if skipped:
        cut = data.find(b"\n") + 1
        data, skipped = data[cut:], skipped + cut
    return Tail(text=data.decode("utf-8", "replace"), skipped=skipped)
