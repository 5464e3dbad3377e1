# SPDX-License-Identifier: Apache-2.0
"""Programs that change together, and lose a node or wait for a process meanwhile: each ends in a stated way."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import EndReason
from koala_adapter.outcome import JobState
from tests.local_koala import processes_naming
from tests.real.lrms import placeholders
from tests.real.slow_commands import PausedCommand
from tests.real.systems import SlurmCluster
from tests.real.systems.processes import SeenProcess, find_processes
from tests.real.systems.requirements import missing_for_slurm, require
from tests.real.user import part
from tests.wishes import write_wishes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

NEWCOMERS_NODE = "n2"
"""The first process is on the other one: each has one processor."""


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[SlurmCluster]:
    """Run a Slurm cluster of two nodes of one processor each."""
    require(missing_for_slurm())
    with SlurmCluster("losses", nodes=2, cpus=1) as cluster:
        yield cluster


def submit(user: KoalaUser, system: str, *, maximum: int, more: str = "") -> str:
    """Submit a program of one process and more, which passes points until it is told to stop."""
    keys = f'minimum = 1\nmaximum = {maximum}\ncluster = "{system}"\n{more}'
    return user.submit(Path(write_wishes(user.directory, name="program", more=keys)))


def stop(user: KoalaUser, job: str) -> None:
    """Have the program end: it completes, and nothing of it is left."""
    (user.directory / "program" / "stop").touch()
    report = user.wait_over(job)
    assert report.state is JobState.COMPLETED, report.outcome
    assert all(not placeholders(system) for system in user.systems.values())


def hold(user: KoalaUser, rank: int) -> None:
    """Have a process not say that it is done with a change."""
    (user.directory / "program").mkdir()
    (user.directory / "program" / f"hold-{rank}").touch()


def grown(report: JobReport, size: int) -> bool:
    """Tell whether a job has a size, and nothing is changing."""
    changing = any(words in report.explanation for words in ("taking in", "being gathered", "has been offered"))
    return not changing and sum(one.processors for one in report.components) == size


def remove(directories: set[Path]) -> None:
    """Remove what agents left that had no time to do so."""
    for path in directories:
        shutil.rmtree(path, ignore_errors=True)


def process(user: KoalaUser, rank: int) -> int | None:
    """Return the pid of one process of the program, if it is there."""
    shared = str(user.directory / "program")
    for pid in processes_naming(f"wishes.py\0{shared}\0"):
        with suppress(OSError):
            if f"KOALA_RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                return pid
    return None


def suspend(user: KoalaUser, rank: int) -> int:
    """Let a process do nothing."""
    pid = process(user, rank)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    return pid


@contextmanager
def suspended(user: KoalaUser, rank: int) -> Iterator[None]:
    """Let a process do nothing for a while."""
    pid = process(user, rank)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def set_down(system: SlurmCluster) -> None:
    """Have Slurm give up the node of the newcomer: by itself it does so when it has not heard of it for long."""
    system.run("scontrol", "update", f"NodeName={NEWCOMERS_NODE}", "State=DOWN", "Reason=test")


def agents_directories(system: SlurmCluster) -> set[Path]:
    """Return the private directories of the agents of a cluster."""
    seen = [SeenProcess.read(pid) for pid in find_processes(lambda process: process.uses(system.directory))]
    ranks = [one for one in seen if one is not None and "KOALA_STDOUT" in one.environment]
    return {Path(one.environment["KOALA_STDOUT"]).parents[1] for one in ranks}


def test_a_node_dies_before_the_point(new_user: NewUser, two_nodes: SlurmCluster, tmp_path: Path) -> None:
    """The growth is given up, and the program does not notice."""
    commands = tmp_path / "commands"
    commands.mkdir()
    user = new_user(two_nodes, scheduler={"approach": "none"}, path=commands)
    job = submit(user, two_nodes.name, maximum=2)
    user.wait(job, lambda _: process(user, 0) is not None, what="runs")
    pause = PausedCommand(commands, "sbatch", when="before")
    user.client.resize(job, 2)
    pause.wait_reached()  # it has said that it wants more
    with suspended(user, 0):  # so that the point is not reached meanwhile
        pause.let_go()
        user.wait(job, lambda _: process(user, 1) is not None, what="has a newcomer")
        disk = agents_directories(two_nodes)
        two_nodes.kill_node(NEWCOMERS_NODE)
        set_down(two_nodes)
        try:
            told = user.wait(job, lambda report: "was lost" in report.explanation, what="lost a newcomer")
            assert told.state is JobState.RUNNING
        finally:
            two_nodes.start_node(NEWCOMERS_NODE)
            two_nodes.return_to_use()
    stop(user, job)
    remove(disk)


def test_a_node_is_set_down_in_the_middle(new_user: NewUser, two_nodes: SlurmCluster) -> None:
    """Between the point and the last done() the state is on its way: with a process the job is lost, and says so."""
    user = new_user(two_nodes)
    hold(user, 1)
    job = submit(user, two_nodes.name, maximum=2)
    user.wait(job, lambda report: "at its point" in report.explanation, what="is in the middle of a change")
    set_down(two_nodes)
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
    job = submit(user, slurm_a.name, maximum=2, more="done_patience = 3\n")
    user.wait(job, lambda report: "at its point" in report.explanation, what="is in the middle of a change")
    outcome = user.wait_over(job).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (JobState.LOST, EndReason.LOST)
    why = "process 1 has not called done() within 3 s of the change at point "
    assert why in outcome.detail
    assert why in user.run("explain", job).text
    for rank in (0, 1):
        assert f"koala_app: process {rank}: {why}" in user.output_of(job, "sum", rank, "err").decode()
    assert all(not placeholders(system) for system in user.systems.values())


def test_an_application_that_never_answers(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """What it was asked is taken for declined; who waits hears so, and starts when processors come free."""
    thresholds = {slurm_a.name: slurm_a.cpus * len(slurm_a.nodes) - 2, sge_cell.name: sge_cell.slots - 1}
    user = new_user(slurm_a, sge_cell, clusters={name: {"threshold": one} for name, one in thresholds.items()})
    job = submit(user, slurm_a.name, maximum=2)
    user.wait(job, lambda report: grown(report, 2), what="has two")
    with suspended(user, 0):
        rigid = user.submit(user.job_file(part(slurm_a.name, 1, "true"), name="rigid"))
        user.wait(job, lambda report: "asked to give up" in report.explanation, what="is asked")
        user.wait(job, lambda report: "asked to give up" not in report.explanation, what="has been given time")
        assert user.report(job).state is JobState.RUNNING
    assert user.wait_over(rigid).state is JobState.COMPLETED
    stop(user, job)
