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
    """One kind of deviation of a workload from its format or from what can be simulated, counted."""

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
        """Sentence for the user."""
        place = "" if self.line is None else f", first in line {self.line}"
        return f"{self.count} {self.kind}{' (left out)' if self.left_out else ''}{place}"

    def at(self, places: Sequence[int]) -> Irregularity:
        """Return the irregularity with only the occurrences at some of the jobs."""
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
    memory: Sequence[float] = ()
    """KiB that each job asks for, for each of its processors; 0 or less: not told. Empty: memory does not count."""
    rows: Sequence[int]
    """Where each job stands in its trace, from 0."""
    lines: Sequence[int] = ()
    """The line of each job in the file, from 1; empty where there is no file."""
    irregularities: Sequence[Irregularity] = ()
    preceding: Sequence[int] = ()
    """The index of the job after whose end each job is submitted, -1 where there is none; empty: no job has one."""
    think_times: Sequence[float] = ()
    """Seconds from the end of the preceding job to the submission; below 0: not known. As long as `preceding`."""

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
        chosen = self._cut(range(jobs), f"jobs whose preceding job is not among the first {jobs}")
        if not chosen.lines:
            return chosen
        mine, others, last = set(chosen.lines), set(self.lines[jobs:]), max(chosen.lines)
        found = []
        for one in chosen.irregularities:
            places = [line for line in one.places if line in mine or (line < last and line not in others)]
            if places or not one.places:
                found.append(one.at(places) if one.places else one)
        return replace(chosen, irregularities=found)

    def picked(self, indices: Sequence[int]) -> Workload:
        """Return the jobs at these places, in this order; links to preceding jobs that are not among them go."""
        new = {old: index for index, old in enumerate(indices)} if self.preceding else {}
        return replace(
            self,
            preceding=[new.get(self.preceding[index], -1) for index in indices] if self.preceding else (),
            think_times=[self.think_times[index] for index in indices] if self.preceding else (),
            ids=[self.ids[index] for index in indices],
            submits=[self.submits[index] for index in indices],
            runs=[self.runs[index] for index in indices],
            sizes=[self.sizes[index] for index in indices],
            estimates=[self.estimates[index] for index in indices],
            users=[self.users[index] for index in indices],
            memory=[self.memory[index] for index in indices] if self.memory else (),
            rows=[self.rows[index] for index in indices],
            lines=[self.lines[index] for index in indices] if self.lines else (),
        )

    def fitting(self, processors: int) -> Workload:
        """Return the workload without the jobs that need more processors than there are; they are counted."""
        if max(self.sizes, default=0) <= processors:
            return self
        fit = [index for index, size in enumerate(self.sizes) if size <= processors]
        return self.only(fit, f"larger than the {processors} processors there are")

    def only(self, fit: Sequence[int], others: str) -> Workload:
        """Return the jobs at these places; count the others as "jobs ``others``", such as "larger than the machine"."""
        left_out = set(range(len(self))).difference(fit)
        places = [line for index, line in enumerate(self.lines) if index in left_out]
        found = Irregularity(kind=f"jobs {others}", count=len(left_out), left_out=True, places=places)
        chosen = self._cut(fit, f"jobs whose preceding job is {others}")
        return replace(chosen, irregularities=(*chosen.irregularities, found))

    def _cut(self, indices: Sequence[int], kind: str) -> Workload:
        """Return the jobs at these places; a link to a preceding job that is left out is counted as ``kind``."""
        chosen = self.picked(indices)
        pairs = zip(indices, chosen.preceding, strict=False)
        orphans = [index for index, before in pairs if before < 0 <= self.preceding[index]]
        if not orphans:
            return chosen
        places = sorted(self.lines[index] for index in orphans) if self.lines else ()
        found = Irregularity(kind=kind, count=len(orphans), line=min(places, default=None), places=places)
        return replace(chosen, irregularities=(*chosen.irregularities, found))


# -- Traces in the Standard Workload Format ------------------------------------------------------------------
# Version 2.2, of the Parallel Workloads Archive: https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. Comment
# lines begin with ``;``, those before the first job make up the header, every other line is one job of 18 numbers, -1
# where a number is not known.
#
# Real traces break every rule of the format somewhere. A piece of the file in which all is regular is taken in at once,
# column by column; any other piece is read line by line, and what is irregular in it is counted, with the line where it
# occurs first. Both ways give the same for the same line, whichever fields are asked for. Nothing is left out silently.

Column: TypeAlias = "array[int] | array[float]"

