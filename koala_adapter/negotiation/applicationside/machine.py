# SPDX-License-Identifier: Apache-2.0
"""The finite-state machine as tables, the same as in states.py, which says what they mean. Pure."""

from typing import Dict, Tuple

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
