# SPDX-License-Identifier: Apache-2.0
"""Pages and charts of jobs: what is on them, that foreign text stays text, and that people can read them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from lxml import html

from koala_adapter.outcome import EndReason, JobOutcome, JobState
from koala_adapter.report.charts import look
from koala_adapter.report.jobspage import Jobs, write_jobs
from koala_adapter.report.markup import Markup, isolated, tag
from koala_adapter.report.page import Heading
from koala_adapter.report.sitevalues import ClusterReport
from koala_adapter.report.timeaxis import Period, duration, zone_name
from koala_adapter.report.values import AttemptReport
from koala_adapter.report.views import cluster_cards, style
from tests.unit.report.test_history import component, ran

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.report.values import JobReport

HEADING = Heading(title="koala's jobs", lead="All of them.", command="koala report --since 1d")
FOREIGN = (
    "<script>alert(1)</script>",
    "x" * 300,
    "\u0639\u0645\u0644 \u202eabc",
    '"><img src=x onerror=alert(1)>',
    "\x1b[31m\0",
)
"""Names that a user may give a job: a script, a long one, from right to left, out of an attribute, for a terminal."""


def page_of(directory: Path, *reports: JobReport) -> html.HtmlElement:
    """Return the page of jobs as a browser has it."""
    jobs = Jobs(reports=reports, since=0.0, now=300.0, zone=UTC)
    return html.fromstring(write_jobs(directory, HEADING, jobs).read_text(encoding="utf-8"))


def failed(report: JobReport, detail: str = "rank 3 was killed") -> JobReport:
    outcome = JobOutcome(state=JobState.FAILED, reason=EndReason.SIGNALLED, exit_code=137, detail=detail)
    return replace(report, state=JobState.FAILED, outcome=outcome)


# -- What a page has


def test_each_job_is_on_the_page_with_its_dates_and_reasons(tmp_path: Path) -> None:
    """In a row of the table, in a bar on each of its clusters, and in a row of the chart by job."""
    page = page_of(
        tmp_path, ran(1, component("x", "a", 1), component("y", "b", 2)), failed(ran(2, component("x", "a", 1)))
    )
    rows = {row.get("id"): row.text_content() for row in page.xpath("//tr[@id]")}
    assert list(rows) == ["job-1", "job-2"]
    assert "1970-01-01 00:01:20" in rows["job-2"]
    assert "rank 3 was killed" in rows["job-2"]
    bars = page.xpath("//*[@id='by-cluster']//a/title/text()")
    assert [bar.split(";")[-1].split(":")[0] for bar in bars] == [" x on a", " x on a", " y on b"]
    linked = page.xpath("//a/@href")
    assert {address.removeprefix("#") for address in linked} == set(rows)


def test_five_hundred_jobs_have_rows_of_their_own(tmp_path: Path) -> None:
    """In the chart by job, each is named; no job is one of 'other jobs'."""
    page = page_of(tmp_path, *(ran(number, component("x", "a", 3)) for number in range(1, 501)))
    names = page.xpath("//*[@id='by-job']//a/text/text()")
    assert names == [f"{number} job" for number in range(1, 501)]


def test_one_job_has_a_page_of_its_own(tmp_path: Path) -> None:
    """Timeline, slots and sizes, and nothing twice."""
    jobs = Jobs(reports=[failed(ran(1, component("x", "a", 2)))], now=300.0, zone=UTC)
    page = html.fromstring(write_jobs(tmp_path, HEADING, jobs).read_text(encoding="utf-8"))
    assert page.xpath("//section/@id") == ["facts", "timeline", "slots", "sizes"]
    assert len(set(page.xpath("//@id"))) == len(page.xpath("//@id"))
    assert "rank 3 was killed" in page.xpath("string(//*[@id='timeline'])")


def test_a_job_that_was_run_again_has_a_bar_for_each_attempt(tmp_path: Path) -> None:
    """In the chart by job, with waits between; its timeline says how each ended."""
    good = ran(1, component("x", "a", 2))
    bad = failed(good).outcome
    assert bad is not None
    attempt = AttemptReport(number=1, launched_at=85.0, ended_at=90.0, clusters=("a",), outcome=bad)
    jobs = Jobs(reports=[replace(good, attempts=(attempt,))], now=300.0, zone=UTC)
    page = html.fromstring(write_jobs(tmp_path, HEADING, jobs).read_text(encoding="utf-8"))
    assert "attempt 1 failed: rank 3 was killed" in page.xpath("string(//*[@id='timeline'])")
    bars = ET.parse(tmp_path / "figures" / "by-job.svg").findall(".//{*}g[@class]")  # noqa: S314 - of our own making
    assert [bar.get("class", "").removeprefix("bar ") for bar in bars] == ["waiting", "failed", "waiting", "completed"]


def test_a_run_from_whose_state_the_job_goes_on_is_not_drawn_as_failed(tmp_path: Path) -> None:
    """Neither after exit status 75 nor at the end of its walltime."""
    good = ran(1, component("x", "a", 2))
    saved = JobOutcome(state=JobState.FAILED, reason=EndReason.EXITED, exit_code=75, detail="rank 0 exited")
    stopped = JobOutcome(state=JobState.FAILED, reason=EndReason.WALLTIME, exit_code=244)
    attempts = tuple(
        AttemptReport(
            number=number, launched_at=70.0 + 5 * number, ended_at=74.0 + 5 * number, clusters=("a",), outcome=one,
            goes_on=True,
        )
        for number, one in enumerate((saved, stopped), 1)
    )  # fmt: skip
    jobs = Jobs(reports=[replace(good, attempts=attempts)], now=300.0, zone=UTC)
    page = html.fromstring(write_jobs(tmp_path, HEADING, jobs).read_text(encoding="utf-8"))
    told = page.xpath("string(//*[@id='timeline'])")
    assert "attempt 1 saved its state, goes on: rank 0 exited" in told
    assert "attempt 2 walltime over, goes on" in told
    bars = ET.parse(tmp_path / "figures" / "by-job.svg").findall(".//{*}g[@class]")  # noqa: S314 - of our own making
    kinds = [bar.get("class", "").removeprefix("bar ") for bar in bars]
    assert [kind for kind in kinds if kind != "waiting"] == ["running", "running", "completed"]


def test_no_jobs_make_a_page_that_says_so(tmp_path: Path) -> None:
    assert "There was no job." in page_of(tmp_path).text_content()


def test_states_are_told_apart_without_colours(tmp_path: Path) -> None:
    """By a mark of its own and, where something went wrong, by hatching."""
    marks = {state: look(state).mark for state in JobState if state.final}
    assert len(set(marks.values())) == len(marks)
    page = page_of(tmp_path, failed(ran(1, component("x", "a", 1))), ran(2, component("x", "a", 1)))
    hatched = page.xpath("//*[@id='by-cluster']//a[.//rect[@class='over']]/title/text()")
    assert [title.split(":")[0] for title in hatched] == ["job 1 job"]


def test_a_cluster_has_what_is_idle_ours_and_of_others() -> None:
    """They add up to its processors, down ones among them; and it says why it is closed."""
    report = ClusterReport(
        name="a", plugin="slurm", lrm="slurm 25.11", closed="<b>drained</b>", processors=20, idle=5, others=8,
        threshold=0, placeholders=6, placeholders_queued=2, available=5, polled_at=60.0, requests=1,
        largest_requests_per_minute=1, requests_per_minute=60, down=3, gpus=4, gpus_idle=1,
    )  # fmt: skip
    (card,) = html.fromstring(cluster_cards([report], UTC)).xpath("//li")
    assert [one.text_content() for one in card.xpath("p")] == [
        "4 ours, 8 others, 5 idle, 3 down of 20 processors",
        "1 of 4 GPUs idle",
        "Nothing is placed here: <b>drained</b>",
        "6 placeholders, 2 of them queued; slurm 25.11, seen 1970-01-01 00:01:00",
    ]
    widths = [float(one.get("width")) for one in card.xpath(".//*[name()='rect'][starts-with(@class, 'share')]")]
    assert widths == [40.0, 80.0, 50.0, 30.0]


# -- Foreign text stays text


@pytest.mark.parametrize("name", FOREIGN)
def test_a_name_is_text_wherever_it_is_shown(tmp_path: Path, name: str) -> None:
    """No element and no attribute comes out of it, and it cannot turn the direction of what follows."""
    report = replace(failed(ran(1, component(name, "a", 1)), detail=name), name=name, explanation=name)
    page = page_of(tmp_path, report)
    assert page.xpath("//script | //img | //@*[starts-with(name(), 'on')]") == []
    assert {element.tag for element in page.xpath("//*[@id='job-1']//*")} == {"td", "bdi", "span", "time"}
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not re.search("[\0\x1b\u202e]", text)
    for chart in (tmp_path / "figures").iterdir():
        ET.parse(chart)  # noqa: S314 - of our own making, a moment ago


def test_what_is_no_markup_is_escaped() -> None:
    """Contents and attributes alike; elements are left as they are."""
    made = tag("p", "<b>", Markup("<i>"), isolated("a & b"), [1, 2.5, None], class_='"x"', hidden=True, title=None)
    assert made == '<p class="&quot;x&quot;" hidden>&lt;b&gt;<i><bdi>a &amp; b</bdi>12.5</p>'


# -- Times on the clock


@pytest.mark.parametrize("hours", [0, 2, -5.5])
@pytest.mark.parametrize("length", [3.0, 47.0, 600.0, 7200.0, 86_400.0, 1_000_000.0, 4e7])
def test_marks_stand_at_round_times_of_the_local_clock(length: float, hours: float) -> None:
    """Evenly, not too many, and those of the first of each day with the date."""
    zone = timezone(timedelta(hours=hours))
    begin = 1_700_000_123.4
    marks = list(Period(begin=begin, end=begin + length, zone=zone).marks(8))
    assert 1 <= len(marks) <= 9
    assert all(begin <= at <= begin + length for at, _ in marks)
    steps = {round(second - first) for (first, _), (second, _) in pairwise(marks)}
    assert len(steps) <= 1
    assert all((at + hours * 3600) % min(*steps, 86_400.0) == 0 for at, _ in marks if steps)
    assert re.match(r"202[34]-\d\d-\d\d", marks[0][1])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0.22, "0.2 s"), (45.4, "45 s"), (119.0, "119 s"), (125.0, "2 min 05 s"), (7500.0, "2 h 05 min"),
        (90_000.0, "1 d 01 h"),
    ],
)  # fmt: skip
def test_durations_are_in_units_that_one_can_read(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_zone_is_named_by_its_difference() -> None:
    assert zone_name(0.0, timezone(timedelta(hours=-5, minutes=-30))) == "UTC-05:30"
    assert zone_name(0.0, UTC) == "UTC+00:00"


# -- Contrast


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as #1b7f4b, as WCAG 2 defines it."""
    digits = colour.removeprefix("#")
    whole = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(whole[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """Return the ratio of contrast of two colours."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_on_what_is_behind_it(dark: bool) -> None:  # noqa: FBT001 - given by name
    """All colours of text have the contrast that WCAG 2 AA asks for, 4.5, in light and in dark."""
    blocks = re.findall(r":root \{(.*?)\}", style(), re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", blocks[dark]))
    states = ("completed", "running", "failed", "cancelled", "lost")
    pairs = [(name, ground) for name in ("ink", "faint", "link", *states, "waiting") for ground in ("page", "raised")]
    pairs += [("on-bar", state) for state in states]
    assert [pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < 4.5] == []
