# SPDX-License-Identifier: Apache-2.0
"""Asks all plugins what they find here, side by side, and gives each find a name of its own."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import PluginError
from koala_adapter.plugin import Discovery, LeftOut

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.plugin import FoundCluster, PluginDefinition, Surroundings

LONGEST_NAME = 63
UNNAMED = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A batch system that a plugin found, under the name that it would have in a site file."""

    name: str
    plugin: str
    found: FoundCluster

    @property
    def described(self) -> str:
        """What it is, for a person."""
        return f"{self.name} ({self.found.described})"


def find_candidates(
    plugins: Mapping[str, PluginDefinition], around: Surroundings
) -> tuple[tuple[Candidate, ...], tuple[LeftOut, ...]]:
    """Return what the installed plugins find, in the order of the plugins' names, and what they leave out.

    A plugin that cannot be loaded, or whose search fails, is left out.
    """
    names = sorted(plugins)
    with ThreadPoolExecutor(max_workers=max(1, len(names))) as searches:
        found = list(searches.map(lambda name: _search(plugins, name, around), names))
    candidates: list[Candidate] = []
    for plugin, discovery in zip(names, found, strict=True):
        for cluster in discovery.clusters:
            name = unique_name(cluster.name, (one.name for one in candidates))
            candidates.append(Candidate(name=name, plugin=plugin, found=cluster))
    return tuple(candidates), tuple(left for discovery in found for left in discovery.left_out)


def unique_name(wanted: str, taken: Iterable[str]) -> str:
    """Return a name that a site file allows and that is not taken, as near to the wanted one as possible."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", wanted).strip("-")
    plain = (plain if plain[:1].isalpha() else f"{UNNAMED}-{plain}".strip("-"))[:LONGEST_NAME]
    others = set(taken)
    name, number = plain, 1
    while name in others:
        number += 1
        end = f"-{number}"
        name = plain[: LONGEST_NAME - len(end)] + end
    return name


def _search(plugins: Mapping[str, PluginDefinition], name: str, around: Surroundings) -> Discovery:
    try:
        discover = plugins[name].discover
    except PluginError as error:
        return Discovery(left_out=(LeftOut(what=f"plugin {name}", why=error.message, remedy=error.hint),))
    if discover is None:
        return Discovery()
    try:
        return discover(around)
    except Exception as error:  # noqa: BLE001 - a stranger's code must not keep the others from being found
        why = f"its search failed: {type(error).__name__}: {error}"
        return Discovery(left_out=(LeftOut(what=f"plugin {name}", why=why, remedy="report it to its authors"),))
