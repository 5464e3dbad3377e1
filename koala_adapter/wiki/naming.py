# SPDX-License-Identifier: Apache-2.0
"""Names on the wire for nodes whose LRM calls them otherwise: no separators, and each name once. Pure.

A queue instance of Grid Engine, ``batch.q@n7``, goes by ``batch.q_n7``; nodes of several clusters that are all called
``n1`` go by ``alpha.n1`` and ``beta.n1``.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from koala_adapter.wiki.codec.hostlists import LONGEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.wiki.sources import Place

_FORBIDDEN = re.compile(r"[^A-Za-z0-9._+-]")
LONGEST_NAME = LONGEST_ID - 6
"""Characters that are kept: room for a number is left."""


def wire_name(text: str) -> str:
    """Return a name as it may go into a message."""
    return _FORBIDDEN.sub("_", text)[-LONGEST_NAME:] or "_"


def node_names(places: Iterable[Place], known: Mapping[Place, str]) -> dict[Place, str]:
    """Return the name on the wire of each place. One that has a name keeps it, as long as we run."""
    names = dict(known)
    taken = set(names.values())
    listed = [place for place in dict.fromkeys(places) if place not in names]
    count = Counter(wire_name(place.node) for place in (*known, *listed))
    for place in listed:
        name = wire_name(place.node)
        if count[name] > 1 or name in taken:
            name = wire_name(f"{place.cluster}.{place.node}")
        number, plain = 1, name
        while name in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name)
        names[place] = name
    return names
