# SPDX-License-Identifier: Apache-2.0
"""What is kept of negotiations: how far each came by its messages, and keeping messages as they are said."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from koala_adapter import negotiation as nt
from koala_adapter.errors import JournalBlockedError
from koala_adapter.negotiation.templates import NT_ACCEPTED, NT_CONSUMED, NT_NEGOTIATION, RMS, STANDING
from koala_adapter.service.records import KeptNegotiation, Message

if TYPE_CHECKING:
    from koala_adapter.model import JobId
    from koala_adapter.service.core import Core


# -- How far a kept negotiation came (pure) ------------------------------------------------------------------


@lru_cache(maxsize=1000)  # each reply of a watch tells of the same few
def read(kept: KeptNegotiation) -> tuple[tuple[Message, nt.Template], ...]:
    """Return the messages of a negotiation with their templates, without those that cannot be read."""
    found = []
    for message in kept.messages:
        with suppress(nt.NegotiationError):  # another version kept it, which could read it
            found.append((message, nt.parse(message.template.encode())))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """Messages of a negotiation since it began; earlier ones of its name are left out."""

    messages: tuple[tuple[str, nt.Template], ...] = ()
    """The sender of each, and what it said."""
    final: nt.Template | None = None
    """What told how it ended, whichever side said it; None: it has not ended, as far as is known.

    That what was agreed on is real is told by koala alone.
    """
    final_text: str = ""
    """As it was written."""

    @property
    def ended(self) -> bool:
        """Whether the negotiation ended without agreement; a carried-out one is no such end."""
        return self.final is not None and self.final.status != NT_CONSUMED

    @property
    def accepted_by_koala(self) -> bool:
        """Whether koala has accepted what the application offered."""
        return any(sender == RMS and said.status == NT_ACCEPTED for sender, said in self.messages)


def spoken(kept: KeptNegotiation | None) -> Spoken:
    """Return a negotiation's known messages."""
    found = Spoken()
    for message, said in () if kept is None else read(kept):
        begins = said.status == NT_NEGOTIATION and found.final is not None
        messages = (*(() if begins else found.messages), (message.sender, said))
        if said.status not in STANDING or (message.sender == RMS and said.status == NT_CONSUMED):
            found = Spoken(messages=messages, final=said, final_text=message.template)
        else:
            found = Spoken(messages=messages) if begins else replace(found, messages=messages)
    return found


# -- Keeper of negotiation messages --------------------------------------------------------------------------
# Messages wait in memory, up to a bound, while the journal cannot be written.

MOST_WAITING = 10_000
"""Messages that are remembered while the journal cannot be written."""


class NegotiationKeeper:
    """Stores messages as they pass; one that cannot be written is written with a later one."""

    def __init__(self, core: Core) -> None:
        """Write into the journal of ``core``."""
        self._core = core
        self._waiting: deque[tuple[KeptNegotiation, Message]] = deque(maxlen=MOST_WAITING)

    def keep(self, job_id: JobId, rank: int, sender: str, template: nt.Template, text: str) -> None:
        """Store a template of a side; ``text``: its source."""
        record = self._core.state.jobs.get(job_id)
        known = record is not None and 0 <= rank < len(record.ranks)
        component = record.ranks[rank].component if record is not None and known else ""
        kept = KeptNegotiation(
            job_id=job_id,
            component=component,
            rank=rank,
            initiator=template.initiator,
            agreement_id=template.agreement_id,
        )
        self._waiting.append((kept, Message(at=self._core.now(), sender=sender, template=text)))
        self._write()

    def recalled(self, job_id: JobId, key: nt.NegotiationKey) -> KeptNegotiation | None:
        """Return the latest negotiation with a side's name for it; None: unknown."""
        return self._core.negotiations.recalled(job_id, *key)

    def _write(self) -> None:
        try:
            while self._waiting:
                self._core.negotiations.keep(*self._waiting[0])
                self._waiting.popleft()
        except JournalBlockedError:
            return  # the service has noticed by what it writes itself, and says so
