# SPDX-License-Identifier: Apache-2.0
"""Negotiation templates from XML and to XML, and the frames that carry them. Pure.

In this order: the one-pass reader of koala's own layout, the reader by schema and the writer, and the frames of a
connection.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from xml.sax.saxutils import quoteattr

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.document import LAYOUT_END, LAYOUT_HEAD, LAYOUT_RESOURCE
from koala_adapter.negotiation.schema import (
    LARGEST_TEMPLATE,
    template_schema,
)
from koala_adapter.negotiation.serviceside.template import (
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
    unchecked_resource,
    unchecked_template,
)

if TYPE_CHECKING:
    from lxml.etree import _Element


# -- Templates in koala's own layout, read in one pass -------------------------------------------------------
# koala, its application library and the published example write this layout. A template read here is one by the
# schema, and has the meaning that the XML parser and the schema would give it; any other document (another layout, an
# escaped character, a number out of range) is left to them. Tests compare both readers.

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


# -- Templates from XML by the schema, and to XML ------------------------------------------------------------
# Input comes from a peer: its size is bounded before anything else is done, no document type, entity or network
# access is allowed, and the schema decides what is a template. A template that was read and not changed is written
# byte for byte as it came; every other one in the layout of the published example.

NAMESPACE = "urn:koala-adapter:negotiation"
_OURS = f"{{{NAMESPACE}}}"
_SCHEMA_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_OF_SCHEMAS = f"{{{_SCHEMA_INSTANCE}}}"
_HINTS_AT_SCHEMAS = {f"{_OF_SCHEMAS}{name}" for name in ("noNamespaceSchemaLocation", "schemaLocation")}
_SPACE = " \t\r\n"
_HINT = "koala negotiation schema prints what a template looks like"

_DECLARATION = re.compile(
    rb"""<\?xml\s+version\s*=\s*(["'])1\.0\1(\s+encoding\s*=\s*(["'])(?i:utf-8)\3)?"""
    rb"""(\s+standalone\s*=\s*(["'])(yes|no)\5)?\s*\?>"""
)
_FORBIDDEN = re.compile(rb"<!(?:DOCTYPE|ENTITY)|<\?(?!xml\s)")
"""Nothing of this is in a template, so nothing of it is handed to the parser, wherever it stands."""


def parse(data: bytes) -> Template:
    """Return the template that a document is. Raises NegotiationError."""
    if len(data) <= LARGEST_TEMPLATE:
        template = read(bytes(data))
        if template is not None:
            return template
    return parse_any(data)


def parse_any(data: bytes) -> Template:
    """Return the template that a document is, in whatever layout it stands. Raises NegotiationError."""
    from lxml import etree

    check_bytes(data)
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise NegotiationError(f"this is no well-formed XML: {str(error)[:200]}", hint=_HINT) from None
    _check_attributes(root)
    schema = template_schema()
    if not schema.validate(root):
        first = schema.error_log[0]
        message = " ".join(first.message.split())[:300]
        raise NegotiationError(f"this is no negotiation template: line {first.line}: {message}", hint=_HINT)
    template = _template(root)
    object.__setattr__(template, "bytes_read", bytes(data))
    return template


def check_bytes(data: bytes) -> None:
    """Raise NegotiationError for what must not reach an XML parser."""
    if len(data) > LARGEST_TEMPLATE:
        raise NegotiationError(f"a template of {len(data)} bytes is too large: at most {LARGEST_TEMPLATE}")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise NegotiationError(f"a template is in UTF-8; byte {error.start} is not", hint=_HINT) from None
    if data.startswith(b"<?") and not _DECLARATION.match(data):
        message = "a template begins with its root, or with an XML declaration of version 1.0 in UTF-8"
        raise NegotiationError(message, hint=_HINT)
    found = _FORBIDDEN.search(data)
    if found:
        what = found.group().decode("ascii")
        raise NegotiationError(f"a template has no document type, entity or processing instruction: {what}")


def _check_attributes(root: _Element) -> None:
    """Raise NegotiationError for attributes that XML Schema allows everywhere, and that change what it checks."""
    for element in root.iter():
        for name in map(str, element.attrib):
            of_a_field = element.tag not in {"NT", "Resource"}
            if of_a_field or (name.startswith(_OF_SCHEMAS) and name not in _HINTS_AT_SCHEMAS):
                raise NegotiationError(f"{element.tag!s} has an attribute {name:.70}", hint=_HINT)


def _template(root: _Element) -> Template:
    initiator, source, dest, status, *resources = root
    return Template(
        agreement_id=(root.get("NT_AgreementID") or "").strip(_SPACE),
        initiator=Side(_text(initiator)),
        source=_text(source),
        dest=_text(dest),
        status=Status(_text(status)),
        resources=tuple(_resource(element) for element in resources),
        direction=Direction(said) if (said := _added(root, "Direction")) else None,
        obligation=Obligation(said) if (said := _added(root, "Obligation")) else None,
        answer_within=float(said) if (said := _added(root, "AnswerWithin")) else None,
        round=int(said) if (said := _added(root, "Round")) else None,
        reason=_one_line(root.get(f"{_OURS}Reason") or ""),
    )


def _resource(element: _Element) -> Resource:
    type_, quantity, usage, negotiability, status = element
    return Resource(
        type=_text(type_),
        quantity=int(_text(quantity)),
        usage=Usage(_text(usage)),
        negotiability=Negotiability(_text(negotiability)),
        status=Status(_text(status)),
        minimum=int(said) if (said := _added(element, "Minimum")) else None,
        maximum=int(said) if (said := _added(element, "Maximum")) else None,
        cluster=_added(element, "Cluster"),
        component=_added(element, "Component"),
    )


def _text(element: _Element) -> str:
    return (element.text or "").strip(_SPACE)


def _added(element: _Element, name: str) -> str:
    return (element.get(_OURS + name) or "").strip(_SPACE)


def _one_line(text: str) -> str:
    return text.translate({ord(space): " " for space in "\t\r\n"})


def build(template: Template) -> bytes:
    """Return the document of a template: what it was read from, if it was."""
    if template.bytes_read is not None:
        return template.bytes_read
    added = _added_to_root(template)
    resources = "".join([_resource_text(resource) for resource in template.resources])
    if added or "<Resource k:" in resources:
        added = f' xmlns:k="{NAMESPACE}"{added}'
    # Nothing to escape: a value that can be made of a field has no character that XML takes for its own, but a reason.
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<NT NT_AgreementID="{template.agreement_id}" xmlns:xsi="{_SCHEMA_INSTANCE}" '
        f'xsi:noNamespaceSchemaLocation="NT.xsd"{added}>\n'
        f"  <NT_Initiator>{template.initiator}</NT_Initiator>\n"
        f"  <NT_Source>{template.source}</NT_Source>\n"
        f"  <NT_Dest>{template.dest}</NT_Dest>\n"
        f"  <NT_Status>{template.status}</NT_Status>\n"
        f"{resources}</NT>\n"
    ).encode()


