# SPDX-License-Identifier: Apache-2.0
"""What the files of a sweep tell of the jobs that were at it one after the other."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import KoalaError
from koala_adapter.model import JobId, Sweep
from koala_adapter.report.values import SweepProgress
from koala_adapter.service.sweeps import FOLDER, RESULTS, SweepFiles, latest_progress, recorded_progress
from koala_adapter.tasks.sweep import Book, Entry
from tests.unit.scheduler.scheduler_site import component, job

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_that_stopped_tells_what_it_did_after_another_has_gone_on(tmp_path: Path) -> None:
    """Each job tells how far the sweep was when it left; what is left to be done is told by the last one."""
    first = replace(job("1", component("x", 4)), sweep=Sweep(axes=()))
    second = replace(first, id=JobId("2"), sweep=Sweep(axes=(), continues=first.id))
    directory = tmp_path / "1" / FOLDER
    directory.mkdir(parents=True)
    stopped = SweepProgress(total=100, done=36, failed=0, running=0, directory=str(directory))
    finished = replace(stopped, done=100)
    SweepFiles(directory).close(stopped, first.id)
    SweepFiles(directory).close(finished, second.id)
    assert recorded_progress(tmp_path, first) == stopped
    assert recorded_progress(tmp_path, second) == finished
    assert latest_progress(tmp_path, first) == latest_progress(tmp_path, second) == finished


def test_a_job_that_never_came_to_its_sweep_tells_how_far_that_is(tmp_path: Path) -> None:
    first = replace(job("1", component("x", 4)), sweep=Sweep(axes=()))
    second = replace(first, id=JobId("2"), sweep=Sweep(axes=(), continues=first.id))
    assert recorded_progress(tmp_path, first) is None
    directory = tmp_path / "1" / FOLDER
    directory.mkdir(parents=True)
    stopped = SweepProgress(total=100, done=36, failed=0, running=0, directory=str(directory))
    SweepFiles(directory).close(stopped, first.id)
    assert recorded_progress(tmp_path, second) == stopped


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
