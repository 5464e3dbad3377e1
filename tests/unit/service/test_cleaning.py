# SPDX-License-Identifier: Apache-2.0
"""Cleaning a state directory: what ended long ago goes, all else stays, and what is gone is said to be gone."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from koala_adapter.api.offline import WithoutService
from koala_adapter.api.statedirectory import LOG_NAME, ownership
from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_REFUSED, EXIT_SERVICE
from koala_adapter.model import JobId, Sweep
from koala_adapter.report.values import SweepProgress
from koala_adapter.scheduler.knownpolicies import OWN
from koala_adapter.service import records
from koala_adapter.service.journal import Journal
from koala_adapter.service.leftovers import CLEANED
from koala_adapter.service.records import KeptNegotiation, Message
from tests.unit.api.jobreports import job_report
from tests.unit.scheduler.scheduler_site import Site, component, job
from tests.vanishing import vanish_when_read

DAY = 86_400.0
ARCHIVED = "100"
NEWER = "101"
FINISHED = "1"
WAITING = "2"


def written(path: Path, size: int, *, days: float) -> None:
    """Write a file as if it had been written so long ago."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    for one in (path, *path.parents[:2]):
        os.utime(one, (time.time() - days * DAY,) * 2)


def lived_in(directory: Path) -> Path:
    """Return a state directory: jobs that ended 40 days ago, one that ended yesterday, and one that waits."""
    directory.mkdir(mode=0o700)
    site = Site({"a": 4})
    site.now = time.time() - 40 * DAY
    site.submit(job(FINISHED, component("x", 2, cluster="a")))
    site.run(FINISHED)
    site.rank_ends(FINISHED, 0)
    site.rank_ends(FINISHED, 1)
    site.end_ending()
    site.submit(job(WAITING, component("x", 4)))
    with Journal(directory / "journal.sqlite") as journal:
        for event in site.events:
            journal.append(event)
        for id_, days in ((ARCHIVED, 40), (NEWER, 1)):
            report = job_report(id=id_, output_directory=str(directory / "jobs" / id_))
            journal.finished.keep(id_, time.time() - days * DAY, report.to_json())
    for id_, days in ((FINISHED, 40), (ARCHIVED, 40), (NEWER, 1), (WAITING, 40)):
        written(directory / "jobs" / id_ / "x" / "0.out", 3 * 1024**2, days=days)
    return directory


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return lived_in(tmp_path / "state")


def test_later_jobs_are_read_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "AT_ONCE", 2)
    progress = SweepProgress(total=1, done=1, failed=0, running=0, directory="/s/jobs/3/sweep")
    with Journal(tmp_path / "journal.sqlite") as journal:
        for number in range(5):
            journal.finished.keep(str(number), float(number), job_report(id=str(number)).to_json())
        journal.finished.keep("3", 3.0, replace(job_report(id="3"), sweep=progress).to_json())
        journal.finished.keep("4", 4.0, "{")
        parts = list(journal.finished.sweeps_since(1.0))
    assert [len(part) for part in parts] == [2, 2]
    assert {id_: one for part in parts for id_, one in part.items()} == {
        "1": None,
        "2": None,
        "3": "/s/jobs/3/sweep",
        "4": None,
    }


