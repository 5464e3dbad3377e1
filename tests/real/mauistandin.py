# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Maui: it asks ``koala wiki serve`` as Maui 3.5 does, and places jobs by their records alone.

Seen with the real one, and kept to: nodes and jobs are polled at intervals, jobs start one after the other, each after
the answer to the one before, in the order of their submission; a refused start ends the iteration, and puts its job
aside for a while; NODES counts only together with TASKPERNODE, else a job is split as nodes have room; HOSTLIST gives a
host as many tasks as it is named; all features of RFEATURES must be on a node.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio

from koala_adapter.errors import KoalaError
from koala_adapter.wiki.client import Peer, exchange
from koala_adapter.wiki.codec.records import JobRecord, NodeRecord, parse_jobs, parse_nodes
from koala_adapter.wiki.codec.verbs import parse_request

ACTIVE = frozenset({"Starting", "Running", "Suspended"})
OVER = frozenset({"Completed", "Removed", "Vacated"})
USABLE = frozenset({"Idle", "Running", "Unknown"})


@dataclass
class Room:
    """What is free on a node."""

    node: NodeRecord
    processors: int
    memory: int


@dataclass
class MauiStandIn:
    """One scheduler."""

    peer: Peer
    interval: float = 2.0
    defer: float = 10.0
    """Seconds for which a job is put aside after a refused start (DEFERTIME)."""
    refusals: list[tuple[str, int, str]] = field(default_factory=list)
    """Job, status and text."""
    answers: list[float] = field(default_factory=list)
    """Seconds until each STARTJOB was answered."""
    started: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Task lists asked for, by job, of the starts that were taken."""
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    jobs: Mapping[str, JobRecord] = field(default_factory=dict)
    _deferred: dict[str, float] = field(default_factory=dict)

    def ask(self, message: str) -> tuple[int, str]:
        """Send a request; return the status, and the list or the text."""
        request = parse_request(f"CMD={message}".encode(), self.peer.dialect)
        reply = anyio.run(partial(exchange, self.peer, request))
        return reply.status, reply.text if reply.argument is None else reply.argument

    def iterate(self) -> bool:
        """Poll, and start what fits; return whether the poll was answered."""
        try:
            listed = [self.ask(f"{verb} ARG=0:ALL") for verb in ("GETNODES", "GETJOBS")]
        except (KoalaError, OSError):
            return False
        if any(status < 0 for status, _ in listed):
            return False
        self.nodes = {node.name: node for node in parse_nodes(listed[0][1])}
        self.jobs = {job.id: job for job in parse_jobs(listed[1][1])}
        rooms = self._rooms()
        now = time.monotonic()
        idle = [job for job in self.jobs.values() if job.state == "Idle" and self._deferred.get(job.id, 0.0) <= now]
        for job in sorted(idle, key=lambda job: (job.queued_at or 0, _number(job.id))):
            tasks = place(job, rooms)
            if tasks and not self._start(job, tasks, rooms):
                break
        return True

    def run(self, wanted: Collection[str], *, seconds: float) -> set[str]:
        """Schedule until all these jobs are over; return those that are not after so many seconds."""
        until = time.monotonic() + seconds
        left = set(wanted)
        while left and time.monotonic() < until:
            begun = time.monotonic()
            self.iterate()
            left -= {id_ for id_, job in self.jobs.items() if job.state in OVER}
            if left:
                time.sleep(max(0.0, begun + self.interval - time.monotonic()))
        return left

    def expect_all(
        self,
        wanted: Collection[str],
        never: Mapping[str, tuple[str, str]],
        *,
        seconds: float,
        details: Callable[[], str],
    ) -> None:
        """Schedule until all wanted jobs are over: none waits, and those of ``never`` are held for what is told there.

        ``never``: for each job its name and what its comment has.
        """
        left = self.run(wanted, seconds=seconds)
        assert not left, ({job: self.jobs.get(job) for job in left}, self.refusals, details())
        assert self.refusals == []
        for job, (name, words) in never.items():
            record = self.jobs[job]
            assert (record.state, words in record.comment) == ("Hold", True), (name, record)
        assert Counter(job.state for job in self.jobs.values())["Idle"] == 0

    def _rooms(self) -> dict[str, Room]:
        rooms = {
            name: Room(node, node.processors_free or node.processors or 1, node.memory or 0)
            for name, node in self.nodes.items()
            if node.state in USABLE
        }
        for job in self.jobs.values():
            if job.state in ACTIVE - {"Suspended"}:
                for host, count in Counter(job.task_list).items():
                    if host in rooms and rooms[host].node.processors_free is None:
                        rooms[host].processors -= count * (job.processors_per_task or 1)
                    if host in rooms:
                        rooms[host].memory -= count * (job.memory_per_task or 0)
        return rooms

    def _start(self, job: JobRecord, tasks: Sequence[str], rooms: Mapping[str, Room]) -> bool:
        begun = time.monotonic()
        try:
            status, text = self.ask(f"STARTJOB ARG={job.id} TASKLIST={':'.join(tasks)}")
        except (KoalaError, OSError) as error:
            status, text = -1, str(error)
        self.answers.append(time.monotonic() - begun)
        if status < 0:
            self.refusals.append((job.id, status, text))
            self._deferred[job.id] = time.monotonic() + self.defer
            return False
        self.started[job.id] = tuple(tasks)
        for host, count in Counter(tasks).items():
            rooms[host].processors -= count * (job.processors_per_task or 1)
            rooms[host].memory -= count * (job.memory_per_task or 0)
        return True


def place(job: JobRecord, rooms: Mapping[str, Room]) -> tuple[str, ...]:
    """Return the task list of a job, by its record; empty when it does not fit now."""
    wanted, slots = job.tasks or 1, Counter(job.host_list)
    usable = [(name, min(count, slots[name]) if slots else count) for name, count in _usable(job, rooms)]
    if job.nodes and job.tasks_per_node:
        each = min(job.tasks_per_node, wanted)
        chosen = [name for name, count in usable if count >= each][: job.nodes]
        dealt = [each] * (wanted // each) + ([wanted % each] if wanted % each else [])
        if len(chosen) < job.nodes or len(dealt) != job.nodes:
            return ()
        return tuple(name for name, count in zip(chosen, dealt, strict=True) for _ in range(count))
    tasks: list[str] = []
    for name, count in usable:
        tasks += [name] * min(count, job.tasks_per_node or count, wanted - len(tasks))
    return tuple(tasks) if len(tasks) == wanted else ()


def _usable(job: JobRecord, rooms: Mapping[str, Room]) -> list[tuple[str, int]]:
    """Return the tasks that each node has room for, the last node first, as MINRESOURCE does."""
    found = []
    for name in sorted(rooms, reverse=True):
        room, node = rooms[name], rooms[name].node
        classes = {count.name for count in node.classes}
        if not set(job.features) <= set(node.features) or (job.queue and classes and job.queue not in classes):
            continue
        if (job.memory or 0) > (node.memory or 0):
            continue
        tasks = room.processors // (job.processors_per_task or 1)
        if job.memory_per_task:
            tasks = min(tasks, room.memory // job.memory_per_task)
        if tasks > 0:
            found.append((name, tasks))
    return found


def _number(id_: str) -> tuple[int, str]:
    digits = id_.partition("_")[0].partition(".")[0]
    return (int(digits) if digits.isdecimal() else 0, id_)
