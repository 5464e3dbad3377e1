# SPDX-License-Identifier: Apache-2.0
"""What commands print on terminals of any kind, the screen of ``koala top``, and how commands follow a job."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import structlog
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from koala_adapter.api.client import Client
from koala_adapter.api.server import Server, host
from koala_adapter.api.statedirectory import ownership
from koala_adapter.cli.console import AsWritten
from koala_adapter.cli.display import (
    FittingTable,
    changes_table,
    clusters_table,
    components_table,
    job_lines,
    jobs_table,
    usage_line,
)
from koala_adapter.cli.following import Display, T, Watched, closing, follow, until_interrupted
from koala_adapter.cli.koala import koala
from koala_adapter.cli.log import set_up_log
from koala_adapter.cli.plan import idle_left, plan_table, show_plan, show_sample, size_notes, wait_said
from koala_adapter.cli.session import make_console, show_error
from koala_adapter.cli.terminal import TerminalWriter, hangup_once
from koala_adapter.cli.top import (
    LINES,
    Snapshot,
    View,
    choose,
    latest_output,
    screen,
    sizes_over_time,
    sparkline,
    wrapped,
)
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import EXIT_CANCELLED, EXIT_REFUSED, KoalaError
from koala_adapter.lrm import load_plugins
from koala_adapter.model import ClusterName, EndReason, InputFile, JobId
from koala_adapter.outcome import JobOutcome, JobState, TaskUsage
from koala_adapter.report.sitevalues import PlannedComponent, PlanReport, SampleSubmission
from koala_adapter.report.values import ComponentReport, JobReport, RankUsage, SizeChangeReport, UsageReport
from koala_adapter.slots import PLAIN, Slot
from tests.unit.api.jobreports import cluster_report, component_report, job_report
from tests.unit.scheduler.scheduler_site import component as watching_component
from tests.unit.scheduler.scheduler_site import job
from tests.unit.service.test_service import Served

# What ``koala top`` shows of what is reported, on terminals of many sizes.


def component(processors: int, *, on: str = "alpha") -> ComponentReport:
    return component_report(cluster=ClusterName(on), processors=processors, held=processors, first_rank=0, waited=1.0)


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
BUSY = Snapshot(at=200.0, clusters=(cluster_report(),), jobs=(ENDED, running(1, 4), running(12, 6, (150.0, 2, 6))))


def lines(snapshot: Snapshot, view: View | None = None, *, width: int = 100, height: int = 30) -> list[str]:
    return [line.plain for line in screen(snapshot, view or View(), width=width, height=height)]


@pytest.mark.parametrize(
    ("held", "size", "bar", "numbers"),
    [
        pytest.param(10, (2, 6), "1" * 12 + "2" * 18 + "▒" * 6 + "░" * 12, "4 idle, 10 ours, 2 others", id="as it is"),
        pytest.param(
            10, (6, 2), "1" * 12 + "2" * 6 + "▓" * 12 + "▒" * 6 + "░" * 12, "4 idle, 10 ours (4 changing), 2 others",
            id="what a job has given up is neither its own nor idle before the batch system has it back",
        ),
        pytest.param(
            12, (6, 8), "1" * 12 + "2" * 24 + "▒" * 6 + "░" * 6, "2 idle, 12 ours, 2 others",
            id="what was taken since the last look is not idle",
        ),
    ],
)  # fmt: skip
def test_bar_and_numbers_of_a_cluster_have_the_same_figures(
    held: int, size: tuple[int, int], bar: str, numbers: str
) -> None:
    """Both are divided by job, and add up to no more than there is."""
    jobs = (running(1, 4), running(12, size[1], (150.0, *size)))
    busy = replace(BUSY, clusters=(cluster_report(placeholders=held),), jobs=jobs)
    name, *shown = next(line for line in lines(busy, width=140) if line.startswith("alpha")).split(maxsplit=2)
    assert (name, shown) == ("alpha", [bar, f"{numbers}, 12/60 req/min"])


@pytest.mark.parametrize("closed", [None, "out of reach: no answer"])
def test_a_cluster_that_waits_for_the_bound_of_requests_says_so(closed: str | None) -> None:
    waits = cluster_report(closed=closed, asked_again_in=12.4)
    for report, told in (waits, True), (replace(waits, asked_again_in=0.005), False):
        assert ("asked again in 12 s" in "\n".join(shown(clusters_table([report], 10.0), 200))) == told
        if closed is None:
            text = lines(Snapshot(at=200.0, clusters=(report,), jobs=()), width=140)
            assert ("asked again in 12 s" in "\n".join(text)) == told


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
        Snapshot(at=200.0, clusters=(cluster_report(), cluster_report(name="a-very-long-name")), jobs=jobs),
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
    closed = Snapshot(at=0.0, clusters=(cluster_report(closed="out of reach: no"),))
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
    assert sizes_over_time(report, 10) == [2] * 4 + [6] * 6
    assert sizes_over_time(job_report(), 4) == sizes_over_time(report, 0) == []
    assert [sparkline(sizes) for sizes in ([1, 2, 4, 8], [0, 0], [])] == ["▁▂▄█", "▁▁", ""]


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


# -- Text from outside never acts on a terminal, wherever a command or a log shows it.


HOSTILE = "a\x1b]0;ownedb\x9b31mc\u202ed"
SHOWN = r"a\x1b]0;ownedb\x9b31mc\u202ed"


def table() -> FittingTable:
    found = FittingTable("name")
    found.add_row(escape(HOSTILE))
    return found


@pytest.mark.parametrize("renderable", [escape(HOSTILE), Text(HOSTILE), table()], ids=["markup", "text", "table"])
def test_what_a_terminal_would_act_on_is_escaped(renderable: RenderableType) -> None:
    file = io.StringIO()
    make_console(file).print(renderable)
    assert SHOWN in file.getvalue()
    assert not any(one in file.getvalue() for one in "\x1b\x9b\u202e")


def test_only_what_is_not_printable_is_changed() -> None:
    """Lines and letters stay as they are, and so does all that the user's own processes wrote."""
    file = io.StringIO()
    make_console(file).print("größe ━ 大\nsecond", markup=False)
    make_console(file).print(AsWritten("\x1b[31mred\x1b[0m\n"), end="")
    assert file.getvalue() == "größe ━ 大\nsecond\n\x1b[31mred\x1b[0m\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_terminals_of_few_characters_get_what_they_can_show(encoding: str) -> None:
    """Rich draws its frames in ASCII there, and nothing fails for a character that there is not."""
    shown = io.BytesIO()
    console = make_console(io.TextIOWrapper(shown, encoding=encoding, write_through=True))
    console.print(Panel("größe ━ 大"))
    text = shown.getvalue().decode(encoding)
    assert text.isascii() == (encoding == "ascii")
    assert ("größe ? ?" in text) == (encoding == "latin-1")
    assert text.startswith("+----")


