# SPDX-License-Identifier: Apache-2.0
"""The negotiation template as an immutable value. Pure.

A template is what both sides pass back and forth: its status says what the message means, its resources what it is
about. None can be made that the schema refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from koala_adapter.errors import NegotiationError

LARGEST_QUANTITY = 2**31 - 1
LONGEST_REASON = 500
"""Characters."""
LONGEST_ANSWER_TIME = 9_999_999.999
"""Seconds."""
MOST_RESOURCES = 64
MOST_ROUNDS = 9999
"""Highest number of an offer that can be written; far fewer are agreed upon."""

_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,255}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}", re.ASCII)
_NAME = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,62})?", re.ASCII)
_NOT_IN_REASON = re.compile("[^ -~\\u00a0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


CPU = "CPU"
"""Processors."""
MEMORY = "MEM"
"""MiB."""


class Side(StrEnum):
    """The two parties of a negotiation."""

    RMS = "RMS"
    """Resource management: koala."""
    APPLICATION = "APPLICATION"

    @property
    def other(self) -> Side:
        """The peer."""
        return Side.APPLICATION if self is Side.RMS else Side.RMS


class Status(StrEnum):
    """What a template says; of a resource, REJECTED says that it is declined."""

    NEGOTIATION = "NT_NEGOTIATION"
    """This is an offer, or a counter-offer."""
    ACCEPTED = "NT_ACCEPTED"
    COMMITTED = "NT_COMMITTED"
    CONSUMED = "NT_CONSUMED"
    """What was agreed on is real: the resources are allocated (grow) or released (shrink)."""
    REJECTED = "NT_REJECTED"
    WITHDRAWN = "NT_WITHDRAWN"
    EXPIRED = "NT_EXPIRED"
    ERROR = "NT_ERROR"
    """The peer said what it may not say."""

    __hash__ = str.__hash__  # that of an enumeration is a function in Python, and each message is looked up by it


# To get a member from its class takes five times as long as to get a name of the module, and each message is compared
# with several of them: hence such names here and in the modules that judge messages.
_REJECTED = Status.REJECTED


class Usage(StrEnum):
    """Whether an agreement may go without a resource."""

    REQUIRED = "NT_REQUIRED"
    OPTIONAL = "NT_OPTIONAL"


class Negotiability(StrEnum):
    """Whether the peer may change a quantity."""

    NEGOTIABLE = "NT_NEGOTIABLE"
    FIXED = "NT_FIXED"


class Direction(StrEnum):
    """Whether the application gets the resources or gives them up."""

    GROW = "grow"
    SHRINK = "shrink"


class Obligation(StrEnum):
    """How much an offer binds its receiver."""

    VOLUNTARY = "voluntary"
    """It is a guideline."""
    MANDATORY = "mandatory"
    """It must be accommodated."""


# Each message is looked up by keys of these kinds several times: tuples are made and compared in C, if they are made
# by this; the function that a NamedTuple is called by is one in Python.
_tuple = tuple.__new__


class ResourceKey(NamedTuple):
    """What tells one resource of a template from the others."""

    type: str
    cluster: str = ""
    component: str = ""


class NegotiationKey(NamedTuple):
    """What a negotiation is called: each side counts its own."""

    initiator: Side
    agreement_id: str

    def __str__(self) -> str:
        """Name it in a message."""
        return f"{self.agreement_id} of {self.initiator}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of a template. Raises NegotiationError."""

    type: str
    """CPU, MEM, or a name that both sides know."""
    quantity: int
    """Processors, MiB, or as the name means."""
    usage: Usage = Usage.REQUIRED
    negotiability: Negotiability = Negotiability.NEGOTIABLE
    status: Status = Status.NEGOTIATION
    minimum: int | None = None
    """The least that the sender takes as a counter-offer; None: it does not say."""
    maximum: int | None = None
    cluster: str = ""
    component: str = ""

    def __post_init__(self) -> None:
        _check(_TYPE, self.type, "Type", "a letter, then letters, digits, . _ or -, at most 64 in all")
        _check(_NAME, self.cluster, "Cluster", "a letter, then letters, digits, _ or -, at most 63 in all")
        _check(_NAME, self.component, "Component", "a letter, then letters, digits, _ or -, at most 63 in all")
        bounds = {"Quantity": self.quantity, "Minimum": self.minimum, "Maximum": self.maximum}
        for name, value in bounds.items():
            if value is not None and not 1 <= value <= LARGEST_QUANTITY:
                raise NegotiationError(f"{name} of {self.type} is {value}, not from 1 to {LARGEST_QUANTITY}")
        least, most = self.minimum or 1, self.maximum or LARGEST_QUANTITY
        if not least <= self.quantity <= most:
            raise NegotiationError(f"Quantity of {self.type} is {self.quantity}, outside its own {least} to {most}")

    @property
    def key(self) -> ResourceKey:
        """What tells it from the others."""
        return _tuple(ResourceKey, (self.type, self.cluster, self.component))

    @property
    def declined(self) -> bool:
        """Nothing of it will be in the agreement."""
        return self.status is _REJECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """One negotiation template. Raises NegotiationError."""

    agreement_id: str
    """Chosen by the initiator; with that, it names the negotiation and the agreement that comes of it."""
    initiator: Side
    source: str
    """Host of the initiator."""
    dest: str
    """Host of its peer."""
    status: Status = Status.NEGOTIATION
    resources: tuple[Resource, ...] = ()
    direction: Direction | None = None
    """None: the template does not say, as in the published form."""
    obligation: Obligation | None = None
    answer_within: float | None = None
    """Seconds from its arrival, in thousandths."""
    round: int | None = None
    """Number of the offer, from 1."""
    reason: str = ""
    bytes_read: bytes | None = field(init=False, default=None, compare=False, repr=False)
    """What it was read from, to be written back as it was; a changed template has none."""

    def __post_init__(self) -> None:
        _check(_ID, self.agreement_id, "NT_AgreementID", "1 to 64 letters, digits, . _ : or -")
        for name, host in (("NT_Source", self.source), ("NT_Dest", self.dest)):
            _check(_HOST, host, name, "1 to 255 letters, digits, . _ : or -")
        if self.answer_within is not None and not (
            0 < self.answer_within <= LONGEST_ANSWER_TIME and round(self.answer_within, 3) == self.answer_within
        ):
            raise NegotiationError(f"AnswerWithin is {self.answer_within}: seconds above 0, in thousandths at most")
        if self.round is not None and not 1 <= self.round <= MOST_ROUNDS:
            raise NegotiationError(f"Round is {self.round}, not from 1 to {MOST_ROUNDS}")
        check_reason(self.reason)
        self.check_resources()

    def check_resources(self) -> None:
        """Raise NegotiationError where the resources do not go together."""
        resources = self.resources
        if not resources and self.status is not Status.ERROR:
            raise NegotiationError("a template has at least one Resource, unless it tells of an error")
        if len(resources) > 1:
            if len({(one.type, one.cluster, one.component) for one in resources}) < len(resources):
                raise NegotiationError("two resources have the same Type, Cluster and Component")
            if len(resources) > MOST_RESOURCES:
                raise NegotiationError(f"{len(resources)} resources are too many: at most {MOST_RESOURCES}")
        for one in resources:
            if one.status is _REJECTED and one.usage is Usage.REQUIRED and self.status in _STANDING:
                raise NegotiationError("a required resource is declined: reject the whole")

    @property
    def key(self) -> NegotiationKey:
        """Which negotiation it belongs to."""
        return _tuple(NegotiationKey, (self.initiator, self.agreement_id))

    def quantities(self) -> dict[ResourceKey, int]:
        """Return how much of each resource it is about; those that are declined are left out."""
        return {resource.key: resource.quantity for resource in self.resources if not resource.declined}

    def quantity(self, type_: str) -> int:
        """Return how much of a resource it is about, over all clusters and components; 0: nothing."""
        total = 0
        for one in self.resources:
            if one.type == type_ and one.status is not _REJECTED:
                total += one.quantity
        return total

    @property
    def empty(self) -> bool:
        """Everything in it is declined."""
        for one in self.resources:  # noqa: SIM110 - most have one resource, and a generator costs more than that
            if one.status is not _REJECTED:
                return False
        return True


_STANDING = frozenset({Status.NEGOTIATION, Status.ACCEPTED, Status.COMMITTED, Status.CONSUMED})


def _check(pattern: re.Pattern[str], value: str, name: str, allowed: str) -> None:
    if not pattern.fullmatch(value):
        raise NegotiationError(f"{name} is {value[:70]!r}", hint=f"allowed: {allowed}")


def check_reason(reason: str) -> None:
    """Raise NegotiationError for a reason that cannot be written."""
    if len(reason) > LONGEST_REASON or _NOT_IN_REASON.search(reason):
        raise NegotiationError(f"Reason: at most {LONGEST_REASON} characters, on one line")


def sayable(reason: str) -> str:
    """Return any text as a reason that can be written: on one line, and not too long."""
    return _NOT_IN_REASON.sub("?", " ".join(reason.split()))[:LONGEST_REASON]
