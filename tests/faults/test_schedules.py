# SPDX-License-Identifier: Apache-2.0
"""Seeded schedules of faults, dozens by day and some hundred by night.

A failure names its seed: ``World(SEED).run()`` repeats it exactly.

The tests of what schedules contain run a few seeds of their kind with all checks, chosen so that these together contain
all of it. Other seeds of each kind are run in the night, and any number by ``tox run -e faults``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest

from koala_adapter.driver.loop import EventLoop
from koala_adapter.driver.store import MemoryStore, rebuilt
from koala_adapter.errors import EXIT_WALLTIME
from koala_adapter.model import JobId
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.sizechange import ChangePhase
from tests.faults.__main__ import KINDS
from tests.faults.effector import STRANGER
from tests.faults.laws import LONGEST_CHANGE, AdaptiveLaws
from tests.faults.world import JOBS, World, check_progress
from tests.unit.driver.standins import Defects, RecordingEffector, RecordingOwner
from tests.unit.scheduler.malleable_site import JointSite
from tests.unit.scheduler.scheduler_site import recount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pytest.mark.structures import ParameterSet

    from tests.faults.lrm import SimulatedLrm


CONTAINING = {
    "rigid": (2, 10, 14, 15, 22),
    "malleable": (0, 3, 8),
    "workers": (0, 3, 4),
    "adaptive": (2, 3, 7),
    "spread": (36, 43),
    "files": (3, 7),
}
"""Seeds that the tests of what schedules contain run, of each kind."""
OF_MALLEABLE_JOBS = {ev.OfferAnswered, ev.ProcessorsReleased, ev.MoreRequested, ev.SizeWanted}
OF_FILES = {ev.StagingProgressed, ev.FilesStaged, ev.StagingFailed, ev.FilesFound, ev.BandwidthKnown, ev.NodesConnect}
OF_RESERVATIONS: set[type[ev.Event]] = {ev.ReservationMade, ev.ReservationRefused}
OF_ADAPTIVE_JOBS = {ev.LessRequested, ev.PointReached, ev.ChangeMade, ev.ChangeGivenUp}


def by_day_and_by_night(kind: str, day: Sequence[int], night: Sequence[int]) -> list[ParameterSet]:
    """Return a kind of schedule with seeds that are always run, and with others that are run in the night."""
    nightly = (pytest.param(kind, seed, marks=pytest.mark.nightly) for seed in night if seed not in day)
    return [*(pytest.param(kind, seed) for seed in day), *nightly]


def stories_of(kind: str) -> list[Story]:
    """Run the schedules that together contain what their kind is for, with all checks."""
    return [story(seed, kind) for seed in CONTAINING[kind]]


UNDER_WAY = set(ChangePhase) - {ChangePhase.NEW, ChangePhase.OVER}
"""Phases in which a job can have a change."""


class WatchedWorld(World):
    """A world that notes the phases of changes which it goes through."""

    def __init__(self, seed: int, kind: str) -> None:
        self.phases: set[ChangePhase] = set()
        self.joint_phases: set[ChangePhase] = set()
        super().__init__(seed, **KINDS[kind])

    def check(self) -> None:
        """Check what must hold at any moment, and note the phases of it."""
        super().check()
        changes = [change for record in self.service.state.jobs.values() for change in record.changes.values()]
        self.phases |= {change.phase for change in changes}
        self.joint_phases |= {change.phase for change in changes if len(change.parts) > 1}


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a schedule that ran to its end contained."""

    kinds: frozenset[type[ev.Event]]
    states: frozenset[JobState]
    phases: frozenset[ChangePhase]
    joint_phases: frozenset[ChangePhase]
    """Of wishes that were met on several clusters at once."""
    crashes: int
    defects: int
    strange: int
    hand_backs: int
    exchanges: int
    pieces: int
    taken: int
    departed: int
    retired: int
    failed_workers: int
    adapted: int
    transfers: int
    stopped: int
    reasons: str


