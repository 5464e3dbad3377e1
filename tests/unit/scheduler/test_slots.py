# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks need more than a processor each: placement, claims and changes of size in slots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.errors import JobRefusedError
from koala_adapter.model import ClusterName, Component, EndReason, Job, JobKind
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.slots import PLAIN, Slot, SlotCount
from tests.faults.world import World
from tests.unit.scheduler.scheduler_site import Site, component, job, recount, submissions

A, B = ClusterName("a"), ClusterName("b")
TWO = Slot(threads=2)
GPU = Slot(gpus=1, gpu_kind="a100")


def slotted(slot: Slot, minimum: int, maximum: int | None = None, *, cluster: str | None = None) -> Component:
    return replace(component("c", minimum, maximum, cluster=cluster), slot=slot)


def counted(site: Site, cluster: str, slot: Slot, *, most: int, idle: int, processors: int, lack: str = "") -> None:
    count = SlotCount(slot=slot, most=most, idle=idle, processors=processors, lack=lack)
    site.post(ev.SlotsCounted(time=site.now, cluster=ClusterName(cluster), slots=(count,)))


def test_idle_processors_on_too_small_nodes_hold_no_slot() -> None:
    """Three nodes with two idle processors each start no slot of four; another cluster with fewer processors does."""
    site = Site({"a": 12, "b": 4})
    four = Slot(threads=4)
    site.poll("a", 12, idle=6)
    counted(site, "a", four, most=3, idle=0, processors=4)
    counted(site, "b", four, most=1, idle=1, processors=4)
    assert submissions(site.submit(job("1", slotted(four, 1)))) == {"b": 1}
    assert submissions(site.submit(job("2", slotted(four, 1)))) == {"a": 1}
    assert site.state.clusters[A].managed == site.state.clusters[A].processors_queued == 4
    assert explain(site.state, None, site.record("2"), site.now).startswith("The job holds 0 of 1 slot (0 of 1 on a)")
    assert site.state.clusters[A].queued == 1


def test_what_a_cluster_never_has_is_refused_with_the_nearest() -> None:
    site = Site({"a": 8})
    counted(
        site,
        "a",
        GPU,
        most=0,
        idle=0,
        processors=1,
        lack="no node is large enough: n1, the nearest, does not have 1 GPU",
    )
    site.submit(job("1", slotted(GPU, 1)))
    outcome = site.outcome("1")
    assert outcome.state is JobState.REFUSED
    assert "a: no node is large enough: n1, the nearest, does not have 1 GPU" in outcome.detail


def test_the_cluster_that_has_what_is_needed_is_chosen() -> None:
    site = Site({"a": 100, "b": 4})
    counted(site, "a", GPU, most=0, idle=0, processors=1, lack="none")
    counted(site, "b", GPU, most=2, idle=2, processors=1)
    assert submissions(site.submit(job("1", slotted(GPU, 2)))) == {"b": 2}
    site.submit(job("2", slotted(GPU, 3)))
    assert "needs 3 slots of 1 processor, 1 GPU (a100), at most 2 can be used there" in site.outcome("2").detail


def test_what_the_plugin_cannot_ask_for_is_refused_by_name() -> None:
    parameters = ClusterParameters(name=A, slot_keys=("threads",))
    site = Site({"a": 8}, None, parameters)
    site.submit(job("1", slotted(GPU, 1)))
    assert "cannot be asked for gpus or gpu_kind by what the site file says" in site.outcome("1").detail
    counted(site, "a", TWO, most=4, idle=4, processors=2)
    assert submissions(site.submit(job("2", slotted(TWO, 1)))) == {"a": 1}


