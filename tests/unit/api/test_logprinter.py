# SPDX-License-Identifier: Apache-2.0
"""What the commands print, and how: durations, tables, logs of ranks, checks, plans."""

from __future__ import annotations

import io
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

from koala_adapter.api.offline import ClusterAnswer, JournalView, answer_report
from koala_adapter.api.statedirectory import PIECE, LogPrinter
from koala_adapter.cli.display import bar, clusters_table, network_table, seconds
from koala_adapter.cli.plan import plan_table
from koala_adapter.cli.session import make_console
from koala_adapter.cli.site import Checked
from koala_adapter.cli.top import latest_output
from koala_adapter.lrm import CheckResult
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, NodeGpus, NodeState
from koala_adapter.report.sitevalues import (
    ClusterFiles,
    ClusterNetwork,
    ClusterReport,
    NodeConnection,
    PlannedComponent,
)
from koala_adapter.service.clusters import ClusterReading
from koala_adapter.sitesetup.checks import Place
from tests.unit.api.jobreports import cluster_report, component_report, job_report
from tests.unit.scheduler.scheduler_site import Site
from tests.unit.service.scripted_lrm import config, node
from tests.vanishing import vanish_when_read


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not let the shell around the tests say how wide a line may be."""
    monkeypatch.delenv("COLUMNS", raising=False)


def printed(*renderables: str | Table) -> str:
    file = io.StringIO()
    make_console(file).print(*renderables)
    return file.getvalue()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (5.0, "5.0 s"),
        (9.96, "10.0 s"),
        (12.4, "12 s"),
        (119.0, "119 s"),
        (3725.0, "01:02:05"),
    ],
)
def test_durations_read_as_people_say_them(value: float | None, shown: str) -> None:
    assert seconds(value) == shown


def test_bar_is_always_as_long() -> None:
    """Whatever the part, the bar has one length, and a whole of nothing is full."""
    assert {bar(part, 7).count("━") + bar(part, 7).count("╌") for part in range(9)} == {12}
    assert "[dim][/]" in bar(0, 0)


def test_nothing_is_wrapped_or_padded_without_a_terminal() -> None:
    """A program that reads our lines gets them whole, and without spaces at their ends."""
    components = (
        PlannedComponent(component="x" * 150, cluster="a", processors=1, idle=9),
        PlannedComponent(component="y", cluster="a", processors=10, idle=9),
    )
    lines = printed(plan_table(components)).splitlines()
    assert len(lines) == 3
    assert [line for line in lines if line != line.rstrip()] == []


def test_plan_counts_what_it_takes_itself() -> None:
    components = (
        PlannedComponent(component="one", cluster="a", processors=4, idle=6),
        PlannedComponent(component="two", cluster="a", processors=4, idle=6),
    )
    first, second = printed(plan_table(components)).splitlines()[1:]
    assert first.endswith("at once")
    assert second.endswith("2 would wait in its queue")


def test_check_lines_and_summary() -> None:
    """Each line is OK or FAIL; only a FAIL has its remedy; square brackets are text."""
    file = io.StringIO()
    checked = Checked(make_console(file), quiet=False)
    checked.add(
        Place(cluster="alpha"), [CheckResult(subject="version", ok=True, found="[slurm] 22.05", remedy="none needed")]
    )
    assert checked.ok
    checked.add(
        Place(site="delft", cluster="beta"),
        [CheckResult(subject="nodes", ok=False, found="none", remedy="switch them on")],
    )
    assert file.getvalue().splitlines() == [
        "alpha",
        "  OK   version: [slurm] 22.05",
        "beta",
        "  FAIL nodes: none",
        "       remedy: switch them on",
    ]
    assert "1 of 2 checks FAIL" in checked.summary()
    assert checked.to_json()["ok"] is False


# ---- logs -----------------------------------------------------------------------------------------------------------


def log_files(directory: Path, **texts: str) -> None:
    """Write output files, named ``component_rank``."""
    for name, text in texts.items():
        component, _, rank = name.partition("_")
        (directory / component).mkdir(exist_ok=True)
        with (directory / component / f"{rank}.out").open("a", encoding="utf-8") as file:
            file.write(text)


def written_of(directory: Path, *, marked: bool, component: str | None = None, rank: int | None = None) -> bytes:
    """Return what is printed of all files, or of those of a component and a rank."""
    pieces: list[bytes] = []
    LogPrinter(directory, component=component, rank=rank, write=pieces.append).print_new(marked=marked)
    return b"".join(pieces)


def test_log_lines_are_marked_in_order_of_rank(tmp_path: Path) -> None:
    """Those of one process are not; a component and a rank can be chosen."""
    log_files(tmp_path, a_10="ten\n", a_2="two\n2\n", b_0="zero\n")
    assert written_of(tmp_path, marked=True) == b"a/2: two\na/2: 2\na/10: ten\nb/0: zero\n"
    assert written_of(tmp_path, marked=False, component="a", rank=2) == b"two\n2\n"


def test_following_prints_only_whole_new_lines(tmp_path: Path) -> None:
    """A line that is being written waits for its end, or for that of the job, and then comes as it is."""
    pieces: list[bytes] = []
    printer = LogPrinter(tmp_path, write=pieces.append)
    log_files(tmp_path, a_0="one\ntw")
    printer.print_new(marked=False)
    log_files(tmp_path, a_0="o\nthr")
    printer.print_new(marked=False)
    assert b"".join(pieces) == b"one\ntwo\n"
    printer.print_new(marked=False, rest=True)
    assert b"".join(pieces) == b"one\ntwo\nthr"


class Follower:
    """A printer that does not hold unfinished lines back, with a clock that is set."""

    def __init__(self, directory: Path, *, marked: bool) -> None:
        log_files(directory, a_0="")
        self.now = 0.0
        self._file = directory / "a" / "0.out"
        self._marked = marked
        self._pieces: list[bytes] = []
        self._printer = LogPrinter(directory, write=self._pieces.append, unfinished=True, clock=lambda: self.now)

    def after(self, seconds: float, data: bytes = b"", *, rest: bool = False) -> bytes:
        """Return what is printed then, when that much more was written."""
        self.now += seconds
        with self._file.open("ab") as file:
            file.write(data)
        self._pieces.clear()
        self._printer.print_new(marked=self._marked, rest=rest)
        return b"".join(self._pieces)


def test_a_line_without_an_end_is_printed_after_a_second(tmp_path: Path) -> None:
    """A question, or dots that show progress, are seen while the program runs; more of them begins a new second."""
    follower = Follower(tmp_path, marked=False)
    assert follower.after(0.0, b"one\nwork") == b"one\n"
    assert follower.after(0.9, b"ing") == b""
    assert follower.after(0.9) == b""
    assert follower.after(0.2) == b"working"
    assert follower.after(5.0) == b""
    assert follower.after(0.0, b" done\n") == b" done\n"


@pytest.mark.parametrize(
    ("marked", "expected"),
    [
        (False, [b"\r", b"step 1\r", b"", b"step 2\r\nend\r\n"]),
        (True, [b"", b"a/0: step 1\n", b"", b"a/0: step 2\r\na/0: end\r\n"]),
    ],
)
def test_a_carriage_return_ends_a_piece(tmp_path: Path, *, marked: bool, expected: list[bytes]) -> None:
    follower = Follower(tmp_path, marked=marked)
    written = (b"\rstep 1", b"\rstep 2", b"\r", b"\nend\r\n")
    assert [follower.after(0.0, data) for data in written] == expected


def test_the_file_is_printed_byte_for_byte_whatever_its_pieces(tmp_path: Path) -> None:
    for number, text in enumerate((b"a\r\rb\r", b"\r\n\n\rc\n", b"\n\r", b"x" * 70_000 + b"\ry")):
        (tmp_path / str(number)).mkdir()
        follower = Follower(tmp_path / str(number), marked=False)
        seen = b"".join(follower.after(0.5, bytes([byte])) for byte in text[:40]) + follower.after(0.0, text[40:])
        assert seen + follower.after(0.0, rest=True) == text


def test_64_kib_of_an_unfinished_line_are_enough(tmp_path: Path) -> None:
    follower = Follower(tmp_path, marked=False)
    assert follower.after(0.0, b"x" * 65_537) == b"x" * 65_537


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("line", [b"some text" * 9 + b"\n", b"x" * 1000], ids=["lines", "no end of line"])
def test_output_of_any_size_is_printed_in_pieces(tmp_path: Path, line: bytes, *, marked: bool) -> None:
    """A small part of it is in memory at once, whether or not it has lines."""
    log_files(tmp_path, a_0="")
    written = line * (16 * PIECE // len(line))
    (tmp_path / "a" / "0.out").write_bytes(written)
    tracemalloc.start()
    LogPrinter(tmp_path, write=lambda _: None).print_new(marked=marked, rest=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(written) / 2
    pieces: list[bytes] = []
    LogPrinter(tmp_path, write=pieces.append).print_new(marked=marked, rest=True)
    printed = b"".join(pieces)
    if marked:
        assert printed.replace(b"a/0: ", b"").replace(b"\n", b"") == written.replace(b"\n", b"")
    else:
        assert printed == written


def put_away(directory: Path, attempt: int) -> None:
    """Do what a service does with the output of an attempt when it launches the next one."""
    kept = directory / "_attempts" / str(attempt)
    kept.mkdir(parents=True)
    for component in directory.glob("[!_]*"):
        component.rename(kept / component.name)


def test_attempts_are_followed_in_their_order(tmp_path: Path) -> None:
    """Those that were over before are passed over; a line without an end is not joined to what the next one writes."""
    log_files(tmp_path, a_0="first\n")
    put_away(tmp_path, 1)
    pieces: list[bytes] = []
    printer = LogPrinter(tmp_path, write=pieces.append)
    log_files(tmp_path, a_0="second\nbegun", a_1="seen late\n")
    put_away(tmp_path, 2)
    log_files(tmp_path, a_0="third\n")
    printer.print_new(marked=True)
    put_away(tmp_path, 3)
    printer.print_new(marked=True, rest=True)
    assert b"".join(pieces) == b"a/0: second\na/0: begun\na/0: third\na/1: seen late\n"


def test_a_directory_may_be_removed_while_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service removes the directory of a job's input files at the end of the job."""
    log_files(tmp_path, a_0="all there is\n")
    files = tmp_path / "_input"
    vanish_when_read(files, monkeypatch)
    pieces: list[bytes] = []
    printer = LogPrinter(tmp_path, write=pieces.append)
    for look in (lambda: printer.print_new(marked=True), lambda: printer.silent, lambda: latest_output(tmp_path)):
        files.mkdir()
        look()
        assert not files.exists()
    assert pieces == [b"a/0: all there is\n"]


