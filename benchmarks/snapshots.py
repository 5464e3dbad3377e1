# SPDX-License-Identifier: Apache-2.0
"""For how long everything waits while a service with many placeholders writes a snapshot of its state.

Measured are the pauses between two moments at which somebody else could be answered: with the whole snapshot written at
once, and with one group of records after the other, as the service does it. Events wait until the last one.

    python benchmarks/snapshots.py [--placeholders 1000,10000,100000] [--repeat 3] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from koala_adapter.model import ClusterName, Component, Job, JobId, JobKind, LrmJobId
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import SubmitPlaceholders
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.service.journal import Journal

EACH = 100
"""Processors of each job."""
CLUSTERS = 10
EVENTS = 5000
"""In the journal since the snapshot before."""
OVER = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Medians for one size, in seconds."""

    placeholders: int
    at_once: float
    """All of it in one go; events wait so long in either case."""
    longest: float
    """The longest pause, group by group."""
    steps: int


def scheduler_with(placeholders: int) -> Scheduler:
    """Return a scheduler that has submitted so many placeholders."""
    scheduler = Scheduler()
    each = -(-placeholders // CLUSTERS // EACH) * EACH
    names = [ClusterName(f"c{number}") for number in range(CLUSTERS)]
    clusters = tuple(ClusterParameters(name=name, placeholders_in_flight=each) for name in names)
    scheduler.handle(ev.Configured(time=0.0, parameters=Parameters(), clusters=clusters))
    for name in names:
        scheduler.handle(ev.ClusterPolled(time=1.0, cluster=name, processors=each, idle=each, ours=0))
    for number in range(placeholders // EACH):
        where = names[number % CLUSTERS]
        component = Component(name="x", command=("program",), minimum=EACH, maximum=EACH, cluster=where)
        job = Job(
            id=JobId(str(number)),
            name="job",
            kind=JobKind.RIGID,
            user="user",
            components=(component,),
            walltime=3600,
            submitted_at=2.0,
        )
        for action in scheduler.handle(ev.JobSubmitted(time=2.0, job=job)):
            if isinstance(action, SubmitPlaceholders):
                ids = tuple(LrmJobId(f"{number}_{index}") for index in range(action.count))
                scheduler.handle(ev.BatchSubmitted(time=3.0, batch=action.batch, lrm_ids=ids))
    if len(scheduler.state.placeholders) != placeholders:
        raise SystemExit(f"{len(scheduler.state.placeholders)} placeholders instead of {placeholders}")
    return scheduler


def fill(journal: Journal) -> int:
    """Append events; return the number of the last."""
    return [
        journal.append(ev.ClusterUnavailable(time=4.0, cluster=ClusterName("c0"), reason="no answer"))
        for _ in range(EVENTS)
    ][-1]


def pauses(journal: Journal, scheduler: Scheduler) -> list[float]:
    """Write a snapshot; return the seconds that each step of it took."""
    found = []
    writing = journal.snapshot_in_groups(scheduler.state, fill(journal))
    while True:
        begun = time.perf_counter()
        over = next(writing, OVER) is OVER
        found.append(time.perf_counter() - begun)
        if over:
            return found


def measure(placeholders: int, repeat: int) -> Measured:
    """Return the medians for one size; the first snapshot, which replaces none, does not count."""
    scheduler = scheduler_with(placeholders)
    with tempfile.TemporaryDirectory() as directory, Journal(Path(directory) / "journal.sqlite") as journal:
        runs = [pauses(journal, scheduler) for _ in range(repeat + 1)][1:]
    return Measured(
        placeholders=placeholders,
        at_once=statistics.median(sum(run) for run in runs),
        longest=statistics.median(max(run) for run in runs),
        steps=len(runs[0]),
    )


def main() -> None:
    """Measure all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--placeholders", default="1000,10000,100000")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(int(size), options.repeat) for size in options.placeholders.split(",")]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{'placeholders':>12} {'at once':>10} {'longest pause':>14} {'steps':>6}")
    for row in rows:
        times = f"{row.at_once * 1000:>8.1f}ms {row.longest * 1000:>12.1f}ms"
        print(f"{row.placeholders:>12,} {times} {row.steps:>6}")


if __name__ == "__main__":
    main()
