# SPDX-License-Identifier: Apache-2.0
"""A scheduler that only watches, and jobs that come back to the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from koala_adapter.lrm.listing import Listing
from koala_adapter.model import HoldOwner, LrmJobId, LrmJobState
from koala_adapter.ordering.jobs import Entry, JobEventKind, Phase, Rules
from koala_adapter.ordering.shadow import Shadow
from koala_adapter.queueing.backfill import make_cluster_scheduler
from tests.unit.ordering.ordering_site import Listed, node, starting

# -- What our policy would have done: replayed exactly, revised when more is known, and told without acting.


class Watched:
    """A batch system that does as the test says, and a shadow that looks on."""

    def __init__(self, policy: str = "easy", *, longest: int = 1000) -> None:
        self.site = Listed()
        self.site.now = 0.0
        self.shadow = Shadow(lambda: make_cluster_scheduler(policy, 0), Rules(shadow=True), longest=longest)
        self.look(0.0)

    def submit(self, job_id: str, processors: int, walltime: int = 100, *, queue: str = "") -> None:
        self.site.submit(job_id, processors, walltime, state=LrmJobState.QUEUED, hold=None, queue=queue)

    def start(self, job_id: str) -> None:
        self.site.change(job_id, state=LrmJobState.RUNNING, started_at=self.site.now)

    def play(self, *looks: tuple[str, float]) -> None:
        """Have things happen, and the shadow look at a time after them, again and again.

        What happens is ``submit JOB PROCESSORS [WALLTIME]``, ``start JOB`` or ``end JOB``, several with ``;``.
        """
        verbs: dict[str, Callable[..., None]] = {"submit": self.submit, "start": self.start, "end": self.site.end}
        for happens, at in looks:
            for one in happens.split(";"):
                verb, job_id, *sizes = one.split()
                verbs[verb](job_id, *map(int, sizes))
            self.look(at)

    def look(self, at: float) -> None:
        self.site.now = at
        listing = Listing(
            read_at=at, jobs=tuple(self.site.jobs.values()), nodes=tuple(self.site.nodes.values()), queues={}
        )
        self.shadow.observe(listing)


def test_the_same_decisions_differ_in_nothing() -> None:
    watched = Watched()
    watched.play(("submit 1 24", 1.0), ("start 1", 2.0), ("end 1", 50.0))
    report = watched.shadow.report()
    assert (report.jobs, report.earlier, report.later, report.same) == (1, 0, 0, 1)
    assert (report.mean_wait_ours, report.mean_wait_theirs, report.left_out) == (0.0, 1.0, 0)


def test_what_nobody_may_start_is_told_apart() -> None:
    watched = Watched()
    watched.submit("1", 24)
    watched.site.submit("2", 8)
    watched.look(1.0)
    report = watched.shadow.report()
    assert (report.jobs, report.left_out) == (1, 1)


def test_a_backfill_that_the_batch_system_did_not_do() -> None:
    """The narrow job would have started at once; what it really ran counts in our world, too."""
    watched = Watched()
    watched.play(
        ("submit 1 24 100; submit 2 32 100; submit 3 8 50", 0.0),
        *(("start 1", 10.0), ("end 1", 90.0)),
        *(("start 2", 91.0), ("end 2", 150.0)),
        *(("start 3", 151.0), ("end 3", 180.0)),
    )
    report = watched.shadow.report()
    assert [(one.job_id, one.theirs, one.ours) for one in report.first_earlier] == [("3", 150.0, 0.0)]
    assert (report.earlier, report.later, report.same) == (1, 0, 2)
    assert report.mean_wait_theirs == pytest.approx((0 + 90 + 150) / 3)
    assert report.mean_wait_ours == pytest.approx((0 + 90 + 0) / 3)


def test_what_becomes_known_later_revises_what_followed() -> None:
    """A job that we start earlier ends earlier, and so do those that wait for it."""
    watched = Watched("fcfs")
    watched.submit("1", 32, 1000)
    watched.submit("2", 32, 1000)
    watched.look(0.0)
    watched.site.now = 100.0
    watched.start("1")
    watched.look(100.0)
    watched.site.end("1")
    watched.look(150.0)
    watched.start("2")
    watched.look(151.0)
    report = watched.shadow.report()
    assert {(one.job_id, one.theirs, one.ours) for one in report.first_earlier} == {
        ("1", 100.0, 0.0),
        ("2", 150.0, 50.0),
    }


def test_what_would_start_later_with_us() -> None:
    watched = Watched("fcfs")
    watched.play(("submit 1 24; submit 2 32; submit 3 8", 0.0), ("start 1; start 3", 10.0))
    report = watched.shadow.report()
    assert [(one.job_id, one.ours) for one in report.first_later] == [("3", None)]


def test_running_and_cancelled_jobs_count_as_they_are() -> None:
    """Jobs from before take their processors; one that its user takes back while it waits is in nobody's way."""
    watched = Watched()
    watched.shadow = Shadow(lambda: make_cluster_scheduler("easy", 0), Rules(shadow=True))  # that has not looked yet
    watched.play(("submit 0 20 100; start 0", 1.0), ("submit 1 32; submit 2 12 5000", 2.0), ("end 1", 3.0))
    report = watched.shadow.report()
    assert (report.jobs, report.earlier, report.later, report.same) == (2, 0, 0, 2)
    (told,) = [one for one in watched.shadow.happened if one.kind is JobEventKind.START]
    assert (told.job_id, told.detail) == ("2", "the batch system not yet")


