# SPDX-License-Identifier: Apache-2.0
"""How many short tasks are done in a second: by koala, and by others with as many workers, in turns and in one run.

- *commands*, each a process of its own, ``sleep 0.01``: ``koala sweep`` beside ``xargs -P``, which keeps no record and
  is on this machine always, ``bash_app`` of Parsl, ``subprocess.run`` by Dask, and HyperQueue, inside one process;
- *functions*, ``time.sleep(0.01)``: ``koala.Executor`` beside ``python_app`` of Parsl and ``client.map`` of Dask.

All workers are there before it begins. On Slurm, workers of Parsl and Dask are jobs of it, as koala's placeholders
are. With ``--here`` koala has a local cluster, and no batch system is needed; then only xargs is measured beside it.
Dask is asked for with ``--ways``: 64 workers of it did not end within five minutes on two processors.

    python benchmarks/sweep.py [--commands 5000] [--functions 20000] [--placeholders 64] [--seconds 0.01]
        [--repeat 2] [--ways xargs,parsl,hyperqueue] [--here] [--json]

Needs the Debian packages slurmctld, slurmd and slurm-client, and root, or --here. Of those from PyPI what is not
installed is left out, and said: parsl, dask-jobqueue (or distributed), hyperqueue.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

import koala_adapter as koala  # noqa: E402 - needs the path set above
from benchmarks import cutoff  # noqa: E402 - needs the path set above
from benchmarks.taskpools import WAYS, Measurement, Rates, missing  # noqa: E402
from tests.real.systems import SlurmCluster  # noqa: E402

GOAL = 2000.0
"""Tasks in a second."""
NODES = 4
KINDS = ("commands", "functions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way and one kind of tasks: the median of tasks in a second, and koala's over it."""

    way: str
    kind: str
    rate: float
    koala_ratio: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commands", type=int, default=5_000)
    parser.add_argument("--functions", type=int, default=20_000)
    parser.add_argument("--placeholders", type=int, default=64, help="a multiple of four")
    parser.add_argument("--seconds", type=float, default=0.01)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--ways", default="xargs,parsl,hyperqueue", help=f"of {', '.join(WAYS)}")
    parser.add_argument("--here", action="store_true", help="without Slurm")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    wished = ["xargs"] if options.here else [way for way in options.ways.split(",") if way]
    ways = [way for way in wished if missing(way, slurm=not options.here) is None]
    for way in wished:
        if way not in ways:
            package = missing(way, slurm=not options.here)
            print(f"{way} is left out: there is no package {package} here", file=sys.stderr)
    place = here(options.placeholders) if options.here else on_slurm(options.placeholders)
    with place as (site, nodes):
        given = Measurement(
            site=site,
            nodes=nodes,
            workers=options.placeholders,
            commands=options.commands,
            functions=options.functions,
            seconds=options.seconds,
        )
        found = in_turns(given, ["koala", *ways], options.repeat)
    rows = compared(found)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print_rows(rows, given)


@contextlib.contextmanager
def here(processors: int) -> Iterator[tuple[koala.Site, int]]:
    """Have a local cluster."""
    with koala.local_site(["alpha"], processors=processors) as site:
        yield site, 0


@contextlib.contextmanager
def on_slurm(processors: int) -> Iterator[tuple[koala.Site, int]]:
    """Have a private Slurm of simulated nodes."""
    with SlurmCluster("sweep", nodes=NODES, cpus=processors // NODES) as cluster, tempfile.TemporaryDirectory() as name:
        os.environ["SLURM_CONF"] = str(cluster.conf)
        file, state = Path(name) / "site.toml", Path(name) / "state"
        state.mkdir(mode=0o700)
        file.write_text(
            '[control_center]\nlisten = "127.0.0.1"\n'
            '[[clusters]]\nname = "bench"\nplugin = "slurm"\nrequests_per_minute = 240\npoll_interval = 2\n'
            f'[clusters.settings]\nconf = "{cluster.conf}"\n'
        )
        with koala.Site.load(file, state=state) as site:
            yield site, NODES


def in_turns(given: Measurement, ways: Sequence[str], repeat: int) -> Mapping[str, list[Rates]]:
    """Measure each way so often, one after the other, so that all meet the same conditions."""
    found: dict[str, list[Rates]] = {way: [] for way in ways}
    for _ in range(repeat):
        for way in ways:
            found[way].append(rates := WAYS[way](given))
            said = ", ".join(f"{getattr(rates, kind):.0f} {kind}" for kind in KINDS if getattr(rates, kind))
            print(f"{way}: {said} in a second, load {os.getloadavg()[0]:.0f}", file=sys.stderr)
    return found


def compared(found: Mapping[str, Sequence[Rates]]) -> list[Row]:
    """Return the medians, and their ratios."""
    rows = []
    for kind in KINDS:
        medians = {
            way: statistics.median(rates)
            for way, all_rates in found.items()
            if (rates := [rate for one in all_rates if (rate := getattr(one, kind)) is not None])
        }
        rows += [
            Row(way=way, kind=kind, rate=round(rate, 1), koala_ratio=round(medians["koala"] / rate, 2))
            for way, rate in medians.items()
        ]
    return rows


def print_rows(rows: Sequence[Row], given: Measurement) -> None:
    """Print the table, the goal, and by how much it is missed."""
    where = "on Slurm" if given.nodes else "on this machine"
    print(f"{given.workers} placeholders {where}, tasks of {given.seconds} s, in a second; medians")
    for row in rows:
        beside = "" if row.way == "koala" else f"koala does {row.koala_ratio} times as many"
        if row.way == "koala":
            reached = row.rate / GOAL
            beside = f"the goal of {GOAL:.0f} is " + ("reached" if reached >= 1 else f"missed: {reached:.0%} of it")
        print(f"  {row.kind:9} {row.way:11} {row.rate:8.1f}  {beside}")


if __name__ == "__main__":
    main()