@pytest.mark.parametrize("keys", [("gpus", "gpu_kind"), None], ids=["answered", "not answered yet"])
def test_a_cluster_is_looked_at_for_slots_before_they_are_placed_there(keys: tuple[str, ...] | None) -> None:
    """After a restart it may not have been: nothing is refused or submitted for that, and the next poll tells."""
    site = Site({"a": 8}, None, ClusterParameters(name=A, slot_keys=keys, counts_slots=True))
    assert submissions(site.submit(job("1", slotted(GPU, 2)))) == {}
    assert site.record("1").state is JobState.WAITING
    assert "a was not looked at for such slots yet" in explain(site.state, 1, site.record("1"), site.now)
    assert site.scheduler.shapes_on(A) == (GPU,)
    count = SlotCount(slot=GPU, most=2, idle=2)
    polled = ev.ClusterPolled(time=site.now, cluster=A, processors=8, idle=8, ours=0, slots=(count,))
    assert submissions(site.post(polled)) == {"a": 2}


def test_what_the_first_look_does_not_find_is_refused() -> None:
    """The counts of later looks refuse nothing: one reading may err."""
    site = Site({"a": 8}, None, ClusterParameters(name=A, slot_keys=("gpus", "gpu_kind"), counts_slots=True))
    site.submit(job("1", slotted(GPU, 1)))
    none = SlotCount(slot=GPU, most=0, idle=0, lack="no node is large enough")
    polled = ev.ClusterPolled(time=site.now, cluster=A, processors=8, idle=8, ours=0, slots=(none,))
    site.post(polled)
    assert site.outcome("1").state is JobState.REFUSED
    counted(site, "a", GPU, most=1, idle=0, processors=8)
    site.submit(job("2", 8))
    site.submit(job("3", slotted(GPU, 1)))
    site.post(polled)
    assert site.record("3").state is JobState.WAITING


def test_components_with_other_slots_share_a_cluster() -> None:
    """What the first takes is not there for the second."""
    site = Site({"a": 6, "b": 2})
    large, small = slotted(TWO, 2, cluster="a"), replace(component("d", 2))
    site.submit(job("1", large, small))
    assert site.placed("1") == {"c": ("a", 2), "d": ("a", 2)}
    site.submit(job("2", replace(large, cluster=None, name="e")))
    site.run("1")
    assert site.record("2").state is JobState.WAITING
    said = explain(site.state, 1, site.record("2"), site.now)
    assert "2 slots of 2 processors on one cluster" in said
    assert "a has no room (our jobs have all 6 that we may use)" in said


def test_the_threshold_is_left_in_processors() -> None:
    site = Site({"a": 8}, None, ClusterParameters(name=A, threshold=3))
    site.submit(job("1", slotted(TWO, 2)))
    site.submit(job("2", slotted(TWO, 3)))
    assert site.placed("1") == {"c": ("a", 2)}
    assert "at most 2 can be used there" in site.outcome("2").detail


def test_a_placeholder_is_not_handed_to_a_job_that_needs_another_slot() -> None:
    site = Site({"a": 4})
    site.submit(job("1", slotted(TWO, 2)))
    site.submit(job("plain", component("p", 2)))
    site.submit(job("2", slotted(TWO, 2)))
    site.run("1")
    site.poll("a", 4, idle=0, ours=4)
    site.complete("1")
    assert site.record("2").state is JobState.LAUNCHING
    assert site.record("plain").state is JobState.WAITING


def test_ranks_that_share_a_slot_are_numbered_within_it() -> None:
    """Two slots of three ranks are two placeholders; the job is over when all six ranks have ended."""
    site = Site({"a": 16})
    site.submit(job("1", slotted(Slot(threads=6, ranks=3), 2), 1))
    site.run("1")
    first, second, third = (one.id for one in site.claimed("1"))
    ranks = site.record("1").ranks
    assert [(one.component_rank, one.placeholder) for one in ranks[:6]] == [
        *((number, first) for number in range(3)),
        *((number, second) for number in range(3, 6)),
    ]
    assert [(one.rank, one.component_rank, one.placeholder) for one in ranks[6:]] == [(6, 0, third)]
    assert "running for 0 s on 3 slots: a (3)" in site.explained()
    for rank in range(6):
        site.rank_ends("1", rank)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 6)
    assert site.outcome("1").state is JobState.COMPLETED


