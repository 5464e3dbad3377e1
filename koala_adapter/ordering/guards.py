# SPDX-License-Identifier: Apache-2.0
"""Nodes kept for a job that fits in sum but not yet on nodes. Pure.

The policies count processors, so they would see nothing left to protect once such a job may start: jobs behind it
would take each processor that falls free, and it would wait for ever. So the first time at which its nodes will be
free, going by the walltimes of what runs, is kept for it: whoever comes later may use these nodes only until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.ordering.allocation import Allocation, allocate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.model import LrmJob
    from koala_adapter.ordering.allocation import NodeRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRelease:
    """What comes free on a node when a running job ends, at the latest."""

    at: float
    node: str
    processors: int
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """What others may take of the nodes that are kept for a job from a time on."""

    at: float
    spare: dict[str, int]
    """Processors, by node of the job, that are over even when it has started."""

    def limit(self, room: NodeRoom, ends_at: float) -> int:
        """Return the processors that a job that ends then may have of this room."""
        if ends_at <= self.at:
            return room.processors
        return min(room.processors, self.spare.get(room.node.name, room.processors))

    def taken(self, allocation: Allocation, ends_at: float) -> None:
        """Count a job that was given nodes."""
        if ends_at > self.at:
            for name, processors in allocation.nodes:
                if name in self.spare:
                    self.spare[name] = max(0, self.spare[name] - processors)


def guard_for(job: LrmJob, rooms: Mapping[str, NodeRoom], releases: Sequence[NodeRelease]) -> Guard | None:
    """Return what protects the earliest start of a job on nodes; None when it fits not even when all has ended.

    ``releases`` in order of time. What has room after some releases has it after more of them, so the first is found
    by halving.
    """
    low, high = 0, len(releases)
    found = allocate(job, _after(rooms, releases).values())
    if not isinstance(found, Allocation):
        return None
    while low < high:
        middle = (low + high) // 2
        tried = allocate(job, _after(rooms, releases[:middle]).values())
        if isinstance(tried, Allocation):
            high, found = middle, tried
        else:
            low = middle + 1
    at = releases[low - 1].at if low else 0.0
    # Several may end at that moment.
    then = _after(rooms, [release for release in releases if release.at <= at])
    return Guard(at, {name: then[name].processors - count for name, count in found.nodes})


def _after(rooms: Mapping[str, NodeRoom], releases: Iterable[NodeRelease]) -> dict[str, NodeRoom]:
    """Return the rooms as they are once some running jobs have ended."""
    after = dict(rooms)
    for release in releases:
        room = after.get(release.node)
        if room is not None:
            after[release.node] = room.without(-release.processors, -release.memory_mib)
    return after


def guarded(room: NodeRoom, guards: Iterable[Guard], ends_at: float) -> NodeRoom:
    """Return what a job that ends at some time may use of a room."""
    allowed = min((guard.limit(room, ends_at) for guard in guards), default=room.processors)
    return room if allowed == room.processors else room.without(room.processors - allowed, 0)