def story(seed: int, kind: str) -> Story:
    """Run a schedule with all checks, and return what it contained."""
    world = WatchedWorld(seed, kind)
    world.run()
    service = world.service
    records = world.records.values()
    return Story(
        kinds=frozenset(type(event) for event in service.journal),
        states=frozenset(outcome.state for (outcome,) in service.outcomes.values()),
        phases=frozenset(world.phases),
        joint_phases=frozenset(world.joint_phases),
        crashes=service.life,
        defects=len(service.store.left_out),
        strange=sum(e.user == STRANGER for lrm in world.lrms.values() for e in lrm.elements.values()),
        hand_backs=sum(record.hand_backs for record in records),
        exchanges=sum(record.exchanges for record in records),
        pieces=sum(claim.piece is not None for record in records for claim in record.claims),
        taken=sum(len(one.ranks) for one in service.taken),
        departed=sum(len(record.departed) for record in records),
        retired=service.effector.workers.retired,
        failed_workers=sum(record.worker_failures for record in records),
        adapted=len(service.effector.adaptive.adapted),
        transfers=service.effector.transfers.begun,
        stopped=service.effector.transfers.stopped,
        reasons="; ".join(event.reason for event in service.journal if isinstance(event, ev.ChangeGivenUp)),
    )


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        # By day these are among the schedules that contain what they are for, below.
        *by_day_and_by_night("rigid", (), range(100)),
        # Under all approaches and policies, with applications that do as they please.
        *by_day_and_by_night("malleable", (), range(40)),
        # Only the head, or the last worker, ends a job.
        *by_day_and_by_night("workers", (), range(40)),
        # Processes negotiate, meet at points, die in the middle, and never answer.
        *by_day_and_by_night("adaptive", (), range(40)),
        # Wishes of adaptive jobs are met on several clusters at once.
        *by_day_and_by_night("spread", (), range(40)),
        # Input files travel first: no job is launched without them, and each transfer is over with its job.
        *by_day_and_by_night("files", (), range(40)),
        *by_day_and_by_night("crowded-adaptive", (0,), range(8)),
        *by_day_and_by_night("crowded-workers", (0,), range(12)),
        *by_day_and_by_night("together", (0,), range(8)),
        *by_day_and_by_night("malleable-files", (0,), range(20)),
    ],
)
def test_nothing_is_lost_or_leaked(kind: str, seed: int) -> None:
    """Whatever goes wrong: every job gets one outcome, nothing is left, and no invariant breaks on the way."""
    story(seed, kind)


def test_nothing_is_lost_or_leaked_where_jobs_shrink_for_others() -> None:
    """Local users come and go all the time: under PWA malleable jobs make room for them; no invariant breaks."""
    world = World(301, malleable=True, crowded=True)
    world.run()
    assert world.service.effector.shrunk_for_others


@pytest.mark.parametrize(
    ("kind", "seed"),
    [one for kind in ("rigid", "malleable") for one in by_day_and_by_night(kind, range(2), range(10))],
)
def test_nothing_is_lost_or_leaked_under_policies_that_answer_anything(kind: str, seed: int) -> None:
    """What cannot be followed is refused, and told; each job still gets one outcome, and no invariant breaks."""
    world = World(seed, strange=True, **KINDS[kind])
    world.run()
    assert world.service.effector.refused


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *by_day_and_by_night("rigid", range(3), range(60)),
        *by_day_and_by_night("malleable", (0,), range(20)),
        *by_day_and_by_night("workers", (0,), range(8)),
        *by_day_and_by_night("adaptive", (1,), range(5)),
    ],
)
def test_when_nothing_goes_wrong_every_job_runs_to_its_end(kind: str, seed: int) -> None:
    """Without faults a job completes, or fails by its own exit code; one that grows and shrinks may last too long.

    Local users, changes of size, and workers that are asked to leave cost nobody a job.
    """
    world = World(seed, calm=True, **KINDS[kind])
    world.run()
    ends = [outcome for (outcome,) in world.service.outcomes.values()]
    assert len(ends) == JOBS
    assert {outcome.state for outcome in ends} <= {JobState.COMPLETED, JobState.FAILED}
    assert {outcome.exit_code for outcome in ends} <= {0, 3} | (set() if kind == "rigid" else {EXIT_WALLTIME})
    assert world.service.effector.adaptive.adapted or kind != "adaptive"


