# SPDX-License-Identifier: Apache-2.0
"""What listings prove: nothing is believed gone on one witness's word, and nothing of ours is overlooked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from koala_adapter.model import BatchKey, EndReason, LrmJob, LrmJobId, LrmJobState, PlaceholderId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.events import Event
from koala_adapter.service.leftovers import Owned, leftovers
from koala_adapter.service.listings import RESTLESS_FOR, SETTLE, Judgement, ListingJudge, processors_held
from tests.unit.scheduler.scheduler_site import A, Site, component, job

KEY = BatchKey("koala-k-1")


class Watched:
    """A job of two placeholders on cluster `a`, and the judge of that cluster."""

    def __init__(self, *, taken: bool = True) -> None:
        self.site = Site({"a": 8, "b": 8})
        self.site.submit(job("1", component("x", 2, cluster="a")))
        if taken:
            self.site.take_all()
        self.judge = ListingJudge(A, user="alice", begun_at=0.0)
        self.connected: set[PlaceholderId] = set()

    def look(self, listing: Iterable[LrmJob], *, read_at: float | None = None) -> Judgement:
        """Show the judge a listing, a second after the last event unless told when it was asked for."""
        self.site.now += 1
        return self.judge.judge(
            self.site.state,
            ev.ClusterPolled(time=self.site.now, cluster=A, processors=8, idle=6, ours=2),
            tuple(listing),
            read_at=self.site.now if read_at is None else read_at,
            in_contact=lambda id_: id_ in self.connected,
        )

    def events(self, listing: Iterable[LrmJob]) -> tuple[Event, ...]:
        return proved(self.look(listing))


def proved(judgement: Judgement) -> tuple[Event, ...]:
    """Return what a listing proves of submissions and placeholders, without what was counted."""
    counts = (ev.ClusterPolled, ev.HoldsSeen)
    return (*(event for event in judgement.events if not isinstance(event, counts)), *judgement.lost)


def placeholder(index: int) -> PlaceholderId:
    return PlaceholderId(batch=KEY, index=index)


def listed(index: int, state: LrmJobState = LrmJobState.RUNNING, *, key: str = KEY) -> LrmJob:
    return LrmJob(id=LrmJobId(f"{key}:{index}"), name=key, state=state, user="alice", processors=1, array_index=index)


RUNNING = (listed(1), listed(2))


def test_jobs_that_nobody_owns_are_to_be_cancelled() -> None:
    """They bear our name, and no record of ours accounts for them; those that end by themselves are left alone.

    Two clusters may be partitions of one batch system, whose listing shows the placeholders of both.
    """
    watched = Watched()
    watched.site.submit(job("2", component("x", 1, cluster="b")))
    (other,) = watched.site.claimed("2")
    there = listed(1, key=other.id.batch)
    orphan = listed(1, key="koala-k-99")
    ending, over = listed(4, LrmJobState.ENDING), listed(5, LrmJobState.ENDED)
    assert watched.look([*RUNNING, there, orphan, ending, over]).orphans == (orphan.id,)


def test_what_is_listed_as_running_has_started_once() -> None:
    """The first listing that shows a placeholder on a node starts the wait for its agent; later ones say nothing."""
    watched = Watched()
    assert watched.events([listed(1, LrmJobState.QUEUED), listed(2, LrmJobState.STARTING)]) == (
        ev.PlaceholderStarted(time=watched.site.now, placeholder=placeholder(2)),
    )
    watched.site.hold(placeholder(2))
    assert watched.events([listed(1, LrmJobState.QUEUED), listed(2)]) == ()


def test_one_listing_without_a_placeholder_proves_nothing() -> None:
    """It takes two in a row; one that shows it again starts the count anew."""
    watched = Watched()
    watched.site.hold_all("1")
    assert watched.events([listed(1)]) == ()
    assert watched.events(RUNNING) == ()
    assert watched.events([listed(1)]) == ()
    (event,) = watched.events([listed(1)])
    assert isinstance(event, ev.PlaceholderEnded)
    assert (event.placeholder, event.reason) == (placeholder(2), EndReason.LOST)


def test_an_agent_in_contact_is_stronger_than_any_listing() -> None:
    """However often it is missing from the listing, a placeholder whose agent is connected is there."""
    watched = Watched()
    watched.site.hold_all("1")
    watched.connected = {placeholder(1), placeholder(2)}
    assert [watched.events([]) for _ in range(5)] == [()] * 5
    watched.connected = set()
    assert watched.events([]) == (), "the count begins when the contact is lost"
    assert len(watched.events([])) == 2


def test_after_the_agents_farewell_one_listing_is_enough() -> None:
    watched = Watched()
    watched.site.hold_all("1")
    watched.judge.disconnected.add(placeholder(1))
    (event,) = watched.events([])
    assert isinstance(event, ev.PlaceholderEnded)
    assert event.placeholder == placeholder(1)


def test_a_listing_older_than_the_submission_is_no_witness() -> None:
    """What was asked for before the submission cannot show it, and does not count as an absence."""
    watched = Watched()
    before = watched.site.now - 10
    assert [proved(watched.look([], read_at=before)) for _ in range(3)] == [()] * 3
    assert watched.judge.absences == {}


def test_a_listing_asked_for_during_the_submission_is_no_witness_of_absence() -> None:
    """The LRM may have taken the submission after it was asked; what it shows nevertheless is believed."""
    watched = Watched(taken=False)
    watched.site.now += 2
    during = watched.site.now - 1
    watched.site.take_all()
    assert [proved(watched.look([], read_at=during)) for _ in range(3)] == [()] * 3
    assert watched.judge.absences == {}
    (event,) = proved(watched.look([listed(1)], read_at=during))
    assert event == ev.PlaceholderStarted(time=watched.site.now, placeholder=placeholder(1))
    watched.site.post(event)
    assert watched.events([listed(1)]) == ()
    assert watched.judge.absences == {placeholder(2): 1}


@pytest.mark.parametrize("reason", [EndReason.NODE_LOST, EndReason.WALLTIME, EndReason.MEMORY, EndReason.CANCELLED])
def test_an_end_that_only_the_lrm_can_know_is_believed_at_once(reason: EndReason) -> None:
    """The agent could not tell more."""
    watched = Watched()
    watched.site.hold_all("1")
    (event,) = watched.events([replace(listed(1, LrmJobState.ENDED), end=reason, reason="said so"), listed(2)])
    assert event == ev.PlaceholderEnded(
        time=watched.site.now, placeholder=placeholder(1), reason=reason, detail="said so"
    )


def test_an_exit_leaves_the_agent_a_poll_to_say_how() -> None:
    """Only the second listing ends the placeholder: what the agent said of its task may still be on its way."""
    watched = Watched()
    watched.site.hold_all("1")
    over = replace(listed(1, LrmJobState.ENDED), end=EndReason.EXITED, exit_code=42)
    assert watched.events([over, listed(2)]) == ()
    (event,) = watched.events([over, listed(2)])
    assert isinstance(event, ev.PlaceholderEnded)
    assert (event.reason, "42" in event.detail) == (EndReason.EXITED, True)


def test_a_placeholder_told_to_end_is_gone_when_it_is_listed_as_ended() -> None:
    watched = Watched()
    watched.site.hold_all("1")
    watched.site.cancel("1")
    over = replace(listed(1, LrmJobState.ENDED), end=EndReason.EXITED, exit_code=0)
    (event,) = watched.events([over, listed(2, LrmJobState.ENDING)])
    assert isinstance(event, ev.PlaceholderEnded)
    assert event.placeholder == placeholder(1)


@pytest.mark.parametrize(
    ("end", "reason", "told"),
    [
        (EndReason.CANCELLED, "", "it was deleted before it was seen to run"),
        (EndReason.CANCELLED, "by uid 0", "it was deleted before it was seen to run (by uid 0)"),
        (
            EndReason.LAUNCH_FAILED,
            "JobLaunchFailure",
            "its batch system could not start it, as when a prolog fails (JobLaunchFailure)",
        ),
    ],
)
def test_an_end_before_the_start_is_told_as_such(end: EndReason, reason: str, told: str) -> None:
    """Not only by a word of the batch system, which says as much of one that has run."""
    watched = Watched()
    over = replace(listed(1, LrmJobState.ENDED), end=end, reason=reason)
    events = [event for _ in range(2) for event in watched.events([over, listed(2)])]
    assert {event.detail for event in events if isinstance(event, ev.PlaceholderEnded)} == {told}


def test_one_that_vanishes_from_its_queue_is_told_as_such() -> None:
    """Grid Engine forgets what is deleted."""
    watched = Watched()
    events = [event for _ in range(3) for event in watched.events([listed(2)])]
    ended = next(event for event in events if isinstance(event, ev.PlaceholderEnded))
    assert "it was not seen to run: it was deleted while it was queued" in ended.detail


def test_where_a_placeholder_runs_is_remembered() -> None:
    """Its own words may lie there alone, and are looked for when it is gone."""
    watched = Watched()
    watched.events([replace(listed(1), nodes=("n7",)), listed(2)])
    watched.events([listed(1), listed(2)])
    assert [watched.judge.nodes.get(placeholder(index)) for index in (1, 2)] == ["n7", None]


def test_a_job_in_error_state_will_never_start() -> None:
    watched = Watched()
    stuck = replace(listed(1, LrmJobState.HELD), reason="error state Eqw: can't chdir to /none")
    (event,) = watched.events([stuck, listed(2)])[:1]
    assert isinstance(event, ev.PlaceholderEnding)
    assert (event.reason, event.detail) == (EndReason.LAUNCH_FAILED, stuck.reason)


def test_a_submission_of_unknown_outcome_is_adopted_by_its_name() -> None:
    """The ids are those of the listing, in the order of the indices, whatever the order of the listing."""
    watched = Watched(taken=False)
    (event,) = watched.events([listed(2), listed(1, LrmJobState.QUEUED), listed(1, key="koala-k-12")])
    assert event == ev.BatchSubmitted(
        time=watched.site.now, batch=KEY, lrm_ids=(LrmJobId("koala-k-1:1"), LrmJobId("koala-k-1:2"))
    )


def test_a_submission_is_absent_only_when_it_can_no_longer_arrive() -> None:
    """Before that, its not being listed means nothing, however often; after that, one listing could be a blip."""
    watched = Watched(taken=False)
    assert [watched.events([]) for _ in range(3)] == [()] * 3
    watched.site.now += SETTLE
    assert watched.events([]) == ()
    (event,) = watched.events([])
    assert isinstance(event, ev.BatchAbsent)
    assert event.batch == KEY


def strangers(job: LrmJob, *, user: str = "mallory") -> LrmJob:
    """Return another user's job of the same name, as the LRM lists it."""
    return replace(job, id=LrmJobId(f"{user or 'nobody'}:{job.id}"), user=user)


