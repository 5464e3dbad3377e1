# SPDX-License-Identifier: Apache-2.0
"""A scheduler with defects where a test wants them, and an effector and owner of a loop that keep what they hear.

The scheduler fails on events that are named, before or after it took them in. An event is known by its identity or
equality, so that the same defect shows again whenever the event is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from koala_adapter.errors import KoalaError
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler.actions import Action
from koala_adapter.scheduler.context import Context, RecordedBatches
from koala_adapter.scheduler.events import Event
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.records import State
from koala_adapter.scheduler.timetable import advance


class InjectedError(Exception):
    """The defect of a test."""


@dataclass
class Defects:
    """Where the schedulers made by :meth:`make` fail."""

    before: Callable[[Event], bool] = field(default=lambda _: False)
    """Fails once the clock has been moved and nothing else has changed."""
    within: Callable[[Event], bool] = field(default=lambda _: False)
    """Fails when the event has been taken in, and what follows from it has not been done."""
    after: Callable[[Event], bool] = field(default=lambda _: False)
    """Fails when everything has changed, and the actions are lost."""

    policies: Policies = OWN

    def make(self, state: State | None) -> Scheduler:
        return FailingScheduler(self, state)


class FailingScheduler(Scheduler):
    """Fails where its defects are."""

    def __init__(self, defects: Defects, state: State | None = None) -> None:
        super().__init__(state, defects.policies)
        self._defects = defects
        self._event: Event | None = None

    def handle(self, event: Event, recorded: RecordedBatches | None = None) -> list[Action]:
        self._event = event
        if self._defects.before(event):
            advance(self.state, event.time)
            raise InjectedError(f"before {type(event).__name__}")
        actions = super().handle(event, recorded)
        if self._defects.after(event):
            raise InjectedError(f"after {type(event).__name__}")
        return actions

    def _decide(self, context: Context) -> None:
        if self._event is not None and self._defects.within(self._event):
            raise InjectedError(f"within {type(self._event).__name__}")
        super()._decide(context)


class RecordingEffector:
    """Does nothing; fails as a test says."""

    def __init__(self) -> None:
        self.done: list[Action] = []
        self.error: Exception | None = None

    def carry_out(self, action: Action) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(action)


class RecordingOwner:
    """Hears of everything."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.settled_often = self.halted_often = self.rebuilt_often = self.snapshots_begun = 0
        self.set_aside: list[Event] = []
        """In the latest rebuild."""
        self.failure: KoalaError | None = None

    def handled(self, event: Event) -> None:
        self.events.append(event)

    def settled(self) -> None:
        self.settled_often += 1

    def halted(self) -> None:
        self.halted_often += 1

    def snapshot_begun(self) -> None:
        self.snapshots_begun += 1

    def state_rebuilt(self, set_aside: Sequence[Event]) -> None:
        self.rebuilt_often += 1
        self.set_aside = list(set_aside)

    def failed(self, error: KoalaError) -> None:
        self.failure = error
