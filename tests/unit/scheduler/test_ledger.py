# SPDX-License-Identifier: Apache-2.0
"""The books of the scheduler: ledger, transitions, timetable and pieces of jobs."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from koala_adapter.errors import TransitionError
from koala_adapter.model import ClusterName, EndReason, Job, JobId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import Scheduler, ends, records, reports
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import LaunchJob
from koala_adapter.scheduler.claiming import exchange, results
from koala_adapter.scheduler.clusters import ClusterTable
from koala_adapter.scheduler.core import HANDLERS, JOB_TIMERS, PLACEHOLDER_TIMERS
from koala_adapter.scheduler.events import EVENT_TYPES
from koala_adapter.scheduler.malleable import changes, requests
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.scheduler.states import JOB_TRANSITIONS, PLACEHOLDER_TRANSITIONS, Ledger
from koala_adapter.scheduler.timers import Timer, TimerKind
from koala_adapter.scheduler.timetable import Timetable
from tests.unit.scheduler import test_malleability_state
from tests.unit.scheduler.malleable_site import MalleableSite, malleable, part
from tests.unit.scheduler.scheduler_site import A, B, C, Site, component, copied, job, launches, of_kind, submissions
from tests.unit.scheduler.test_state import eventful

# -- What is counted is true after any events, and one module alone writes it.


SCHEDULER = Path(records.__file__).parent
KEPT = frozenset(
    {
        "ending",
        "gathering",
        "held",
        "held_seconds",
        "held_until",
        "job_id",
        "live",
        "managed",
        "mixed",
        "offered",
        "pending",
        "phase",
        "processors_held",
        "queued",
        "state",
    }
)
"""Attributes of records that the ledger alone assigns."""
TABLES = frozenset({"batches", "changes", "jobs", "placeholders"})
"""Tables of the state, and of a job, that it alone changes."""
OWN = {("context.py", "self.state"), ("core.py", "self.state"), ("states.py", "self.job_id")}
"""Attributes of other objects with the same names, which are not records, in their constructors."""


def written(source: str) -> list[str]:
    """Return what a module assigns or deletes that is the ledger's."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del(), attr=name) if name in KEPT:
                found.append(ast.unparse(node))
            case ast.Subscript(
                ctx=ast.Store() | ast.Del(),
                value=ast.Attribute(value=ast.Name("state" | "record") | ast.Attribute(attr="state"), attr=name),
            ) if name in TABLES:
                found.append(ast.unparse(node))
            case ast.Subscript(ctx=ast.Store() | ast.Del(), value=ast.Attribute(attr="pending")):
                found.append(ast.unparse(node))
            case _:
                pass
    return found


