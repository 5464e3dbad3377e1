# SPDX-License-Identifier: Apache-2.0
"""Tasks for launchers: the book of tasks, parameters of sweeps, estimates, and the results of a sweep."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from koala_adapter.cli.display import results_table
from koala_adapter.cli.koala import koala
from koala_adapter.errors import ConfigurationError, JobNotFoundError, KoalaError
from koala_adapter.model import JobId, Sweep, SweepAxis
from koala_adapter.python.jobs import SweepResults
from koala_adapter.report.values import SweepProgress
from koala_adapter.service.sweepfiles import SweepFiles
from koala_adapter.tasks.results import LAST, read_results, row_of
from koala_adapter.tasks.sweep import (
    MOST_LOSSES,
    WINDOW,
    Assignment,
    Book,
    Entry,
    Expansion,
    Pace,
    count_tasks,
    filled,
    lines_of,
    list_axis,
    range_axis,
)
from tests.examples import examples
from tests.unit.api.jobreports import job_report, keep_reports

# -- The book of a sweep: each task is done exactly once, whatever is lost, doubled, or begun anew.


class Life(RuleBasedStateMachine):
    """A sweep whose launchers and service are killed, and whose messages come late, twice, or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book(0)
        self.written: list[tuple[int, Entry]] = []
        self.at_work: list[Assignment] = []
        """Launchers that are at a task, or still tell of one; some of them nobody waits for."""

    @initialize(total=st.integers(1, 12), repeats=st.integers(0, 3))
    def begin(self, total: int, repeats: int) -> None:
        """Submit it."""
        self.book = Book(total, repeats)

    def write(self, task: int, entry: Entry | None) -> None:
        if entry is not None:
            self.written.append((task, entry))
            self.book.note(task, entry)

    @rule()
    def pull(self) -> None:
        """A launcher asks for a task."""
        given = self.book.take()
        if given is not None:
            self.at_work.append(given)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), again=st.booleans())
    def succeed(self, data: st.DataObject, *, again: bool) -> None:
        """A launcher tells that a task is done, perhaps twice."""
        told = data.draw(st.sampled_from(self.at_work))
        self.write(told.task, self.book.entry_of_success(told.task))
        if not again:
            self.at_work.remove(told)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), again=st.booleans())
    def fail(self, data: st.DataObject, *, again: bool) -> None:
        """A launcher tells that a task failed, perhaps twice."""
        told = data.draw(st.sampled_from(self.at_work))
        self.write(told.task, self.book.entry_of_failure(told))
        if not again:
            self.at_work.remove(told)

    @precondition(lambda self: self.at_work)
    @rule(data=st.data(), heard=st.booleans(), blamed=st.booleans())
    def lose(self, data: st.DataObject, *, heard: bool, blamed: bool) -> None:
        """The connection of a launcher ends; it may be heard of again."""
        lost = data.draw(st.sampled_from(self.at_work))
        entry = self.book.entry_of_loss(lost) if blamed else None
        self.write(lost.task, entry)
        if entry is None:
            self.book.given_back(lost)
        if not heard:
            self.at_work.remove(lost)

    @rule()
    def restart(self) -> None:
        """The service is killed; the next one has what is written."""
        self.book = Book(self.book.total, self.book.repeats)
        self.book.restored(self.written)

    @precondition(lambda self: self.book.failed)
    @rule()
    def resume(self) -> None:
        """The sweep is gone on with by another job."""
        self.write(0, Entry.RESUMED)

    @invariant()
    def every_task_is_counted_once(self) -> None:
        """Nothing is done twice by what is written, and the counts are those of it."""
        done = [task for task, entry in self.written if entry is Entry.DONE]
        assert len(done) == len(set(done)) == self.book.done
        assert self.book.done + len(self.book.failed) + self.book.left == self.book.total
        assert 0 <= self.book.out <= self.book.left
        assert self.book.over == (self.book.left == 0)

    def teardown(self) -> None:
        """From wherever it is, good launchers bring it to its end."""
        for lost in self.at_work:
            self.book.given_back(lost)
        while (given := self.book.take()) is not None:
            self.write(given.task, self.book.entry_of_success(given.task))
        assert self.book.over
        assert self.book.out == 0


TestLife = Life.TestCase
TestLife.settings = settings(examples(25), stateful_step_count=40)


@given(st.integers(0, 4))
def test_a_task_that_fails_is_repeated_so_often(repeats: int) -> None:
    book = Book(1, repeats)
    found = []
    while (given_out := book.take()) is not None:
        entry = book.entry_of_failure(given_out)
        assert entry is not None
        book.note(0, entry)
        found.append(entry)
    assert found == [Entry.REPEATED] * repeats + [Entry.FAILED]
    assert (book.over, list(book.failed)) == (True, [0])


