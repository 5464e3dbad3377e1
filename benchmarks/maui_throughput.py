# SPDX-License-Identifier: Apache-2.0
"""How long many short jobs take on a real Slurm by itself, and under a peer that asks koala as Maui does.

    python benchmarks/maui_throughput.py [--jobs 500] [--json]

Jobs of one to three seconds on four nodes of eight processors, the same for both and in one run: first Slurm alone,
then with conf/job_submit.lua and ``koala wiki serve``, asked by a stand-in for Maui that polls every two seconds and
sends one STARTJOB after the other. Goals: at most twice Slurm's time, STARTJOB answered in 0.2 s in the median.

Needs the Debian packages slurmctld, slurmd and slurm-client, and root.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from koala_adapter.wiki.codec.words import Dialect  # noqa: E402
from tests.real.mauistandin import MauiStandIn  # noqa: E402
from tests.real.systems import SlurmCluster  # noqa: E402
from tests.real.wiki_serving import WikiServing  # noqa: E402

DEADLINE = 1200.0
USER = "nobody"
SETTINGS = {"SchedulerParameters": "sched_interval=5,bf_interval=10", "MinJobAge": "3600"}
"""Slurm's own pace, but for what the test cluster needs; ended jobs are counted at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Seconds."""

    jobs: int
    slurm: float
    koala: float
    ratio: float
    answered_median: float
    answered_longest: float
    refusals: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    chance = random.Random(1)
    lengths = [chance.uniform(1, 3) for _ in range(options.jobs)]
    result = measure(lengths)
    if options.json:
        print(json.dumps(asdict(result), indent=2))
        return
    print(
        f"{result.jobs} jobs: Slurm alone {result.slurm:.1f} s, under koala {result.koala:.1f} s ({result.ratio:.2f}x)"
    )
    print(f"STARTJOB answered in {result.answered_median:.3f} s in the median, {result.answered_longest:.2f} s at most")
    print(f"{result.refusals} refusals")


def measure(lengths: list[float]) -> Result:
    """Run the jobs by Slurm alone, then under koala."""
    with SlurmCluster("alone", nodes=4, cpus=8, settings=SETTINGS) as cluster:
        jobs = submit(cluster, lengths, held=True)
        begun = time.monotonic()
        cluster.run("scontrol", "release", ",".join(jobs))
        await_all(cluster, jobs)
        slurm = time.monotonic() - begun
    cluster = SlurmCluster("maui", nodes=4, cpus=8, settings={**SETTINGS, "JobSubmitPlugins": "lua"})
    (cluster.directory / "job_submit.lua").write_text((ROOT / "conf" / "job_submit.lua").read_text())
    with cluster, tempfile.TemporaryDirectory() as directory, WikiServing(Path(directory), cluster) as serving:
        jobs = submit(cluster, lengths, held=False)
        maui = MauiStandIn(serving.peer(Dialect.WIKI))
        begun = time.monotonic()
        left = maui.run(jobs, seconds=DEADLINE)
        koala = time.monotonic() - begun
        assert not left, (left, serving.details())
    answers = maui.answers
    return Result(
        jobs=len(jobs),
        slurm=slurm,
        koala=koala,
        ratio=koala / slurm,
        answered_median=statistics.median(answers),
        answered_longest=max(answers),
        refusals=len(maui.refusals),
    )


def submit(cluster: SlurmCluster, lengths: list[float], *, held: bool) -> list[str]:
    """Submit a job for each length; return their ids."""
    options = ("--ntasks=1", "--output=/dev/null", "--time=5", *(("--hold",) if held else ()))
    return [
        cluster.submit(f"#!/bin/sh\nexec sleep {seconds:.2f}\n", *options, user=None if held else USER)
        for seconds in lengths
    ]


def await_all(cluster: SlurmCluster, jobs: list[str]) -> None:
    """Return when all jobs are over."""
    until = time.monotonic() + DEADLINE
    while any(row[0] in jobs for row in cluster.squeue("--states=PENDING,RUNNING,COMPLETING")):
        assert time.monotonic() < until
        time.sleep(0.5)


if __name__ == "__main__":
    main()
