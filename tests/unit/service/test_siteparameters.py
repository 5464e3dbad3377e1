# SPDX-License-Identifier: Apache-2.0
"""What a site file says reaches the scheduler, so that the journal holds it; all that steers it can be said there."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel, TypeAdapter

from koala_adapter.config.sitefile import (
    ClusterConfig,
    ControlCenterConfig,
    Kind,
    NoSettings,
    SchedulerConfig,
    SiteConfig,
    load_site_text,
    settings_of,
    values_of,
)
from koala_adapter.model import ClusterName
from koala_adapter.scheduler.events import Configured
from koala_adapter.scheduler.parameters import NOT_IN_SITE_FILES, Approach, ClusterParameters, Parameters
from koala_adapter.service.service import configuration
from tests.unit.config.toml_text import plugin, toml

DOCS = Path(__file__).parents[3] / "docs"
CLUSTER = '[[clusters]]\nname = "alpha"\nplugin = "local"\n'
PLUGINS = {"local": plugin("local", NoSettings)}
TABLES: dict[Kind, dict[str, type[BaseModel]]] = {
    Parameters: {"ControlCenterConfig": ControlCenterConfig, "SchedulerConfig": SchedulerConfig},
    ClusterParameters: {"ClusterConfig": ClusterConfig},
}
ALPHA = ClusterParameters(name=ClusterName("alpha"))
KEYS = [(kind, name) for kind in TABLES for name in settings_of(kind)]


def key_of(kind: Kind, name: str) -> str:
    """Return the key of a parameter in site files."""
    return settings_of(kind)[name].key or name


def header_of(kind: Kind, name: str) -> str:
    """Return the header of the table of a site file that has a parameter."""
    if kind is ClusterParameters:
        return CLUSTER
    in_center = key_of(kind, name) in ControlCenterConfig.model_fields
    return f"{CLUSTER}[{'control_center' if in_center else 'scheduler'}]\n"


def another_value(kind: Kind, name: str) -> Any:  # noqa: ANN401 - of whatever type the parameter has
    setting, hint = settings_of(kind)[name], get_type_hints(kind)[name]
    default: Any = next(field.default for field in fields(kind) if field.name == name)
    if setting.choices is not None:
        return next(choice for choice in sorted(setting.choices) if choice != default)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return next(choice for choice in hint if choice != default)
    if setting.unit == "absolute paths":
        return ("/data",)
    return not default if hint is bool else (default or 0) + 1


def test_every_parameter_can_be_set_or_it_is_said_why_not() -> None:
    """Each parameter has a setting or is on the short list of those that no site file sets; none is both."""
    for kind in TABLES:
        names = {field.name for field in fields(kind)} - {"name"}
        assert names - set(NOT_IN_SITE_FILES) == set(settings_of(kind))
    assert set(NOT_IN_SITE_FILES) == {
        "instance",
        "bandwidth_from",
        "software",
        "container_runtime",
        "slot_keys",
    }


@pytest.mark.parametrize(("kind", "name"), KEYS)
def test_every_setting_is_a_key_of_one_table(kind: Kind, name: str) -> None:
    """With its meaning in the model, in the manual and in the JSON Schema, all three in the same table."""
    key, setting = key_of(kind, name), settings_of(kind)[name]
    (title,) = (title for title, table in TABLES[kind].items() if key in table.model_fields)
    assert TABLES[kind][title].model_fields[key].description == setting.meaning
    schema = json.loads((DOCS / "site.schema.json").read_text(encoding="utf-8"))
    assert schema["$defs"][title]["properties"][key]["description"] == setting.meaning
    section = {"ControlCenterConfig": "control_center", "SchedulerConfig": "scheduler", "ClusterConfig": "clusters"}
    page = (DOCS / "site-file.md").read_text(encoding="utf-8")
    (keys,) = re.findall(rf"<!-- keys: {section[title]} -->\n(.*?)<!-- end -->", page, re.DOTALL)
    assert re.search(rf"^\| `{key}` \| .* \| {re.escape(setting.meaning)} \|$", keys, re.MULTILINE)


@pytest.mark.parametrize(("kind", "name"), KEYS)
def test_what_a_file_says_reaches_the_scheduler(kind: Kind, name: str) -> None:
    """Each key changes its own parameter and no other."""
    value = another_value(kind, name)
    written = toml(list(value) if isinstance(value, tuple) else value.value if isinstance(value, Enum) else value)
    rest = "longest_backoff = 86400\n" if name == "backoff" else ""
    site = load_site_text(f"{header_of(kind, name)}{key_of(kind, name)} = {written}\n{rest}", PLUGINS)
    made = configuration(site, "me", 5.0, {})
    changed = {name: value} | ({"longest_backoff": 86_400.0} if rest else {})
    site_wide, cluster = (changed, {}) if kind is Parameters else ({}, changed)
    assert made == Configured(
        time=5.0, parameters=replace(Parameters(instance="me"), **site_wide), clusters=(replace(ALPHA, **cluster),)
    )


def test_a_site_that_says_nothing_has_the_defaults_of_the_scheduler() -> None:
    """Those of the site and those of a cluster; a cluster that is disabled is not told of."""
    site = SiteConfig(
        clusters=(ClusterConfig(name="alpha", plugin="local"), ClusterConfig(name="b", plugin="local", enabled=False))
    )
    assert configuration(site, "k", 5.0, {}) == Configured(time=5.0, parameters=Parameters(), clusters=(ALPHA,))


def test_tables_without_parameters_set_none() -> None:
    assert values_of(Parameters, NoSettings()) == {}
    assert values_of(ClusterParameters, SchedulerConfig()) == {"malleability_policy": "egs-repeated"}


def test_what_steered_an_earlier_version_is_read_as_it_was_written() -> None:
    """Numbers that were written with a point are whole now, and bounds of site files do not hold for journals."""
    old = {"time": 1.0, "parameters": {"launch_margin": 120.0, "backoff": 0.0, "approach": "pra"}, "clusters": []}
    found = TypeAdapter(Configured).validate_json(json.dumps(old))
    assert found.parameters == Parameters(launch_margin=120, backoff=0.0, approach=Approach.PRA)
