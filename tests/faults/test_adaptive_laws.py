# SPDX-License-Identifier: Apache-2.0
"""What the schedules of faults hold against changes of adaptive jobs: those that wait in line are no violation."""

from __future__ import annotations

import pytest

from koala_adapter.model import JobId
from koala_adapter.scheduler import events as ev
from tests.faults.adaptivelaws import LONGEST_CHANGE, AdaptiveLaws
from tests.unit.scheduler.test_joint_growth import JointSite

BEGINNING = 0.0
"""The service was not disturbed since."""


class WatchedSite(JointSite):
    """A job of which two changes are under way, the first one on the second cluster, under the laws."""

    def __init__(self) -> None:
        """The newcomers of both have been started."""
        super().__init__()
        self.laws = AdaptiveLaws()
        self.first = self.want(2, 1, cluster="b").number
        self.all_started(self.hold_stubs())
        self.second = self.want(1, 2, cluster="a").number
        self.all_started(self.hold_stubs())
        self.check_after(0.0)

    def check_after(self, seconds: float) -> None:
        """Let time pass, then look."""
        self.now += seconds
        self.laws.check(self.state, self.now, BEGINNING)

    def refuse(self, number: int) -> None:
        """Have the processes not be brought to a change."""
        self.post(ev.ChangeGivenUp(time=self.now, job_id=JobId("1"), number=number, reason="too late"))


def test_a_change_in_line_behind_one_that_is_carried_out() -> None:
    """The processes may take their time for the first; the time of the second begins when that one is made."""
    site = WatchedSite()
    site.at_point(site.first)
    site.check_after(4 * LONGEST_CHANGE)
    site.now += 1.0
    site.made(number=site.first)
    site.check_after(0.0)
    site.check_after(LONGEST_CHANGE - 1.0)
    with pytest.raises(AssertionError, match=f"change {site.second} is neither made nor given up"):
        site.check_after(1.0)


def test_a_change_in_line_behind_one_that_is_given_up() -> None:
    """Likewise."""
    site = WatchedSite()
    site.now += LONGEST_CHANGE - 1.0
    site.refuse(site.first)
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
    site.at_point(site.second)
    site.made(number=site.second)
    site.check_after(0.0)
    third = site.want(1, 3, cluster="a").number
    site.all_started(site.hold_stubs())
    site.check_after(LONGEST_CHANGE - 1.0)
    site.at_point(third)
    with pytest.raises(AssertionError, match=f"change {site.first} is neither made nor given up"):
        site.check_after(1.0)
