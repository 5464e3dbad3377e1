# SPDX-License-Identifier: Apache-2.0
"""Placement policies on real batch systems: a component in two pieces, and processors exchanged between two jobs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import local_job, placeholders
from tests.real.user import part

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster", "mpiexec.hydra")]


def test_one_component_in_pieces_on_two_batch_systems(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, allreduce: Path
) -> None:
    """A flexible component too large for either becomes one MPI world over both; its ranks are numbered through."""
    user = new_user(slurm_a, sge_cell, clusters={"a": {"threshold": slurm_a.cpus * len(slurm_a.nodes) - 4}})
    traces = Traces(user)
    go = user.directory / "go"
    flexible = part(None, 6, str(allreduce), str(go), flexible=True, environment=traces.mark)
    file = user.job_file(flexible, launcher="mpi", placement="flexible-cluster-minimization")
    planned = {one["cluster"]: one["processors"] for one in user.run("plan", "--json", str(file)).json["components"]}
    assert planned in ({"a": 4, "c": 2}, {"a": 2, "c": 4})
    job = user.submit(file)
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    assert sorted(len(placeholders(system)) for system in (slurm_a, sge_cell)) == [2, 4]
    go.touch()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0)
    for rank in range(6):
        line = user.output_of(job, "c1", rank).decode()
        assert re.fullmatch(rf"rank={rank} size=6 host=\S+ component=c1 sum=21\n", line), line
    traces.expect_none()


def test_a_job_starts_in_what_another_held_in_vain(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Held on Slurm while Grid Engine is full, processors go to a job that starts; its places come back."""
    user = new_user(slurm_a, sge_cell, scheduler={"placeholder_life": 30})
    traces = Traces(user)
    rest = slurm_a.cpus * len(slurm_a.nodes) - 2
    command = ("sh", "-c", "echo rank $KOALA_RANK on $KOALA_CLUSTER")
    with local_job(sge_cell, sge_cell.slots), local_job(slurm_a, rest):
        wide = user.submit(user.job_file(*(part(name, 2, *command, environment=traces.mark) for name in "ac")))
        user.wait_held(wide, 2)
        narrow = user.submit(user.job_file(part("a", 2, *command, environment=traces.mark), name="narrow"))
        report = user.wait_over(narrow)
        assert report.outcome is not None
        assert report.outcome.exit_code == 0
        assert "exchanged for places in the queue" in user.run("explain", wide).text
    report = user.wait_over(wide)
    assert report.outcome is not None
    assert report.outcome.exit_code == 0
    assert [user.output_of(narrow, "c1", rank) for rank in range(2)] == [b"rank %d on a\n" % rank for rank in range(2)]
    where = [user.output_of(wide, f"c{1 + rank // 2}", rank % 2).decode().split()[-1] for rank in range(4)]
    assert where == ["a", "a", "c", "c"]
    traces.expect_none()
