# SPDX-License-Identifier: Apache-2.0
"""The state machine of one negotiation as tables, and the rules that classify a message. Pure.

All state logic is written here. The tables do not know which side they serve, because both sides have the same; the C
library has them once more. What a message is (an offer that may follow, one that may not, an acceptance of what was
offered or of something else) is found out by the rules before the tables are asked. docs/reference.py prints the tables
in docs/negotiation.md.

The answer to a message that may not come is NT_ERROR and the end of that negotiation, of no other. Messages that end a
negotiation are never answered, so two sides cannot answer each other for ever. A negotiation that has ended answers
later messages with how it ended: a commitment that comes too late is void, and its sender is told, even when it has
already reported that what was agreed on is real.
"""

from typing import Dict, Iterable, Optional, Tuple

from koala_adapter.negotiation.templates import (
    NT_ACCEPTED,
    NT_COMMITTED,
    NT_CONSUMED,
    NT_ERROR,
    NT_EXPIRED,
    NT_FIXED,
    NT_NEGOTIATION,
    NT_OPTIONAL,
    NT_REJECTED,
    NT_WITHDRAWN,
    Resource,
    Template,
)

# -- States and messages -------------------------------------------------------------------------------------

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

MESSAGES = (
    "offer", "repeated offer", "unfit offer", "accept", "commit", "consume", "mismatch", "reject", "withdraw",
    "expire", "error",
)  # fmt: skip
"""What comes from the peer, by what it means here.

A repeated offer was already seen. An unfit one changes what it may not change, or is one too many. A mismatch is an
acceptance, commitment or consumption of something else than what is on the table.
"""
SAID = {
    NT_NEGOTIATION: "offer", NT_ACCEPTED: "accept", NT_COMMITTED: "commit", NT_CONSUMED: "consume",
    NT_REJECTED: "reject", NT_WITHDRAWN: "withdraw", NT_EXPIRED: "expire", NT_ERROR: "error",
}  # fmt: skip
"""What the status of a template says, before it is compared with what was said earlier."""

# -- Tables --------------------------------------------------------------------------------------------------

AGAIN = "last message again"
"""An answer: what was last said, for it may not have arrived."""
BARGAINING = (OFFERED, ASKED, ACCEPTING, ACCEPTED)
"""States with a deadline. When it is over, the negotiation has expired, and the peer is told NT_EXPIRED."""
ENDED = (CONSUMED, REJECTED, WITHDRAWN, EXPIRED, LOST, BROKEN)
_CLOSINGS = {
    "reject": (REJECTED, "-"), "withdraw": (WITHDRAWN, "-"), "expire": (EXPIRED, "-"), "error": (BROKEN, "-"),
}  # fmt: skip


def _row(default: Tuple[str, str], *steps: Dict[str, Tuple[str, str]]) -> Dict[str, Tuple[str, str]]:
    row = dict.fromkeys(MESSAGES, default)
    for some in steps:
        row.update(some)
    return row


def _open(**steps: Tuple[str, str]) -> Dict[str, Tuple[str, str]]:
    """Return a row of the state table for open states: messages not given are violations."""
    named = {name.replace("_", " "): step for name, step in steps.items()}
    return _row((BROKEN, NT_ERROR), _CLOSINGS, named)


def _final(state: str, answer: str) -> Dict[str, Tuple[str, str]]:
    """Return a row of the state table for final states: each message is answered with the end."""
    return _row((state, answer), dict.fromkeys(_CLOSINGS, (state, "-")))


RECEIVED = {
    NEW: _row(
        (NEW, "-"),
        {"offer": (ASKED, "-"), "unfit offer": (NEW, NT_REJECTED)},
        dict.fromkeys(("accept", "commit", "consume", "mismatch"), (NEW, NT_EXPIRED)),
    ),
    OFFERED: _open(
        offer=(ASKED, "-"), repeated_offer=(OFFERED, AGAIN), unfit_offer=(REJECTED, NT_REJECTED),
        accept=(ACCEPTED, "-"),
    ),
    ASKED: _open(repeated_offer=(ASKED, "-")),
    ACCEPTING: _open(repeated_offer=(ACCEPTING, AGAIN), commit=(AGREED, "-"), consume=(CONSUMED, "-")),
    ACCEPTED: _open(repeated_offer=(ACCEPTED, "-"), accept=(ACCEPTED, "-")),
    AGREED: _open(repeated_offer=(AGREED, "-"), accept=(AGREED, AGAIN), commit=(AGREED, "-"), consume=(CONSUMED, "-")),
    CONSUMED: _row((CONSUMED, "-"), _CLOSINGS, {"accept": (CONSUMED, AGAIN)}),
    REJECTED: _final(REJECTED, NT_REJECTED),
    WITHDRAWN: _final(WITHDRAWN, NT_WITHDRAWN),
    EXPIRED: _final(EXPIRED, NT_EXPIRED),
    LOST: _final(LOST, NT_WITHDRAWN),
    BROKEN: _final(BROKEN, NT_ERROR),
}  # fmt: skip
"""For each state and each message of the peer: the state that follows, and the answer of the machine itself."""
SENT = {
    NEW: {"offer": OFFERED},
    OFFERED: {"withdraw": WITHDRAWN},
    ASKED: {"offer": OFFERED, "accept": ACCEPTING, "reject": REJECTED, "withdraw": WITHDRAWN},
    ACCEPTING: {},
    ACCEPTED: {"commit": AGREED, "withdraw": WITHDRAWN},
    AGREED: {"consume": CONSUMED, "withdraw": WITHDRAWN},
    CONSUMED: {}, REJECTED: {}, WITHDRAWN: {}, EXPIRED: {}, LOST: {}, BROKEN: {},
}  # type: Dict[str, Dict[str, str]]  # fmt: skip
"""For each state what we may say, and what follows."""
DISCONNECTED = {OFFERED: LOST, ASKED: LOST, ACCEPTED: LOST}
"""What follows when the connection ends. An acceptance waits for its deadline: the commitment may be on its way."""
RESENT = {
    OFFERED: NT_NEGOTIATION, ACCEPTING: NT_ACCEPTED, AGREED: NT_COMMITTED, CONSUMED: NT_CONSUMED,
    REJECTED: NT_REJECTED, WITHDRAWN: NT_WITHDRAWN, EXPIRED: NT_EXPIRED, BROKEN: NT_ERROR,
}  # fmt: skip
"""What is said again on a new connection if it was the last that was said: it may not have arrived."""


