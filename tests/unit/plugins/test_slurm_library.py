# SPDX-License-Identifier: Apache-2.0
"""pyslurm for an outside scheduler's listing of Slurm jobs: the choice, what is told, and what becomes of failures."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm.helper import HelperDiedError
from koala_adapter.model import LrmJob
from koala_adapter.testing import eventually, new_context
from koala_adapter.testing.trial import begin_start
from koala_slurm import SlurmSettings
from koala_slurm.library import CHANGES, DEATHS, LibraryAccess
from koala_slurm.library_helper import Picture, row_of, squeue_id, untold
from koala_slurm.listing import JOB_FIELDS
from koala_slurm.lrm import SlurmLrm
from koala_slurm.requests import MORE_FIELDS, parse_wide_row
from tests.fakes.slurm import PYSLURM, FakeSlurm

SCRIPT = "#!/bin/sh\nexec sleep 600\n"
OPTIONS = ("--ntasks=1", "--cpus-per-task=1", "--time=10", "--output=/dev/null")


@pytest.fixture
async def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeSlurm]:
    """Give a fake cluster with jobs of two users, and a fake pyslurm of its release."""
    monkeypatch.syspath_prepend(PYSLURM)
    monkeypatch.setattr("koala_adapter.lrm.helper.FIRST_PAUSE", 0.0)
    fake = FakeSlurm(tmp_path / "fake", release="25.11.7")
    fake.run("sbatch", *OPTIONS, "--job-name=held", "--hold", "--comment=mine", stdin=SCRIPT)
    fake.run("sbatch", *OPTIONS, "--job-name=array", "--array=1-4", "--hold", stdin=SCRIPT, user="root")
    fake.run("sbatch", *OPTIONS, "--job-name=two", "--nodes=2", "--ntasks=3", stdin=SCRIPT)
    yield fake
    fake.close()


async def started(fake: FakeSlurm, directory: Path, access: str, **settings: Any) -> SlurmLrm:  # noqa: ANN401 - of a site
    """Return an LRM that has asked the controller."""
    given = {"conf": fake.conf, "bin_directory": fake.bin_directory, "submit_by": "commands", "access": access}
    lrm = SlurmLrm(new_context(directory), SlurmSettings.model_validate({**given, **settings}))
    await lrm.start()
    return lrm


@pytest.fixture
async def lrm(fake: FakeSlurm, tmp_path: Path) -> AsyncIterator[SlurmLrm]:
    """Give an LRM that uses the library where it can, and whose jobs were listed once."""
    lrm = await started(fake, tmp_path / "l", "auto")
    await lrm.jobs_to_schedule()
    yield lrm
    await lrm.close()


def access_of(lrm: SlurmLrm) -> LibraryAccess:
    """Return the plugin's way to the library."""
    assert lrm.library is not None
    return lrm.library


def way(lrm: SlurmLrm) -> str:
    """Return what the plugin says of its way to the jobs of all users."""
    return str(access_of(lrm).choice)


async def held_job(lrm: SlurmLrm) -> LrmJob:
    """Return the job in hold as it is listed."""
    return next(job for job in await lrm.jobs_to_schedule() if job.name == "held")


# -- The same values -----------------------------------------------------------------------------------------


async def test_both_ways_tell_the_same(fake: FakeSlurm, lrm: SlurmLrm, tmp_path: Path) -> None:
    """Jobs, details and order are the same, after changes, too, of which only what differs is sent."""
    commands = await started(fake, tmp_path / "c", "commands")
    assert await lrm.jobs_to_schedule() == await commands.jobs_to_schedule()
    assert way(lrm) == "by pyslurm: for Slurm 25.11.7, as the controller"
    assert (await access_of(lrm).reader.jobs())[1] == []
    fake.run("scontrol", "release", "1")
    fake.run("scancel", "2_3")
    fake.run("sbatch", *OPTIONS, "--job-name=new", "--hold", stdin=SCRIPT)
    jobs = await lrm.jobs_to_schedule()
    assert jobs == await commands.jobs_to_schedule()
    assert "new" in {job.name for job in jobs}
    assert commands.library is None


VALUES = {
    **dict.fromkeys(("array_id", "array_task_id", "array_tasks_waiting", "heterogeneous_id", "heterogeneous_offset")),
    **dict.fromkeys(("account", "allocated_nodes", "start_time", "end_time", "ntasks_per_node", "dependencies")),
    **dict.fromkeys(("required_nodes", "admin_comment", "eligible_time")),
    "id": 7,
    "name": "job",
    "user_id": 0,
    "group_id": 0,
    "partition": "main",
    "state": "PENDING",
    "cpus": 6,
    "state_reason": "JobHeldUser",
    "submit_time": 1795000000,
    "time_limit": 90,
    "exit_code": 0,
    "exit_code_signal": 0,
    "cpus_per_task": 2,
    "constraints": ["fast&big"],
    "requeue_count": 1,
    "working_directory": "/home/ann",
    "comment": "two\nlines",
}


