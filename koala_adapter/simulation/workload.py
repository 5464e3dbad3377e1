# SPDX-License-Identifier: Apache-2.0
"""A workload as columns, in order of submission, and traces in the Standard Workload Format (SWF).

Columns instead of objects, because a trace has hundreds of thousands of jobs, and most of what is done with them is
done to all of them at once. Whether a workload comes from a trace or from a model makes no difference to a simulation.
"""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import compress, islice
from operator import gt
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


# -- Workload ------------------------------------------------------------------------------------------------
# One column for each property of the jobs. This part does no I/O.


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


# -- Traces in the Standard Workload Format ------------------------------------------------------------------
# Version 2.2, of the Parallel Workloads Archive: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. Comment
# lines begin with ``;`` and make up the header, every other line is one job of 18 numbers, -1 where a number is not
# known.
#
# Real traces break every rule of the format somewhere. A piece of the file in which all is regular is taken in at once,
# column by column; any other piece is read line by line, and what is irregular in it is counted, with the line where it
# occurs first. Nothing is left out silently.

Column: TypeAlias = "array[int] | array[float]"

GZIP_MAGIC = b"\x1f\x8b"
PIECE = 1 << 15
"""Characters that are taken in at once: what stays in the cache of a processor is read twice as fast."""
END = ";"
"""Stands for the end of a line when a whole piece is split into words; in a regular piece no job contains it."""
HEADER_ENTRY = re.compile(r";\s*([A-Za-z]+):\s*(.*?)\s*$")
UNKNOWN = -1


class Field(IntEnum):
    """The numbers of a line, in their order."""

    JOB = 0
    SUBMITTED = 1
    WAIT = 2
    RUN = 3
    ALLOCATED = 4
    CPU_TIME = 5
    MEMORY = 6
    REQUESTED_PROCESSORS = 7
    REQUESTED_TIME = 8
    REQUESTED_MEMORY = 9
    STATUS = 10
    USER = 11
    GROUP = 12
    EXECUTABLE = 13
    QUEUE = 14
    PARTITION = 15
    PRECEDING = 16
    THINK_TIME = 17


ALL = tuple(Field)
NEEDED = (
    Field.JOB,
    Field.SUBMITTED,
    Field.RUN,
    Field.ALLOCATED,
    Field.REQUESTED_PROCESSORS,
    Field.REQUESTED_TIME,
    Field.STATUS,
    Field.USER,
)
"""What a simulation needs to know."""
FRACTIONS = frozenset({Field.CPU_TIME})
"""Fields in which the archive itself has fractions."""
PARTIAL = frozenset({2, 3, 4})
"""Status of a line that tells of a part of a job, as after a checkpoint: the whole job has a line of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What is in a file."""

    name: str
    """Of the file, without directory and ending."""
    header: Sequence[str]
    """Comment lines before the first job, without line ends."""
    columns: Mapping[Field, Column]
    """The fields that were asked for."""
    lines: Sequence[int]
    """Where in the file each job stands, from 1."""
    irregularities: Sequence[Irregularity]

    def __len__(self) -> int:
        """Return the number of jobs."""
        return len(self.lines)

    @property
    def processors(self) -> int | None:
        """Processors of the machine by the header: MaxProcs, else MaxNodes; None when it does not say."""
        entries = header_entries(self.header)
        for key in ("MaxProcs", "MaxNodes"):
            found = re.match(r"\d+", entries.get(key, ""))
            if found and int(found[0]) > 0:
                return int(found[0])
        return None


def header_entries(header: Iterable[str]) -> dict[str, str]:
    """Return what the header says by key; of a key that occurs more than once, the first."""
    entries: dict[str, str] = {}
    for line in header:
        found = HEADER_ENTRY.match(line)
        if found:
            entries.setdefault(found[1], found[2])
    return entries


