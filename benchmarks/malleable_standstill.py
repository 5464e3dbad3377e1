# SPDX-License-Identifier: Apache-2.0
"""For how long an MPI program stands still when its size changes, and what share of its run that is.

n-body (100 B of state a body) and FT of class W (16 MiB of state) run under koala on a local cluster, by both methods
where an MPICH for it is there. Their owner has them grow from 2 to 4 processes and shrink again, time after time. The
program stands still from when its first process reaches the point at which all stop until it goes on behind it; the
share is that of all changes in the time from the first to the last, while one follows the other.

    python benchmarks/malleable_standstill.py [--changes 5] [--bodies 2000] [--rest 2] [--json]

Needs MPICH of the system, or that of the PyPI package mpich, and a C compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from benchmarks import cutoff
from koala_adapter.api.client import Client
from koala_adapter.api.statedirectory import start_in_background
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import JobId
from tests.mpi_by_hand import Mpich, of_system, of_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEADLINE = 180.0
LOOK = 0.05
SMALL, LARGE = 2, 4
TOLD = re.compile(r"resize: (stands|goes on) at ([0-9.]+)")
STEPS = "100000000"
"""More than there is time for: the program ends when it is told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One program by one method; times in seconds."""

    program: str
    method: str
    grow: float
    """Median time that it stands still."""
    shrink: float
    changes: int
    share: float
    """Of the time from the first change to the last, in which it stood still."""
    every: float
    """Mean time from one change to the next."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=5, help="how often it grows, and shrinks (default: 5)")
    parser.add_argument("--bodies", type=int, default=2000)
    parser.add_argument("--rest", type=float, default=2.0, help="seconds between two changes (default: 2)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    load = os.getloadavg()[0]
    rows = []
    for mpich in (of_wheel(), of_system()):
        if mpich is not None:
            with tempfile.TemporaryDirectory() as name:
                rows += measure(Path(name), mpich, options.changes, options.bodies, options.rest)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"seconds; load {load:.1f} to {os.getloadavg()[0]:.1f}")
    print(f"{'program':10}{'method':10}{'2 to 4':>10}{'4 to 2':>10}{'changes':>10}{'one in':>10}{'share':>10}")
    for row in rows:
        times = f"{row.grow:10.2f}{row.shrink:10.2f}{row.changes:10}{row.every:10.1f}{row.share:10.1%}"
        print(f"{row.program:10}{row.method:10}{times}")


def measure(directory: Path, mpich: Mpich, changes: int, bodies: int, rest: float) -> list[Row]:
    """Return the rows of one MPICH."""
    method = "spawn" if mpich.spawns else "restart"
    site = directory / "site.toml"
    site.write_text(
        '[control_center]\nlisten = "127.0.0.1"\n[scheduler]\napproach = "none"\n'
        f'[[clusters]]\nname = "bench"\nplugin = "local"\nmpi_resize = "{method}"\n'
        f"[clusters.settings]\nprocessors = {LARGE}\n"
    )
    client = Client(directory / "state")
    start_in_background(site, directory / "state")
    programs = {"nbody": [str(bodies), STEPS, "0"], "ft": ["W", STEPS, "0"]}
    try:
        client.wait_until_seen(DEADLINE)
        return [one(directory, client, mpich, name, words, changes, rest) for name, words in programs.items()]
    finally:
        client.stop()


def one(  # noqa: PLR0917 - what is measured, with what
    directory: Path, client: Client, mpich: Mpich, name: str, words: Sequence[str], changes: int, rest: float
) -> Row:
    """Return the row of one program."""
    stop = directory / f"{name}.stop"
    command = [str(mpich.compile(name, directory)), *words, str(stop)]
    environment = {"PATH": f"{mpich.commands}:/usr/bin:/bin", "RESIZE_TIMES": "1"}
    text = (
        'kind = "malleable"\nrunner = "adaptive"\nlauncher = "mpi"\nwalltime = "30m"\n'
        f'working_directory = "{directory}"\n[environment]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in environment.items())
        + f'[[components]]\nname = "program"\ncommand = {json.dumps(command)}\nminimum = {SMALL}\nmaximum = {LARGE}\n'
    )
    job = client.submit(
        load_job_text(text, directory=directory, job_id=JobId("0"), user=login_name(), submitted_at=time.time())
    )
    told = directory / "state" / "jobs" / job / "program" / "0.err"
    until(lambda: client.job(job).launched_at is not None)
    for number in range(2 * changes):
        if client.job(job).outcome is not None:
            raise SystemExit(f"{name} ended too soon: {client.job(job).outcome}\n{told.read_text()}")
        client.resize(job, SMALL if number % 2 else LARGE)
        until(lambda number=number: len(stands(told)) > number or client.job(job).outcome is not None)  # type: ignore[misc]
        time.sleep(rest)
    stop.touch()
    until(lambda: client.job(job).over)
    stood = stands(told)
    lengths = [end - begin for begin, end in stood]
    if min(lengths) < 0:
        raise SystemExit(f"this cannot be:\n{told.read_text()}")
    whole = stood[-1][1] - stood[0][0]
    return Row(
        program=name,
        method="spawn" if mpich.spawns else "restart",
        grow=statistics.median(lengths[::2]),
        shrink=statistics.median(lengths[1::2]),
        changes=len(stood),
        share=sum(lengths) / whole,
        every=statistics.mean(later[0] - earlier[0] for earlier, later in pairwise(stood)),
    )


def stands(path: Path) -> list[tuple[float, float]]:
    """Return from when to when the program stood still, as far as it has told."""
    found = TOLD.findall(path.read_text()) if path.exists() else []
    begins = [float(when) for what, when in found if what == "stands"]
    ends = [float(when) for what, when in found if what == "goes on"]
    return list(zip(begins, ends, strict=False))


def until(condition: Callable[[], bool]) -> None:
    """Look until a condition holds."""
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("what is measured did not come to pass")
        time.sleep(LOOK)


if __name__ == "__main__":
    main()