def invoke(state: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(koala, ["--state", str(state), *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def directories(state: Path) -> set[str]:
    """Return the jobs that have a directory."""
    return {path.name for path in (state / "jobs").iterdir()}


def known(state: Path) -> set[str]:
    """Return the jobs that `koala status` shows."""
    return {one["id"] for one in json.loads(invoke(state, "status", "--json").stdout)}


def test_what_ended_long_ago_goes_and_all_else_stays(state: Path) -> None:
    """From memory as from the archive; said is how much; another cleaning finds nothing."""
    assert known(state) == {FINISHED, WAITING, ARCHIVED, NEWER}
    result = invoke(state, "clean", "--older", "30d")
    assert result.exit_code == 0, result.output
    assert "removed what is left of 2 jobs, 6.0 MiB in all" in result.stdout
    assert "spared: 1 unfinished, 1 that ended later" in result.stdout
    assert directories(state) == {WAITING, NEWER}
    assert known(state) == {WAITING, NEWER}
    assert "nothing is left of jobs that ended so long ago" in invoke(state, "clean", "--older", "30d").stdout


def test_asking_for_what_was_cleaned_says_so(state: Path) -> None:
    """Whoever asks for its status, its output or why it waited; another number is simply none."""
    invoke(state, "clean", "--older", "30d")
    for command in ("status", "logs", "explain"):
        for id_ in (FINISHED, ARCHIVED):
            result = invoke(state, command, id_)
            assert result.exit_code == EXIT_REFUSED
            assert f"job {id_} was removed by `koala clean` on 20" in result.output
        assert "no job '55'" in invoke(state, command, "55").output


def test_dry_run_changes_nothing(state: Path) -> None:
    """It tells, as a program reads it, what would be removed."""
    result = invoke(state, "clean", "--older", "30d", "--dry-run", "--json")
    told = json.loads(result.stdout)
    assert told["dry_run"]
    assert told["jobs"] == [FINISHED, ARCHIVED]
    found = {one["what"]: (one["number"], one["size"]) for one in told["removed"]}
    assert found["directories"] == (2, 6 * 1024**2)
    assert found["reports"][0] == 1
    assert told["size"] == sum(size for _, size in found.values())
    assert directories(state) == known(state) == {FINISHED, WAITING, ARCHIVED, NEWER}


def test_negotiations_of_a_job_go_with_it(state: Path) -> None:
    with Journal(state / "journal.sqlite") as journal:
        for id_ in (ARCHIVED, NEWER):
            kept = KeptNegotiation(number=0, job_id=id_, component="x", rank=0, initiator="rm", agreement_id="1")
            journal.negotiations.keep(kept, Message(at=1.0, sender="rm", template="<template/>"))
    invoke(state, "clean", "--older", "30d")
    with Journal(state / "journal.sqlite", read_only=True) as journal:
        assert [one.job_id for one in journal.negotiations.latest(limit=9)] == [NEWER]


def test_a_killed_cleaning_is_finished_by_the_next(state: Path) -> None:
    """Whether the directory had its new name already or not; a directory of no job that is new is left."""
    with Journal(state / "journal.sqlite") as journal:
        journal.finished.clean([ARCHIVED], time.time())
    (state / "jobs" / FINISHED).rename(state / "jobs" / f"{CLEANED}{FINISHED}")
    written(state / "jobs" / "500" / "x" / "0.out", 1, days=0)
    written(state / "jobs" / "501" / "x" / "0.out", 1, days=40)
    invoke(state, "clean", "--older", "30d")
    assert directories(state) == {WAITING, NEWER, "500"}


def test_other_files_go_by_their_age(state: Path) -> None:
    """Words of placeholders that are gone, counts of requests and the log; not those that are new."""
    held = next(iter(WithoutService(state, OWN).recorded().scheduler.state.batches), "none")
    output = state / "clusters" / "a" / "output"
    old = [state / LOG_NAME, state / "requests" / "1.requests", output / "koala-k-900.1.out"]
    new = [state / "requests" / "2.requests", output / "koala-k-901.1.out", output / f"{held}.1.out"]
    for path in (*old, *new):
        written(path, 10, days=40 if path in old else 1)
    os.utime(output, (time.time() - DAY,) * 2)
    result = invoke(state, "clean", "--older", "30d")
    assert result.exit_code == 0, result.output
    assert [path for path in old if path.exists()] == []
    assert [path for path in new if not path.exists()] == []


def test_a_sweep_stays_while_a_later_job_goes_on_with_it(state: Path) -> None:
    with Journal(state / "journal.sqlite") as journal:
        progress = SweepProgress(
            total=2, done=1, failed=0, running=0, directory=str(state / "jobs" / ARCHIVED / "sweep")
        )
        journal.finished.keep(NEWER, time.time() - DAY, job_report(id=NEWER, sweep=progress).to_json())
    result = invoke(state, "clean", "--older", "30d")
    assert f"spared, since a later job goes on with their sweep: {ARCHIVED}" in result.stdout
    assert directories(state) == {WAITING, NEWER, ARCHIVED}
    assert ARCHIVED in known(state)


def test_a_sweep_stays_while_an_unfinished_job_goes_on_with_it(tmp_path: Path) -> None:
    state = lived_in(tmp_path / "state")
    site = Site({"a": 4})
    site.now = time.time() - 39 * DAY
    goes_on = replace(job("3", component("x", 4)), sweep=Sweep(axes=(), continues=JobId(FINISHED)))
    site.submit(goes_on)
    with Journal(state / "journal.sqlite") as journal:
        journal.append(site.events[-1])
    invoke(state, "clean", "--older", "30d")
    assert directories(state) == {WAITING, NEWER, FINISHED}


def test_what_cannot_be_removed_is_named(state: Path) -> None:
    outside = state.parent / "elsewhere"
    (state / "jobs" / f"{CLEANED}{FINISHED}").mkdir()
    (state / "jobs" / f"{CLEANED}{FINISHED}" / "left").touch()
    outside.mkdir()
    result = invoke(state, "clean", "--older", "30d")
    assert result.exit_code == 1
    assert "cannot be removed" in result.stderr
    assert invoke(state, "clean", "--older", "30d").exit_code == 0
    assert directories(state) == {WAITING, NEWER}


def test_another_owner_of_the_directory_is_respected(state: Path) -> None:
    """Such as a service that is about to start: nothing is removed under it."""
    with ownership(state, "koala serve"):
        result = invoke(state, "clean", "--older", "30d")
        assert result.exit_code == EXIT_SERVICE
        assert "already owns" in result.output
    assert directories(state) == {FINISHED, WAITING, ARCHIVED, NEWER}


def test_what_another_cleaning_removes_meanwhile_is_no_error(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one only tells what it would remove, another one removes it."""
    vanish_when_read(state / "jobs" / ARCHIVED / "x", monkeypatch)
    result = invoke(state, "clean", "--older", "30d", "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["jobs"] == [FINISHED, ARCHIVED]
    assert not (state / "jobs" / ARCHIVED / "x").exists()


def test_where_no_service_ever_ran(tmp_path: Path) -> None:
    result = invoke(tmp_path / "none", "clean", "--older", "30d")
    assert result.exit_code == EXIT_SERVICE
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("age", ["30", "a month", "-1d", "10:30"])
def test_an_age_that_is_none_is_refused(tmp_path: Path, age: str) -> None:
    result = invoke(tmp_path, "clean", "--older", age)
    assert result.exit_code == 2
    assert "allowed is" in result.output
