# SPDX-License-Identifier: Apache-2.0
"""The application's state machine of a negotiation: its tables, and the rules that classify a message. Pure.

The tables are those of negotiation/serviceside/states.py, which explains them.
"""

from typing import Dict, Tuple

from koala_adapter.negotiation.templates import Resource, Template

# -- Tables --------------------------------------------------------------------------------------------------

MESSAGES = (
    "offer", "repeated offer", "unfit offer", "accept", "commit", "consume", "mismatch", "reject", "withdraw",
    "expire", "error",
)  # fmt: skip
SAID = {
    "NT_NEGOTIATION": "offer", "NT_ACCEPTED": "accept", "NT_COMMITTED": "commit", "NT_CONSUMED": "consume",
    "NT_REJECTED": "reject", "NT_WITHDRAWN": "withdraw", "NT_EXPIRED": "expire", "NT_ERROR": "error",
}  # fmt: skip
AGAIN = "last message again"
ENDED = ("consumed", "rejected", "withdrawn", "expired", "lost", "broken")
BARGAINING = ("offered", "asked", "accepting", "accepted")
_CLOSINGS = {
    "reject": ("rejected", "-"), "withdraw": ("withdrawn", "-"), "expire": ("expired", "-"), "error": ("broken", "-"),
}  # fmt: skip


def _row(default: Tuple[str, str], *steps: Dict[str, Tuple[str, str]]) -> Dict[str, Tuple[str, str]]:
    row = dict.fromkeys(MESSAGES, default)
    for some in steps:
        row.update(some)
    return row


def _open(**steps: Tuple[str, str]) -> Dict[str, Tuple[str, str]]:
    named = {name.replace("_", " "): step for name, step in steps.items()}
    return _row(("broken", "NT_ERROR"), _CLOSINGS, named)


def _final(state: str, answer: str) -> Dict[str, Tuple[str, str]]:
    return _row((state, answer), dict.fromkeys(_CLOSINGS, (state, "-")))


RECEIVED = {
    "new": _row(
        ("new", "-"),
        {"offer": ("asked", "-"), "unfit offer": ("new", "NT_REJECTED")},
        dict.fromkeys(("accept", "commit", "consume", "mismatch"), ("new", "NT_EXPIRED")),
    ),
    "offered": _open(
        offer=("asked", "-"), repeated_offer=("offered", AGAIN), unfit_offer=("rejected", "NT_REJECTED"),
        accept=("accepted", "-"),
    ),
    "asked": _open(repeated_offer=("asked", "-")),
    "accepting": _open(repeated_offer=("accepting", AGAIN), commit=("agreed", "-"), consume=("consumed", "-")),
    "accepted": _open(repeated_offer=("accepted", "-"), accept=("accepted", "-")),
    "agreed": _open(
        repeated_offer=("agreed", "-"), accept=("agreed", AGAIN), commit=("agreed", "-"), consume=("consumed", "-")
    ),
    "consumed": _row(("consumed", "-"), _CLOSINGS, {"accept": ("consumed", AGAIN)}),
    "rejected": _final("rejected", "NT_REJECTED"),
    "withdrawn": _final("withdrawn", "NT_WITHDRAWN"),
    "expired": _final("expired", "NT_EXPIRED"),
    "lost": _final("lost", "NT_WITHDRAWN"),
    "broken": _final("broken", "NT_ERROR"),
}  # fmt: skip
SENT = {
    "new": {"offer": "offered"},
    "offered": {"withdraw": "withdrawn"},
    "asked": {"offer": "offered", "accept": "accepting", "reject": "rejected", "withdraw": "withdrawn"},
    "accepting": {},
    "accepted": {"commit": "agreed", "withdraw": "withdrawn"},
    "agreed": {"consume": "consumed", "withdraw": "withdrawn"},
    "consumed": {}, "rejected": {}, "withdrawn": {}, "expired": {}, "lost": {}, "broken": {},
}  # type: Dict[str, Dict[str, str]]  # fmt: skip
DISCONNECTED = {"offered": "lost", "asked": "lost", "accepted": "lost"}


# -- Rules for counter-offers, acceptances and commitments ---------------------------------------------------


def problem_of_counter(previous: Template, counter: Template) -> str:
    """Return why an offer may not follow the one before it, or an empty text."""
    if not counter.quantities():
        return "an offer in which everything is declined is none"
    for name in ("direction", "obligation"):
        if getattr(counter, name) and getattr(counter, name) != getattr(previous, name):
            return "the {} of an offer stays as it was".format(name)
    before = {one.key: one for one in previous.resources}
    if before.keys() != {one.key for one in counter.resources}:
        return "a counter-offer has the resources of the offer: what is not wanted is declined"
    problems = [_problem_of_change(before[one.key], one) for one in counter.resources]
    return next((problem for problem in problems if problem), "")


def _problem_of_change(before: Resource, after: Resource) -> str:
    if after.usage != before.usage:
        return "the usage of {} stays as it was".format(after.type)
    if before.declined and not after.declined:
        return "{} was declined, and stays so".format(after.type)
    if before.negotiability == "NT_FIXED":
        same = after.negotiability == "NT_FIXED" and after.quantity == before.quantity
        return "" if same else "{} is fixed".format(after.type)
    if not after.declined and not (before.minimum or 1) <= after.quantity <= (before.maximum or after.quantity):
        return "{} {} are outside the bounds of the offer".format(after.quantity, after.type)
    return ""


def problem_of_closing(standing: Template, closing: Template) -> str:
    """Return why an acceptance or commitment is not one of what stands, or an empty text."""
    before = {one.key: one for one in standing.resources}
    if before.keys() != {one.key for one in closing.resources}:
        return "it has other resources than what stands"
    for one in closing.resources:
        earlier = before[one.key]
        if one.quantity != earlier.quantity:
            return "{} {} are not the {} that stand".format(one.quantity, one.type, earlier.quantity)
        if earlier.declined and not one.declined:
            return "{} was declined".format(one.type)
        declinable = earlier.usage == "NT_OPTIONAL" and closing.status == "NT_ACCEPTED"
        if one.declined and not earlier.declined and not declinable:
            return "{} cannot be declined here".format(one.type)
    return "" if closing.quantities() else "nothing is left in it"


def completed(value: Template, previous: Template) -> Template:
    """Return a message with what a peer that only knows the published form has left out, as it was before."""
    resources = value.resources
    before = {one.type: one for one in previous.resources}
    if len(before) == len(previous.resources):
        resources = tuple(
            one._replace(cluster=one.cluster or before[one.type].cluster,
                         component=one.component or before[one.type].component)
            if one.type in before else one
            for one in resources
        )  # fmt: skip
    return value._replace(
        resources=resources,
        direction=value.direction or previous.direction,
        obligation=value.obligation or previous.obligation,
    )
