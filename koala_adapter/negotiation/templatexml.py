# SPDX-License-Identifier: Apache-2.0
"""Negotiation templates from XML and to XML. Pure.

What comes in is a peer's: there is a bound on its size before anything is done, no document type, no entity and no
network, and the schema decides what is a template. One that was read and not changed is written byte for byte as it
came; every other one in the layout of the published example.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from lxml import etree

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
    rb"""<\?xml\s+version\s*=\s*(["'])1\.0\1(\s+encoding\s*=\s*(["'])(?i:utf-?8|us-ascii)\3)?"""
    rb"""(\s+standalone\s*=\s*(["'])(yes|no)\5)?\s*\?>"""
)
_FORBIDDEN = re.compile(rb"<!(?:DOCTYPE|ENTITY)|<\?(?!xml\s)")
"""Nothing of this is in a template, so nothing of it is handed to the parser, wherever it stands."""


def parse(data: bytes) -> Template:
    """Return the template that a document is. Raises NegotiationError."""
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
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', _root(template)]
    fields = (
        ("NT_Initiator", template.initiator),
        ("NT_Source", template.source),
        ("NT_Dest", template.dest),
        ("NT_Status", template.status),
    )
    # Nothing to escape: a value that can be made of a field has no character that XML takes for its own.
    lines += [f"  <{name}>{value}</{name}>" for name, value in fields]
    for resource in template.resources:
        lines += _resource_lines(resource)
    lines += ["</NT>", ""]
    return "\n".join(lines).encode()


def _root(template: Template) -> str:
    attributes = {"NT_AgreementID": template.agreement_id, "xmlns:xsi": _SCHEMA_INSTANCE}
    attributes["xsi:noNamespaceSchemaLocation"] = "NT.xsd"
    added = {
        "Direction": template.direction or "",
        "Obligation": template.obligation or "",
        "AnswerWithin": "" if template.answer_within is None else seconds(template.answer_within),
        "Round": "" if template.round is None else str(template.round),
        "Reason": template.reason,
    }
    if any(added.values()) or any(_additions(resource) for resource in template.resources):
        attributes["xmlns:k"] = NAMESPACE
    attributes |= {f"k:{name}": value for name, value in added.items() if value}
    return f"<NT{_attributes(attributes)}>"


def _resource_lines(resource: Resource) -> list[str]:
    fields = (
        ("Type", resource.type),
        ("Quantity", str(resource.quantity)),
        ("Usage", resource.usage),
        ("Negotiability", resource.negotiability),
        ("Status", resource.status),
    )
    added = {f"k:{name}": value for name, value in _additions(resource).items()}
    inner = [f"    <{name}>{value}</{name}>" for name, value in fields]
    return [f"  <Resource{_attributes(added)}>", *inner, "  </Resource>"]


def _additions(resource: Resource) -> dict[str, str]:
    found = {
        "Minimum": "" if resource.minimum is None else str(resource.minimum),
        "Maximum": "" if resource.maximum is None else str(resource.maximum),
        "Cluster": resource.cluster,
        "Component": resource.component,
    }
    return {name: value for name, value in found.items() if value}


def _attributes(attributes: dict[str, str]) -> str:
    return "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())


def seconds(value: float) -> str:
    """Return seconds as they are written: without an exponent, in thousandths at most."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
