# SPDX-License-Identifier: Apache-2.0
"""A simulated batch system in virtual time, and the agents that run in its jobs."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from koala_adapter.model import (
    BatchKey,
    EndReason,
    LrmJob,
    LrmJobId,
    LrmJobState,
    Node,
    NodeState,
    PlaceholderId,
    TaskEnd,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# -- Nodes, a first-come-first-served queue, users with priority, and ways to fail.


ENDED_SHOWN = 60.0
"""Seconds for which a batch system that shows ended jobs does so."""


@dataclass(slots=True)
class Element:
    """One job on one node."""

    id: LrmJobId
    name: str
    index: int
    user: str
    walltime: float
    on_start: Callable[[Element], None]
    on_killed: Callable[[Element], None]
    state: LrmJobState = LrmJobState.QUEUED
    node: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    end: EndReason | None = None
    processors: int = 1

    @property
    def live(self) -> bool:
        return self.state is not LrmJobState.ENDED


class SimulatedLrm:
    """A cluster of nodes with a queue in strict order; jobs of a favoured user go before all others."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        *,
        nodes: int,
        per_node: int = 1,
        favoured: str = "",
        shows_ended: bool = True,
        reaction: float = 0.0,
    ) -> None:
        """``shows_ended``: whether jobs that ended are listed for a while, with the reason.

        ``reaction``: seconds from a submission or an end until it starts what can start now.
        """
        self.clock = clock
        self.name = name
        self.per_node = per_node
        self.favoured = favoured
        self.shows_ended = shows_ended
        self.reaction = reaction
        self.nodes = {f"{name}{number}": True for number in range(nodes)}
        self.elements: dict[LrmJobId, Element] = {}
        self.up = True
        self.submissions: list[str] = []
        """Name of every submission that arrived."""
        self._number = self._strange = 0
        self._live: dict[tuple[str, str], list[Element]] = {}
        """What :meth:`live` has found since something came or ended: it is asked after every step."""

    @property
    def processors(self) -> int:
        return len(self.nodes) * self.per_node

    def _free(self, node: str) -> int:
        used = sum(e.processors for e in self.elements.values() if e.node == node and e.state is LrmJobState.RUNNING)
        return self.per_node - used if self.nodes[node] else 0

    @property
    def idle(self) -> int:
        """Processors that a new job could get now."""
        return sum(self._free(node) for node in self.nodes)

    def submit(
        self,
        name: str,
        count: int,
        *,
        walltime: float,
        user: str,
        on_start: Callable[[Element], None],
        on_killed: Callable[[Element], None] = lambda _: None,
        processors: int = 1,
    ) -> tuple[LrmJobId, ...]:
        """Take a job array of ``count`` elements, each of so many processors of one node."""
        self.submissions.append(name)
        self._live.clear()
        self._number += 1
        ids = tuple(LrmJobId(f"{self.name}-{self._number}_{index}") for index in range(1, count + 1))
        for index, id_ in enumerate(ids, start=1):
            self.elements[id_] = Element(id_, name, index, user, walltime, on_start, on_killed, processors=processors)
        self.clock.after(self.reaction, self.schedule)
        return ids

    def imitate(self, name: str, count: int, *, user: str) -> None:
        """Have a stranger submit an array: half of its elements have failed, the others are held for ever."""
        self._strange += 1
        self._live.clear()
        for index in range(1, count + 1):
            id_ = LrmJobId(f"{self.name}-x{self._strange}_{index}")
            element = Element(id_, name, index, user, 0.0, on_start=lambda _: None, on_killed=lambda _: None)
            failed = index % 2 == 1
            element.state = LrmJobState.ENDED if failed else LrmJobState.HELD
            element.end = EndReason.LAUNCH_FAILED if failed else None
            self.elements[id_] = element

    def schedule(self) -> None:
        queued = [e for e in self.elements.values() if e.state is LrmJobState.QUEUED]
        queued.sort(key=lambda e: e.user != self.favoured)
        free = {node: self._free(node) for node in self.nodes}
        for element in queued:
            node = next((name for name, left in free.items() if left >= element.processors), None)
            if node is None:
                break
            free[node] -= element.processors
            element.state, element.node, element.started_at = LrmJobState.RUNNING, node, self.clock.now
            self.clock.after(element.walltime, partial(self.kill, element, EndReason.WALLTIME))
            element.on_start(element)

    def kill(self, element: Element, reason: EndReason) -> None:
        if element.live:
            running = element.state is LrmJobState.RUNNING
            self._end(element, reason)
            if running:
                element.on_killed(element)

    def exited(self, element: Element) -> None:
        if element.live:
            self._end(element, EndReason.EXITED)

    def _end(self, element: Element, reason: EndReason) -> None:
        element.state, element.ended_at, element.end = LrmJobState.ENDED, self.clock.now, reason
        self._live.clear()
        self.clock.after(ENDED_SHOWN if self.shows_ended else 0.0, partial(self._forget, element))
        self.clock.after(self.reaction, self.schedule)

    def _forget(self, element: Element) -> None:
        self.elements.pop(element.id, None)
        self._live.clear()

    def cancel(self, ids: Iterable[LrmJobId]) -> None:
        """Cancel elements; those that are not there are passed over."""
        for id_ in ids:
            element = self.elements.get(id_)
            if element is not None:
                self.kill(element, EndReason.CANCELLED)

    def fail_node(self, node: str) -> None:
        """Take a node down with everything on it."""
        self.nodes[node] = False
        for element in list(self.elements.values()):
            if element.node == node:
                self.kill(element, EndReason.NODE_LOST)

    def repair_node(self, node: str) -> None:
        self.nodes[node] = True
        self.schedule()

    def listing(self, prefix: str) -> tuple[LrmJob, ...]:
        """Return what the batch system shows of the jobs whose names begin so."""
        return tuple(
            LrmJob(
                id=e.id,
                name=e.name,
                state=e.state,
                user=e.user,
                processors=e.processors,
                array_index=e.index,
                nodes=(e.node,) if e.node else (),
                end=e.end,
            )
            for e in self.elements.values()
            if e.name.startswith(prefix) and (e.live or self.shows_ended)
        )

    @property
    def described_nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(
                name=name,
                state=NodeState.UP if up else NodeState.DOWN,
                processors=self.per_node,
                processors_used=self.per_node - self._free(name) if up else 0,
            )
            for name, up in self.nodes.items()
        )

    def live(self, prefix: str, *, user: str = "alice") -> list[Element]:
        """Return the elements that have not ended of a user's jobs whose names begin so."""
        found = self._live.get((prefix, user))
        if found is None:
            found = [e for e in self.elements.values() if e.live and e.user == user and e.name.startswith(prefix)]
            self._live[prefix, user] = found
        return found


