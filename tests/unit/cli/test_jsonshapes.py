# SPDX-License-Identifier: Apache-2.0
"""The shapes of what ``--json`` prints keep their promise from one version of koala to the next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from koala_adapter.cli.jsonshapes import SHAPES, shape_schema
from koala_adapter.cli.koala import OnDemandCommand, koala
from tests.json_shapes import deviations

RECORD = Path(__file__).parent / "jsonshapes.json"
"""Version and members of each shape. A member that was added is added here; after another change the version is
another one: ``python -m tests.unit.cli.test_jsonshapes`` writes it anew."""


def members(schema: dict[str, Any], root: dict[str, Any], at: str = "") -> dict[str, str]:
    if "$ref" in schema:
        return members(root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    if "allOf" in schema:  # so earlier versions of pydantic refer to what has a default
        (only,) = schema["allOf"]
        return members(only, root, at)
    found: dict[str, str] = {}
    for one in schema.get("anyOf", []):
        found |= members(one, root, at)
    if "anyOf" in schema:
        kinds = sorted({one.get("type", "object") for one in schema["anyOf"]})
        return found | ({at: " or ".join(kinds)} if at else {})
    if at:
        found[at] = schema.get("type", "string")
    for name, one in schema.get("properties", {}).items():
        found |= members(one, root, f"{at}.{name}" if at else name)
    inner = [*schema.get("prefixItems", []), schema.get("items"), schema.get("additionalProperties")]
    for number, one in enumerate(one for one in inner if isinstance(one, dict)):
        found |= members(one, root, f"{at}[{number}]")
    return found


def form_of(name: str) -> dict[str, Any]:
    """Return version and members of a shape as they are now."""
    schema = shape_schema(name)
    return {"version": SHAPES[name].version, "members": members(schema, schema)}


@pytest.mark.parametrize("name", SHAPES)
def test_within_a_version_members_are_only_added(name: str) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    now = form_of(name)
    if now["version"] == recorded["version"]:
        assert {way: now["members"].get(way) for way in recorded["members"]} == recorded["members"]
    assert now == recorded, "write it anew: python -m tests.unit.cli.test_jsonshapes"


@pytest.mark.parametrize("name", SHAPES)
def test_each_schema_is_printed(name: str) -> None:
    """With the version, the commands that print it, and a text for each kind of object."""
    schema = json.loads(CliRunner().invoke(koala, ["schema", name]).stdout)
    assert schema == json.loads(json.dumps(shape_schema(name)))
    assert schema["x-version"] == SHAPES[name].version
    assert f"`koala {SHAPES[name].commands[0]} --json`" in schema["description"]
    objects = [one for one in schema.get("$defs", {}).values() if "properties" in one]
    assert all(one["description"] for one in objects)


def json_commands(command: click.Command, name: str) -> set[str]:
    loaded = command.load() if isinstance(command, OnDemandCommand) else command
    if isinstance(loaded, click.Group):
        parts = (json_commands(one, f"{name} {inner}".strip()) for inner, one in loaded.commands.items())
        return set().union(*parts)
    return {name} if any("--json" in one.opts for one in loaded.params) else set()


def test_every_command_with_json_has_a_shape() -> None:
    described = {
        " ".join(word for word in command.split() if word.islower() and not word.startswith("-"))
        for shape in SHAPES.values()
        for command in shape.commands
    }
    assert described == json_commands(koala, "")


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ({"id": "1"}, []),
        ({"id": 1}, ["$.id: 1 is no string"]),
        ({}, ["$: no id"]),
        ({"id": "1", "more": 2}, ["$: unknown more"]),
        ([], ["$: [] is no object"]),
    ],
)
def test_deviations_are_found(value: object, wrong: list[str]) -> None:
    """Or the comparison with real output would mean nothing."""
    assert deviations(value, shape_schema("submitted")) == wrong


if __name__ == "__main__":
    RECORD.write_text(
        json.dumps({name: form_of(name) for name in SHAPES}, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
