# SPDX-License-Identifier: Apache-2.0
"""The XML schemas of the negotiation template, shipped with the package, and templates as JSON.

Used by commands, not by applications: validation needs lxml.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lxml import etree

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation import document, templates

if TYPE_CHECKING:
    from koala_adapter.negotiation.templates import Resource, Template


PUBLISHED = "NT.xsd"
EXTENSION = "NT-koala.xsd"
"""Attributes in our own namespace."""
_HINT = "koala negotiation schema prints what a template looks like"


def schema_path(name: str) -> Path:
    """Return the path of an installed schema."""
    return Path(__file__).with_name(name)


@cache
def template_schema() -> etree.XMLSchema:
    """Return both schemas, ready to validate with. Nothing is fetched from a network."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    return etree.XMLSchema(etree.parse(schema_path(PUBLISHED), parser))


def read(data: bytes) -> Template:
    """Parse a document as an endpoint does. Raises NegotiationError.

    Of a document that is none, the schema says where it is wrong.
    """
    try:
        return document.parse(data)
    except templates.NegotiationError as error:
        problem = _problem_by_schema(data) or str(error)
        raise NegotiationError(problem, hint=_HINT) from None


def _problem_by_schema(data: bytes) -> str:
    """Return the first violation of the schema; empty when there is none, or no parser may read the document."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    try:
        document.check_bytes(data)
        root = etree.fromstring(data, parser)
    except (templates.NegotiationError, etree.XMLSyntaxError, ValueError):
        return ""
    schema = template_schema()
    if schema.validate(root):
        return ""
    first = schema.error_log[0]
    return f"this is no negotiation template: line {first.line}: {' '.join(first.message.split())[:300]}"


def to_object(template: Template) -> dict[str, object]:
    """Return a template as a JSON object with the fields that have a value."""
    found = _object(template)
    del found["resources"]
    return {**found, "resources": [_object(one) for one in template.resources]}


def _object(value: Resource | Template) -> dict[str, object]:
    return {name: one for name, one in value._asdict().items() if one is not None and one != ""}
