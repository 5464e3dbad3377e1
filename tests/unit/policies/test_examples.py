# SPDX-License-Identifier: Apache-2.0
"""The example policies decide, wherever policies are named, and a journal that needs one is not read without it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from koala_adapter.api.offline import read_record
from koala_adapter.cli.koala import koala
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.config.sitefile import load_site_text
from koala_adapter.errors import ConfigurationError, JobRefusedError
from koala_adapter.model import ClusterName, JobId
from koala_adapter.policies.loading import load_policies
from koala_adapter.scheduler.actions import OfferProcessors
from koala_adapter.scheduler.knownpolicies import OWN
from koala_adapter.service.journal import Journal
from koala_adapter.service.service import Service, check_policies
from koala_adapter.sizes import OWN_SIZES, SizeRules
from tests.unit.config.test_config import PLUGINS, one_cluster
from tests.unit.policies.installed import example_policies
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import Site, job, of_kind
from tests.unit.service.taking_snapshots import take_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.scheduler.knownpolicies import Policies

__all__ = ["example_policies"]
pytestmark = pytest.mark.usefixtures("example_policies")

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


def test_placement() -> None:
    """The first cluster of the site file gets the job, not the one with the most idle processors."""
    site = Site({"a": 4, "b": 8}, policies=load_policies())
    site.submit(job("1", 2, placement="first-listed"))
    site.submit(job("2", 4, placement="first-listed"))
    assert (site.placed("1"), site.placed("2")) == ({"c0": ("a", 2)}, {"c0": ("b", 4)})


def test_malleability() -> None:
    """The smallest job is offered one processor at a time."""
    site = MalleableSite({"a": 12}, policy="smallest-first", policies=load_policies())
    (first,) = of_kind(OfferProcessors, site.start(malleable("1", part(2, 9), initial=4)))
    assert first.processors == 1
    site.answer(first, 0)
    (second,) = of_kind(OfferProcessors, site.start(malleable("2", part(2, 9), initial=2)))
    assert (second.job_id, second.processors) == ("2", 1)


def test_sizes() -> None:
    """Nine of eleven processors make a square; what fails or is not installed is told, and harms nobody else."""
    rules = SizeRules(load_policies().sizes)
    assert rules.decide("square-grids", 4, 7, 1, 20).processors == 5
    assert rules.decide("square-grids", 9, -2, 1, 20).processors == 5


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


@pytest.mark.parametrize("as_default", [True, False])
def test_files_name_them(tmp_path: Path, *, as_default: bool) -> None:
    """Job files and the site's default find installed policies; what is not there is refused with all that are."""
    name = "first-listed"
    default = f'[scheduler]\nplacement = "{name}"\n' if as_default else ""
    site = load_site_text(one_cluster("") + default, PLUGINS)
    text = JOB.replace('placement = "{}"\n', "") if as_default else JOB.format(name)
    made = load_job_text(text, directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0, site=site)
    assert made.placement == name
    with pytest.raises(ConfigurationError, match='or "first-listed"; did you mean "first-listed"'):
        load_job_text(JOB.format("first-list"), directory=tmp_path, job_id=JobId("1"), user="u", submitted_at=0.0)


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


def test_a_malleability_policy_that_is_gone(tmp_path: Path) -> None:
    """A journal that was decided with one is refused without it, too."""
    lived(tmp_path, snapshot=False, policies=load_policies(), own_malleability=True)
    with pytest.raises(ConfigurationError, match="no malleability policy 'smallest-first'"):
        read_record(tmp_path, OWN)
    assert ClusterName("a") in read_record(tmp_path, load_policies()).scheduler.state.clusters
