# SPDX-License-Identifier: Apache-2.0
"""What a judge of listings tells of others: only jobs that wait, and processors that they have, at two looks."""

from __future__ import annotations

from koala_adapter.scheduler import events as ev
from koala_adapter.service.listings import ClusterObservation, Judgement, ListingJudge
from tests.unit.scheduler.scheduler_site import A, Site, job


class Looks:
    """A judge of the cluster ``a``, and what it told at its latest look."""

    def __init__(self) -> None:
        self.site = Site({"a": 8})
        self.judge = ListingJudge(A, user="me", begun_at=0.0)

    def look(self, *waiting: int, idle: int = 0, ours: int = 0) -> Judgement:
        self.site.now += 1.0
        seen = ClusterObservation(
            read_at=self.site.now, processors=8, idle=idle, ours=ours, jobs=(), others_waiting=waiting
        )
        return self.judge.judge(self.site.state, seen, now=self.site.now, in_contact=lambda _: False)


def told(judgement: Judgement) -> list[tuple[int, ...]]:
    return [one.others_waiting for one in judgement.events if isinstance(one, ev.ClusterPolled)]


def counted(judgement: Judgement) -> list[tuple[int, int]]:
    return [(one.idle, one.ours) for one in judgement.events if isinstance(one, ev.ClusterPolled)]


def test_who_waits_is_told_of_at_the_second_look() -> None:
    """The first one may have listed them just before they were started; so the next one is not put off."""
    looks = Looks()
    first = looks.look(3, 1)
    assert (told(first), first.restless) == ([()], True)
    second = looks.look(3, 1)
    assert (told(second), second.restless) == ([(3, 1)], False)


def test_who_is_started_meanwhile_is_never_told_of() -> None:
    """What waits still, and comes later, keeps the order of its queue."""
    looks = Looks()
    looks.look(1, 1, 1)
    assert told(looks.look(1, 2)) == [(1,)]
    assert told(looks.look(2, 1)) == [(2, 1)]


def test_placeholders_that_start_during_a_look_do_not_seem_to_be_of_others() -> None:
    """As long as ours wait, others have further processors when they have them at two looks."""
    looks = Looks()
    looks.site.submit(job("1", 2))
    looks.look(idle=2, ours=4)
    assert counted(looks.look(idle=0, ours=4)) == [(0, 6)]
    assert counted(looks.look(idle=0, ours=4)) == [(0, 4)]
    assert counted(looks.look(idle=0, ours=6)) == [(0, 6)]


def test_what_others_have_is_told_at_once_where_none_of_ours_waits() -> None:
    """Then nothing of ours can have been started during the look."""
    looks = Looks()
    looks.look(idle=4, ours=4)
    assert counted(looks.look(idle=2, ours=4)) == [(2, 4)]


def test_a_look_after_ours_have_left_is_told_in_any_case() -> None:
    """Also where it shows the same: by it the scheduler decides what the former left open."""
    looks = Looks()
    assert len(told(looks.look(ours=4))) == 1
    assert len(told(looks.look(ours=4))) == 0
    assert len(told(looks.look(ours=2))) == 1
    assert len(told(looks.look(ours=2))) == 1
    assert len(told(looks.look(ours=2))) == 0
