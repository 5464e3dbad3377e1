# SPDX-License-Identifier: Apache-2.0
"""Parsl over Slurm and Grid Engine with one executor: what is busy is passed over, and all blocks end with Parsl."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from koala_adapter.parsl import KoalaProvider
from tests.parsl_pool import TASKS_ARE_FOUND, parsl_over, squares
from tests.real.lrms import local_job, placeholders
from tests.real.systems.processes import PATIENCE, wait_until

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]


SQUARES = {number * number for number in range(8)}


@pytest.mark.nightly
def test_parsl_computes_where_processors_are_idle(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """While a local user has all of Slurm, all tasks finish on Grid Engine; afterwards both compute."""
    user = new_user(slurm_a, sge_cell)
    blocks = KoalaProvider(
        site=user.site,
        state=user.state,
        walltime="00:10:00",
        worker_init=TASKS_ARE_FOUND,
        init_blocks=2,
        min_blocks=2,
        max_blocks=sge_cell.slots + 2,
        status_polling_interval=1,
    )
    with ExitStack() as parsl:
        with local_job(slurm_a, slurm_a.cpus * len(slurm_a.nodes)):
            # A block goes where processors are idle by what was last seen, and waits in that queue for good.
            wait_until(
                lambda: (
                    {one.name: one.available for one in user.client.clusters()}
                    == {slurm_a.name: 0, sge_cell.name: sge_cell.slots}
                ),
                seconds=PATIENCE,
                what="only Grid Engine is idle",
                details=user.details,
            )
            kernel = parsl.enter_context(parsl_over(blocks, user.directory))
            tasks = squares(kernel, 20, seconds=0.1)
            wait_until(lambda: all(one.done() for one in tasks), seconds=PATIENCE, what="all", details=user.details)
            first = [one.result() for one in tasks]
        assert {where for _, where in first} == {sge_cell.name}
        second = [one.result(PATIENCE) for one in squares(kernel, 4, seconds=0.1)]
        until = time.monotonic() + PATIENCE
        while {where for _, where in second} != set(user.systems):  # blocks start when their batch system lets them
            assert time.monotonic() < until, user.details()
            second += [one.result(PATIENCE) for one in squares(kernel, 8, seconds=0.2)]
    assert all(number in SQUARES for number, _ in second)
    wait_until(
        lambda: not any(placeholders(system) for system in user.systems.values()),
        seconds=PATIENCE,
        what="no block is left",
    )
    states = {one.id: one.state for one in user.client.jobs()}
    assert set(states.values()) == {JobState.CANCELLED}, user.details()
