# SPDX-License-Identifier: Apache-2.0
"""What ``koala top`` shows of what is reported, on terminals of many sizes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.cli.display import sizes_over_time, sparkline
from koala_adapter.cli.top import LINES, Snapshot, View, choose, latest_output, screen, wrapped
from koala_adapter.model import ClusterName
from koala_adapter.outcome import EndReason, JobOutcome, JobState
from koala_adapter.report.sitevalues import ClusterReport
from koala_adapter.report.values import ComponentReport, SizeChangeReport
from tests.unit.api.jobreports import job_report

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.report.values import JobReport


def cluster(name: str = "alpha", *, idle: int = 4, others: int = 2, ours: int = 10) -> ClusterReport:
    return ClusterReport(
        name=name,
        plugin="local",
        lrm="local",
        closed=None,
        processors=16,
        idle=idle,
        others=others,
        threshold=0,
        placeholders=ours,
        placeholders_queued=0,
        available=idle,
        polled_at=0.0,
        requests=100,
        largest_requests_per_minute=40,
        requests_per_minute=60,
        requests_last_minute=12,
    )


def component(processors: int, *, on: str = "alpha", held: int | None = None) -> ComponentReport:
    return ComponentReport(
        name="worker",
        command=("x",),
        cluster=ClusterName(on),
        processors=processors,
        held=processors if held is None else held,
        queued=0,
        lrm_ids=(),
        hosts=(),
        first_rank=0,
        waited=1.0,
    )


def running(number: int, processors: int, *changes: tuple[float, int, int]) -> JobReport:
    return job_report(
        id=str(number),
        name=f"job{number}",
        kind="malleable" if changes else "rigid",
        state=JobState.RUNNING,
        walltime=1000,
        submitted_at=90.0,
        launched_at=100.0,
        reported_at=200.0,
        components=(component(processors),),
        size_changes=tuple(
            SizeChangeReport(
                at=at, component="worker", cluster="alpha", before=before, after=after, reason="processors are free"
            )
            for at, before, after in changes
        ),
    )


ENDED = job_report(
    id="3",
    name="over",
    state=JobState.FAILED,
    launched_at=100.0,
    finished_at=160.0,
    components=(component(8),),
    outcome=JobOutcome(state=JobState.FAILED, reason=EndReason.EXITED, exit_code=3),
)
BUSY = Snapshot(at=200.0, clusters=(cluster(),), jobs=(ENDED, running(1, 4), running(12, 6, (150.0, 2, 6))))


def lines(snapshot: Snapshot, view: View | None = None, *, width: int = 100, height: int = 30) -> list[str]:
    return [line.plain for line in screen(snapshot, view or View(), width=width, height=height)]


def test_a_bar_is_divided_by_job() -> None:
    bar = next(line for line in lines(BUSY, width=140) if line.startswith("alpha")).split()[1]
    assert bar == "1" * 12 + "2" * 18 + "▒" * 6 + "░" * 12


def test_bar_and_numbers_have_the_same_figures_after_a_shrink() -> None:
    """What a job has given up is neither its own nor idle before the batch system has it back, in both of them."""
    shrunk = replace(BUSY, jobs=(running(1, 4), running(12, 2, (150.0, 6, 2))))
    name, bar, numbers = next(line for line in lines(shrunk, width=140) if line.startswith("alpha")).split(maxsplit=2)
    assert (name, bar) == ("alpha", "1" * 12 + "2" * 6 + "▓" * 12 + "▒" * 6 + "░" * 12)
    assert numbers == "4 idle, 10 ours (4 changing), 2 others, 12/60 req/min"


def test_what_was_taken_since_the_last_look_is_not_idle() -> None:
    """Ours are known at once, what is idle is not; both together are no more than there is."""
    grown = replace(BUSY, clusters=(cluster(ours=12),), jobs=(running(1, 4), running(12, 8, (150.0, 6, 8))))
    _, bar, numbers = next(line for line in lines(grown, width=140) if line.startswith("alpha")).split(maxsplit=2)
    assert bar == "1" * 12 + "2" * 24 + "▒" * 6 + "░" * 6
    assert numbers.startswith("2 idle, 12 ours, 2 others")


def test_jobs_that_run_come_first_and_show_how_far_they_are() -> None:
    """A rigid job a part of its walltime, a malleable one its sizes, one that is over how it ended."""
    text = lines(BUSY)
    shown = [line.split() for line in text if line[2:7].strip().isdecimal()]
    assert [line[0] for line in shown] == ["1", "12", "3"]
    assert "".join(shown[0]).endswith("━━╌╌╌╌╌╌╌╌╌╌╌╌╌╌100sof00:16:40")
    assert shown[1][4] == "▃" * 11 + "█" * 13
    assert shown[2][-5:] == ["8", "exit", "3", "after", "60", "s"][-5:]


def test_what_happened_is_told_in_order() -> None:
    text = lines(BUSY)
    told = [line.partition(" ")[2] for line in text[text.index("WHAT HAPPENED") + 1 : -1]]
    assert told == [
        "job 3 starts after 100 s",
        "job 1 starts after 10 s",
        "job 12 starts after 10 s",
        "job 12 grows on alpha from 2 to 6: processors are free",
        "job 3 failed",
    ]


@pytest.mark.parametrize("width", [60, 72, 80, 132, 200])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_nothing_is_wider_or_higher_than_the_screen(width: int, height: int) -> None:
    """Nor is anything that matters lost at 60 columns: numbers of clusters, state, size and progress of jobs, keys."""
    jobs = tuple(running(number, 1, (150.0, 0, 1)) for number in range(1, 41))
    text = lines(
        Snapshot(at=200.0, clusters=(cluster(), cluster("a-very-long-name")), jobs=jobs),
        View(chosen="1", heading="WHY", text=("because",) * 50),
        width=width,
        height=height,
    )
    assert len(text) <= height
    assert max(map(len, text)) <= width
    assert text[-1].startswith("q quit")
    if height > 10:
        whole = "\n".join(text)
        for part in ("4 idle, 10 ours, 2 others, 12/60 req/min", "running", "100 s of", "WHY"):
            assert part in whole


def test_a_cluster_that_is_closed_says_why() -> None:
    closed = Snapshot(at=0.0, clusters=(replace(cluster(), closed="out of reach: no"),))
    assert "alpha        out of reach: no" in lines(closed)
    assert "no jobs" in lines(closed)


def test_one_job_is_chosen_and_stays_so_where_it_is() -> None:
    """Keys move it by one and not beyond the ends; a job that is gone is replaced by the first."""
    view = choose(View(), BUSY, 0)
    assert view.chosen == "1"
    view = choose(view, BUSY, 1)
    assert view.chosen == "12"
    assert choose(choose(view, BUSY, 5), BUSY, 5).chosen == "3"
    assert choose(View(chosen="77"), BUSY, 0).chosen == "1"
    assert choose(view, Snapshot(at=0.0), 1).chosen == ""
    assert any(line.startswith("▸    12 job12") for line in lines(BUSY, view))


def test_sizes_over_time_are_worked_out_from_the_latest() -> None:
    """Two processors until half time, six from then on; before the first change that is known, what it began with."""
    report = running(1, 6, (150.0, 2, 6))
    assert sizes_over_time(report, 4) == [2, 6, 6, 6]
    assert sizes_over_time(report, 10) == [2] * 4 + [6] * 6
    assert sizes_over_time(job_report(), 4) == []
    assert sizes_over_time(report, 0) == []


def test_a_sparkline_is_as_high_as_the_largest() -> None:
    """Nothing and little are told from each other by the largest only."""
    assert sparkline([1, 2, 4, 8]) == "▁▂▄█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""


def test_the_latest_output_is_marked_and_bounded(tmp_path: Path) -> None:
    for number, name in enumerate(("left", "right")):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "0.out"
        path.write_text("".join(f"{name} {line}\x1b[2J\n" for line in range(100)))
        os.utime(path, (number, number))
    found = latest_output(tmp_path)
    assert len(found) <= LINES
    assert found[-1] == "right/0: right 99\\x1b[2J"
    assert found[0].startswith("left/0: left 8")
    assert wrapped("one two three\n\nfour", 7) == ["one two", "three", "", "four"]


def test_standard_error_is_shown_and_marked(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "0.out").write_text("fine\n")
    (tmp_path / "work" / "0.err").write_text("")
    os.utime(tmp_path / "work" / "0.out", (0, 0))
    assert latest_output(tmp_path) == ["fine"]
    (tmp_path / "work" / "0.err").write_text("not so fine\n")
    assert latest_output(tmp_path) == ["work/0: fine", "work/0 (stderr): not so fine"]
    (tmp_path / "work" / "0.out").unlink()
    assert latest_output(tmp_path) == ["work/0 (stderr): not so fine"]


def test_the_latest_output_of_a_sweep_is_that_of_its_latest_tasks(tmp_path: Path) -> None:
    """The tasks are in directories of a thousand each; as many are shown as there is room for."""
    tasks = tmp_path / "tasks"
    for number in (7, 1000, *range(1001, 1101)):
        path = tasks / f"{number // 1000:03}" / f"{number}.out"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"task {number}\n")
        os.utime(path, (number, number))
    (tasks / "001" / "1100.err").write_text("gone wrong\n")
    found = latest_output(tmp_path, sweep=True)
    assert found[-2:] == ["001/1100: task 1100", "001/1100 (stderr): gone wrong"]
    assert len(found) == LINES
