# SPDX-License-Identifier: Apache-2.0
"""Which jobs a listing and a page have, when they waited and ran, and what pages and charts of them show."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from datetime import UTC, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import html

from koala_adapter.api import protocol
from koala_adapter.outcome import EndReason, JobOutcome, JobState
from koala_adapter.report.charts import look
from koala_adapter.report.history import Occupation, awaited, cluster_table, job_table, lanes, occupations, used
from koala_adapter.report.markup import Markup, isolated, tag
from koala_adapter.report.page import Heading
from koala_adapter.report.selection import JobSelection, latest_of
from koala_adapter.report.timeaxis import Period, duration, zone_name
from koala_adapter.report.values import AttemptReport, ComponentReport, JobReport, SizeChangeReport
from koala_adapter.report.views import Jobs, cluster_cards, style, write_jobs
from tests.unit.api.jobreports import cluster_report, component_report, job_report

# -- Which jobs a listing has.

PART = component_report(command=("./simulate", "--Steps", "9"), lrm_ids=("4711",), hosts=("node7",))
OUTCOME = JobOutcome(state=JobState.LOST, reason=EndReason.NODE_LOST, exit_code=242, detail="node7 went away")
ENDED = job_report(
    id="12",
    name="train-3",
    state=JobState.LOST,
    submitted_at=100.0,
    finished_at=200.0,
    components=(PART,),
    outcome=OUTCOME,
    explanation="It is over.",
)
WAITS = job_report(id="13", name="evaluate", state=JobState.WAITING, user="other", submitted_at=150.0)


def chosen(**conditions: Any) -> list[str]:  # noqa: ANN401 - conditions of many types
    selection = JobSelection(**conditions)
    return [job.id for job in (ENDED, WAITS) if selection.takes(asdict(job))]


@pytest.mark.parametrize(
    ("conditions", "ids"),
    [
        ({}, ["12", "13"]),
        ({"since": 200.0}, ["12", "13"]),
        ({"since": 200.1}, ["13"]),
        ({"until": 150.0}, ["12", "13"]),
        ({"until": 149.9}, ["12"]),
        ({"until": 99.0}, []),
        ({"user": "other"}, ["13"]),
        ({"name": "train-*"}, ["12"]),
        ({"name": "Train-*"}, []),
        ({"name": "[a-f]*"}, ["13"]),
        ({"states": (JobState.WAITING, JobState.RUNNING)}, ["13"]),
        ({"cluster": "alpha"}, ["12"]),
        ({"failed": True}, ["12"]),
        ({"failed": True, "user": "other"}, []),
        ({"word": "NODE7 WENT"}, ["12"]),
        ({"word": "--steps 9"}, ["12"]),
        ({"word": "4711"}, ["12"]),
        ({"word": "Evaluate"}, ["13"]),
        ({"word": "components"}, []),
    ],
)
def test_all_conditions_must_hold(conditions: dict[str, Any], ids: list[str]) -> None:
    assert chosen(**conditions) == ids


def kept(*jobs: JobReport) -> list[str]:
    return [job.to_json() for job in jobs]


def test_the_latest_are_shown_in_order_of_submission() -> None:
    """Jobs that still are there come first into the choice, and a kept report of one of them does not count."""
    others = [job_report(id=str(number), finished_at=float(number)) for number in (9, 8, 7)]
    stale = job_report(id="13", name="stale", finished_at=10.0)
    found = latest_of([asdict(WAITS)], kept(stale, *others), JobSelection(), 3)
    assert [one["id"] for one in found] == ["8", "9", "13"]
    assert found[-1]["name"] == "evaluate"


def test_what_is_read_of_the_archive_ends_with_the_listing() -> None:
    """Of 100,000 reports no more are read than a listing of three needs."""
    read = 0

    def reports() -> Any:  # noqa: ANN401 - an iterator
        nonlocal read
        for text in kept(*(job_report(id=str(number), finished_at=1.0) for number in range(9, 0, -1))):
            read += 1
            yield text

    found = latest_of([], reports(), JobSelection(name="job"), 3)
    assert ([one["id"] for one in found], read) == (["7", "8", "9"], 3)


def test_the_selection_survives_the_wire() -> None:
    selection = JobSelection(since=1.0, states=(JobState.LOST,), word="ü")
    request = protocol.Request(operation="jobs", selection=selection)
    assert protocol.decode_request(protocol.encode(request)) == request
    assert "selection" not in json.loads(protocol.encode(protocol.Request(operation="jobs")))


# -- When jobs waited for processors and used them, as their reports tell.


def component(name: str, cluster: str | None, processors: int, waited: float = 5.0) -> ComponentReport:
    return component_report(name=name, cluster=cluster, processors=processors, queued=processors, waited=waited)


def change(at: float, cluster: str, before: int, after: int, waited: float = 0.0) -> SizeChangeReport:
    return SizeChangeReport(at=at, component="w", cluster=cluster, before=before, after=after, reason="", waited=waited)


def ran(number: int, *components: ComponentReport, changes: tuple[SizeChangeReport, ...] = ()) -> JobReport:
    """Return the report of a job submitted at 80 that ran from 100 to 200."""
    return job_report(
        id=str(number),
        state=JobState.COMPLETED,
        submitted_at=80.0,
        launched_at=100.0,
        finished_at=200.0,
        reported_at=300.0,
        components=components,
        size_changes=changes,
    )


def times(found: list[Occupation]) -> list[tuple[str, float, float, float]]:
    """Return cluster and times of each placeholder."""
    return [(one.cluster, one.asked_at, one.begun_at, one.ended_at) for one in found for _ in range(one.processors)]


def test_a_rigid_job_waits_and_is_used_on_each_cluster() -> None:
    """From when its placeholders were asked for, not before it was submitted; what was over before is left out."""
    found = occupations([ran(1, component("x", "a", 2, 5.0), component("y", "b", 1, 50.0))])
    assert times(found) == [("b", 80.0, 100.0, 200.0), ("a", 95.0, 100.0, 200.0), ("a", 95.0, 100.0, 200.0)]
    assert (found[0].waited, found[1].used) == (20.0, 200.0)
    assert used(found) == [(100.0, 3), (200.0, 0)]
    assert awaited(found) == [(80.0, 1), (95.0, 3), (100.0, 0)]
    reports = [ran(1, component("x", "a", 1))]
    assert times(occupations(reports, 150.0)) == [("a", 150.0, 150.0, 200.0)]
    assert occupations(reports, 200.0) == []


@pytest.mark.parametrize(
    ("begins", "changes", "expected"),
    [
        pytest.param(
            2,
            (change(120.0, "a", 1, 3, waited=7.0), change(150.0, "a", 3, 2)),
            [("a", 95.0, 100.0, 200.0), ("a", 113.0, 120.0, 150.0), ("a", 113.0, 120.0, 200.0)],
            id="who came last goes first, and what it grew by was waited for",
        ),
        pytest.param(
            1,
            (change(120.0, "b", 0, 2), change(150.0, "b", 2, 0), change(160.0, "c", 1, 0)),
            [("a", 95.0, 100.0, 200.0), ("c", 100.0, 100.0, 160.0), *[("b", 120.0, 120.0, 150.0)] * 2],
            id="clusters that it has left, of which its latest report has no component",
        ),
        pytest.param(
            2,
            (change(120.0, "a", 1, 2), change(150.0, "a", 2, 1), change(160.0, "a", 1, 0)),
            [("a", 95.0, 100.0, 160.0), ("a", 120.0, 120.0, 150.0)],
            id="a component that had left before the end, though its report tells what it had at most",
        ),
    ],
)
def test_a_malleable_job_grows_and_shrinks(
    begins: int, changes: tuple[SizeChangeReport, ...], expected: list[tuple[str, float, float, float]]
) -> None:
    assert times(occupations([ran(1, component("w", "a", begins), changes=changes)])) == expected


def test_who_waits_has_only_waited() -> None:
    """Until now; a component without a cluster has nothing."""
    waiting = job_report(
        submitted_at=10.0, reported_at=50.0, components=(component("x", "a", 2), component("y", None, 1))
    )
    assert times(occupations([waiting])) == [("a", 45.0, 50.0, 50.0)] * 2


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 5)), min_size=1, max_size=20)


@given(SPANS)
def test_no_two_share_a_row_at_a_time(spans: list[tuple[int, int, int]]) -> None:
    """All processors of each are drawn, and no more rows are taken than processors are used at a time."""
    found = [
        Occupation(
            job_id=str(number), component="x", cluster="a", processors=count, asked_at=0.0, begun_at=float(begin),
            ended_at=float(begin + length),
        )
        for number, (begin, length, count) in enumerate(spans)
    ]  # fmt: skip
    cells = [
        (row, at)
        for one, first, count in lanes(found)
        for row in range(first, first + count)
        for at in range(int(one.begun_at), int(one.ended_at))
    ]
    assert len(set(cells)) == len(cells) == sum(length * count for _, length, count in spans)
    assert max(row for row, _ in cells) + 1 == max(level for _, level in used(found))


def test_tables_sum_up() -> None:
    """Processor hours by cluster and by job."""
    reports = [ran(7, component("x", "a", 36))]
    found = occupations(reports)
    assert cluster_table(found).rows == [("a", 36, 5.0, 5.0, 1.0)]
    assert job_table(reports, found, UTC).rows == [
        (
            *("7", "job", "completed", 36, 20.0, 100.0, 1.0, None, None, None),
            *("1970-01-01 00:01:20", "1970-01-01 00:01:40", "1970-01-01 00:03:20", ""),
        )
    ]


# -- Pages and charts of jobs: what is on them, that foreign text stays text, and that people can read them.

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
    report = cluster_report(
        lrm="slurm 25.11", closed="<b>drained</b>", processors=20, idle=5, others=8, placeholders=6,
        placeholders_queued=2, polled_at=60.0, down=3, gpus=4, gpus_idle=1,
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
    """A time zone is named by its difference."""
    assert duration(seconds) == text
    assert zone_name(0.0, timezone(timedelta(hours=-5, minutes=-30))) == "UTC-05:30"


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