def test_the_loss_of_a_slot_is_the_loss_of_its_ranks_that_run() -> None:
    """One whose ranks have all ended well may go."""
    site = Site({"a": 16})
    site.submit(job("1", slotted(Slot(threads=2, ranks=2), 2)))
    site.run("1")
    first, second = (one.id for one in site.claimed("1"))
    site.rank_ends("1", 0)
    site.rank_ends("1", 2)
    site.rank_ends("1", 3)
    site.ended(second, EndReason.NODE_LOST)
    assert site.record("1").state is JobState.RUNNING
    site.ended(first, EndReason.NODE_LOST)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.detail[:6]) == (JobState.LOST, "rank 1")


def test_another_queue_has_processors_of_its_own() -> None:
    """The processors that are counted are those of the queue in the site file."""
    site = Site({"a": 2})
    site.submit(job("1", 2))
    slot = Slot(queue="long")
    count = SlotCount(slot=slot, most=10, idle=4, processors=1, other_queue=True)
    site.post(ev.SlotsCounted(time=site.now, cluster=A, slots=(count,)))
    assert submissions(site.submit(job("2", slotted(slot, 4)))) == {"a": 4}


@pytest.mark.parametrize("policy", ["egs-repeated", "fpsma", "equipartition"])
def test_a_malleable_job_grows_and_shrinks_by_slots(policy: str) -> None:
    """Seven idle processors are three further slots of two; it is shrunk by as many as a waiting job needs."""
    site = Site({"a": 9}, Parameters(malleability_policy=policy))
    one = replace(job("1", slotted(TWO, 1, 8)), kind=JobKind.MALLEABLE)
    site.submit(one)
    site.run("1")
    site.poll("a", 9, idle=7, ours=2)
    (change,) = site.record("1").changes.values()
    assert change.processors == 3
    assert site.state.clusters[A].offered == 6
    site.post(ev.OfferAnswered(time=site.now, job_id=one.id, number=change.number, accepted=3))
    assert site.state.clusters[A].gathering == 6
    site.take_all()
    for id_ in change.stubs:
        site.hold(id_)
    for rank in site.record("1").ranks:
        site.post(ev.RankStarted(time=site.now, job_id=one.id, rank=rank.rank))
    assert site.record("1").size("c") == 4
    site.poll("a", 9, idle=1, ours=8)
    site.submit(job("2", 4))
    (change,) = site.record("1").changes.values()
    assert change.processors == -2


@pytest.mark.parametrize(("seed", "threads"), [(0, 2), (1, 3), (2, 3)])
def test_slots_on_clusters_that_are_larger_by_as_much(seed: int, threads: int) -> None:
    """Where everything is larger by the same factor, the same is decided, through all that a schedule of faults has."""
    world = World(seed)
    world.run()
    plain, larger = Scheduler(), Scheduler()
    for event in world.service.journal:
        if isinstance(event, ev.SlotsCounted):
            continue
        event = _without_slots(event)  # noqa: PLW2901 - the same, of a job without slots
        expected = _result(plain, event)
        assert _result(larger, _scaled(event, threads)) == expected
    recount(larger.state)


def _result(scheduler: Scheduler, event: ev.Event) -> str:
    try:
        actions = scheduler.handle(event)
        return repr([replace(one, slot=PLAIN) if isinstance(one, act.SubmitPlaceholders) else one for one in actions])
    except JobRefusedError as error:  # it was submitted again after a defect
        return str(error)


def _without_slots(event: ev.Event) -> ev.Event:
    if isinstance(event, ev.JobSubmitted):
        return replace(event, job=_with_slot(event.job, Slot()))
    return replace(event, slots=()) if isinstance(event, ev.ClusterPolled) else event


def _with_slot(one: Job, slot: Slot) -> Job:
    return replace(one, components=tuple(replace(part, slot=slot) for part in one.components))


def _scaled(event: ev.Event, factor: int) -> ev.Event:
    match event:
        case ev.JobSubmitted():
            return replace(event, job=_with_slot(event.job, Slot(threads=factor)))
        case ev.ClusterPolled():
            return replace(
                event, processors=event.processors * factor, idle=event.idle * factor, ours=event.ours * factor
            )
        case ev.Configured():
            clusters = tuple(replace(one, threshold=one.threshold * factor) for one in event.clusters)
            return replace(event, clusters=clusters)
    return event
