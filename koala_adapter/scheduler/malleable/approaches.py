# SPDX-License-Identifier: Apache-2.0
"""When malleability is used: job management approaches, on counts of processors.

PRA and PWA (CoreGRID TR-0092) differ in who comes first when processors are free, the running or the waiting:

- PRA, precedence to running applications: grow the running malleable jobs of the cluster until none takes more (a
  thorough step), then scan the placement queue. Nobody is ever shrunk for a waiting job.
- PWA, precedence to waiting applications: scan the queue first. When its head cannot be placed, shrink running jobs of
  the cluster that `cluster_to_shrink` names, by the number it gives; when it names none, grow the running jobs instead.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

N = TypeVar("N")


class Approach(StrEnum):
    """Job management approach."""

    NONE = "none"
    """Malleable jobs keep the size they start with, unless they ask for more themselves."""
    PRA = "pra"
    PWA = "pwa"

    @property
    def running_first(self) -> bool:
        """True when free processors are offered to running jobs before the queue is scanned."""
        return self is Approach.PRA

    @property
    def shrinks_for_waiting(self) -> bool:
        """True when running jobs are shrunk for the head of the queue."""
        return self is Approach.PWA


class Shrinkable(NamedTuple):
    """A cluster on which room could be made."""

    free: int
    """Processors that a new job would get at once (idle, and within the threshold)."""
    spare: int
    """Processors its running malleable jobs could give up (:attr:`RunningJobs.spare`)."""


def cluster_to_shrink(need: int, clusters: Iterable[tuple[N, Shrinkable]]) -> tuple[N, int] | None:
    """Return on which cluster to shrink for a component of ``need`` processors, and by how many; None: impossible.

    As with worst fit, it is the one with the most free processors of those where it would suffice: there the fewest
    have to be taken from others. ``clusters``: those that may hold the component and on which no room is being made.
    """
    best: tuple[int, int] | None = None
    found: N | None = None
    for name, (free, spare) in clusters:
        if free + spare >= need and (best is None or (free, spare) > best):
            best, found = (free, spare), name
    return None if best is None or found is None else (found, max(0, need - best[0]))
