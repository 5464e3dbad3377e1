# SPDX-License-Identifier: Apache-2.0
"""How soon workers come and go under koala, and by other ways on the same Slurm, in turns and in one run.

A pool of one worker becomes one of 1 + N, and of one again:
- grow: from the wish until all N new workers compute, N processors being idle;
- freed: the same from the moment in which a local user's job gives up the processors that are waited for;
- shrink: from the wish until Slurm has the N processors back.
The other ways are arrays by sbatch and scancel, dask-jobqueue's SLURMCluster, and Parsl's SlurmProvider; koala runs the
same worker programs each time, as a job with ``runner = "workers"`` that its owner resizes.

    python benchmarks/malleable_latency.py [--sizes 1,16] [--repeat 3] [--ways sbatch,dask,parsl] [--poll 15]
        [--requests 60] [--json]

Needs the Debian packages slurmctld, slurmd and slurm-client, root, and dask-jobqueue and parsl from PyPI.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.workerpools import Pool, Way

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from benchmarks.workerpools import DEADLINE, LARGEST, WAYS, KoalaPool, Service  # noqa: E402 - needs the path set above
from tests.real.systems import SlurmCluster  # noqa: E402

LOOK = 0.05
"""Seconds between two looks at what Slurm runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Medians for one way, in seconds."""

    grow: float
    freed: float
    shrink: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way beside koala with the same workers, for one number of processors."""

    way: str
    processors: int
    theirs: Times
    koala: Times

    @property
    def ratios(self) -> Times:
        """Koala's times by theirs."""
        pairs = {name: getattr(self.koala, name) / getattr(self.theirs, name) for name in ("grow", "freed", "shrink")}
        return Times(**pairs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,16")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument(
        "--poll", type=float, default=15.0, help="koala's poll_interval (default: 15, as in a site file)"
    )
    parser.add_argument("--requests", type=int, default=60, help="koala's requests_per_minute (default: 60, likewise)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    load = os.getloadavg()[0]
    rows = []
    with SlurmCluster("bench", nodes=4, cpus=8) as cluster, tempfile.TemporaryDirectory() as name:
        os.environ["SLURM_CONF"] = str(cluster.conf)
        with Service(Path(name), cluster.conf, poll=options.poll, requests=options.requests) as service:
            for way in options.ways.split(","):
                sizes = [int(size) for size in options.sizes.split(",")]
                rows += measure(cluster, service, WAYS[way](Path(name)), way, sizes, options.repeat)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"medians of {options.repeat}, seconds: theirs, koala's, ratio; load {load:.1f} to {os.getloadavg()[0]:.1f}")
    print(f"{'way':8}{'N':>4}" + "".join(f"{name:>26}" for name in ("grow", "freed", "shrink")))
    for row in rows:
        cells = [
            f"{getattr(row.theirs, name):10.2f}{getattr(row.koala, name):9.2f}{getattr(row.ratios, name):7.2f}"
            for name in ("grow", "freed", "shrink")
        ]
        print(f"{row.way:8}{row.processors:4}" + "".join(cells))


def measure(  # noqa: PLR0917 - what is measured, with what
    cluster: SlurmCluster, service: Service, way: Way, name: str, sizes: Sequence[int], repeat: int
) -> list[Row]:
    """Return the rows of one way, its own pools and koala's in turns."""
    kinds: dict[str, Callable[[], Pool]] = {"theirs": way.theirs, "koala": lambda: KoalaPool(service, way)}
    rows = []
    with way:
        for size in sizes:
            seen: dict[str, list[Times]] = {kind: [] for kind in kinds}
            for _ in range(repeat):
                for kind, make in kinds.items():
                    seen[kind].append(once(cluster, make, way, size))
            rows.append(Row(way=name, processors=size, theirs=_middle(seen["theirs"]), koala=_middle(seen["koala"])))
    return rows


def _middle(times: Sequence[Times]) -> Times:
    names = ("grow", "freed", "shrink")
    return Times(**{name: statistics.median(getattr(one, name) for one in times) for name in names})


def once(cluster: SlurmCluster, make: Callable[[], Pool], way: Way, size: int) -> Times:
    """Return the times of one pool of its own."""
    with make() as pool:
        pool.scale(1)
        way.wait(1)
        pool.wait_until_idle(size)
        begun = time.monotonic()
        pool.scale(1 + size)
        way.wait(1 + size)
        grow = time.monotonic() - begun
        begun = time.monotonic()
        pool.scale(1)
        until(lambda: running(cluster) <= 1)
        shrink = time.monotonic() - begun
        way.wait(1)
        local = cluster.submit("#!/bin/sh\nexec sleep 900\n", f"--array=1-{LARGEST - 1}", "--output=/dev/null")
        until(lambda: running(cluster) >= LARGEST)
        pool.wait_until_busy()
        pool.scale(1 + size)
        time.sleep(1.0)  # the wish is known everywhere
        begun = time.monotonic()
        cluster.run("scancel", local)
        way.wait(1 + size)
        freed = time.monotonic() - begun
    until(lambda: running(cluster) == 0)
    return Times(grow=grow, freed=freed, shrink=shrink)


def running(cluster: SlurmCluster) -> int:
    """Return how many processors are in use, or on nodes that Slurm gives to nobody while it cleans up after a job."""
    idle = int(cluster.run("sinfo", "--noheader", "--format=%C").split("/")[1])
    return LARGEST - idle + len(cluster.squeue("--states=COMPLETING", form="%i"))


def until(condition: Callable[[], bool]) -> None:
    """Look until a condition holds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("what is measured did not come to pass")
        time.sleep(LOOK)


if __name__ == "__main__":
    main()
