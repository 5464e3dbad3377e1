# SPDX-License-Identifier: Apache-2.0
"""Reads templates that stand in the layout in which koala and its application library write them, in one pass. Pure.

What it reads is a template by the schema, and means what the XML parser and the schema would make of it; anything else
(another layout, an escaped character, a number out of range) it leaves to them. Tests hold both together. The published
instance stands in this layout, too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from koala_adapter.negotiation.applicationside.layout import LAYOUT_END, LAYOUT_HEAD, LAYOUT_RESOURCE
from koala_adapter.negotiation.derivedtemplates import unchecked_resource, unchecked_template
from koala_adapter.negotiation.template import (
    LARGEST_QUANTITY,
    MOST_RESOURCES,
    Direction,
    Negotiability,
    Obligation,
    Resource,
    Side,
    Status,
    Template,
    Usage,
)

_RESOURCE_END = "  </Resource>\n"
_REJECTED = Status.REJECTED
_SIDES = {one.value: one for one in Side}
_STATUSES = {one.value: one for one in Status}
_USAGES = {one.value: one for one in Usage}
_NEGOTIABILITIES = {one.value: one for one in Negotiability}
_DIRECTIONS = {one.value: one for one in Direction}
_OBLIGATIONS = {one.value: one for one in Obligation}


def read(data: bytes) -> Template | None:
    """Return the template that a document is; None: not in this layout, or not one at all.

    Raises NegotiationError where the resources do not go together.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    head = LAYOUT_HEAD.match(text)
    if head is None:
        return None
    agreement_id, extended, direction, obligation, within, number, reason, initiator, source, dest, said = head.groups()
    answer_within, round_ = float(within) if within else None, int(number) if number else None
    if answer_within == 0 or round_ == 0:
        return None
    resources: list[Resource] = []
    place, end = head.end(), len(text) - len(LAYOUT_END)
    while place < end:
        after = text.find(_RESOURCE_END, place) + len(_RESOURCE_END)
        found = _read_resource(text[place:after])  # of no text where there is no end
        if found is None or (found.extended and not extended) or len(resources) == MOST_RESOURCES:
            return None
        resources.append(found.resource)
        place = after
    if place != end or not text.endswith(LAYOUT_END):
        return None
    template = unchecked_template(
        agreement_id, _SIDES[initiator], source, dest, _STATUSES[said], tuple(resources),
        _DIRECTIONS[direction] if direction else None, _OBLIGATIONS[obligation] if obligation else None,
        answer_within, round_, reason or "", data,
    )  # fmt: skip
    if len(resources) != 1 or resources[0].status is _REJECTED:
        template.check_resources()
    return template


class _Read(NamedTuple):
    resource: Resource
    extended: bool
    """It has attributes of our own namespace."""


@lru_cache(maxsize=256)  # the same ones come again and again: so many processors, offered, accepted, or committed to
def _read_resource(text: str) -> _Read | None:
    """Return the resource that a text is; None: it is none in this layout."""
    found = LAYOUT_RESOURCE.fullmatch(text)
    if found is None:
        return None
    added, least, most, cluster, component, type_, number, usage, negotiability, said = found.groups()
    quantity = int(number)
    minimum, maximum = int(least) if least else None, int(most) if most else None
    if not 1 <= quantity <= LARGEST_QUANTITY:
        return None
    if minimum is not None and not 1 <= minimum <= quantity:
        return None
    if maximum is not None and not quantity <= maximum <= LARGEST_QUANTITY:
        return None
    resource = unchecked_resource(
        type_, quantity, _USAGES[usage], _NEGOTIABILITIES[negotiability], _STATUSES[said], minimum, maximum,
        cluster or "", component or "",
    )  # fmt: skip
    return _Read(resource, bool(added))
