# SPDX-License-Identifier: Apache-2.0
"""MPI jobs on clusters of several sites, whose nodes may not be able to connect to each other."""

from __future__ import annotations

from dataclasses import replace

from koala_adapter.api.reporting import plan_report
from koala_adapter.model import ClusterName, Job, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import LaunchJob
from koala_adapter.scheduler.claiming.connections import PATIENCE, groups
from koala_adapter.scheduler.clusters import CONNECTIONS_LAST
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, offers
from tests.unit.scheduler.scheduler_site import A, B, C, Site, component, ends, job, of_kind, submissions


def apart(processors: dict[str, int], parameters: Parameters | None = None) -> Site:
    """Return a site whose clusters are all at different sites."""
    clusters = (ClusterParameters(name=ClusterName(name), site=f"at {name}") for name in processors)
    return Site(processors, parameters, *clusters)


def mpi(id_: str, first: int, second: int) -> Job:
    return job(id_, component("x", first, mpi=True), component("y", second, mpi=True))


def see(site: Site, one: ClusterName = A, other: ClusterName = B, *, connects: bool) -> None:
    for cluster, its in ((one, other), (other, one)):
        site.post(ev.NodesConnect(time=site.now, cluster=cluster, other=its, connects=connects))


def test_it_is_not_spread_over_clusters_whose_nodes_cannot_connect() -> None:
    """It goes where all its processes can connect, or waits and says why. What was seen is forgotten after a day."""
    site = apart({"a": 4, "b": 4})
    site.post(ev.NodesConnect(time=site.now, cluster=A, other=B, connects=False))
    assert submissions(site.submit(mpi("1", 4, 2))) == {}
    assert "nodes of these clusters cannot: a and b (it needs room on one cluster" in site.explained("1")
    site.cancel("1")
    assert submissions(site.submit(job("2", component("x", 4), component("y", 2)))).keys() == {"a", "b"}
    site = apart({"a": 4, "b": 4, "c": 3})
    see(site, connects=False)
    see(site, B, C, connects=True)
    assert "c" in submissions(site.submit(mpi("3", 4, 3)))
    assert site.state.connects(A, B, site.now + CONNECTIONS_LAST) is False
    assert site.state.connects(A, B, site.now + CONNECTIONS_LAST + 1) is None
    assert site.state.connects(C, A, site.now) is None


def test_clusters_of_one_site_connect() -> None:
    site = Site({"a": 4, "b": 4})
    assert submissions(site.submit(mpi("1", 4, 2))).keys() == {"a", "b"}
    site.take_all()
    site.hold_all("1")
    assert site.record("1").state is JobState.LAUNCHING


def test_what_is_known_to_connect_goes_before_what_is_not() -> None:
    """One cluster, too; and an unknown pair before a wait in a queue."""
    site = apart({"a": 4, "b": 4, "c": 4})
    see(site, B, C, connects=True)
    assert submissions(site.submit(mpi("1", 3, 3))).keys() == {"b", "c"}
    site = apart({"a": 8, "b": 4})
    site.submit(mpi("1", 4, 3))
    assert {one.cluster for one in site.record("1").claims} == {A}
    site = apart({"a": 8, "b": 4})
    site.poll("a", 8, idle=4)
    plan = plan_report(site.scheduler, mpi("1", 4, 3), now=site.now)
    assert {one.cluster for one in plan.components} == {A, B}
    assert plan.untried.startswith("whether nodes of a and b connect")


def test_it_starts_when_its_agents_have_connected() -> None:
    site = apart({"a": 4, "b": 4})
    site.submit(mpi("1", 4, 3))
    site.take_all()
    site.hold_all("1")
    assert site.record("1").state is JobState.CLAIMING
    assert "waits for word whether nodes of a and b connect" in site.explained("1")
    see(site, connects=True)
    (launch,) = of_kind(LaunchJob, site.actions)
    assert len(launch.ranks) == 7


