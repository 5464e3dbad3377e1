# SPDX-License-Identifier: Apache-2.0
"""Takes note of every template that passes between koala and applications, in the journal."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from koala_adapter.errors import JournalBlockedError
from koala_adapter.service.keptnegotiations import KeptNegotiation, Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.model import JobId
    from koala_adapter.negotiation.template import Side, Template
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.negotiationstore import NegotiationStore

MOST_WAITING = 10_000
"""Messages that are remembered while the journal cannot be written."""


class NegotiationKeeper:
    """Keeps messages as they pass; those that cannot be written are written with a later one."""

    def __init__(self, store: NegotiationStore, *, state: Callable[[], State], clock: Callable[[], float]) -> None:
        """``state`` tells which component a process belongs to."""
        self._store = store
        self._state = state
        self._clock = clock
        self._waiting: deque[tuple[KeptNegotiation, Message]] = deque(maxlen=MOST_WAITING)

    def keep(self, job_id: JobId, rank: int, sender: Side, template: Template, payload: bytes) -> None:
        """Keep a template that a side has said, and as it has written it."""
        record = self._state().jobs.get(job_id)
        known = record is not None and 0 <= rank < len(record.ranks)
        component = record.ranks[rank].component if record is not None and known else ""
        kept = KeptNegotiation(
            job_id=job_id,
            component=component,
            rank=rank,
            initiator=template.initiator.value,
            agreement_id=template.agreement_id,
        )
        self._waiting.append((kept, Message(at=self._clock(), sender=sender.value, template=payload.decode())))
        self._write()

    def recalled(self, job_id: JobId, initiator: Side, agreement_id: str) -> KeptNegotiation | None:
        """Return the latest negotiation that a side has begun under a name; None: none is known."""
        return self._store.recalled(job_id, initiator.value, agreement_id)

    def _write(self) -> None:
        try:
            while self._waiting:
                self._store.keep(*self._waiting[0])
                self._waiting.popleft()
        except JournalBlockedError:
            return  # the service has noticed by what it writes itself, and says so
