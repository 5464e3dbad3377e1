# SPDX-License-Identifier: Apache-2.0
"""Policies of other people: found by name, the examples of the documents, and in simulations."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from koala_adapter.api.offline import read_record
from koala_adapter.cli.koala import koala
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import (
    EXIT_CONFIGURATION,
    ConfigurationError,
    JobRefusedError,
    PluginError,
    PolicyAnswerError,
    SimulationError,
)
from koala_adapter.lrm.contract import installed_entry_points
from koala_adapter.model import ClusterName, JobId
from koala_adapter.policies import (
    ENTRY_POINT_GROUP,
    INTERFACE_VERSION,
    PolicyDefinition,
    PolicyKind,
    policy_names,
)
from koala_adapter.policies.checked import CheckedMalleability, CheckedPlacement, CheckedQueues
from koala_adapter.policies.loading import load_definitions, load_policies, load_queue_policy
from koala_adapter.queueing.backfill import Easy
from koala_adapter.scheduler.actions import OfferProcessors
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.placement.policies import WorstFit
from koala_adapter.service.journal import Journal
from koala_adapter.service.service import Service, check_policies
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.sizes import OWN_SIZES, SizeRules
from koala_experiments import malleable as simulations_malleable
from koala_experiments import placement
from koala_experiments.framework import load_experiment
from koala_experiments.malleable import AS_SET, Conditions, Variant, run_variant
from tests.unit.config.test_config import PLUGINS, one_cluster
from tests.unit.policies.installed import example_policies, install
from tests.unit.policies.test_checked import Scripted, Told
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import Site, job, of_kind
from tests.unit.service.standins import take_snapshot
from tests.unit.simulation.test_multicluster import jobs, platform

# -- Policies of others are found by their entry points, and each way of being broken is refused with whose it is.


class Mine(WorstFit):
    """A placement policy of its own name."""

    name = "mine"


def fails() -> WorstFit:
    raise ZeroDivisionError("boom")


def define(**changes: Any) -> PolicyDefinition:  # noqa: ANN401 - also wrong types, on purpose
    """Return a good definition of a placement policy ``mine``, with changes."""
    values: dict[str, Any] = {"kind": PolicyKind.PLACEMENT, "name": "mine", "summary": "a test's", "factory": Mine}
    return PolicyDefinition(**(values | changes))


GOOD = define()
OLD = define(interface_version=INTERFACE_VERSION + 1)
RENAMED = define(name="other")
OWN_NAME = define(name="worst-fit", factory=WorstFit)
SPACED = define(name="my own")
OTHER_KIND = define(kind=PolicyKind.QUEUE)
NO_FACTORY = define(factory=None)
FAILING = define(factory=fails)
NO_POLICY = define(factory=dict)
MISNAMED = define(factory=WorstFit)
QUEUE = define(kind=PolicyKind.QUEUE, factory=Easy)
NO_QUEUE = define(kind=PolicyKind.QUEUE, factory=lambda processors, *, weights: (processors, weights))
NO_DEFINITION = Mine


def entry(attribute: str, name: str = "placement.mine", module: str = __name__) -> EntryPoint:
    """Return an entry point that names something of this module."""
    return EntryPoint(name=name, value=f"{module}:{attribute}", group=ENTRY_POINT_GROUP)


def test_good_policies_are_made() -> None:
    """Placement policies come beside koala's own, which come first; those of queues are made when they are wanted."""
    policies = load_policies([entry("GOOD"), entry("QUEUE", "queue.mine")])
    assert policies.placement["mine"].name == "mine"
    names = list(policies.placement)
    assert (names[0], names[-1]) == ("worst-fit", "mine")
    queues = load_queue_policy("mine", [entry("QUEUE", "queue.mine")])
    assert isinstance(queues, CheckedQueues)
    assert queues.make is Easy
    assert "queue.mine" in queues.described
    assert load_queue_policy("easy", [entry("QUEUE", "queue.mine")]) is None
    with pytest.raises(ConfigurationError, match="no policy 'yours'") as caught:
        load_queue_policy("yours", [entry("QUEUE", "queue.mine")])
    assert "metacluster, mine" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (entry("OLD"), f"this is interface {INTERFACE_VERSION}"),
        (entry("RENAMED"), "calls itself placement.other"),
        (entry("OWN_NAME", "placement.worst-fit"), "'worst-fit' is the name of koala's own"),
        (entry("SPACED", "placement.my own"), "a name is a letter"),
        (entry("OTHER_KIND"), "calls itself queue.mine"),
        (entry("NO_FACTORY"), "factory must be callable"),
        (entry("FAILING"), "cannot be made: ZeroDivisionError: boom"),
        (entry("NO_POLICY"), "makes a dict, no PlacementPolicy"),
        (entry("MISNAMED"), "calls itself 'worst-fit'"),
        (entry("NO_DEFINITION"), "expected a PolicyDefinition, found ABCMeta"),
        (entry("NOT_THERE"), "AttributeError"),
        (entry("GOOD", module="koala_no_such_module"), "ModuleNotFoundError"),
        (entry("GOOD", "mine"), "is of no kind"),
    ],
    ids=lambda value: f"{value.name} {value.value}" if isinstance(value, EntryPoint) else "",
)
def test_broken_policies_are_refused(broken: EntryPoint, complaint: str) -> None:
    with pytest.raises(PluginError) as caught:
        load_policies([broken])
    assert complaint in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == EXIT_CONFIGURATION


