# SPDX-License-Identifier: Apache-2.0
"""What is written for people stays true: conf/ loads and is complete, docs/ is what the models say."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic
import pytest
from pydantic import BaseModel

from koala_adapter.config.schema import job_schema, site_schema
from koala_adapter.config.sitefile import (
    ClusterConfig,
    ControlCenterConfig,
    DirectivesConfig,
    SchedulerConfig,
    load_site,
    load_site_text,
)
from tests.unit.config.toml_text import plugin

if TYPE_CHECKING:
    from types import ModuleType

    from koala_adapter.lrm import PluginDefinition

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"
EXAMPLES = sorted(CONF.glob("*.toml"))
NOT_DEFAULT = {("beta", "threshold"), ("here", "enabled")}
SCHEMA_WRITER = (2, 12)
"""From this pydantic on, schemas are written in the form that is kept in docs/."""


class AnySettings(BaseModel, extra="allow"):
    """Settings of a plugin that is not there."""


def reference() -> ModuleType:
    """Return docs/reference.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ours() -> dict[str, PluginDefinition]:
    """Return our plugins, with a stand-in for each that is not there."""
    module = reference()
    found: dict[str, PluginDefinition] = module.our_plugins()
    return {name: found.get(name) or plugin(name, AnySettings) for name in module.OURS}


def with_optional_keys(path: Path) -> str:
    """Return an example with its optional keys, those behind a # without a blank, written out."""
    return re.sub(r"(?m)^#(?=[a-z_]+ = )", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_load(path: Path, ours: dict[str, PluginDefinition]) -> None:
    """Each site file in conf/ is right as it is, and with all of its optional keys."""
    site = load_site(path, ours)
    assert len(load_site_text(with_optional_keys(path), ours, source=path.name).clusters) == len(site.clusters)


def test_each_plugin_has_an_example(ours: dict[str, PluginDefinition]) -> None:
    """There is one file for each plugin beside the complete one, and it uses that plugin."""
    assert {path.stem for path in EXAMPLES} >= {"site", *ours}
    for name in ours:
        assert {cluster.plugin for cluster in load_site(CONF / f"{name}.toml", ours).clusters} == {name}


def test_complete_site_names_every_key() -> None:
    """No key of the models is missing in conf/site.toml."""
    site = tomllib.loads(with_optional_keys(CONF / "site.toml"))
    assert set(site["control_center"]) == set(ControlCenterConfig.model_fields)
    assert set(site["scheduler"]) == set(SchedulerConfig.model_fields)
    assert set(site["clusters"][0]) == set(ClusterConfig.model_fields)
    assert set(site["clusters"][0]["directives"]) == set(DirectivesConfig.model_fields)


def test_complete_site_shows_the_defaults(ours: dict[str, PluginDefinition]) -> None:
    """What conf/site.toml writes out as a default is the default."""
    site = load_site(CONF / "site.toml", ours)
    assert site.control_center == ControlCenterConfig()
    assert site.scheduler == SchedulerConfig()
    assert site.clusters[0].directives == DirectivesConfig()
    for name, field in ClusterConfig.model_fields.items():
        if not field.is_required() and name != "settings":
            assert getattr(site.clusters[0], name) == field.get_default(call_default_factory=True), name


def test_docs_are_current() -> None:
    """The schemas and the lists of keys in docs/ are those of the models; if not, run: python docs/reference.py."""
    module = reference()
    if tuple(map(int, pydantic.VERSION.split(".")[:2])) < SCHEMA_WRITER:
        pytest.skip("another pydantic words the same schemas in another way")
    if missing := set(module.OURS) - set(module.our_plugins()):
        pytest.skip(f"plugins are missing: {', '.join(sorted(missing))}")
    for path, content in module.generated().items():
        assert path.read_text(encoding="utf-8") == content, f"{path} is out of date: run python docs/reference.py"


def test_schemas_name_every_key(ours: dict[str, PluginDefinition]) -> None:
    """The schemas hold the keys of the models, and the settings of each plugin."""
    site = json.loads(json.dumps(site_schema(ours)))
    assert set(site["$defs"]["ClusterConfig"]["properties"]) == set(ClusterConfig.model_fields)
    rules = {rule["if"]["properties"]["plugin"]["const"] for rule in site["$defs"]["ClusterConfig"]["allOf"]}
    assert rules == set(ours)
    assert site["$defs"]["SchedulerConfig"]["properties"]["pause"]["anyOf"][1]["type"] == "string"
    job = json.loads(json.dumps(job_schema()))
    assert set(job["required"]) == {"walltime", "components"}
    assert {"type": "string"} in job["$defs"]["ComponentTable"]["properties"]["input_files"]["items"]["anyOf"]


def test_schemas_have_no_loose_ends(ours: dict[str, PluginDefinition]) -> None:
    """Each reference leads to a definition in the same schema."""
    for schema in (site_schema(ours), job_schema()):
        definitions = schema["$defs"]
        assert isinstance(definitions, dict)
        for name in re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema)):
            assert name in definitions
