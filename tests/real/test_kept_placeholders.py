# SPDX-License-Identifier: Apache-2.0
"""Placeholders that only the site lets start: their job says why it waits, and runs elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.scheduler.claiming.claims import KEPT_PATIENCE
from tests.real.leftovers import Traces
from tests.real.lrms import local_job, placeholders
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.systems import SlurmCluster

pytestmark = [pytest.mark.real("slurmctld", "slurmd"), pytest.mark.nightly]


def test_a_job_leaves_a_partition_that_is_closed(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster
) -> None:
    """A limit keeps its placeholders in the queue; then the partition is closed, and after a minute they move."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    slurm_a.run("scontrol", "update", "PartitionName=main", "MaxTime=1")
    try:
        with local_job(slurm_b, 2):
            command = ("sh", "-c", "echo rank $KOALA_RANK")
            job = user.submit(user.job_file(part(None, 2, *command, environment=traces.mark)))
            user.wait(job, lambda report: report.components[0].cluster == "a", what="placed where most is idle")
            wait_until(
                lambda: "PartitionTimeLimit" in user.run("explain", job).text,
                seconds=PATIENCE,
                what="the limit is quoted",
                details=user.details,
            )
            slurm_a.run("scontrol", "update", "PartitionName=main", "State=DOWN", "MaxTime=INFINITE")
            report = user.wait_over(job, seconds=KEPT_PATIENCE + 2 * PATIENCE)
        assert report.components[0].cluster == "b"
        assert report.outcome is not None
        assert report.outcome.exit_code == 0
        assert placeholders(slurm_a) == []
    finally:
        slurm_a.run("scontrol", "update", "PartitionName=main", "State=UP", "MaxTime=INFINITE")
    traces.expect_none()
