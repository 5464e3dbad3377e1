# SPDX-License-Identifier: Apache-2.0
"""The XML schemas of the negotiation template, shipped with the package, and templates as JSON.

Used by the service and the commands, not by applications: validation needs lxml.
"""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.serviceside.template import (
    Direction,
    Negotiability,
    Obligation,
    Resource,
    Side,
    Status,
    Template,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from lxml import etree


# -- Schemas -------------------------------------------------------------------------------------------------

PUBLISHED = "NT.xsd"
EXTENSION = "NT-koala.xsd"
"""Attributes in our own namespace."""


def schema_path(name: str) -> Path:
    """Return the path of an installed schema."""
    return Path(__file__).with_name(name)


@cache
def template_schema() -> etree.XMLSchema:
    """Return both schemas, ready to validate with. Nothing is fetched from a network."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    return etree.XMLSchema(etree.parse(schema_path(PUBLISHED), parser))


# -- Templates as JSON ---------------------------------------------------------------------------------------
# The members are the fields of the values; what a template does not say is left out.

Value = TypeVar("Value", Resource, Template)

_WORDS: dict[str, type[StrEnum]] = {
    "initiator": Side,
    "status": Status,
    "usage": Usage,
    "negotiability": Negotiability,
    "direction": Direction,
    "obligation": Obligation,
}
_INTEGERS = frozenset({"quantity", "minimum", "maximum", "round"})
_REQUIRED = frozenset({"agreement_id", "initiator", "source", "dest", "type", "quantity"})
_OPTIONAL = frozenset({"minimum", "maximum", "direction", "obligation", "answer_within", "round"})


def to_object(template: Template) -> dict[str, object]:
    """Return the JSON object of a template: what is not said is left out."""
    found = _object(template)
    found["resources"] = [_object(resource) for resource in template.resources]
    return found


def to_json(template: Template) -> str:
    """Return a template as one line of JSON."""
    return json.dumps(to_object(template), ensure_ascii=False)


def from_json(text: str | bytes) -> Template:
    """Return the template that a JSON document is. Raises NegotiationError that names the member."""
    if len(text) > LARGEST_TEMPLATE:
        raise NegotiationError(f"a template of {len(text)} bytes is too large: at most {LARGEST_TEMPLATE}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NegotiationError(f"this is no JSON document: {str(error)[:200]}") from None
    return from_object(value)


def from_object(value: object) -> Template:
    """Return the template of a JSON object. Raises NegotiationError that names the member."""
    if not isinstance(value, dict):
        raise NegotiationError("a template is a JSON object")
    resources = value.get("resources", [])
    if not isinstance(resources, list):
        raise NegotiationError("resources: expected a list")
    made = tuple(_made(Resource, one, f"resources[{number}].") for number, one in enumerate(resources))
    return _made(Template, {**value, "resources": made}, "")


def _object(value: Resource | Template) -> dict[str, object]:
    found = {one.name: getattr(value, one.name) for one in fields(value) if one.init and one.name != "resources"}
    return {name: one for name, one in found.items() if one is not None and one != ""}


def _made(wanted: type[Value], value: object, where: str) -> Value:
    if not isinstance(value, dict):
        raise NegotiationError(f"{where.rstrip('.')}: expected an object")
    known = {one.name: one for one in fields(wanted) if one.init}
    unknown = sorted(str(name) for name in value if name not in known)
    if unknown:
        raise NegotiationError(f"{where}{unknown[0]}: no such member")
    given: dict[str, Any] = {name: _member(name, one, where) for name, one in value.items()}
    missing = [name for name, one in known.items() if name in _REQUIRED and name not in given]
    if missing:
        raise NegotiationError(f"{where}{missing[0]} is missing")
    return wanted(**given)


def _member(name: str, value: object, where: str) -> object:
    if value is None and name in _OPTIONAL:
        return None
    if name == "resources":
        return value
    if words := _WORDS.get(name):
        return _word(words, value, where + name)
    if name in _INTEGERS:
        return _expected(type(value) is int, value, where + name, "a whole number")
    if name == "answer_within":
        return _expected(type(value) in {int, float}, value, where + name, "a number of seconds")
    return _expected(isinstance(value, str), value, where + name, "a text")


def _word(words: type[StrEnum], value: object, where: str) -> StrEnum:
    allowed: Mapping[str, StrEnum] = {str(word): word for word in words}
    if not isinstance(value, str) or value not in allowed:
        raise NegotiationError(f"{where}: expected one of {', '.join(allowed)}")
    return allowed[value]


def _expected(right: bool, value: object, where: str, what: str) -> object:  # noqa: FBT001 - a condition
    if not right:
        raise NegotiationError(f"{where}: expected {what}")
    return value


# -- Largest template ----------------------------------------------------------------------------------------

LARGEST_TEMPLATE = 65_536
"""Bytes."""
