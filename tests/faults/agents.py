# SPDX-License-Identifier: Apache-2.0
"""A simulated agent: dials out, keeps a lease, runs tasks, and ends when it is told, alone, or killed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from koala_adapter.model import BatchKey, PlaceholderId, TaskEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.lrm import Clock, Element, SimulatedLrm

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
        """Be killed by the batch system."""
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
        """Let a task end, unless it has."""
        if self.alive and task.end is None:
            task.end = end
            task.tell(task)
