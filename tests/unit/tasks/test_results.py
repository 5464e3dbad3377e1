# SPDX-License-Identifier: Apache-2.0
"""Results of a sweep, read from what a service has written."""

from __future__ import annotations

import csv
import json
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from koala_adapter.cli.display import results_table
from koala_adapter.cli.koala import koala
from koala_adapter.errors import JobNotFoundError, KoalaError
from koala_adapter.model import JobId
from koala_adapter.python.jobs import SweepResults
from koala_adapter.report.values import SweepProgress
from koala_adapter.service.sweepfiles import SweepFiles
from koala_adapter.tasks.results import LAST, read_results, row_of
from koala_adapter.tasks.sweep import Entry
from tests.unit.api.jobreports import job_report, keep_reports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
