# SPDX-License-Identifier: Apache-2.0
"""Runner of workers: what is started and asked to end as a job changes its size, and who is told of its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from koala_adapter.model import (
    BatchKey,
    ClusterName,
    Component,
    EndReason,
    Job,
    JobId,
    JobKind,
    PlaceholderId,
    Retirement,
    RunnerName,
    TaskEnd,
)
from koala_adapter.runners.adaptive import WalltimeNotices
from koala_adapter.runners.notes import Note, note
from koala_adapter.runners.runner import AddressedLaunch, AddressedSignal, Application, Order
from koala_adapter.runners.workers import WorkersRunner
from koala_adapter.scheduler.actions import Rank

BETA = ClusterName("beta")
WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)


def rank(number: int, cluster: str = "beta", component: str = "worker") -> Rank:
    return Rank(
        rank=number,
        component=component,
        component_rank=number,
        placeholder=PlaceholderId(batch=BatchKey("koala-k-1"), index=number + 1),
        host="n1",
        address=f"10.0.0.{number}",
        cluster=ClusterName(cluster),
    )


def application(*workers: Rank, retirement: Retirement | None = None) -> Application:
    """Return a job of a head and workers."""
    components = (
        Component(name="head", command=("head",), minimum=1, maximum=1),
        Component(
            name="worker",
            command=("work",),
            minimum=1,
            maximum=9,
            flexible=True,
            retirement=retirement or Retirement(signal=2, grace=5),
        ),
    )
    job = Job(
        id=JobId("7"),
        name="j",
        kind=JobKind.MALLEABLE,
        components=components,
        walltime=60,
        user="u",
        submitted_at=0.0,
        runner=RunnerName.WORKERS,
    )
    ranks = (rank(0, "alpha", "head"), *workers)
    return Application(job=job, ranks=ranks, files={})


def signals(orders: Sequence[Order]) -> list[tuple[str, int]]:
    """Return the tasks and signals of orders that are all signals."""
    return [(one.signal.task, one.signal.signal) for one in orders if isinstance(one, AddressedSignal)]


def test_new_ranks_are_started_where_the_head_is_told() -> None:
    runner = WorkersRunner(application(rank(1)))
    launches = runner.grow(application(rank(1), rank(2), rank(3, "gamma")), [2, 3])
    assert [one.launch.task for one in launches] == ["7:2", "7:3"]
    environment = dict(launches[1].launch.environment)
    assert (environment["KOALA_HEAD_ADDRESS"], environment["KOALA_CLUSTER"]) == ("10.0.0.0", "gamma")


def test_those_that_came_last_leave_first_on_that_cluster() -> None:
    """The head, and workers elsewhere, are left alone; asking again for as many asks nobody else."""
    runner = WorkersRunner(application(rank(1), rank(2), rank(3, "gamma"), rank(4)))
    assert signals(runner.shrink("worker", BETA, 2, 100.0)) == [("7:4", 2), ("7:2", 2)]
    assert runner.shrink("worker", BETA, 2, 101.0) == []
    assert signals(runner.shrink("worker", BETA, 3, 102.0)) == [("7:1", 2)]


def test_nobody_is_asked_who_has_left_already() -> None:
    runner = WorkersRunner(application(rank(1), rank(2), rank(3), rank(4)))
    runner.shrink("worker", BETA, 2, 100.0)
    runner.ended("7:4", WELL, 101.0)
    runner.departed({3})
    assert signals(runner.shrink("worker", BETA, 1, 102.0)) == [("7:2", 2)]


def test_who_does_not_end_in_time_is_killed() -> None:
    runner = WorkersRunner(application(rank(1), rank(2), rank(3)))
    runner.shrink("worker", BETA, 3, 100.0)
    runner.ended("7:3", WELL, 101.0)
    assert (runner.next_kill, runner.kills(104.9)) == (105.0, [])
    runner.departed({2})
    assert signals(runner.kills(105.0)) == [("7:1", 9)]
    assert (runner.next_kill, runner.kills(105.0)) == (110.0, [])
    assert signals(runner.kills(110.0)) == [("7:1", 9)]


def test_a_command_may_ask_instead_of_a_signal() -> None:
    """It is run beside the worker, in its environment; what becomes of it means nothing for the ranks."""
    runner = WorkersRunner(application(rank(1), retirement=Retirement(command=("bye", "now"), grace=9)))
    (order,) = runner.shrink("worker", BETA, 1, 100.0)
    assert isinstance(order, AddressedLaunch)
    assert (order.launch.task, order.launch.argv, order.launch.time_limit) == ("7:1.retire", ("bye", "now"), 9.0)
    assert dict(order.launch.environment)["KOALA_RANK"] == "1"
    assert order.placeholder == rank(1).placeholder


def test_what_an_agent_may_have_missed_is_repeated() -> None:
    """The wish when there is time left, the kill when there is none; nothing to those who were not asked."""
    runner = WorkersRunner(application(rank(1), rank(2)))
    runner.shrink("worker", BETA, 1, 100.0)
    assert signals(runner.asked_again(rank(2), 101.0)) == [("7:2", 2)]
    assert signals(runner.asked_again(rank(2), 106.0)) == [("7:2", 9)]
    assert runner.asked_again(rank(1), 101.0) == ()


def test_a_runner_made_anew_asks_the_same_again() -> None:
    former = WorkersRunner(application(rank(1), rank(2), rank(3)))
    first = former.shrink("worker", BETA, 2, 100.0)
    anew = WorkersRunner(replace(application(rank(1), rank(2), rank(3))))
    assert anew.shrink("worker", BETA, 2, 200.0) == first


def test_workers_leave_before_the_walltime_ends() -> None:
    """Each is asked once, is killed when it takes too long, and is asked again by who does not know; never the head."""
    runner = WorkersRunner(application(rank(1), rank(2), rank(3, "gamma"), rank(4)))
    assert signals(runner.shrink("worker", BETA, 1, 100.0)) == [("7:4", 2)]
    runner.ended("7:1", WELL, 100.0)
    assert [one.rank for one in runner.staying] == [2, 3]
    assert signals(runner.retire([0, 1, 2, 4], 101.0)) == [("7:2", 2)]
    assert [one.rank for one in runner.staying] == [3]
    assert runner.retire([2], 102.0) == []
    assert signals(runner.asked_again(rank(2), 102.0)) == [("7:2", 2)]
    assert signals(runner.kills(106.0)) == [("7:2", 9), ("7:4", 9)]
    assert signals(runner.retire([3], 107.0)) == [("7:3", 2)]
    assert runner.staying == []


# -- The end of the walltime: who is told of it, when, and only who understands it.


HELLO = note("hello", ends=1)
EARLIER = note("hello")
"""Of a library that does not know the note."""


def told(notices: WalltimeNotices) -> list[tuple[int, int, str]]:
    """Return who is told now, how many seconds are left, and whether that is little."""
    return [(one.rank, one.note.number("in"), one.note.text("near")) for one in notices.take_tells()]


def hears(notices: WalltimeNotices, rank: int, said: Note, now: float) -> list[tuple[int, int, str]]:
    """Return what is told to a process that comes into contact, and to others."""
    notices.heard_hello(rank, said, now)
    return told(notices)


def test_the_end_comes_near_again_only_when_it_has_moved_away() -> None:
    notices = WalltimeNotices(60)
    assert notices.next_deadline() is None
    notices.ends(1000, [0], 5)
    assert (hears(notices, 0, HELLO, 5), notices.next_deadline()) == ([(0, 995, "0")], 940)
    notices.ends(1000.9, [0], 6)
    assert told(notices) == []  # it is only known a little better
    notices.time_passed(945)
    assert (told(notices), notices.next_deadline()) == ([(0, 55, "1")], None)
    notices.ends(990, [0], 947)
    assert (told(notices), notices.next_deadline()) == ([(0, 43, "1")], None)
    notices.ends(2000, [0], 948)
    assert (told(notices), notices.next_deadline()) == ([(0, 1052, "0")], 1940)
    notices.time_passed(2001)
    assert told(notices) == [(0, 0, "1")]


def test_who_is_in_contact_knows_the_end_and_hears_when_it_is_near() -> None:
    notices = WalltimeNotices(60)
    assert hears(notices, 0, HELLO, 0) == []
    notices.ends(1000, [0, 1], 0)
    (first,) = notices.take_tells()
    assert first.note.number("warn") == 60, "who is out of contact then knows it by itself"
    notices.ends(1000, [0, 1], 0)
    assert told(notices) == []
    assert hears(notices, 1, HELLO, 10) == [(1, 990, "0")]
    assert notices.next_deadline() == 940
    notices.time_passed(939)
    assert (told(notices), notices.warned) == ([], 0)
    notices.time_passed(940)
    assert (told(notices), notices.warned) == ([(0, 60, "1"), (1, 60, "1")], 2)
    assert notices.next_deadline() is None
    notices.lost(1)
    assert notices.warned == 1
    assert hears(notices, 1, HELLO, 990.5) == [(1, 9, "1")]


def test_libraries_of_earlier_versions_are_told_nothing() -> None:
    """They would complain of a note that they do not know. Nor is a process told that is gone."""
    notices = WalltimeNotices(60)
    notices.ends(1000, [0, 1], 0)
    assert hears(notices, 0, EARLIER, 0) == []
    assert hears(notices, 1, HELLO, 0) == [(1, 1000, "0")]
    notices.ends(900, [0], 0)
    assert hears(notices, 0, HELLO, 0) == [(0, 900, "0")]
    assert hears(notices, 0, EARLIER, 0) == []
    notices.time_passed(950)
    assert (told(notices), notices.warned) == ([], 0)


def test_a_job_may_do_without_the_warning() -> None:
    notices = WalltimeNotices(0)
    hears(notices, 0, HELLO, 0)
    notices.ends(1000, [0], 0)
    assert told(notices) == [(0, 1000, "0")]
    assert notices.next_deadline() is None
    notices.time_passed(999)
    assert (told(notices), notices.warned) == ([], 0)
