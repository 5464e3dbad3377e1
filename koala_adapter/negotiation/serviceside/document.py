# SPDX-License-Identifier: Apache-2.0
"""Negotiation templates from XML and to XML. Pure.

What comes in is a peer's: there is a bound on its size before anything is done, no document type, no entity and no
network, and the schema decides what is a template. One that was read and not changed is written byte for byte as it
came; every other one in the layout of the published example.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.template import (
    Direction,
    Negotiability,
    Obligation,
    Resource,
    Side,
    Status,
    Template,
    Usage,
)
from koala_adapter.negotiation.templateschema import template_schema

if TYPE_CHECKING:
    from lxml.etree import _Element

LARGEST_TEMPLATE = 65_536
"""Bytes."""
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
    from koala_adapter.negotiation import layoutreader

    if len(data) <= LARGEST_TEMPLATE:
        template = layoutreader.read(bytes(data))
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
    from xml.sax.saxutils import quoteattr

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
