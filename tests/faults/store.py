# SPDX-License-Identifier: Apache-2.0
"""A journal for schedules of faults: its owner can be killed at each of its writes, and it can be full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.driver.store import MemoryStore
from koala_adapter.errors import JournalBlockedError
from tests.unit.scheduler.scheduler_site import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from koala_adapter.scheduler.context import NumberedBatch
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import State


GROUPS = 3
"""Pauses in the writing of a snapshot."""


class Killed(BaseException):
    """The process that wrote to the journal is gone."""


class FaultyStore(MemoryStore):
    """Keeps all events beside the snapshots, so that a recovery from either can be compared."""

    def __init__(self, strikes: Callable[[int], bool]) -> None:
        """``strikes``: whether the writer is killed at this moment: before or after each write, numbered from 0."""
        super().__init__()
        self.full = False
        self.moments = 0
        self.killed_within = False
        """Its owner was killed when an event was written that he had not taken in yet."""
        self.snapshots: list[tuple[int, State]] = []
        self._strikes = strikes

    def _moment(self) -> None:
        self.moments += 1
        if self._strikes(self.moments - 1):
            self.killed_within = True
            raise Killed

    def _write(self) -> None:
        if self.full:
            raise JournalBlockedError("no space left")

    def append(self, event: Event) -> int:
        self._write()
        self._moment()
        number = super().append(event)
        self._moment()
        return number

    def note_batch(self, batch: NumberedBatch) -> None:
        self._write()
        self._moment()
        super().note_batch(batch)
        self._moment()

    def probe(self) -> None:
        self._write()

    def sync(self) -> None:
        self._write()
        self._moment()

    def snapshot_in_groups(self, state: State, number: int) -> Generator[None, None, None]:
        begun = copied(state)
        for _ in range(GROUPS):
            self._write()
            self._moment()
            yield
        assert state == begun, "the state has changed while a snapshot of it was being written"
        self.snapshots.append((number, begun))

    def set_aside(self, number: int, event: Event, failure: str) -> None:
        assert "InjectedError: " in failure, f"a defect that is nobody's fault but ours: {failure}"
        self._write()
        self._moment()
        super().set_aside(number, event, failure)
        self._moment()

    def recover(self) -> tuple[State | None, Generator[tuple[int, Event], None, None]]:
        after, state = self.snapshots[-1] if self.snapshots else (0, None)
        numbered = enumerate(list(self.events), start=1)
        events = ((number, event) for number, event in numbered if number > after and number not in self.left_out)
        return None if state is None else copied(state), events
