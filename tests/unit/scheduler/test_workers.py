# SPDX-License-Identifier: Apache-2.0
"""Jobs of a head and workers through the scheduler: workers come, go, fail and are lost; the head decides the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.api.reporting import former_sizes
from koala_adapter.errors import EXIT_LOST
from koala_adapter.model import ClusterName, Component, EndReason, Job, JobId, RunnerName, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import (
    EndPlaceholders,
    OfferProcessors,
    RequestProcessors,
    SubmitPlaceholders,
    TakeProcessors,
)
from koala_adapter.scheduler.parameters import Approach
from tests.unit.scheduler.malleable_site import MalleableSite, granted, malleable, offers, part, requests
from tests.unit.scheduler.scheduler_site import WELL, component, job, of_kind

FAILED = TaskEnd(reason=EndReason.EXITED, exit_code=3)
TERMINATED = TaskEnd(reason=EndReason.SIGNALLED, signal=15)


def workers(id_: str, *components: Component, walltime: int = 600) -> Job:
    return replace(malleable(id_, *components, walltime=walltime), runner=RunnerName.WORKERS)


def headed(minimum: int = 1, maximum: int = 4, *, flexible: bool = False) -> Job:
    """Return a job of a head on cluster a and workers: on cluster a, or (``flexible``) on all clusters."""
    members = component("m", minimum, maximum) if flexible else part(minimum, maximum)
    return workers("1", component("head", 1, cluster="a"), replace(members, flexible=flexible))


def test_the_head_keeps_its_size() -> None:
    site = MalleableSite({"a": 6}, policy="egs")
    actions = site.start(headed())
    (offer,) = of_kind(OfferProcessors, actions)
    assert (offer.component, offer.processors) == ("m", 4)
    (taken,) = of_kind(TakeProcessors, [*site.answer(offer), *site.hold_stubs()])
    site.take(taken)
    assert site.sizes("1") == [1, 4]
    change = site.record("1").size_changes[-1]
    assert (change.before, change.after, change.reason) == (1, 4, "processors are free")


@pytest.mark.parametrize(
    ("how", "state", "code"),
    [(WELL, JobState.COMPLETED, 0), (FAILED, JobState.FAILED, 3), (None, JobState.LOST, EXIT_LOST)],
    ids=["well", "badly", "lost"],
)
def test_the_end_of_the_head_is_the_end_of_the_job(how: TaskEnd | None, state: JobState, code: int) -> None:
    """Workers that still run then are ended with their placeholders."""
    site = MalleableSite({"a": 3}, Approach.NONE)
    site.start(headed(2, 3))
    if how is None:
        site.ended(site.record("1").ranks[0].placeholder, EndReason.NODE_LOST)
    else:
        site.rank_ends("1", 0, how)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.exit_code) == (state, code)
    assert outcome.rank == (0 if how is FAILED else None)
    ended = sum(len(one.placeholders) for one in of_kind(EndPlaceholders, site.actions))
    assert ended == (2 if how is None else 3)


def test_an_asked_worker_may_end_in_any_way() -> None:
    """A worker that is killed by the signal that asked it is no failure; its processor goes back to the LRM."""
    site = MalleableSite({"a": 4})
    site.start(headed(1, 3))
    for offer in of_kind(OfferProcessors, list(site.actions)):
        site.grow_by(offer)
    assert site.sizes("1") == [1, 3]
    site.poll("a", 4, idle=0, ours=4)
    (asked,) = of_kind(RequestProcessors, site.submit(job("2", component("x", 2, cluster="a"))))
    site.answer(asked)
    before = len(site.actions)
    site.rank_ends("1", 3, TERMINATED)
    site.rank_ends("1", 2, TERMINATED)
    record = site.record("1")
    assert site.sizes("1") == [1, 1]
    assert (record.worker_failures, record.growth_rests, record.last_trouble) == (0, False, "")
    assert sum(len(one.placeholders) for one in of_kind(EndPlaceholders, site.actions[before:])) == 2
    change = record.size_changes[-1]
    assert (change.before, change.after, change.reason) == (3, 1, "room for job 2")


@pytest.mark.parametrize("how", [WELL, FAILED])
def test_workers_that_end_by_themselves_are_not_replaced_at_once(how: TaskEnd) -> None:
    """The job is smaller, even below its minimum, and is offered processors again after a pause."""
    site = MalleableSite({"a": 4})
    site.start(headed(2, 3))
    site.answer(of_kind(OfferProcessors, site.actions)[0], 0)
    before = len(site.actions)
    site.rank_ends("1", 1, how)
    site.end_ending()
    site.poll("a", 4, idle=2, ours=2)
    record = site.record("1")
    assert (record.state, site.sizes("1"), record.growth_rests) == (JobState.RUNNING, [1, 1], True)
    ((_, _, why),) = granted(site.ask("1", 1))
    assert why == "workers have ended by themselves, and no more are started for a while"
    assert offers(site.actions[before:]) == []
    site.pass_time(11)
    site.poll("a", 4, idle=2, ours=2)
    assert offers(site.actions[before:]) == [("1", 2)]


@pytest.mark.parametrize(
    ("processors", "one", "pause"),
    [(6, headed(5, 6), 40), (12, replace(malleable("1", part(9, 10)), runner=RunnerName.SWEEP), 60)],
    ids=["workers", "sweep"],
)
def test_pauses_grow_with_each_failure(processors: int, one: Job, pause: float) -> None:
    """A sweep rests for a minute at most: launchers that failed keep its processors from no others for longer."""
    site = MalleableSite({"a": processors}, Approach.NONE)
    site.start(one)
    failing = range(8) if one.runner is RunnerName.SWEEP else range(1, 4)
    for rank in failing:
        site.rank_ends("1", rank, FAILED)
    due = site.record("1").timers
    assert site.record("1").worker_failures == len(failing)
    assert max(timer.at for kind, timer in due.items() if kind == "workers") == pytest.approx(site.now + pause)


def test_a_sweep_of_one_processor_gets_another_launcher() -> None:
    """It is no head, which would end the job: the processor that it may have is taken again."""
    site = MalleableSite({"a": 1})
    site.start(replace(malleable("1", part(1, 1)), runner=RunnerName.SWEEP))
    site.rank_ends("1", 0, FAILED)
    site.end_ending()
    assert (site.record("1").state, site.sizes("1")) == (JobState.RUNNING, [0])
    before = len(site.actions)
    site.pass_time(11)
    site.poll("a", 1, idle=1, ours=0)
    (offer,) = of_kind(OfferProcessors, site.actions[before:])
    (taken,) = of_kind(TakeProcessors, [*site.answer(offer), *site.hold_stubs()])
    site.take(taken)
    assert site.sizes("1") == [1]


def test_the_last_worker_that_fails_ends_the_job_unless_the_head_ends_first() -> None:
    """When the head ends well within the patience that is why; otherwise the job has failed, and says with what."""
    site = MalleableSite({"a": 2}, Approach.NONE)
    site.start(headed(1, 3))
    site.rank_ends("1", 1, FAILED)
    assert site.record("1").state is JobState.RUNNING
    copy = MalleableSite({"a": 2}, Approach.NONE)
    copy.start(headed(1, 3))
    copy.rank_ends("1", 1, FAILED)
    copy.rank_ends("1", 0)
    assert copy.record("1").state is JobState.COMPLETED
    site.pass_time(11)
    outcome = site.outcome("1")
    assert (site.record("1").state, outcome.exit_code) == (JobState.FAILED, 3)
    assert outcome.detail == "no worker is left; worker 1 (component 'm') exited with status 3"


@pytest.mark.parametrize("failed_before", [False, True])
def test_workers_that_end_as_they_were_asked_to_leave_the_head_its_time(*, failed_before: bool) -> None:
    """Near the walltime, a worker that dies of the signal it was sent has not failed; nor is one that had missed."""
    site = MalleableSite({"a": 3}, Approach.NONE)
    site.start(replace(headed(2, 3), warn_before=60))
    left = site.record("1").job.walltime - 59
    site.pass_time(left - 10 if failed_before else left)
    site.rank_ends("1", 1, FAILED if failed_before else TERMINATED)
    site.pass_time(10)
    site.rank_ends("1", 2, TERMINATED)
    site.pass_time(40)
    assert site.record("1").state is JobState.RUNNING
    assert "signal" not in site.record("1").last_trouble
    site.rank_ends("1", 0)
    assert site.record("1").state is JobState.COMPLETED


def test_without_a_head_the_last_worker_ends_the_job() -> None:
    site = MalleableSite({"a": 2}, Approach.NONE)
    site.start(workers("1", part(2, 3)))
    site.rank_ends("1", 0, FAILED)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 1)
    assert site.record("1").state is JobState.COMPLETED


@pytest.mark.parametrize("launched", [False, True])
def test_a_lost_placeholder_costs_a_worker_only(*, launched: bool) -> None:
    """Also while the job is still being launched; the loss is told, and processors are offered again at once."""
    site = MalleableSite({"a": 4}, Approach.NONE)
    if launched:
        site.start(headed(2, 3))
    else:
        site.queue(headed(2, 3))
        site.hold_all("1")
        for rank in (0, 1):
            site.post(ev.RankStarted(time=site.now, job_id=JobId("1"), rank=rank))
    lost = site.record("1").ranks[2].placeholder
    site.ended(lost, EndReason.NODE_LOST)
    record = site.record("1")
    assert (record.state, site.sizes("1"), record.growth_rests) == (JobState.RUNNING, [1, 1], False)
    assert "worker 2 on a was lost (node_lost)" in record.last_trouble.replace(" lost)", "_lost)")
    site.rank_ends("1", 0)
    assert site.record("1").state is JobState.COMPLETED


@pytest.mark.parametrize(("approach", "state"), [(Approach.NONE, JobState.LOST), (Approach.PRA, JobState.RUNNING)])
def test_without_a_head_the_loss_of_the_last_worker_is_the_end_unless_others_can_come(
    approach: Approach, state: JobState
) -> None:
    """Where sizes change only when the owner says so nothing would ever run again; elsewhere it gets new workers."""
    site = MalleableSite({"a": 2}, approach)
    site.start(workers("1", part(2, 3)))
    for rank in site.record("1").ranks:
        site.ended(rank.placeholder, EndReason.NODE_LOST)
    assert site.record("1").state is state
    if state is JobState.LOST:
        outcome = site.record("1").outcome
        assert outcome is not None
        assert "rank 1 (component 'm'): node lost" in outcome.detail.replace("node_lost", "node lost")


def test_without_a_head_a_wanted_size_brings_new_workers_when_all_are_lost() -> None:
    site = MalleableSite({"a": 2}, Approach.NONE)
    site.start(workers("1", part(1, 3)))
    site.want(1)
    lost = site.record("1").ranks[0].placeholder
    before = len(site.actions)
    site.ended(lost, EndReason.NODE_LOST)
    assert site.record("1").state is JobState.RUNNING
    site.poll("a", 2)
    assert [one.count for one in of_kind(SubmitPlaceholders, site.actions[before:])] == [1]


def test_a_flexible_component_grows_everywhere_within_its_bounds() -> None:
    """It has a claim on each cluster, and all of them together keep to minimum and maximum."""
    site = MalleableSite({"a": 3, "b": 4, "c": 4})
    site.start(headed(1, 5, flexible=True))
    clusters = [claim.cluster for claim in site.record("1").claims]
    assert sorted(str(one) for one in clusters[1:]) == ["a", "b", "c"]
    for _ in range(3):
        for offer in of_kind(OfferProcessors, list(site.actions)):
            site.grow_by(offer)
    assert sum(site.sizes("1")) == 6
    assert {one.cluster for one in of_kind(SubmitPlaceholders, site.actions)} > {ClusterName("b")}


def test_a_flexible_component_may_give_up_all_it_has_on_a_cluster() -> None:
    site = MalleableSite({"a": 2, "b": 4})
    site.start(headed(1, 5, flexible=True))
    for offer in of_kind(OfferProcessors, list(site.actions)):
        site.grow_by(offer)
    assert [(one.cluster, one.processors) for one in site.record("1").claims] == [("a", 1), ("b", 4), ("a", 1)]
    site.poll("b", 4, idle=0, ours=4)
    assert requests(site.submit(job("2", component("x", 4, cluster="b")))) == [("1", 4)]


def test_a_wanted_size_bounds_what_is_offered() -> None:
    """No more is offered than what lacks for it; when a larger one is wanted, the rest is."""
    site = MalleableSite({"a": 9})
    site.submit(headed(1, 6))
    site.want(3)
    actions = site.started("1")
    (offer,) = of_kind(OfferProcessors, actions)
    site.grow_by(offer)
    assert site.sizes("1") == [1, 3]
    site.poll("a", 9, idle=5, ours=4)
    before = len(site.actions)
    site.want(6)
    (more,) = of_kind(OfferProcessors, site.actions[before:])
    site.grow_by(more)
    assert site.sizes("1") == [1, 6]


@pytest.mark.parametrize("approach", list(Approach))
def test_what_is_beyond_the_wanted_size_is_asked_back(approach: Approach) -> None:
    """Whatever the approach, from all clusters together, and once."""
    site = MalleableSite({"a": 4, "b": 4}, approach)
    site.start(headed(1, 6, flexible=True))
    site.want(6)
    for _ in range(3):
        for offer in of_kind(OfferProcessors, list(site.actions)):
            site.grow_by(offer)
        for taking in of_kind(TakeProcessors, site.hold_stubs()):
            site.take(taking)
    assert sum(site.sizes("1")) == 7
    asked = of_kind(RequestProcessors, site.want(2))
    assert sum(one.processors for one in asked) == 4
    for one in asked:
        site.answer(one)
    leaving = [rank for one in asked for rank in _latest(site, one)]
    assert len(leaving) == 4
    for rank in leaving:
        site.rank_ends("1", rank, TERMINATED)
    assert sum(site.sizes("1")) == 3
    assert "its owner wants 2" in {one.reason for one in site.record("1").size_changes}


def _latest(site: MalleableSite, asked: RequestProcessors) -> list[int]:
    """Return the ranks that a runner would choose."""
    record = site.record("1")
    mine = [one.rank for one in record.ranks if (one.component, one.cluster) == (asked.component, asked.cluster)]
    return [rank for rank in mine if rank not in record.departed][-asked.processors :]


def test_what_is_changing_when_the_rest_is_asked_back_is_asked_soon() -> None:
    """Its owner wants fewer while workers are taken in on two clusters: nothing else need happen for the second."""
    site = MalleableSite({"a": 4, "b": 4})
    for offer in of_kind(OfferProcessors, site.start(headed(1, 6, flexible=True))):
        site.answer(offer)
    first, second = of_kind(TakeProcessors, site.hold_stubs())
    site.want(1)
    (asked,) = of_kind(RequestProcessors, site.take(first))
    site.answer(asked)
    assert requests(site.take(second)) == []
    assert len(requests(site.pass_time(site.parameters.scan_interval))) == 1


def test_an_application_that_keeps_what_it_has_is_not_asked_for_ever() -> None:
    site = MalleableSite({"a": 4})
    site.start(headed(1, 3))
    site.grow_by(of_kind(OfferProcessors, site.actions)[0])
    (asked,) = of_kind(RequestProcessors, site.want(1))
    assert "it has been asked to give up 2" in site.explained()
    assert "are to be asked back" not in site.explained()
    assert of_kind(RequestProcessors, site.answer(asked, 0)) == []
    assert "; 2 more than the 1 that its owner wants are to be asked back" in site.explained()
    site.now += 16
    assert len(of_kind(RequestProcessors, site.poll("a", 4, idle=0, ours=4))) == 1


def test_what_is_about_to_be_given_up_is_not_replaced_before_it_has_gone() -> None:
    """An owner who wants fewer and then more again gets more when the others have left: never beyond the maximum."""
    site = MalleableSite({"a": 4, "b": 4}, Approach.NONE)
    site.start(headed(1, 4, flexible=True))
    site.want(4)
    for taking in of_kind(TakeProcessors, site.hold_stubs()):
        site.take(taking)
    assert sum(site.sizes("1")) == 5
    asked = of_kind(RequestProcessors, site.want(2))
    for one in asked:
        site.answer(one)
    assert of_kind(SubmitPlaceholders, site.want(4)) == []
    for rank in [rank for one in asked for rank in _latest(site, one)]:
        site.rank_ends("1", rank, TERMINATED)
    site.end_ending()
    for _ in range(2):
        for taking in of_kind(TakeProcessors, site.hold_stubs()):
            site.take(taking)
    assert sum(site.sizes("1")) == 5


def test_a_rule_that_fails_is_told() -> None:
    """The offer counts as declined, and `koala explain` says what is wrong; the job goes on."""
    site = MalleableSite({"a": 4})
    (offer, *_) = of_kind(OfferProcessors, site.start(headed(1, 3)))
    site.post(ev.OfferAnswered(time=site.now, job_id=JobId("1"), number=offer.number, accepted=0, trouble="it raises"))
    assert site.sizes("1") == [1, 1]
    assert "Last trouble: it raises." in site.explained()


def silenced(site: MalleableSite, rank: int) -> str:
    """Lose contact with the agent of a rank; return what is explained half a minute later."""
    placeholder = site.record("1").ranks[rank].placeholder
    site.silence(placeholder)
    site.pass_time(30)
    return site.explained()


def test_what_is_explained_while_there_is_no_contact_comes_true() -> None:
    """Without a worker the job goes on, without its head it is lost; each is said before it happens."""
    site = MalleableSite({"a": 3}, Approach.NONE)
    site.start(headed(2, 3))
    assert silenced(site, 2).endswith(
        "with 1 of its placeholders (1 on a); if that lasts another 4 min, the job goes on with fewer workers."
    )
    site.pass_time(400)
    assert (site.record("1").state, site.sizes("1")) == (JobState.RUNNING, [1, 1])
    assert silenced(site, 0).endswith("if that lasts another 4 min, the job is lost.")
    site.pass_time(400)
    assert site.record("1").state.final


@pytest.mark.parametrize(("approach", "said"), [(Approach.NONE, "the job is lost"), (Approach.PRA, "fewer workers")])
def test_the_last_worker_of_a_job_without_a_head_out_of_contact(approach: Approach, said: str) -> None:
    site = MalleableSite({"a": 1}, approach)
    site.start(workers("1", part(1, 3)))
    assert silenced(site, 0).endswith(f"{said}.")
    site.pass_time(400)
    assert site.record("1").state.final is (approach is Approach.NONE)


def test_a_job_whose_workers_have_all_left_tells_what_it_had() -> None:
    """When it had most: nothing of it is there any more when it ends."""
    site = MalleableSite({"a": 3, "b": 2})
    site.start(workers("1", replace(component("m", 1, 4), flexible=True)))
    for offer in of_kind(OfferProcessors, list(site.actions)):
        site.grow_by(offer)
    held = {(one.component, one.cluster): one.processors for one in site.record("1").claims}
    assert sum(held.values()) == 4
    assert former_sizes(site.record("1")) == {}
    for rank in range(4):
        site.rank_ends("1", rank)
    assert site.record("1").state is JobState.COMPLETED
    assert [one.processors for one in site.record("1").claims] == [0, 0]
    assert former_sizes(site.record("1")) == held


NOT_STARTED = TaskEnd(reason=EndReason.LAUNCH_FAILED, exit_code=127, detail="no such directory")


def launched(site: MalleableSite, one: Job) -> None:
    """Submit a job and hold all its placeholders, without a report of any process."""
    site.queue(one)
    site.hold_all("1")
    assert site.record("1").state is JobState.LAUNCHING


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("runner", [RunnerName.WORKERS, RunnerName.SWEEP])
def test_a_worker_that_cannot_be_started_leaves_the_job_running(first: int, runner: RunnerName) -> None:
    """Its end is the only report of it; the others do the work, whichever report comes first."""
    site = MalleableSite({"a": 2}, Approach.NONE)
    launched(site, replace(workers("1", part(2, 3), walltime=3600), runner=runner))
    for rank in (first, 1 - first):
        if rank:
            site.rank_ends("1", rank, NOT_STARTED)
        else:
            site.post(ev.RankStarted(time=site.now, job_id=JobId("1"), rank=rank))
    assert (site.record("1").state, site.sizes("1")) == (JobState.RUNNING, [1])
    assert "no such directory" in site.explained()
    if runner is RunnerName.WORKERS:
        site.rank_ends("1", 0)
        assert site.record("1").state is JobState.COMPLETED


@pytest.mark.parametrize(("runner", "patience"), [(RunnerName.WORKERS, 60), (RunnerName.SWEEP, 1800)])
def test_a_job_none_of_whose_workers_can_be_started_fails(runner: RunnerName, patience: float) -> None:
    """It fails with the reason after the pause in which somebody else could explain it, not at its walltime."""
    site = MalleableSite({"a": 1}, Approach.NONE)
    launched(site, replace(workers("1", part(1, 2), walltime=36000), runner=runner))
    site.rank_ends("1", 0, NOT_STARTED)
    site.pass_time(patience)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 127)
    assert "no such directory" in outcome.detail


def test_a_job_with_a_head_grows_although_a_worker_could_not_be_started() -> None:
    """All processes have been tried, so the job runs; once the pause is over it is offered processors."""
    site = MalleableSite({"a": 3})
    launched(site, headed(2, 3))
    for rank in (0, 1):
        site.post(ev.RankStarted(time=site.now, job_id=JobId("1"), rank=rank))
    site.rank_ends("1", 2, NOT_STARTED)
    site.end_ending()
    assert site.record("1").state is JobState.RUNNING
    before = len(site.actions)
    site.pass_time(60)
    site.poll("a", 3, idle=1, ours=2)
    assert offers(site.actions[before:]) == [("1", 1)]
