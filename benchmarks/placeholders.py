# SPDX-License-Identifier: Apache-2.0
"""How much longer placeholders take than bare jobs, and how fast an application starts in held ones, on a real Slurm.

For N processors, in turns and in one run:
- baseline: a bare ``sbatch --array=1-N``, from the submission until the last of the N scripts has begun;
- koala: from the submission of a job of N processors until the last of its N placeholders is held; and from then until
  the first output of the last rank has arrived at the control center.

    python benchmarks/placeholders.py [--sizes 1,8,64] [--repeat 5] [--json]

Needs the Debian packages slurmctld, slurmd and slurm-client, and root.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from tests.real.systems import SlurmCluster  # noqa: E402 - needs the path set above

DEADLINE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians for one size; times in seconds."""

    processors: int
    bare_running: float
    held: float
    ratio: float
    launch: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1,8,64")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    sizes = [int(size) for size in options.sizes.split(",")]
    with SlurmCluster("bench", nodes=4, cpus=max(16, -(-max(sizes) // 4))) as cluster:
        rows = [measure(cluster, size, options.repeat) for size in sizes]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"medians of {options.repeat}, seconds")
    print(f"{'N':>4} {'bare running':>13} {'koala held':>11} {'ratio':>6} {'launch':>7}")
    for row in rows:
        print(f"{row.processors:4} {row.bare_running:13.2f} {row.held:11.2f} {row.ratio:6.2f} {row.launch:7.2f}")


def measure(cluster: SlurmCluster, size: int, repeat: int) -> Row:
    """Measure one size, bare and with koala in turns, so that both meet the same conditions."""
    bare: list[float] = []
    held: list[float] = []
    launch: list[float] = []
    for _ in range(repeat):
        bare.append(bare_array(cluster, size))
        until_held, until_output = koala_job(cluster, size)
        held.append(until_held)
        launch.append(until_output)
    middle = statistics.median
    return Row(
        processors=size,
        bare_running=middle(bare),
        held=middle(held),
        ratio=middle(held) / middle(bare),
        launch=middle(launch),
    )


def bare_array(cluster: SlurmCluster, size: int) -> float:
    """Return the seconds from a bare array's submission to the beginning of its last script."""
    with tempfile.TemporaryDirectory() as directory:
        script = f'#!/bin/sh\n: > "{directory}/$SLURM_ARRAY_TASK_ID"\nexec sleep {DEADLINE:g}\n'
        begun = time.time()
        cluster.submit(script, f"--array=1-{size}", "--ntasks=1", "--output=/dev/null", "--chdir=/tmp")
        wait_for(lambda: sum(1 for _ in os.scandir(directory)) == size)
        last = max(entry.stat().st_mtime for entry in os.scandir(directory))
    cluster.reset()
    return last - begun


def koala_job(cluster: SlurmCluster, size: int) -> tuple[float, float]:
    """Return the seconds from a job's submission to its last placeholder held, and from there to all first output."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        site, job, state = directory / "site.toml", directory / "job.toml", directory / "state"
        site.write_text(
            '[control_center]\nlisten = "127.0.0.1"\n'
            '[[clusters]]\nname = "bench"\nplugin = "slurm"\nrequests_per_minute = 240\npoll_interval = 2\n'
            f'[clusters.settings]\nconf = "{cluster.conf}"\n'
        )
        job.write_text(f'walltime = 60\n[[components]]\ncommand = ["sh", "-c", "echo; sleep 2"]\nprocessors = {size}\n')
        command = [sys.executable, "-m", "koala_adapter.cli", "--site", str(site), "--state", str(state)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[:2])}
        subprocess.run([*command, "run", "--quiet", str(job)], check=True, env=environment, timeout=DEADLINE)
        submitted, held = times(state / "journal.sqlite")
        output = max(path.stat().st_mtime for path in (state / "jobs" / "1").glob("*/*.out"))
        # The ranks write once, so the time of a file's last change is that of its first and only output.
    return held - submitted, output - held


def times(journal: Path) -> tuple[float, float]:
    """Return when the placeholders were submitted and when the last one was held, as the journal has it."""
    with closing(sqlite3.connect(journal)) as database:
        found = database.execute("SELECT type, body FROM events ORDER BY number").fetchall()
    events = [(kind, json.loads(body)["time"]) for kind, body in found]
    taken = min(at for kind, at in events if kind == "BatchSubmitted")
    submitted = max(at for kind, at in events if kind in {"JobSubmitted", "ClusterPolled"} and at <= taken)
    return submitted, max(at for kind, at in events if kind == "PlaceholderHeld")


def wait_for(condition: Callable[[], bool]) -> None:
    """Look until a condition holds."""
    until = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the bare array did not begin")
        time.sleep(0.005)


if __name__ == "__main__":
    main()