def test_a_task_that_ends_its_launchers_fails() -> None:
    """Or all of them would be lost, one after the other."""
    book = Book(1, repeats=0)
    for _ in range(MOST_LOSSES):
        out = book.take()
        assert out is not None
        entry = book.entry_of_loss(out)
        assert entry is not None
        book.note(0, entry)
    assert book.over
    assert list(book.failed) == [0]


def test_a_late_failure_is_not_that_of_who_has_it_now() -> None:
    """Somebody else has begun the task anew; a late success is one."""
    book = Book(1, repeats=0)
    first = book.take()
    assert first is not None
    book.given_back(first)
    second = book.take()
    assert second is not None
    assert book.entry_of_failure(first) is None
    assert book.entry_of_success(first.task) is Entry.DONE
    book.note(0, Entry.DONE)
    assert book.entry_of_failure(second) is None
    assert book.entry_of_success(second.task) is None
    assert book.over


def test_after_a_restart_fresh_tasks_come_first() -> None:
    """What may still be at work somewhere is handed out last; no number is left out."""
    book = Book(6)
    book.restored([(0, Entry.DONE), (3, Entry.DONE), (1, Entry.REPEATED)])
    order = []
    while (out := book.take()) is not None:
        order.append(out.task)
    assert order == [1, 4, 5, 2]


# -- The estimate of a sweep's end.


def test_nobody_can_tell_yet() -> None:
    pace = Pace()
    assert pace.left(tasks=10, launchers=4) is None
    pace.note(2.0)
    assert pace.left(tasks=10, launchers=0) is None
    assert pace.left(tasks=0, launchers=0) == 0.0


def test_tasks_are_shared() -> None:
    """By as many launchers as there are, but a task takes as long as a task takes."""
    pace = Pace()
    for _ in range(4):
        pace.note(3.0)
    assert pace.left(tasks=40, launchers=4) == 30.0
    assert pace.left(tasks=2, launchers=100) == 3.0


def test_what_is_long_ago_counts_no_more() -> None:
    """Later tasks may take longer."""
    pace = Pace()
    for seconds in (1.0, 9.0):
        for _ in range(WINDOW):
            pace.note(seconds)
    assert pace.left(tasks=10, launchers=10) == 9.0


# -- Parameters of sweeps: values as people write them, and the tasks that they make.


def values(text: str) -> list[str]:
    axis = range_axis("a", text)
    assert axis is not None
    tasks = Expansion(Sweep(axes=(axis,)), {})
    return [tasks.row(task)["a"] for task in range(len(tasks))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1..3", ["1", "2", "3"]),
        ("3..1", ["3", "2", "1"]),
        ("0..10..5", ["0", "5", "10"]),
        ("0..1..0.25", ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ("-2..2..3", ["-2", "1"]),
        ("7..7", ["7"]),
        ("0.1..0.3..0.1", ["0.1", "0.2", "0.3"]),
    ],
)
def test_ranges(text: str, found: list[str]) -> None:
    """Both ends are values, and decimal fractions are exact."""
    assert values(text) == found


@pytest.mark.parametrize("text", ["1..3..0", "1..3..-1", "3..1..1"])
def test_a_range_without_end_is_refused(text: str) -> None:
    """Its step must lead from first to last."""
    with pytest.raises(ValueError, match="step leads"):
        range_axis("a", text)


@pytest.mark.parametrize("text", ["x", "1", "1..", "a..b", "1...3", ""])
def test_what_is_no_range(text: str) -> None:
    """It is something else, for others to refuse."""
    assert range_axis("a", text) is None


AXES = st.lists(st.lists(st.text("xyz", max_size=2), min_size=1, max_size=4), min_size=1, max_size=4)


@given(AXES)
def test_every_combination_is_a_task_once(lists: list[list[str]]) -> None:
    axes = tuple(list_axis(f"p{number}", one) for number, one in enumerate(lists))
    tasks = Expansion(Sweep(axes=axes), {})
    assert len(tasks) == count_tasks(axes, together=False)
    assert [tuple(tasks.row(task).values()) for task in range(len(tasks))] == list(product(*lists))


@given(st.integers(1, 5), st.integers(1, 4))
def test_values_taken_together(count: int, axes: int) -> None:
    made = tuple(list_axis(f"p{axis}", [f"{axis}-{one}" for one in range(count)]) for axis in range(axes))
    tasks = Expansion(Sweep(axes=made, together=True), {})
    found = [list(tasks.row(task).values()) for task in range(len(tasks))]
    assert found == [[f"{axis}-{one}" for axis in range(axes)] for one in range(count)]