def test_errors_and_log_lines_are_escaped_and_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    show_error(KoalaError(HOSTILE, hint=HOSTILE))
    assert capsys.readouterr().err.count(SHOWN) == 2
    former = structlog.get_config()
    try:
        set_up_log(shown=True)
        structlog.get_logger().info("refused", name=HOSTILE + "\nforged")
    finally:
        structlog.configure(**former)
    said = capsys.readouterr().err
    assert SHOWN + r"\nforged" in said
    assert len(said.splitlines()) == 1


# -- A terminal that goes away is one hangup, and nothing that is written to it afterwards fails.


def test_what_is_written_after_the_end_of_the_terminal_goes_nowhere() -> None:
    """The first failure is told, once; every byte counts as written."""
    told: list[str] = []
    master, slave = os.openpty()
    writer = TerminalWriter(slave, hang_up=lambda: told.append("hangup"))
    assert writer.write(b"seen") == 4
    assert os.read(master, 100) == b"seen"
    os.close(master)
    assert told == []
    assert (writer.write(b"unseen"), writer.write(b"nor this")) == (6, 8)
    assert told == ["hangup"]
    os.close(slave)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_other_troubles_of_writing_are_raised() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left"):
        TerminalWriter(descriptor).write(b"x")
    os.close(descriptor)


