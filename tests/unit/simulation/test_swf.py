# SPDX-License-Identifier: Apache-2.0
"""Traces: what is regular is read exactly, what is not is counted, and nothing disappears."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import SimulationError
from koala_adapter.simulation import workload as swf
from koala_adapter.simulation.workload import ALL, Field, parse_trace, read_trace, trace_text, workload, write_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from koala_adapter.simulation.workload import Trace

HEADER = "; Version: 2.2\n; MaxProcs: 128\n;\n; Note: with a colon: here\n"
UNKNOWN = dict.fromkeys(ALL, -1)


def line(job: int, **values: float) -> str:
    """Return a job as a line; fields by name in lower case, others unknown."""
    known = {Field[name.upper()]: value for name, value in values.items()}
    return " ".join(f"{value:g}" for value in {**UNKNOWN, Field.JOB: job, **known}.values()) + "\n"


def job(number: int, submitted: float = 0, run: float = 10, allocated: int = 1, **values: float) -> str:
    """Return an ordinary job as a line."""
    return line(number, submitted=submitted, run=run, allocated=allocated, **values)


def found(trace: Trace) -> dict[str, tuple[int, int | None]]:
    """Return what is irregular: how often, and in which line first."""
    return {one.kind: (one.count, one.line) for one in trace.irregularities}


def parsed(text: str) -> Trace:
    """Return the trace in a text."""
    return parse_trace(text, name="t", source="t.swf")


def test_a_regular_trace_is_read_column_by_column() -> None:
    """All 18 numbers of each job arrive in their column, with the line of the file, and the header is kept."""
    text = HEADER + " ".join(map(str, range(18))) + "\n" + "  ".join(map(str, range(100, 118))) + "\n"
    trace = parsed(text)
    assert {field: list(column) for field, column in trace.columns.items()} == {
        field: [field, field + 100] for field in ALL
    }
    assert list(trace.lines) == [5, 6]
    assert trace.header == ["; Version: 2.2", "; MaxProcs: 128", ";", "; Note: with a colon: here"]
    assert trace.irregularities == []


@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_line_ends_do_not_matter(ending: str) -> None:
    """The last line may lack its end, and all may have that of Windows."""
    trace = parsed(f"; MaxProcs: 4{ending or chr(10)}{job(1).strip()}{ending or chr(10)}{job(2).strip()}{ending}")
    assert list(trace.columns[Field.JOB]) == [1, 2]
    assert trace.header == ["; MaxProcs: 4"]
    assert trace.irregularities == []


@pytest.mark.parametrize(
    ("header", "processors"),
    [
        ("; MaxProcs: 1664 (72, 1368, 224)\n; MaxNodes: 184\n", 1664),
        ("; MaxNodes: 144\n", 144),
        ("; MaxProcs: -1\n; MaxNodes: 12\n", 12),
        ("; MaxProcs: unknown\n", None),
        ("", None),
    ],
)
def test_the_header_says_how_many_processors(header: str, processors: int | None) -> None:
    """MaxProcs counts, else MaxNodes, whatever stands behind the number."""
    assert parsed(header + job(1)).processors == processors


def test_irregular_lines_are_counted_and_kept() -> None:
    """Short and long lines are jobs, a comment and a blank line are none, and what is no job at all is left out."""
    text = "; MaxProcs: 4\n" + job(1) + "2 5 -1 20 3\n" + "; in between\n" + "\n" + job(3, 5).strip() + " 99\n"
    text += "4 what is this\n" + job(5, 5)
    trace = parsed(text)
    assert list(trace.columns[Field.JOB]) == [1, 2, 3, 5]
    assert list(trace.columns[Field.RUN]) == [10, 20, 10, 10]
    assert list(trace.columns[Field.USER]) == [-1] * 4
    assert list(trace.lines) == [2, 3, 6, 8]
    assert found(trace) == {
        "jobs with fewer than 18 fields": (1, 3),
        "comments among the jobs": (1, 4),
        "jobs with more than 18 fields": (1, 6),
        "lines that are no jobs": (1, 7),
    }
    assert [one.kind for one in trace.irregularities if one.left_out] == ["lines that are no jobs"]
    assert workload(trace).skipped == 1


def test_a_long_and_a_short_line_do_not_make_up_for_each_other() -> None:
    """Two lines of 17 and 19 words are as many words as two jobs have, and yet are seen."""
    short, long = job(1).split(), job(2, submitted=7).split()
    trace = parsed(" ".join(short[:17]) + "\n" + " ".join([*long, "8"]) + "\n")
    assert list(trace.columns[Field.SUBMITTED]) == [0, 7]
    assert set(found(trace)) == {"jobs with fewer than 18 fields", "jobs with more than 18 fields"}


def test_fractions_are_kept() -> None:
    """A run time of 12.5 s stays one, and is told of; the CPU time has fractions in the archive itself."""
    trace = parsed(job(1, cpu_time=0.25) + job(2, run=12.5) + job(3, run=7))
    assert list(trace.columns[Field.RUN]) == [10, 12.5, 7]
    assert list(trace.columns[Field.CPU_TIME]) == [0.25, -1, -1]
    assert found(trace) == {"fractions as run": (1, 2)}


@pytest.mark.parametrize("word", ["1e400", "nan", "inf", "99999999999999999999", "0x10", "ten"])
def test_no_number_breaks_the_reading(word: str) -> None:
    """What is no finite number of a sensible size makes its line no job; the others are read."""
    trace = parsed(job(1) + job(2).replace("2 ", f"{word} ", 1) + job(3))
    assert list(trace.columns[Field.JOB]) == [1, 3]
    assert found(trace) == {"lines that are no jobs": (1, 2)}


def test_disorder_is_told() -> None:
    """Jobs out of order, before the begin, and with a number that is taken are counted."""
    trace = parsed(job(1, 50) + job(2, 40) + job(2, 60) + job(3, -5))
    assert found(trace) == {
        "jobs submitted before the one that stands before them": (2, 2),
        "jobs submitted before the begin of the trace": (1, 4),
        "jobs with the number of an earlier job": (1, 3),
    }
    assert workload(trace).submits == [-5, 40, 50, 60]
    assert workload(trace).ids == [3, 2, 1, 2]


def test_jobs_of_one_instant_keep_their_order() -> None:
    """Sorting by submission leaves jobs of the same second as they stand in the file."""
    trace = parsed(job(1, 5) + job(2, 9) + job(3, 5) + job(4, 5))
    assert workload(trace).ids == [1, 3, 4, 2]
    assert list(workload(trace).rows) == [0, 2, 3, 1]


def test_what_a_simulation_makes_of_jobs() -> None:
    """Size: allocated, else requested; estimate: requested time, else the run; without run or size: left out."""
    trace = parsed(
        job(1, 0, 10, 4, requested_processors=8, requested_time=50)
        + job(2, 1, 20, -1, requested_processors=3)
        + job(3, 2, 0, 4)
        + job(4, 3, -1, -1)
        + job(5, 4, 30, 0, requested_processors=-1)
        + job(6, 5, 30, 2, requested_time=25)
        + job(7, 6, 30, 2, status=3)
    )
    work = workload(trace)
    assert (work.ids, work.sizes, work.runs, work.estimates) == ([1, 2, 6], [4, 3, 2], [10, 20, 30], [50, 20, 30])
    assert list(work.rows) == [0, 1, 5]
    assert {one.kind: (one.count, one.line, one.left_out) for one in work.irregularities} == {
        "jobs without run time": (2, 3, True),
        "jobs without size": (1, 5, True),
        "parts of jobs": (1, 7, True),
        "jobs that ran longer than they requested": (1, 6, False),
    }
    assert work.skipped == 4


def test_jobs_can_be_cut_off_at_their_limit() -> None:
    """With kill_at_limit a job ends at its requested time, and so does its estimate."""
    work = workload(parsed(job(1, run=30, requested_time=25) + job(2, run=30)), kill_at_limit=True)
    assert (work.runs, work.estimates) == ([25, 30], [25, 30])
    assert str(work.irregularities[0]) == "1 jobs cut off at their requested time, first in line 1"


def test_jobs_larger_than_the_machine_are_left_out_and_counted() -> None:
    """What can never run takes no part; the count is added to the others."""
    work = workload(parsed(job(1, allocated=4) + job(2, run=0) + job(3, allocated=9))).fitting(8)
    assert (work.ids, work.skipped) == ([1], 2)
    assert str(work.irregularities[-1]) == "1 jobs larger than the 8 processors there are (left out)"
    assert workload(parsed(job(1, allocated=4))).first(5).ids == [1]


def test_of_the_first_jobs_only_their_irregularities_are_told() -> None:
    """What is irregular about jobs that do not take part is not counted; what was passed over on the way is."""
    trace = parsed(
        job(1, 0, 30, requested_time=25)
        + job(2, 1, 0)
        + "no job\n"
        + job(3, 2, allocated=9)
        + job(4, 3)
        + job(5, 4, 30, requested_time=25)
        + job(6, 3)
        + job(7, 9, 0)
        + "no job, either\n"
        + job(8, 10, allocated=9)
    )
    work = workload(trace).fitting(8)
    assert work.skipped == 6
    few = work.first(2)
    assert few.ids == [1, 4]
    assert {one.kind: (one.count, one.line) for one in few.irregularities} == {
        "lines that are no jobs": (1, 3),
        "jobs without run time": (1, 2),
        "jobs that ran longer than they requested": (1, 1),
        "jobs larger than the 8 processors there are": (1, None),
    }
    assert few.skipped == 3
    assert workload(trace, jobs=1).skipped == 0
    assert work.first(100) is work


def test_first_by_submission_are_not_first_in_the_file() -> None:
    """A late line with an early submission does not bring the irregularities of the lines between with it."""
    trace = parsed(job(1, 0) + job(2, 50, 30, requested_time=25) + job(3, 1))
    found_in = {one.kind: (one.count, one.line) for one in workload(trace, jobs=2).irregularities}
    assert found_in == {"jobs submitted before the one that stands before them": (1, 3)}


def test_compressed_traces_are_the_same(tmp_path: Path) -> None:
    """Compression is seen from the content, whatever the file is called; the name loses its endings."""
    text = HEADER + job(1) + job(2, 9)
    for name, data in (
        ("a.swf", text.encode()),
        ("a.swf.gz", gzip.compress(text.encode())),
        ("b", gzip.compress(text.encode())),
    ):
        (tmp_path / name).write_bytes(data)
    plain, compressed, other = (read_trace(tmp_path / name) for name in ("a.swf", "a.swf.gz", "b"))
    assert plain == compressed
    assert plain.columns == other.columns
    assert (plain.name, other.name) == ("a", "b")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Half of a compressed file is an error that names it."""
    path = tmp_path / "half.swf.gz"
    whole = gzip.compress((HEADER + "".join(job(number) for number in range(500))).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SimulationError, match=r"half\.swf\.gz: the compressed file is damaged"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.swf: there is no job in this file"),
        ("; MaxProcs: 4\n", "t.swf: there is no job in this file"),
        ("; MaxProcs: 4\n\nPK\x03\x04 what\n", r"t\.swf:3: not a job"),
    ],
)
def test_a_file_without_jobs_is_refused(text: str, message: str) -> None:
    """The message names the file, and the line when there is one that should have been a job."""
    with pytest.raises(SimulationError, match=message):
        parsed(text)