def _added_to_root(template: Template) -> str:
    text = "" if template.direction is None else f' k:Direction="{template.direction}"'
    if template.obligation is not None:
        text += f' k:Obligation="{template.obligation}"'
    if template.answer_within is not None:
        text += f' k:AnswerWithin="{seconds(template.answer_within)}"'
    if template.round is not None:
        text += f' k:Round="{template.round}"'
    if not template.reason:
        return text

    return text + f" k:Reason={quoteattr(template.reason)}"


def _resource_text(resource: Resource) -> str:
    added = "" if resource.minimum is None else f' k:Minimum="{resource.minimum}"'
    if resource.maximum is not None:
        added += f' k:Maximum="{resource.maximum}"'
    if resource.cluster:
        added += f' k:Cluster="{resource.cluster}"'
    if resource.component:
        added += f' k:Component="{resource.component}"'
    return (
        f"  <Resource{added}>\n    <Type>{resource.type}</Type>\n    <Quantity>{resource.quantity}</Quantity>\n"
        f"    <Usage>{resource.usage}</Usage>\n    <Negotiability>{resource.negotiability}</Negotiability>\n"
        f"    <Status>{resource.status}</Status>\n  </Resource>\n"
    )


@lru_cache(maxsize=64)
def seconds(value: float) -> str:
    """Return seconds as they are written: without an exponent, in thousandths at most."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


# -- Frames: a size of eight digits, a line feed, and so many bytes ------------------------------------------
# ::
#
#     00000542\n<?xml version="1.0" encoding="UTF-8"?> ...
#
# A size that is malformed or too large is refused as soon as its nine bytes are there; no memory is reserved for it.

HEADER_SIZE = 9
_HEADER = re.compile(rb"[0-9]{8}\n")
_HEADER_SO_FAR = re.compile(rb"[0-9]{0,8}")


def frame(payload: bytes) -> bytes:
    """Return the frame of a template. Raises NegotiationError when it is empty or too large."""
    if not 1 <= len(payload) <= LARGEST_TEMPLATE:
        raise NegotiationError(f"a frame holds 1 to {LARGEST_TEMPLATE} bytes, not {len(payload)}")
    return b"%08d\n%b" % (len(payload), payload)


class FrameBuffer:
    """Takes the bytes of one connection in whatever pieces they come, and gives the payloads of its frames."""

    def __init__(self, *, limit: int = LARGEST_TEMPLATE) -> None:
        """``limit`` is the largest payload in bytes that is accepted."""
        self._limit = limit
        self._received = bytearray()

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._received)

    @property
    def missing(self) -> int:
        """Bytes that are certainly still to come before a payload is complete."""
        if len(self._received) < HEADER_SIZE:
            return HEADER_SIZE - len(self._received)
        return HEADER_SIZE + int(self._received[:HEADER_SIZE]) - len(self._received)

    def feed(self, data: bytes) -> list[bytes]:
        """Take some bytes and return the payloads that are complete with them.

        Raises NegotiationError for a size that is none or too large: the connection must be closed.
        """
        if not self._received and _HEADER.match(data):
            claimed = int(data[:HEADER_SIZE])
            if len(data) == HEADER_SIZE + claimed and 1 <= claimed <= self._limit:
                return [data[HEADER_SIZE:]]  # one whole frame and nothing else, as it nearly always is
        payloads = []
        self._received += data
        while (size := self._size()) is not None and len(self._received) >= HEADER_SIZE + size:
            payloads.append(bytes(self._received[HEADER_SIZE : HEADER_SIZE + size]))
            del self._received[: HEADER_SIZE + size]
        return payloads

    def _size(self) -> int | None:
        header = bytes(self._received[:HEADER_SIZE])
        if len(header) < HEADER_SIZE and _HEADER_SO_FAR.fullmatch(header):
            return None
        if not _HEADER.fullmatch(header):
            raise NegotiationError(f"a frame begins with its size in eight digits and a line feed, not with {header!r}")
        size = int(header)
        if not 1 <= size <= self._limit:
            raise NegotiationError(f"a frame of {size} bytes is refused: from 1 to {self._limit}")
        return size
