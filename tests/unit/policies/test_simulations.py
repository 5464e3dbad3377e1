# SPDX-License-Identifier: Apache-2.0
"""Simulations and experiments go by a site's own policies, too; one that cannot be followed ends them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from koala_adapter.cli.koala import koala
from koala_adapter.errors import EXIT_CONFIGURATION, PolicyAnswerError, SimulationError
from koala_adapter.policies.checked import CheckedMalleability, CheckedPlacement
from koala_adapter.policies.loading import load_policies
from koala_adapter.scheduler.knownpolicies import Policies
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_experiments import malleable, placement
from koala_experiments.framework import load_experiment
from koala_experiments.malleable import Case, run_case
from tests.unit.policies.installed import example_policies
from tests.unit.policies.test_checked import Scripted, Told
from tests.unit.simulation.test_multicluster import jobs, platform

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["example_policies"]
pytestmark = pytest.mark.usefixtures("example_policies")


def placed_by(policy: str, *submitted: float) -> list[Any]:
    """Return jobs of two processors that name a placement policy."""
    return [replace(one, placement=policy) for one in jobs(*submitted, malleable=False)]


def test_placement_on_counts() -> None:
    """The first cluster of the platform, not the one with the most idle processors."""
    where, workload = platform(4, 16), placed_by("first-listed", 0.0, 0.0, 0.0)
    outcome = simulate(where, workload, Settings(policies=load_policies()))
    assert sorted(one.clusters for one in outcome.jobs) == [("c0",), ("c0",), ("c1",)]
    without = simulate(where, workload, Settings())
    assert all("no placement policy first-listed" in why for _, why in without.refused)


def test_malleability_on_counts() -> None:
    """The smallest job grows, by one processor at a time."""
    settings = Settings(malleability="smallest-first", policies=load_policies())
    outcome = simulate(platform(12), jobs(0.0, 0.0), settings)
    assert [one.maximum_processors for one in outcome.jobs] == [6, 6]
    with pytest.raises(SimulationError, match="no malleability policy smallest-first") as refused:
        Settings(malleability="smallest-first")
    assert "folding" in (refused.value.hint or "")


def test_a_policy_at_fault_ends_a_simulation() -> None:
    """What came out would say nothing of it."""
    bad = Policies(
        placement={"mine": CheckedPlacement(Scripted(), "policy 'placement.mine'")},
        malleability={"mine": CheckedMalleability(Told(), "policy 'malleability.mine'")},
    )
    with pytest.raises(PolicyAnswerError, match="it is None, not Placed"):
        simulate(platform(4), placed_by("mine", 0.0), Settings(policies=bad))
    told = Told()
    told.answer = lambda running: [(one, 99) for one in running]
    bad = Policies(malleability={"mine": CheckedMalleability(told, "policy 'malleability.mine'")})
    with pytest.raises(PolicyAnswerError, match="gives out 99 processors, there are 2"):
        simulate(platform(4), jobs(0.0), Settings(malleability="mine", policies=bad))


def test_an_experiment_compares_them() -> None:
    """Beside those of the paper, on the same jobs, in as many processes as one likes."""
    experiment = load_experiment("placement")
    given = {"jobs": "8", "also": "first-listed, worst-fit"}
    result = experiment.run(experiment.options(seeds=1, processes=2, settings=given, policies=load_policies()))
    assert [row[0] for row in result.tables[0].rows] == [*placement.POLICIES, "first-listed"]
    assert all(list(figure.categories) == ["WF", "CF", "CM", "FCM", "first-listed"] for figure in result.figures)


def test_the_command_names_what_there_is(tmp_path: Path) -> None:
    """A policy of another kind is not there, and one that is not installed neither."""
    pytest.importorskip("matplotlib")
    command = ["experiment", "run", "placement", "--out", str(tmp_path), "--set", "also=smallest-first"]
    wrong = CliRunner().invoke(koala, command)
    assert wrong.exit_code == EXIT_CONFIGURATION
    assert "also: there is no policy 'smallest-first' of that kind" in wrong.stderr
    assert "waiting-history, first-listed" in wrong.stderr


def test_malleability_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a line for each workload, behind the baselines; a run by it is one by it."""
    case = Case(approach=Approach.PWA, malleability="smallest-first", workload="W'm", seed=0, policies=load_policies())
    sample = run_case(case)
    assert sample.messages > run_case(replace(case, malleability="fpsma")).messages
    experiment = load_experiment("koala-pwa")
    options = experiment.options(seeds=1, settings={"also": "smallest-first"}, policies=load_policies())
    monkeypatch.setattr(malleable, "run_case", lambda case: replace(sample, case=case))
    named = [row[0] for row in malleable.tables(malleable.Records(options, Approach.PWA, ["W'm"]))[0].rows]
    assert named == ["FPSMA", "EGS", "EGS, repeated", "Equipartition", "Folding", "smallest-first", "rigid"]
