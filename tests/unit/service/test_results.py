# SPDX-License-Identifier: Apache-2.0
"""Results: the files of ranks and of sweeps are whole, bounded, and told of in a few lines."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import threading
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.api.reporting import job_report
from koala_adapter.cli.display import files_lines
from koala_adapter.cli.following import closing
from koala_adapter.cli.log import LogStream
from koala_adapter.cli.session import make_console
from koala_adapter.errors import KoalaError, ProtocolError
from koala_adapter.model import Job, JobId, PlaceholderId, RunnerName, Sweep
from koala_adapter.report.values import FilesReport, JobReport, SweepProgress
from koala_adapter.scheduler.events import RankEnded
from koala_adapter.service import sweeps
from koala_adapter.service.applications import UnwrittenOutput
from koala_adapter.service.results import LEDGER_NAME, Results, ResultStore, read_ledger
from koala_adapter.service.sweepfiles import FOLDER, SweepFiles, latest_progress, recorded_progress
from koala_adapter.service.sweeps import Sweeps
from koala_adapter.tasks.launcher import SETTINGS
from koala_adapter.tasks.results import RESULTS
from koala_adapter.tasks.sweep import Book, Entry, Expansion, list_axis
from koala_adapter.vjm.agent.results import PIECE
from koala_adapter.vjm.agent.results import Results as TaskResults
from koala_adapter.vjm.channel import FilePiece, Omission, TaskFiles, agent_decoder
from tests.examples import examples
from tests.unit.scheduler.scheduler_site import Site, component, job
from tests.unit.service.standins import StandInCore
from tests.vanishing import vanish_when_read

PLACEHOLDER = PlaceholderId(batch="b", index=1)  # type: ignore[arg-type]


def said(task: str = "1:0", **changes: object) -> TaskFiles:
    nothing = TaskFiles(task=task, arrived=0, size=0, left=0, left_names=(), omitted=0, omissions=())
    return replace(nothing, **changes)  # type: ignore[arg-type]


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def results_in(directory: Path, clock: Clock) -> Results:
    """Return the results of a service: task N of job 1 is rank N of c1."""
    store = ResultStore(per_rank=100, per_job=100)
    jobs = directory / "jobs"
    return Results(lambda _, task: jobs / "1" / "c1" / task[2:] if task[:2] == "1:" else None, store, clock=clock)


def test_what_was_said_is_kept(tmp_path: Path) -> None:
    """Once for each rank, whatever is repeated, for the next service as well; a line that is damaged is left out."""
    results = results_in(tmp_path, Clock())
    for _ in range(2):
        results.conclude(PLACEHOLDER, said(arrived=2, size=9))
    results.conclude(PLACEHOLDER, said("1:1", left=1, left_names=("x",)))
    results.conclude(PLACEHOLDER, said("2:0"))
    path = tmp_path / "jobs" / "1" / LEDGER_NAME
    assert path.read_text().count('"task"') == 2
    with path.open("a") as file:
        file.write('{"rank": "c1/2", "fi')
    again = results_in(tmp_path, Clock())
    again.conclude(PLACEHOLDER, said("1:3"))
    again.conclude(PLACEHOLDER, said("1:0", arrived=7))
    arrived = {rank: files.arrived for rank, files in read_ledger(path.parent).items()}
    assert arrived == {"c1/0": 2, "c1/1": 0, "c1/3": 0}


def test_an_agent_is_waited_for_while_its_files_come(tmp_path: Path) -> None:
    """And for a while after a restart, in which it may come back; not when it has said all, or has stalled."""
    clock = Clock()
    results = results_in(tmp_path, clock)
    assert results.under_way(PLACEHOLDER, "1:0")
    clock.now = 40
    assert not results.under_way(PLACEHOLDER, "1:0")
    results.take(PLACEHOLDER, FilePiece(task="1:0", number=1, path=b"a", mode=0, size=9, offset=0, data=b"x"))
    clock.now = 60
    assert results.under_way(PLACEHOLDER, "1:0")
    results.conclude(PLACEHOLDER, said())
    assert not results.under_way(PLACEHOLDER, "1:0")
    assert not results.under_way(PLACEHOLDER, "2:0")


def report_of(files: dict[str, TaskFiles]) -> JobReport:
    site = Site({"a": 2})
    site.submit(job("1", replace(component("c1", 2), output_files=("*",))))
    site.take_all()
    site.hold_all("1")
    site.complete("1")
    return job_report(
        site.scheduler, site.record("1"), now=site.now, wall_offset=0.0, output_directory="/out", files=files
    )


def test_reports_sum_up_what_was_said() -> None:
    omission = Omission(path="big", reason="it has 2 GiB")
    first = said(arrived=2, size=2048, omitted=30, omissions=(omission,) * 20)
    report = report_of({"c1/0": first})
    assert report.files == FilesReport(
        arrived=2, size=2048, refused=30, refusals=("c1/0: big: it has 2 GiB",) * 20, awaited=1, awaited_ranks=("c1/1",)
    )
    lines = files_lines(replace(report, placeholders_left=0))
    assert lines[0] == "2 files of the ranks (2 KiB) in /out/COMPONENT/RANK"
    assert lines[1].startswith("30 files of the ranks did not come: c1/0: big: it has 2 GiB, ")
    assert lines[1].endswith(" and 22 more")
    assert lines[2] == "output files of 1 rank are not all there: c1/1"
    assert "are still coming" in files_lines(replace(report, placeholders_left=1))[2]


def test_names_from_nodes_do_nothing_to_a_terminal() -> None:
    """They are escaped, and are no markup."""
    file = io.StringIO()
    report = report_of({"c1/0": said(left=1, left_names=("[red]\x1b[2J\n",)), "c1/1": said()})
    closing(report, make_console(file))
    told = "1 file was left in the ranks' directories and is gone: c1/0: [red]\\x1b[2J\\n; see output_files"
    assert told in file.getvalue()


# Output files as they come in: whatever is sent, and however often, they are whole, bounded, and where they belong.


def piece(path: bytes = b"a", data: bytes = b"", offset: int = 0, *, size: int = 6, number: int = 1) -> FilePiece:
    return FilePiece(task="1:0", number=number, path=path, mode=0o755, size=size, offset=offset, data=data)


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    """Return the directory for the files of a rank; nothing is there yet."""
    return tmp_path / "jobs" / "1" / "c1" / "0"


@pytest.fixture
def store() -> ResultStore:
    return ResultStore(per_rank=10, per_job=15)


def test_pieces_make_a_file(store: ResultStore, rank: Path) -> None:
    assert store.take(rank, piece(b"d/e/f", b"abc")).offset == 3
    assert not rank.exists()
    store = ResultStore(per_rank=10, per_job=15)
    assert store.take(rank, piece(b"d/e/f")).offset == 3
    assert store.take(rank, piece(b"d/e/f", b"bcdef", 1)).offset == 6
    assert (rank / "d" / "e" / "f").read_bytes() == b"abcdef"
    assert stat.S_IMODE((rank / "d" / "e" / "f").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (rank, rank / "d", rank.parent, rank.parents[1])} == {0o700}
    assert ResultStore(per_rank=10, per_job=15).take(rank, piece(b"d/e/f", b"abc")).offset == 6
    store.settle(rank)
    assert [path.name for path in rank.parent.iterdir()] == ["0"]


def test_a_directory_of_the_job_may_be_removed_meanwhile(
    store: ResultStore, rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of its input files, while the files of earlier ranks are counted."""
    for directory in (rank, rank.parents[1] / "_input"):
        directory.mkdir(parents=True)
    vanish_when_read(rank.parents[1] / "_input", monkeypatch)
    assert store.take(rank, piece(b"f", b"abcdef")).refusal == ""
    assert (rank / "f").read_bytes() == b"abcdef"
    assert not (rank.parents[1] / "_input").exists()


