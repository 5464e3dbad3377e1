# SPDX-License-Identifier: Apache-2.0
"""A defect in each handler, at several places in it: what it left half changed never lives on.

The events are those of schedules of faults, so each handler is met in the states that occur.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import pytest

from koala_adapter.driver.loop import EventLoop
from koala_adapter.driver.store import MemoryStore, rebuilt
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from tests.faults.__main__ import KINDS
from tests.faults.world import World, check_progress
from tests.unit.driver.failing_scheduler import Defects
from tests.unit.driver.recording_effector import RecordingEffector, RecordingOwner
from tests.unit.scheduler.scheduler_site import recount

if TYPE_CHECKING:
    from tests.faults.lrm import SimulatedLrm

PLACES = ("before", "within", "after")
EARLY, LATE = range(2), range(2, 3)
"""Which occurrences of an event are taken."""
OF_OTHERS = {ev.HoldsSeen, ev.SuspensionsSeen, ev.TimersPostponed}
"""Kinds of event that do not occur in schedules without defects."""


def _switch(lrm: SimulatedLrm, *, up: bool) -> None:
    lrm.up = up


@cache
def stories() -> tuple[list[ev.Event], ...]:
    """Return the journals of three schedules, in which all kinds of event occur."""
    found = []
    for seed, kind in ((0, "rigid"), (4, "malleable"), (1, "adaptive")):
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
    "parts", [range(2), pytest.param(range(2, 3), marks=pytest.mark.nightly)], ids=["early", "late"]
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
