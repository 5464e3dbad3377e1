# SPDX-License-Identifier: Apache-2.0
"""What processor time growing and shrinking take, and whose it is: by other ways and by koala on the same Slurm.

The pools, workers and ways are those of benchmarks/malleable_latency.py. Seconds say little on a machine that others
use; processor time says what there is to be saved. Of all processes below this one, living and dead:
- grow: from the wish until all N new workers compute;
- settle: the seconds after it;
- shrink: from the wish until Slurm has the N processors back, and a second more.

    python benchmarks/malleable_cost.py [--size 16] [--repeat 3] [--ways sbatch,parsl] [--json]

Needs what benchmarks/malleable_latency.py needs, and Linux: batch systems' daemons are made children of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.workerpools import Pool, Way

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from benchmarks.malleable_latency import running, until  # noqa: E402 - needs the path set above
from benchmarks.workerpools import WAYS, KoalaPool, Service  # noqa: E402
from tests.real.systems import SlurmCluster  # noqa: E402

PR_SET_CHILD_SUBREAPER = 36
TICK = os.sysconf("SC_CLK_TCK")
SETTLE = 4.0
"""Seconds; what agents put off is done by then."""
NAMES = (("-I\0-S\0-B", "agents"), ("\0serve\0", "service"), ("process_worker_pool", "workers"))
"""What shows in a command line, and whose it is."""
OURS, ENDED = "this benchmark", "what had ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Processor seconds of a process so far."""

    parent: int
    name: str
    itself: float
    children: float
    """Of those that were waited for, in hundredths."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--ways", default="sbatch,parsl")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    found: dict[str, dict[str, dict[str, float]]] = {}
    with SlurmCluster("cost", nodes=4, cpus=8) as cluster, tempfile.TemporaryDirectory() as name:
        os.environ["SLURM_CONF"] = str(cluster.conf)
        with Service(Path(name), cluster.conf, poll=15, requests=60) as service:
            for way in options.ways.split(","):
                with WAYS[way](Path(name)) as made:
                    kinds: dict[str, Callable[[], Pool]] = {
                        way: made.theirs,
                        f"{way}, koala": partial(KoalaPool, service, made),
                    }
                    found |= measure(cluster, kinds, made, options.size, options.repeat)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for kind, phases in found.items():
        for phase, parts in phases.items():
            said = ", ".join(f"{part} {seconds:.3f}" for part, seconds in sorted(parts.items()) if seconds >= TICK**-1)
            print(f"{kind}: {phase} of {options.size}: {sum(parts.values()):.2f} s: {said}")


def measure(
    cluster: SlurmCluster, kinds: Mapping[str, Callable[[], Pool]], way: Way, size: int, repeat: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Return, by kind, phase and part, the medians of processor seconds; the kinds take turns."""
    seen: dict[str, list[dict[str, dict[str, float]]]] = {kind: [] for kind in kinds}
    for _ in range(repeat):
        for kind, make in kinds.items():
            seen[kind].append(once(cluster, make, way, size))
    return {kind: {phase: middle([one[phase] for one in turns]) for phase in turns[0]} for kind, turns in seen.items()}


def middle(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the medians by part."""
    return {part: round(statistics.median(turn.get(part, 0.0) for turn in turns), 3) for part in set().union(*turns)}


def once(cluster: SlurmCluster, make: Callable[[], Pool], way: Way, size: int) -> dict[str, dict[str, float]]:
    """Return what each phase took, by part."""
    with make() as pool:
        pool.scale(1)
        way.wait(1)
        pool.wait_until_idle(size)
        time.sleep(SETTLE)
        snapshots = [processes()]
        pool.scale(1 + size)
        way.wait(1 + size)
        snapshots.append(processes())
        time.sleep(SETTLE)
        snapshots.append(processes())
        pool.scale(1)
        until(lambda: running(cluster) <= 1)
        way.wait(1)
        time.sleep(1.0)
        snapshots.append(processes())
    until(lambda: running(cluster) == 0)
    pairs = itertools.pairwise(snapshots)
    return {phase: difference(*pair) for phase, pair in zip(("grow", "settle", "shrink"), pairs, strict=True)}


def difference(before: Mapping[int, Used], after: Mapping[int, Used]) -> dict[str, float]:
    """Return processor seconds by part; of what ended in between, less what it had used before."""
    parts: dict[str, float] = defaultdict(float)
    for pid, used in after.items():
        former = before.get(pid)
        if used.name != OURS:
            parts[used.name] += used.itself - (former.itself if former else 0.0)
        parts[ENDED] += used.children - (former.children if former else 0.0)
    for pid in before.keys() - after.keys():
        parts[ENDED] -= before[pid].itself + before[pid].children
    return parts


def processes() -> dict[int, Used]:
    """Return this process and all below it."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    every = {pid: used for pid in pids if (used := used_by(pid))}
    return {pid: used for pid, used in every.items() if os.getpid() in line_of(pid, every)}


def line_of(pid: int, every: Mapping[int, Used]) -> Iterator[int]:
    """Yield a process, its parent, and so on."""
    while pid in every:
        yield pid
        pid = every[pid].parent


def used_by(pid: int) -> Used | None:
    """Return what a process has used; None when it is gone."""
    place = Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        fields = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
        user, system, children_user, children_system = (int(field) / TICK for field in fields[11:15])
        threads = sum(int((thread / "schedstat").read_text().split()[0]) for thread in (place / "task").iterdir())
        command = (place / "cmdline").read_text(errors="replace")
        name = next((name for sign, name in NAMES if sign in command), (place / "comm").read_text().strip())
        return Used(
            parent=int(fields[1]),
            name=OURS if pid == os.getpid() else name,
            itself=max(user + system, threads / 1e9),  # the latter is finer, and without threads that have ended
            children=children_user + children_system,
        )
    return None


if __name__ == "__main__":
    main()
