# SPDX-License-Identifier: Apache-2.0
"""What became of the tasks of a sweep, read from its directory, also while it runs.

``results.jsonl`` has a line for each entry of the ledger. What a task has printed is in files beside it.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import KoalaError
from koala_adapter.tasks.sweep import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS = "results.jsonl"
IN_A_FOLDER = 1000
"""Tasks whose output is in one directory."""
LAST = 64 * 1024
"""Bytes at the end of an output in which its last line is looked for."""
_ENTRIES = {entry.value.encode(): entry for entry in Entry if entry is not Entry.RESUMED}
_OF_A_TASK = re.compile(rb'\{"task": ([0-9]+), "state": "(%b)", .*\}\n' % b"|".join(_ENTRIES))
"""A line as the service writes it."""


def output_file(number: int, suffix: str) -> Path:
    """Return the file with the output of a task, below the directory of its sweep.

    ``number``: of the task, or its index in an array. ``suffix``: ``out`` or ``err``.
    """
    return Path("tasks") / f"{number // IN_A_FOLDER:03}" / f"{number}.{suffix}"


def entry_of(line: bytes) -> tuple[int, Entry, str]:
    """Parse a line of the results: task, entry, and the resuming job if any.

    Of a sweep with a million lines, what is not needed is not parsed. Raises ValueError, KeyError or TypeError for what
    is no entry.
    """
    found = _OF_A_TASK.fullmatch(line)
    if found is not None:
        return int(found[1]), _ENTRIES[found[2]], ""
    read = json.loads(line)
    entry = Entry(read["state"])
    return int(read["task"]), entry, str(read["job"]) if entry is Entry.RESUMED else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """Result of a task that is done or has failed for good, without its output."""

    task: int
    """Its number, from 0."""
    parameters: dict[str, str]
    status: int | None
    """Exit status of the program, 128 + signal when it was killed; None: launchers were lost with it."""
    seconds: float | None
    """How long it ran; None as for ``status``."""
    attempt: int
    """Which try this was, from 1."""
    cluster: str
    host: str
    at: float
    """When it ended: seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(TaskRecord):
    """Result of a task, with the files of its output."""

    stdout_file: Path | None
    """What it wrote to standard output; None: nothing."""
    stderr_file: Path | None

    @property
    def ok(self) -> bool:
        """Whether the task exited with status 0."""
        return self.status == 0

    @property
    def stdout(self) -> str:
        """Standard output of the task, decoded as UTF-8 with replacements."""
        return _read(self.stdout_file).decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error of the task, decoded as UTF-8 with replacements."""
        return _read(self.stderr_file).decode("utf-8", "replace")

    @property
    def last_line(self) -> str:
        """Last line of the task's standard output that is not empty."""
        lines = _read(self.stdout_file, last=LAST).decode("utf-8", "replace").split("\n")
        return next((line.rstrip() for line in reversed(lines) if line.strip()), "")


def _read(path: Path | None, *, last: int | None = None) -> bytes:
    """Return the content of a file; ``last``: only so many bytes from its end."""
    if path is None:
        return b""
    with suppress(FileNotFoundError), path.open("rb") as file:
        if last is not None:
            file.seek(max(0, os.fstat(file.fileno()).st_size - last))
        return file.read()
    return b""


def read_results(directory: Path) -> Iterator[TaskResult]:
    """Yield the results of a sweep's finished tasks by number.

    Raises KoalaError for a line that is no entry.
    """
    path = directory / RESULTS
    with suppress(FileNotFoundError), path.open("rb") as file:
        places = _places(file, path)
        for task in sorted(places):
            file.seek(places[task])
            yield _result(json.loads(file.readline()), directory)


def _places(lines: Iterator[bytes], path: Path) -> dict[int, int]:
    """Return the position of each task's last line in the results."""
    places: dict[int, int] = {}
    failed: set[int] = set()
    begin = 0
    for line in lines:
        if not line.endswith(b"\n"):  # it is being written, or a killed service has left it
            break
        try:
            task, entry, _ = entry_of(line)
        except (ValueError, KeyError, TypeError) as error:
            raise KoalaError(f"{path} has a line that is no entry: {error}") from error
        if entry is Entry.RESUMED:  # what had failed is done again
            for one in failed:
                del places[one]
            failed.clear()
        elif entry in {Entry.DONE, Entry.FAILED}:
            places[task] = begin
            if entry is Entry.FAILED:
                failed.add(task)
        begin += len(line)
    return places


def _result(read: dict[str, Any], directory: Path) -> TaskResult:
    stdout, stderr = (directory / path if (path := read.get(name)) else None for name in ("stdout", "stderr"))
    return TaskResult(
        task=read["task"],
        parameters=read["parameters"],
        status=read.get("status"),
        seconds=read.get("seconds"),
        attempt=read["attempt"],
        cluster=read["cluster"],
        host=read["host"],
        at=read["at"],
        stdout_file=stdout,
        stderr_file=stderr,
    )


# -- Results as rows of a table ------------------------------------------------------------------------------

COLUMNS = ("task", "status", "seconds", "attempt", "cluster", "host", "output")
"""Of a table, beside the parameters, which stand behind the task."""


def row_of(result: TaskResult) -> dict[str, Any]:
    """Return a result as a row: values by column, with the last line of output.

    A parameter that has the name of a column is ``parameter_NAME``.
    """
    parameters = {f"parameter_{name}" if name in COLUMNS else name: value for name, value in result.parameters.items()}
    return {
        "task": result.task,
        **parameters,
        "status": result.status,
        "seconds": result.seconds,
        "attempt": result.attempt,
        "cluster": result.cluster,
        "host": result.host,
        "output": result.last_line,
    }