@pytest.mark.parametrize(
    ("changes", "id_"),
    [
        ({}, "7"),
        ({"array_id": 5, "array_task_id": 2}, "5_2"),
        ({"array_id": 5}, "5_0"),
        ({"array_id": 5, "array_tasks_waiting": "1-4,7"}, "5_[1-4,7]"),
        ({"heterogeneous_id": 6}, "6+0"),
        ({"heterogeneous_id": 6, "heterogeneous_offset": 1}, "6+1"),
    ],
)
def test_ids(changes: dict[str, Any], id_: str) -> None:
    assert squeue_id({**VALUES, **changes}) == id_


def test_a_row_is_as_squeue_writes_it() -> None:
    row = row_of(VALUES)
    assert len(row) == len(JOB_FIELDS) + len(MORE_FIELDS)
    (job,) = parse_wide_row(row)
    assert (job.id, job.user, job.walltime, job.processors, job.processors_per_task) == ("7", "root", 5400, 6, 2)
    assert (job.features, job.comment, job.requeues) == (("fast", "big"), "two\nlines", 1)


@pytest.mark.parametrize(
    ("changes", "whether"),
    [
        ({}, False),
        ({"dependencies": {"afterok": []}}, True),
        ({"exit_code": 2, "state": "FAILED"}, True),
        ({"cpus_per_task": None}, True),
        ({"name": None}, True),
        ({"array_id": 7, "state": "CANCELLED"}, True),
        ({"array_id": 7, "state": "RUNNING", "allocated_nodes": "n1"}, False),
        ({"array_id": 7, "array_tasks_waiting": "0-3"}, False),
    ],
)
def test_what_pyslurm_does_not_tell_as_it_is(changes: dict[str, Any], whether: bool) -> None:  # noqa: FBT001 - a case
    """Such jobs are asked for by commands: dependencies that it leaves out, exit codes less 128, a job named None."""
    assert bool(untold({**VALUES, **changes})) is whether


async def test_jobs_that_pyslurm_does_not_tell_are_asked_for(fake: FakeSlurm, lrm: SlurmLrm, tmp_path: Path) -> None:
    """A job that ended with 130 is told by squeue, once; pyslurm takes 128 from that."""
    fake.run("sbatch", *OPTIONS, "--job-name=ends", stdin="#!/bin/sh\nexit 130\n")
    commands = await started(fake, tmp_path / "c", "commands")
    await eventually(lrm.jobs, lambda jobs: any(job.exit_code for job in jobs), what="it has ended", seconds=60)
    told = await lrm.jobs_to_schedule()
    assert told == await commands.jobs_to_schedule()
    assert [job.exit_code for job in told if job.name == "ends"] == [130]
    assert access_of(lrm).choice.by == "pyslurm"


def test_only_changes_are_sent() -> None:
    class Told:
        priority = 0

        def __init__(self, **changes: Any) -> None:  # noqa: ANN401 - of pyslurm
            self.__dict__.update(VALUES, **changes)

    picture = Picture()
    first = picture.update({7: Told(), 8: Told(id=8)}, set())
    assert ([one["number"] for one in first["changed"]], first["order"]) == ([7, 8], [7, 8])
    # The estimate of when a job starts is no change.
    assert picture.update({7: Told(start_time=5), 8: Told(id=8)}, set()) == {"changed": []}
    assert [one["number"] for one in picture.update({7: Told(), 8: Told(id=8)}, {8})["changed"]] == [8]
    last = picture.update({8: Told(id=8, comment="other")}, set())
    assert ([one["row"][-2] for one in last["changed"]], last["order"]) == (["other"], [8])


# -- The choice ----------------------------------------------------------------------------------------------


async def test_library_of_another_release(fake: FakeSlurm, tmp_path: Path) -> None:
    (fake.conf.parent / "library-release").write_text("24.11.0")
    for access in ("auto", "pyslurm"):
        lrm = await started(fake, tmp_path / access, access)
        assert len(await lrm.jobs_to_schedule()) == 6
        assert "pyslurm is for Slurm 24.11, and the controller runs 25.11" in way(lrm)
        result = (await lrm.check())[-1]
        assert result.found.startswith("read by commands: pyslurm cannot be used: ")
        assert result.ok is (access == "auto")
        assert access_of(lrm).client.helper_pid is None


