# SPDX-License-Identifier: Apache-2.0
"""Where the traces of the Parallel Workloads Archive are on this machine, and where they can be had.

The archive allows the use of its traces with acknowledgement; they are not part of this program.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ADDRESS = "https://www.cs.huji.ac.il/labs/parallel/workload/"
VARIABLE = "KOALA_TRACES"
ENDINGS = ("", ".swf.gz", ".swf")


def trace_directories(given: str = "") -> list[Path]:
    """Return where traces are looked for, in this order: only ``given`` when something is."""
    if given:
        return [Path(given).expanduser()]
    named = os.environ.get(VARIABLE)
    here = [Path(named)] if named else []
    return [*here, Path("traces"), Path("../shared/traces"), Path.home() / ".cache" / "koala" / "traces"]


def find_trace(names: Sequence[str], directories: Sequence[Path]) -> Path | None:
    """Return the first of these traces, by name without ending, that is in one of the directories; None for none."""
    for name in names:
        for directory in directories:
            for ending in ENDINGS:
                path = directory / f"{name}{ending}"
                if path.is_file():
                    return path
    return None


def advice(page: str) -> str:
    """Return how to get a trace from its page in the archive."""
    return f"get it from {ADDRESS}{page}/ and put it into ~/.cache/koala/traces, or name its directory in ${VARIABLE}"