def test_a_hangup_that_comes_twice_counts_once() -> None:
    """The kernel, a shell and a failed write tell of the same one."""
    heard: list[int] = []
    handler = hangup_once(lambda number, _frame: heard.append(number))
    handler(signal.SIGHUP, None)
    handler(signal.SIGHUP, None)
    assert heard == [signal.SIGHUP]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_are_opened(tmp_path: Path, closed: str) -> None:
    """No file that a command opens gets the number of a standard descriptor, and printing fails nobody."""
    program = (
        "import os, sys\n"
        "from koala_adapter.cli.terminal import open_standard_descriptors\n"
        "open_standard_descriptors()\n"
        "opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)\n"
        "print('out'); print('err', file=sys.stderr); assert sys.stdin is not None; sys.stdout.flush()\n"
        "os.write(opened, b'2 < %d' % opened)\n"
        "assert opened > 2\n"
    )
    command = shlex.join([sys.executable, "-c", program, str(tmp_path / "opened")])
    subprocess.run(["sh", "-c", f"exec {command} {closed}"], check=True)
    assert (tmp_path / "opened").read_text().startswith("2 < ")


# -- Sixty columns: what a table would have to cut off stands in lines below each other; wide terminals get the table.


CLOSED = "out of reach: cannot run squeue: No such file or directory"
JOB = replace(
    running(4711, 12, (150.0, 2, 12)),
    name="n-body",
    components=(component(8, on="delft-das5"), component(4, on="amsterdam-uva")),
)
CLUSTERS = (
    cluster_report(name="delft-das5", plugin="slurm", lrm="slurm 22.05.8", placeholders_queued=12),
    cluster_report(name="amsterdam-uva", closed=CLOSED),
)
PLANNED = PlannedComponent(component="simulation", cluster="amsterdam-uva", processors=1000, idle=10)


