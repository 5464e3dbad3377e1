# SPDX-License-Identifier: Apache-2.0
"""The published negotiations on eight processors: on Slurm, on Grid Engine, and across both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_experiments.framework import ALL, COUNTERED, DECLINING, EVOLVING, MALLEABLE, Pace
from koala_experiments.negotiation import as_published, course_of
from koala_experiments.stage import Places, Stage
from tests.real.lrms import placeholders

if TYPE_CHECKING:
    from koala_experiments.framework import Scenario
    from tests.real.conftest import NewGridEngine, NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.timeout(600)]

PACE = Pace(steps=6, work=0.4, rest=3.0)
SCENARIOS = (EVOLVING, COUNTERED, MALLEABLE, DECLINING)
NIGHTLY = [pytest.param(one, id=one.name, marks=pytest.mark.nightly) for one in SCENARIOS]


def expect_as_published(user: KoalaUser, scenario: Scenario, places: Places) -> None:
    """Play a scenario: sizes and messages are the paper's, and nothing is left in any batch system."""
    played = Stage(user.client, user.state, places, gate=user.directory / "may-ask").play(scenario, PACE)
    assert as_published(played), course_of(played)
    assert all(not placeholders(system) for system in user.systems.values())


@pytest.mark.real("slurmctld", "slurmd")
@pytest.mark.parametrize(
    "scenario", [pytest.param(COUNTERED, id=COUNTERED.name), *(one for one in NIGHTLY if one.id != COUNTERED.name)]
)
def test_on_slurm(scenario: Scenario, new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """Its eight processors are those of two nodes."""
    user = new_user(slurm_a, scheduler={"approach": scenario.approach.value})
    expect_as_published(user, scenario, Places(home=slurm_a.name, other=slurm_a.name))


@pytest.mark.real("sge_qmaster")
@pytest.mark.parametrize("scenario", NIGHTLY)
def test_on_grid_engine(scenario: Scenario, new_user: NewUser, new_grid_engine: NewGridEngine) -> None:
    """Its eight processors are the slots of one host."""
    cell = new_grid_engine("n", slots=ALL)
    user = new_user(cell, scheduler={"approach": scenario.approach.value})
    expect_as_published(user, scenario, Places(home=cell.name, other=cell.name))


@pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")
@pytest.mark.parametrize("scenario", NIGHTLY)
def test_across_both(scenario: Scenario, new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """The application begins on Grid Engine, and grows over to Slurm."""
    own = {slurm_a.name: ALL - scenario.initial, sge_cell.name: scenario.initial}
    have = {slurm_a.name: slurm_a.cpus * len(slurm_a.nodes), sge_cell.name: sge_cell.slots}
    user = new_user(
        slurm_a,
        sge_cell,
        scheduler={"approach": scenario.approach.value},
        clusters={name: {"threshold": have[name] - many} for name, many in own.items()},
    )
    expect_as_published(user, scenario, Places(home=sge_cell.name, other=slurm_a.name))