def test_a_table_is_one_parameter() -> None:
    """Its columns stay together, beside others."""
    table = SweepAxis(names=("a", "b"), count=2, rows=(("1", "x"), ("2", "y")))
    tasks = Expansion(Sweep(axes=(table, list_axis("c", ["p", "q"]))), {})
    assert [tasks.row(one) for one in range(len(tasks))] == [
        {"a": "1", "b": "x", "c": "p"},
        {"a": "1", "b": "x", "c": "q"},
        {"a": "2", "b": "y", "c": "p"},
        {"a": "2", "b": "y", "c": "q"},
    ]


def test_lines_of_a_file() -> None:
    lines = lines_of(b"one\n\ntwo words\n")
    axis = SweepAxis(names=("name",), count=2, file="/f")
    assert Expansion(Sweep(axes=(axis,)), {"/f": lines}).row(1) == {"name": "two words"}
    with pytest.raises(ConfigurationError, match="has 1 lines, and had 2"):
        Expansion(Sweep(axes=(axis,)), {"/f": ["one"]})


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("\ufeffone\ntwo", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("a\u0085b\nc\u2028d\ne\x0cf\ng\x1ch", ["a\u0085b", "c\u2028d", "e\x0cf", "g\x1ch"]),
        ("a\rb", ["a\rb"]),
    ],
)
def test_lines_end_at_line_feeds_alone(content: str, values: list[str]) -> None:
    """A byte-order mark is not part of the first value, and no other character cuts a value in two."""
    assert lines_of(content.encode()) == values


def test_only_parameters_give_way() -> None:
    row = {"a": "{b}", "b": "2"}
    assert list(filled(["awk", "{print $1} {a}{b} {c}", "{b}"], row)) == ["awk", "{print $1} {b}2 {c}", "2"]


# -- Results of a sweep, read from what a service has written.

HEAD = {"attempt": 1, "cluster": "alpha", "host": "n1", "at": 5.0}


def told(files: SweepFiles, task: int, *, status: int = 0, out: bytes = b"", err: bytes = b"", **more: Any) -> None:  # noqa: ANN401 - as in the file
    """Write the result of a task as a service does."""
    entry = Entry.FAILED if status else Entry.DONE
    parameters = {"a": str(task), "host": f"h{task}"}
    line = {"parameters": parameters, "status": status, "seconds": 1.5, **HEAD, **more}
    files.write(task, entry, {**line, **files.keep_output(task, out, err)})


@contextmanager
def written(directory: Path) -> Iterator[SweepFiles]:
    """Give files to be written, in a directory that is made."""
    directory.mkdir(parents=True, exist_ok=True)
    made = SweepFiles(directory)
    made.open()
    yield made
    made.close(progress_of(directory), JobId("48"))


def progress_of(directory: Path) -> SweepProgress:
    return SweepProgress(total=9, done=2, failed=1, running=1, directory=str(directory))


@pytest.fixture
def files(tmp_path: Path) -> Iterator[SweepFiles]:
    """Give the directory of a sweep that goes on: three tasks are over, and one line is being written."""
    with written(tmp_path / "jobs" / "48" / "sweep") as made:
        fill(made)
        yield made


def fill(made: SweepFiles) -> None:
    told(made, 2, out=b"first\nlast [b] line\n\n")
    made.write(1, Entry.REPEATED, {"parameters": {"a": "1", "host": "h1"}, "status": 3, **HEAD})
    told(made, 1, status=3, err=b"no\xff\n", attempt=2)
    told(made, 0)
    with (made.directory / "results.jsonl").open("ab") as file:
        file.write(b'{"task": 3, "state": "do')


def test_what_is_over_by_now_comes_in_order(files: SweepFiles) -> None:
    found = list(read_results(files.directory))
    assert [(one.task, one.status, one.ok, one.attempt) for one in found] == [
        (0, 0, True, 1),
        (1, 3, False, 2),
        (2, 0, True, 1),
    ]
    assert [(one.stdout, one.stderr, one.last_line) for one in found] == [
        ("", "", ""),
        ("", "no\N{REPLACEMENT CHARACTER}\n", ""),
        ("first\nlast [b] line\n\n", "", "last [b] line"),
    ]


def test_a_sweep_without_a_result_has_none(tmp_path: Path) -> None:
    assert list(read_results(tmp_path)) == []


def test_of_what_is_tried_again_the_latest_counts(tmp_path: Path) -> None:
    """Until it is over again, a task that had failed has no result; one that lost its launchers has no status."""
    with written(tmp_path) as made:
        told(made, 0, status=1, out=b"bad")
        told(made, 1, status=1)
        made.write(0, Entry.RESUMED, {"job": "49", "at": 6.0})
        assert list(read_results(tmp_path)) == []
        told(made, 0, out=b"good")
        made.write(1, Entry.FAILED, {"parameters": {"a": "1"}, **HEAD})
    found = list(read_results(tmp_path))
    assert [(one.status, one.seconds, one.stdout) for one in found] == [(0, 1.5, "good"), (None, None, "")]


