# SPDX-License-Identifier: Apache-2.0
"""Slots on real batch systems: what is asked for is what a placeholder gets, and what its nodes show."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.mapping import arguments_of
from koala_adapter.model import BatchKey, LrmJobState, NodeGpus
from koala_adapter.slots import Slot
from koala_adapter.testing import eventually, new_context
from koala_sge import PLUGIN as SGE
from koala_sge.settings import SgeSettings
from koala_slurm import PLUGIN as SLURM
from koala_slurm.settings import SlurmSettings
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.requirements import missing_for_grid_engine, missing_for_slurm, require

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from koala_adapter.lrm import Lrm
    from koala_adapter.model import LrmJob

pytestmark = pytest.mark.anyio
SLEEPER = "#!/bin/sh\nexec sleep 300\n"
NUMBERS = count(start=11)


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Run a cluster of two nodes with four cores of two threads, two GPUs and features each."""
    require(missing_for_slurm())
    settings = {"GresTypes": "gpu", "SelectTypeParameters": "CR_Core_Memory", "Licenses": "matlab:2"}
    options = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2 Feature=ib,avx TmpDisk=5000"
    cluster = SlurmCluster("slots", nodes=2, cpus=8, settings=settings, gres=("gpu", 2), node_options=options)
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def cell() -> Iterator[GridEngineCell]:
    """Run a cell of one host with four slots, a parallel environment, and complexes that jobs can ask for."""
    require(missing_for_grid_engine())
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
