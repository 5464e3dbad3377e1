# SPDX-License-Identifier: Apache-2.0
"""The service clock goes forward by what has really passed, whatever is done to the time of day."""

from __future__ import annotations

import time

import pytest

from koala_adapter.host.clock import HostClocks, ServiceClock, seconds_since_boot
from tests.unit.service.clocks import HOUR, NOON, SteppedClocks


def test_it_begins_at_the_time_of_day() -> None:
    """Without a past it shows what people's clocks show."""
    assert ServiceClock(SteppedClocks().clocks).now() == pytest.approx(NOON)


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_a_step_of_the_time_of_day_does_not_move_it(step: float) -> None:
    """It goes on by the seconds that pass; people read the time that agrees with their clock."""
    machine = SteppedClocks()
    clock = ServiceClock(machine.clocks)
    machine.passes(10)
    machine.is_set(step)
    machine.passes(5)
    assert clock.now() == pytest.approx(NOON + 15)
    assert clock.now() + clock.offset == pytest.approx(machine.time_of_day)


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_a_restart_on_the_same_boot_continues_exactly(step: float) -> None:
    """The time of day may be set before, while and after nobody was there."""
    machine = SteppedClocks()
    former = ServiceClock(machine.clocks)
    machine.is_set(step)
    machine.passes(20)
    before = former.reading()
    machine.is_set(step)
    machine.passes(30)
    clock = ServiceClock(machine.clocks, before=before, latest=before.time)
    assert clock.now() == pytest.approx(NOON + 50)


def test_after_another_boot_the_time_of_day_says_how_long_the_machine_was_away() -> None:
    """What was wrong with the time of day before does not matter."""
    machine = SteppedClocks()
    former = ServiceClock(machine.clocks)
    machine.is_set(2 * HOUR)
    machine.passes(20)
    before = former.reading()
    machine.reboots(100)
    clock = ServiceClock(machine.clocks, before=before, latest=before.time)
    assert clock.now() == pytest.approx(NOON + 120)
    assert clock.offset == pytest.approx(2 * HOUR)


def test_after_another_boot_with_a_clock_set_back_it_stands_where_it_was() -> None:
    """It never goes back behind the last event."""
    machine = SteppedClocks()
    before = ServiceClock(machine.clocks).reading()
    machine.reboots(-2 * HOUR)
    clock = ServiceClock(machine.clocks, before=before, latest=NOON + 1)
    assert clock.now() == pytest.approx(NOON + 1)
    machine.passes(9)
    assert clock.now() == pytest.approx(NOON + 10)


def test_where_boots_have_no_name_the_time_of_day_is_asked() -> None:
    """Two boots that are not known are not the same one."""
    machine = SteppedClocks(boot="")
    before = ServiceClock(machine.clocks).reading()
    machine.passes(60)
    machine.since_boot = 3.0
    assert ServiceClock(machine.clocks, before=before).now() == pytest.approx(NOON + 60)


def test_a_journal_without_readings_goes_on_by_the_time_of_day_but_never_back() -> None:
    """What versions before this clock have noted were times of day."""
    machine = SteppedClocks()
    assert ServiceClock(machine.clocks, latest=NOON - 60).now() == pytest.approx(NOON)
    assert ServiceClock(machine.clocks, latest=NOON + 60).now() == pytest.approx(NOON + 60)


def test_what_is_shown_does_not_tremble() -> None:
    """Two clocks are never read at the same moment; a time that was shown stays what it was until somebody sets one."""
    machine = SteppedClocks()
    clock = ServiceClock(machine.clocks)
    machine.is_set(0.4)
    assert clock.offset == 0.0
    machine.is_set(2 * HOUR)
    shown = clock.offset
    machine.is_set(-0.3)
    assert clock.offset == shown == pytest.approx(2 * HOUR + 0.4)


def test_it_tells_once_by_how_much_the_time_of_day_was_set() -> None:
    """A slow correction is none."""
    machine = SteppedClocks()
    clock = ServiceClock(machine.clocks)
    machine.passes(1000)
    machine.is_set(0.2)
    assert clock.step() == 0.0
    machine.is_set(-2 * HOUR)
    assert clock.step() == pytest.approx(0.2 - 2 * HOUR)
    assert clock.step() == 0.0


def test_this_machine_has_the_clocks() -> None:
    """Time since boot passes as monotonic time does, and a boot has a name."""
    clocks = HostClocks.of_this_machine()
    assert seconds_since_boot() >= time.monotonic() - 1
    assert clocks.boot
    clock = ServiceClock()
    assert abs(clock.offset) < 1
    first = clock.now()
    assert clock.now() >= first
