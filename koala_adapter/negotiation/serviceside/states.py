# SPDX-License-Identifier: Apache-2.0
"""The finite-state machine of one negotiation, as tables. Pure.

Two rules: all state logic is written here, and the tables do not know which side they serve, because both sides have
the same. What a message is (an offer that may follow, one that may not, an acceptance of what was offered or of
something else) is found out before, by ``template.py``. docs/reference.py prints the tables in docs/negotiation.md.

The answer to a message that may not come is NT_ERROR and the end of that negotiation, of no other. Messages that end
a negotiation are never answered, so two sides cannot answer each other for ever. A negotiation that has ended answers
later messages with how it ended: a commitment that comes too late is void, and its sender is told, even when it has
already reported that what was agreed on is real.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from koala_adapter.negotiation.serviceside.template import Status

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(StrEnum):
    """Where one side is in a negotiation."""

    NEW = "new"
    """Nothing was said."""
    OFFERED = "offered"
    """Our offer is with the peer."""
    ASKED = "asked"
    """The peer's offer is with us."""
    ACCEPTING = "accepting"
    """We have accepted; the peer has still to commit."""
    ACCEPTED = "accepted"
    """The peer has accepted; we have still to commit."""
    AGREED = "agreed"
    """There is an agreement."""
    CONSUMED = "consumed"
    """What was agreed on is real."""
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    LOST = "lost"
    """The connection ended before there was an agreement."""
    BROKEN = "broken"
    """A side said what it may not say."""

    __hash__ = str.__hash__  # that of an enumeration is a function in Python, and each message is looked up by it


class Message(StrEnum):
    """What comes from the peer, by what it means here."""

    OFFER = "offer"
    """An offer or counter-offer that may follow."""
    REPEATED = "repeated offer"
    """An offer that was already seen."""
    UNFIT = "unfit offer"
    """An offer that changes what it may not change, or is one too many."""
    ACCEPT = "accept"
    COMMIT = "commit"
    CONSUME = "consume"
    MISMATCH = "mismatch"
    """An acceptance, commitment or consumption of something else than what is on the table."""
    REJECT = "reject"
    WITHDRAW = "withdraw"
    EXPIRE = "expire"
    ERROR = "error"

    __hash__ = str.__hash__  # likewise


class Reply(StrEnum):
    """What is answered by the machine itself."""

    NONE = "-"
    AGAIN = "last message again"
    """What was last said, for it may not have arrived."""
    REJECTED = Status.REJECTED
    WITHDRAWN = Status.WITHDRAWN
    EXPIRED = Status.EXPIRED
    ERROR = Status.ERROR


@dataclass(frozen=True, slots=True)
class Step:
    """What a message does: the state that follows, and the answer."""

    state: State
    reply: Reply = Reply.NONE


BARGAINING = frozenset({State.OFFERED, State.ASKED, State.ACCEPTING, State.ACCEPTED})
"""States with a deadline."""
ENDED = frozenset({State.CONSUMED, State.REJECTED, State.WITHDRAWN, State.EXPIRED, State.LOST, State.BROKEN})

SAID: Mapping[Status, Message] = MappingProxyType(
    {
        Status.NEGOTIATION: Message.OFFER,
        Status.ACCEPTED: Message.ACCEPT,
        Status.COMMITTED: Message.COMMIT,
        Status.CONSUMED: Message.CONSUME,
        Status.REJECTED: Message.REJECT,
        Status.WITHDRAWN: Message.WITHDRAW,
        Status.EXPIRED: Message.EXPIRE,
        Status.ERROR: Message.ERROR,
    }
)
"""What the status of a template says, before it is compared with what was said earlier."""

_BREAKS = Step(State.BROKEN, Reply.ERROR)
_CLOSINGS = {
    Message.REJECT: Step(State.REJECTED),
    Message.WITHDRAW: Step(State.WITHDRAWN),
    Message.EXPIRE: Step(State.EXPIRED),
    Message.ERROR: Step(State.BROKEN),
}
_QUESTIONS = (Message.OFFER, Message.REPEATED, Message.UNFIT, Message.ACCEPT, Message.COMMIT, Message.CONSUME)


def _open(steps: Mapping[Message, Step]) -> dict[Message, Step]:
    """Return a row in which every message that is not given, and ends nothing, breaks the negotiation."""
    return {message: _CLOSINGS.get(message, _BREAKS) for message in Message} | dict(steps)


