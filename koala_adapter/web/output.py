# SPDX-License-Identifier: Apache-2.0
"""Ends of the files in which the output of a job's processes is kept, as far as a page has room for them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.report.values import ATTEMPTS

if TYPE_CHECKING:
    from koala_adapter.report.values import JobReport

SUFFIXES = {"stdout": ".out", "stderr": ".err"}
MOST_FILES = 2000
"""Files of a component that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A file of output of one rank."""

    component: str
    rank: int
    stream: str
    """``stdout`` or ``stderr``."""
    size: int
    attempt: int = 0
    """Number of an earlier run of the job; 0: the latest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last lines of a file."""

    text: str
    skipped: int
    """Bytes before it."""


def outputs(report: JobReport) -> list[Output]:
    """Return the files with output that are not empty, by component and rank: of the latest run, then of earlier ones.

    The earlier runs come in the order in which they ended, the last one first.
    """
    runs = (0, *(one.number for one in reversed(report.attempts)))
    return [output for run in runs for output in _of_run(report, run)]


def _of_run(report: JobReport, attempt: int) -> list[Output]:
    found = []
    for component in dict.fromkeys(one.name for one in report.components):
        with suppress(OSError), os.scandir(_directory(report, attempt) / component) as entries:
            for _, entry in zip(range(MOST_FILES), entries, strict=False):
                stem, suffix = os.path.splitext(entry.name)  # noqa: PTH122 - a name and no path
                stream = next((name for name, one in SUFFIXES.items() if one == suffix), "")
                if stream and stem.isdecimal() and (size := entry.stat(follow_symlinks=False).st_size):
                    one = Output(component=component, rank=int(stem), stream=stream, size=size, attempt=attempt)
                    found.append(one)
    return sorted(found, key=lambda one: (one.component, one.rank, one.stream != "stdout"))


def _directory(report: JobReport, attempt: int) -> Path:
    directory = Path(report.output_directory)
    return directory / ATTEMPTS / str(attempt) if attempt else directory


def tail(report: JobReport, one: Output, most: int) -> Tail | None:
    """Return at most the last ``most`` bytes of a file, from the beginning of a line; None: it is there no more."""
    path = _directory(report, one.attempt) / one.component / f"{one.rank}{SUFFIXES[one.stream]}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        skipped = max(0, status.st_size - most)
        file.seek(skipped)
        data = file.read(most)
    if skipped:
        cut = data.find(b"\n") + 1
        data, skipped = data[cut:], skipped + cut
    return Tail(text=data.decode("utf-8", "replace"), skipped=skipped)
