# SPDX-License-Identifier: Apache-2.0
"""The whole search: what is here, what of it works, and the site file that says so."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from anyio.from_thread import start_blocking_portal

from koala_adapter.config.sitefile import load_site_text
from koala_adapter.discovery.addresses import find_address
from koala_adapter.discovery.candidates import find_candidates
from koala_adapter.discovery.probing import probe_all
from koala_adapter.discovery.sitetext import site_text
from koala_adapter.plugin import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.discovery.candidates import Candidate
    from koala_adapter.discovery.probing import UsableCluster
    from koala_adapter.plugin import LeftOut, PluginDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search found."""

    clusters: tuple[UsableCluster, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def described(self) -> str:
        """What is usable, for a person."""
        return ", ".join(cluster.candidate.described for cluster in self.clusters)

    def text(self, *, made: str) -> str:
        """Return the site file; there must be clusters. ``made``: by what and when."""
        return site_text(self.clusters, self.left_out, find_address(), made=made)


def our_surroundings() -> Surroundings:
    """Return where plugins look: the variables of this process, the files of this host."""
    return Surroundings(environment=os.environ)


def search(
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    around: Surroundings | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Found:
    """Find what is here and try it. ``directory``: the state directory, which is there. Takes seconds.

    ``tell`` hears what is being done.
    """
    tell("looking for batch systems")
    candidates, unusable = find_candidates(plugins, our_surroundings() if around is None else around)
    return try_candidates(candidates, unusable, plugins, directory, tell=tell)


def try_candidates(
    candidates: Sequence[Candidate],
    unusable: Sequence[LeftOut],
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Found:
    """Try what was found; ``unusable``: what need not be tried."""
    with start_blocking_portal() as portal:  # in a thread: the caller may have an event loop running in this one
        clusters, failing = portal.call(partial(probe_all, candidates, plugins, directory, tell=tell))
    found = Found(clusters=clusters, left_out=(*unusable, *failing))
    if clusters:
        # Whatever a plugin told us, what is written can be read.
        load_site_text(found.text(made="found"), plugins)
    return found
