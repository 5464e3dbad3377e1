# SPDX-License-Identifier: Apache-2.0
"""How much later a job runs when STARTJOB starts it through koala, than by the same scontrol commands typed by hand.

On a real Slurm of four nodes of eight processors with conf/job_submit.lua, in turns and in one run, for a job of one
processor, one of six on two nodes (three each), and one of six as four and two:
- by hand: scontrol update (ties the job to its nodes), scontrol release;
- koala: STARTJOB to ``koala wiki serve`` over TCP.
Both from the first command until the job's script has begun, which writes the time itself. slurmctld looks at released
jobs once a second, so every start begins at a random moment of a second, the same moments for both, and means are
compared.

    python benchmarks/startjob.py [--repeat 15] [--json]

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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from tests.real.systems import SlurmCluster  # noqa: E402 - needs the path set above
from tests.real.wiki_serving import WikiServing  # noqa: E402

DEADLINE = 60.0
CASES: Mapping[str, Sequence[str]] = {
    "1 processor": ("n3",),
    "3 and 3": ("n4", "n4", "n4", "n2", "n2", "n2"),
    "4 and 2": ("n4", "n4", "n4", "n4", "n2", "n2"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Means of one case, in seconds."""

    case: str
    by_hand: float
    koala: float
    ratio: float
    answered: float
    """From STARTJOB until its answer: the job was seen running."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    cluster = SlurmCluster("bench", nodes=4, cpus=8, settings={"JobSubmitPlugins": "lua"})
    (cluster.directory / "job_submit.lua").write_text((ROOT / "conf" / "job_submit.lua").read_text())
    with (
        cluster,
        tempfile.TemporaryDirectory() as directory,
        WikiServing(Path(directory), cluster, "--cache", "1") as serving,
    ):
        rows = [measure(serving, cluster, case, options.repeat) for case in CASES]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'case':14}{'by hand':>10}{'koala':>10}{'ratio':>8}{'answered':>10}")
    for row in rows:
        print(f"{row.case:14}{row.by_hand:10.3f}{row.koala:10.3f}{row.ratio:8.2f}{row.answered:10.3f}")


def measure(serving: WikiServing, cluster: SlurmCluster, case: str, repeat: int) -> Row:
    """Return the means of one case, measured in turns."""
    nodes = CASES[case]
    hand: list[float] = []
    koala: list[float] = []
    answered: list[float] = []
    chance = random.Random(1)
    for _ in range(repeat):
        pause = chance.random()
        hand.append(one(cluster, nodes, lambda job: by_hand(cluster, job, nodes), pause=pause)[0])
        times = one(
            cluster,
            nodes,
            lambda job: serving.done(f"STARTJOB ARG={job} TASKLIST={':'.join(nodes)}"),
            # A scheduler has seen the job before it starts it.
            seen=lambda _: serving.jobs(),
            pause=pause,
        )
        koala.append(times[0])
        answered.append(times[1])
    first, second = statistics.mean(hand), statistics.mean(koala)
    return Row(case=case, by_hand=first, koala=second, ratio=second / first, answered=statistics.mean(answered))


def by_hand(cluster: SlurmCluster, job: str, nodes: Sequence[str]) -> str:
    """Start a job as an administrator would who knows the commands."""
    names = ",".join(dict.fromkeys(nodes))
    if len(nodes) == 1:
        cluster.run("scontrol", "update", f"JobId={job}", f"ReqNodeList={names}")
        return cluster.run("scontrol", "release", job)
    counts = [nodes.count(name) for name in sorted(set(nodes))]
    places = ["NumNodes=2-2", f"MinCPUsNode={min(counts)}"]
    if len(set(counts)) > 1:
        places.append(f"Reservation=hand{job}")
        cores = ",".join(map(str, counts))
        reserved = (
            f"Nodes={','.join(sorted(set(nodes)))}",
            f"CoreCnt={cores}",
            "Users=root",
            "Flags=PURGE_COMP=00:00:30",
        )
        cluster.run(
            "scontrol", "create", "reservation", f"ReservationName=hand{job}", "StartTime=now", "Duration=60", *reserved
        )
    cluster.run("scontrol", "update", f"JobId={job}", f"ReqNodeList={names}", *places)
    if len(set(counts)) > 1:
        cluster.run("scontrol", "update", f"JobId={job}", f"NumCPUs={len(nodes)}")
    return cluster.run("scontrol", "release", job)


def one(
    cluster: SlurmCluster,
    nodes: Sequence[str],
    start: Callable[[str], str],
    *,
    pause: float,
    seen: Callable[[str], object] = str,
) -> tuple[float, float]:
    """Return the seconds from the first command until the job ran, and until ``start`` returned."""
    trace = cluster.directory / "begun"
    trace.unlink(missing_ok=True)
    script = f"#!/bin/sh\ndate +%s.%N > {trace}.new\nmv {trace}.new {trace}\nexec sleep 600\n"
    job = cluster.submit(script, f"--ntasks={len(nodes)}", "--output=/dev/null", "--time=10")
    time.sleep(1.0 - time.time() % 1.0 + pause)
    seen(job)
    begun = time.time()
    start(job)
    returned = time.time() - begun
    while not trace.exists():
        if time.time() - begun > DEADLINE:
            raise SystemExit(f"job {job} did not run within {DEADLINE:g} s\n{cluster.logs()}")
        time.sleep(0.01)
    seconds = float(trace.read_text()) - begun
    cluster.run("scontrol", "update", f"JobId={job}", "Reservation=", check=False)
    cluster.run("scontrol", "delete", f"ReservationName=hand{job}", check=False)
    cluster.reset()
    return seconds, returned


if __name__ == "__main__":
    main()