def test_schedules_contain_what_they_are_for() -> None:
    """Over some seeds every kind of event occurs, jobs end in most ways, and processors are handed back."""
    stories = stories_of("rigid")
    of_others = {ev.HoldsSeen, ev.SuspensionsSeen} | OF_MALLEABLE_JOBS | OF_ADAPTIVE_JOBS | OF_FILES | OF_RESERVATIONS
    assert {kind for one in stories for kind in one.kinds} >= set(ev.EVENT_TYPES) - of_others
    expected = {JobState.COMPLETED, JobState.FAILED, JobState.LOST, JobState.CANCELLED, JobState.REFUSED}
    assert {state for one in stories for state in one.states} >= expected
    assert sum(one.crashes for one in stories) > 10
    assert sum(one.defects for one in stories) > 10
    assert sum(one.hand_backs for one in stories) > 10
    assert sum(one.exchanges for one in stories) > 4
    assert sum(one.pieces for one in stories) > 4
    assert sum(one.strange for one in stories) > 100


def test_schedules_of_files_contain_what_they_are_for() -> None:
    """Over some seeds files arrive, are refused and are stopped; processors that came too early are handed back."""
    stories = stories_of("files")
    assert {kind for one in stories for kind in one.kinds} >= OF_FILES | OF_RESERVATIONS
    assert sum(one.transfers for one in stories) > 50
    assert sum(one.stopped for one in stories) > 20
    assert sum(one.crashes for one in stories) > 2


def test_schedules_of_malleable_jobs_contain_what_they_are_for() -> None:
    """Over some seeds jobs grow and shrink, ask for more and give back, in all phases that a crash can hit."""
    stories = stories_of("malleable")
    assert {kind for one in stories for kind in one.kinds} >= OF_MALLEABLE_JOBS
    assert {phase for one in stories for phase in one.phases} == UNDER_WAY
    assert sum(one.taken for one in stories) > 50
    assert sum(one.departed for one in stories) > 20


def test_schedules_of_workers_contain_what_they_are_for() -> None:
    """Over some seeds workers are added, end by themselves well and badly, and are asked to end; the owner resizes."""
    stories = stories_of("workers")
    assert {kind for one in stories for kind in one.kinds} >= {ev.OfferAnswered, ev.SizeWanted}
    assert {phase for one in stories for phase in one.phases} >= UNDER_WAY - {ChangePhase.PROMISED}
    assert sum(one.taken for one in stories) > 50
    assert sum(one.departed for one in stories) > 50
    assert sum(one.retired for one in stories) > 10
    assert sum(one.failed_workers for one in stories) > 10


def test_schedules_of_adaptive_jobs_contain_what_they_are_for() -> None:
    """Over some seeds processes change together, ask for more and for less; changes are given up for all reasons."""
    stories = stories_of("adaptive")
    assert {kind for one in stories for kind in one.kinds} >= OF_ADAPTIVE_JOBS | {ev.MoreRequested, ev.SizeWanted}
    assert {phase for one in stories for phase in one.phases} == UNDER_WAY
    assert sum(one.adapted for one in stories) > 10
    assert sum(one.taken for one in stories) > 20
    assert sum(one.departed for one in stories) > 20
    reasons = "; ".join(one.reasons for one in stories)
    for reason in ("has not joined", "has ended", "has not reached an adaptation point", "no answer in time"):
        assert reason in reasons, reasons


def test_schedules_of_wishes_over_clusters_contain_what_they_are_for() -> None:
    """Over some seeds such a wish is promised, offered in part, gathered and taken in."""
    stories = stories_of("spread")
    assert {phase for one in stories for phase in one.joint_phases} >= UNDER_WAY - {ChangePhase.RELEASING}
    assert sum(one.crashes for one in stories) > 2


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        # A change for ever, a placeholder believed to be gone, a connection that was lost taken for a farewell.
        *(("malleable", 101925), ("malleable", 102835), ("rigid", 200100), ("malleable", 510121), ("rigid", 5005380)),
        # An offer that had run out in a snapshot was made again; a program that ended while it grew was never over.
        *(("adaptive", 129), ("adaptive", 135), ("adaptive", 8000002)),
        # Of several jobs whose owners wanted them larger, others got what was free after a restart than before it.
        ("spread", 1064),
        # A job is asked for what its owner no longer wants while others are asked for a local user: only what the step
        # asks for is bounded by what the local user waits for, who may have gone meanwhile.
        ("crowded-adaptive", 910154),
        # Near the end of its walltime a job was offered processors on one cluster after the other, at one instant.
        # tests/unit/scheduler/test_malleability_state.py has the same without the rest of the world.
        pytest.param("workers", 7005015, marks=pytest.mark.nightly),
    ],
)
def test_schedules_that_once_broke_an_invariant_or_stood_still(kind: str, seed: int) -> None:
    World(seed, **KINDS[kind]).run()


