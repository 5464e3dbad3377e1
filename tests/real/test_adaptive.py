# SPDX-License-Identifier: Apache-2.0
"""Programs whose processes change together, over Slurm and Grid Engine at once, whatever happens meanwhile.

All of them compute in step; what they print in the end does not depend on their sizes, so that it shows whether a step
was lost or done twice.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.scheduler.outcome import JobState
from tests.local_koala import processes_naming
from tests.real.lrms import placeholders
from tests.real.user import part
from tests.stepsum import expected_result, write_stepsum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.api.reports import JobReport
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

SECONDS = 0.3
"""For one step; a change takes as long."""


def two_systems(new_user: NewUser, slurm: SlurmCluster, cell: GridEngineCell) -> KoalaUser:
    """Return a user who may have three processors on Slurm, and two on Grid Engine."""
    thresholds = {slurm.name: slurm.cpus * len(slurm.nodes) - 3, cell.name: cell.slots - 2}
    return new_user(slurm, cell, clusters={name: {"threshold": one} for name, one in thresholds.items()})


def size(report: JobReport) -> int:
    """Return how many processors a job has; 0 while that is changing."""
    if "taking in" in report.explanation or "giving up" in report.explanation or "gathered" in report.explanation:
        return 0
    return sum(one.processors for one in report.components)


def expect_right(user: KoalaUser, job: str, steps: int) -> list[int]:
    """Wait for the end of a program: its result is right, nothing is left in any batch system; return its sizes."""
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0), report.outcome
    sizes, result = user.output_of(job, "sum", 0).decode().splitlines()[-2:]
    assert result == expected_result(steps)
    assert all(not placeholders(system) for system in user.systems.values())
    return [int(one) for one in sizes.split()[1:]]


def processes(rank: int, steps: int) -> list[int]:
    """Return the pid of one process of a program, if it is there; ``steps`` tells it from those of other tests."""
    found = []
    for pid in processes_naming(f"stepsum.py\0{steps}\0"):
        with suppress(OSError):
            if f"KOALA_RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def process(rank: int, steps: int) -> int:
    """Return the pid of one process of a program."""
    (pid,) = processes(rank, steps)
    return pid


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process do nothing for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_two_become_five_become_three(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """Its processes are on both systems at once; those that leave are out of their batch system while it goes on."""
    user, steps = two_systems(new_user, slurm_a, sge_cell), 60
    job = user.submit(Path(write_stepsum(user.directory, steps=steps, seconds=SECONDS, minimum=2, maximum=5)))
    user.wait(job, lambda report: size(report) == 5, what="has five")
    user.run("resize", job, "3")
    user.wait(job, lambda report: size(report) == 3, what="has three")
    left = sum(len(placeholders(system)) for system in user.systems.values())
    assert left <= 5
    user.wait(job, lambda _: sum(len(placeholders(one)) for one in user.systems.values()) == 3, what="gave two back")
    sizes = expect_right(user, job, steps)
    assert sizes[0] == 2
    assert sizes[-1] == 3
    assert 5 in sizes


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("offered", marks=pytest.mark.nightly),
        pytest.param("gathered", marks=pytest.mark.nightly),
        "taking in",
        pytest.param("at its point", marks=pytest.mark.nightly),
    ],
)
def test_the_service_is_killed_while_a_program_grows(
    phase: str, new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """The program goes on; the growth is made, or given up and offered again; nothing is leaked."""
    user, steps = two_systems(new_user, slurm_a, sge_cell), 90 + len(phase)
    job = user.submit(Path(write_stepsum(user.directory, steps=steps, seconds=SECONDS, minimum=2, maximum=5)))
    user.wait(job, lambda report: phase in report.explanation, what=phase)
    user.kill()
    user.serve()
    user.wait(job, lambda report: size(report) == 5 or report.outcome is not None, what="has five")
    sizes = expect_right(user, job, steps)
    assert sizes[0] == 2
    assert max(sizes) == 5


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("asked to give up", marks=pytest.mark.nightly),
        pytest.param("giving up", marks=pytest.mark.nightly),
        pytest.param("at its point", marks=pytest.mark.nightly),
    ],
)
def test_the_service_is_killed_while_a_program_shrinks(
    phase: str, new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """The program goes on, never below its minimum; the one for whom it shrinks gets its processors."""
    user, steps = two_systems(new_user, slurm_a, sge_cell), 70 + len(phase)
    job = user.submit(Path(write_stepsum(user.directory, steps=steps, seconds=SECONDS, minimum=2, maximum=5)))
    user.wait(job, lambda report: size(report) == 5, what="has five")
    first = process(0, steps)
    if phase == "asked to give up":  # who is stopped does not answer
        os.kill(first, signal.SIGSTOP)
    file = user.job_file(part(sge_cell.name, 1, "true"), part(slurm_a.name, 1, "true"), name="rigid")
    with user.start("submit", str(file)) as submitting:  # the phase may be over before the command is
        user.wait(job, lambda report: phase in report.explanation, what=phase)
        user.kill()
        user.serve()
        submitting.communicate()
    os.kill(first, signal.SIGCONT)
    rigid = str(int(job) + 1)
    assert user.wait_over(rigid).state is JobState.COMPLETED
    sizes = expect_right(user, job, steps)
    assert min(sizes) >= 2


def test_a_process_that_never_reaches_the_point(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """The growth is given up when its time is over, people are told why, and the program goes on as it was."""
    user, steps = two_systems(new_user, slurm_a, sge_cell), 25
    more = "flexible = true\npoint_patience = 3\n"
    file = write_stepsum(user.directory, steps=steps, seconds=SECONDS, minimum=2, maximum=5, more=more)
    job = user.submit(Path(file))
    user.wait(job, lambda report: "gathered" in report.explanation, what="grows")
    with stopped(process(1, steps)):
        told = user.wait(job, lambda report: "point within 3 s" in report.explanation, what="gave a growth up")
        assert told.state is JobState.RUNNING
    expect_right(user, job, steps)


def test_the_agent_of_a_newcomer_is_killed(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """Before the point the growth is given up, and the program does not notice."""
    user, steps = two_systems(new_user, slurm_a, sge_cell), 61
    job = user.submit(Path(write_stepsum(user.directory, steps=steps, seconds=SECONDS, minimum=2, maximum=5)))
    user.wait(job, lambda report: "gathered" in report.explanation, what="grows")
    with stopped(process(1, steps)):  # so that the point is not reached meanwhile
        user.wait(job, lambda _: bool(processes(2, steps)), what="has a newcomer")
        os.kill(agent_of(process(2, steps)), signal.SIGKILL)
        user.wait(job, lambda report: "was lost" in report.explanation, what="lost one")
    sizes = expect_right(user, job, steps)
    assert sizes[0] == 2


def agent_of(pid: int) -> int:
    """Return the agent that started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
