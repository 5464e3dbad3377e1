# SPDX-License-Identifier: Apache-2.0
"""MPI programs that are started anew with each change: what their ranks are told, and what their ends mean."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import EndReason, JobId, Launcher, TaskEnd
from koala_adapter.runners.restartedmpi import KEEPER, RestartedMpiRunner
from koala_adapter.scheduler.events import RankEnded
from tests.unit.runners.test_runners import NOW, application

WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
BADLY = TaskEnd(reason=EndReason.EXITED, exit_code=3)


def runner() -> RestartedMpiRunner:
    """Return one of three ranks."""
    return RestartedMpiRunner(application(Launcher.MPI, working_directory="/scratch"))


def test_each_rank_has_a_keeper() -> None:
    """They share a directory that no other job has, and know the members and the address of the first."""
    launches = list(runner().launches())
    assert [one.launch.task for one in launches] == ["7:0", "7:1", "7:2"]
    told = [dict(one.launch.environment) for one in launches]
    assert {one["RESIZE_DIRECTORY"] for one in told} == {"/scratch/koala-7-koala-k-1"}
    assert {(one["KOALA_MEMBERS"], one["KOALA_FIRST"]) for one in told} == {("0 1 2", "10.0.0.1")}
    assert told[0]["KOALA_COMMAND"].startswith("program")


def test_newcomers_keep_to_the_same_directory() -> None:
    one = runner()
    fewer = replace(one.application, ranks=one.application.ranks[::2])
    (launch,) = one.grow(fewer, [2])
    assert dict(launch.launch.environment)["RESIZE_DIRECTORY"] == "/scratch/koala-7-koala-k-1"


def test_the_end_of_the_first_is_that_of_the_application() -> None:
    one, job = runner(), JobId("7")
    first = RankEnded(time=NOW, job_id=job, rank=0, end=WELL)
    assert list(one.ended("7:0", WELL, NOW)) == [first, RankEnded(time=NOW, job_id=job, rank=None, end=WELL)]
    assert list(one.ended("7:1", WELL, NOW)) == [RankEnded(time=NOW, job_id=job, rank=1, end=WELL)]
    assert list(one.ended("7:0", BADLY, NOW)) == [RankEnded(time=NOW, job_id=job, rank=0, end=BADLY)]


def test_a_directory_is_needed() -> None:
    """The job file sees to that; a job of another version is refused here."""
    with pytest.raises(ConfigurationError, match="working_directory"):
        RestartedMpiRunner(application(Launcher.MPI))


def test_the_keeper_is_shell() -> None:
    assert subprocess.run(["sh", "-n", "-c", KEEPER], check=False, capture_output=True, timeout=60).stderr == b""