def test_a_queue_that_is_none_and_two_of_one_name_are_refused() -> None:
    with pytest.raises(PluginError, match="makes a tuple, no ClusterScheduler"):
        load_queue_policy("mine", [entry("NO_QUEUE", "queue.mine")])
    with pytest.raises(PluginError, match="'mine' is the name of another installed one"):
        load_definitions(PolicyKind.PLACEMENT, (), [entry("GOOD"), entry("GOOD")])


def test_the_distribution_at_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and version stand in the refusal; names are known without importing anything."""
    install(tmp_path, "[koala_adapter.policies]\nplacement.broken = koala_no_such_module:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed_entry_points.cache_clear()
    try:
        assert policy_names(PolicyKind.PLACEMENT) == ("broken",)
        assert policy_names(PolicyKind.QUEUE) == ()
        with pytest.raises(PluginError, match=r"koala-site-policies 1\.2 cannot be imported"):
            load_policies()
    finally:
        installed_entry_points.cache_clear()


# -- The example policies decide, wherever policies are named, and a journal that needs one is not read without it.


__all__ = ["example_policies"]

JOB = 'walltime = "1m"\nplacement = "{}"\n[[components]]\ncommand = ["true"]\nprocessors = 1\n'
MALLEABLE = """
kind = "malleable"
runner = "workers"
walltime = "1m"
[[components]]
command = ["true"]
minimum = 1
maximum = 9
sizes = "{}"
"""
TRACE = """\
; MaxProcs: 4
1 0 -1 10 4 -1 -1 4 10 -1 1 5 1 -1 -1 -1 -1 -1
2 1 -1 90 4 -1 -1 4 90 -1 1 5 1 -1 -1 -1 -1 -1
3 2 -1 5 4 -1 -1 4 5 -1 1 5 1 -1 -1 -1 -1 -1
"""


@pytest.mark.usefixtures("example_policies")
def test_placement() -> None:
    site = Site({"a": 4, "b": 8}, policies=load_policies())
    site.submit(job("1", 2, placement="first-listed"), job("2", 4, placement="first-listed"))
    assert (site.placed("1"), site.placed("2")) == ({"c0": ("a", 2)}, {"c0": ("b", 4)})


@pytest.mark.usefixtures("example_policies")
def test_malleability() -> None:
    site = MalleableSite({"a": 12}, policy="smallest-first", policies=load_policies())
    (first,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 9), initial=4)))
    assert first.processors == 1
    site.answer(first, 0)
    (second,) = of_kind(OfferProcessors, site.start(malleable("2", part(2, 9), initial=2)))
    assert (second.job_id, second.processors) == ("2", 1)


@pytest.mark.usefixtures("example_policies")
def test_sizes() -> None:
    """Nine of eleven processors make a square; what fails or is not installed is told, and harms nobody else."""
    rules = SizeRules(load_policies().sizes)
    assert rules.decide("square-grids", 4, 7, 1, 20).processors == 5
    assert rules.decide("square-grids", 9, -2, 1, 20).processors == 5


@pytest.mark.usefixtures("example_policies")
def test_sizes_in_a_job_file(tmp_path: Path) -> None:
    """A job file may name what is installed, and a service that has not got it refuses the job."""
    text = MALLEABLE.format("square-grids")
    made = load_job_text(text, directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0)
    assert made.components[0].sizes == "square-grids"
    policies = load_policies()
    check_policies(made, policies, SizeRules(policies.sizes))
    with pytest.raises(JobRefusedError, match="the service has no rule 'square-grids' for sizes") as refused:
        check_policies(made, OWN, OWN_SIZES)
    assert refused.value.hint == "restart it if the rule has been installed meanwhile"
    with pytest.raises(ConfigurationError, match='or of those installed, "square-grids"'):
        load_job_text(MALLEABLE.format("cubes"), directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0)


@pytest.mark.usefixtures("example_policies")
@pytest.mark.parametrize("as_default", [True, False])
def test_files_name_them(tmp_path: Path, *, as_default: bool) -> None:
    name = "first-listed"
    default = f'[scheduler]\nplacement = "{name}"\n' if as_default else ""
    site = load_site_text(one_cluster("") + default, PLUGINS)
    text = JOB.replace('placement = "{}"\n', "") if as_default else JOB.format(name)
    made = load_job_text(text, directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0, site=site)
    assert made.placement == name
    with pytest.raises(ConfigurationError, match='or "first-listed"; did you mean "first-listed"'):
        load_job_text(JOB.format("first-list"), directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0)


@pytest.mark.usefixtures("example_policies")
def test_queue_in_a_simulation(tmp_path: Path) -> None:
    """``koala simulate -p`` finds it; the short job goes before the long one that came first."""
    (tmp_path / "three.swf").write_text(TRACE)
    options = ["-p", "fcfs", "-p", "shortest-first", "--processes", "1", "--json"]
    result = CliRunner().invoke(koala, ["simulate", str(tmp_path / "three.swf"), *options])
    assert result.exit_code == 0, result.output
    waits = {one["policy"]: one["mean_wait"] for one in json.loads(result.stdout)}
    assert waits == {"fcfs": pytest.approx((0 + 9 + 98) / 3), "shortest-first": pytest.approx((0 + 14 + 8) / 3)}
    wrong = CliRunner().invoke(koala, ["simulate", str(tmp_path / "three.swf"), "-p", "shortest"])
    assert wrong.exit_code == 2
    assert "'metacluster', 'shortest-first'" in wrong.stderr


def lived(directory: Path, *, snapshot: bool, policies: Policies, own_malleability: bool = False) -> Site:
    """Return a site where a job waits, after leaving its journal in a directory."""
    policy = "smallest-first" if own_malleability else "egs-repeated"
    site = MalleableSite({"a": 4}, policy=policy, policies=policies)
    site.submit(job("1", 3, placement="worst-fit" if own_malleability else "first-listed"))
    with Journal(directory / "journal.sqlite") as journal:
        for event in site.events[:-1] if snapshot else site.events:
            number = journal.append(event)
        if snapshot:
            take_snapshot(journal, site.state, number)
    return site


@pytest.mark.usefixtures("example_policies")
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_journal_is_replayed_with_its_policies(tmp_path: Path, *, snapshot: bool) -> None:
    """With the policy all is as it was; without it the start is refused, and nothing is lost."""
    site = lived(tmp_path, snapshot=snapshot, policies=load_policies())
    config = load_site_text(one_cluster(""), PLUGINS)
    before = (tmp_path / "journal.sqlite").read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"job 1 is placed by the policy 'first-listed'.*not installed"):
            Service(config, {}, tmp_path, make_report=lambda _, id_: id_)
        with pytest.raises(ConfigurationError, match="first-listed"):
            read_record(tmp_path, OWN)
    assert (tmp_path / "journal.sqlite").read_bytes() == before
    assert read_record(tmp_path, load_policies()).scheduler.state == site.state


@pytest.mark.usefixtures("example_policies")
def test_a_malleability_policy_that_is_gone(tmp_path: Path) -> None:
    lived(tmp_path, snapshot=False, policies=load_policies(), own_malleability=True)
    with pytest.raises(ConfigurationError, match="no malleability policy 'smallest-first'"):
        read_record(tmp_path, OWN)
    assert ClusterName("a") in read_record(tmp_path, load_policies()).scheduler.state.clusters


# -- Simulations and experiments go by a site's own policies, too; one that cannot be followed ends them.


def placed_by(policy: str, *submitted: float) -> list[Any]:
    return [replace(one, placement=policy) for one in jobs(*submitted, malleable=False)]


@pytest.mark.usefixtures("example_policies")
def test_placement_on_counts() -> None:
    where, workload = platform(4, 16), placed_by("first-listed", 0.0, 0.0, 0.0)
    outcome = simulate(where, workload, Settings(policies=load_policies()))
    assert sorted(one.clusters for one in outcome.jobs) == [("c0",), ("c0",), ("c1",)]
    without = simulate(where, workload, Settings())
    assert all("no placement policy first-listed" in why for _, why in without.refused)


@pytest.mark.usefixtures("example_policies")
def test_malleability_on_counts() -> None:
    settings = Settings(malleability="smallest-first", policies=load_policies())
    outcome = simulate(platform(12), jobs(0.0, 0.0), settings)
    assert [one.maximum_processors for one in outcome.jobs] == [6, 6]
    with pytest.raises(SimulationError, match="no malleability policy smallest-first") as refused:
        Settings(malleability="smallest-first")
    assert "folding" in (refused.value.hint or "")


@pytest.mark.usefixtures("example_policies")
def test_a_policy_at_fault_ends_a_simulation() -> None:
    bad = Policies(
        placement={**OWN.placement, "mine": CheckedPlacement(Scripted(), "policy 'placement.mine'")},
        malleability={**OWN.malleability, "mine": CheckedMalleability(Told(), "policy 'malleability.mine'")},
    )
    with pytest.raises(PolicyAnswerError, match="it is None, not Placed"):
        simulate(platform(4), placed_by("mine", 0.0), Settings(policies=bad))
    told = Told()
    told.answer = lambda running: [(one, 99) for one in running]
    bad = Policies(malleability={"mine": CheckedMalleability(told, "policy 'malleability.mine'")})
    with pytest.raises(PolicyAnswerError, match="gives out 99 processors, there are 2"):
        simulate(platform(4), jobs(0.0), Settings(malleability="mine", policies=bad))


@pytest.mark.usefixtures("example_policies")
def test_an_experiment_compares_them() -> None:
    """Beside those of the paper, on the same jobs, in as many processes as one likes."""
    experiment = load_experiment("placement")
    given = {"jobs": "8", "also": "first-listed, worst-fit"}
    result = experiment.run(experiment.options(seeds=1, processes=2, settings=given, policies=load_policies()))
    assert [row[0] for row in result.tables[0].rows] == [*placement.POLICIES, "first-listed"]
    assert all(list(figure.categories) == ["WF", "CF", "CM", "FCM", "first-listed"] for figure in result.figures)


@pytest.mark.usefixtures("example_policies")
def test_the_command_names_what_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    command = ["experiment", "run", "placement", "--out", str(tmp_path), "--set", "also=smallest-first"]
    wrong = CliRunner().invoke(koala, command)
    assert wrong.exit_code == EXIT_CONFIGURATION
    assert "also: there is no policy 'smallest-first' of that kind" in wrong.stderr
    assert "waiting-history, first-listed" in wrong.stderr


@pytest.mark.usefixtures("example_policies")
def test_malleability_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a line for each workload, behind the baselines; a run by it is one by it."""
    sample, other = (
        run_variant(
            Variant(policy, "W'm"),
            0,
            approach=Approach.PWA,
            conditions={AS_SET: Conditions()},
            policies=load_policies(),
        )
        for policy in ("smallest-first", "fpsma")
    )
    assert sample.messages > other.messages
    experiment = load_experiment("koala-pwa")
    options = experiment.options(seeds=1, settings={"also": "smallest-first"}, policies=load_policies())
    monkeypatch.setattr(simulations_malleable, "run_variant", lambda *_, **_given: sample)
    named = [
        row[0]
        for row in simulations_malleable.tables(simulations_malleable.Records(options, Approach.PWA, ["W'm"]))[0].rows
    ]
    assert named == ["FPSMA", "EGS", "EGS, repeated", "Equipartition", "Folding", "smallest-first", "rigid"]