@pytest.mark.parametrize("path", [b"/etc/x", b"..", b"a/../../x", b"a//b", b"./a", b"a/", b"a\0b"])
def test_paths_that_lead_elsewhere_break_the_rules(store: ResultStore, rank: Path, path: bytes) -> None:
    """No agent says them."""
    with pytest.raises(ProtocolError, match="not one below"):
        store.take(rank, piece(path, b"abcdef"))
    assert not rank.parent.exists()


def test_what_is_beyond_the_end_or_missing_breaks_the_rules(store: ResultStore, rank: Path) -> None:
    with pytest.raises(ProtocolError, match="beyond its end"):
        store.take(rank, piece(b"a", b"abcd", 3))
    store.take(rank, piece(b"a", b"ab"))
    with pytest.raises(ProtocolError, match="bytes 2 to 4"):
        store.take(rank, piece(b"a", b"ef", 4))


@pytest.mark.parametrize("link", ["0", "0/d", "0/d/f", "0.partial"])
def test_links_are_not_written_through(store: ResultStore, rank: Path, tmp_path: Path, link: str) -> None:
    """Wherever somebody put one: the file is refused, or comes in its place, and nothing is written elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_text("old")
    (rank.parent / link).parent.mkdir(parents=True)
    (rank.parent / link).symlink_to(elsewhere / "f" if link.endswith("f") else elsewhere)
    answer = store.take(rank, piece(b"d/f", b"abcdef"))
    assert bool(answer.refusal) == (not link.endswith("f"))
    assert [path.name for path in elsewhere.iterdir()] == ["f"]
    assert (elsewhere / "f").read_text() == "old"


def test_bounds(store: ResultStore, rank: Path) -> None:
    """Of a rank and of a job; what is refused takes no room, and what was there before a restart counts."""
    other = rank.with_name("1")
    assert not store.take(rank, piece(b"a", b"abcdef")).refusal
    refusal = store.take(rank, piece(b"b", b"abcde", size=5, number=2)).refusal
    assert refusal == "it has 5 bytes, and 6 bytes of other files are there: a rank may leave 10 bytes"
    assert not store.take(rank, piece(b"c", b"abcd", size=4, number=3)).refusal
    for again in (store, ResultStore(per_rank=10, per_job=15)):
        assert "a job may leave 15 bytes" in again.take(other, piece(b"a", b"abcdef")).refusal
        assert not again.take(other, piece(b"b", b"ab", size=2, number=2)).refusal
        assert not again.take(rank, piece(b"a", b"abc")).refusal


def test_a_file_that_cannot_be_written_is_refused(store: ResultStore, rank: Path) -> None:
    assert not store.take(rank, piece(b"d", b"abc", size=3)).refusal
    assert "Not a directory" in store.take(rank, piece(b"d/f", b"abc", size=3, number=2)).refusal
    assert not store.take(rank, piece(b"e", b"abc", size=3, number=3)).refusal


@examples(30)
@given(content=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=8), data=st.data())
def test_any_order_of_lost_connections_gives_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int], data: st.DataObject
) -> None:
    """After each loss the agent begins with the first piece and goes on where the answer says."""
    rank = tmp_path_factory.mktemp("x") / "jobs" / "1" / "c1" / "0"
    done = False
    for cut in [*cuts, 1000]:
        store = ResultStore(per_rank=1000, per_job=1000)
        at = store.take(rank, piece(b"f", content[:3], size=len(content))).offset
        while at < min(cut, len(content)):
            length = data.draw(st.integers(1, 5))
            at = store.take(rank, piece(b"f", content[at : at + length], at, size=len(content))).offset
        done = at == len(content)
    assert done
    assert (rank / "f").read_bytes() == content


@pytest.mark.parametrize("faults", [0, 1, 2])
def test_a_file_with_another_content_is_fetched_again_once(tmp_path: Path, rank: Path, faults: int) -> None:
    """Then its name is told. The connection breaks meanwhile, and the service is another one after each try."""
    there = tmp_path / "there"
    there.mkdir()
    content = os.urandom(3 * PIECE + 5)
    (there / "f").write_bytes(content)
    sender = TaskResults("1:0", str(there), {"output_files": ["f"], "working_directory": None}, {})
    list(sender.collect())
    store, tries = ResultStore(per_rank=2**30, per_job=2**30), 0
    message: dict[str, Any] = {}
    while (said := sender.next()) is not None and (message := said[0])["kind"] == "file":
        (found,) = agent_decoder(limit=2**20).feed(json.dumps(message).encode() + b"\n" + said[1])
        assert isinstance(found, FilePiece)
        if found.offset == PIECE and tries < faults:
            found = replace(found, data=bytes(len(found.data)))
        answer = store.take(rank, found)
        if found.digest is not None:
            tries += 1
            assert not (rank / "f").exists()
            answer = store.check(rank, found)
        elif found.offset == PIECE:
            sender.rewind()  # the answer was lost
            continue
        sender.acknowledge(answer.number, answer.offset, answer.refusal, again=answer.again)
    assert message["kind"] == "files"
    assert tries == min(2, faults + 1)
    if faults < 2:
        assert (rank / "f").read_bytes() == content
        assert (message["arrived"], message["omitted"]) == (1, 0)
    else:
        assert not (rank / "f").exists()
        why = "it came twice with another content than its node has sent"
        assert message["omissions"] == [{"path": "f", "reason": why}]


def test_a_file_that_was_not_compared_before_a_restart_is_compared_then(rank: Path) -> None:
    """All of it has come, and its last piece is sent again for that."""
    whole = replace(piece(b"f", b"cdef", 2), digest=hashlib.sha256(b"abcdef").hexdigest())
    first = piece(b"f", b"ab")
    store = ResultStore(per_rank=10, per_job=15)
    assert store.take(rank, first).offset == 2
    assert store.take(rank, whole).offset == 6
    store = ResultStore(per_rank=10, per_job=15)
    assert store.take(rank, first).offset == 5
    last = replace(whole, data=b"f", offset=5)
    assert store.take(rank, last).offset == 6
    assert not (rank / "f").exists()
    assert store.check(rank, last).offset == 6
    assert store.check(rank, last).offset == 6, "twice does no harm"
    assert (rank / "f").read_bytes() == b"abcdef"


# What is said of output that cannot be written; and a log that cannot be written, which ends nothing.

FULL = "No space left on device"
JOB = JobId("7")


def test_each_file_counts_once_and_news_are_told_once() -> None:
    """A full disk meets many ranks; one file and one reason are enough to know where to look."""
    output = UnwrittenOutput()
    for rank, others in enumerate(["", " and 1 other file", " and 2 other files"]):
        file = Path(f"/jobs/7/c1/{rank}.out")
        assert output.note(f"7:{rank}", "out", file, FULL)
        assert not output.note(f"7:{rank}", "out", file, FULL)
        assert f"cannot be written to /jobs/7/c1/0.out{others}: {FULL}." in output.trouble(JOB, over=False)
    assert output.note("7:0", "out", Path("/jobs/7/c1/0.out"), "Permission denied")
    assert output.trouble(JobId("8"), over=False) == ""


def test_of_a_job_that_is_over_it_is_said_what_is_missing() -> None:
    """Nothing is tried for ever; and what was written since, or nobody asks for any more, is forgotten."""
    output = UnwrittenOutput()
    output.note("7:launcher", "err", Path("/jobs/7/launcher.err"), FULL)
    told = f"The end of its output could not be written to /jobs/7/launcher.err: {FULL}."
    assert output.trouble(JOB, over=True) == told
    output.written("7:launcher", "err")
    assert output.trouble(JOB, over=True) == ""
    output.note("7:launcher", "err", Path("/jobs/7/launcher.err"), FULL)
    output.keep_only([JobId("8")])
    assert output.trouble(JOB, over=True) == ""


def test_a_log_that_cannot_be_written_loses_lines_and_nothing_else() -> None:
    full = Path("/dev/full").open("w", encoding="utf-8", buffering=1)  # noqa: SIM115 - its close is part of the test
    stream = LogStream(full)
    for _ in range(3):
        assert stream.write("a line\n") == 7
        stream.flush()
    with pytest.raises(OSError, match=FULL):
        full.close()


# What the files of a sweep tell of the jobs that were at it one after the other.


def test_each_job_at_a_sweep_tells_how_far_it_was_when_that_job_left(tmp_path: Path) -> None:
    """Also one that never came to it; what is left to be done is told by the last one that did."""
    first = replace(job("1", component("x", 4)), sweep=Sweep(axes=()))
    second, third = (replace(first, id=JobId(id_), sweep=Sweep(axes=(), continues=first.id)) for id_ in "23")
    assert recorded_progress(tmp_path, first) is None
    directory = tmp_path / "1" / FOLDER
    directory.mkdir(parents=True)
    stopped = SweepProgress(total=100, done=36, failed=0, running=0, directory=str(directory))
    finished = replace(stopped, done=100)
    SweepFiles(directory).close(stopped, first.id)
    assert recorded_progress(tmp_path, second) == stopped
    SweepFiles(directory).close(finished, second.id)
    assert recorded_progress(tmp_path, first) == stopped
    assert recorded_progress(tmp_path, second) == recorded_progress(tmp_path, third) == finished
    assert latest_progress(tmp_path, first) == latest_progress(tmp_path, second) == finished


def test_entries_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [(3, Entry.REPEATED), (4, Entry.LOST), (3, Entry.FAILED), (0, Entry.RESUMED), (3, Entry.DONE)]
    more = {"parameters": {"x": '", "state": "lost"}\n'}, "job": "7"}
    files = SweepFiles(tmp_path)
    files.open()
    for task, entry in written:
        files.write(task, entry, more)
    files.close(SweepProgress(total=9, done=1, failed=0, running=0, directory=str(tmp_path)), JobId("1"))
    whole = (tmp_path / RESULTS).read_bytes()
    (tmp_path / RESULTS).write_bytes(whole + b'{"task": 5, "state": "done"')
    again = SweepFiles(tmp_path)
    assert list(again.entries()) == written
    assert again.resumed_by == {"7"}
    again.open()
    assert (tmp_path / RESULTS).read_bytes() == whole
    again.close(SweepProgress(total=9, done=1, failed=0, running=0, directory=str(tmp_path)), JobId("1"))


@pytest.mark.parametrize("line", ["{}", '{"task": 1, "state": "gone"}', "[]", '{"task": null, "state": "done"}', "x"])
def test_what_is_no_entry_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / RESULTS).write_text(f'{{"task": 0, "state": "done"}}\n{line}\n')
    with pytest.raises(KoalaError, match=r"results\.jsonl has a line that is no entry"):
        list(SweepFiles(tmp_path).entries())


def test_entries_are_not_all_in_memory_at_once(tmp_path: Path) -> None:
    """A restart of the service reads those of a long sweep while it serves others."""
    tasks = 20_000
    lines = (f'{{"task": {task}, "state": "done", "parameters": {{"x": "{"v" * 500}"}}}}\n' for task in range(tasks))
    (tmp_path / RESULTS).write_text("".join(lines))
    book = Book(tasks)
    tracemalloc.start()
    try:
        book.restored(SweepFiles(tmp_path).entries())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert book.over
    assert peak < (tmp_path / RESULTS).stat().st_size / 5


# Results of a sweep that goes on after a restart: read in a thread, while the service answers.

LIVENESS = 60.0
"""Seconds within which what must come has come, however slow the machine is."""
DONE = '{"task": 0, "state": "done", "status": 0}\n'


@dataclass
class Restarted:
    """The sweeps of a service that was killed while job 1 was at two tasks, of which one is done."""

    directory: Path
    site: Site = field(default_factory=lambda: Site({"a": 4}))

    def __post_init__(self) -> None:
        self.core = StandInCore(self.site, self.directory)
        self.reported = self.core.posted
        self.sweeps = Sweeps(self.core)
        self.site.submit(self.job)
        self.site.run("1")
        self.sweeps.files(self.job).keep(self.job)
        self.results.write_text(DONE)

    @property
    def job(self) -> Job:
        one = job("1", component("x", 1, cluster="a"))
        return replace(one, runner=RunnerName.SWEEP, sweep=Sweep(axes=(list_axis("n", ("1", "2")),)))

    @property
    def results(self) -> Path:
        return self.sweeps.files(self.job).directory / RESULTS

    async def until_done(self, done: int) -> None:
        """Wait until the progress that is told has so many tasks done."""
        with anyio.fail_after(LIVENESS):
            while (progress := self.sweeps.progress(self.job)) is None or progress.done != done:
                await self.core.changed.wait()

    async def until_ended(self) -> str:
        """Serve until the job has ended, and return why."""
        async with self.running():
            with anyio.fail_after(LIVENESS):
                while not self.reported:
                    await anyio.lowlevel.checkpoint()
        (end,) = self.reported
        assert isinstance(end, RankEnded)
        return end.end.detail

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.sweeps.run)
            yield
            tasks.cancel_scope.cancel()


class SlowReading:
    """Reads the results of sweeps as a slow file system does: not before it is allowed to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = anyio.Event()
        self.allowed = threading.Event()
        self._over = threading.Event()
        self.threads: list[threading.Thread] = []
        self._read = sweeps.restored_book
        monkeypatch.setattr(sweeps, "restored_book", self._slowly)

    def _slowly(self, job: Job, files: SweepFiles, expansion: Expansion) -> Book:
        self.threads.append(threading.current_thread())
        from_thread.run_sync(self.begun.set)
        try:
            assert self.allowed.wait(LIVENESS)
            return self._read(job, files, expansion)
        finally:
            self._over.set()

    async def over(self) -> None:
        self.allowed.set()
        assert await to_thread.run_sync(self._over.wait, LIVENESS)


