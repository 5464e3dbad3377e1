# SPDX-License-Identifier: Apache-2.0
"""An effector and owner of a loop that keep what they hear."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.errors import KoalaError
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.events import Event


class RecordingEffector:
    """Does nothing; fails as a test says."""

    def __init__(self) -> None:
        self.done: list[Action] = []
        self.error: Exception | None = None

    def _do(self, action: Action) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(action)

    submit_placeholders = end_placeholders = launch_job = offer_processors = request_processors = _do
    take_processors = withdraw_offer = grant_processors = read_output = finish_job = correct_outcome = _do
    report_refused_answer = _do


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
