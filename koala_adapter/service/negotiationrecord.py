# SPDX-License-Identifier: Apache-2.0
"""What the messages of a negotiation, as they are kept in the journal, came to. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.negotiation import templatexml
from koala_adapter.negotiation.template import CPU, Direction, Side, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.negotiation.template import Template
    from koala_adapter.service.keptnegotiations import KeptNegotiation, Message

_ENDS = frozenset({Status.REJECTED, Status.WITHDRAWN, Status.EXPIRED, Status.ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a negotiation was about, and how far it came."""

    status: Status
    """Of the message that decided; an offer, an acceptance or an agreement stands as long as nothing ended it."""
    sender: Side
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
        """Whether nothing more can come of it."""
        return self.status in _ENDS or self.status is Status.CONSUMED


def course(kept: KeptNegotiation) -> Course | None:
    """Return how far a negotiation came; None: none of its messages is there."""
    found: Course | None = None
    for message, template in _read(kept):
        if found is None:
            found = Course(
                status=template.status,
                sender=Side(message.sender),
                at=message.at,
                shrinks=template.direction is Direction.SHRINK,
                mandatory=template.obligation is not None and template.obligation.value == "mandatory",
                asked=template.quantity(CPU),
                standing=template.quantity(CPU),
                reason=template.reason,
                first=True,
            )
        elif found.status not in _ENDS:
            found = _followed(found, message, template)
    return found


def _followed(so_far: Course, message: Message, template: Template) -> Course:
    stands = template.status not in _ENDS
    return Course(
        status=template.status,
        sender=Side(message.sender),
        at=message.at,
        shrinks=so_far.shrinks,
        mandatory=so_far.mandatory,
        asked=so_far.asked,
        standing=template.quantity(CPU) if stands else so_far.standing,
        reason=template.reason or so_far.reason,
        first=False,
    )


def _read(kept: KeptNegotiation) -> Iterator[tuple[Message, Template]]:
    for message in kept.messages:
        yield message, templatexml.parse(message.template.encode())


def templates_of(kept: KeptNegotiation | None) -> list[Template]:
    """Return all that was said, in order, as far as is known."""
    return [] if kept is None else [template for _, template in _read(kept)]


def acceptance_of_koala(kept: KeptNegotiation | None) -> Template | None:
    """Return what koala has accepted, if that was the last word but the commitment to it; None: it was not."""
    for message, template in reversed([] if kept is None else list(_read(kept))):
        by_koala = message.sender == Side.RMS.value
        if by_koala or template.status is not Status.COMMITTED:
            return template if by_koala and template.status is Status.ACCEPTED else None
    return None


def is_committed(kept: KeptNegotiation | None) -> bool:
    """Tell whether one side has committed itself to what the other accepted, as far as is known."""
    return any(template.status is Status.COMMITTED for template in templates_of(kept))


def final_word(kept: KeptNegotiation | None) -> Template | None:
    """Return what told how a negotiation ended, whichever side said it; None: it has not ended, as far as is known.

    That what was agreed on is real is told by koala alone. The peer may have begun another one under the name since.
    """
    final: Template | None = None
    for message, template in [] if kept is None else _read(kept):
        by_koala = message.sender == Side.RMS.value
        if template.status in _ENDS or (by_koala and template.status is Status.CONSUMED):
            final = template
        elif template.status is Status.NEGOTIATION:
            final = None
    return final