def test_the_next_attempt_may_begin_while_a_reader_is_slow(tmp_path: Path) -> None:
    log_files(tmp_path, a_0="first\n", a_1="first\n")
    pieces: list[bytes] = []

    def write(data: bytes) -> None:
        pieces.append(data)
        if len(pieces) == 1:
            put_away(tmp_path, 1)
            log_files(tmp_path, a_0="second\n", a_1="second\n")

    printer = LogPrinter(tmp_path, write=write)
    printer.print_new(marked=True)
    printer.print_new(marked=True)
    assert b"".join(pieces) == b"a/0: first\na/1: first\na/1: second\na/0: second\n"


def test_marks_go_by_the_processes_of_the_job() -> None:
    """How many there are is known of the job, pieces of a component together; files that are there do not count."""
    parts = [component_report(name=name, processors=size) for name, size in (("left", 1), ("right", 2), ("right", 1))]
    report = job_report(components=tuple(parts))
    assert (report.processes(), report.processes("right"), report.processes("left")) == (4, 3, 1)
    assert (report.processes(rank=0), report.processes(rank=2), report.processes("right", 1)) == (2, 1, 1)


def answer(directory: Path, reading: ClusterReading, processors: int = 4) -> ClusterReport:
    """Return the report of a cluster that was asked without a service."""
    record = JournalView(directory=directory, scheduler=Site({"a": processors}).scheduler)
    return answer_report(record, ClusterAnswer(config=config(), reading=reading))


