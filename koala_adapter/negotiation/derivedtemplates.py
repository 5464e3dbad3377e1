# SPDX-License-Identifier: Apache-2.0
"""Templates that are made of others: counter-offers, answers, ends. Pure.

Every function returns a new template; none can make one that the schema refuses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.template import (
    LARGEST_QUANTITY,
    Direction,
    Negotiability,
    Obligation,
    Resource,
    ResourceKey,
    Side,
    Status,
    Template,
    Usage,
    check_reason,
    sayable,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_NEGOTIATION, _REJECTED = Status.NEGOTIATION, Status.REJECTED


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