def test_ended_jobs_stay_in_the_listing_without_harm() -> None:
    """Slurm shows them for minutes; each counts once, and those from before not at all."""
    watched = Watched()
    watched.play(("submit 1 8", 1.0), ("start 1", 2.0))
    watched.site.change("1", state=LrmJobState.ENDED, ends_at=20.0)
    for at in (30.0, 40.0, 50.0):
        watched.look(at)
    assert watched.shadow.report().jobs == 1
    fresh = Shadow(lambda: make_cluster_scheduler("easy", 0), Rules(shadow=True))
    for at in (60.0, 70.0):
        fresh.observe(Listing(read_at=at, jobs=tuple(watched.site.jobs.values()), nodes=(), queues={}))
    assert fresh.report().jobs == 0


def test_many_jobs_are_folded_without_losing_count() -> None:
    """What is forgotten has been counted, and the rest goes on as before."""
    reports = []
    for longest in (1000, 5):
        watched = Watched(longest=longest)
        for number in range(30):
            watched.submit(str(number), 20 if number % 2 else 12, 100)
        at = 1.0
        watched.look(at)
        for number in range(30):
            watched.start(str(number))
            at += 1
            watched.look(at)
            watched.site.change(str(number), state=LrmJobState.ENDED, ends_at=at + 7)
            at += 8
            watched.look(at)
        reports.append(watched.shadow.report())
    whole, folded = reports
    assert folded.jobs == whole.jobs == 30
    assert folded.mean_wait_theirs == whole.mean_wait_theirs
    # What was decided before a run time was known stays decided.
    assert whole.mean_wait_ours <= folded.mean_wait_ours < folded.mean_wait_theirs


def test_what_happened_between_two_looks_is_told_in_order() -> None:
    watched = Watched()
    watched.site.now = 10.0
    watched.submit("1", 20)
    watched.site.now = 20.0
    watched.start("1")
    watched.look(30.0)
    told = [(one.time, one.kind) for one in watched.shadow.happened]
    assert told == [(10.0, JobEventKind.START), (20.0, JobEventKind.STARTED)]


def halves(watched: Watched, first: tuple[str, ...]) -> None:
    """Have the nodes of ``first`` serve queue ``a``, the others ``b``, and be listed before those."""
    nodes = {name: replace(node(name), queues=("a" if name in first else "b",)) for name in watched.site.nodes}
    watched.site.nodes = dict(sorted(nodes.items(), key=lambda item: item[0] not in first))


def test_a_listing_in_another_order_changes_nothing() -> None:
    """A job of the smaller queue waits although the nodes of the larger one are listed first now."""
    watched = Watched()
    halves(watched, ("n1",))
    watched.submit("1", 8, queue="a")
    watched.submit("2", 8, queue="a")
    watched.look(1.0)
    watched.start("1")
    watched.site.nodes = dict(reversed(watched.site.nodes.items()))
    watched.look(50.0)
    assert watched.shadow.report().mean_wait_ours == (1.0 + 50.0) / 2


def test_jobs_follow_their_queue_to_other_nodes() -> None:
    """As many pools as before, which are made of other queues: the jobs seen before are replayed on theirs."""
    watched = Watched()
    halves(watched, ("n1",))
    watched.submit("1", 16, queue="b")
    watched.look(1.0)
    watched.site.nodes = {
        name: replace(one, queues=("b",) if name == "n1" else ("c",)) for name, one in watched.site.nodes.items()
    }
    watched.look(2.0)
    watched.look(30.0)
    report = watched.shadow.report()
    assert (report.jobs, report.earlier) == (1, 0)


# -- Jobs that the batch system queues again: held and untied, on record as waiting, and decided on anew.


def ran(processors: int = 32, **values: Any) -> tuple[Listed, LrmJobId]:  # noqa: ANN401 - fields of many types
    site, start = starting(processors, **values)
    site.run(start)
    site.accept(start.job_id)
    site.look()
    return site, start.job_id