def test_the_last_line_of_a_long_output(tmp_path: Path) -> None:
    with written(tmp_path) as made:
        told(made, 0, out=b"x" * LAST + b"\nthe end")
    assert [one.last_line for one in read_results(tmp_path)] == ["the end"]


def test_what_is_no_entry_is_named(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("nothing\n")
    with pytest.raises(KoalaError, match=r"results\.jsonl has a line that is no entry"):
        list(read_results(tmp_path))


@pytest.fixture
def state(files: SweepFiles) -> Path:
    """Give the state directory, where no service runs."""
    progress = progress_of(files.directory)
    directory = files.directory.parents[2]
    keep_reports(
        directory, [job_report(id="48", sweep=progress, finished_at=9.0), job_report(id="49", finished_at=9.0)]
    )
    return directory


def asked(state: Path, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - click's result
    done = CliRunner().invoke(koala, ["--state", str(state), *words])
    assert done.exit_code == code, done.output
    return done


def test_the_command_shows_a_table(state: Path) -> None:
    """A parameter that has the name of a column has another one; the last line is no markup."""
    done = asked(state, "results", "48")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["task", "a", "parameter_host", "exit", "seconds", "cluster", "host", "output"],
        ["0", "0", "h0", "0", "1.5", "s", "alpha", "n1"],
        ["1", "1", "h1", "3", "1.5", "s", "alpha", "n1"],
        ["2", "2", "h2", "0", "1.5", "s", "alpha", "n1", "last", "[b]", "line"],
    ]
    assert "2 of 9 tasks are done, 1 failed" in done.stderr
    assert len(asked(state, "results", "48", "--limit", "1").stdout.splitlines()) == 2


def test_the_tasks_of_an_array_have_no_number_but_their_index(tmp_path: Path) -> None:
    """By that their output is asked for; a second number, from 0, would be taken for it."""
    with written(tmp_path) as made:
        told(made, 0, out=b"one")
    (found,) = read_results(tmp_path)
    one = replace(found, parameters={"index": "4"})
    assert [column.header for column in results_table([row_of(one)], by_index=True).columns][:2] == ["index", "exit"]
    assert next(iter(results_table([row_of(one)], by_index=True).columns[0].cells)) == "4"
    assert [column.header for column in results_table([row_of(one)]).columns][:3] == ["task", "index", "exit"]


def test_the_command_prints_csv_and_lines_of_json(state: Path) -> None:
    rows = list(csv.DictReader(asked(state, "results", "48", "--csv").stdout.splitlines()))
    assert [(row["a"], row["status"], row["output"]) for row in rows][2] == ("2", "0", "last [b] line")
    lines = asked(state, "results", "48", "--failed", "--json").stdout.splitlines()
    assert [(one["task"], one["stderr"]) for one in map(json.loads, lines)] == [(1, "no\N{REPLACEMENT CHARACTER}\n")]
    assert asked(state, "results", "48", "--csv", "--json", code=2).stdout == ""


def test_the_output_of_one_task(state: Path) -> None:
    assert asked(state, "logs", "48", "--task", "2").stdout_bytes == b"first\nlast [b] line\n\n"
    assert asked(state, "logs", "48", "--task", "1", "--stderr").stdout_bytes == b"no\xff\n"
    assert "written to the other one" in asked(state, "logs", "48", "--task", "1").stderr
    assert asked(state, "logs", "48", "--task", "0").stdout == ""
    assert "task 3 of job 48 has not ended" in asked(state, "logs", "48", "--task", "3", code=240).stderr
    assert "leave out -f" in asked(state, "logs", "48", "--task", "3", "-f", code=2).stderr


@pytest.mark.parametrize("words", [("results", "49"), ("logs", "49", "--task", "1")])
def test_a_job_without_tasks_is_said_to_have_none(state: Path, words: tuple[str, ...]) -> None:
    assert "job 49 is no sweep" in asked(state, *words, code=240).stderr


def test_a_frame_of_pandas(files: SweepFiles) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install 'koala-adapter[notebook]'")
    progress = progress_of(files.directory)
    frame = SweepResults(job_report(sweep=progress)).to_pandas()
    assert list(frame.columns)[:4] == ["task", "a", "parameter_host", "status"]
    assert frame["a"].sum() == 3
    assert list(frame["output"]) == ["", "", "last [b] line"]
    assert frame.index.equals(pandas.RangeIndex(3))


def test_without_pandas_it_is_said(files: SweepFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    progress = progress_of(files.directory)
    with pytest.raises(KoalaError, match="pandas, which is not here"):
        SweepResults(job_report(sweep=progress)).to_pandas()
    with pytest.raises(JobNotFoundError, match="is no sweep"):
        SweepResults(job_report())