class StubWorld(World):
    """A world that notes when stubs are about to be submitted, and whether growths submitted theirs again."""

    def __init__(self, seed: int, kill_at: int | None = None) -> None:
        super().__init__(seed, **KINDS["spread"])
        self.faults.kill_at = kill_at
        self.moments: list[int] = []
        self.again: set[tuple[str, int]] = set()
        self._batches: set[str] = set()

    def check(self) -> None:
        """Check what must hold at any moment, and note what was submitted by it."""
        super().check()
        state = self.service.state
        stubs = {one.id.batch for one in state.placeholders.values() if one.stub} - self._batches
        self.moments += [self.service.store.moments] * bool(stubs)
        self._batches |= stubs
        for record in state.jobs.values():
            changes = record.changes.values()
            self.again |= {(record.job.id, change.number) for change in changes if change.submitted_again}


def test_killed_while_the_stubs_of_a_growth_are_submitted() -> None:
    """Before they are on their way: others are submitted, the growth goes on, and no placeholder is left over."""
    first = StubWorld(7)
    first.run()
    again = 0
    for moment in range(first.moments[0] - 4, first.moments[0]):
        world = StubWorld(7, kill_at=moment)
        world.run()
        assert world.service.life > 0
        again += len(world.again - first.again)
    assert again


def test_same_seed_same_world() -> None:
    """A schedule repeats itself event by event, or a failure could not be looked into."""
    journals = []
    for _ in range(2):
        world = World(7)
        world.run()
        journals.append(world.service.journal)
    assert journals[0] == journals[1]


LEAST_MOMENTS = 800
"""Each of the schedules that follow has more moments in its journal."""


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *(("rigid", 0), ("malleable", 0), ("workers", 0), ("adaptive", 1), ("together", 2)),
        *(pytest.param(kind, seed, marks=pytest.mark.nightly) for kind in KINDS for seed in range(3, 12)),
    ],
)
def test_killed_at_a_moment_of_the_journal(kind: str, seed: int) -> None:
    """Before or after any write, none of which is in the middle of anything; `--every-write` tries all of them."""
    world = World(seed, **KINDS[kind])
    world.faults.kill_at = random.Random(seed).randrange(LEAST_MOMENTS)
    world.run()
    assert world.service.life > 0


# -- What is held against changes of adaptive jobs: those that wait in line are no violation.


BEGINNING = 0.0
"""The service was not disturbed since."""


class WatchedSite(JointSite):
    """A job of which two changes are under way, the first one on the second cluster, under the laws."""

    def __init__(self) -> None:
        """The newcomers of both have been started."""
        super().__init__()
        self.laws = AdaptiveLaws()
        self.first = self.demand(2, 1, cluster="b").number
        self.all_started(self.hold_stubs())
        self.second = self.demand(1, 2, cluster="a").number
        self.all_started(self.hold_stubs())
        self.check_after(0.0)

    def check_after(self, seconds: float) -> None:
        self.now += seconds
        self.laws.check(self.state, self.now, BEGINNING)


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_change_in_line_behind_another(*, carried_out: bool) -> None:
    """Processes may take their time for the first; the time of the second begins when that is made, or given up."""
    site = WatchedSite()
    if carried_out:
        site.reach(number=site.first)
        site.check_after(4 * LONGEST_CHANGE)
        site.made(number=site.first)
    else:
        site.now += LONGEST_CHANGE - 1.0
        event = ev.ChangeGivenUp(time=site.now, job_id=JobId("1"), number=site.first, reason="too late")
        site.post(event)
    site.check_after(0.0)
    site.check_after(LONGEST_CHANGE - 1.0)
    with pytest.raises(AssertionError, match=f"change {site.second} is neither made nor given up"):
        site.check_after(1.0)


def test_a_change_that_nobody_begins() -> None:
    """The one that is next has its time, and no more."""
    site = WatchedSite()
    site.check_after(LONGEST_CHANGE - 1.0)
    with pytest.raises(AssertionError, match=f"change {site.first} is neither made nor given up"):
        site.check_after(1.0)


