# SPDX-License-Identifier: Apache-2.0
"""The negotiation template as an immutable value, templates derived from others, and the rules of bargaining. Pure.

Both sides exchange templates: the status says what a message means, the resources what it is about. No template can
be made that the schema refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from koala_adapter.errors import NegotiationError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


# -- Templates and resources ---------------------------------------------------------------------------------

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
        """The other side."""
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


# Looking up a member in its enum class takes five times as long as a module name, and each message is compared with
# several members: hence such names here and in the modules that judge messages.
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
        """Return the key as shown in messages."""
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
        """Type, cluster and component: they identify a resource in a template."""
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
        """Initiator and agreement id: they identify the negotiation."""
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
        """True when all resources are declined."""
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


# -- Derived templates: counter-offers, answers, ends --------------------------------------------------------
# Each function returns a new template, and none that the schema refuses.

_NEGOTIATION = Status.NEGOTIATION


def countered(
    offer: Template, quantities: Mapping[ResourceKey, int], *, declined: Collection[ResourceKey] = (), reason: str = ""
) -> Template:
    """Return a counter-offer: other quantities, and resources that shall not be in the agreement.

    Raises NegotiationError. What the receiver must not change is checked where it is sent.
    """
    changed = []
    for one in offer.resources:
        key = one.key
        out = one.status is _REJECTED or (bool(declined) and key in declined)
        status = _REJECTED if out else _NEGOTIATION
        quantity = quantities.get(key, one.quantity)
        if not 1 <= quantity <= LARGEST_QUANTITY:
            raise NegotiationError(f"Quantity of {one.type} is {quantity}, not from 1 to {LARGEST_QUANTITY}")
        changed.append(_resource(one, quantity, status, None, None))
    if reason:
        check_reason(reason)
    return _changed(offer, _NEGOTIATION, tuple(changed), reason=reason)


def accepted(offer: Template, *, declined: Collection[ResourceKey] = ()) -> Template:
    """Return the acceptance of an offer as it stands, without those of its optional resources that are declined."""
    return _closing(offer, Status.ACCEPTED, declined=declined)


def committed(acceptance: Template) -> Template:
    """Return the commitment to what the peer has accepted: from now on there is an agreement."""
    return _closing(acceptance, Status.COMMITTED)


def consumed(agreement: Template) -> Template:
    """Return the report that what was agreed on is allocated, or released."""
    return _closing(agreement, Status.CONSUMED)


def rejected(offer: Template, reason: str = "") -> Template:
    """Return the refusal of an offer; it ends the negotiation."""
    return _ended(offer, Status.REJECTED, reason)


def withdrawn(template: Template, reason: str = "") -> Template:
    """Return the withdrawal of an own offer, or of an agreement that cannot be kept."""
    return _ended(template, Status.WITHDRAWN, reason)


def expired(template: Template, reason: str = "") -> Template:
    """Return the message that it is too late for an answer."""
    return _ended(template, Status.EXPIRED, reason)


def faulty(template: Template, reason: str) -> Template:
    """Return the message that the peer said what it may not say."""
    return _ended(template, Status.ERROR, reason)


def published(template: Template) -> Template:
    """Return the template with nothing but what the published form has, for a peer that is strict."""
    plain = tuple(replace(one, minimum=None, maximum=None, cluster="", component="") for one in template.resources)
    return replace(
        template, resources=plain, direction=None, obligation=None, answer_within=None, round=None, reason=""
    )


def numbered(template: Template, *, answer_within: float | None, number: int | None) -> Template:
    """Return a template with the time and the round that it is said with; both are such as may be written."""
    if template.round == number and template.answer_within == answer_within:
        return template
    return unchecked_template(
        template.agreement_id, template.initiator, template.source, template.dest, template.status, template.resources,
        template.direction, template.obligation, answer_within, number, template.reason, None,
    )  # fmt: skip


def _closing(template: Template, status: Status, *, declined: Collection[ResourceKey] = ()) -> Template:
    resources = []
    for one in template.resources:
        out = one.status is _REJECTED or (bool(declined) and one.key in declined)
        resources.append(_resource(one, one.quantity, _REJECTED if out else status, one.minimum, one.maximum))
    return _changed(template, status, tuple(resources), number=template.round)


def _ended(template: Template, status: Status, reason: str) -> Template:
    resources = tuple(_resource(one, one.quantity, status, one.minimum, one.maximum) for one in template.resources)
    return _changed(template, status, resources, sayable(reason), number=template.round)


# A template that is made of another one has most of its fields, which were checked when that was made. They are not
# checked again, nor taken through the general `replace`: each message of a negotiation is such a template.


def _resource(one: Resource, quantity: int, status: Status, minimum: int | None, maximum: int | None) -> Resource:
    return unchecked_resource(
        one.type, quantity, one.usage, one.negotiability, status, minimum, maximum, one.cluster, one.component
    )


def _changed(
    template: Template, status: Status, resources: tuple[Resource, ...], reason: str = "", *, number: int | None = None
) -> Template:
    made = unchecked_template(
        template.agreement_id, template.initiator, template.source, template.dest, status, resources,
        template.direction, template.obligation, None, number, reason, None,
    )  # fmt: skip
    if len(resources) != 1 or resources[0].status is _REJECTED:
        made.check_resources()
    return made


def unchecked_resource(  # noqa: PLR0913, PLR0917 - the fields in their order
    type_: str, quantity: int, usage: Usage, negotiability: Negotiability, status: Status, minimum: int | None,
    maximum: int | None, cluster: str, component: str,
) -> Resource:  # fmt: skip
    """Return a resource of fields that are known to be right."""
    made: Any = _Resource()
    made.type = type_
    made.quantity = quantity
    made.usage = usage
    made.negotiability = negotiability
    made.status = status
    made.minimum = minimum
    made.maximum = maximum
    made.cluster = cluster
    made.component = component
    made.__class__ = Resource
    resource: Resource = made
    return resource


def unchecked_template(  # noqa: PLR0913, PLR0917 - likewise
    agreement_id: str, initiator: Side, source: str, dest: str, status: Status, resources: tuple[Resource, ...],
    direction: Direction | None, obligation: Obligation | None, answer_within: float | None, number: int | None,
    reason: str, bytes_read: bytes | None,
) -> Template:  # fmt: skip
    """Return a template of fields that are known to be right, each by itself; see `Template.check_resources`."""
    made: Any = _Template()
    made.agreement_id = agreement_id
    made.initiator = initiator
    made.source = source
    made.dest = dest
    made.status = status
    made.resources = resources
    made.direction = direction
    made.obligation = obligation
    made.answer_within = answer_within
    made.round = number
    made.reason = reason
    made.bytes_read = bytes_read
    made.__class__ = Template
    template: Template = made
    return template


# Fields of these can be set; given the class of the value they become one, and nothing can be set any more. That takes
# half the time of setting each field of a frozen value by its descriptor, and a quarter of object.__setattr__.
class _Resource:
    __slots__ = Resource.__slots__


class _Template:
    __slots__ = Template.__slots__


# -- What a counter-offer, an acceptance and a commitment may change ------------------------------------------

_ACCEPTED, _FIXED, _OPTIONAL = Status.ACCEPTED, Negotiability.FIXED, Usage.OPTIONAL


def problem_of_counter(previous: Template, counter: Template) -> str:
    """Return why an offer may not follow the one before it, or an empty text."""
    if counter.empty:
        return "an offer in which everything is declined is none"
    if counter.direction is not None and counter.direction is not previous.direction:
        return "the direction of an offer stays as it was"
    if counter.obligation is not None and counter.obligation is not previous.obligation:
        return "the obligation of an offer stays as it was"
    pairs = _pairs(previous.resources, counter.resources)
    if pairs is None:
        return "a counter-offer has the resources of the offer: what is not wanted is declined"
    for before, after in pairs:
        problem = _problem_of_change(before, after)
        if problem:
            return problem
    return ""


def _pairs(before: Sequence[Resource], after: Sequence[Resource]) -> Iterable[tuple[Resource, Resource]] | None:
    """Return each resource as it was and as it is; None: they are not the same ones."""
    if in_step(before, after):
        return zip(before, after)  # noqa: B905 - as many, as has just been seen
    earlier = {one.key: one for one in before}
    if earlier.keys() != {one.key for one in after}:
        return None
    return [(earlier[one.key], one) for one in after]


def in_step(some: Sequence[Resource], others: Sequence[Resource]) -> bool:
    """Tell whether these are the same resources in the same order, as they are between peers that keep to it."""
    if len(some) != len(others):
        return False
    for one, other in zip(some, others):  # noqa: B905 - as many: `strict` costs as much as the rest
        if one.type != other.type or one.cluster != other.cluster or one.component != other.component:
            return False
    return True


def same_quantities(one: Template, other: Template) -> bool:
    """Tell whether two templates are about as much of each resource."""
    if not in_step(one.resources, other.resources):
        return one.quantities() == other.quantities()
    for some, others in zip(one.resources, other.resources):  # noqa: B905 - as many, as has just been seen
        if some.declined is not others.declined or (some.quantity != others.quantity and not some.declined):
            return False
    return True


def _problem_of_change(before: Resource, after: Resource) -> str:
    if after.usage is not before.usage:
        return f"the usage of {after.type} stays as it was"
    if before.status is _REJECTED and after.status is not _REJECTED:
        return f"{after.type} was declined, and stays so"
    if before.negotiability is _FIXED:
        if after.negotiability is not _FIXED or after.quantity != before.quantity:
            return f"{after.type} is fixed"
        return ""
    least, most = before.minimum or 1, before.maximum or after.quantity
    if after.status is not _REJECTED and not least <= after.quantity <= most:
        return f"{after.quantity} {after.type} are outside the bounds of the offer"
    return ""


def problem_of_closing(standing: Template, closing: Template) -> str:
    """Return why an acceptance or commitment is not one of what stands, or an empty text.

    An acceptance may decline what is optional; a commitment may not.
    """
    pairs = _pairs(standing.resources, closing.resources)
    if pairs is None:
        return "it has other resources than what stands"
    for before, after in pairs:
        if after.quantity != before.quantity:
            return f"{after.quantity} {after.type} are not the {before.quantity} that stand"
        if before.declined and not after.declined:
            return f"{after.type} was declined"
        declinable = before.usage is _OPTIONAL and closing.status is _ACCEPTED
        if after.declined and not before.declined and not declinable:
            return f"{after.type} cannot be declined here"
    return "nothing is left in it" if closing.empty else ""


def completed(template: Template, previous: Template) -> Template:
    """Return a message with what a peer that only knows the published form has left out, as it was before.

    Clusters and components go with the resources: where the peer names none, and the types tell which is which, they
    are those of before.
    """
    resources = template.resources
    direction, obligation = template.direction or previous.direction, template.obligation or previous.obligation
    says_all = direction is template.direction and obligation is template.obligation
    if says_all and in_step(resources, previous.resources):
        return template
    before = {resource.type: resource for resource in previous.resources}
    if len(before) == len(previous.resources):
        resources = tuple(_placed(one, before.get(one.type, one)) for one in resources)
    if (resources, direction, obligation) == (template.resources, template.direction, template.obligation):
        return template
    return replace(template, resources=resources, direction=direction, obligation=obligation)


def _placed(resource: Resource, before: Resource) -> Resource:
    cluster, component = resource.cluster or before.cluster, resource.component or before.component
    if (cluster, component) == (resource.cluster, resource.component):
        return resource
    return replace(resource, cluster=cluster, component=component)
