# SPDX-License-Identifier: Apache-2.0
"""What was said in a negotiation, as it is kept: texts that nobody has read. Who never negotiates imports no more."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message."""

    at: float
    """By the service clock."""
    sender: str
    """A side."""
    template: str
    """As it was written: XML."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNegotiation:
    """One negotiation from its first message on."""

    number: int = 0
    """What people call it."""
    job_id: str
    component: str
    rank: int
    """Of the process that negotiated."""
    initiator: str
    """The side that began."""
    agreement_id: str
    messages: tuple[Message, ...] = field(default=())
