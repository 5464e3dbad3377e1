# SPDX-License-Identifier: Apache-2.0
"""Finds the installed plugins by their entry points, and refuses those that break the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import BaseModel

from koala_adapter.errors import PluginError
from koala_adapter.host.entrypoints import installed_entry_points
from koala_adapter.plugin.contract import INTERFACE_VERSION, Capabilities, PluginDefinition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib import metadata

ENTRY_POINT_GROUP = "koala_adapter.plugins"


class InstalledPlugins(Mapping[str, PluginDefinition]):
    """Installed plugins by name, each imported when it is looked up: a site pays only for the plugins that it uses.

    Looking one up raises PluginError, naming the distribution at fault, when it cannot be imported or breaks the
    contract. Going through the values looks up all.
    """

    def __init__(self, entry_points: Iterable[metadata.EntryPoint]) -> None:
        """Raise PluginError when two have the same name."""
        self._entry_points: dict[str, metadata.EntryPoint] = {}
        self._definitions: dict[str, PluginDefinition] = {}
        for entry_point in entry_points:
            if entry_point.name in self._entry_points:
                message = f"two plugins are called {entry_point.name!r} (second: {entry_point.value})"
                raise PluginError(message, hint="uninstall one of them")
            self._entry_points[entry_point.name] = entry_point

    def __getitem__(self, name: str) -> PluginDefinition:
        """Return one, imported now if it was not before."""
        if name not in self._definitions:
            self._definitions[name] = _load(self._entry_points[name])
        return self._definitions[name]

    def __contains__(self, name: object) -> bool:
        """Tell whether one is installed, without importing it."""
        return name in self._entry_points

    def __iter__(self) -> Iterator[str]:
        """Go through the names, without importing anything."""
        return iter(self._entry_points)

    def __len__(self) -> int:
        """Return the number of installed plugins."""
        return len(self._entry_points)


def load_plugins(entry_points: Iterable[metadata.EntryPoint] | None = None) -> Mapping[str, PluginDefinition]:
    """Return all installed plugins by name; which of them are loaded is up to who looks them up (InstalledPlugins)."""
    installed = installed_entry_points().select(group=ENTRY_POINT_GROUP)
    return InstalledPlugins(installed if entry_points is None else entry_points)


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
        raise PluginError(message, hint="see `koala docs plugins`")
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
    if not (definition.discover is None or callable(definition.discover)):
        return "discover must be callable, or be left out"
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