@pytest.fixture
async def restarted(tmp_path: Path) -> Restarted:
    return Restarted(tmp_path)


async def test_the_loop_answers_while_results_are_read(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that register again get the files of their launchers, which can connect; then tasks are handed out."""
    reading = SlowReading(monkeypatch)
    async with restarted.running():
        with anyio.fail_after(LIVENESS):
            await reading.begun.wait()
            library = {file.target: file.content for file in restarted.sweeps.library(restarted.job)}
            port = json.loads(library[SETTINGS])["port"]
            async with await anyio.connect_tcp("127.0.0.1", port):
                assert reading.threads != [threading.current_thread()]
        reading.allowed.set()
        await restarted.until_done(1)
    assert len(reading.threads) == 1
    assert restarted.reported == []


async def test_a_job_that_ends_while_results_are_read_has_no_sweep(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SlowReading(monkeypatch)
    restarted.results.write_text(DONE + "half a li")
    async with restarted.running():
        with anyio.fail_after(LIVENESS):
            await reading.begun.wait()
            restarted.sweeps.forget(JobId("1"))
        await reading.over()
    assert restarted.results.read_text() == DONE + "half a li"
    assert restarted.reported == []


async def test_a_service_stops_while_results_are_read(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that hangs keeps it from nothing, and what is read later changes no file."""
    reading = SlowReading(monkeypatch)
    restarted.results.write_text(DONE + "half a li")
    with anyio.fail_after(LIVENESS):
        async with restarted.running():
            await reading.begun.wait()
    await reading.over()
    assert restarted.results.read_text() == DONE + "half a li"


async def test_results_that_cannot_be_read_end_the_job(restarted: Restarted) -> None:
    restarted.results.write_text("nonsense\n")
    why = await restarted.until_ended()
    assert "the sweep cannot go on" in why
    assert RESULTS in why


async def test_results_that_are_not_read_in_time_end_the_job(
    restarted: Restarted, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = SlowReading(monkeypatch)
    monkeypatch.setattr(sweeps, "READING_LIMIT", 0.0)
    assert "could not be read within 0 s" in await restarted.until_ended()
    reading.allowed.set()
