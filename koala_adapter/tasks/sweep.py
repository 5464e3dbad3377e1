# SPDX-License-Identifier: Apache-2.0
"""Sweeps: parameters and their values, the estimated end, and the ledger of tasks. Pure.

Values are expanded only when asked for: a million tasks are as few numbers as there are parameters. In order: the
parameters as users write them and the tasks made of them, the estimate, and the book of open, assigned and ended tasks.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import SweepAxis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import Sweep


# -- Parameters and their values -----------------------------------------------------------------------------

MOST_TASKS = 1_000_000
MOST_LAUNCHERS = 1000
"""Launchers of a sweep at most, where nothing says how many."""
_NUMBER = r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?")
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def range_axis(name: str, text: str) -> SweepAxis | None:
    """Parse ``FIRST..LAST`` or ``FIRST..LAST..STEP`` into values, ends included; None for other texts.

    Raises ValueError, with what is allowed, for one that has no end or no values.
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        return None
    first, last = Decimal(found[1]), Decimal(found[2])
    step = Decimal(found[3] or (1 if last >= first else -1))
    if not step or (last - first) / step < 0:
        raise ValueError("a range whose step leads from its first value to its last")
    return SweepAxis(names=(name,), count=int((last - first) / step) + 1, first=str(first), step=str(step))


def list_axis(name: str, values: Sequence[str]) -> SweepAxis:
    """Return values that are written one by one."""
    return SweepAxis(names=(name,), count=len(values), rows=tuple((value,) for value in values))


INDEX = "index"
"""Parameter of the tasks of an array."""
MOST_LISTED = 10_000
"""Indices of an array that is not one range."""
ARRAY_WORDS = (
    'numbers and ranges, such as "1-100", "0-99:3" or "1,5,7-9", in all with %N behind them for at most N tasks at once'
)
_ARRAY = re.compile(r"(?P<ranges>[0-9,:-]+)(?:%(?P<most>[1-9][0-9]{0,6}))?")
_INDICES = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9})(?::(?P<step>[1-9][0-9]{0,8}))?)?")


def array_axis(text: str) -> tuple[SweepAxis, int | None]:
    """Parse the indices of an array and its bound on tasks at a time (None: unbounded).

    Raises ValueError with what is allowed.
    """
    array = _ARRAY.fullmatch(text)
    found = [_INDICES.fullmatch(part) for part in array["ranges"].split(",")] if array else []
    ranges = [
        range(int(one["first"]), int(one["last"] or one["first"]) + 1, int(one["step"] or 1)) for one in found if one
    ]
    if array is None or len(ranges) < len(found) or not all(ranges):
        raise ValueError(ARRAY_WORDS)
    most = MOST_TASKS if len(ranges) == 1 else MOST_LISTED
    if sum(map(len, ranges)) > most:
        raise ValueError(f"at most {MOST_TASKS:,} indices in one range, or {MOST_LISTED:,} in several")
    limit = int(array["most"]) if array["most"] else None
    if len(ranges) > 1:
        return list_axis(INDEX, [str(index) for index in dict.fromkeys(chain(*ranges))]), limit
    first, step = str(ranges[0].start), str(ranges[0].step)
    return SweepAxis(names=(INDEX,), count=len(ranges[0]), first=first, step=step), limit


def lines_of(content: bytes) -> list[str]:
    """Return the values in a file: one for each line that is not empty.

    Lines end at LF or CRLF alone, so that a value may have any other character. Raises UnicodeDecodeError for what is
    not UTF-8.
    """
    lines = content.decode("utf-8-sig").split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]


def places_in(command: Sequence[str]) -> set[str]:
    """Return all names in braces in a command."""
    return {name for argument in command for name in _PLACE.findall(argument)}


def count_tasks(axes: Sequence[SweepAxis], *, together: bool) -> int:
    """Return the number of tasks: the product of the axes, or their common length when zipped."""
    counts = [axis.count for axis in axes]
    return min(counts, default=0) if together else prod(counts)


class Expansion:
    """The tasks of a sweep by their numbers, from 0; the last parameter changes fastest."""

    def __init__(self, sweep: Sweep, lines: Mapping[str, Sequence[str]]) -> None:
        """``lines``: those of each file that the sweep names. Raises ConfigurationError when they are others."""
        self._sweep = sweep
        self._lines = lines
        for axis in sweep.axes:
            if axis.file is not None and len(lines[axis.file]) != axis.count:
                message = f"{axis.file} has {len(lines[axis.file])} lines, and had {axis.count}"
                raise ConfigurationError(message, hint="submit the sweep again")
        self._total = count_tasks(sweep.axes, together=sweep.together)

    def __len__(self) -> int:
        """Return how many tasks there are."""
        return self._total

    def row(self, task: int) -> dict[str, str]:
        """Return the parameter values of a task."""
        values: dict[str, str] = {}
        rest = task
        for axis in reversed(self._sweep.axes):
            rest, at = (rest, task) if self._sweep.together else divmod(rest, axis.count)
            values = {**dict(zip(axis.names, self._at(axis, at), strict=True)), **values}
        return values

    def _at(self, axis: SweepAxis, at: int) -> tuple[str, ...]:
        if axis.file is not None:
            return (self._lines[axis.file][at],)
        if axis.first is not None:
            return (format(Decimal(axis.first) + at * Decimal(axis.step), "f"),)
        return axis.rows[at]