def test_it_is_placed_again_when_they_cannot_connect() -> None:
    """What it has is given back; it is neither failed nor started, and goes to the cluster that has become free."""
    site = apart({"a": 4, "b": 4, "c": 8})
    site.poll("c", 8, idle=0)
    site.submit(mpi("1", 4, 3))
    site.take_all()
    site.hold_all("1")
    site.poll("c", 8)
    before = len(site.actions)
    site.post(ev.NodesConnect(time=site.now, cluster=A, other=B, connects=False))
    assert not of_kind(LaunchJob, site.actions)
    assert len(ends(site.actions[before:])) == 7
    site.pass_time(1.0)
    record = site.record("1")
    assert (record.state, record.tries) == (JobState.CLAIMING, 1)
    assert {one.cluster for one in record.claims} == {C}
    site.take_all()
    site.hold_all("1")
    assert record.state is JobState.LAUNCHING


def test_it_waits_where_no_placement_remains() -> None:
    site = apart({"a": 4, "b": 4}, Parameters(maximum_tries=3))
    site.submit(mpi("1", 4, 3))
    site.take_all()
    site.hold_all("1")
    see(site, connects=False)
    site.end_ending()
    site.pass_time(1.0)
    assert "cannot: a and b" in site.explained("1")
    assert "cannot: a and b" in plan_report(site.scheduler, mpi("2", 4, 3), now=site.now).reason
    site.pass_time(3 * site.parameters.scan_interval)
    outcome = site.outcome("1")
    assert outcome.state is JobState.NOT_PLACED
    assert "cannot: a and b" in outcome.detail


def test_agents_that_do_not_tell_are_not_waited_for_any_longer() -> None:
    site = apart({"a": 4, "b": 4})
    site.submit(mpi("1", 4, 3))
    site.take_all()
    site.hold_all("1")
    site.pass_time(PATIENCE - 1)
    assert not of_kind(LaunchJob, site.actions)
    site.pass_time(1.0)
    assert len(of_kind(LaunchJob, site.actions)) == 1


def test_it_grows_only_where_its_processes_can_connect() -> None:
    """Nothing is offered to a running job on clusters in doubt."""
    clusters = tuple(ClusterParameters(name=name, site=f"at {name}") for name in (A, B))
    site = MalleableSite({"a": 4, "b": 4}, clusters=clusters)
    members = malleable("1", replace(component("m", 2, 8, mpi=True), flexible=True))
    assert offers(site.start(replace(members, runner=RunnerName.ADAPTIVE))) == [("1", 2)]
    refused = {claim.cluster: claim.growth_refused for claim in site.record("1").claims}
    assert refused == {A: "", B: "its nodes are not known to connect to those where its processes run"}


def test_what_was_seen_later_counts() -> None:
    site = apart({"a": 4, "b": 4})
    site.post(ev.NodesConnect(time=site.now, cluster=A, other=B, connects=True, age=10))
    site.post(ev.NodesConnect(time=site.now, cluster=A, other=B, connects=False, age=20))
    assert site.state.connects(A, B, site.now) is True
    assert site.state.connects(A, B, site.now + CONNECTIONS_LAST - 9) is None


def test_it_gets_no_processors_of_others_on_clusters_in_doubt() -> None:
    """Of a job that has ended, a job that waits gets what it held, if it can start with that."""
    for mpi_job, expected in ((False, JobState.LAUNCHING), (True, JobState.WAITING)):
        site = apart({"a": 1, "b": 1})
        site.start(job("1", component("x", 1), component("y", 1)))
        site.submit(job("2", component("x", 1, mpi=mpi_job), component("y", 1, mpi=mpi_job), walltime=60))
        site.complete("1")
        assert site.record("2").state is expected


def test_groups_of_clusters_that_connect() -> None:
    a, b, c, d = map(ClusterName, "abcd")
    barred = {frozenset((a, b)), frozenset((c, d))}
    assert groups([a, b, c, d], barred) == [[a, c], [b, c], [d, a]]
    assert groups([a, b, c, d], set()) == [[a, b, c, d]]
