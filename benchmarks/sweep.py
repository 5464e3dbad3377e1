# SPDX-License-Identifier: Apache-2.0
"""How many short tasks a sweep does in a second, on placeholders of a local cluster.

In one run, for the same number of tasks, each a process of its own (`sleep 0.01`):
- baseline: ``xargs -P N``, which does nothing but start them, N at a time;
- koala: from the first result of the sweep to its last, when all N launchers are there, and from its submission.

    python benchmarks/sweep.py [--tasks 100000] [--placeholders 64] [--seconds 0.01] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

import koala_adapter as koala  # noqa: E402 - needs the path set above

NOTHING = "0.0000000000"
"""Before the number of a task: a further time for sleep, of no length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Tasks in a second."""

    tasks: int
    placeholders: int
    seconds_each: float
    xargs: float
    """All that this machine starts, with nobody who keeps a record."""
    koala: float
    """From the first result to the last."""
    koala_from_submission: float
    ratio: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--placeholders", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.01)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bare = by_xargs(options.tasks, options.placeholders, options.seconds)
    steady, whole = by_koala(options.tasks, options.placeholders, options.seconds)
    outcome = Outcome(
        tasks=options.tasks,
        placeholders=options.placeholders,
        seconds_each=options.seconds,
        xargs=round(bare, 1),
        koala=round(steady, 1),
        koala_from_submission=round(whole, 1),
        ratio=round(steady / bare, 2),
    )
    if options.json:
        print(json.dumps(asdict(outcome), indent=2))
        return
    print(f"{outcome.tasks:,} tasks of {outcome.seconds_each} s on {outcome.placeholders} placeholders, in a second:")
    print(f"  xargs                  {outcome.xargs:8.1f}")
    print(f"  koala                  {outcome.koala:8.1f}  ({outcome.ratio} x)")
    print(f"  koala, from submission {outcome.koala_from_submission:8.1f}")


def by_xargs(tasks: int, at_once: int, seconds: float) -> float:
    """Return the tasks in a second of ``xargs``."""
    numbers = "\n".join(map(str, range(tasks))).encode()
    begun = time.monotonic()
    command = ["/usr/bin/xargs", "-P", str(at_once), "-I", "{}", "sleep", str(seconds), NOTHING + "{}"]
    subprocess.run(command, input=numbers, check=True)
    return tasks / (time.monotonic() - begun)


def by_koala(tasks: int, placeholders: int, seconds: float) -> tuple[float, float]:
    """Return the tasks in a second of a sweep: of all but the first, and from its submission."""
    with koala.local_site(["alpha"], processors=placeholders) as site:
        job = koala.Job(
            ["sleep", str(seconds), NOTHING + "{number}"],
            kind="malleable",
            runner="sweep",
            minimum=1,
            initial=placeholders,
            maximum=placeholders + 1,
            walltime="2h",
            sweep={"parameters": {"number": f"1..{tasks}"}},
        )
        begun = time.monotonic()
        report = site.run(job).report
        whole = tasks / (time.monotonic() - begun)
        if report.sweep is None or report.sweep.done != tasks:
            raise SystemExit(f"the sweep did not end well: {report.sweep}")
        lines = (Path(report.sweep.directory) / "results.jsonl").read_text().splitlines()
        times = [json.loads(line)["at"] for line in lines]
        return (tasks - 1) / (max(times) - min(times)), whole


if __name__ == "__main__":
    main()
