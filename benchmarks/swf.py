# SPDX-License-Identifier: Apache-2.0
"""How fast traces are read, beside the plain way to do it.

In one run, on the same file, from the compressed bytes on disk, each as the best of several repetitions, in processor
time, so that other work on the machine counts less:

- *plain*: one line after the other, ``[int(word) for word in line.split()]``, nothing checked;
- *needed*: what a simulation reads, with every line checked;
- *all*: all 18 fields of every job, with every line checked;
- *workload*: *needed*, and made into the columns that a replay takes.

    python benchmarks/swf.py TRACE... [--repeat 5] [--json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from koala_adapter.simulation.workload import ALL, NEEDED, read_trace, workload

if TYPE_CHECKING:
    from collections.abc import Callable


def plain(path: Path) -> list[list[float]]:
    """Return the jobs of a trace, read as one would at first."""
    jobs = []
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith(";") and line.strip():
                words = line.split()
                jobs.append([float(word) if "." in word else int(word) for word in words])
    return jobs


def best(function: Callable[[], object], repeat: int) -> float:
    """Return the seconds of the fastest of several calls."""
    times = []
    for _ in range(repeat):
        begin = time.process_time()
        function()
        times.append(time.process_time() - begin)
    return min(times)


def measured(path: Path, repeat: int) -> dict[str, object]:
    """Return jobs per second of each way."""
    jobs = len(read_trace(path, NEEDED))
    assert jobs == len(plain(path))
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: plain(path),
        "needed": lambda: read_trace(path, NEEDED),
        "all": lambda: read_trace(path, ALL),
        "workload": lambda: workload(read_trace(path, NEEDED)),
    }
    return {"trace": path.name, "jobs": jobs} | {name: jobs / best(way, repeat) for name, way in ways.items()}


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def main() -> None:
    """Measure all traces and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    given = parser.parse_args()
    results = [measured(path, given.repeat) for path in given.traces]
    if given.json:
        print(json.dumps(results, indent=2))
        return
    print(f"{'jobs per second (and times as fast as plain)':<44}{'jobs':>9}")
    for one in results:
        base = _number(one["plain"])
        cells = [
            f"{name} {_number(one[name]):9,.0f} ({_number(one[name]) / base:4.1f}x)"
            for name in ("needed", "all", "workload")
        ]
        print(f"{one['trace']:<44}{one['jobs']:>9,}  plain {base:9,.0f}", *cells, sep="  ")


if __name__ == "__main__":
    main()
