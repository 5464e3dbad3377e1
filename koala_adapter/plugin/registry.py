# SPDX-License-Identifier: Apache-2.0
"""Finds the installed plugins by their entry points, and refuses those that break the contract."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from pydantic import BaseModel

from koala_adapter.errors import PluginError
from koala_adapter.plugin.contract import INTERFACE_VERSION, Capabilities, PluginDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENTRY_POINT_GROUP = "koala_adapter.plugins"


def load_plugins(entry_points: Iterable[metadata.EntryPoint] | None = None) -> Mapping[str, PluginDefinition]:
    """Return all installed plugins by name.

    Raises PluginError, naming the distribution at fault, when one cannot be imported or breaks the contract.
    """
    if entry_points is None:
        entry_points = metadata.entry_points(group=ENTRY_POINT_GROUP)
    found: dict[str, PluginDefinition] = {}
    for entry_point in entry_points:
        definition = _load(entry_point)
        if definition.name in found:
            message = f"two plugins are called {definition.name!r} (second: {entry_point.value})"
            raise PluginError(message, hint="uninstall one of them")
        found[definition.name] = definition
    return found


def _load(entry_point: metadata.EntryPoint) -> PluginDefinition:
    where = f"plugin {entry_point.name!r} ({entry_point.value})"
    try:
        definition = entry_point.load()
    except Exception as error:
        message = f"{where} cannot be imported: {type(error).__name__}: {error}"
        raise PluginError(message, hint="reinstall it, or uninstall its distribution") from error
    problem = _contract_problem(entry_point.name, definition)
    if problem:
        message = f"{where} breaks the plugin contract: {problem}"
        raise PluginError(message, hint="see docs/plugins.md")
    checked: PluginDefinition = definition
    return checked


def _contract_problem(name: str, definition: object) -> str | None:  # noqa: PLR0911 - one return for each clause
    if not isinstance(definition, PluginDefinition):
        return f"expected a PluginDefinition, found {type(definition).__name__}"
    if definition.name != name:
        return f"it calls itself {definition.name!r}"
    if definition.interface_version != INTERFACE_VERSION:
        return f"it is written for interface {definition.interface_version}, this is interface {INTERFACE_VERSION}"
    if not (isinstance(definition.settings, type) and issubclass(definition.settings, BaseModel)):
        return "settings must be a pydantic model class"
    if definition.settings.model_config.get("extra") != "forbid":
        return 'its settings model must have extra="forbid", or a misspelt key would go unnoticed'
    if not callable(definition.factory):
        return "factory must be callable"
    return _capability_problem(definition.capabilities)


def _capability_problem(capabilities: object) -> str | None:
    if not isinstance(capabilities, Capabilities):
        return f"capabilities must be Capabilities, not {type(capabilities).__name__}"
    if capabilities.submit and not capabilities.find_by_name:
        return (
            "it can submit and cannot find its submissions by name (submit without find_by_name): one whose outcome is "
            "unknown would be submitted again"
        )
    return None
