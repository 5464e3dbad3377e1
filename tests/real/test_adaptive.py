# SPDX-License-Identifier: Apache-2.0
"""Programs that adapt on real systems: sizes, wishes and losses."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.config.jobfile import load_job
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import EndReason, JobId
from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport
from tests.examplejobs import NOT_YET, expected_result, write_stepsum_until
from tests.local_koala import processes_naming
from tests.real.conftest import NewUser
from tests.real.lrms import System, agents_directories, local_job, placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import KoalaUser, PausedCommand, at_most, part
from tests.wishes import write_wishes

# -- Programs whose processes change together, over Slurm and Grid Engine at once, whatever happens meanwhile. All of
# them compute in step, until they are told that it is enough; what they print in the end does not depend on their
# sizes, so that it shows whether a step was lost or done twice. What is to last until the test has seen it is made
# to: a process that is stopped does not come to its point, and one that may not go on does not say that it is done.


SECONDS = 0.3
"""For one step; a change takes as long."""
PATIENT = "flexible = true\npoint_patience = 600\ndone_patience = 600\n"


def two_systems(
    new_user: NewUser, slurm: SlurmCluster, cell: GridEngineCell, *, approach: str = "pwa", path: Path | None = None
) -> KoalaUser:
    """Return a user who may have three processors on Slurm, and two on Grid Engine."""
    clusters = {slurm.name: at_most(slurm, 3), cell.name: at_most(cell, 2)}
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
    user.wait_completed(job)
    steps, sizes, result = user.output_of(job, "sum", 0).decode().splitlines()[-3:]
    assert result == expected_result(int(steps.split()[1]))
    assert all(not placeholders(system) for system in user.systems.values())
    return [int(one) for one in sizes.split()[1:]]


def process(user: KoalaUser, rank: int) -> int:
    """Return the pid of one process of the user's program, as soon as it is there."""
    programs = (f"stepsum.py\0{enough(user)}\0", f"wishes.py\0{user.directory / 'program'}\0")
    found: list[int] = []

    def seen() -> bool:
        for pid in (pid for program in programs for pid in processes_naming(program)):
            with suppress(OSError):
                if f"KOALA_RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return bool(found)

    wait_until(seen, seconds=PATIENCE, what=f"process {rank}", details=user.details)
    return found[0]


def wait_joined(user: KoalaUser, job: str) -> None:
    """Return when both processes with which the program begins are in contact: none would be offered more before."""
    user.wait(job, lambda _: all(user.output_of(job, "sum", rank) for rank in range(2)), what="has joined")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process do nothing for a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
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
    user.wait_completed(rigid)


def test_the_service_is_killed_in_each_phase_of_growing_and_of_shrinking(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path
) -> None:
    """One program goes on through seven kills, never below its minimum, and nothing is leaked."""
    commands = tmp_path / "commands"
    commands.mkdir()
    user = two_systems(new_user, slurm_a, sge_cell, path=commands)
    with local_job(sge_cell, sge_cell.slots):
        with local_job(slurm_a, slurm_a.processors - 2):
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


# -- Programs that ask for processors themselves, on Slurm and on Grid Engine.


FOUR = 4
"""Processors of each system that the programs may use."""


def said(user: KoalaUser, job: str) -> list[list[Any]]:
    """Return what a program wrote of its wishes and of its sizes."""
    return [json.loads(line) for line in user.output_of(job, "sum", 0).decode().splitlines()]


def wishes_submit(user: KoalaUser, system: System, name: str, initial: int, *wishes: str) -> str:
    """Submit a program of one to four processes on one system."""
    more = f'minimum = 1\nmaximum = {FOUR}\ncluster = "{system.name}"\ninitial = {initial}\n'
    path = Path(write_wishes(user.directory, *wishes, name=f"{name}-{system.name}", more=more))
    return user.client.submit(load_job(path, job_id=JobId("0"), user=login_name(), submitted_at=time.time()))