GZIP_MAGIC = b"\x1f\x8b"
OTHER_MAGIC = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x1f\x9d": "compress", b"PK\x03\x04": "zip", b"(\xb5/\xfd": "zstd"}
"""First bytes of compressed files that are refused, and the program that makes them."""
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
PIECE = 1 << 15
"""Characters that are taken in at once: what stays in the cache of a processor is read twice as fast."""
END = ";"
"""Stands for the end of a line when a whole piece is split into words; in a regular piece no job contains it."""
HEADER_ENTRY = re.compile(r";\s*([A-Za-z]+)\s*:\s*(.*?)\s*$")
UNKNOWN = -1
LARGEST = 1 << 63
"""Numbers as large are refused: a column cannot hold them."""
NO_JOBS = "lines that are no jobs"


class Field(IntEnum):
    """Fields of a line of a trace, by position."""

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
    Field.REQUESTED_MEMORY,
    Field.STATUS,
    Field.USER,
    Field.QUEUE,
    Field.PARTITION,
    Field.PRECEDING,
    Field.THINK_TIME,
)
"""What a simulation uses, or tells that it does not use."""
ESSENTIAL = frozenset({Field.JOB, Field.SUBMITTED, Field.RUN, Field.ALLOCATED, Field.REQUESTED_PROCESSORS})
"""A line in which one of these is no number is no job; in other fields it counts as unknown."""
FRACTIONS = frozenset({Field.CPU_TIME})
"""Fields in which the archive itself has fractions."""
PARTIAL = frozenset({2, 3, 4})
"""Status of a line that tells of a part of a job, as after a checkpoint: the whole job has a line of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Contents of a trace file: header, columns of jobs, and irregularities."""

    name: str
    """Of the file, without directory and ending."""
    header: Sequence[str]
    """Comment lines before the first job, without blanks around them; all begin with a semicolon."""
    columns: Mapping[Field, Column]
    """The fields that were asked for, and at least those in `NEEDED`."""
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
        for key in SIZE_KEYS:
            found = re.match(r"(\d+)(?!,\d)", entries.get(key, ""))  # not the 1 of 1,664
            if found and int(found[1]) > 0:
                return int(found[1])
        return None

    @property
    def size_entry(self) -> str | None:
        """The header's line that should say the number of processors; None when there is none."""
        wanted = (line for line in self.header if (found := HEADER_ENTRY.match(line)) and found[1].lower() in SIZE_KEYS)
        return next(wanted, None)


SIZE_KEYS = ("maxprocs", "maxnodes")


def header_entries(header: Iterable[str]) -> dict[str, str]:
    """Return what the header says by key in lower case; of a key that occurs more than once, the first."""
    entries: dict[str, str] = {}
    for line in header:
        found = HEADER_ENTRY.match(line)
        if found:
            entries.setdefault(found[1].lower(), found[2])
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
    for magic, program in OTHER_MAGIC.items():
        if data.startswith(magic):
            message = f"{path}: this file is compressed with {program}; a trace is text, or compressed with gzip"
            raise SimulationError(message, hint="decompress it")
    text = data.decode("utf-16", "replace") if data.startswith(UTF16_MARKS) else data.decode("utf-8", "surrogateescape")
    name = re.sub(r"(\.swf|\.txt)?(\.gz)?$", "", path.name)
    return parse_trace(text, name=name, source=str(path), fields=fields)


