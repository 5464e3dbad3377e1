# SPDX-License-Identifier: Apache-2.0
"""Listings of jobs: times, columns and options, on an archive without a service."""

from __future__ import annotations

import csv
import json
import time
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koala_adapter.api.statedirectory import JOURNAL_NAME
from koala_adapter.cli.koala import koala
from koala_adapter.cli.listing import COLUMNS, PAST_COLUMNS, short_time, span_of
from koala_adapter.outcome import EndReason, JobOutcome, JobState
from koala_adapter.report.values import JobReport, UsageReport
from koala_adapter.service.journal import Journal
from tests.unit.api.jobreports import job_report, keep_reports

NOW = datetime(2026, 11, 26, 14, 30)  # noqa: DTZ001 - local time, as people say it
DAY = 86_400.0


def local(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("2h", "2026-11-26T12:30", "2026-11-26T12:30"),
        ("3d", "2026-11-23T14:30", "2026-11-23T14:30"),
        ("14:00", "2026-11-26T14:00", "2026-11-26T14:00"),
        ("14:31", "2026-11-25T14:31", "2026-11-25T14:31"),
        ("01:30:00", "2026-11-26T01:30", "2026-11-26T01:30"),
        ("2026-11-01", "2026-11-01T00:00", "2026-11-01T23:59:59"),
        ("2026-11-01T08:15", "2026-11-01T08:15", "2026-11-01T08:15"),
        ("2026-11-01 08:15:30", "2026-11-01T08:15:30", "2026-11-01T08:15:30"),
        ("2026-11-01T08:15Z", "2026-11-01T08:15Z", "2026-11-01T08:15Z"),
        ("today", "2026-11-26T00:00", "2026-11-26T23:59:59"),
        ("yesterday", "2026-11-25T00:00", "2026-11-25T23:59:59"),
    ],
)
def test_a_time_is_what_people_mean(text: str, first: str, last: str) -> None:
    assert span_of(text, NOW) == (local(first), local(last))


