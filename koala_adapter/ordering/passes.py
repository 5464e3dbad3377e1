# SPDX-License-Identifier: Apache-2.0
"""One scheduling pass: policies say which jobs may start, and each gets nodes or is passed over. No I/O.

A job that fits in sum but not on nodes is passed over with the reason. For the first such job nodes are reserved, so
that jobs behind it cannot hold them for longer than it has to wait anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.lrm.starts import OriginalRequest, Pin
from koala_adapter.ordering.allocation import (
    Allocation,
    Guard,
    NodeRelease,
    allocate,
    guard_for,
    guarded,
    held_on,
    memory_on,
)
from koala_adapter.ordering.jobs import JobEvent, JobEventKind, Phase, Start
from koala_adapter.ordering.mirror import Standings

if TYPE_CHECKING:
    from typing import Self

    from koala_adapter.model import LrmJobId
    from koala_adapter.ordering.allocation import NodeRoom
    from koala_adapter.ordering.jobs import Entry
    from koala_adapter.ordering.mirror import Mirror
    from koala_adapter.queueing.queue import ClusterScheduler, LocalJob


LONGEST = 200
"""A pass ends after about so many jobs that fit in sum only; the others are looked at in the next one."""
EVERY_JOB = 1_000_000
"""More than any queue has."""
SOON = 1.0
"""Seconds after which a job that has run longer than it may is expected to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MisfitRules:
    """What of a policy matters for jobs that do not fit on nodes."""

    overtaking: bool
    """Jobs behind may start before it."""
    guards: int
    """For so many of them nodes are kept in each pass."""

    @classmethod
    def of(cls, policy: str, depth: int) -> Self:
        """Return that of a policy which reserves for so many jobs; conservative does for all."""
        return cls(overtaking=policy != "fcfs", guards=EVERY_JOB if policy == "conservative" else depth)


def decide(mirror: Mirror, misfit_rules: MisfitRules, now: float) -> list[Start]:
    """Return the jobs to start now. They count as starting from here on; nothing is due before something changes."""
    mirror.dirty = False
    rooms = mirror.rooms
    starts: list[Start] = []
    for number, scheduler in enumerate(mirror.schedulers):
        there = {name: room for name, room in rooms.items() if mirror.pools.nodes.get(name) == number}
        starts += _Pass(mirror, scheduler, misfit_rules, there, now).run()
    mirror.standings = Standings(mirror.schedulers, now)
    _tell_reserved(mirror, mirror.standings, now)
    return starts


class _Pass:
    """One pass over one pool."""

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
        self._passed_over: list[Entry] = []

    def run(self) -> list[Start]:
        starts: list[Start] = []
        while picked := self._scheduler.schedule(self._now):
            before = len(self._passed_over)
            stopped = False
            for local in picked:
                entry = self._mirror.entries[_id(local)]
                found = None if stopped else self._nodes_for(entry)
                if found is not None:
                    starts.append(self._start(entry, found))
                    continue
                self._scheduler.end(local, self._now)
                self._passed_over.append(entry)
                stopped = not self._misfit_rules.overtaking
            if stopped or len(self._passed_over) == before or len(self._passed_over) > LONGEST:
                break
        for entry in self._passed_over:
            if entry.local is not None:
                self._scheduler.submit(entry.local)
        return starts

    def _nodes_for(self, entry: Entry) -> Allocation | None:
        if self._mirror.another_starts(entry):
            self._pass_over(
                entry, "another element of its array is being started, and this system starts one at a time"
            )
            return None
        ends_at = self._now + entry.estimate
        rooms = self._rooms.values()
        if self._guards:
            rooms = {name: guarded(room, self._guards, ends_at) for name, room in self._rooms.items()}.values()
        found = allocate(entry.job, rooms)
        if isinstance(found, Allocation):
            held = {name: held_on(entry.job, self._rooms[name].node, count) for name, count in found.nodes}
            for guard in self._guards:
                guard.taken(held, ends_at)
            entry.passed_over = ""
            return found
        self._pass_over(entry, found.reason + ("; other nodes are kept for jobs before it" if self._guards else ""))
        if len(self._guards) < self._misfit_rules.guards:
            kept = guard_for(entry.job, self._rooms, self._releases())
            if kept is not None:
                self._guards.append(kept)
        return None

    def _pass_over(self, entry: Entry, reason: str) -> None:
        if reason != entry.passed_over:
            self._tell(entry, JobEventKind.PASSED_OVER, reason)
        entry.passed_over = reason

    def _start(self, entry: Entry, found: Allocation) -> Start:
        for name, count in found.nodes:
            room = self._rooms[name]
            self._rooms[name] = room.without(held_on(entry.job, room.node, count), memory_on(entry.job, count))
        job, former = entry.job, self._mirror.starts.pins.get(entry.job.id)
        pin = Pin(
            job_id=job.id,
            submitted_at=job.submitted_at,
            nodes=found.nodes,
            wishes=OriginalRequest.of(job),
            at=self._now,
            failures=former.failures if former else 0,
        )
        self._mirror.starts.begin(pin)
        entry.phase, entry.nodes, entry.reason = Phase.STARTING, found.nodes, ""
        self._tell(entry, JobEventKind.START, "")
        return Start(job_id=job.id, allocation=found, pin=pin)

    def _releases(self) -> list[NodeRelease]:
        """Return what comes free when the jobs that hold processors end, in order of time."""
        found = []
        for entry in self._mirror.entries.values():
            if entry.phase in {Phase.RUNNING, Phase.STARTING} and entry.local is not None:
                began = self._now if entry.local.started_at is None else entry.local.started_at
                at = max(began + entry.estimate, self._now + SOON)
                found += [
                    NodeRelease(
                        at=at,
                        node=name,
                        processors=held_on(entry.job, self._rooms[name].node, count),
                        memory_mib=memory_on(entry.job, count),
                    )
                    for name, count in entry.nodes
                    if name in self._rooms
                ]
        return sorted(found, key=lambda release: release.at)

    def _tell(self, entry: Entry, kind: JobEventKind, detail: str) -> None:
        self._mirror.happened.append(
            JobEvent(
                time=self._now,
                kind=kind,
                job_id=entry.job.id,
                user=entry.job.user,
                processors=entry.job.processors,
                detail=detail,
                nodes=entry.nodes,
            )
        )


def _id(local: LocalJob) -> LrmJobId:
    found: LrmJobId = local.id  # type: ignore[assignment] # we gave it
    return found


def _tell_reserved(mirror: Mirror, standings: Standings, now: float) -> None:
    """Tell the first start that was reserved for each job; later ones are earlier, or an event has come between."""
    for local, at in standings.reservations():
        entry = mirror.entries[_id(local)]
        if entry.promised is None:
            entry.promised = at
            mirror.happened.append(
                JobEvent(
                    time=now,
                    kind=JobEventKind.RESERVED,
                    job_id=entry.job.id,
                    user=entry.job.user,
                    processors=entry.job.processors,
                    at=at,
                )
            )
