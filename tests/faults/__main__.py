# SPDX-License-Identifier: Apache-2.0
"""Runs as many schedules of faults as there is time for, and names the seed of each that breaks an invariant.

python -m tests.faults --seeds 10000 --first-seed 200000 [--jobs KIND|all|in-turn] [--every-write]
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tests.faults.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

KINDS: Mapping[str, Mapping[str, bool]] = {
    "rigid": {},
    "malleable": {"malleable": True},
    "crowded": {"malleable": True, "crowded": True},
    "workers": {"malleable": True, "workers": True},
    "crowded-workers": {"malleable": True, "crowded": True, "workers": True},
    "adaptive": {"malleable": True, "adaptive": True},
    "spread": {"malleable": True, "adaptive": True, "spread": True},
    "crowded-adaptive": {"malleable": True, "crowded": True, "adaptive": True},
    "together": {"malleable": True, "workers": True, "adaptive": True},
    "owned": {"malleable": True, "workers": True, "owned": True},
    "files": {"files": True},
    "malleable-files": {"malleable": True, "files": True},
}
"""What a world of each kind is made with, beside its seed."""
LONGEST_SCHEDULE = 120.0
"""Seconds of processor time; whoever takes more stands still. Most take less than one."""
REPORT_INTERVAL = 30.0
"""Seconds between two lines that tell how far it is."""


@dataclass(slots=True)
class Progress:
    """Tells now and then how far it is."""

    total: int
    begun_at: float
    done: int = 0
    violations: int = 0
    told_at: float = 0.0

    def tell(self, seed: int) -> None:
        """Write a line if the last one is old enough, or nothing is left to do."""
        now = time.monotonic()
        if self.done == self.total or now >= self.told_at + REPORT_INTERVAL:
            self.told_at = now
            seconds = max(now - self.begun_at, 1e-3)
            print(
                f"{self.done:,} of {self.total:,} schedules, {self.violations} violations; last seed {seed}; "
                f"{self.done / seconds:.1f} a second",
                flush=True,
            )


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block once it has taken so many seconds of processor time."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"it stands still: not over after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def violation(seed: int, kind: str, *, kill_at: int | None = None) -> str | None:
    """Run one schedule; return how it broke an invariant, and where, or None.

    ``kill_at``: moment of the journal at which the service is killed, beside all else that goes wrong.
    """
    try:
        world = World(seed, **KINDS[kind])
        world.faults.kill_at = kill_at
        with bounded(LONGEST_SCHEDULE):
            world.run()
    except Exception:  # noqa: BLE001 - whatever goes wrong in a schedule is what is looked for
        given = "".join(f", {name}={value}" for name, value in KINDS[kind].items())
        return f"World({seed}{given}).run(), kill_at={kill_at}\n{traceback.format_exc()}"
    return None


def moments_of(seed: int, kind: str) -> int:
    """Return at how many moments of its journal a service can be killed: before and after each write."""
    world = World(seed, **KINDS[kind])
    world.run()
    return world.service.store.moments


def kills(seed: int, kind: str, *, every_write: bool) -> Iterator[int | None]:
    """Return the moments at which the service of a schedule is killed, one in each of its runs."""
    if every_write:
        yield from range(moments_of(seed, kind))
    else:
        yield None


def kinds_for(seed: int, jobs: str) -> Sequence[str]:
    """Return the kinds of worlds that are run with a seed; ``jobs``: the option."""
    if jobs == "in-turn":
        return [list(KINDS)[seed % len(KINDS)]]
    return [kind for kind in KINDS if jobs in {kind, "all"}]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the schedules; return 1 if one of them broke an invariant, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (default: 1000)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument(
        "--jobs",
        choices=(*KINDS, "all", "in-turn"),
        default="all",
        help="whether jobs grow and shrink; crowded: and many local users come and go; workers: of a head and workers; "
        "owned: their owners say how large they are; in-turn: one kind for each seed",
    )
    parser.add_argument(
        "--every-write", action="store_true", help="repeat each with a kill before and after each write of the journal"
    )
    chosen = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    progress = Progress(total=sum(len(kinds_for(seed, chosen.jobs)) for seed in seeds), begun_at=time.monotonic())
    for seed in seeds:
        for kind in kinds_for(seed, chosen.jobs):
            for kill_at in kills(seed, kind, every_write=chosen.every_write):
                broken = violation(seed, kind, kill_at=kill_at)
                if broken is not None:
                    progress.violations += 1
                    print(f"VIOLATION {broken}", flush=True)
            progress.done += 1
        progress.tell(seed)
    return 1 if progress.violations else 0


if __name__ == "__main__":
    sys.exit(main())