def test_a_trace_without_usable_jobs_is_refused() -> None:
    """A trace in which nothing has a run time cannot be simulated."""
    with pytest.raises(SimulationError, match="no job of this trace"):
        workload(parsed(job(1, run=-1)))


numbers = st.integers(min_value=-1, max_value=2**40)
rows = st.lists(st.lists(numbers, min_size=18, max_size=18), min_size=1, max_size=30)


@given(rows=rows, cpu=st.floats(min_value=0, max_value=1e9))
def test_what_is_written_is_read(rows: list[list[int]], cpu: float) -> None:
    """Writing and reading gives back every number of every job."""
    columns: dict[Field, Sequence[float]] = {field: [row[field] for row in rows] for field in ALL}
    columns[Field.CPU_TIME] = [cpu] * len(rows)
    trace = parsed(trace_text(["; MaxProcs: 4"], columns))
    assert {field: list(column) for field, column in trace.columns.items()} == columns
    assert trace_text(trace.header, trace.columns) == trace_text(["; MaxProcs: 4"], columns)


lines = st.one_of(
    st.lists(numbers.map(str), min_size=1, max_size=20).map(" ".join),
    st.lists(numbers.map(str), min_size=18, max_size=18).map(" ".join),
    st.sampled_from(["", "; MaxProcs: 7", "no job", "1 2 x", "-1 0.5 3", " ; ", "1;2"]),
)


