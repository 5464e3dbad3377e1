# SPDX-License-Identifier: Apache-2.0
"""Reads templates that stand in the layout in which they are written here and by koala, in one pass. Pure.

What it reads is a template by the schema; anything else (another layout, an escaped character, a number out of range)
it leaves to expat. The patterns are also those of layoutreader.py.
"""

import re
from typing import List, Match, Optional

from koala_adapter.negotiation.applicationside.values import (
    LARGEST_QUANTITY,
    MOST_RESOURCES,
    Resource,
    Template,
    check_together,
)

_HOST_FIELD = r"([A-Za-z0-9._:-]{1,255})"
_NAME_FIELD = r"([A-Za-z][A-Za-z0-9_-]{0,62})"
_STATUS_FIELD = r"(NT_(?:NEGOTIATION|ACCEPTED|COMMITTED|CONSUMED|REJECTED|WITHDRAWN|EXPIRED|ERROR))"
LAYOUT_HEAD = re.compile(
    r'<\?xml version="1\.0" encoding="UTF-8"\?>\n'
    r'<NT NT_AgreementID="([A-Za-z0-9._:-]{1,64})" xmlns:xsi="http://www\.w3\.org/2001/XMLSchema-instance"'
    r' xsi:noNamespaceSchemaLocation="NT\.xsd"'
    r'(?:( xmlns:k="urn:koala-adapter:negotiation")'
    r'(?: k:Direction="(grow|shrink)")?(?: k:Obligation="(voluntary|mandatory)")?'
    r'(?: k:AnswerWithin="([0-9]{1,7}(?:\.[0-9]{1,3})?)")?(?: k:Round="([0-9]{1,4})")?'
    '(?: k:Reason="([ !#-%\'-;=-~\u00a0-\ud7ff\ue000-\ufffd]{1,500})")?)?>\n'
    r"  <NT_Initiator>(RMS|APPLICATION)</NT_Initiator>\n  <NT_Source>" + _HOST_FIELD + "</NT_Source>\n"
    r"  <NT_Dest>" + _HOST_FIELD + r"</NT_Dest>\n  <NT_Status>" + _STATUS_FIELD + "</NT_Status>\n"
)
LAYOUT_RESOURCE = re.compile(
    r'  <Resource((?: k:Minimum="([0-9]{1,10})")?(?: k:Maximum="([0-9]{1,10})")?'
    '(?: k:Cluster="' + _NAME_FIELD + '")?(?: k:Component="' + _NAME_FIELD + '")?)>\n'
    r"    <Type>([A-Za-z][A-Za-z0-9._-]{0,63})</Type>\n    <Quantity>([0-9]{1,10})</Quantity>\n"
    r"    <Usage>(NT_REQUIRED|NT_OPTIONAL)</Usage>\n    <Negotiability>(NT_NEGOTIABLE|NT_FIXED)</Negotiability>\n"
    r"    <Status>" + _STATUS_FIELD + "</Status>\n  </Resource>\n"
)
LAYOUT_END = "</NT>\n"


def read_layout(text: str) -> Optional[Template]:
    """Return the template that a document is; None: not in this layout, or not one at all.

    Raises NegotiationError where the resources do not go together.
    """
    head = LAYOUT_HEAD.match(text)
    if head is None:
        return None
    id_, extended, direction, obligation, within, number, reason, initiator, source, dest, status = head.groups()
    answer_within, round_ = float(within) if within else None, int(number) if number else None
    resources: List[Resource] = []
    place = head.end()
    found = LAYOUT_RESOURCE.match(text, place)
    while found is not None:
        resource = _resource(found, bool(extended))
        if resource is None:
            return None
        resources.append(resource)
        place = found.end()
        found = LAYOUT_RESOURCE.match(text, place)
    if text[place:] != LAYOUT_END or answer_within == 0 or round_ == 0 or len(resources) > MOST_RESOURCES:
        return None
    return check_together(Template(
        id_, initiator, source, dest, status, tuple(resources), direction or "", obligation or "", answer_within,
        round_, reason or ""))  # fmt: skip


def _resource(found: Match[str], extended: bool) -> Optional[Resource]:  # noqa: FBT001 - of a private function
    added, least, most, cluster, component, type_, number, usage, negotiability, status = found.groups()
    quantity, minimum, maximum = int(number), int(least) if least else None, int(most) if most else None
    if (added and not extended) or not 1 <= quantity <= LARGEST_QUANTITY:
        return None
    if (minimum is not None and not 1 <= minimum <= quantity) or (
        maximum is not None and not quantity <= maximum <= LARGEST_QUANTITY
    ):
        return None
    return Resource(type_, quantity, usage, negotiability, status, minimum, maximum, cluster or "", component or "")
