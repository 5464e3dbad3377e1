# SPDX-License-Identifier: Apache-2.0
"""`koala cancel` takes everything of a job out of all batch systems, in little more time than these need themselves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import EXIT_CANCELLED
from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import LOCAL, jobs_named, local_job, placeholders
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.lrms import System
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

OUR_SHARE = 5.0
"""Seconds that koala may add to what the batch systems need."""


def own_time(system: System, processors: int) -> float:
    """Return how long a batch system itself takes to end a bare array of this size, until its listing is empty."""
    with local_job(system, processors):
        pass
    began = time.monotonic()
    wait_until(lambda: not jobs_named(system, LOCAL), seconds=PATIENCE, what="end of a bare array")
    return time.monotonic() - began


def time_to_cancel(user: KoalaUser, job: str) -> float:
    """Cancel a job as a user does; return the seconds until no batch system lists any of it."""
    began = time.monotonic()
    command = user.start("cancel", job)
    wait_until(
        lambda: not any(placeholders(system) for system in user.systems.values()),
        seconds=PATIENCE,
        what="placeholders gone",
        details=user.details,
    )
    took = time.monotonic() - began
    stdout, stderr = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, stderr
    assert b"cancelled" in stdout
    return took


def expect_cancelled(user: KoalaUser, job: str) -> None:
    """Insist on the outcome that a cancelled job has."""
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.CANCELLED, EXIT_CANCELLED)


@pytest.mark.parametrize(
    "in_time", [pytest.param(False, id="in the end"), pytest.param(True, id="in time", marks=pytest.mark.nightly)]
)
def test_cancelled_while_waiting_and_while_running(
    new_user: NewUser,
    slurm_a: SlurmCluster,
    slurm_b: SlurmCluster,
    sge_cell: GridEngineCell,
    *,
    in_time: bool,
) -> None:
    """Held, queued and launched placeholders are gone; on an idle machine within 5 s plus the systems' own time."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    traces = Traces(user)
    systems = (slurm_a, slurm_b, sge_cell)
    bound = OUR_SHARE + max(own_time(system, 4) for system in systems) if in_time else 2 * PATIENCE
    file = user.job_file(*(part(name, 4, "sleep", "600", environment=traces.mark) for name in "abc"), walltime=600)
    with local_job(sge_cell, sge_cell.slots):
        job = user.submit(file)
        user.wait_held(job, 8)
        waiting = time_to_cancel(user, job)
        expect_cancelled(user, job)
    wait_until(lambda: not jobs_named(sge_cell, LOCAL), seconds=PATIENCE, what="end of the local job")
    job = user.submit(file)
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    running = time_to_cancel(user, job)
    expect_cancelled(user, job)
    assert waiting <= bound, f"waiting: {waiting:.1f} s, bound {bound:.1f} s"
    assert running <= bound, f"running: {running:.1f} s, bound {bound:.1f} s"
    traces.expect_none()


def test_processes_that_will_not_end_are_ended(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Neither ignoring SIGTERM nor a session of its own keeps a process, or a child of it, alive."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    stubborn = "trap '' TERM HUP INT; setsid sh -c \"trap '' TERM HUP; sleep 600\" & sleep 600"
    parts = [part(name, 2, "sh", "-c", stubborn, environment=traces.mark) for name in "ac"]
    job = user.submit(user.job_file(*parts, walltime=600))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    assert user.run("cancel", job).code == 0
    expect_cancelled(user, job)
    traces.expect_none()


def test_cancelled_while_the_submission_is_under_way(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """A job cancelled at once, again and again, leaves nothing, whatever had been submitted of it by then."""
    user = new_user(slurm_a)
    traces = Traces(user)
    file = user.job_file(part("a", 2, "sleep", "600", environment=traces.mark), walltime=600)
    for _ in range(2):
        job = user.submit(file)
        user.run("cancel", "--no-wait", job)
        expect_cancelled(user, job)
    traces.expect_none(but_words=True)