FAILED = tuple(replace(strangers(listed(index, LrmJobState.ENDED)), end=EndReason.LAUNCH_FAILED) for index in (1, 2))


def is_quiet(judgement: Judgement) -> bool:
    """Return whether a listing proves nothing, and leaves nothing open."""
    return not proved(judgement) and not judgement.orphans and not judgement.restless


@pytest.mark.parametrize("user", ["mallory", ""])
def test_a_strangers_jobs_of_our_names_are_not_ours(user: str) -> None:
    """Wherever they stand in the listing, and whether or not the LRM tells whose they are: ours are known by their ids.

    A stranger's end is not ours, and what runs for a stranger does not make up for ours that are missing.
    """
    failed = tuple(replace(job, user=user) for job in FAILED)
    for listing in ((*RUNNING, *failed), (*failed, *RUNNING), (*RUNNING, failed[0])):
        watched = Watched()
        watched.site.hold_all("1")
        assert all(is_quiet(watched.look(listing)) for _ in range(4))
    watched = Watched()
    watched.site.hold_all("1")
    theirs = tuple(strangers(job, user=user) for job in RUNNING)
    assert [len(watched.events(theirs)) for _ in range(2)] == [0, 2]


@pytest.mark.parametrize("user", ["mallory", ""])
def test_a_strangers_jobs_are_never_cancelled(user: str) -> None:
    watched = Watched()
    theirs = [strangers(listed(index, key=f"koala-k-{index}"), user=user) for index in range(1, 5)]
    assert watched.look([*RUNNING, *theirs]).orphans == ()


