# SPDX-License-Identifier: Apache-2.0
"""The end of the walltime: who is told of it, when, and only who understands it."""

from __future__ import annotations

from koala_adapter.runners.adaptive import WalltimeNotices
from koala_adapter.runners.coordinator import Note, note
from koala_adapter.runners.workers import WalltimeMonitor, WalltimeNear

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


def test_the_event_comes_once() -> None:
    """Again only when the end has moved away in between."""
    monitor = WalltimeMonitor(60)
    assert (monitor.due, monitor.observe(5)) == (None, None)
    monitor.move(1000, now=5)
    assert (monitor.due, monitor.observe(939)) == (940, None)
    assert monitor.observe(945) == WalltimeNear(55)
    assert (monitor.due, monitor.observe(946)) == (None, None)
    monitor.move(990, now=947)
    assert monitor.observe(947) is None
    monitor.move(2000, now=948)
    assert (monitor.due, monitor.observe(2001)) == (1940, WalltimeNear(0))


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


def test_an_end_that_moves_is_told_again() -> None:
    """Not when it is only known a little better; and when it has moved away, it is no longer near."""
    notices = WalltimeNotices(60)
    notices.ends(1000, [0], 0)
    hears(notices, 0, HELLO, 0)
    notices.ends(1000.9, [0], 1)
    assert told(notices) == []
    notices.ends(500, [0], 450)
    assert told(notices) == [(0, 50, "1")]
    notices.ends(2000, [0], 451)
    assert told(notices) == [(0, 1549, "0")]
    notices.ends(10, [0], 451)
    assert told(notices) == [(0, 0, "1")]


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
