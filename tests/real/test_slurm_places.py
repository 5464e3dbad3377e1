# SPDX-License-Identifier: Apache-2.0
"""How many jobs of one processor a real Slurm runs at once is what koala counts as its processors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.lrm.listing import Listing
from koala_adapter.testing import new_context
from koala_slurm import SlurmSettings
from koala_slurm.lrm import SlurmLrm
from tests.real.systems.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.conftest import NewSlurm

pytestmark = [pytest.mark.real, pytest.mark.anyio]

CPUS = 8
THREADS = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2"


@pytest.mark.parametrize(
    ("select", "options", "places"),
    [
        ("CR_Core", (THREADS, ""), 4),
        ("CR_CPU", (THREADS, ""), 4),
        ("CR_CPU", ("", ""), 8),
        ("CR_Socket", ("Sockets=2 CoresPerSocket=4 ThreadsPerCore=1", ""), 2),
        ("CR_Core", ("", "OverSubscribe=EXCLUSIVE"), 1),
        ("CR_Core", ("Sockets=2 CoresPerSocket=4 ThreadsPerCore=1", "SelectTypeParameters=CR_Socket"), 2),
    ],
    ids=["cores", "threads", "processors", "sockets", "nodes", "sockets of a partition"],
)
async def test_as_many_jobs_run_as_there_are_places(
    new_slurm: NewSlurm, tmp_path: Path, select: str, options: tuple[str, str], places: int
) -> None:
    """Before, all places are idle; with more jobs than places all are taken, and no more jobs run."""
    of_nodes, of_partition = options
    cluster = new_slurm(
        cpus=CPUS,
        settings={"SelectTypeParameters": select},
        node_options=of_nodes,
        partition_options=of_partition,
    )
    lrm = SlurmLrm(new_context(tmp_path), SlurmSettings.model_validate(cluster.plugin_settings))
    await lrm.start()

    async def counted() -> tuple[int, int]:
        listing = Listing(read_at=0.0, jobs=(), nodes=await lrm.nodes())
        return listing.processors, listing.idle

    assert await counted() == (places, places)
    job = cluster.submit("#!/bin/sh\nexec sleep 600\n", "-n1", f"--array=1-{CPUS + 2}", "--output=/dev/null")

    def settled() -> bool:
        waiting = cluster.squeue(f"--jobs={job}", "--states=PENDING")
        return bool(waiting) and {reason for *_, reason in waiting} <= {"Resources", "Priority"}

    wait_until(settled, seconds=90, what="all that can run does")
    assert len(cluster.squeue(f"--jobs={job}", "--states=RUNNING")) == places
    assert await counted() == (places, 0)
    await lrm.close()
