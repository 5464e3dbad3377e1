# SPDX-License-Identifier: Apache-2.0
"""What an endpoint tells of its negotiations: what has come from the peer, or has not come in time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.negotiation.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.negotiation.template import NegotiationKey, Template


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferReceived:
    """An offer or counter-offer has come and waits for our answer."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAccepted:
    """The peer has accepted what we offered, and waits for our commitment."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The peer has committed to what we accepted: there is an agreement."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """The peer reports that what was agreed on is allocated, or released."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A negotiation has ended without our having said so; nothing is agreed (any more)."""

    key: NegotiationKey
    template: Template
    """What stood last."""
    state: State
    before: State
    """Where it was. AGREED: the agreement is void; CONSUMED: so is what was already allocated, or released."""
    reason: str = ""

    @property
    def was_agreed(self) -> bool:
        """There was an agreement, which is void."""
        return self.before in {State.AGREED, State.CONSUMED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """What came is no template. Write what there is to send, then close the connection."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """The peer reports an error that belongs to none of the negotiations."""

    reason: str


Event: TypeAlias = OfferReceived | OfferAccepted | Agreed | Consumed | Ended | Unreadable | Complaint

_KINDS: Mapping[State, type[OfferReceived | OfferAccepted | Agreed | Consumed]] = {
    State.ASKED: OfferReceived, State.ACCEPTED: OfferAccepted, State.AGREED: Agreed, State.CONSUMED: Consumed,
}  # fmt: skip


def event_of(key: NegotiationKey, standing: Template, state: State, *, before: State, reason: str = "") -> Event:
    """Return what it means that a negotiation has come from one state to another; ``standing``: what stands in it."""
    kind = _KINDS.get(state)
    if kind is not None:
        return kind(key=key, template=standing)
    return Ended(key=key, template=standing, state=state, before=before, reason=reason)