def test_wishes_on_both_systems(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """A voluntary one gets part of what it asks for; for a mandatory one another program of that cluster shrinks."""
    systems = (slurm_a, sge_cell)
    clusters = {one.name: at_most(one, FOUR) for one in systems}
    user = new_user(*systems, scheduler={"approach": "none"}, clusters=clusters)
    rich = {one.name: wishes_submit(user, one, "rich", 2) for one in systems}
    poor = {one.name: wishes_submit(user, one, "poor", 1, "voluntary=2", "mandatory=1") for one in systems}
    for job in (*rich.values(), *poor.values()):
        user.wait_running(job)
    user.wait(poor[slurm_a.name], lambda _: [one.available for one in user.client.clusters()] == [1, 1], what="polled")
    for system in systems:
        (user.directory / f"poor-{system.name}" / "go").touch()
    for system in systems:
        job = poor[system.name]
        user.wait(job, lambda _, job=job: len(said(user, job)) == FOUR, what="has what it asked for")  # type: ignore[misc]
        assert said(user, job) == [
            ["voluntary", 2, 1, "no more is free"],
            ["size", 2],
            ["mandatory", 1, 1, ""],
            ["size", 3],
        ]
        assert said(user, rich[system.name]) == [["size", 1]]
        assert f"job {job} asked for 1 more" in user.report(rich[system.name]).explanation
        assert len(placeholders(system, running=True)) == FOUR
    for directory in user.directory.glob("*-*/"):
        (directory / "stop").touch()
    for job in (*rich.values(), *poor.values()):
        user.wait_completed(job)
    assert all(not placeholders(system) for system in systems)


LIMIT, WANTED = 200, 150
"""MiB that the site gives an application with a processor, and that it asks for."""


@pytest.mark.nightly
def test_memory_comes_with_new_processors(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """The batch system itself says how much the new placeholder has; what is beyond the site's limit is refused."""
    systems = (slurm_a, sge_cell)
    clusters = {one.name: {"memory_limit": LIMIT} for one in systems}
    user = new_user(*systems, scheduler={"approach": "none"}, clusters=clusters)
    jobs = {one.name: wishes_submit(user, one, "big", 1, f"memory={LIMIT + 1}", f"memory={WANTED}") for one in systems}
    for job in jobs.values():
        user.wait_running(job)
    for system in systems:
        (user.directory / f"big-{system.name}" / "go").touch()
    for system in systems:
        job = jobs[system.name]
        user.wait(job, lambda _, job=job: len(said(user, job)) == 3, what="has what it asked for")  # type: ignore[misc]
        refused = f"on {system.name} a processor comes with {LIMIT} MiB of memory at most, not {LIMIT + 1}"
        assert said(user, job) == [
            ["memory", LIMIT + 1, 0, refused],
            ["memory", WANTED, 1, ""],
            ["size", 2],
        ]
        assert sorted(memory_of(system, one) for one in placeholders(system)) == ["", f"{WANTED}M"]
        (user.directory / f"big-{system.name}" / "stop").touch()
    for job in jobs.values():
        user.wait(job, lambda report: report.state is JobState.COMPLETED, what="has ended")


def memory_of(system: System, name: str) -> str:
    """Return how much memory a batch system says that a placeholder asks for; empty: none, or not so much."""
    if isinstance(system, GridEngineCell):
        found = re.search(r"h_vmem=(\w+)", system.run("qstat", "-j", name))
        return "" if found is None else found[1]
    (memory,) = {row[1] for row in system.squeue(form="%j|%m") if row[0] == name}
    return memory if memory == f"{WANTED}M" else ""


# -- Programs that change together, and lose a node or wait for a process meanwhile: each ends in a stated way.


NEWCOMERS_NODE = "n2"
"""The first process is on the other one: each has one processor."""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[SlurmCluster]:
    """Run a Slurm cluster of two nodes of one processor each."""
    with SlurmCluster("losses", nodes=2, cpus=1) as cluster:
        yield cluster


def submit_growing(user: KoalaUser, system: str, *, more: str = "") -> str:
    """Submit a program of one or two processes, which passes points until it is told to stop."""
    keys = f'minimum = 1\nmaximum = 2\ncluster = "{system}"\n{more}'
    return user.submit(Path(write_wishes(user.directory, name="program", more=keys)))


def hold(user: KoalaUser, rank: int) -> None:
    """Have a process not say that it is done with a change."""
    (user.directory / "program").mkdir()
    (user.directory / "program" / f"hold-{rank}").touch()


def test_a_node_dies_before_the_point(new_user: NewUser, two_nodes: SlurmCluster, tmp_path: Path) -> None:
    """The growth is given up, and the program does not notice."""
    commands = tmp_path / "commands"
    commands.mkdir()
    user = new_user(two_nodes, scheduler={"approach": "none"}, path=commands)
    job = submit_growing(user, two_nodes.name)
    first = process(user, 0)
    pause = PausedCommand(commands, "sbatch", when="before")
    user.client.resize(job, 2)
    pause.wait_reached()  # it has said that it wants more
    with stopped(first):  # so that the point is not reached meanwhile
        pause.let_go()
        process(user, 1)
        disk = agents_directories(two_nodes)
        two_nodes.kill_node(NEWCOMERS_NODE)
        two_nodes.give_up(NEWCOMERS_NODE)
        try:
            told = user.wait(job, lambda report: "was lost" in report.explanation, what="lost a newcomer")
            assert told.state is JobState.RUNNING
        finally:
            two_nodes.start_node(NEWCOMERS_NODE)
            two_nodes.return_to_use()
    (user.directory / "program" / "stop").touch()
    user.wait_completed(job)
    assert not placeholders(two_nodes)
    for path in disk:  # the agent had no time to tidy up there
        shutil.rmtree(path, ignore_errors=True)


def test_a_node_is_set_down_in_the_middle(new_user: NewUser, two_nodes: SlurmCluster) -> None:
    """Between the point and the last done() the state is on its way: with a process the job is lost, and says so."""
    user = new_user(two_nodes)
    hold(user, 1)
    job = submit_growing(user, two_nodes.name)
    user.wait(job, lambda report: "at its point" in report.explanation, what="is in the middle of a change")
    two_nodes.give_up(NEWCOMERS_NODE)
    try:
        outcome = user.wait_over(job).outcome
    finally:
        two_nodes.return_to_use()
    assert outcome is not None
    assert outcome.state is JobState.LOST, outcome
    assert outcome.reason in {EndReason.NODE_LOST, EndReason.CANCELLED}
    assert not placeholders(two_nodes)


def test_a_process_never_calls_done(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """When its time is over, the others are told at whom they have waited for, and the job is lost."""
    user = new_user(slurm_a, sge_cell)
    hold(user, 1)
    job = submit_growing(user, slurm_a.name, more="done_patience = 3\n")
    outcome = user.wait_outcome(job)
    assert (outcome.state, outcome.reason) == (JobState.LOST, EndReason.LOST)
    why = "process 1 has not called done() within 3 s of the change at point "
    assert why in outcome.detail
    assert why in user.run("explain", job).text
    for rank in (0, 1):
        assert f"koala_app: process {rank}: {why}" in user.output_of(job, "sum", rank, "err").decode()
    assert all(not placeholders(system) for system in user.systems.values())