def parse_trace(text: str, *, name: str, source: str = "", fields: Sequence[Field] = ALL) -> Trace:
    """Return the trace that a text contains. Raises SimulationError when there is no job in it."""
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    reader = _Reader(fields)
    for piece in _pieces(text, reader.take_header(text)):
        reader.take(piece)
    if not reader.lines:
        raise SimulationError(*_no_jobs(source or name, reader))
    return reader.trace(name)


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
    """Parser of a trace that is fed with pieces of the text."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.columns: dict[Field, Column] = {
            field: array("d") if field in FRACTIONS else array("q") for field in dict.fromkeys((*NEEDED, *fields))
        }
        self.header: list[str] = []
        self.lines = array("q")
        self.places: dict[str, array[int]] = {}
        """The lines of each kind of irregularity."""
        self.unreadable: tuple[int, str] | None = None
        """The first line that is no job, with its text."""
        self.next_line = 1

    def take_header(self, text: str) -> int:
        """Read the header and the first job; return where the rest begins."""
        begin = 0
        while begin < len(text) and not self.lines:
            end = text.find("\n", begin) + 1 or len(text)
            self._take_line(text[begin:end])
            begin = end
        return begin

    def take(self, piece: str) -> None:
        """Parse a piece of whole lines."""
        if not piece.endswith("\n"):
            piece += "\n"
        if not self._take_columns(piece):
            for line in piece.split("\n")[:-1]:
                self._take_line(line)

    def _take_columns(self, piece: str) -> bool:
        """Parse a piece that has 18 whole numbers in each line by columns; return False for any other piece."""
        words = piece.replace("\n", f" {END} ").split()
        step = len(ALL) + 1
        jobs = len(words) // step
        if len(words) != jobs * step or words[len(ALL) :: step].count(END) != jobs:
            return False
        try:  # all fields are checked, also those that nobody asked for
            values = {field: _parsed(words[field::step], "d" if field in FRACTIONS else "q") for field in ALL}
        except (ValueError, OverflowError):
            return False
        for which, column in self.columns.items():
            more = values[which]
            column.extend(more if more.typecode == column.typecode else array("d", more))  # type: ignore[arg-type]
        self.lines.extend(range(self.next_line, self.next_line + jobs))
        self.next_line += jobs
        return True

    def _take_line(self, line: str) -> None:
        number = self.next_line
        self.next_line += 1
        line = line.strip()
        if not line:
            return
        if line.startswith((";", "#")):
            self._take_comment(line, number)
            return
        words, comment = _job_words(line)
        values: list[float] = []
        odd = []
        for which, word in zip(ALL, words, strict=False):
            try:
                value = _number(word)
            except (ValueError, OverflowError):
                if which in ESSENTIAL:
                    self.unreadable = self.unreadable or (number, line)
                    self._count(NO_JOBS, number)
                    return
                value = UNKNOWN
                odd.append(f"jobs whose {_label(which)} is no number")
            if isinstance(value, float) and which not in FRACTIONS:
                odd.append(f"fractions as {_label(which)}")
            values.append(value)
        if len(words) != len(ALL):
            odd.append(f"jobs with {'fewer' if len(words) < len(ALL) else 'more'} than {len(ALL)} fields")
            values += [UNKNOWN] * (len(ALL) - len(values))
        for kind in [*odd, "jobs with a comment behind them"] if comment else odd:
            self._count(kind, number)
        for which, column in self.columns.items():
            self._append(which, column, values[which])
        self.lines.append(number)

    def _take_comment(self, line: str, number: int) -> None:
        if self.lines:
            self._count("comments among the jobs", number)
            return
        if line.startswith("#"):
            self._count("comments that begin with # in place of ;", number)
        self.header.append(f";{line[1:]}")

    def _append(self, field: Field, column: Column, value: float) -> None:
        if isinstance(value, float) and column.typecode != "d":
            column = self.columns[field] = array("d", column)
        column.append(value)  # type: ignore[arg-type]

    def _count(self, kind: str, line: int) -> None:
        self.places.setdefault(kind, array("q")).append(line)

    def trace(self, name: str) -> Trace:
        """Return the parsed trace."""
        found = [_irregularity(kind, places, left_out=kind == NO_JOBS) for kind, places in self.places.items()]
        trace = Trace(name=name, header=self.header, columns=self.columns, lines=self.lines, irregularities=found)
        found += _disorder(trace)
        return trace


def _job_words(line: str) -> tuple[list[str], bool]:
    """Return the words of a line up to a comment behind the job, and whether there is one."""
    words = line.split()
    for place, word in enumerate(words):
        if word.startswith(";") or (place >= Field.THINK_TIME and ";" in word):
            last = word.partition(";")[0]
            return [*words[:place], *([last] if last else [])], True
    return words, False


def _label(field: Field) -> str:
    return field.name.lower().replace("_", " ")


def _parsed(words: list[str], typecode: str) -> Column:
    """Return the numbers of a column. Raises ValueError, OverflowError, for the same words as `_number`."""
    parse = float if typecode == "d" else int
    if words and words[0] == words[-1] and words.count(words[0]) == len(words):  # not known, as a rule
        return array(typecode, [_number(words[0]) if typecode == "d" else int(words[0])]) * len(words)
    values = list(map(parse, words))
    if typecode == "d" and not all(-LARGEST < value < LARGEST for value in values):
        raise OverflowError
    return array(typecode, values)  # of known length, which fills the array faster


def _number(word: str) -> float:
    """Return an int for a whole number, else a float. Raises ValueError, OverflowError (also for infinity)."""
    try:
        value = int(word)
    except ValueError:
        fraction = float(word)
        if int(fraction) != fraction:
            return fraction
        value = int(fraction)
    if abs(value) >= LARGEST:
        raise OverflowError
    return value


def _irregularity(kind: str, places: Sequence[int], *, left_out: bool = False) -> Irregularity:
    """Return what is irregular in some lines, which are in ascending order."""
    return Irregularity(kind=kind, count=len(places), line=places[0], left_out=left_out, places=places)


def _disorder(trace: Trace) -> Iterator[Irregularity]:
    """Yield irregularities of a trace as a whole, such as jobs that are not in order of submission."""
    submits, ids = trace.columns[Field.SUBMITTED], trace.columns[Field.JOB]
    if any(map(gt, submits, islice(submits, 1, None))):
        places = [index for index in range(1, len(submits)) if submits[index] < submits[index - 1]]
        yield _irregularity("jobs submitted before the one that stands before them", [trace.lines[at] for at in places])
    if min(submits) < 0:
        places = [index for index, value in enumerate(submits) if value < 0]
        yield _irregularity("jobs submitted before the begin of the trace", [trace.lines[at] for at in places])
    if len(set(ids)) != len(ids):
        seen: set[float] = set()
        places = []
        for index, id_ in enumerate(ids):
            if id_ in seen:
                places.append(index)
            seen.add(id_)
        yield _irregularity("jobs with the number of an earlier job", [trace.lines[at] for at in places])


def workload(
    trace: Trace,
    *,
    jobs: int | None = None,
    kill_at_limit: bool = False,
    dependencies: bool = False,
    memory: bool = False,
) -> Workload:
    """Return the jobs of a trace that can be simulated, with all irregularities.

    The size of a job is what it was allocated when that is known, else what it requested. Jobs without run time or
    size, and parts of jobs, are left out and counted. The estimate is the requested time when there is one, else the
    run time; one below the run time is raised to it, or, with ``kill_at_limit``, the job is cut off there.
    With ``dependencies`` a job that names a preceding job is submitted after the end of that job; with ``memory`` jobs
    ask for memory. What the trace says and a simulation does not use is counted. ``jobs``: only so many, the first
    ones. Raises SimulationError when none is left.
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
    preceding = _preceding(trace, rows, found, obeyed=dependencies)
    found += _not_simulated(trace, rows, memory=memory)
    result = Workload(
        name=trace.name,
        processors=trace.processors,
        ids=_whole(column[Field.JOB], keep),
        submits=_kept_only(column[Field.SUBMITTED], keep),
        runs=runs,
        sizes=_whole(sizes, keep),
        estimates=[limit if limit > run else run for run, limit in zip(runs, limits, strict=True)],  # noqa: FURB136
        users=_whole(column[Field.USER], keep),
        memory=_kept_only(column[Field.REQUESTED_MEMORY], keep) if memory else (),
        rows=rows,
        lines=trace.lines if keep is None else [trace.lines[row] for row in rows],
        irregularities=found,
        preceding=preceding,
        think_times=_kept_only(column[Field.THINK_TIME], keep) if preceding else (),
    )
    if any(map(gt, result.submits, islice(result.submits, 1, None))):
        result = result.picked(sorted(range(len(result)), key=result.submits.__getitem__))
    return result if jobs is None else result.first(jobs)