def test_the_largest_slot_and_gpus_of_a_cluster(tmp_path: Path) -> None:
    """Idle processors of several nodes are told apart from those of one; GPUs are named by kind."""
    one = replace(node(), gpus=(NodeGpus(kind="a100", count=4, used=1), NodeGpus(kind="v100", count=1)))
    reading = ClusterReading(read_at=1000.0, nodes=(one, replace(one, name="n2", state=NodeState.DOWN)), jobs=())
    report = answer(tmp_path, reading)
    assert (report.gpus, report.gpus_idle, report.gpu_kinds) == (10, 4, ("a100", "v100"))
    assert report.largest_idle == one.processors
    said = printed(clusters_table([replace(report, idle=one.processors + 1)], 1000.0))
    assert f"open, at most {one.processors} on a node, 4 of 10 GPUs idle (a100, v100)" in said


def test_placeholders_that_have_ended_are_not_counted(tmp_path: Path) -> None:
    """Asked without a service, a cluster may go on listing them; those that wait are told apart from those that run."""
    states = (LrmJobState.RUNNING, LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.ENDING, LrmJobState.ENDED)
    listing = tuple(
        LrmJob(id=LrmJobId(f"{number}"), name=f"koala-0123abcd-{number}", state=state, user="me", processors=1)
        for number, state in enumerate((*states, states[-1]))
    )
    reading = ClusterReading(read_at=1000.0, nodes=(node(used=2),), jobs=listing)
    report = answer(tmp_path, reading)
    assert (report.placeholders, report.placeholders_queued) == (4, 2)
    assert "wanted" not in printed(clusters_table([report], 1000.0))
    crowded = replace(report, others_waiting=3)
    assert "open, 3 wanted by others who wait" in printed(clusters_table([crowded], 1000.0))