def shown(renderable: RenderableType, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(renderable)
    return file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (
            clusters_table(CLUSTERS, 10.0),
            ["delft-das5", "slurm 22.05.8", "16", "10 (12 queued)", "12/60", "open", "amsterdam-uva", CLOSED],
        ),
        (jobs_table([JOB]), ["4711", "n-body", "running", "12", "amsterdam-uva, delft-das5", "10 s", "100 s"]),
        (components_table(JOB), ["worker", "delft-das5", "8 of 8", "amsterdam-uva", "4 of 4", "1.0 s"]),
        (changes_table(JOB), ["50 s", "worker", "alpha", "2 to 12", "processors are free"]),
        (plan_table((PLANNED,)), ["simulation", "amsterdam-uva", "1000", "10", "990 would wait in its queue"]),
    ],
    ids=["clusters", "jobs", "components", "changes", "plan"],
)
@pytest.mark.parametrize("width", [60, 70, 80, 200])
def test_no_value_is_lost(table: FittingTable, values: list[str], width: int) -> None:
    lines = shown(table, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    words = " ".join(" ".join(lines).split())
    for value in values:
        assert all(word in words for word in value.split())


def test_a_name_is_shown_as_it_is() -> None:
    """Neither markup nor the words of emoji are anything else, also where a row becomes some lines."""
    named = replace(JOB, name=":smile: [b]")
    console = make_console(io.TextIOWrapper(io.BytesIO()))
    for width in (40, 200):
        with console.capture() as captured:
            console.print(jobs_table([named]), width=width)
        assert ":smile: [b]" in captured.get()


NEEDED = Slot(threads=2, memory_mib=4096, gpus=1, gpu_kind="a100", features=("ib",), queue="long", account="physics")
SAID = "8 ranks of 2 processors, 4096 MiB, 1 GPU (a100), features ib, queue long"


def test_a_job_tells_what_its_ranks_need() -> None:
    first, second = JOB.components
    asking = replace(first, slot=NEEDED)
    assert (JOB.slots, replace(JOB, components=(asking,)).slots) == ("", SAID)
    assert replace(JOB, components=(asking, second)).slots == f"{first.name}: {SAID}"
    assert f"{first.name}: {SAID}" in job_lines(replace(JOB, components=(asking, second)))
    assert "20" in shown(jobs_table([replace(JOB, components=(asking, second))]), 200)[1].split()


def test_a_plan_counts_ranks_where_they_need_more_than_a_processor() -> None:
    two = PlannedComponent(component="one", cluster="a", processors=2, idle=4, slot=Slot(threads=2))
    components = (two, replace(two, component="two", processors=5, idle=8, slot=PLAIN))
    lines = shown(plan_table(components), 200)
    assert lines[0].split()[:3] == ["component", "cluster", "ranks"]
    assert lines[1].split()[2:] == ["2", "4", "at", "once"]
    assert lines[2].split()[2:5] == ["5", "4", "1"]
    assert wait_said(components[1], idle_left(components)[1]) == "processors after an unknown wait"


@pytest.mark.parametrize("size", [300, 300 * 1024**2], ids=["small", "large"])
def test_a_plan_tells_of_input_files_that_travel_by_themselves(size: int) -> None:
    """Small ones go with the message that launches a rank."""
    file = InputFile(source="/data/genome", target="genome", size=size)
    planned = PlannedComponent(
        component="x", cluster="a", processors=2, idle=4, input_files=1, missing=("/data/genome",), missing_mib=300.0
    )
    report = PlanReport(result="placed", reason="", components=(planned,), closed={})
    text = io.StringIO()
    show_plan(report, job("1", replace(watching_component("x", 2), input_files=(file,))), Console(file=text, width=200))
    assert ("1 of 1 input files travel" in text.getvalue()) == (size > 300)


def test_a_submission_tells_what_each_placeholder_asks_for() -> None:
    sample = SampleSubmission(
        component="c1", command=("sbatch",), environment={}, script="", note="", ranks=8, slot=NEEDED
    )
    file = io.StringIO()
    show_sample(sample, "alpha", Console(file=file, width=20))
    assert file.getvalue().splitlines() == [f"# component c1 on cluster alpha: {SAID}", "sbatch"]


def test_rows_that_do_not_fit_are_named_and_have_all_cells() -> None:
    """What fits is a table."""
    little = jobs_table([replace(running(1, 4), name="job")])
    assert shown(little, 60)[0].split() == ["id", "name", "state", "processors", "clusters", "waited", "ran", "exit"]
    assert shown(jobs_table([JOB]), 200)[0].split()[0] == "id"
    table = FittingTable("name", "one", "two", "three")
    table.add_row("a", "[red]1[/]", "", "x" * 15)
    table.add_row("b" * 15, "1", "2", "3")
    assert shown(FittingTable("name", "one"), 10) == ["name  one"]
    assert shown(table, 31) == ["a  one 1  three xxxxxxxxxxxxxxx", "bbbbbbbbbbbbbbb  one 1  two 2", "  three 3"]


# -- How long a job is followed: to its outcome, or until nothing of it is left in any LRM.


COMPLETED = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)


def told(taken: list[JobReport]) -> Generator[JobReport, None, None]:
    """Yield a job that runs, has ended, whose agents are gone, of which nothing is left; note which were taken."""
    ended = job_report(state=JobState.COMPLETED, outcome=COMPLETED)
    for report in (
        job_report(),
        replace(ended, placeholders_left=2),
        replace(ended, placeholders_left=2, concluded=True),
        replace(ended, concluded=True),
    ):
        taken.append(report)
        yield report


@pytest.mark.parametrize(("released", "reports"), [(False, 3), (True, 4)])
def test_a_service_that_goes_on_sees_to_the_placeholders(released: bool, reports: int) -> None:  # noqa: FBT001
    """Whoever is the service waits for their ends, too."""
    taken: list[JobReport] = []
    screen = io.StringIO()
    last = follow(told(taken), Display(make_console(screen), quiet=False), released=released)
    assert (len(taken), last) == (reports, taken[-1])
    closing(last, make_console(screen))
    assert "still ending" not in screen.getvalue()
    closing(replace(last, placeholders_left=2, concluded=False), make_console(screen))
    assert "2 placeholders are still ending" in screen.getvalue()