# -- Rules for counter-offers, acceptances and commitments ---------------------------------------------------


def problem_of_counter(previous: Template, counter: Template) -> str:
    """Return why a counter-offer is not valid after the offer before it; empty when it is."""
    if counter.empty:
        return "an offer in which everything is declined is none"
    if counter.direction and counter.direction != previous.direction:
        return "the direction of an offer stays as it was"
    if counter.obligation and counter.obligation != previous.obligation:
        return "the obligation of an offer stays as it was"
    pairs = _pairs(previous, counter)
    if pairs is None:
        return "a counter-offer has the resources of the offer: what is not wanted is declined"
    problems = (_problem_of_change(before, after) for before, after in pairs)
    return next((problem for problem in problems if problem), "")


def _problem_of_change(before: Resource, after: Resource) -> str:
    if after.usage != before.usage:
        return "the usage of {} stays as it was".format(after.type)
    if before.declined and not after.declined:
        return "{} was declined, and stays so".format(after.type)
    if before.negotiability == NT_FIXED:
        same = after.negotiability == NT_FIXED and after.quantity == before.quantity
        return "" if same else "{} is fixed".format(after.type)
    if not after.declined and not (before.minimum or 1) <= after.quantity <= (before.maximum or after.quantity):
        return "{} {} are outside the bounds of the offer".format(after.quantity, after.type)
    return ""


def problem_of_closing(standing: Template, closing: Template) -> str:
    """Return why an acceptance or commitment does not match the template in force; empty when it does.

    An acceptance may decline what is optional; a commitment may not.
    """
    pairs = _pairs(standing, closing)
    if pairs is None:
        return "it has other resources than what stands"
    for before, after in pairs:
        if after.quantity != before.quantity:
            return "{} {} are not the {} that stand".format(after.quantity, after.type, before.quantity)
        if before.declined and not after.declined:
            return "{} was declined".format(after.type)
        declinable = before.usage == NT_OPTIONAL and closing.status == NT_ACCEPTED
        if after.declined and not before.declined and not declinable:
            return "{} cannot be declined here".format(after.type)
    return "nothing is left in it" if closing.empty else ""


def _pairs(before: Template, after: Template) -> Optional[Iterable[Tuple[Resource, Resource]]]:
    """Return the resources of two templates in pairs; None when they differ in their resources."""
    if _in_step(before, after):
        return zip(before.resources, after.resources)
    earlier = {one.key: one for one in before.resources}
    if earlier.keys() != {one.key for one in after.resources}:
        return None
    return [(earlier[one.key], one) for one in after.resources]


def _in_step(one: Template, other: Template) -> bool:
    """Return whether two templates have the same resources in the same order."""
    some, others = one.resources, other.resources
    return len(some) == len(others) and all(one.key == other.key for one, other in zip(some, others))


def completed(value: Template, previous: Template) -> Template:
    """Return a message with koala's extra attributes, missing from published peers, copied from the last one.

    Clusters and components go with the resources: where the peer names none, and the types tell which is which, they
    are those of before.
    """
    resources = value.resources
    direction, obligation = value.direction or previous.direction, value.obligation or previous.obligation
    if direction == value.direction and obligation == value.obligation and _in_step(value, previous):
        return value
    before = {one.type: one for one in previous.resources}
    if len(before) == len(previous.resources):
        resources = tuple(
            one._replace(cluster=one.cluster or before[one.type].cluster,
                         component=one.component or before[one.type].component)
            if one.type in before else one
            for one in resources
        )  # fmt: skip
    return value._replace(resources=resources, direction=direction, obligation=obligation)
