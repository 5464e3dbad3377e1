# SPDX-License-Identifier: Apache-2.0
"""What may be said: templates that are made from what was heard, and how to decide about an offer. Pure."""

from typing import Callable, Dict, Iterable, Tuple, Union

from koala_adapter.negotiation.applicationside.values import LONGEST_REASON, NOT_IN_REASON, Template, checked


def accepted(offer: Template, declined: Iterable[Tuple[str, str, str]] = ()) -> Template:
    """Return the acceptance of an offer, without those of its optional resources that are declined."""
    return checked(_closing(offer, "NT_ACCEPTED", frozenset(declined)))


def committed(acceptance: Template) -> Template:
    """Return the commitment to what the peer has accepted."""
    return checked(_closing(acceptance, "NT_COMMITTED", frozenset()))


def consumed(agreement: Template) -> Template:
    """Return the report that what was agreed on is allocated, or released."""
    return checked(_closing(agreement, "NT_CONSUMED", frozenset()))


def countered(offer: Template, quantities: Dict[Tuple[str, str, str], int],
              declined: Iterable[Tuple[str, str, str]] = (), reason: str = "") -> Template:  # fmt: skip
    """Return a counter-offer: other quantities, and resources that shall not be in the agreement."""
    out = frozenset(declined)
    changed = tuple(
        one._replace(
            quantity=quantities.get(one.key, one.quantity), minimum=None, maximum=None,
            status="NT_REJECTED" if one.declined or one.key in out else "NT_NEGOTIATION",
        )
        for one in offer.resources
    )  # fmt: skip
    return checked(
        offer._replace(status="NT_NEGOTIATION", resources=changed, answer_within=None, round=None, reason=reason)
    )


def rejected(offer: Template, reason: str = "") -> Template:
    """Return the refusal of an offer."""
    return ended(offer, "NT_REJECTED", reason)


def withdrawn(value: Template, reason: str = "") -> Template:
    """Return the withdrawal of an own offer, or of an agreement that cannot be kept."""
    return ended(value, "NT_WITHDRAWN", reason)


def _closing(value: Template, status: str, declined: Iterable[Tuple[str, str, str]]) -> Template:
    resources = tuple(
        one._replace(status="NT_REJECTED" if one.declined or one.key in declined else status) for one in value.resources
    )
    return value._replace(status=status, resources=resources, answer_within=None, reason="")


def ended(value: Template, status: str, reason: str) -> Template:
    """Return the message that a negotiation ends so."""
    resources = tuple(one._replace(status=status) for one in value.resources)
    return value._replace(status=status, resources=resources, answer_within=None, reason=sayable(reason))


def sayable(text: str) -> str:
    """Return any text as a reason that can be written."""
    return NOT_IN_REASON.sub("?", " ".join(text.split()))[:LONGEST_REASON]


Terms = Union[int, Callable[[int], int]]
"""The most that is taken of a resource, or which quantity up to its argument is, 0 for none."""


def decide(offer: Template, terms: Dict[str, Terms]) -> Template:
    """Return the answer to an offer: its acceptance, a counter-offer, or its refusal.

    ``terms`` says for each type of resource what can be taken; what it does not name is not taken.
    """
    quantities: Dict[Tuple[str, str, str], int] = {}
    declined = []
    for one in offer.resources:
        if one.declined:
            continue
        most = terms.get(one.type, 0)
        best = most(one.quantity) if callable(most) else min(one.quantity, most)
        if best != one.quantity and (one.negotiability == "NT_FIXED" or best < (one.minimum or 1)):
            best = 0
        if best > 0:
            quantities[one.key] = best
        elif one.usage == "NT_OPTIONAL":
            declined.append(one.key)
        else:
            return rejected(offer, "{} {} cannot be taken".format(one.quantity, one.type))
    if not quantities:
        return rejected(offer, "nothing that is offered can be taken")
    if all(one.declined or one.key in declined or quantities[one.key] == one.quantity for one in offer.resources):
        return accepted(offer, declined)
    return countered(offer, quantities, declined)