@pytest.mark.parametrize("user", ["mallory", ""])
def test_a_strangers_jobs_are_not_adopted(user: str) -> None:
    """A submission of unknown outcome is found in jobs that are certainly of our user, and in no others."""
    watched = Watched(taken=False)
    watched.site.now += SETTLE
    theirs = tuple(strangers(job, user=user) for job in RUNNING)
    (found,) = watched.events([*theirs, *RUNNING, *theirs])
    assert found == ev.BatchSubmitted(time=watched.site.now, batch=KEY, lrm_ids=tuple(job.id for job in RUNNING))
    watched = Watched(taken=False)
    watched.site.now += SETTLE
    assert watched.events(theirs) == ()
    (absent,) = watched.events(theirs)
    assert isinstance(absent, ev.BatchAbsent)


def test_of_several_that_could_be_ours_the_live_and_latest_is_adopted() -> None:
    """An older job of ours of the same name, such as one of a state directory that was copied, does not shadow it."""
    watched = Watched(taken=False)
    latest = [replace(job, submitted_at=20.0) for job in RUNNING]
    older = [replace(job, id=LrmJobId(f"old:{job.id}"), submitted_at=10.0) for job in RUNNING]
    over = [replace(job, id=LrmJobId(f"over:{job.id}"), submitted_at=30.0, state=LrmJobState.ENDED) for job in RUNNING]
    for listing in ([*older, *latest, *over], [*over, *latest, *older]):
        (found,) = watched.events(listing)
        assert isinstance(found, ev.BatchSubmitted)
        assert found.lrm_ids == tuple(job.id for job in latest)