def test_what_nobody_can_have_is_not_counted_as_that_of_others(tmp_path: Path) -> None:
    """Processors of nodes that are down or drained; those in use there are still somebody's."""
    nodes = (
        node("n1", used=1),
        node("n2", state=NodeState.DOWN),
        node("n3", used=3, state=NodeState.DRAINING),
        node("n4", state=NodeState.UNKNOWN),
    )
    reading = ClusterReading(read_at=1000.0, nodes=nodes, jobs=())
    report = answer(tmp_path, reading, 16)
    assert (report.processors, report.idle, report.others, report.down) == (16, 3, 4, 9)
    assert "open, 9 on nodes that are not up" in printed(clusters_table([report], 1000.0))
    assert "not up" not in printed(clusters_table([replace(report, down=0)], 1000.0))


def test_what_is_known_of_the_network_is_a_line_for_each_cluster() -> None:
    far = ClusterNetwork(
        site="delft",
        bandwidth=4.2,
        source="measured",
        observed_at=988.0,
        latency=0.04,
        connections=(
            NodeConnection(cluster="near", connects=False, seen_at=0.0),
            NodeConnection(cluster="b", connects=True, seen_at=0.0),
        ),
    )
    files = ClusterFiles(stated=2, catalogue="/data/files", entries=7, cached=1)
    unread = ClusterFiles(catalogue="/data/files", trouble="catalogue /data/files: no such file")
    lines = printed(
        network_table(
            [
                cluster_report(name="far", network=far, files=files),
                cluster_report(name="near", files=unread),
                cluster_report(name="b", files=replace(unread, trouble="")),
            ],
            1000.0,
        )
    )
    text = " ".join(lines.split())
    assert "far delft 4.2 MiB/s measured 12 s 40.0 ms not near, b 2 stated, 7 by its" in text
    assert "near here not known - - - - catalogue /data/files: no such file" in text
    assert "b here not known - - - - not read yet" in text
