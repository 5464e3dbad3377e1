# SPDX-License-Identifier: Apache-2.0
"""A workload as the simulator takes it: one column for each property of the jobs, in order of submission. Pure.

Columns instead of objects, because a trace has hundreds of thousands of jobs, and most of what is done with them is
done to all of them at once. Where it comes from, an SWF file or a model, makes no difference from here on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Irregularity:
    """Something about a workload that is not as the format or the simulation wants it, and how often it occurs."""

    kind: str
    """In words, fit to stand after a number."""
    count: int
    line: int | None = None
    """Of the first occurrence in the file, from 1."""
    left_out: bool = False
    """Whether these jobs do not take part."""
    places: Sequence[int] = field(default=(), repr=False, compare=False)
    """The line of each occurrence in the file; empty where there is no file."""

    def __str__(self) -> str:
        """As a person is told."""
        place = "" if self.line is None else f", first in line {self.line}"
        return f"{self.count} {self.kind}{' (left out)' if self.left_out else ''}{place}"

    def at(self, places: Sequence[int]) -> Irregularity:
        """Return the same of some of its occurrences only."""
        line = None if self.line is None else min(places, default=None)
        return replace(self, count=len(places), line=line, places=places)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in order of submission; all columns have the same length."""

    name: str
    processors: int | None
    """Of the machine it was recorded on or made for."""
    ids: Sequence[int]
    submits: Sequence[float]
    """Seconds since the begin of the trace."""
    runs: Sequence[float]
    """Seconds, more than 0."""
    sizes: Sequence[int]
    """Processors, more than 0."""
    estimates: Sequence[float]
    """Seconds that the scheduler expects a job to take, never less than it takes."""
    users: Sequence[int]
    """-1: unknown."""
    rows: Sequence[int]
    """Where each job stands in its trace, from 0."""
    lines: Sequence[int] = ()
    """The line of each job in the file, from 1; empty where there is no file."""
    irregularities: Sequence[Irregularity] = ()

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.ids)

    @property
    def skipped(self) -> int:
        """Jobs of the trace that are left out."""
        return sum(one.count for one in self.irregularities if one.left_out)

    def first(self, jobs: int) -> Workload:
        """Return the first so many jobs; what is irregular about others is not counted any more.

        What was left out counts as far as it stands before the last of these jobs.
        """
        if jobs >= len(self):
            return self
        chosen = self.picked(range(jobs))
        if not chosen.lines:
            return chosen
        mine, others, last = set(chosen.lines), set(self.lines[jobs:]), max(chosen.lines)
        found = []
        for one in self.irregularities:
            places = [line for line in one.places if line in mine or (line < last and line not in others)]
            if places or not one.places:
                found.append(one.at(places) if one.places else one)
        return replace(chosen, irregularities=found)

    def picked(self, indices: Sequence[int]) -> Workload:
        """Return the jobs at these places, in this order."""
        return replace(
            self,
            ids=[self.ids[index] for index in indices],
            submits=[self.submits[index] for index in indices],
            runs=[self.runs[index] for index in indices],
            sizes=[self.sizes[index] for index in indices],
            estimates=[self.estimates[index] for index in indices],
            users=[self.users[index] for index in indices],
            rows=[self.rows[index] for index in indices],
            lines=[self.lines[index] for index in indices] if self.lines else (),
        )

    def fitting(self, processors: int) -> Workload:
        """Return the workload without the jobs that need more processors than there are; they are counted."""
        if max(self.sizes, default=0) <= processors:
            return self
        fit = [index for index, size in enumerate(self.sizes) if size <= processors]
        kind = f"jobs larger than the {processors} processors there are"
        places = [line for line, size in zip(self.lines, self.sizes, strict=False) if size > processors]
        found = Irregularity(kind=kind, count=len(self) - len(fit), left_out=True, places=places)
        return replace(self.picked(fit), irregularities=(*self.irregularities, found))