def read_trace(path: Path, fields: Sequence[Field] = ALL) -> Trace:
    """Read a trace, compressed with gzip or not. Raises SimulationError, and OSError when it cannot be read at all."""
    data = path.read_bytes()
    if data.startswith(GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            message = f"{path}: the compressed file is damaged: {error}"
            raise SimulationError(message, hint="fetch it again") from error
    name = re.sub(r"(\.swf|\.txt)?(\.gz)?$", "", path.name)
    return parse_trace(data.decode("utf-8", "surrogateescape"), name=name, source=str(path), fields=fields)


def parse_trace(text: str, *, name: str, source: str = "", fields: Sequence[Field] = ALL) -> Trace:
    """Return the trace that a text contains. Raises SimulationError when there is no job in it."""
    header: list[str] = []
    begin = 0
    while text.startswith(";", begin):
        end = text.find("\n", begin)
        end = len(text) if end < 0 else end
        header.append(text[begin:end].rstrip("\r"))
        begin = end + 1
    reader = _Reader(fields, first_line=len(header) + 1)
    for piece in _pieces(text, begin):
        reader.take(piece)
    if not reader.lines:
        raise SimulationError(*_no_jobs(source or name, reader))
    return reader.trace(name, header)


def _no_jobs(source: str, reader: _Reader) -> tuple[str]:
    if reader.unreadable:
        line, text = reader.unreadable
        return (
            f"{source}:{line}: not a job of the Standard Workload Format, as no line of this file is: {text[:60]!r}",
        )
    return (f"{source}: there is no job in this file",)


def _pieces(text: str, begin: int) -> Iterator[str]:
    """Yield the text in pieces of whole lines."""
    while begin < len(text):
        end = begin + PIECE
        if end < len(text):
            end = text.find("\n", end) + 1 or len(text)
        yield text[begin:end]
        begin = end


class _Reader:
    """Takes in a file piece by piece."""

    def __init__(self, fields: Sequence[Field], *, first_line: int) -> None:
        self.columns: dict[Field, Column] = {
            field: array("d") if field in FRACTIONS else array("q") for field in fields
        }
        self.lines = array("q")
        self.places: dict[str, array[int]] = {}
        """The lines of each kind of irregularity."""
        self.unreadable: tuple[int, str] | None = None
        """The first line that is no job, with its text."""
        self.next_line = first_line

    def take(self, piece: str) -> None:
        """Take in some whole lines."""
        if not piece.endswith("\n"):
            piece += "\n"
        words = piece.replace("\n", f" {END} ").split()
        jobs = len(words) // (len(ALL) + 1)
        regular = len(words) == jobs * (len(ALL) + 1) and words[len(ALL) :: len(ALL) + 1].count(END) == jobs
        if not regular or not self._take_columns(words, jobs):
            for line in piece.split("\n")[:-1]:
                self._take_line(line)

    def _take_columns(self, words: list[str], jobs: int) -> bool:
        """Take in a piece that has 18 words in each line; False, and nothing is done, when one is no whole number."""
        step = len(ALL) + 1
        try:
            values = {field: _parsed(words[field::step], column.typecode) for field, column in self.columns.items()}
        except (ValueError, OverflowError):
            return False
        for which, column in self.columns.items():
            column.extend(values[which])  # type: ignore[arg-type]
        self.lines.extend(range(self.next_line, self.next_line + jobs))
        self.next_line += jobs
        return True

    def _take_line(self, line: str) -> None:
        number = self.next_line
        self.next_line += 1
        words = line.split()
        if not words:
            return
        if words[0].startswith(";"):
            self._count("comments among the jobs", number)
            return
        try:
            values = [_number(word) for word in words]
        except (ValueError, OverflowError):
            self.unreadable = self.unreadable or (number, line)
            self._count("lines that are no jobs", number)
            return
        if len(values) != len(ALL):
            few = len(values) < len(ALL)
            self._count(f"jobs with {'fewer' if few else 'more'} than {len(ALL)} fields", number)
            values += [UNKNOWN] * (len(ALL) - len(values))
        for which, column in self.columns.items():
            self._append(which, column, values[which], number)
        self.lines.append(number)

    def _append(self, field: Field, column: Column, value: float, number: int) -> None:
        if isinstance(value, float) and field not in FRACTIONS:
            self._count(f"fractions as {field.name.lower().replace('_', ' ')}", number)
            if column.typecode != "d":
                column = self.columns[field] = array("d", column)
        column.append(value)  # type: ignore[arg-type]

    def _count(self, kind: str, line: int) -> None:
        self.places.setdefault(kind, array("q")).append(line)

    def trace(self, name: str, header: Sequence[str]) -> Trace:
        """Return all that was taken in."""
        found = [
            _irregularity(kind, places, left_out=kind == "lines that are no jobs")
            for kind, places in self.places.items()
        ]
        trace = Trace(name=name, header=header, columns=self.columns, lines=self.lines, irregularities=found)
        found += _disorder(trace)
        return trace


def _parsed(words: list[str], typecode: str) -> Column:
    """Return the numbers of a column. Raises ValueError, OverflowError."""
    parse = float if typecode == "d" else int
    if words and words[0] == words[-1] and words.count(words[0]) == len(words):  # not known, as a rule
        return array(typecode, [parse(words[0])]) * len(words)
    return array(typecode, list(map(parse, words)))  # of known length, which fills the array faster


def _number(word: str) -> float:
    """Return an int for a whole number, else a float. Raises ValueError, OverflowError (also for infinity)."""
    try:
        value = int(word)
    except ValueError:
        fraction = float(word)
        if int(fraction) != fraction:
            return fraction
        value = int(fraction)
    if abs(value) >= 1 << 63:
        raise OverflowError
    return value


def _irregularity(kind: str, places: Sequence[int], *, left_out: bool = False) -> Irregularity:
    """Return what is irregular in some lines, which are in ascending order."""
    return Irregularity(kind=kind, count=len(places), line=places[0], left_out=left_out, places=places)


def _disorder(trace: Trace) -> Iterator[Irregularity]:
    """Yield what is irregular about the jobs of a trace taken together."""
    submits, ids = trace.columns.get(Field.SUBMITTED), trace.columns.get(Field.JOB)
    if submits is not None and any(map(gt, submits, islice(submits, 1, None))):
        places = [index for index in range(1, len(submits)) if submits[index] < submits[index - 1]]
        yield _irregularity("jobs submitted before the one that stands before them", [trace.lines[at] for at in places])
    if submits is not None and min(submits) < 0:
        places = [index for index, value in enumerate(submits) if value < 0]
        yield _irregularity("jobs submitted before the begin of the trace", [trace.lines[at] for at in places])
    if ids is not None and len(set(ids)) != len(ids):
        seen: set[float] = set()
        places = []
        for index, id_ in enumerate(ids):
            if id_ in seen:
                places.append(index)
            seen.add(id_)
        yield _irregularity("jobs with the number of an earlier job", [trace.lines[at] for at in places])


def workload(trace: Trace, *, jobs: int | None = None, kill_at_limit: bool = False) -> Workload:
    """Return what a simulation makes of a trace.

    The size of a job is what it was allocated when that is known, else what it requested. Jobs without run time or
    size, and parts of jobs, are left out and counted. The estimate is the requested time when there is one, else the
    run time; one below the run time is raised to it, or, with ``kill_at_limit``, the job is cut off there.
    ``jobs``: only so many, the first ones. Raises SimulationError when none is left.
    """
    column = trace.columns
    sizes = _sizes(column[Field.ALLOCATED], column[Field.REQUESTED_PROCESSORS])
    found = list(trace.irregularities)
    keep = _kept(trace, sizes, found)
    rows = range(len(trace)) if keep is None else list(compress(range(len(trace)), keep))
    if not rows:
        raise SimulationError(f"{trace.name}: no job of this trace has both a run time and a size")
    runs, limits = _kept_only(column[Field.RUN], keep), _kept_only(column[Field.REQUESTED_TIME], keep)
    over = [index for index, larger in enumerate(map(gt, runs, limits)) if larger and limits[index] > 0]
    if over:
        kind = "jobs cut off at their requested time" if kill_at_limit else "jobs that ran longer than they requested"
        found.append(_irregularity(kind, [trace.lines[rows[index]] for index in over]))
    if kill_at_limit:
        for index in over:
            runs[index] = limits[index]
    result = Workload(
        name=trace.name,
        processors=trace.processors,
        ids=_whole(column[Field.JOB], keep),
        submits=_kept_only(column[Field.SUBMITTED], keep),
        runs=runs,
        sizes=_whole(sizes, keep),
        estimates=[limit if limit > run else run for run, limit in zip(runs, limits, strict=True)],  # noqa: FURB136
        users=_whole(column[Field.USER], keep),
        rows=rows,
        lines=trace.lines if keep is None else [trace.lines[row] for row in rows],
        irregularities=found,
    )
    if any(map(gt, result.submits, islice(result.submits, 1, None))):
        result = result.picked(sorted(range(len(result)), key=result.submits.__getitem__))
    return result if jobs is None else result.first(jobs)


def _kept_only(column: Iterable[float], keep: Sequence[bool] | None) -> list[float]:
    return list(column) if keep is None else list(compress(column, keep))


def _whole(column: Column, keep: Sequence[bool] | None) -> list[int]:
    values = _kept_only(column, keep)
    return values if column.typecode == "q" else [int(value) for value in values]  # type: ignore[return-value]


def _sizes(allocated: Column, requested: Column) -> Column:
    if min(allocated) > 0:
        return allocated
    typecode = "q" if allocated.typecode == requested.typecode == "q" else "d"
    return array(typecode, (size if size > 0 else asked for size, asked in zip(allocated, requested, strict=True)))


def _kept(trace: Trace, sizes: Sequence[float], found: list[Irregularity]) -> list[bool] | None:
    """Return which jobs take part, None for all; adds to ``found`` what is left out."""
    runs = trace.columns[Field.RUN]
    status = trace.columns.get(Field.STATUS, ())
    reasons: dict[str, set[int]] = {}
    if min(runs) <= 0:
        reasons["jobs without run time"] = {row for row, run in enumerate(runs) if run <= 0}
    if min(sizes) < 1:
        reasons["jobs without size"] = {row for row, size in enumerate(sizes) if size < 1}
    if not PARTIAL.isdisjoint(status):
        reasons["parts of jobs"] = {row for row, value in enumerate(status) if value in PARTIAL}
    out: set[int] = set()
    for kind, some in reasons.items():
        new = some - out
        if new:
            found.append(_irregularity(kind, [trace.lines[row] for row in sorted(new)], left_out=True))
        out |= some
    return [row not in out for row in range(len(trace))] if out else None


def trace_text(header: Iterable[str], columns: Mapping[Field, Sequence[float]]) -> str:
    """Return a trace as text; fields without a column are unknown."""
    length = max((len(column) for column in columns.values()), default=0)
    unknown = ["-1"] * length
    words = [list(map(_word, columns[field])) if field in columns else unknown for field in ALL]
    return "".join([*(f"{line}\n" for line in header), *(" ".join(row) + "\n" for row in zip(*words, strict=True))])


def _word(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def write_trace(path: Path, header: Iterable[str], columns: Mapping[Field, Sequence[float]]) -> None:
    """Write a trace, compressed when the name ends in ``.gz``. Raises OSError."""
    data = trace_text(header, columns).encode("utf-8", "surrogateescape")
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    path.write_bytes(data)