def test_another_job_of_ours_of_the_same_name_says_nothing_of_a_known_one() -> None:
    """Once the id is known, name and user are not enough; and as long as the submission is known, it is let be."""
    watched = Watched()
    watched.site.hold_all("1")
    again = [replace(job, id=LrmJobId(f"again:{job.id}"), state=LrmJobState.ENDED) for job in RUNNING]
    assert is_quiet(watched.look([*RUNNING, *again]))


def test_an_expected_end_makes_restless_for_a_while_only() -> None:
    """An LRM that never ends a job is not asked at the highest rate for ever."""
    watched = Watched()
    watched.site.hold_all("1")
    assert not watched.look(RUNNING).restless
    watched.site.cancel("1")
    assert watched.look(RUNNING).restless
    watched.site.now += RESTLESS_FOR
    assert not watched.look(RUNNING).restless


def test_an_open_question_makes_restless() -> None:
    assert Watched(taken=False).look([]).restless
    watched = Watched()
    watched.site.hold_all("1")
    assert watched.look([listed(1)]).restless


def test_a_witness_forgets_what_is_gone() -> None:
    watched = Watched()
    watched.site.hold_all("1")
    watched.judge.disconnected.add(placeholder(1))
    watched.judge.ended.add(placeholder(2))
    for event in (*watched.events([]), *watched.events([])):
        watched.site.post(event)
    assert watched.site.record("1").state is JobState.LOST
    watched.site.end_ending()
    watched.look([])
    assert (watched.judge.disconnected, watched.judge.ended, watched.judge.absences) == (set(), set(), {})


def test_processors_are_held_from_start_to_end() -> None:
    """Queued, held and ended jobs occupy none; one in a state that nobody knows may well."""
    states = [LrmJobState.QUEUED, LrmJobState.HELD, LrmJobState.ENDED]
    assert processors_held(listed(1, state) for state in states) == 0
    assert processors_held(listed(1, state) for state in LrmJobState if state not in states) == 5


# Which of the jobs that a batch system lists are placeholders without an owner.


def listed_job(name: str, *, user: str = "me", state: LrmJobState = LrmJobState.RUNNING) -> LrmJob:
    return LrmJob(id=LrmJobId(name), name=name, state=state, user=user, processors=1, array_index=1)


def test_only_placeholders_without_an_owner_are_left_over() -> None:
    owned = Owned(instance="0123abcd", placeholders={PlaceholderId(batch=BatchKey("koala-0123abcd-6"), index=1)})
    listing = [
        listed_job("koala-0123abcd-6"),
        listed_job("koala-0123abcd-7"),
        listed_job("koala-0123abcd-8", state=LrmJobState.ENDED),
        listed_job("koala-0123abcd-9", state=LrmJobState.ENDING),
        listed_job("koala-0123abcd-10", user="you"),
        listed_job("koala-fedc9876-1"),
        listed_job("koala-bears"),
        listed_job("koala-0123abcd-7-old"),
    ]
    found = leftovers("alpha", listing, owned, user="me", all_instances=False)
    assert [one.name for one in found] == ["koala-0123abcd-7"]
    everything = leftovers("alpha", listing, owned, user="me", all_instances=True)
    assert [(one.name, one.ours) for one in everything] == [("koala-0123abcd-7", True), ("koala-fedc9876-1", False)]
