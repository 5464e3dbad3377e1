# SPDX-License-Identifier: Apache-2.0
"""When malleability is used: job management approaches, and growth that an application asks for, on counts.

PRA and PWA (PAPERS section 1.3) differ in who comes first when processors are free, the running or the waiting:

- PRA, precedence to running applications: grow the running malleable jobs of the cluster until none takes more (a
  thorough step), then scan the placement queue. Nobody is ever shrunk for a waiting job.
- PWA, precedence to waiting applications: scan the queue first. When its head cannot be placed, shrink running jobs of
  the cluster that `cluster_to_shrink` names, by the number it gives; when it names none, grow the running jobs instead.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from koala_adapter.scheduler.malleable.policies import Direction, Step, carry_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from koala_adapter.scheduler.malleable.policies import MalleabilityPolicy
    from koala_adapter.scheduler.malleable.runningjobs import MalleableJob, RunningJobs

J = TypeVar("J", bound="MalleableJob")
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


def growth_allowed(*, idle: int, managed: int, processors: int, threshold: int) -> int:
    """Return by how many processors the running jobs of a cluster may grow now.

    ``managed``: processors that all managed jobs have together, rigid ones included; ``threshold``: processors left to
    local users, which no expansion takes.
    """
    return max(0, min(idle, processors - threshold - managed))


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


def grow_on_request(
    policy: MalleabilityPolicy,
    running: RunningJobs[J],
    job: J,
    wanted: int,
    *,
    allowed: int,
    mandatory: bool,
    ask: Callable[[J, int], int],
) -> int:
    """Do what an application asks for that wants ``wanted`` more processors; return how many it got.

    ``allowed`` is what :func:`growth_allowed` says. A voluntary wish gets what is free. For a mandatory one others are
    shrunk as far as needed (``ask`` is as in :func:`carry_out`); when even all they could give does not suffice, nobody
    is shrunk in vain and the wish gets what is free. The job never grows beyond its maximum.
    """
    wanted = max(0, min(wanted, job.maximum - job.size))
    if mandatory and wanted > allowed:
        was_busy = job.busy
        running.begin(job)  # it must not be asked to pay for itself
        if allowed + running.spare >= wanted:
            step = Step(direction=Direction.SHRINK, remaining=wanted - allowed)
            allowed -= carry_out(policy, running, step, ask)
        if not was_busy:
            running.end(job)
    granted = min(wanted, max(0, allowed))
    if granted:
        running.resize(job, job.size + granted)
    return granted