async def test_without_the_library(fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koala_slurm.library.find_spec", lambda _: None)
    lrm = await started(fake, tmp_path / "auto", "auto")
    assert len(await lrm.jobs_to_schedule()) == 6
    assert "pyslurm is not installed" in way(lrm)
    assert "jobs of all users" not in {result.subject for result in await lrm.check()}
    lrm = await started(fake, tmp_path / "pyslurm", "pyslurm")
    assert [result.ok for result in await lrm.check() if result.subject == "jobs of all users"] == [False]


async def test_without_slurm_conf(fake: FakeSlurm, tmp_path: Path) -> None:
    """The helper looks for the file before libslurm does, which would end the process after a minute."""
    lrm = await started(fake, tmp_path / "l", "auto")
    fake.conf.rename(fake.conf.with_name("moved"))
    with pytest.raises(LrmUnavailableError):
        await lrm.jobs_to_schedule()  # nor have the commands any
    assert way(lrm) == f"by commands: pyslurm cannot be used: {fake.conf} does not exist"
    fake.conf.with_name("moved").rename(fake.conf)
    assert len(await lrm.jobs_to_schedule()) == 6


async def test_killed_helper(lrm: SlurmLrm) -> None:
    listed = await lrm.jobs_to_schedule()
    first = access_of(lrm).client.helper_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    # Commands give the jobs where its death is not known yet.
    assert await lrm.jobs_to_schedule() == listed
    assert await lrm.jobs_to_schedule() == listed
    assert access_of(lrm).choice.by == "pyslurm"
    assert access_of(lrm).client.helper_pid not in {first, None}


async def test_library_that_aborts(fake: FakeSlurm, lrm: SlurmLrm) -> None:
    listed = await lrm.jobs_to_schedule()
    (fake.conf.parent / "library-aborts").touch()
    for death in range(1, DEATHS + 1):
        assert await lrm.jobs_to_schedule() == listed
        assert access_of(lrm).choice.by == ("commands" if death == DEATHS else "pyslurm")
    assert "the pyslurm helper died" in way(lrm)
    (fake.conf.parent / "library-aborts").unlink()
    assert await lrm.jobs_to_schedule() == listed
    assert access_of(lrm).client.helper_pid is None


async def test_library_that_hangs(fake: FakeSlurm, lrm: SlurmLrm) -> None:
    listed = await lrm.jobs_to_schedule()
    client = access_of(lrm).client
    (fake.conf.parent / "library-hangs").touch()
    client._timeout = 0.5
    assert await lrm.jobs_to_schedule() == listed
    assert client.helper_pid is None
    (fake.conf.parent / "library-hangs").unlink()
    client._timeout = 30.0
    assert await lrm.jobs_to_schedule() == listed
    assert client.helper_pid is not None


async def test_controller_that_does_not_answer(fake: FakeSlurm, lrm: SlurmLrm) -> None:
    fake.stop_server()
    for _ in range(DEATHS + 1):
        with pytest.raises(LrmUnavailableError, match=r"[Uu]nable to contact"):
            await lrm.jobs_to_schedule()
    fake.start_server()
    await lrm.jobs_to_schedule()
    assert way(lrm).startswith("by pyslurm")


# -- Changes -------------------------------------------------------------------------------------------------


async def test_changes_by_the_library(fake: FakeSlurm, tmp_path: Path) -> None:
    lrm = await started(fake, tmp_path / "l", "pyslurm")
    made: list[str] = []
    lrm._context.commands.observer = lambda name, _seconds, _failure: made.append(name.rpartition("/")[2])
    jobs = {job.id: job for job in await lrm.jobs_to_schedule()}
    held = next(job.id for job in jobs.values() if job.name == "held")
    element = next(job.id for job in jobs.values() if job.name == "array")
    made.clear()
    await lrm.modify(held, walltime=3600)
    await begin_start(lrm, held, ["n2"])
    assert made == ["pyslurm walltime", "pyslurm pin", "pyslurm release"]
    made.clear()
    await lrm.release([element])
    assert made == ["scontrol"]
    told = {job.id: job for job in await lrm.jobs_to_schedule()}
    assert (told[held].walltime, told[held].nodes) == (3600, ("n2",))
    assert replace(told[element], state=jobs[element].state).id == element
    made.clear()
    await lrm.signal([held], signal.SIGCONT)
    await lrm.requeue([held])
    await lrm.hold([held])
    assert made == ["pyslurm signal", "pyslurm requeue", "scontrol"]
    await lrm.close()


async def test_change_that_ends_the_helper(fake: FakeSlurm, lrm: SlurmLrm) -> None:
    held = (await held_job(lrm)).id
    (fake.conf.parent / "library-aborts").touch()
    with pytest.raises(HelperDiedError):
        await lrm.modify(held, walltime=3600)
    await lrm.modify(held, walltime=7200)
    (fake.conf.parent / "library-aborts").unlink()
    assert (await held_job(lrm)).walltime == 7200
    assert way(lrm).startswith("by pyslurm")


async def test_change_that_the_library_cannot_make(lrm: SlurmLrm, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made by a command."""
    held = (await held_job(lrm)).id
    monkeypatch.setattr("koala_slurm.lrm.minutes", lambda _: {"no": "number"})
    await lrm.modify(held, walltime=7200)
    assert (await held_job(lrm)).walltime == 7200


def test_table_of_changes() -> None:
    assert all(bool(change.verb) is not bool(change.why) for change in CHANGES)
