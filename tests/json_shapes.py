# SPDX-License-Identifier: Apache-2.0
"""Whether a JSON value is of a shape: as much of JSON Schema as the shapes of koala use, and nothing unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}
_KNOWN = frozenset(
    {
        "$defs", "$ref", "$schema", "additionalProperties", "allOf", "anyOf", "const", "default", "description", "enum",
        "items", "maxItems", "minItems", "prefixItems", "properties", "required", "title", "type", "x-version",
    }
)  # fmt: skip


def deviations(value: Any, schema: dict[str, Any]) -> list[str]:  # noqa: ANN401 - JSON
    """Return where a value is not as a schema says, members that it does not name included."""
    return list(_deviations(value, schema, schema, "$"))


def _deviations(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:  # noqa: ANN401
    assert set(schema) <= _KNOWN, f"this checks nothing of {set(schema) - _KNOWN}"
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for one in schema.get("allOf", ()):
        yield from _deviations(value, one, root, at)
    if "anyOf" in schema and all(list(_deviations(value, one, root, at)) for one in schema["anyOf"]):
        yield f"{at}: {value!r} is none of {schema['anyOf']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not in {schema['enum']}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{at}: {value!r} is no {kind}"
        return
    if isinstance(value, list):
        yield from _of_list(value, schema, root, at)
    elif isinstance(value, dict):
        yield from _of_object(value, schema, root, at)


def _of_list(value: list[Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    first = schema.get("prefixItems", [])
    if len(value) < schema.get("minItems", 0) or len(value) > schema.get("maxItems", len(value)):
        yield f"{at}: {len(value)} items"
    for number, one in enumerate(value):
        yield from _deviations(
            one, first[number] if number < len(first) else schema.get("items", {}), root, f"{at}[{number}]"
        )


def _of_object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    properties, more = schema.get("properties", {}), schema.get("additionalProperties")
    yield from (f"{at}: no {name}" for name in schema.get("required", []) if name not in value)
    for name, one in value.items():
        if name in properties:
            yield from _deviations(one, properties[name], root, f"{at}.{name}")
        elif isinstance(more, dict):
            yield from _deviations(one, more, root, f"{at}.{name}")
        elif properties:
            yield f"{at}: unknown {name}"
