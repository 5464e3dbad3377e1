# SPDX-License-Identifier: Apache-2.0
"""One scheduling pass: policies say which jobs may start, and each gets nodes or is passed over. No I/O.

A job that fits in sum but not on nodes is passed over with the reason. For the first such job nodes are reserved, so
that jobs behind it cannot hold them for longer than it has to wait anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from koala_adapter.lrm.startlog import Layout, OriginalRequest, Pin
from koala_adapter.ordering.allocation import (
    Guard,
    NodeRelease,
    allocate,
    guard_for,
    guarded_rooms,
    memory_on,
    node_request,
)
from koala_adapter.ordering.jobs import Entry, JobEventKind, Phase
from koala_adapter.ordering.mirror import Mirror, Standings

if TYPE_CHECKING:
    from typing import Self

    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.allocation import NodeRoom
    from koala_adapter.queueing.queue import ClusterScheduler, LocalJob


MOST_TRIED = 200
"""A pass ends after about so many jobs that fit in sum only and differ in what they ask for; the next goes on there."""
MOST_PASSED_OVER = 2_000
"""A pass ends after about so many that fit in sum only, alike or not."""
MOST_GUARDS = 16
"""In each pass nodes are kept for at most so many jobs: each costs several looks at all nodes."""
SOON = 1.0
"""Seconds after which a job that has run longer than it may is expected to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfitRules:
    """How a policy treats jobs that do not fit on nodes: whether others overtake, for how many nodes are kept."""

    overtaking: bool
    """Jobs behind may start before it."""
    guards: int
    """For so many of them nodes are kept in each pass."""

    @classmethod
    def of(cls, policy: str, depth: int) -> Self:
        """Return the rules of a policy that reserves for ``depth`` jobs; of conservative, for all that may be kept."""
        wanted = MOST_GUARDS if policy == "conservative" else depth
        return cls(overtaking=policy != "fcfs", guards=min(MOST_GUARDS, wanted))


def decide(mirror: Mirror, misfit_rules: MisfitRules, now: float) -> list[Pin]:
    """Return the starts to make now; their jobs count as starting. Further calls start nothing until something changes.

    A pass that its bounds end leaves the mirror ``unfinished``: the next one goes on behind the jobs that were tried.
    What changes meanwhile is looked at from the head of the queue on, once all have been tried.
    """
    if mirror.unfinished:
        mirror.changed_meanwhile |= mirror.dirty
    else:
        mirror.round += 1
    mirror.dirty = mirror.unfinished = False
    rooms = mirror.rooms
    starts: list[Pin] = []
    for number, scheduler in enumerate(mirror.schedulers):
        there = {name: room for name, room in rooms.items() if mirror.pools.nodes.get(name) == number}
        one = _Pass(mirror, scheduler, misfit_rules, there, now)
        starts += one.run(number)
        mirror.unfinished |= one.cut_short
    if not mirror.unfinished:
        mirror.dirty, mirror.changed_meanwhile = mirror.changed_meanwhile, False
    mirror.standings = [Standings(scheduler, now) for scheduler in mirror.schedulers]
    _tell_reserved(mirror, now)
    return starts