def plain_jobs(text: str) -> list[list[float]]:
    """Return the first 18 numbers of each line that has only numbers, missing ones unknown; slowly."""
    jobs = []
    for words in (line.split() for line in text.split("\n")):
        try:
            values = [float(word) for word in words]
        except ValueError:
            continue
        if values:
            jobs.append([*values, *[-1.0] * 18][:18])
    return jobs


@given(texts=st.lists(lines, max_size=40), piece=st.sampled_from([1, 50, 400, 1 << 15]))
def test_pieces_and_single_lines_agree(texts: list[str], piece: int) -> None:
    """Whatever mixture of lines, and however it is cut, the jobs are those a plain loop finds, and all lines count."""
    text = job(0) + "\n".join(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swf, "PIECE", piece)
        trace = parsed(text)
    columns = [list(trace.columns[field]) for field in ALL]
    assert [list(row) for row in zip(*columns, strict=True)] == plain_jobs(text)
    counts = {one.kind: one.count for one in trace.irregularities}
    others = counts.get("comments among the jobs", 0) + counts.get("lines that are no jobs", 0)
    assert len(trace) + others == sum(bool(line.split()) for line in text.split("\n"))


def test_a_compressed_trace_is_written_the_same_each_time(tmp_path: Path) -> None:
    """No date gets into the file."""
    trace = parsed(HEADER + job(1))
    for name in ("a.swf.gz", "b.swf.gz"):
        write_trace(tmp_path / name, trace.header, trace.columns)
    assert (tmp_path / "a.swf.gz").read_bytes() == (tmp_path / "b.swf.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.swf.gz").read_bytes()).decode() == HEADER + job(1)
