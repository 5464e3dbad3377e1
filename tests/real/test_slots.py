# SPDX-License-Identifier: Apache-2.0
"""Slots on real batch systems: what is asked for is what a placeholder gets, and jobs whose ranks need it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import Lrm, Submission
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.mapping import arguments_of
from koala_adapter.model import BatchKey, LrmJob, LrmJobState, NodeGpus
from koala_adapter.outcome import JobState
from koala_adapter.slots import Slot
from koala_adapter.testing import eventually, new_context
from koala_sge import PLUGIN as SGE
from koala_sge.settings import SgeSettings
from koala_slurm import PLUGIN as SLURM
from koala_slurm.settings import SlurmSettings
from tests.daskprogram import DaskProgram
from tests.real.conftest import NewUser
from tests.real.lrms import placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, compile_program, wait_until
from tests.real.systems.requirements import missing_for_mpi, require
from tests.real.user import KoalaUser, part, until

# -- Slots on real batch systems: what is asked for is what a placeholder gets, and what its nodes show.

SLEEPER = "#!/bin/sh\nexec sleep 300\n"
NUMBERS = count(start=11)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Run a cluster of two nodes with four cores of two threads, two GPUs and features each."""
    settings = {"GresTypes": "gpu", "SelectTypeParameters": "CR_Core_Memory", "Licenses": "matlab:2"}
    options = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2 Feature=ib,avx TmpDisk=5000"
    cluster = SlurmCluster("slots", nodes=2, cpus=8, settings=settings, gres=("gpu", 2), node_options=options)
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def cell() -> Iterator[GridEngineCell]:
    """Run a cell of one host with four slots, a parallel environment, and complexes that jobs can ask for."""
    with GridEngineCell("slots", slots=4) as cell:
        cell.add_environment("mpi", rule="$fill_up")
        cell.add_environment("smp", rule="$pe_slots")
        cell.add_complexes(
            {
                "h_vmem": ("h_vmem MEMORY <= YES YES 0 0", "8G"),
                "gpu": ("gpu INT <= YES JOB 0 0", "2"),
                "exclusive": ("excl BOOL EXCL YES YES 0 1000", "TRUE"),
                "ib": ("ib BOOL == YES NO FALSE 0", "TRUE"),
                "matlab": ("mat INT <= YES YES 0 0", "4"),
            }
        )
        yield cell


@asynccontextmanager
async def running(lrm: Lrm, slot: Slot, *, memory_mib: int | None = None) -> AsyncIterator[LrmJob]:
    """Have one placeholder of a slot run; it is cancelled afterwards."""
    key = BatchKey(f"koala-slots-{next(NUMBERS)}")  # no two submissions have the same: what one needed is removed by it
    submission = Submission(key=key, count=2, script=SLEEPER, walltime=600, memory_mib=memory_mib, slot=slot)
    ids = await lrm.submit(submission)

    async def states() -> dict[str, LrmJobState]:
        return {job.id: job.state for job in await lrm.jobs(name_prefix=key) if job.id in ids}

    await eventually(states, lambda seen: seen.get(ids[0]) is LrmJobState.RUNNING, what="the first runs", seconds=120)
    yield next(job for job in await lrm.jobs(name_prefix=key) if job.id == ids[0])
    await lrm.cancel(ids)
    gone = {LrmJobState.ENDED}
    await eventually(states, lambda seen: set(seen.values()) <= gone, what="both are gone", seconds=120)