class _Pass:
    """One scheduling pass over one pool."""

    def __init__(
        self,
        mirror: Mirror,
        scheduler: ClusterScheduler,
        misfit_rules: MisfitRules,
        rooms: dict[str, NodeRoom],
        now: float,
    ) -> None:
        self._mirror = mirror
        self._scheduler = scheduler
        self._misfit_rules = misfit_rules
        self._rooms = rooms
        self._now = now
        self._guards: list[Guard] = []
        self._passed_over: dict[LocalJob, float] = {}
        """Jobs that cannot start, with the earliest time at which they may, as far as that is known."""
        self._misfits: dict[tuple[object, ...], tuple[float, str]] = {}
        """What jobs asked for that do not fit: the earliest end with which that was tried, and why it does not fit."""
        self._never: set[tuple[object, ...]] = set()
        """What does not fit even when all that runs has ended."""
        self._tried = 0
        self.cut_short = False
        """Not all jobs were tried that may start."""

    def run(self, pool: int) -> list[Pin]:
        starts: list[Pin] = []
        tried_before = self._set_aside(pool)
        while not self.cut_short and (picked := self._scheduler.schedule(self._now)):
            before = len(self._passed_over)
            stopped = False
            for local in picked:
                entry = self._mirror.entries[_id(local)]
                found = None if stopped else self._nodes_for(entry, local)
                if found is not None:
                    starts.append(self._start(entry, found))
                    continue
                self._scheduler.end(local, self._now)
                self._passed_over.setdefault(local, self._now)
                stopped = not self._misfit_rules.overtaking
            if stopped or len(self._passed_over) == before:
                break
            self.cut_short = self._tried > MOST_TRIED or len(self._passed_over) > MOST_PASSED_OVER
        back = tried_before | self._passed_over
        if back:
            self._scheduler.put_back(back, self._now)
        return starts

    def _set_aside(self, pool: int) -> dict[LocalJob, float]:
        """Remove the jobs tried in earlier passes of this round from the queue, except the first, which get guards.

        Before the first pass of a round there are none.
        """
        tried = [
            entry.local
            for entry in self._mirror.entries.values()
            if entry.tried_in == self._mirror.round and (entry.phase, entry.pool) == (Phase.WAITING, pool)
            if entry.local is not None
        ]
        if not tried:
            return {}
        chosen = set(tried)
        waiting = [local for local in self._scheduler.waiting if local in chosen]
        aside = dict.fromkeys(waiting[self._misfit_rules.guards :], self._now)
        for local in aside:
            self._scheduler.withdraw(local, self._now)
        return aside

    def _nodes_for(self, entry: Entry, local: LocalJob) -> Layout | None:
        entry.tried_in = self._mirror.round
        if self._mirror.another_starts(entry):
            self._pass_over(
                entry, "another element of its array is being started, and this system starts one at a time"
            )
            return None
        ends_at = self._now + entry.estimate
        asked = node_request(entry.job)
        known = self._misfits.get(asked)
        guardable = len(self._guards) < self._misfit_rules.guards and asked not in self._never
        if known is not None and known[0] <= ends_at and not guardable:
            # Since then less is free, and more is kept for others.
            self._pass_over(entry, known[1])
            self._passed_over[local] = self._next_release
            return None
        found = allocate(entry.job, guarded_rooms(self._rooms, self._guards, ends_at).values())
        if not isinstance(found, str):
            held = {name: self._rooms[name].node.gives(entry.job, count) for name, count in found}
            for guard in self._guards:
                guard.taken(held, ends_at)
            entry.passed_over = ""
            return found
        self._tried += 1
        reason = found + ("; other nodes are kept for jobs before it" if self._guards else "")
        self._pass_over(entry, reason)
        self._misfits[asked] = (ends_at, reason)
        self._passed_over[local] = self._next_release
        if guardable:
            kept = guard_for(entry.job, self._rooms, self._releases())
            if kept is None:
                self._never.add(asked)
            else:
                self._guards.append(kept)
                self._passed_over[local] = max(kept.at, self._next_release)
        return None

    @cached_property
    def _next_release(self) -> float:
        """Time before which nothing comes free, unless a job ends early."""
        return next((release.at for release in self._releases()), self._now)

    def _pass_over(self, entry: Entry, reason: str) -> None:
        if reason != entry.passed_over:
            self._mirror.tell(JobEventKind.PASSED_OVER, entry, self._now, detail=reason)
        entry.passed_over = reason

    def _start(self, entry: Entry, found: Layout) -> Pin:
        for name, count in found:
            room = self._rooms[name]
            self._rooms[name] = room.without(room.node.gives(entry.job, count), memory_on(entry.job, room.node, count))
        job, former = entry.job, self._mirror.starts.pins.get(entry.job.id)
        pin = Pin(
            job_id=job.id,
            submitted_at=job.submitted_at,
            nodes=found,
            wishes=OriginalRequest.of(job),
            at=self._now,
            failures=former.failures if former else 0,
        )
        self._mirror.starts.begin(pin)
        entry.phase, entry.nodes, entry.reason = Phase.STARTING, found, ""
        self._mirror.tell(JobEventKind.START, entry, self._now)
        return pin

    def _releases(self) -> list[NodeRelease]:
        """Return the resources that come free as running jobs end, in order of time."""
        found = []
        for entry in self._mirror.entries.values():
            if entry.phase in {Phase.RUNNING, Phase.STARTING} and entry.local is not None:
                began = self._now if entry.local.started_at is None else entry.local.started_at
                at = max(began + entry.estimate, self._now + SOON)
                found += [
                    NodeRelease(
                        at=at,
                        node=name,
                        processors=self._rooms[name].node.gives(entry.job, count),
                        memory_mib=memory_on(entry.job, self._rooms[name].node, count),
                    )
                    for name, count in entry.nodes
                    if name in self._rooms
                ]
        return sorted(found, key=lambda release: release.at)


def _id(local: LocalJob) -> LrmJobId:
    found: LrmJobId = local.id  # type: ignore[assignment] # we gave it
    return found


def _tell_reserved(mirror: Mirror, now: float) -> None:
    """Report the first reserved start of each job; later ones are earlier, or were caused by an event."""
    for local, at in (item for queue in mirror.standings for item in queue.reserved.items()):
        entry = mirror.entries[_id(local)]
        if entry.promised is None:
            entry.promised = at
            mirror.tell(JobEventKind.RESERVED, entry, now, at=at)