def _ended(state: State, final: Reply) -> dict[Message, Step]:
    """Return a row in which nothing changes, and each further message is answered by how it ended."""
    asks = {*_QUESTIONS, Message.MISMATCH}
    return {message: Step(state, final if message in asks else Reply.NONE) for message in Message}


RECEIVED: Mapping[State, Mapping[Message, Step]] = MappingProxyType(
    {
        State.NEW: {
            **dict.fromkeys(Message, Step(State.NEW)),
            Message.OFFER: Step(State.ASKED),
            Message.UNFIT: Step(State.NEW, Reply.REJECTED),
            **dict.fromkeys(
                (Message.ACCEPT, Message.COMMIT, Message.CONSUME, Message.MISMATCH), Step(State.NEW, Reply.EXPIRED)
            ),
        },
        State.OFFERED: _open(
            {
                Message.OFFER: Step(State.ASKED),
                Message.REPEATED: Step(State.OFFERED, Reply.AGAIN),
                Message.UNFIT: Step(State.REJECTED, Reply.REJECTED),
                Message.ACCEPT: Step(State.ACCEPTED),
            }
        ),
        State.ASKED: _open({Message.REPEATED: Step(State.ASKED)}),
        State.ACCEPTING: _open(
            {
                Message.REPEATED: Step(State.ACCEPTING, Reply.AGAIN),
                Message.COMMIT: Step(State.AGREED),
                Message.CONSUME: Step(State.CONSUMED),
            }
        ),
        State.ACCEPTED: _open(
            {Message.REPEATED: Step(State.ACCEPTED), Message.ACCEPT: Step(State.ACCEPTED)},
        ),
        State.AGREED: _open(
            {
                Message.REPEATED: Step(State.AGREED),
                Message.ACCEPT: Step(State.AGREED, Reply.AGAIN),
                Message.COMMIT: Step(State.AGREED),
                Message.CONSUME: Step(State.CONSUMED),
            }
        ),
        State.CONSUMED: {
            **dict.fromkeys(Message, Step(State.CONSUMED)),
            **_CLOSINGS,
            Message.ACCEPT: Step(State.CONSUMED, Reply.AGAIN),
        },
        State.REJECTED: _ended(State.REJECTED, Reply.REJECTED),
        State.WITHDRAWN: _ended(State.WITHDRAWN, Reply.WITHDRAWN),
        State.EXPIRED: _ended(State.EXPIRED, Reply.EXPIRED),
        State.LOST: _ended(State.LOST, Reply.WITHDRAWN),
        State.BROKEN: _ended(State.BROKEN, Reply.ERROR),
    }
)
"""For each state and each message of the peer what follows."""

SENT: Mapping[State, Mapping[Message, State]] = MappingProxyType(
    {
        State.NEW: {Message.OFFER: State.OFFERED},
        State.OFFERED: {Message.WITHDRAW: State.WITHDRAWN},
        State.ASKED: {
            Message.OFFER: State.OFFERED,
            Message.ACCEPT: State.ACCEPTING,
            Message.REJECT: State.REJECTED,
            Message.WITHDRAW: State.WITHDRAWN,
        },
        State.ACCEPTING: {},
        State.ACCEPTED: {Message.COMMIT: State.AGREED, Message.WITHDRAW: State.WITHDRAWN},
        State.AGREED: {Message.CONSUME: State.CONSUMED, Message.WITHDRAW: State.WITHDRAWN},
        **{state: {} for state in ENDED},
    }
)
"""For each state what we may say, and what follows."""

DEADLINE: Mapping[State, State] = MappingProxyType(dict.fromkeys(BARGAINING, State.EXPIRED))
"""What follows when the time for an answer is over; the peer is told NT_EXPIRED."""

DISCONNECTED: Mapping[State, State] = MappingProxyType(
    dict.fromkeys((State.OFFERED, State.ASKED, State.ACCEPTED), State.LOST)
)
"""What follows when the connection ends. An acceptance waits for its deadline: the commitment may be on its way."""

RESENT: Mapping[State, Status] = MappingProxyType(
    {
        State.OFFERED: Status.NEGOTIATION,
        State.ACCEPTING: Status.ACCEPTED,
        State.AGREED: Status.COMMITTED,
        State.CONSUMED: Status.CONSUMED,
        State.REJECTED: Status.REJECTED,
        State.WITHDRAWN: Status.WITHDRAWN,
        State.EXPIRED: Status.EXPIRED,
        State.BROKEN: Status.ERROR,
    }
)
"""What is said again on a new connection if it was the last that was said: it may not have arrived."""
