# SPDX-License-Identifier: Apache-2.0
"""The parameters of a sweep: what people write for their values, and the values of each task. Pure.

Nothing is expanded before it is asked for: a million tasks are as few numbers as there are parameters.
"""

from __future__ import annotations

import re
from decimal import Decimal
from math import prod
from typing import TYPE_CHECKING

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import SweepAxis

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from koala_adapter.model import Sweep

MOST_TASKS = 1_000_000
_NUMBER = r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})(?:\.\.({_NUMBER}))?")
_PLACE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def range_axis(name: str, text: str) -> SweepAxis | None:
    """Return the values of ``FIRST..LAST`` or ``FIRST..LAST..STEP``, both ends included; None: it is no range.

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


def lines_of(text: str) -> list[str]:
    """Return the values in a file: one on each line, but for empty ones."""
    return [line for line in text.splitlines() if line.strip()]


def places_in(command: Sequence[str]) -> set[str]:
    """Return the names in braces in a command, whether they are parameters or not."""
    return {name for argument in command for name in _PLACE.findall(argument)}


def count_tasks(axes: Sequence[SweepAxis], *, together: bool) -> int:
    """Return how many tasks there are: each value with each other one, or the first with the first and so on."""
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
        """Return the parameters of a task."""
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
    """Yield the arguments of a task: each name of a parameter in braces gives way to its value, others stay."""
    for argument in command:
        yield _PLACE.sub(lambda found: row.get(found[1], found[0]), argument)