def without_ledger(source: str) -> str:
    """Return the source of a module without the class that may write."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name == Ledger.__name__)]
    return ast.unparse(tree)


def test_nobody_else_writes_what_is_counted() -> None:
    """The source of the whole scheduler is read: counts, states, changes of size and tables have one writer."""
    others = {
        (path.name, target)
        for path in SCHEDULER.rglob("*.py")
        for target in written(without_ledger(path.read_text(encoding="utf-8")))
        if (path.name, target) not in OWN
    }
    assert others == set()


@pytest.mark.parametrize(
    "statement",
    [
        "cluster.offered += 1",
        "cluster.managed, x = 1, 2",
        "record.state = JobState.RUNNING",
        "state.clusters[name].ending -= 1",
        "change.phase = ChangePhase.OVER",
        "record.changes[number] = change",
        "del state.placeholders[id_]",
        "context.state.jobs[id_] = record",
        "cluster.pending[key] = 1",
    ],
)
def test_a_second_writer_is_found(statement: str) -> None:
    """The test above can fail."""
    assert written(statement)


@pytest.mark.parametrize("malleable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_counts_are_what_they_would_be_if_counted_again(seed: int, *, malleable: bool) -> None:
    site = test_malleability_state.eventful(seed)[0] if malleable else eventful(seed)
    again = copied(site.state)
    for cluster in again.clusters.values():
        cluster.managed = cluster.queued = cluster.ending = cluster.offered = cluster.gathering = -1
        cluster.pending = {}
    for record in again.jobs.values():
        record.live = record.held = record.processors_held = -1
    for batch in again.batches.values():
        batch.live = -1
    assert Scheduler(again).state == site.state
    assert [list(one.pending) for one in again.clusters.values()] == [
        list(one.pending) for one in site.state.clusters.values()
    ]


def test_placeholders_and_submissions_are_found_by_cluster() -> None:
    """Those of one cluster, in the order in which they came, also after some are gone and after a snapshot."""
    site = Site({"a": 4, "b": 4})
    for number in range(4):
        site.submit(job(str(number), 2))
    site.take_all()
    site.ended(site.claimed("1")[0].id)
    for state in (site.state, copied(site.state)):
        for name in (A, B):
            there = state.placeholders.on(name)
            assert there
            assert list(there.items()) == [(id_, one) for id_, one in state.placeholders.items() if one.cluster == name]
            batches = state.batches.on(name)
            assert list(batches.items()) == [(key, one) for key, one in state.batches.items() if one.cluster == name]
    for placeholder in list(site.state.placeholders.values()):
        site.ended(placeholder.id)
    assert not [id_ for id_ in site.state.placeholders.on(A) if id_ not in site.state.placeholders]


@dataclass(frozen=True)
class Somewhere:
    """A record of nothing else."""

    cluster: ClusterName


def test_records_by_cluster_follow_every_change_of_their_table() -> None:
    """Whatever dict can do: what is not in the table is on no cluster, and the other way round."""
    table = ClusterTable((n, Somewhere(A if n % 2 else B)) for n in range(8))
    changes: list[Callable[[], object]] = [
        lambda: table.pop(3),
        lambda: table.pop(3, None),
        lambda: table.setdefault(8, Somewhere(A)),
        lambda: table.setdefault(8, Somewhere(B)),
        lambda: table.update({9: Somewhere(B), 1: Somewhere(A)}),
        lambda: table.__ior__({10: Somewhere(A)}),
        table.popitem,
        table.clear,
    ]
    for change in changes:
        before = dict(table)
        change()
        for name in (A, B):
            assert dict(table.on(name)) == {key: one for key, one in table.items() if one.cluster == name}, before
    assert not table


# -- The tables of states, events and timers: all that can happen is in them, and nothing else is let through.


def test_every_event_and_timer_has_a_handler() -> None:
    """The tables of the chapters, put together, have each kind once."""
    assert set(HANDLERS) == set(EVENT_TYPES)
    chapters = (results, exchange, reports, ends, changes, requests)
    assert sum(len(chapter.HANDLERS) for chapter in chapters) + 11 == len(HANDLERS)
    handled_in_place = {TimerKind.SCAN, TimerKind.PAUSE, TimerKind.CHANGE}
    assert set(JOB_TIMERS) | set(PLACEHOLDER_TIMERS) | handled_in_place == set(TimerKind)
    assert len(JOB_TIMERS) + len(PLACEHOLDER_TIMERS) + len(handled_in_place) == len(TimerKind)


def test_every_state_can_be_reached() -> None:
    """From where a job or placeholder begins there is a way to each state, but not out of those that are final."""
    reached = {JobState.WAITING}
    for _ in JobState:
        reached |= {target for source in reached for target in JOB_TRANSITIONS[source]}
    assert reached == set(JobState)
    assert not [one for one, targets in JOB_TRANSITIONS.items() if one.final and any(not to.final for to in targets)]
    assert {target for targets in PLACEHOLDER_TRANSITIONS.values() for target in targets} == set(PlaceholderState) - {
        PlaceholderState.SUBMITTED
    }


def test_a_move_that_no_table_has_is_refused() -> None:
    """It would be a defect: the job, its placeholder and its change stay as they are, and are counted as before."""
    site = MalleableSite({"a": 8})
    site.start(malleable("1", part(2, 8)))
    ledger, record, placeholder = site.scheduler.ledger, site.record("1"), site.claimed("1")[0]
    (change,) = record.changes.values()
    before = copied(site.state)
    with pytest.raises(TransitionError, match="job 1 cannot go from 'running' to 'claiming'"):
        ledger.move_job(record, JobState.CLAIMING)
    with pytest.raises(TransitionError, match=f"placeholder {placeholder.id} cannot go from 'launched' to 'queued'"):
        ledger.move(placeholder, PlaceholderState.QUEUED)
    with pytest.raises(TransitionError, match="of job 1 cannot go from 'asked' to 'taking'"):
        ledger.move_change(record, change, ChangePhase.TAKING)
    assert site.state == before


# -- Timers are kept once, by the records: what no record keeps does not fire, and the order can be made from them.


def fired(timetable: Timetable) -> list[Timer]:
    taken = []
    while (at := timetable.next_at) is not None:
        timer = timetable.take_due(at)
        assert timer is not None
        taken.append(timer)
    return taken


def waiting_site() -> Site:
    """Return a site with one job that waits for its placeholders; nothing is timed but by the tests."""
    site = Site({"a": 4})
    site.submit(job("1", 2))
    site.state.scan_due = None
    return site


def test_a_timer_that_is_set_again_fires_once() -> None:
    """At the later time only; set for the same time again, it keeps its place before those that came in between."""
    site = waiting_site()
    record, timetable = site.record("1"), Timetable(site.state)
    first, second = site.claimed("1")
    timetable.for_job(record, TimerKind.LIFE, 1.0)
    timetable.for_job(record, TimerKind.LIFE, 5.0)
    timetable.for_placeholder(first, TimerKind.ENDING, 3.0)
    timetable.for_placeholder(second, TimerKind.ENDING, 3.0)
    timetable.for_placeholder(first, TimerKind.ENDING, 3.0)
    assert timetable.take_due(2.9) is None
    assert [(timer.at, timer.placeholder) for timer in fired(timetable)] == [
        (3.0, first.id),
        (3.0, second.id),
        (5.0, None),
    ]
    assert not record.timers


def test_what_its_record_does_not_keep_is_passed_over() -> None:
    site = waiting_site()
    timetable, cluster = site.scheduler.timetable, site.state.clusters[A]
    timetable.for_job(site.record("1"), TimerKind.RECLAIM, site.now + 1.0)
    del site.record("1").timers[TimerKind.RECLAIM]
    first = site.claimed("1")[0]
    timetable.for_placeholder(first, TimerKind.SILENCE, site.now + 2.0)
    site.scheduler.ledger.remove(first)
    for seconds in (3.0, 4.0):
        cluster.paused_until = site.now + seconds
        timetable.for_cluster(cluster, cluster.paused_until)
    assert timetable.next_at == site.now + 4.0
    assert len(fired(timetable)) == 1
    assert len(timetable) == 0


def test_pauses_that_end_together_have_one_timer() -> None:
    site = waiting_site()
    timetable, cluster = site.scheduler.timetable, site.state.clusters[A]
    at = site.now + 3.0
    cluster.paused_until = cluster.no_growth_before = at
    for _ in range(3):
        timetable.for_cluster(cluster, at)
    assert len(timetable) == len(Timetable(copied(site.state)))
    assert [timer.at for timer in fired(timetable) if timer.kind is TimerKind.PAUSE] == [at]


@pytest.mark.parametrize("malleable", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_order_can_be_made_from_the_records(seed: int, *, malleable: bool) -> None:
    scheduler = Scheduler()
    for event in (test_malleability_state.eventful(seed)[0] if malleable else eventful(seed)).events:
        scheduler.handle(event)
    again = Timetable(copied(scheduler.state))
    assert len(again) == len(scheduler.timetable)

    def subject(timer: Timer) -> tuple[float, str, object]:
        return timer.at, timer.kind.value, timer.job_id or timer.placeholder or timer.cluster

    ours = fired(scheduler.timetable)
    pauses = {subject(timer) for timer in ours if timer.kind is TimerKind.PAUSE}
    others = [subject(timer) for timer in ours if timer.kind is not TimerKind.PAUSE]
    remade = fired(again)
    assert [subject(timer) for timer in remade if timer.kind is not TimerKind.PAUSE] == others
    assert {subject(timer) for timer in remade if timer.kind is TimerKind.PAUSE} == pauses


def test_a_job_that_is_over_has_no_timers() -> None:
    site = Site({"a": 4}, Parameters(placeholder_life=100.0))
    site.queue(job("1", 2))
    site.hold(site.claimed("1")[0].id)
    assert TimerKind.LIFE in site.record("1").timers
    site.cancel("1")
    assert site.state.jobs[JobId("1")].timers == {}


# -- Flexible components in the scheduler: claimed in pieces, launched as one, placed again piece by piece.


FLEXIBLE = "flexible-cluster-minimization"
PARAMETERS = Parameters(placeholder_life=500.0, backoff=50.0)


def flexible_job(id_: str, size: int, maximum: int | None = None, *, placement: str = FLEXIBLE, **more: int) -> Job:
    return job(id_, replace(component("x", size, maximum), flexible=True), placement=placement, **more)


def pieces_claims(site: Site, id_: str = "1") -> list[tuple[str | None, int, int | None]]:
    """Return cluster, processors and piece of each claim."""
    return [(claim.cluster, claim.processors, claim.piece) for claim in site.record(id_).claims]


@pytest.mark.parametrize(
    ("one", "where", "pieces"),
    [
        (flexible_job("1", 9), {"a": 6, "b": 3}, [("a", 6, 6), ("b", 3, 3)]),
        (flexible_job("1", 5), {"a": 5}, [("a", 5, None)]),
        # 7 to 10 on 6 and 6: claimed 6 and 4, of which the second piece needs 1.
        (flexible_job("1", 7, 10), {"a": 6, "b": 4}, [("a", 6, 6), ("b", 4, 1)]),
    ],
    ids=["two pieces", "one claim", "moldable"],
)
def test_pieces_are_claimed_on_their_clusters(
    one: Job, where: dict[str, int], pieces: list[tuple[str, int, int | None]]
) -> None:
    """With one submission for each."""
    site = Site({"a": 6, "b": 6})
    assert submissions(site.submit(one)) == where
    assert pieces_claims(site) == pieces


def test_ranks_are_numbered_through_the_pieces() -> None:
    """To the program it is one component: component ranks 0 to 8, each with its cluster; also after a restart."""
    site = Site({"a": 6, "b": 6})
    site.submit(flexible_job("1", 9))
    site.scheduler = Scheduler(copied(site.state))
    site.take_all()
    (launch,) = of_kind(LaunchJob, site.hold_all("1"))
    assert [rank.component_rank for rank in launch.ranks] == list(range(9))
    assert Counter(rank.cluster for rank in launch.ranks) == {"a": 6, "b": 3}
    assert {rank.component for rank in launch.ranks} == {"x"}
    site.complete("1")
    assert site.outcome("1").state is JobState.COMPLETED


def lose(site: Site, *clusters: ClusterName) -> None:
    """Have the placeholders of job 1 on clusters be lost, and the clusters out of reach."""
    for placeholder in site.claimed("1"):
        if placeholder.cluster in clusters:
            site.ended(placeholder.id, EndReason.NODE_LOST)
    for name in clusters:
        site.post(ev.ClusterUnavailable(time=site.now, cluster=name, reason="down"))


@pytest.mark.parametrize(
    ("processors", "size", "elsewhere"),
    [({"a": 6, "b": 4, "c": 3}, 9, {"c": 3}), ({"a": 6, "b": 4, "c": 2, "d": 2}, 10, {"c": 2, "d": 2})],
    ids=["whole", "split again"],
)
def test_only_the_piece_that_failed_is_placed_again(
    processors: dict[str, int], size: int, elsewhere: dict[str, int]
) -> None:
    """The one on a stays (incremental claiming)."""
    site = Site(processors, PARAMETERS)
    site.queue(flexible_job("1", size))
    site.hold_all("1", "a")
    kept = [p.id for p in site.claimed("1") if p.cluster == A]
    lose(site, B)
    assert submissions(site.pass_time(100.0)) == elsewhere
    assert pieces_claims(site) == [("a", 6, 6), *((name, count, count) for name, count in elsewhere.items())]
    assert [p.id for p in site.claimed("1") if p.cluster == A] == kept
    site.take_all()
    assert launches(site.hold_all("1")) == ["1"]


def test_lost_pieces_are_explained_as_one() -> None:
    """Two pieces that are lost and cannot be had again now are one need, in its full size."""
    site = Site({"a": 6, "b": 2, "c": 2}, PARAMETERS)
    site.queue(flexible_job("1", 10))
    site.hold_all("1", "a")
    lose(site, B, C)
    site.pass_time(100.0)
    assert pieces_claims(site) == [("a", 6, 6), (None, 0, 4)]
    said = site.explained()
    assert said.startswith("The job holds 6 of 10 processors (6 of 6 on a, 0 of 4 on no cluster yet for 'x')")


def test_pieces_are_one_component_again_in_the_queue() -> None:
    """A job that lost everything is placed anew as a whole: now on one cluster."""
    site = Site({"a": 6, "b": 4}, PARAMETERS)
    site.queue(flexible_job("1", 9))
    for placeholder in site.claimed("1"):
        site.ended(placeholder.id, EndReason.NODE_LOST)
    assert site.record("1").state is JobState.WAITING
    assert pieces_claims(site) == [(None, 0, None)]
    site.poll("b", 12)
    site.pass_time(100.0)
    assert pieces_claims(site) == [("b", 9, None)]


def test_refusal_of_one_piece_excludes_that_cluster_for_it() -> None:
    site = Site({"a": 6, "b": 5, "c": 4}, PARAMETERS)
    site.submit(flexible_job("1", 9))
    refused = next(batch.key for batch in site.state.batches.values() if batch.cluster == B)
    done = site.post(ev.BatchRejected(time=site.now, batch=refused, reason="no account"))
    done += site.pass_time(2.0)
    assert submissions(done) == {"c": 3}
    assert pieces_claims(site) == [("a", 6, 6), ("c", 3, 3)]


def test_large_flexible_job_waits_for_the_sum() -> None:
    """All clusters count for it, also those that are smaller than it is; it starts as soon as the sum suffices."""
    site = Site({"a": 6, "b": 6})
    site.start(job("small", component("y", 4, cluster="a")))
    site.submit(flexible_job("1", 9))
    assert site.explained() == (
        "The job is number 1 in the queue and needs 9 processors on one or more clusters. "
        "It starts when that can be had at once: a has room for 2; b has room for 6."
    )
    site.finish("small")
    assert pieces_claims(site) == [("b", 6, 6), ("a", 3, 3)]


def test_policy_that_does_not_split_keeps_it_whole() -> None:
    site = Site({"a": 6, "b": 12})
    site.submit(flexible_job("1", 9, placement="worst-fit"))
    assert pieces_claims(site) == [("b", 9, None)]
    site.submit(flexible_job("2", 13, placement="worst-fit"))
    assert site.record("2").state is JobState.REFUSED
    assert site.outcome("2").detail.endswith("at most 12 can be used there); its placement policy splits no components")
