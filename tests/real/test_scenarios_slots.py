# SPDX-License-Identifier: Apache-2.0
"""Jobs that say what each of their ranks needs, on real Slurm clusters of which not each has everything."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.outcome import JobState
from tests.real.lrms import placeholders
from tests.real.systems import SlurmCluster
from tests.real.systems.requirements import missing_for_slurm, require
from tests.real.user import part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.real.conftest import NewUser
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd"), pytest.mark.timeout(600)]

MEMORY = {"SelectTypeParameters": "CR_Core_Memory", "DefMemPerCPU": "100"}


@pytest.fixture(scope="module")
def module_systems() -> Iterator[tuple[SlurmCluster, SlurmCluster]]:
    """Run two nodes without GPUs, and one with two; all have four processors and 4000 MiB. Tests take `systems`."""
    require(missing_for_slurm())
    with (
        SlurmCluster("plain", nodes=2, settings=MEMORY) as plain,
        SlurmCluster("gpus", nodes=1, settings={**MEMORY, "GresTypes": "gpu"}, gres=("gpu", 2)) as gpus,
    ):
        yield plain, gpus


@pytest.fixture
def systems(module_systems: tuple[SlurmCluster, SlurmCluster]) -> Iterator[tuple[SlurmCluster, SlurmCluster]]:
    """Return both, without jobs."""
    yield module_systems
    for system in module_systems:
        system.reset()


@pytest.fixture
def user(new_user: NewUser, systems: tuple[SlurmCluster, SlurmCluster]) -> KoalaUser:
    """Return a user whose service has seen both clusters."""
    one = new_user(*systems)
    one.wait_available(8, 4)
    return one


def completed(user: KoalaUser, *parts: str, **header: Any) -> list[str]:  # noqa: ANN401 - JSON
    """Run a job to its good end and return what the ranks of each component printed, in their order."""
    job = user.submit(user.job_file(*parts, **header))
    report = user.wait_over(job)
    assert report.state is JobState.COMPLETED, report
    ranks = [(component.name, rank) for component in report.components for rank in range(component.processors)]
    return [user.output_of(job, name, rank).decode() for name, rank in ranks]


@pytest.mark.real("slurmctld", "slurmd", "mpiexec.hydra")
def test_an_mpi_world_of_ranks_with_two_threads_each(user: KoalaUser) -> None:
    """Two ranks on each of two clusters: each has two processors of a node, and OpenMP is told so."""
    program = ("sh", "-c", "echo rank $PMI_RANK of $PMI_SIZE, $OMP_NUM_THREADS threads, $KOALA_THREADS")
    parts = [part(name, 2, *program, threads=2) for name in ("plain", "gpus")]
    lines = completed(user, *parts, launcher="mpi")
    assert lines == [f"rank {rank} of 4, 2 threads, 2\n" for rank in range(4)]


def test_gpus_choose_the_cluster(user: KoalaUser) -> None:
    """Only one of two clusters has any, and each rank gets one of its own; the larger one would be chosen otherwise."""
    lines = completed(user, part(None, 2, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 1", gpus=1))
    assert sorted(lines) == ["0\n", "1\n"]
    refused = user.run("run", "-n", "3", "--gpus", "1", "--", "true")
    assert "needs 3 slots of 1 processor, 1 GPU, at most 2 can be used there" in refused.stderr
    assert "plain: no node is large enough" in refused.stderr


def test_slots_wait_for_processors_of_one_node(user: KoalaUser, systems: tuple[SlurmCluster, SlurmCluster]) -> None:
    """Two idle processors on each of two nodes start no rank of four threads; the other cluster has a node for it."""
    plain, _ = systems
    for node in plain.nodes:
        plain.submit("#!/bin/sh\nsleep 1000\n", "-n2", f"-w{node}")
    user.wait_available(4, 4)
    job = user.submit(user.job_file(part(None, 1, "true", threads=4)))
    report = user.wait_over(job)
    assert [component.cluster for component in report.components] == ["gpus"]


def test_memory_of_slots_is_counted(user: KoalaUser) -> None:
    """Nodes of 4000 MiB take one rank of 3000 MiB each, whatever processors they have."""
    plan = user.run("plan", str(user.job_file(part("plain", 2, "true", memory="3000M"))))
    assert plan.code == 0, plan.stderr
    refused = user.run("run", "-n", "4", "--memory", "3000M", "--", "true")
    assert re.search(r"plain: needs 4 slots of 1 processor, 3000 MiB, at most 2 can be used there", refused.stderr)
    asked = user.run("run", "-n", "2", "-C", "plain", "--memory", "3000M", "--", "true")
    assert asked.code == 0, asked.stderr


def test_workers_with_slots_come_and_go(user: KoalaUser, systems: tuple[SlurmCluster, SlurmCluster]) -> None:
    """A malleable job grows by whole slots: seven idle processors are three workers of two threads."""
    go = user.directory / "go"
    until = ("sh", "-c", f"until [ -e {go} ]; do sleep 0.2; done")
    head = part("plain", 1, *until)
    values = '\n[[components]]\nname = "workers"\nminimum = 1\nmaximum = 9\ncluster = "plain"\nthreads = 2\n'
    workers = f'{values}command = ["sh", "-c", "sleep 1000"]\nretire_grace = 1\n'
    job = user.submit(user.job_file(head, workers, kind="malleable", runner="workers"))
    user.wait(
        job,
        lambda report: [component.processors for component in report.components] == [1, 3],
        what="has three workers",
    )
    plain, _ = systems
    assert len(placeholders(plain)) == 4
    assert sorted(cpus for (cpus,) in plain.squeue("--states=RUNNING", form="%C")) == ["1", "2", "2", "2"]
    go.touch()
    assert user.wait_over(job).state is JobState.COMPLETED
