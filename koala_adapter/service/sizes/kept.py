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
from koala_adapter.negotiation.templates import (
    MANDATORY,
    NT_ACCEPTED,
    NT_CONSUMED,
    NT_NEGOTIATION,
    RMS,
    SHRINK,
    STANDING,
)
from koala_adapter.service.records import KeptNegotiation, Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.model import JobId
    from koala_adapter.service.core import Core


# -- How far a kept negotiation came (pure) ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Subject and progress of a negotiation."""

    status: str
    """Of the message that decided; an offer, an acceptance or an agreement stands as long as nothing ended it."""
    sender: str
    """Who said that."""
    at: float
    shrinks: bool
    mandatory: bool
    asked: int
    """Processors in the first offer."""
    standing: int
    """Processors in the last offer, and then in what was agreed on."""
    reason: str
    """The last that was given."""
    first: bool
    """Nothing but the first offer has been said."""

    @property
    def ended(self) -> bool:
        """Whether the negotiation is over."""
        return self.status not in STANDING or self.status == NT_CONSUMED


@lru_cache(maxsize=1000)  # each reply of a watch tells of the same few
def course(kept: KeptNegotiation) -> Course | None:
    """Return a negotiation's progress; None without messages."""
    found: Course | None = None
    for message, template in _read(kept):
        if found is None:
            found = Course(
                status=template.status,
                sender=message.sender,
                at=message.at,
                shrinks=template.direction == SHRINK,
                mandatory=template.obligation == MANDATORY,
                asked=template.quantity(nt.CPU),
                standing=template.quantity(nt.CPU),
                reason=template.reason,
                first=True,
            )
        elif found.status in STANDING:
            found = _followed(found, message, template)
    return found


def _followed(so_far: Course, message: Message, template: nt.Template) -> Course:
    return replace(
        so_far,
        status=template.status,
        sender=message.sender,
        at=message.at,
        standing=template.quantity(nt.CPU) if template.status in STANDING else so_far.standing,
        reason=template.reason or so_far.reason,
        first=False,
    )


def _read(kept: KeptNegotiation) -> Iterator[tuple[Message, nt.Template]]:
    for message in kept.messages:
        with suppress(nt.NegotiationError):  # another version kept it, which could read it
            yield message, nt.parse(message.template.encode())


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
    for message, said in [] if kept is None else _read(kept):
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