def _preceding(trace: Trace, rows: Sequence[int], found: list[Irregularity], *, obeyed: bool) -> Sequence[int]:
    """Return the index of each job's preceding job (empty when none has one); add invalid links to ``found``."""
    column = trace.columns[Field.PRECEDING]
    if max(column) <= 0:
        return ()
    if not obeyed:
        places = [trace.lines[row] for row in rows if column[row] > 0]
        if places:
            found.append(_irregularity("jobs that do not wait for their preceding job (see --dependencies)", places))
        return ()
    ids = trace.columns[Field.JOB]
    earlier: dict[float, int] = {}
    preceding, lost = [], []
    for index, row in enumerate(rows):
        before = earlier.get(column[row], -1) if column[row] > 0 else -1
        if before < 0 < column[row]:
            lost.append(trace.lines[row])
        preceding.append(before)
        earlier[ids[row]] = index
    if lost:
        found.append(_irregularity("jobs whose preceding job is no earlier job that takes part", lost))
    return preceding


def _not_simulated(trace: Trace, rows: Sequence[int], *, memory: bool) -> Iterator[Irregularity]:
    """Yield irregularities for fields of a trace that a simulation ignores, and for missing memory."""
    if memory:
        asked = trace.columns[Field.REQUESTED_MEMORY]
        silent = array("q", [trace.lines[row] for row in rows if asked[row] <= 0])
        if silent:
            yield _irregularity("jobs that ask for no memory", silent)
    for which, kind in (
        *([] if memory else [(Field.REQUESTED_MEMORY, "jobs with a requested memory, not counted (see --memory)")]),
        (Field.QUEUE, "jobs in one of several queues, which are not simulated"),
        (Field.PARTITION, "jobs in one of several partitions, which are not simulated"),
    ):
        column = trace.columns[which]
        least = 1 if which is Field.REQUESTED_MEMORY else 0
        if max(column) < least or (which is not Field.REQUESTED_MEMORY and min(column) == max(column)):
            continue
        places = array("q", [trace.lines[row] for row in rows if column[row] >= least])
        if places:
            yield _irregularity(kind, places)


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
    """Return the indices of the jobs that take part (None: all); add those left out to ``found``."""
    runs = trace.columns[Field.RUN]
    status = trace.columns[Field.STATUS]
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