class Clock:
    """A list of things to do at certain times."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self._number = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Have something done at a time, or now if that is past."""
        self._number += 1
        heapq.heappush(self._agenda, (max(time, self.now), self._number, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        self.at(self.now + delay, action)

    def step(self) -> bool:
        """Do the next thing; return False when there is none."""
        if not self._agenda:
            return False
        self.now, _, action = heapq.heappop(self._agenda)
        action()
        return True


# -- An agent: dials out, keeps a lease, runs tasks, and ends when it is told, alone, or killed.


REDIAL = 5.0
"""Seconds between two attempts to reach the control center."""


class Center(Protocol):
    """What an agent reaches when it dials out."""

    def dialled(self, agent: SimulatedAgent) -> Connection | None:
        """Return a connection, or None when nobody answers. The agent ends when it is not known."""

    def hung_up(self, agent: SimulatedAgent) -> None:
        """Take note that a connection broke."""


@dataclass(slots=True)
class Connection:
    """A two-way, ordered channel; what is under way when it breaks is lost."""

    clock: Clock
    delay: Callable[[], float]
    open: bool = True
    _last: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def send(self, direction: int, deliver: Callable[[], None]) -> None:
        """Deliver after a delay, in order, unless the connection breaks before."""
        at = self._last[direction] = max(self._last[direction], self.clock.now + self.delay())
        self.clock.at(at, lambda: deliver() if self.open else None)


TO_AGENT, TO_CENTER = 0, 1


@dataclass(slots=True)
class Task:
    """A process of an application as its agent knows it."""

    job: str
    rank: int
    end: TaskEnd | None = None
    asked: bool = False
    """It was asked to end."""
    tell: Callable[[Task], None] = field(default=lambda _: None, repr=False)


class SimulatedAgent:
    """Runs inside one element of a placeholder submission."""

    def __init__(self, clock: Clock, lrm: SimulatedLrm, element: Element, center: Center, *, lease: float) -> None:
        """Begin to dial after a moment, unless :attr:`mute` is set before that."""
        self.clock = clock
        self.lrm = lrm
        self.element = element
        self.center = center
        self.lease = lease
        self.id = PlaceholderId(batch=BatchKey(element.name), index=element.index)
        self.mute = False
        self.alive = True
        self.connection: Connection | None = None
        self.tasks: dict[int, Task] = {}
        self.job = ""
        self._unsaid: deque[Callable[[], None]] = deque()
        self.at_break: list[Callable[[], object]] = []
        """Called when the connection is lost."""
        self._contact = clock.now
        clock.after(1.0, self.dial)
        clock.after(lease, self._check_lease)

    @property
    def ends_in(self) -> float:
        """Seconds until the batch system ends it."""
        return (self.element.started_at or 0.0) + self.element.walltime - self.clock.now

    def dial(self) -> None:
        """Try to reach the control center, again and again."""
        if not self.alive or self.connection is not None:
            return
        if not self.mute:
            self.connection = self.center.dialled(self)
        if self.connection is not None:
            self._contact = self.clock.now
            while self._unsaid:
                self.connection.send(TO_CENTER, self._unsaid.popleft())
        elif self.alive:
            self.clock.after(REDIAL, self.dial)

    def break_connection(self) -> None:
        """Lose the connection; both sides see it."""
        if self.connection is None:
            return
        self.connection.open = False
        self.connection = None
        self._contact = self.clock.now
        for tell in self.at_break:
            tell()
        self.center.hung_up(self)
        if self.alive:
            self.clock.after(REDIAL, self.dial)
            self.clock.after(self.lease, self._check_lease)

    def say(self, deliver: Callable[[], None]) -> None:
        """Hand on what a process says, as soon as there is a connection; what is under way when it breaks is lost."""
        if self.connection is None:
            self._unsaid.append(deliver)
        else:
            self.connection.send(TO_CENTER, deliver)

    def _check_lease(self) -> None:
        if self.alive and self.connection is None and self.clock.now >= self._contact + self.lease:
            self.finish()

    def finish(self) -> None:
        """End by itself, as when released."""
        if self.alive:
            self.alive = False
            self.lrm.exited(self.element)
            self.break_connection()

    def killed(self) -> None:
        self.alive = False
        self.break_connection()

    def start(self, job: str, rank: int, seconds: float, end: TaskEnd, tell: Callable[[Task], None]) -> bool:
        """Start a task unless it is known; ``tell`` is called at its start and at its end. Return whether it is new."""
        if not self.alive:
            return False
        if self.job != job:
            self.job, self.tasks = job, {}
        if rank in self.tasks:
            return False
        task = self.tasks[rank] = Task(job, rank, tell=tell)
        tell(task)
        self.clock.after(seconds, lambda: self.end_task(task, end))
        return True

    def end_task(self, task: Task, end: TaskEnd) -> None:
        if self.alive and task.end is None:
            task.end = end
            task.tell(task)