def filled(command: Sequence[str], row: Mapping[str, str]) -> Iterator[str]:
    """Yield a task's arguments, with parameters in braces replaced by values."""
    for argument in command:
        yield _PLACE.sub(lambda found: row.get(found[1], found[0]), argument)


# -- Estimated end of a sweep --------------------------------------------------------------------------------
# By the duration of its latest tasks and the number of tasks at work now.

WINDOW = 200
"""Tasks that the estimate looks back on: parameters often grow, and with them the time of a task."""


class Pace:
    """Estimate of remaining time from durations of tasks."""

    def __init__(self) -> None:
        """Create an estimate without data."""
        self._latest: deque[float] = deque(maxlen=WINDOW)

    def note(self, seconds: float) -> None:
        """Add the duration of a task."""
        self._latest.append(max(0.0, seconds))

    def left(self, *, tasks: int, launchers: int) -> float | None:
        """Return the estimated seconds for ``tasks`` tasks on ``launchers`` launchers; None without data."""
        if not tasks:
            return 0.0
        if not launchers or not self._latest:
            return None
        each = sum(self._latest) / len(self._latest)
        return each * max(1.0, tasks / min(launchers, tasks))


# -- The book of a sweep: open, assigned, done and failed tasks, and tries -----------------------------------
# A task may be begun more than once: it is assigned again when it was lost with its launcher, or when a launcher
# returns its processor and may still be at the task. Only the first result of a task is taken.

MOST_LOSSES = 10
"""Launchers that may be lost with one task before it counts as what ends them."""


class Entry(StrEnum):
    """Kinds of lines in a sweep's results, from which its state is rebuilt."""

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
    """A task that a launcher has."""

    task: int
    attempt: int
    """From 1; which of several launchers with the same task is meant."""


@dataclass(slots=True)
class _Open:
    """State of an unfinished task, created when it is handed out."""

    attempt: int = 0
    failures: int = 0
    losses: int = 0
    out: bool = False


@dataclass(slots=True)
class Book:
    """State of the tasks of one sweep."""

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
        """Mark all tasks as open."""
        self._over = bytearray(self.total)

    @property
    def out(self) -> int:
        """Number of tasks at launchers."""
        return self._out

    @property
    def over(self) -> bool:
        """Whether every task is done or has failed for good."""
        return self.done + len(self.failed) == self.total

    @property
    def left(self) -> int:
        """Number of tasks neither done nor failed."""
        return self.total - self.done - len(self.failed)

    def take(self) -> Assignment | None:
        """Hand out a task; None when there is none now."""
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
        """Return the entry for a task's success; None when the task is already over."""
        return Entry.DONE if 0 <= task < self.total and not self._over[task] else None

    def entry_of_failure(self, given: Assignment) -> Entry | None:
        """Return the entry for a task's failure; None when it is over or at another launcher."""
        known = self._current(given)
        if known is None:
            return None
        return Entry.REPEATED if known.failures < self.repeats else Entry.FAILED

    def entry_of_loss(self, given: Assignment) -> Entry | None:
        """Return the entry for a task lost with its launcher; None when it is over or at another launcher."""
        known = self._current(given)
        if known is None:
            return None
        return Entry.LOST if known.losses + 1 < MOST_LOSSES else Entry.FAILED

    def given_back(self, given: Assignment) -> None:
        """Make a task available again that its launcher gave back without fault of its own."""
        known = self._current(given)
        if known is not None:
            self._back(given.task, known)

    def _current(self, given: Assignment) -> _Open | None:
        known = self._open.get(given.task)
        return known if known is not None and known.out and known.attempt == given.attempt else None

    def note(self, task: int, entry: Entry) -> None:
        """Apply an entry; ignored for a task that is over."""
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
        """Apply recorded entries. Tasks that were handed out may still be done, so they come last."""
        latest = -1
        for task, entry in entries:
            self.note(task, entry)
            latest = max(latest, task)
        doubtful = [task for task in range(latest + 1) if not self._over[task] and task not in self._open]
        self._open.update((task, _Open()) for task in doubtful)
        self._doubt(doubtful, latest + 1)

    def _doubt(self, tasks: list[int], following: int) -> None:
        """Move tasks behind those that were never handed out."""
        fresh = [task for task in range(following, self.total) if task not in self._open] if tasks else []
        self._open.update((task, _Open()) for task in fresh)
        self._waiting.extend((*fresh, *tasks))
        self._next = self.total if tasks else max(self._next, following)