@pytest.mark.parametrize("text", ["", "12", "soon", "25:00", "2026-13-01", "999999d", "0001-01-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a date"):
        span_of(text, NOW)


def test_times_are_shown_short() -> None:
    now = NOW.timestamp()
    shown = [short_time(local(one), now) for one in ("2026-11-26T09:05:01", "2026-11-03T09:05", "2025-12-24T09:05")]
    assert shown == ["09:05:01", "3 Nov 09:05", "24 Dec 2025"]


def ended(number: int, *, at: float, failed: bool = False, name: str = "train") -> JobReport:
    state = JobState.FAILED if failed else JobState.COMPLETED
    outcome = JobOutcome(state=state, reason=EndReason.EXITED, exit_code=int(failed), detail="of memory" * failed)
    return job_report(
        id=str(number),
        name=name,
        state=state,
        submitted_at=at - 90,
        launched_at=at - 60,
        finished_at=at,
        outcome=outcome,
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory whose service has ended, with jobs of nine days, one a day; every third one failed."""
    now = time.time()
    jobs = [ended(number, at=now - (9 - number) * DAY - 1, failed=number % 3 == 0) for number in range(1, 10)]
    keep_reports(tmp_path / "s", [*jobs, ended(10, at=now - 3 * DAY, name="[bold]x,y[/]")])
    return tmp_path / "s"


def asked(state: Path, *words: str) -> Result:
    return CliRunner().invoke(koala, ["--state", str(state), *words])


def ids(state: Path, *words: str) -> list[str]:
    done = asked(state, *words, "--json")
    assert done.exit_code == 0, done.stderr
    return [one["id"] for one in json.loads(done.stdout)]


def test_history_is_filtered(state: Path) -> None:
    assert ids(state, "history") == [str(number) for number in range(1, 11)]
    assert ids(state, "history", "--since", "60h") == ["7", "8", "9"]
    assert ids(state, "history", "--since", "7d", "--failed") == ["3", "6", "9"]
    assert ids(state, "history", "--until", "6d", "--name", "tr*") == ["1", "2", "3"]
    assert ids(state, "history", "--state", "failed", "--limit", "2") == ["6", "9"]
    assert ids(state, "history", "--state", "failed,running", "--state", "not placed") == ["3", "6", "9"]
    assert ids(state, "history", "--search", "OF MEM", "--since", "30h") == ["9"]
    assert ids(state, "status", "--failed") == ["3", "6", "9"]
    assert ids(state, "status", "-n", "3") == ["8", "9", "10"]


def test_history_shows_dates(state: Path) -> None:
    done = asked(state, "history", "--limit", "3")
    heading, *rows = done.stdout.splitlines()
    assert tuple(heading.split()) == PAST_COLUMNS
    assert len(rows) == 3
    assert "--limit shows more" in done.stderr
    assert asked(state, "history", "--name", "none").stdout == "no jobs\n"
    assert "[bold]x,y[/]" in asked(state, "history", "--columns", "name,ended").stdout


def test_csv_has_plain_values(state: Path) -> None:
    done = asked(state, "history", "--search", "x,y", "--csv", "--columns", ",".join(COLUMNS))
    (row,) = csv.DictReader(done.stdout.splitlines())
    plain = {"id": "10", "name": "[bold]x,y[/]", "waited": "30.0", "ran": "60.0", "exit": "0"}
    assert plain.items() <= row.items()
    assert datetime.fromisoformat(row["ended"]).timestamp() == pytest.approx(time.time() - 3 * DAY, abs=600)
    assert datetime.fromisoformat(row["ended"]).tzinfo is not None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["history", "--since", "soon"], "a span before now"),
        (["history", "--columns", "id,size"], "found 'size', allowed is id, name"),
        (["history", "--json", "--csv"], "use one of them"),
        (["history", "--state", "running,bad"], "found 'running,bad', allowed is waiting, claiming"),
        (["status", "3", "--failed"], "beside an ID"),
        (["status", "--watch", "--csv"], "beside --watch"),
    ],
)
def test_what_cannot_be_is_refused(state: Path, words: list[str], complaint: str) -> None:
    done = asked(state, *words)
    assert done.exit_code == 2
    assert complaint in " ".join(done.stderr.split())


def test_the_order_is_that_of_submission_whatever_is_asked_for(tmp_path: Path) -> None:
    """Of two jobs, the one that was submitted last is the latest, though it ended first."""
    keep_reports(tmp_path / "s", [job_report(id="1", finished_at=9.0), job_report(id="2", finished_at=5.0)])
    long_ago = "1970-01-01T00:00:01+00:00"
    for words in ((), ("--since", long_ago), ("--since", long_ago, "--name", "*")):
        assert ids(tmp_path / "s", "history", "--limit", "1", *words) == ["2"]


def test_an_index_answers_and_is_made_where_it_is_missing(state: Path) -> None:
    """Also in a journal that an earlier version has written."""

    def plan(since: float | None = 1.0) -> str:
        with Journal(state / JOURNAL_NAME, read_only=True) as journal:
            asked_for: list[str] = []
            journal._database.set_trace_callback(asked_for.append)
            list(journal.finished.newest_first(since))
            rows = journal._database.execute(f"EXPLAIN QUERY PLAN {asked_for[0]}").fetchall()
        return " ".join(row[3] for row in rows)

    assert plan().startswith("SEARCH finished USING INDEX finished_by_end (<expr>>?)")
    assert plan(None) == "SCAN finished USING COVERING INDEX finished_by_number"
    with Journal(state / JOURNAL_NAME) as journal:
        journal._database.executescript("DROP INDEX finished_by_end; DROP INDEX finished_by_number;")
    assert plan().startswith("SCAN finished")
    assert len(ids(state, "history")) == 10
    Journal(state / JOURNAL_NAME).close()
    assert "USING INDEX" in plan()


def test_what_jobs_have_used_is_listed(tmp_path: Path) -> None:
    """Where nothing was measured there is a dash, and nothing in CSV."""
    usage = UsageReport(
        held_seconds=10.0, held_before_launch_seconds=0.0, used_seconds=3.8, memory_bytes=1 << 30, measured=1
    )
    keep_reports(
        tmp_path / "s", [job_report(id="1", finished_at=1.0, usage=usage), job_report(id="2", finished_at=2.0)]
    )
    words = ("history", "--columns", "id,used,held,share,memory")
    assert [" ".join(line.split()) for line in asked(tmp_path / "s", *words).stdout.splitlines()[1:]] == [
        "1 3.8 s 10 s 38 % 1 GiB",
        "2 - - - -",
    ]
    assert asked(tmp_path / "s", *words, "--csv").stdout.splitlines()[1:] == ["1,3.8,10.0,0.38,1073741824", "2,,,,"]
