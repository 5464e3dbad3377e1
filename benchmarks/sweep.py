# SPDX-License-Identifier: Apache-2.0
"""How many short tasks a sweep does in a second, on placeholders of a local cluster.

In one run, for the same number of tasks, each a process of its own (`sleep 0.01`):
- baseline: ``xargs -P N``, which does nothing but start them, N at a time;
- koala: from the first result of the sweep to its last, when all N launchers are there, and from its submission;
- with --peers, Dask and Parsl with N local workers that are there already, without placeholders: from the first
  submission until all results are there. Parsl looks for its own programs in the PATH.

    python benchmarks/sweep.py [--tasks 100000] [--placeholders 64] [--seconds 0.01] [--peers] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    peers: Mapping[str, float]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--placeholders", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.01)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    bare = by_xargs(options.tasks, options.placeholders, options.seconds)
    steady, whole = by_koala(options.tasks, options.placeholders, options.seconds)
    peers = {}
    if options.peers:
        arguments = (options.tasks, options.placeholders, options.seconds)
        peers = {name: measure(*arguments) for name, measure in PEERS.items()}
    outcome = Outcome(
        tasks=options.tasks,
        placeholders=options.placeholders,
        seconds_each=options.seconds,
        xargs=round(bare, 1),
        koala=round(steady, 1),
        koala_from_submission=round(whole, 1),
        ratio=round(steady / bare, 2),
        peers={name: round(rate, 1) for name, rate in peers.items()},
    )
    if options.json:
        print(json.dumps(asdict(outcome), indent=2))
        return
    print(f"{outcome.tasks:,} tasks of {outcome.seconds_each} s on {outcome.placeholders} placeholders, in a second:")
    print(f"  xargs                  {outcome.xargs:8.1f}")
    print(f"  koala                  {outcome.koala:8.1f}  ({outcome.ratio} x)")
    print(f"  koala, from submission {outcome.koala_from_submission:8.1f}")
    for name, rate in outcome.peers.items():
        print(f"  {name:22} {rate:8.1f}")


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


def one_task(seconds: float) -> int:
    """Run one task, as those of the sweep are, on a worker of a peer."""
    import subprocess as here  # noqa: PLC0415 - this function travels without its module

    return here.run(["/usr/bin/sleep", str(seconds)], check=True).returncode


def by_dask(tasks: int, workers: int, seconds: float) -> float:
    """Return the tasks in a second of Dask on this machine."""
    distributed = import_module("distributed")
    with (
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        begun = time.monotonic()
        distributed.wait(client.map(one_task, [seconds] * tasks, pure=False))
        return tasks / (time.monotonic() - begun)


def by_parsl(tasks: int, workers: int, seconds: float) -> float:
    """Return the tasks in a second of Parsl on this machine."""
    parsl, executors = import_module("parsl"), import_module("parsl.executors")
    provider = import_module("parsl.providers").LocalProvider(init_blocks=1, max_blocks=1)
    with tempfile.TemporaryDirectory() as directory:
        executor = executors.HighThroughputExecutor(label="here", provider=provider, max_workers_per_node=workers)
        with parsl.load(parsl.Config(executors=[executor], run_dir=directory)):
            app = parsl.python_app(one_task)
            for first in [app(0.0) for _ in range(workers)]:
                first.result()
            begun = time.monotonic()
            for future in [app(seconds) for _ in range(tasks)]:
                future.result()
            return tasks / (time.monotonic() - begun)


PEERS = {"dask": by_dask, "parsl": by_parsl}


if __name__ == "__main__":
    main()