async def test_slots_of_slurm(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Threads are processors as Slurm counts them, GPUs are those of the node, and sinfo shows what is in use."""
    settings = SlurmSettings.model_validate(slurm.plugin_settings)
    lrm = SLURM.factory(new_context(tmp_path), settings)
    await lrm.start()
    slot = Slot(
        threads=4, gpus=1, scratch_mib=1000, features=("ib", "avx"), licenses=(("matlab", 1),), directives=("--nice=1",)
    )
    async with running(lrm, slot, memory_mib=500) as job:
        assert (job.processors, len(job.nodes)) == (4, 1)
        shown = slurm.run("scontrol", "show", "job", job.id)
        for words in ("CPUs/Task=4", "gpu:1", "MinTmpDiskNode=1000M", "Features=ib&avx", "Licenses=matlab:1", "Nice=1"):
            assert words in shown
        nodes = {node.name: node for node in await lrm.nodes()}
        used = nodes[job.nodes[0]]
        assert used.memory_used_mib in {500, 1000}
        assert used.gpus in {(NodeGpus(kind="", count=2, used=number),) for number in (1, 2)}
        assert (used.features, used.disk_mib) == (("ib", "avx"), 5000)
    async with running(lrm, Slot(exclusive=True)) as job:
        assert job.processors == 8
    with pytest.raises(LrmRejectedError):
        await lrm.submit(
            Submission(key=BatchKey("koala-slots-2"), count=1, script=SLEEPER, walltime=60, slot=Slot(gpus=3))
        )
    await lrm.close()


async def test_slots_of_grid_engine(cell: GridEngineCell, tmp_path: Path) -> None:
    """Processors of one host come from the environment that was found, and what each takes is asked for in shares."""
    settings = SgeSettings(
        root=cell.root, cell=cell.cell, qmaster_port=cell.qmaster_port, execd_port=cell.execd_port, submit_by="commands"
    )
    site = Directives(map=(("gpus", arguments_of("-l gpu={n}")),))
    lrm = SGE.factory(replace(new_context(tmp_path), directives=site), settings)
    await lrm.start()
    assert {"threads", "exclusive", "features"} <= lrm.capabilities.slots
    (node,) = await lrm.nodes()
    assert (node.features, node.gpus, node.untold) == (("ib",), (NodeGpus(kind="", count=2),), ("gpu_kind",))

    async def left() -> set[str]:
        return set(cell.run("qhost", "-F", "gpu,matlab").split())

    slot = Slot(threads=2, gpus=1, features=("ib",), licenses=(("matlab", 2),), account="physics")
    async with running(lrm, slot, memory_mib=1001) as job:
        assert (job.processors, len(job.nodes)) == (2, 1)
        shown = cell.run("qstat", "-j", job.id.partition(".")[0])
        for words in (
            "smp range: 2",
            "h_vmem=501M",
            "gpu=1",
            "ib=true",
            "matlab=1",
            "account:                    physics",
        ):
            assert words in shown
        # Both tasks run, each with a GPU, and with two licences: one for each of its processors.
        await eventually(left, lambda seen: {"hc:gpu=0.000000", "hc:matlab=0.000000"} <= seen, what="taken", seconds=60)
        assert [node.gpus for node in await lrm.nodes()] == [(NodeGpus(kind="", count=2, used=2),)]
    # What asks for no memory has the default of that complex, which is none here: execd ends it within seconds.
    async with running(lrm, Slot(exclusive=True), memory_mib=500):
        assert len([line for line in cell.qstat("-s", "r").splitlines()[2:] if line.strip()]) == 1
    await lrm.close()


# -- Jobs that say what each of their ranks needs, on real Slurm clusters of which not each has everything.

MEMORY = {"SelectTypeParameters": "CR_Core_Memory", "DefMemPerCPU": "100"}


@pytest.fixture(scope="module")
def module_systems() -> Iterator[tuple[SlurmCluster, SlurmCluster]]:
    """Run two nodes without GPUs, and one with two; all have four processors and 4000 MiB. Tests take `systems`."""
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
    report = user.wait_completed(job)
    ranks = [(component.name, rank) for component in report.components for rank in range(component.processors)]
    return [user.output_of(job, name, rank).decode() for name, rank in ranks]


def test_an_mpi_world_of_ranks_with_two_threads_each(
    systems: tuple[SlurmCluster, SlurmCluster], new_user: NewUser, started: ExitStack, programs: Path
) -> None:
    """Two ranks on Slurm, each with two processors of a node, and two in one job of Grid Engine; OpenMP uses both."""
    require(missing_for_mpi())
    plain, _ = systems
    cell = started.enter_context(GridEngineCell("cell"))
    cell.add_environment("smp", rule="$pe_slots")
    user = new_user(plain, cell)
    user.wait_available(8, 4)
    program = str(compile_program("hybrid", programs))
    shares = {"plain": 1, "cell": 2}
    parts = [part(name, 2, program, threads=2, ranks_per_slot=ranks) for name, ranks in shares.items()]
    job = user.submit(user.job_file(*parts, launcher="mpi"))
    report = user.wait_completed(job)
    assert [(one.name, one.processors) for one in report.components] == [("c1", 2), ("c2", 1)]
    lines = [user.output_of(job, name, rank).decode() for name in ("c1", "c2") for rank in range(2)]
    assert lines == [f"rank={rank} size=4 threads=2 of=8\n" for rank in range(4)]


def test_an_array_of_fifty(user: KoalaUser) -> None:
    """One job; never are more of its tasks at work than it allows, and as many as that."""
    log, go = user.directory / "log", user.directory / "go"
    wait = f"until [ -e {go} ]; do sleep 0.1; done"
    command = f"echo begin >>{log}; {wait}; echo end >>{log}; echo $KOALA_ARRAY_INDEX {{index}}"
    job = user.submit(user.job_file(part(None, 1, "sh", "-c", command), array="1-99:2%5"))
    wait_until(
        lambda: log.exists() and len(log.read_text().splitlines()) == 5,
        seconds=PATIENCE,
        what="five tasks are at work",
        details=user.details,
    )
    go.touch()
    report = user.wait_over(job)
    assert (report.state, report.sweep and report.sweep.done) == (JobState.COMPLETED, 50), report
    at_work = accumulate(1 if line == "begin" else -1 for line in log.read_text().splitlines())
    assert max(at_work) == 5
    found = user.state / "jobs" / job / "sweep" / "tasks" / "000"
    assert {one.name: one.read_text() for one in found.iterdir()} == {
        f"{index}.out": f"{index} {index}\n" for index in range(1, 100, 2)
    }


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


def test_dask_workers_of_two_threads_come_and_go(user: KoalaUser, systems: tuple[SlurmCluster, SlurmCluster]) -> None:
    """They are whole slots: seven idle processors are three workers, of which two make room for a job of five."""
    plain, gpus = systems
    plain.submit("#!/bin/sh\nsleep 1000\n")
    gpus.submit("#!/bin/sh\nsleep 1000\n", "-n4")
    user.wait_available(7, 0)
    go = user.directory / "go"
    with DaskProgram(user.directory, user.environment(), "breathe", 3, 1, 2, site=user.site, state=user.state) as dask:
        assert dask.until_said("many on") == "plain"
        assert dask.until_said("threads") == "2"
        assert len(placeholders(plain)) == 3
        assert sorted(cpus for (cpus,) in plain.squeue("--states=RUNNING", form="%C")) == ["1", "2", "2", "2"]
        rigid = user.submit(user.job_file(part("plain", 5, *until(go))))
        dask.until_said("during")
        user.wait_running(rigid)
        go.touch()
        dask.until_said("closed")
        assert dask.ended() == 0
    assert "lost 0" in dask.results
