# SPDX-License-Identifier: Apache-2.0
"""One MPI program over several batch systems at once: it runs, it ends as it should, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from koala_adapter.model import EndReason
from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import placeholders
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "mpiexec.hydra")]


def test_one_world_over_three_batch_systems(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, sge_cell: GridEngineCell, allreduce: Path
) -> None:
    """12 ranks on two Slurm clusters and a Grid Engine cell form one world; afterwards nothing of ours is anywhere."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    traces = Traces(user)
    go = user.directory / "go"
    parts = [part(name, 4, str(allreduce), str(go), environment=traces.mark) for name in ("a", "b", "c")]
    job = user.submit(user.job_file(*parts, launcher="mpi"))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    for system in (slurm_a, slurm_b, sge_cell):
        assert len(placeholders(system)) == 4, system.name
    traces.note_running()
    assert len(traces.directories) == 12
    go.touch()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0)
    lines = [user.output_of(job, f"c{1 + rank // 4}", rank % 4).decode() for rank in range(12)]
    for rank, line in enumerate(lines):
        assert re.fullmatch(rf"rank={rank} size=12 host=\S+ component=c{1 + rank // 4} sum=78\n", line), line
    traces.expect_none()


class BadEnd(NamedTuple):
    """What a rank does, and what the user is to be told."""

    how: str
    number: int
    code: int
    reason: EndReason


@pytest.mark.parametrize(
    "end",
    [
        BadEnd("exit", 3, 3, EndReason.EXITED),
        BadEnd("kill", signal.SIGKILL, 128 + 9, EndReason.SIGNALLED),
        BadEnd("kill", signal.SIGSEGV, 128 + 11, EndReason.SIGNALLED),
    ],
    ids=["exits 3", "SIGKILL", "SIGSEGV"],
)
def test_a_rank_that_ends_badly_ends_the_world(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, allreduce: Path, end: BadEnd
) -> None:
    """Rank 2 ends before MPI_Finalize: the others, which wait for it, are ended, and the user is told of rank 2."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    parts = [
        part(name, 2, str(allreduce), end.how, "2", str(int(end.number)), environment=traces.mark) for name in "ab"
    ]
    report = user.wait_over(user.submit(user.job_file(*parts, launcher="mpi")))
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code, report.outcome.reason) == (JobState.FAILED, end.code, end.reason)
    assert (report.outcome.component, report.outcome.rank) == ("c2", 2)
    traces.expect_none()


def test_shell_of_a_rank_that_is_killed_is_a_signal(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """Nobody is left to tell how the rank ended but mpiexec, whose exit status 9 stands for SIGKILL here.

    It does so when the program itself has ended, too, which lives on without its shell.
    """
    user = new_user(slurm_a)
    traces = Traces(user)
    go = user.directory / "go"
    program = ("sh", "-c", f"until [ -e {go} ]; do sleep 0.2; done")
    parts = [part("a", 2, *program, environment=traces.mark) for _ in range(2)]
    job = user.submit(user.job_file(*parts, launcher="mpi"))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    shells: list[int] = []

    def found() -> bool:
        shells[:] = rank_shells(traces.mark, 3)
        return bool(shells)

    wait_until(found, seconds=PATIENCE, what="the shell of rank 3", details=user.details)
    os.kill(shells[0], signal.SIGKILL)
    go.touch()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.outcome.exit_code, report.outcome.reason) == (128 + signal.SIGKILL, EndReason.SIGNALLED)
    traces.expect_none()


def rank_shells(mark: Mapping[str, str], rank: int) -> list[int]:
    """Return the shells around a rank's program, found by the environment of its component."""
    wanted = {*(f"{name}={value}".encode() for name, value in mark.items()), b"KOALA_RANK=%d" % rank}
    shells = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            environment = set((process / "environ").read_bytes().split(b"\0"))
            if words[0] == b"sh" and words[-1] == b"koala-rank" and wanted <= environment:
                shells.append(int(process.name))
    return shells