def test_what_is_waited_for_after_the_end_is_told() -> None:
    """As a cluster cannot be looked at for a while; not where it is over at once."""
    ended = job_report(state=JobState.COMPLETED, outcome=COMPLETED, placeholders_left=1, finished_at=50.0)
    late = replace(ended, reported_at=52.0, explanation="Still being given back: 1 on a.")
    for reports, told in (
        ((ended, late), 1),
        ((replace(ended, reported_at=50.0), replace(late, placeholders_left=0)), 0),
    ):
        screen = io.StringIO()
        follow((one for one in reports), Display(make_console(screen), quiet=False))
        assert screen.getvalue().count("Still being given back") == told


def test_what_processes_write_is_shown_beside_our_own_lines(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Their standard error where progress is, apart from their output; only output if quiet, which can be left out."""
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "0.out").write_bytes(b"result\n")
    report = job_report(state=JobState.COMPLETED, outcome=COMPLETED, concluded=True, output_directory=str(tmp_path))
    for output, shown in ((True, b"result\n"), (False, b"")):
        screen = io.StringIO()
        follow((one for one in [report]), Display(make_console(screen), quiet=True, output=output))
        assert (capfdbinary.readouterr().out, screen.getvalue()) == (shown, "")
    (tmp_path / "c1" / "0.err").write_bytes(b"no such file\n[1/2] not markup")
    screen = io.StringIO()
    follow((one for one in [report]), Display(make_console(screen), quiet=False))
    assert capfdbinary.readouterr().out == b"result\n"
    assert "no such file\n[1/2] not markup" in screen.getvalue()


def test_a_job_in_detail_names_no_directory_that_is_not_there(tmp_path: Path) -> None:
    """As `koala run` does: a job that never started has printed nothing."""
    assert "no output" in job_lines(job_report(output_directory=str(tmp_path / "none")))
    assert f"output in {tmp_path}" in job_lines(job_report(output_directory=str(tmp_path)))


def test_the_reason_for_waiting_goes_to_a_pipe(tmp_path: Path) -> None:
    """Once, and again when it changes in more than times and counts; not when the job runs."""
    waiting = job_report(
        state=JobState.WAITING, launched_at=None, output_directory=str(tmp_path), explanation="It waits for 45 s."
    )
    screen = io.StringIO()
    display = Display(make_console(screen), quiet=False)
    for report in (
        waiting,
        replace(waiting, explanation="It waits for 2 h 10 min."),
        replace(waiting, explanation="Placeholders started but never reported: No route to host."),
        replace(waiting, state=JobState.RUNNING, launched_at=1.0, explanation="It runs."),
    ):
        display.show(report)
    reasons = [line.strip() for line in screen.getvalue().splitlines() if line.startswith(" ")]
    assert reasons == ["It waits for 45 s.", "Placeholders started but never reported: No route to host."]


# -- `koala status --watch`: told by the service, shown in place or in lines, ended by Ctrl-C in good order.


PATIENCE = 120.0
WAITS = job_report(id="7", state=JobState.WAITING)
RUNS = job_report(id="7", state=JobState.RUNNING)
OTHER = job_report(id="8", state=JobState.WAITING)
OVER = job_report(
    id="7",
    state=JobState.CANCELLED,
    outcome=JobOutcome(state=JobState.CANCELLED, reason=EndReason.CANCELLED, exit_code=EXIT_CANCELLED),
)


def watching_told(*changes: T) -> Iterator[T]:
    """Yield what a service tells; then comes Ctrl-C."""
    yield from changes
    raise KeyboardInterrupt


def on_terminal(height: int = 25) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=height, highlight=False)


def watching_shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_a_line_for_each_change() -> None:
    console = Console(file=io.StringIO(), width=100)
    with Watched(console) as watched:
        until_interrupted(watched.show, watching_told([], [WAITS], [WAITS, OTHER], [RUNS, OTHER], [RUNS, OTHER]))
    assert watching_shown(console).splitlines() == ["no jobs", "job 7 waiting: ", "job 8 waiting: ", "job 7 running: "]


def test_on_a_terminal_the_table_is_refreshed_in_place() -> None:
    """The cursor goes up over what was shown before; the last table stays."""
    console = on_terminal()
    with Watched(console) as watched:
        until_interrupted(watched.show, watching_told([WAITS], [RUNS]))
    written = watching_shown(console)
    assert written.index("waiting") < written.index("\x1b[1A") < written.index("running")


@pytest.mark.parametrize(("height", "width", "first"), [(6, 100, 5), (12, 40, 6)], ids=["table", "lines"])
def test_a_terminal_shows_the_latest_jobs_that_it_has_lines_for(height: int, width: int, first: int) -> None:
    console = on_terminal(height=height)
    console.width = width
    with Watched(console) as watched:
        watched.show([job_report(id=f"4{number}", name=f"name{number}") for number in range(9)])
    assert [number for number in range(9) if f"name{number}" in watching_shown(console)] == [*range(first, 9)]


def test_one_job_in_detail() -> None:
    console, plain = on_terminal(), Console(file=io.StringIO(), width=100)
    for one in (console, plain):
        with Watched(one) as watched:
            until_interrupted(watched.show_one, [replace(RUNS, hand_backs=2), OVER])
    assert "handed back 2 times" in watching_shown(console)
    assert watching_shown(plain).splitlines() == ["job 7 running: ", "job 7 cancelled"]


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[tuple[Client, Server]]:
    served = Served(tmp_path)
    with ownership(served.directory), start_blocking_portal() as portal:
        future, server = portal.start_task(partial(host, served.site, served.plugins, served.directory))
        yield Client(served.directory), server
        portal.call(server.quiet)
        future.cancel()


def test_the_service_tells_of_each_change(hosted: tuple[Client, Server]) -> None:
    client, _ = hosted
    watch = client.watch_jobs()
    assert next(watch) == []
    first, second = (client.submit(job("0", watching_component("x", 1))) for _ in range(2))
    assert any([one.id for one in latest] == [first, second] for latest in watch)
    client.cancel(first)
    assert any(latest[0].outcome is not None for latest in watch)


def test_who_watches_does_not_keep_a_service_from_ending(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with ownership(served.directory), start_blocking_portal() as portal:
        future, server = portal.start_task(partial(host, served.site, served.plugins, served.directory))
        watch = Client(served.directory).watch_jobs()
        assert next(watch) == []
        portal.call(partial(server.quiet, 0.0))
        assert list(watch) == [[]]
        portal.call(partial(server.quiet, PATIENCE))
        future.cancel()


def test_ctrl_c_ends_it_with_exit_code_0(hosted: tuple[Client, Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was what one wanted; what was shown stays."""
    client, _ = hosted
    id_ = client.submit(job("0", watching_component("x", 1)))
    main, read = threading.get_ident(), []
    reader, writer = os.pipe()

    def interrupt() -> None:
        with os.fdopen(reader, encoding="utf-8") as lines:
            read.append(next(lines))
            signal.pthread_kill(main, signal.SIGINT)
            read.extend(lines)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with os.fdopen(writer, "w", encoding="utf-8") as output:
        monkeypatch.setattr("sys.stdout", output)
        with pytest.raises(SystemExit) as ended:
            koala(["--state", str(client.directory), "status", "--watch"])
    thread.join()
    assert ended.value.code == 0
    assert read[0].startswith(f"job {id_} ")


def test_a_job_that_there_is_not_and_one_document(hosted: tuple[Client, Server]) -> None:
    client, _ = hosted
    command = ["--state", str(client.directory), "status", "--watch"]
    result = CliRunner().invoke(koala, [*command, "99"])
    assert (result.exit_code, "no job '99'" in result.output) == (EXIT_REFUSED, True)
    result = CliRunner().invoke(koala, [*command, "--json"])
    assert "use one of them" in result.output


# -- What `koala plan` says of the sizes that a job will have.


SITE = '[scheduler]\napproach = "{approach}"\n[[clusters]]\nname = "a"\nplugin = "local"\n'
HEAD = (
    'kind = "malleable"\nrunner = "workers"\nwalltime = 60\n'
    '[[components]]\nname = "head"\ncommand = ["a"]\nprocessors = 1\n'
)
WORKER = '[[components]]\nname = "worker"\ncommand = ["a"]\nminimum = 1\nmaximum = 4\n{more}'


def notes(text: str, approach: str, tmp_path: Path) -> list[str]:
    site = load_site_text(SITE.format(approach=approach), source="site.toml", plugins=load_plugins())
    job = load_job_text(text, directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0)
    return size_notes(job, site)


@pytest.mark.parametrize(
    ("approach", "more", "where", "when"),
    [
        ("pwa", "flexible = true\n", "on all clusters together", "gives them back when other jobs wait"),
        ("none", 'cluster = "a"\n', "on a", "changes only when it asks for it itself, or its owner does"),
        ("pra", "", "on the cluster where it starts", "before jobs that wait"),
    ],
)
def test_sizes_of_workers(approach: str, more: str, where: str, when: str, tmp_path: Path) -> None:
    """Bounds, clusters, and when they change; nothing of the head, which does not, nor of a rigid job."""
    assert not notes('walltime = 60\n[[components]]\ncommand = ["a"]\nprocessors = 2\n', approach, tmp_path)
    (said,) = notes(HEAD + WORKER.format(more=more), approach, tmp_path)
    assert said.startswith(f"worker can have 1 to 4 processors {where} while it runs: ")
    assert when in said


# What a job has used.

USAGE = UsageReport(
    held_seconds=200.0,
    held_before_launch_seconds=10.0,
    used_seconds=76.0,
    memory_bytes=1_288_490_189,
    memory_asked_bytes=4 * 2**30,
    measured=1,
)


def measured(usage: UsageReport, ran: float = 100.0) -> JobReport:
    return job_report(launched_at=0.0, finished_at=ran, state=JobState.COMPLETED, outcome=COMPLETED, usage=usage)


@pytest.mark.parametrize(
    ("usage", "line"),
    [
        (USAGE, "used 38 % of the processors it held, 1.2 of 4 GiB"),
        (replace(USAGE, memory_asked_bytes=0), "used 38 % of the processors it held, 1.2 GiB of memory"),
        (replace(USAGE, memory_bytes=2**20), "used 38 % of the processors it held, 1 MiB of 4 GiB"),
        (
            replace(USAGE, held_before_launch_seconds=50.0, measured=2, uncounted=1),
            (
                "used 38 % of the processors it held (25 % of that time before its launch), "
                "1.2 of 4 GiB in its largest rank; 1 rank not counted"
            ),
        ),
        (replace(USAGE, measured=0), ""),
    ],
)
def test_what_a_job_has_used_is_one_line(usage: UsageReport, line: str) -> None:
    """Nothing of a job that goes on, or has run for some seconds only."""
    assert usage_line(measured(usage)) == line
    assert not usage_line(measured(usage, ran=4.0))
    assert not usage_line(replace(measured(usage), outcome=None))
    console = Console(file=io.StringIO(), width=100)
    closing(measured(usage), console)
    assert watching_shown(console).count("used ") == bool(line)


def test_what_each_rank_has_used_is_in_the_details() -> None:
    used = TaskUsage(user_seconds=3.0, system_seconds=1.0, memory_bytes=2**20, read_bytes=2**30, written_bytes=1)
    ranks = tuple(RankUsage(rank=rank, component="c", used=used) for rank in (7, 3))
    lines = job_lines(measured(replace(USAGE, gpu_seconds=3.0, by_rank=ranks, measured=12)))
    console = Console(file=io.StringIO(), width=100)
    console.print(*lines, sep="\n", soft_wrap=True)
    text = watching_shown(console)
    assert "processor time 76 s (0.0 s of it in the kernel) of 00:03:20 held, read 0 bytes, written 0 bytes" in text
    assert "GPUs busy 3.0 s" in text
    assert "7     c          4.0 s           1 MiB   1 GiB  1 byte" in text
    assert "and 10 ranks in between" in text
