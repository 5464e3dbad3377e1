# SPDX-License-Identifier: Apache-2.0
"""The information service on real batch systems: which jobs of others wait there, and for how many processors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.config.sitefile import ClusterConfig
from koala_adapter.lrm import Submission
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import BatchKey
from koala_adapter.service.clusters import ClusterReading, read_cluster
from koala_adapter.testing import eventually, new_context
from koala_sge import PLUGIN as SGE
from koala_sge import SgeSettings
from koala_slurm import PLUGIN as SLURM
from koala_slurm import SlurmSettings
from tests.real.systems.processes import GRID_ENGINE_PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.lrm import Lrm
    from tests.real.systems import GridEngineCell, SlurmCluster

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SLEEP = "#!/bin/sh\nexec sleep 600\n"
QUIET = ("--output=/dev/null",)
OURS = Submission(key=BatchKey("koala-k-1"), count=2, script=SLEEP, walltime=60)


async def reading_of(lrm: Lrm, *, others: bool = True) -> ClusterReading:
    """Return a poll of a cluster where our jobs have the prefix of an instance ``k``."""
    config = ClusterConfig.model_validate({"name": "a", "plugin": "any"})
    return await read_cluster(config, lrm, name_prefix="koala-k-", user=login_name(), read_at=0.0, others=others)


async def await_others(lrm: Lrm, *wanted: int) -> None:
    """Return when a poll shows that others wait for so many processors each, and for nothing else."""

    async def look() -> list[int]:
        return sorted((await reading_of(lrm)).others_waiting)

    await eventually(look, lambda seen: seen == sorted(wanted), what=f"others wait for {wanted}", seconds=90)


async def test_slurm(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """A job and an array of another user wait; what is in hold, depends on others or is too early does not count."""
    lrm = SLURM.factory(new_context(tmp_path), SlurmSettings.model_validate(slurm_a.plugin_settings))
    await lrm.start()
    try:
        size = (await reading_of(lrm)).processors
        full = slurm_a.submit(SLEEP, f"--ntasks={size}", *QUIET, user="nobody")
        for options in (
            ("--ntasks=2",),
            ("--ntasks=1", "--array=1-3"),
            ("--ntasks=1", "--hold"),
            ("--ntasks=1", f"--dependency=afterok:{full}"),
            ("--ntasks=1", "--begin=now+1hour"),
        ):
            slurm_a.submit(SLEEP, *options, *QUIET, user="nobody")
        await lrm.submit(OURS)
        await await_others(lrm, 2, 1, 1, 1)
        seen = await reading_of(lrm, others=False)
        assert (seen.others_waiting, len(seen.jobs), seen.idle) == ((), OURS.count, 0)
        slurm_a.run("scancel", full)
        await await_others(lrm)
    finally:
        await lrm.close()


async def test_grid_engine(sge_cell: GridEngineCell, tmp_path: Path) -> None:
    """Three tasks of an array of another user wait; what is in hold or depends on others does not count."""
    settings = SgeSettings(
        bin_directory=GRID_ENGINE_PROGRAMS,
        root=sge_cell.root,
        cell=sge_cell.cell,
        qmaster_port=sge_cell.qmaster_port,
        execd_port=sge_cell.execd_port,
        trigger_scheduler=True,
    )
    lrm = SGE.factory(new_context(tmp_path), settings)
    await lrm.start()
    try:
        size = (await reading_of(lrm)).processors
        quiet = ("-wd", "/tmp", "-o", "/dev/null", "-j", "y")
        full = sge_cell.submit(SLEEP, "-t", f"1-{size + 3}", *quiet, user="nobody")
        sge_cell.submit(SLEEP, "-h", *quiet, user="nobody")
        sge_cell.submit(SLEEP, "-hold_jid", full, *quiet, user="nobody")
        await lrm.submit(OURS)
        await await_others(lrm, 1, 1, 1)
        seen = await reading_of(lrm, others=False)
        assert (seen.others_waiting, len(seen.jobs), seen.idle) == ((), OURS.count, 0)
        sge_cell.run("qdel", full)
        await await_others(lrm)
    finally:
        await lrm.close()
