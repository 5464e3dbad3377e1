# SPDX-License-Identifier: Apache-2.0
"""A journal in memory, for whatever ends with its process: simulations and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.batchnumbers import batch_number

if TYPE_CHECKING:
    from collections.abc import Generator

    from koala_adapter.scheduler.batchnumbers import NumberedBatch
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import State


class MemoryStore:
    """All events, in their order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.left_out: dict[int, str] = {}
        """Numbers (from 1) of the events that are set aside, each with the traceback."""
        self._batches: list[NumberedBatch] = []

    def append(self, event: Event) -> int:
        """See WritableStore."""
        self.events.append(event)
        return len(self.events)

    def sync(self) -> None:
        """See WritableStore."""

    def probe(self) -> None:
        """See WritableStore."""

    def snapshot_in_groups(self, state: State, number: int) -> Generator[None, None, None]:  # noqa: ARG002 - of all stores
        """See WritableStore: the events are all kept, so none is needed."""
        yield from ()

    def set_aside(self, number: int, event: Event, failure: str) -> None:  # noqa: ARG002 - it is in the list
        """See EventStore."""
        self.left_out[number] = failure

    def note_batch(self, batch: NumberedBatch) -> None:
        """See EventStore."""
        self._batches.append(batch)

    def batches(self) -> list[NumberedBatch]:
        """See EventStore."""
        return list(self._batches)

    def largest_batch_number(self) -> int:
        """See EventStore."""
        return max((batch_number(one.key) for one in self._batches), default=0)

    def recover(self) -> tuple[State | None, Generator[tuple[int, Event], None, None]]:
        """See EventStore."""
        numbered = enumerate(list(self.events), start=1)
        return None, ((number, event) for number, event in numbered if number not in self.left_out)
