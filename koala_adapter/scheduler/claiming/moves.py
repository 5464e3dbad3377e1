# SPDX-License-Identifier: Apache-2.0
"""Placeholders that a batch system has handed on to another one, where they wait and run as before.

Nothing is decided by it: agents report from wherever they are. But whoever waits for one looks for it in vain in the
queue that it was submitted to, so he is told where it went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.events import MovesSeen
    from koala_adapter.scheduler.records import PlaceholderRecord


def moves_seen(context: Context, event: MovesSeen) -> None:
    """Note where the placeholders of a cluster are."""
    seen = {move.placeholder: move.elsewhere for move in event.moves}
    for placeholder in context.state.placeholders.on(event.cluster).values():
        placeholder.elsewhere = seen.get(placeholder.id, "")


def moves_told(placeholders: Iterable[PlaceholderRecord]) -> list[str]:
    """Return how many placeholders were moved to each place, such as ``3 moved to workq@other``."""
    counts: dict[str, int] = {}
    for one in placeholders:
        if one.elsewhere:
            counts[one.elsewhere] = counts.get(one.elsewhere, 0) + 1
    return [f"{count} moved to {place}" for place, count in counts.items()]
