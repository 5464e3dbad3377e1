# SPDX-License-Identifier: Apache-2.0
"""Site files: which clusters there are, who speaks to each, and the limits to be kept there.

Here a file is read and checked as a whole; its tables are in :mod:`koala_adapter.config.sitemodel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.config.diagnosis import Problems, not_among, show_value
from koala_adapter.config.locations import find_site_file, state_directory
from koala_adapter.config.sitemodel import (
    ClusterConfig,
    ControlCenterConfig,
    DirectivesConfig,
    NoSettings,
    SchedulerConfig,
    SiteConfig,
    shortest_poll_interval,
)
from koala_adapter.config.tomlfile import parse_document, read_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic import BaseModel

    from koala_adapter.config.tomlfile import Document
    from koala_adapter.plugin import PluginDefinition

__all__ = [
    "ClusterConfig",
    "ControlCenterConfig",
    "DirectivesConfig",
    "NoSettings",
    "SchedulerConfig",
    "SiteConfig",
    "find_site_file",
    "load_site",
    "load_site_text",
    "shortest_poll_interval",
    "state_directory",
]

HINT = "`koala docs site-file` describes every key"


def load_site(path: Path, plugins: Mapping[str, PluginDefinition]) -> SiteConfig:
    """Return the site that the file at ``path`` describes, each cluster with the settings object of its plugin.

    Raises ConfigurationError with all problems of the file, one per line.
    """
    return _site(read_document(path), plugins)


def load_site_text(text: str, plugins: Mapping[str, PluginDefinition], *, source: str = "site file") -> SiteConfig:
    """Return the site that a TOML text describes; ``source`` is what refusals call it. Raises ConfigurationError."""
    return _site(parse_document(text, source=source), plugins)


def _site(document: Document, plugins: Mapping[str, PluginDefinition]) -> SiteConfig:
    problems = Problems(document, hint=HINT)
    data = dict(document.data)
    clusters = data.get("clusters")
    if isinstance(clusters, list):
        _check_together(problems, clusters, plugins)
        data["clusters"] = [
            {**table, "settings": _settings(problems, index, table, plugins)} if isinstance(table, dict) else table
            for index, table in enumerate(clusters)
        ]
    site = problems.validated(SiteConfig, data)
    problems.refuse()
    if site is None:
        raise AssertionError("a site that is not valid has problems")
    return site


def _check_together(problems: Problems, clusters: list[object], plugins: Mapping[str, PluginDefinition]) -> None:
    """Check what concerns several clusters: names are given once, and placeholders can go to all that are enabled."""
    seen: dict[str, int] = {}
    outside = 0
    for index, table in enumerate(clusters):
        if not isinstance(table, dict):
            continue
        name, plugin, enabled = table.get("name"), table.get("plugin"), table.get("enabled", True)
        if isinstance(name, str) and seen.setdefault(name, index) != index:
            text = f"found {show_value(name)}, the name of clusters[{seen[name]}]: allowed is a name of its own"
            problems.add(("clusters", index, "name"), text)
        if isinstance(plugin, str) and plugin in plugins and not plugins[plugin].capabilities.submit:
            outside += 1
            if enabled is True:
                text = (
                    f"nothing can be submitted through the plugin {show_value(plugin)}, so no placeholder can go "
                    "there: allowed is enabled = false (`koala schedule` can order the jobs of its users)"
                )
                problems.add(("clusters", index, "enabled"), text)
    disabled = [isinstance(table, dict) and table.get("enabled") is False for table in clusters]
    if clusters and all(disabled) and not outside:
        problems.add(("clusters",), "every cluster has enabled = false: allowed is at least one enabled cluster")


def _settings(
    problems: Problems, index: int, table: Mapping[str, object], plugins: Mapping[str, PluginDefinition]
) -> BaseModel:
    """Return the validated settings of one cluster; stand-in settings, with the problems noted, when they are wrong."""
    name = table.get("plugin")
    if not isinstance(name, str):
        return NoSettings()
    if name not in plugins:
        problems.add(("clusters", index, "plugin"), not_among(name, plugins, what="an installed plugin"))
        return NoSettings()
    given = table.get("settings", {})
    at = ("clusters", index, "settings")
    if not isinstance(given, dict):
        problems.add(at, f"found {show_value(given)}, allowed is a table: write [clusters.settings]")
        return NoSettings()
    return problems.validated_strictly(plugins[name].settings, given, at=at) or NoSettings()