def test_a_change_that_others_overtake() -> None:
    """It is not their time that it waits for: the one that came first is to be made first."""
    site = WatchedSite()
    site.reach(number=site.second)
    site.made(number=site.second)
    site.check_after(0.0)
    third = site.demand(1, 3, cluster="a").number
    site.all_started(site.hold_stubs())
    site.check_after(LONGEST_CHANGE - 1.0)
    site.reach(number=third)
    with pytest.raises(AssertionError, match=f"change {site.first} is neither made nor given up"):
        site.check_after(1.0)


# -- A defect in each handler, at several places in it: what it left half changed never lives on.


PLACES = ["within", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("before", "after"))]
OF_OTHERS = {ev.HoldsSeen, ev.SuspensionsSeen, ev.TimersPostponed}
"""Kinds of event that do not occur in schedules without defects."""


def _switch(lrm: SimulatedLrm, *, up: bool) -> None:
    lrm.up = up


@cache
def stories() -> tuple[list[ev.Event], ...]:
    """Return the journals of four schedules, in which all kinds of event occur."""
    found = []
    for seed, kind in ((0, "rigid"), (4, "malleable"), (1, "adaptive"), (6, "files")):
        world = World(seed, calm=True, **KINDS[kind])
        world.faults.refusal = world.faults.mute = world.faults.submission = 0.1
        lrm = next(iter(world.lrms.values()))
        world.clock.after(300.0, world.service.crash)
        world.clock.after(310.0, world.service.restart)
        world.clock.after(400.0, partial(_switch, lrm, up=False))
        world.clock.after(500.0, partial(_switch, lrm, up=True))
        for seconds in (600.0, 800.0):
            world.clock.after(seconds, world._kill_one)
        world.clock.after(700.0, world._cancel_one)
        world.run()
        found.append([*world.service.journal])
    return tuple(found)


def occurrences(kind: type[ev.Event], parts: range) -> list[tuple[list[ev.Event], int]]:
    """Return some of the places at which a kind of event occurs: story and index.

    ``parts``: 0 is where it occurs first, 1 in the middle of the story, 2 at its end, with the whole story before it.
    """
    found = []
    for story in stories():
        places = [number for number, event in enumerate(story) if type(event) is kind]
        some = places[:: max(1, len(places) // 2)]
        found += [(story, some[part]) for part in parts if part < len(some)]
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [kind for kind in ev.EVENT_TYPES if kind not in OF_OTHERS])
@pytest.mark.parametrize(
    "parts", [range(1), pytest.param(range(1, 3), marks=pytest.mark.nightly)], ids=["early", "late"]
)
def test_a_defect_leaves_the_state_without_the_event(kind: type[ev.Event], place: str, parts: range) -> None:
    """The state is the one of the journal without it, all invariants hold, and what comes later is handled."""
    met = occurrences(kind, parts)
    assert met or parts.start > 0, "the stories do not contain it"
    for story, number in met:
        store, owner = MemoryStore(), RecordingOwner()
        failing = replace(story[number])
        defects = Defects()
        setattr(defects, place, lambda event, failing=failing: event is failing)
        loop = EventLoop(defects.make(None), store, RecordingEffector(), owner, make=defects.make)
        for event in story[:number]:
            loop.post(event)
        loop.post(failing)
        assert owner.rebuilt_often == 1
        assert list(store.left_out) == [number + 1]
        postponed = [ev.TimersPostponed(time=failing.time, seconds=60.0)] if kind is ev.TimeReached else []
        assert store.events[number + 1 :] == postponed
        assert loop.scheduler.state == without(store, defects)
        recount(loop.scheduler.state)
        check_progress(loop.scheduler.state)
        for event in story[number + 1 : number + 40]:
            loop.post(event)
            recount(loop.scheduler.state)
        assert loop.scheduler.state == rebuilt(store, Scheduler).state


def without(store: MemoryStore, defects: Defects) -> object:
    """Return the state that the events lead to which are not set aside, as handled by another scheduler."""
    scheduler = defects.make(None)
    for number, event in enumerate(store.events, start=1):
        if number not in store.left_out:
            scheduler.handle(event)
    return scheduler.state
