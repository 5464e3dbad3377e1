# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of site files and job files, for editors that complete and check TOML.

They are made from the models that check the files. A schema cannot express all of their checks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.config.jobtables import JobTable
from koala_adapter.config.sitefile import SiteConfig
from koala_adapter.config.written import DURATION_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from koala_adapter.lrm import PluginDefinition

Schema: TypeAlias = dict[str, object]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def site_schema(plugins: Mapping[str, PluginDefinition]) -> Schema:
    """Return the JSON Schema of a site file whose clusters use ``plugins``."""
    schema = _schema(SiteConfig, "koala-adapter site file")
    definitions = _table(schema, "$defs")
    for unused in ("BaseModel", "NoSettings"):
        definitions.pop(unused, None)
    cluster = _table(definitions, "ClusterConfig")
    properties = _table(cluster, "properties")
    properties["settings"] = {"description": _table(properties, "settings").get("description", ""), "type": "object"}
    cluster["allOf"] = [_settings_rule(plugin, definitions) for _, plugin in sorted(plugins.items())]
    return schema


def job_schema() -> Schema:
    """Return the JSON Schema of a job file."""
    schema = _schema(JobTable, "koala-adapter job file")
    component = _table(_table(schema, "$defs"), "ComponentTable")
    files = _table(_table(component, "properties"), "input_files")
    files["items"] = {"anyOf": [{"type": "string"}, files["items"]]}
    return schema


def schema_text(schema: Schema) -> str:
    """Return a schema as the text of the files in docs/."""
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _schema(model: type[BaseModel], title: str) -> Schema:
    schema = model.model_json_schema()
    _finish(schema)
    return {**schema, "$schema": DIALECT, "title": title}


def _settings_rule(plugin: PluginDefinition, definitions: Schema) -> Schema:
    """Return the rule: where ``plugin`` has this name, ``settings`` is what its model says."""
    settings = plugin.settings.model_json_schema(ref_template=f"#/$defs/{plugin.name}_{{model}}")
    _finish(settings)
    inner = settings.pop("$defs", {})
    if isinstance(inner, dict):
        definitions.update({f"{plugin.name}_{name}": value for name, value in inner.items()})
    definitions[f"{plugin.name}_settings"] = settings
    return {
        "if": {"properties": {"plugin": {"const": plugin.name}}},
        "then": {"properties": {"settings": {"$ref": f"#/$defs/{plugin.name}_settings"}}},
    }


def _table(schema: Schema, key: str) -> Schema:
    inner = schema[key]
    if not isinstance(inner, dict):
        raise TypeError(f"{key} is no table")
    return inner


def _finish(schema: object) -> None:
    """Allow the text forms of durations; leave out titles that only repeat the keys, and null, which TOML has not."""
    if isinstance(schema, list):
        for item in schema:
            _finish(item)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    _leave_out_null(schema)
    if schema.get("x-unit") == "seconds":
        _allow_text(schema)
    for value in schema.values():
        _finish(value)


def _leave_out_null(schema: Schema) -> None:
    choices = schema.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        rest = [choice for choice in choices if choice != {"type": "null"}]
        if len(rest) == 1 and isinstance(rest[0], dict):
            del schema["anyOf"]
            schema.update(rest[0])
        else:
            schema["anyOf"] = rest
    if "default" in schema and schema["default"] is None:
        del schema["default"]


def _allow_text(schema: Schema) -> None:
    """Let a number of seconds also be a text such as ``"1h30m"``."""
    number: Schema = {key: schema.pop(key) for key in ("type", *_BOUNDS) if key in schema}
    schema["anyOf"] = [number, {"type": "string", "pattern": DURATION_PATTERN}]
