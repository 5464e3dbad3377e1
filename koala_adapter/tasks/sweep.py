# SPDX-License-Identifier: Apache-2.0
"""The book of a sweep: which tasks are open, handed out, done or failed, and how often each was tried. Pure.

A task may be begun more than once: it is given to another launcher when it was lost with its own, or when one gives
its processor back, and nobody knows whether the first is still at it. Its result is taken once, the first one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_LOSSES = 10
"""Launchers that may be lost with one task before it counts as what ends them."""


class Entry(StrEnum):
    """What is written down of a task, in this order of a sweep's life; the whole book follows from these."""

    DONE = "done"
    REPEATED = "repeated"
    """It failed, and is tried again."""
    LOST = "lost"
    """Its launcher was lost, and it is tried again."""
    FAILED = "failed"
    """It failed as often as it may."""
    RESUMED = "resumed"
    """Of no task: what had failed is tried again."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task that is handed out."""

    task: int
    attempt: int
    """From 1; which of several launchers with the same task is meant."""


@dataclass(slots=True)
class _Open:
    """A task that is not over; most never get one of these before they are handed out."""

    attempt: int = 0
    failures: int = 0
    losses: int = 0
    out: bool = False


@dataclass(slots=True)
class Book:
    """The tasks of one sweep."""

    total: int
    repeats: int = 0
    """How often a task that fails is tried again."""
    done: int = 0
    failed: dict[int, None] = field(default_factory=dict)
    """In the order in which they failed."""
    _over: bytearray = field(default_factory=bytearray)
    _waiting: deque[int] = field(default_factory=deque)
    """Those that were handed out before and came back; before ``_next``, which was never handed out."""
    _next: int = 0
    _open: dict[int, _Open] = field(default_factory=dict)
    _out: int = 0

    def __post_init__(self) -> None:
        """Begin with all tasks open."""
        self._over = bytearray(self.total)

    @property
    def out(self) -> int:
        """How many tasks are handed out."""
        return self._out

    @property
    def over(self) -> bool:
        """Whether every task is done, or has failed for good."""
        return self.done + len(self.failed) == self.total

    @property
    def left(self) -> int:
        """How many tasks are neither done nor failed."""
        return self.total - self.done - len(self.failed)

    def take(self) -> Assignment | None:
        """Hand out a task; None: there is none to be had now."""
        while self._waiting:
            task = self._waiting.popleft()
            if not self._over[task] and not self._open[task].out:
                return self._handed(task)
        while self._next < self.total:
            task = self._next
            self._next += 1
            if not self._over[task] and task not in self._open:
                self._open[task] = _Open()
                return self._handed(task)
        return None

    def _handed(self, task: int) -> Assignment:
        known = self._open[task]
        known.attempt += 1
        known.out = True
        self._out += 1
        return Assignment(task, known.attempt)

    # ---- what is to be written down: first that, then `note` ---------------------------------------------------------

    def entry_of_success(self, task: int) -> Entry | None:
        """Return what it means that a task is done; None: that it is over was known, and this result is none."""
        return Entry.DONE if 0 <= task < self.total and not self._over[task] else None

    def entry_of_failure(self, given: Assignment) -> Entry | None:
        """Return what it means that a task failed; None: it is over, or somebody else is at it by now."""
        known = self._current(given)
        if known is None:
            return None
        return Entry.REPEATED if known.failures < self.repeats else Entry.FAILED

    def entry_of_loss(self, given: Assignment) -> Entry | None:
        """Return what it means that a task was lost with its launcher; None: as for a failure."""
        known = self._current(given)
        if known is None:
            return None
        return Entry.LOST if known.losses + 1 < MOST_LOSSES else Entry.FAILED

    def given_back(self, given: Assignment) -> None:
        """Hand a task out again that its launcher has left, for a reason that has nothing to do with it."""
        known = self._current(given)
        if known is not None:
            self._back(given.task, known)

    def _current(self, given: Assignment) -> _Open | None:
        known = self._open.get(given.task)
        return known if known is not None and known.out and known.attempt == given.attempt else None

    def note(self, task: int, entry: Entry) -> None:
        """Enter what is written down; of a task that is over, nothing is entered any more."""
        if entry is Entry.RESUMED:
            self._reopen(self.failed)
        elif 0 <= task < self.total and not self._over[task]:
            known = self._open.setdefault(task, _Open())
            if entry in {Entry.DONE, Entry.FAILED}:
                self._close(task, known, entry)
            else:
                known.failures += entry is Entry.REPEATED
                known.losses += entry is Entry.LOST
                self._back(task, known)

    def _close(self, task: int, known: _Open, entry: Entry) -> None:
        self._out -= known.out
        del self._open[task]
        self._over[task] = True
        if entry is Entry.DONE:
            self.done += 1
        else:
            self.failed[task] = None

    def _back(self, task: int, known: _Open) -> None:
        self._out -= known.out
        known.out = False
        self._waiting.append(task)

    def _reopen(self, tasks: Mapping[int, None]) -> None:
        for task in tasks:
            self._over[task] = False
            self._open[task] = _Open()
            self._waiting.append(task)
        self.failed.clear()

    def restored(self, entries: Iterable[tuple[int, Entry]]) -> None:
        """Enter what was written down. What was handed out then may still be done: it is handed out again last."""
        latest = -1
        for task, entry in entries:
            self.note(task, entry)
            latest = max(latest, task)
        doubtful = [task for task in range(latest + 1) if not self._over[task] and task not in self._open]
        self._open.update((task, _Open()) for task in doubtful)
        self._doubt(doubtful, latest + 1)

    def _doubt(self, tasks: list[int], following: int) -> None:
        """Put tasks behind those that nobody has had."""
        fresh = [task for task in range(following, self.total) if task not in self._open] if tasks else []
        self._open.update((task, _Open()) for task in fresh)
        self._waiting.extend((*fresh, *tasks))
        self._next = self.total if tasks else max(self._next, following)
