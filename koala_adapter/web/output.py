# SPDX-License-Identifier: Apache-2.0
"""Ends of the files in which the output of a job's processes is kept, as far as a page has room for them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.report.values import JobReport

SUFFIXES = {"stdout": ".out", "stderr": ".err"}
MOST_FILES = 2000
"""Files of a component that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One file of output."""

    component: str
    rank: int
    stream: str
    """``stdout`` or ``stderr``."""
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """End of a file."""

    text: str
    skipped: int
    """Bytes before it."""


def outputs(report: JobReport) -> list[Output]:
    """Return the files with output of a job that are not empty, by component and rank."""
    found = []
    for component in dict.fromkeys(one.name for one in report.components):
        with suppress(OSError), os.scandir(Path(report.output_directory, component)) as entries:
            for _, entry in zip(range(MOST_FILES), entries, strict=False):
                stem, suffix = os.path.splitext(entry.name)  # noqa: PTH122 - a name and no path
                stream = next((name for name, one in SUFFIXES.items() if one == suffix), "")
                if stream and stem.isdecimal() and (size := entry.stat(follow_symlinks=False).st_size):
                    found.append(Output(component=component, rank=int(stem), stream=stream, size=size))
    return sorted(found, key=lambda one: (one.component, one.rank, one.stream != "stdout"))


def tail(report: JobReport, component: str, rank: int, stream: str, most: int) -> Tail | None:
    """Return at most the last ``most`` bytes of a file, from the beginning of a line; None: there is no such file."""
    if stream not in SUFFIXES or component not in {one.name for one in report.components} or rank < 0:
        return None
    path = Path(report.output_directory, component, f"{rank}{SUFFIXES[stream]}")
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
