# SPDX-License-Identifier: Apache-2.0
"""Two malleable jobs and a rigid one on Slurm under PRA and PWA: sizes over time as the simulator has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.scheduler.parameters import Approach
from tests.real.lrms import placeholders
from tests.sizes_over_time import PROCESSORS, expect_the_same, live

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.systems import SlurmCluster

pytestmark = [pytest.mark.real("slurmctld", "slurmd")]


@pytest.mark.parametrize("approach", [Approach.PRA, Approach.PWA])
def test_sizes_over_time_are_those_of_the_simulator(
    approach: Approach, new_user: NewUser, slurm_a: SlurmCluster
) -> None:
    """The same changes in the same order; under PRA the rigid job waits for an end, under PWA it does not."""
    assert slurm_a.cpus * len(slurm_a.nodes) == PROCESSORS
    user = new_user(slurm_a, serve=False)
    expect_the_same(approach, live(approach, site=str(user.site)))
    assert not placeholders(slurm_a)
