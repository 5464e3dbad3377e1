# SPDX-License-Identifier: Apache-2.0
"""Draws the state machine of a negotiation from its tables, for docs/reference.py."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from koala_adapter.negotiation.states import (
    ACCEPTED,
    ACCEPTING,
    AGREED,
    ASKED,
    CONSUMED,
    ENDED,
    NEW,
    OFFERED,
    RECEIVED,
    SENT,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH, HEIGHT = 760, 470
BOX_WIDTH, BOX_HEIGHT = 120, 34
PLACES = {
    NEW: (380, 40),
    OFFERED: (180, 140),
    ASKED: (580, 140),
    ACCEPTED: (180, 260),
    ACCEPTING: (580, 260),
    AGREED: (280, 350),
    CONSUMED: (480, 430),
}
"""Where the middle of each state is drawn; the endings are not, for every state that waits leads to them."""
HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">\n'
    "<title>A negotiation, as one side sees it</title>\n"
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>\n'
    f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
)


def steps() -> Iterator[tuple[str, str, str]]:
    """Give each step that is drawn: from where, to where, and by what."""
    for state in PLACES:
        for said, to in SENT[state].items():
            yield state, to, f"say {said}"
        for heard, (following, _) in RECEIVED[state].items():
            yield state, following, f"hear {heard}"


def drawing() -> str:
    """Return the picture as SVG."""
    drawn = sorted(
        (source, to, by)
        for source, to, by in steps()
        if source != to and (to not in ENDED or to == CONSUMED) and source not in ENDED
    )
    lines = [HEAD]
    for (source, to), group in groupby(drawn, key=lambda step: step[:2]):
        lines += _arrow(source, to, " or ".join(by for _, _, by in group))
    for state, (x, y) in PLACES.items():
        left, top = x - BOX_WIDTH // 2, y - BOX_HEIGHT // 2
        lines.append(
            f'<rect x="{left}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8" fill="#eef3fa" '
            'stroke="#356"/>'
        )
        lines.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#123">{state}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _arrow(source: str, to: str, label: str) -> list[str]:
    """Return a line from one box to another, and what it means; of two in the same place, each has its own side.

    A label that stands on its line interrupts it.
    """
    (x1, y1), (x2, y2) = PLACES[source], PLACES[to]
    if y1 == y2:
        shift = 8 if x1 < x2 else -8
        y1, y2 = y1 - shift, y2 - shift
        inward = BOX_WIDTH // 2 if x1 < x2 else -BOX_WIDTH // 2
        x1, x2 = x1 + inward, x2 - inward
        middle = ((x1 + x2) // 2, y1 - 6 if shift > 0 else y1 + 16)
    else:
        y1, y2 = y1 + BOX_HEIGHT // 2, y2 - BOX_HEIGHT // 2
        middle = ((x1 + x2) // 2, (y1 + y2) // 2 + 2)
    place = f'x="{middle[0]}" y="{middle[1] + 2}" text-anchor="middle"'
    looks = 'fill="#555" font-size="12" stroke="#fff" stroke-width="6" paint-order="stroke"'
    return [
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#555" marker-end="url(#head)"/>',
        f"<text {place} {looks}>{label}</text>",
    ]
