# SPDX-License-Identifier: Apache-2.0
"""Traces: what is regular is read exactly, what is not is counted, and nothing disappears."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import SimulationError
from koala_adapter.simulation import workload as swf
from koala_adapter.simulation.workload import (
    ALL,
    NEEDED,
    Field,
    Trace,
    parse_trace,
    read_trace,
    trace_text,
    workload,
    write_trace,
)

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
        ("; MaxProcs: 1,664\n", None),
        ("", None),
    ],
)
def test_the_header_says_how_many_processors(header: str, processors: int | None) -> None:
    assert parsed(header + job(1)).processors == processors


def test_irregular_lines_are_counted_and_kept() -> None:
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


WORDS = "1 0 -1 100 4 -1 -1 4 100 -1 1 1 1 1 batch -1 -1 -1\n"
"""A job whose queue has a name."""


@pytest.mark.parametrize("fields", [ALL, NEEDED, [Field.SUBMITTED]], ids=["all", "needed", "one"])
@pytest.mark.parametrize("others", ["", "\n", "; a comment\n", job(2).strip() + " extra\n"])
def test_words_depend_on_no_neighbour_and_on_no_option(fields: Sequence[Field], others: str) -> None:
    trace = parse_trace("; MaxProcs: 8\n" + job(9) + WORDS * 3 + others, name="t", fields=fields)
    assert list(trace.columns[Field.RUN])[:4] == [10, 100, 100, 100]
    assert list(trace.columns[Field.QUEUE])[:4] == [-1] * 4
    assert found(trace)["jobs whose queue is no number"] == (3, 3)


def test_no_field_is_too_far_away_to_be_checked() -> None:
    for field in ALL:
        words = job(1).split()
        words[field] = "word"
        few, all_ = (parse_trace(job(7) + " ".join(words) + "\n", name="t", fields=some) for some in (NEEDED, ALL))
        assert found(few) == found(all_)
        assert few.irregularities
        assert list(few.lines) == list(all_.lines) == ([1] if field in ESSENTIAL else [1, 2])


@pytest.mark.parametrize("word", ["99999999999999999999", "1.5", "1e3", "1e400", "--1", "1-2", "-", "nan", "0x1"])
@pytest.mark.parametrize("field", [Field.MEMORY, Field.CPU_TIME])
def test_odd_words_are_treated_alike_in_all_pieces(field: Field, word: str) -> None:
    words = job(2).split()
    words[field] = word
    text = job(1) + job(3) + " ".join(words) + "\n"
    alone, beside = (parse_trace(text + more, name="t", fields=NEEDED) for more in ("", "; comment\n"))
    told = {one.kind: (one.count, one.line) for one in beside.irregularities if "comments" not in one.kind}
    assert found(alone) == told


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        (" {7,7} q_1d", "jobs with more than 18 fields"),
        (" ; note", "jobs with a comment behind them"),
        (";note 7", "jobs with a comment behind them"),
    ],
)
def test_text_behind_a_job_is_told_and_the_job_is_read(behind: str, kind: str) -> None:
    """What stands behind the 18th field takes nothing from the job."""
    trace = parsed("; MaxProcs: 4\n" + "".join(job(number).strip() + behind + "\n" for number in range(3)))
    assert list(trace.columns[Field.JOB]) == [0, 1, 2]
    assert list(trace.columns[Field.THINK_TIME]) == [-1] * 3
    assert found(trace) == {kind: (3, 2)}


@pytest.mark.parametrize(
    "before",
    ["\n", "\ufeff", "   ", "# made by hand\n", "job submit wait run\n", "; Version: 2.2\n \n\n", "\r\n", "\r"],
)
@pytest.mark.parametrize("entry", ["; MaxProcs: 8\n", ";maxprocs : 8\n", "; MAXPROCS: 8\n", "# MaxProcs: 8\n"])
def test_the_header_reaches_to_the_first_job(before: str, entry: str) -> None:
    """Empty lines, marks, blanks, other comments and column names do not end it; keys have any case."""
    trace = parsed(before + entry + job(1))
    assert trace.processors == 8
    assert list(trace.columns[Field.JOB]) == [1]
    assert list(trace.lines) == [(before + entry).replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1]


def test_what_is_no_comment_before_the_first_job_is_told() -> None:
    trace = parsed("# by hand\nJob Submit Wait Run\n; MaxProcs: 8\n" + job(1))
    assert found(trace) == {"comments that begin with # in place of ;": (1, 1), "lines that are no jobs": (1, 2)}
    assert trace.header == ["; by hand", "; MaxProcs: 8"]


def test_utf16_and_other_compressions(tmp_path: Path) -> None:
    path = tmp_path / "a.swf"
    path.write_text(HEADER + job(1), encoding="utf-16")
    assert (read_trace(path).processors, len(read_trace(path))) == (128, 1)
    path.write_bytes(bz2.compress((HEADER + job(1)).encode()))
    with pytest.raises(SimulationError, match=r"a\.swf: this file is compressed with bzip2"):
        read_trace(path)


def test_preceding_jobs_that_do_not_take_part() -> None:
    """Who names itself, a later job, one that is left out or one that is unknown waits for nobody, and that is told."""
    text = job(1, preceding=1) + job(2, preceding=3) + job(3, run=0) + job(4, preceding=3) + job(5, preceding=77)
    work = workload(parsed(text + job(6, 0, preceding=5)), dependencies=True)
    assert work.ids == [1, 2, 4, 5, 6]
    assert list(work.preceding) == [-1, -1, -1, -1, 3]
    assert {one.kind: (one.count, one.line) for one in work.irregularities if not one.left_out} == {
        "jobs whose preceding job is no earlier job that takes part": (4, 1)
    }
    assert list(work.picked([4, 3, 0]).preceding) == [1, -1, -1]


def test_preceding_jobs_that_are_too_large_or_cut_off() -> None:
    """Jobs that lose the one before them, because it does not fit or is not among the first, are counted."""
    text = job(1, 0, allocated=9) + job(2, 5, preceding=1) + job(3, 9) + job(4, 7, preceding=3)
    work = workload(parsed(text), dependencies=True)
    assert list(work.preceding) == [-1, 0, 3, -1]
    fitting = work.fitting(8)
    assert list(fitting.preceding) == [-1, 2, -1]
    assert ("jobs whose preceding job is larger than the 8 processors there are", 1, 2) in {
        (one.kind, one.count, one.line) for one in fitting.irregularities
    }
    few = fitting.first(2)
    assert list(few.preceding) == [-1, -1]
    assert few.irregularities[-1].kind == "jobs whose preceding job is not among the first 2"


def test_what_a_simulation_does_not_use_is_told() -> None:
    trace = parsed(
        job(1, queue=1, partition=2, requested_memory=64) + job(2, queue=2, partition=2) + job(3, partition=2)
    )
    assert {one.kind: (one.count, one.line) for one in workload(trace).irregularities} == {
        "jobs with a requested memory, not counted (see --memory)": (1, 1),
        "jobs in one of several queues, which are not simulated": (2, 1),
    }
    counted = workload(trace, memory=True)
    assert list(counted.memory) == [64, -1, -1]
    assert {one.kind: (one.count, one.line) for one in counted.irregularities} == {
        "jobs that ask for no memory": (2, 2),
        "jobs in one of several queues, which are not simulated": (2, 1),
    }
    assert list(counted.picked([2, 0]).memory) == [-1, 64]


@pytest.mark.parametrize("word", ["1e400", "nan", "inf", "99999999999999999999", "0x10", "ten"])
def test_no_number_breaks_the_reading(word: str) -> None:
    trace = parsed(job(1) + job(2).replace("2 ", f"{word} ", 1) + job(3))
    assert list(trace.columns[Field.JOB]) == [1, 3]
    assert found(trace) == {"lines that are no jobs": (1, 2)}


def test_disorder_is_told() -> None:
    trace = parsed(job(1, 50) + job(2, 40) + job(2, 60) + job(3, -5))
    assert found(trace) == {
        "jobs submitted before the one that stands before them": (2, 2),
        "jobs submitted before the begin of the trace": (1, 4),
        "jobs with the number of an earlier job": (1, 3),
    }
    assert workload(trace).submits == [-5, 40, 50, 60]
    assert workload(trace).ids == [3, 2, 1, 2]


def test_jobs_of_one_instant_keep_their_order() -> None:
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
    work = workload(parsed(job(1, run=30, requested_time=25) + job(2, run=30)), kill_at_limit=True)
    assert (work.runs, work.estimates) == ([25, 30], [25, 30])
    assert str(work.irregularities[0]) == "1 jobs cut off at their requested time, first in line 1"


def test_of_the_first_jobs_only_their_irregularities_are_told() -> None:
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
    trace = parsed(job(1, 0) + job(2, 50, 30, requested_time=25) + job(3, 1))
    found_in = {one.kind: (one.count, one.line) for one in workload(trace, jobs=2).irregularities}
    assert found_in == {"jobs submitted before the one that stands before them": (1, 3)}


def test_compressed_traces_are_the_same(tmp_path: Path) -> None:
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
    path = tmp_path / "half.swf.gz"
    whole = gzip.compress((HEADER + "".join(job(number) for number in range(500))).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SimulationError, match=r"half\.swf\.gz: the compressed file is damaged"):
        read_trace(path)


def test_a_trace_without_usable_jobs_is_refused() -> None:
    with pytest.raises(SimulationError, match="no job of this trace"):
        workload(parsed(job(1, run=-1)))


numbers = st.integers(min_value=-1, max_value=2**40)
rows = st.lists(st.lists(numbers, min_size=18, max_size=18), min_size=1, max_size=30)


@given(rows=rows, cpu=st.floats(min_value=0, max_value=1e9))
def test_what_is_written_is_read(rows: list[list[int]], cpu: float) -> None:
    columns: dict[Field, Sequence[float]] = {field: [row[field] for row in rows] for field in ALL}
    columns[Field.CPU_TIME] = [cpu] * len(rows)
    trace = parsed(trace_text(["; MaxProcs: 4"], columns))
    assert {field: list(column) for field, column in trace.columns.items()} == columns
    assert trace_text(trace.header, trace.columns) == trace_text(["; MaxProcs: 4"], columns)


lines = st.one_of(
    st.lists(numbers.map(str), min_size=1, max_size=20).map(" ".join),
    st.lists(numbers.map(str), min_size=18, max_size=18).map(" ".join),
    st.sampled_from(["", "; MaxProcs: 7", "no job", "1 2 x", "1 2 -1 x", "-1 0.5 3", " ; ", "1;2"]),
    st.tuples(st.lists(numbers.map(str), min_size=17, max_size=17), st.integers(0, 17)).map(
        lambda drawn: " ".join([*drawn[0][: drawn[1]], "batch", *drawn[0][drawn[1] :]])
    ),
)


ESSENTIAL = (0, 1, 3, 4, 7)
"""Places of the fields in which a word that is no number makes its line no job."""


def plain_job(words: Sequence[str]) -> list[float] | None:
    """Return the 18 numbers of a line, missing ones and words unknown; None when it is no job."""
    values = [-1.0] * 18
    for place, word in enumerate(words[:18]):
        try:
            values[place] = float(word)
        except ValueError:
            if place in ESSENTIAL:
                return None
    return values


def plain_jobs(text: str) -> list[list[float]]:
    """Return the jobs of a text without comments behind jobs; slowly."""
    rows = [line.split() for line in text.split("\n")]
    jobs = [plain_job(words) for words in rows if words and not words[0].startswith(";")]
    return [job for job in jobs if job is not None]


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
    trace = parsed(HEADER + job(1))
    for name in ("a.swf.gz", "b.swf.gz"):
        write_trace(tmp_path / name, trace.header, trace.columns)
    assert (tmp_path / "a.swf.gz").read_bytes() == (tmp_path / "b.swf.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.swf.gz").read_bytes()).decode() == HEADER + job(1)