def queue_again(site: Listed, *, held: bool, submitted_at: float) -> None:
    """Have the batch system queue the job again, as it is: tied to its nodes, with a new time of submission."""
    hold = HoldOwner.OPERATOR if held else None
    state = LrmJobState.HELD if held else LrmJobState.QUEUED
    former = site.jobs["1"].requeues
    site.change(
        "1",
        state=state,
        hold=hold,
        layout=(),
        nodes=(),
        started_at=None,
        submitted_at=submitted_at,
        requeues=former + 1,
    )


def entry_of(site: Listed, id_: LrmJobId) -> Entry:
    return site.mirror.entries[id_]


@pytest.mark.parametrize("held", [True, False])
def test_it_is_held_and_untied_before_it_may_start_again(held: bool) -> None:  # noqa: FBT001 - a parameter
    """Its processors are free at once; it is started anew, elsewhere too, with what its user asked for."""
    site, id_ = ran(8, requested_nodes=("n2",))
    queue_again(site, held=held, submitted_at=site.now)
    site.submit("2", 32)
    assert [one.job_id for one in site.look()] == ["2"]
    assert entry_of(site, id_).phase is Phase.RETURNING
    assert site.mirror.starts_to_undo() == ["1"]
    pin = site.mirror.starts.pins[id_]
    assert (pin.started, pin.failure) == (False, "it was queued again")
    site.change("1", state=LrmJobState.HELD, hold=HoldOwner.OPERATOR)
    site.start_undone(id_)
    site.end("2")
    (again,) = site.look()
    assert (again.job_id, again.wishes and again.wishes.requested_nodes) == ("1", ("n2",))
    assert [one.kind for one in site.mirror.happened if one.job_id == "1"] == [
        JobEventKind.SUBMITTED,
        JobEventKind.START,
        JobEventKind.STARTED,
        JobEventKind.REQUEUED,
        JobEventKind.START,
    ]


@pytest.mark.parametrize("held", [True, False])
def test_while_nobody_looked(held: bool) -> None:  # noqa: FBT001 - a parameter
    """The record tells the next process that it had run; what still waits is held and untied as well."""
    site, id_ = ran()
    queue_again(site, held=held, submitted_at=site.now + 3)
    following = Listed(pins=site.mirror.starts.pins.values())
    following.now, following.jobs = site.now + 5, site.jobs
    assert following.look() == []
    assert following.mirror.starts_to_undo() == ["1"]
    following.change("1", state=LrmJobState.HELD, hold=HoldOwner.OPERATOR)
    following.start_undone(id_)
    assert [one.job_id for one in following.look()] == ["1"]


def test_killed_before_it_was_taken_back() -> None:
    site, _ = ran()
    queue_again(site, held=False, submitted_at=site.now)
    site.look()
    following = Listed(pins=site.mirror.starts.pins.values())
    following.now, following.jobs = site.now, site.jobs
    assert following.look() == []
    assert following.mirror.starts_to_undo() == ["1"]


def test_what_the_batch_system_starts_first_is_adopted() -> None:
    """Queued again and started between two looks: it runs where it was put, and that is said."""
    site, id_ = ran(8)
    (before,) = site.mirror.entries[id_].nodes
    queue_again(site, held=False, submitted_at=site.now)
    other = "n4" if before[0] != "n4" else "n3"
    site.change("1", state=LrmJobState.RUNNING, layout=((other, 8),), nodes=(other,), started_at=site.now + 0.5)
    assert site.look() == []
    assert site.told(JobEventKind.ADOPTED)[0].detail == "it was queued again, and the batch system started it"
    assert entry_of(site, id_).nodes == ((other, 8),)
    assert [job.started_at for job in site.mirror.schedulers[0].running] == [site.now - 0.5]
    site.look()
    assert len(site.told(JobEventKind.ADOPTED)) == 1


def test_what_the_batch_system_started_itself_is_left_to_it() -> None:
    """A job that came in past the site's piece, ran and is queued again, is not ours."""
    site = Listed()
    site.submit("1", 8, state=LrmJobState.RUNNING, hold=None, layout=(("n1", 8),), nodes=("n1",), started_at=999.0)
    site.look()
    queue_again(site, held=False, submitted_at=site.now)
    assert site.look() == []
    assert site.mirror.starts_to_undo() == []
    assert "not in hold" in site.told(JobEventKind.LEFT_OUT)[0].detail


def test_a_later_job_of_the_same_number_is_another() -> None:
    """It was never queued again, and has another time of submission."""
    site, id_ = ran(8)
    site.change("1", state=LrmJobState.HELD, hold=HoldOwner.OPERATOR, layout=(), nodes=(), submitted_at=5000.0)
    assert [one.job_id for one in site.look()] == ["1"]
    assert site.told(JobEventKind.REQUEUED) == []
    assert not site.mirror.starts.pins[id_].started
