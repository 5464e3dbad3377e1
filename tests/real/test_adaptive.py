# SPDX-License-Identifier: Apache-2.0
"""Programs whose processes change together, over Slurm and Grid Engine at once, whatever happens meanwhile.

All of them compute in step, until they are told that it is enough; what they print in the end does not depend on their
sizes, so that it shows whether a step was lost or done twice. What is to last until the test has seen it is made to: a
process that is stopped does not come to its point, and one that may not go on does not say that it is done.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.local_koala import processes_naming
from tests.real.lrms import local_job, placeholders
from tests.real.slow_commands import PausedCommand
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part
from tests.stepsum import NOT_YET, expected_result, write_stepsum_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

SECONDS = 0.3
"""For one step; a change takes as long."""
PATIENT = "flexible = true\npoint_patience = 600\ndone_patience = 600\n"


def two_systems(
    new_user: NewUser, slurm: SlurmCluster, cell: GridEngineCell, *, approach: str = "pwa", path: Path | None = None
) -> KoalaUser:
    """Return a user who may have three processors on Slurm, and two on Grid Engine."""
    thresholds = {slurm.name: slurm.cpus * len(slurm.nodes) - 3, cell.name: cell.slots - 2}
    clusters = {name: {"threshold": one} for name, one in thresholds.items()}
    return new_user(slurm, cell, scheduler={"approach": approach}, clusters=clusters, path=path)


def enough(user: KoalaUser) -> Path:
    """Return the file that tells a program to end; its processes name it."""
    return user.directory / "enough"


def submit(user: KoalaUser, *, more: str = PATIENT) -> str:
    """Submit a program of two to five processes; ``more``: keys of its component."""
    file = write_stepsum_until(enough(user), user.directory, seconds=SECONDS, minimum=2, maximum=5, more=more)
    return user.submit(Path(file))


def size(report: JobReport) -> int:
    """Return how many processors a job has; 0 while that is changing."""
    if any(words in report.explanation for words in ("taking in", "giving up", "gathered", "has been offered")):
        return 0
    return sum(one.processors for one in report.components)


def expect_right(user: KoalaUser, job: str) -> list[int]:
    """Have a program end: its result is right, nothing is left in any batch system; return its sizes."""
    enough(user).touch()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0), report.outcome
    steps, sizes, result = user.output_of(job, "sum", 0).decode().splitlines()[-3:]
    assert result == expected_result(int(steps.split()[1]))
    assert all(not placeholders(system) for system in user.systems.values())
    return [int(one) for one in sizes.split()[1:]]


def processes(user: KoalaUser, rank: int) -> list[int]:
    """Return the pid of one process of the program, if it is there."""
    found = []
    for pid in processes_naming(f"stepsum.py\0{enough(user)}\0"):
        with suppress(OSError):
            if f"KOALA_RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def wait_joined(user: KoalaUser, job: str) -> None:
    """Return when both processes with which the program begins are in contact: none would be offered more before."""
    user.wait(job, lambda _: all(user.output_of(job, "sum", rank) for rank in range(2)), what="has joined")


def process(user: KoalaUser, rank: int) -> int:
    """Return the pid of one process of the program, as soon as it is there."""
    wait_until(lambda: bool(processes(user, rank)), seconds=PATIENCE, what=f"process {rank}", details=user.details)
    (pid,) = processes(user, rank)
    return pid


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process do nothing for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def not_done(user: KoalaUser) -> Iterator[None]:
    """Let the processes of the program not say for a while that they are done with a change."""
    wait = enough(user).with_name(NOT_YET)
    wait.touch()
    try:
        yield
    finally:
        wait.unlink()


def test_two_become_five_become_three(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """Its processes are on both systems at once; those that leave are out of their batch system while it goes on."""
    user = two_systems(new_user, slurm_a, sge_cell)
    job = submit(user)
    user.wait(job, lambda report: size(report) == 5, what="has five")
    assert all(placeholders(system) for system in user.systems.values())
    user.client.resize(job, 3)
    user.wait(job, lambda report: size(report) == 3, what="has three")
    user.wait(job, lambda _: sum(len(placeholders(one)) for one in user.systems.values()) == 3, what="gave two back")
    sizes = expect_right(user, job)
    assert sizes[0] == 2
    assert sizes[-1] == 3
    assert 5 in sizes


def kill_while(user: KoalaUser, job: str, phase: str) -> None:
    """Kill the service as soon as a report says that a job is in a phase, and start it again."""
    user.wait(job, lambda report: phase in report.explanation, what=phase)
    user.kill()
    user.serve()


def grow_through_kills(user: KoalaUser, job: str, pause: PausedCommand) -> None:
    """Have a job, for which processors came free, take one more; ``pause``: the command that submits it waits.

    What keeps the job in a phase is there before it may leave the one before.
    """
    kill_while(user, job, "gathered")
    with not_done(user):
        with stopped(process(user, 1)):
            pause.let_go()
            kill_while(user, job, "taking in")
        kill_while(user, job, "at its point")
    user.wait(job, lambda report: size(report) == 3, what="has three")


def shrink_through_kills(user: KoalaUser, job: str, *parts: str) -> None:
    """Have a job give up processors for a rigid one, which gets them."""
    with not_done(user):
        with stopped(process(user, 1)):
            rigid = user.submit(user.job_file(*parts, name="rigid"))
            kill_while(user, job, "giving up")
        kill_while(user, job, "at its point")
    assert user.wait_over(rigid).state is JobState.COMPLETED


def test_the_service_is_killed_in_each_phase_of_growing_and_of_shrinking(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path
) -> None:
    """One program goes on through seven kills, never below its minimum, and nothing is leaked."""
    commands = tmp_path / "commands"
    commands.mkdir()
    user = two_systems(new_user, slurm_a, sge_cell, path=commands)
    with local_job(sge_cell, sge_cell.slots):
        with local_job(slurm_a, slurm_a.cpus * len(slurm_a.nodes) - 2):
            user.wait_available(2, 0)
            job = submit(user)
            wait_joined(user, job)
            pause = PausedCommand(commands, "sbatch", when="before")
        grow_through_kills(user, job, pause)
        with stopped(process(user, 0)):  # who is stopped does not answer
            user.client.resize(job, 2)
            kill_while(user, job, "asked to give up")
        user.wait(job, lambda report: size(report) == 2, what="has two")
        with stopped(process(user, 0)):
            user.client.resize(job, 3)
            kill_while(user, job, "offered")
    # An offer without an answer counts as declined after a while, and is not made again until more is free: it is now.
    user.wait(job, lambda report: size(report) == 3, what="has three again")
    shrink_through_kills(user, job, part(sge_cell.name, 2, "true"), part(slurm_a.name, 1, "true"))
    sizes = expect_right(user, job)
    assert user.kills == 7
    assert sizes[:5] == [2, 3, 2, 3, 2]
    assert set(sizes) == {2, 3}


@pytest.mark.nightly
@pytest.mark.parametrize("phase", ["offered", "gathered", "taking in", "at its point"])
def test_the_service_is_killed_while_a_program_grows(
    phase: str, new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path
) -> None:
    """The program goes on; the growth is made, or given up and offered again; nothing is leaked."""
    commands = tmp_path / "commands"
    commands.mkdir()
    user = two_systems(new_user, slurm_a, sge_cell, path=commands)
    with ExitStack() as lasting:
        with local_job(slurm_a, slurm_a.cpus * len(slurm_a.nodes) - 2), local_job(sge_cell, sge_cell.slots):
            user.wait_available(2, 0)
            job = submit(user)
            wait_joined(user, job)
            match phase:
                case "offered":  # who is stopped does not answer
                    lasting.enter_context(stopped(process(user, 0)))
                case "gathered":
                    pause = PausedCommand(commands, "sbatch", when="before")
                    lasting.callback(pause.let_go)
                case "taking in":  # until all have come to their point
                    lasting.enter_context(stopped(process(user, 1)))
                case "at its point":
                    lasting.enter_context(not_done(user))
        user.wait(job, lambda report: phase in report.explanation, what=phase)
        user.kill()
        user.serve()
    # An offer without an answer counts as declined after a while, and is not made again until more is free.
    least = 3 if phase == "offered" else 5
    user.wait(job, lambda report: size(report) >= least, what=f"has {least}")
    sizes = expect_right(user, job)
    assert sizes[0] == 2
    assert max(sizes) >= least


@pytest.mark.nightly
@pytest.mark.parametrize("phase", ["asked to give up", "giving up", "at its point"])
def test_the_service_is_killed_while_a_program_shrinks(
    phase: str, new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """The program goes on, never below its minimum; the one for whom it shrinks gets its processors."""
    user = two_systems(new_user, slurm_a, sge_cell)
    job = submit(user)
    user.wait(job, lambda report: size(report) == 5, what="has five")
    with ExitStack() as lasting:
        match phase:
            case "asked to give up":  # who is stopped does not answer
                lasting.enter_context(stopped(process(user, 0)))
            case "giving up":
                lasting.enter_context(stopped(process(user, 1)))
            case "at its point":
                lasting.enter_context(not_done(user))
        file = user.job_file(part(sge_cell.name, 1, "true"), part(slurm_a.name, 1, "true"), name="rigid")
        rigid = user.submit(file)
        user.wait(job, lambda report: phase in report.explanation, what=phase)
        user.kill()
        user.serve()
    assert user.wait_over(rigid).state is JobState.COMPLETED
    sizes = expect_right(user, job)
    assert min(sizes) >= 2


def test_a_process_that_never_reaches_the_point(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """The growth is given up when its time is over, people are told why, and the program goes on as it was."""
    user = two_systems(new_user, slurm_a, sge_cell, approach="none")
    job = submit(user, more="flexible = true\npoint_patience = 3\n")
    wait_joined(user, job)
    with stopped(process(user, 1)):
        user.client.resize(job, 3)
        told = user.wait(job, lambda report: "point within 3 s" in report.explanation, what="gave a growth up")
        assert told.state is JobState.RUNNING
    expect_right(user, job)


def test_the_agent_of_a_newcomer_is_killed(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """Before the point the growth is given up, and the program does not notice."""
    user = two_systems(new_user, slurm_a, sge_cell, approach="none")
    job = submit(user)
    wait_joined(user, job)
    with stopped(process(user, 1)):  # so that the point is not reached meanwhile
        user.client.resize(job, 3)
        os.kill(agent_of(process(user, 2)), signal.SIGKILL)
        user.wait(job, lambda report: "was lost" in report.explanation, what="lost one")
    assert expect_right(user, job)[0] == 2


def agent_of(pid: int) -> int:
    """Return the agent that started a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
