# SPDX-License-Identifier: Apache-2.0
"""Expansion of host lists such as ``n[01-04,9],login1`` (scontrol(1), "show hostnames")."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


MAXIMUM_HOSTS = 100_000
"""A listing that claims more is nonsense, and would otherwise fill the memory."""

_NO_HOSTS = frozenset({"", "(null)", "n/a", "none assigned"})
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?", re.ASCII)


def expand(text: str) -> tuple[str, ...]:
    """Return the host names. A part that is not understood is returned as it is written; nothing is raised."""
    if text.strip().lower() in _NO_HOSTS:
        return ()
    names: list[str] = []
    for part in split_outside_brackets(text.strip(), ","):
        try:
            names += expand_part(part, limit=MAXIMUM_HOSTS)
        except ValueError:
            names.append(part)
    return tuple(names)


def split_outside_brackets(text: str, separator: str) -> Iterator[str]:
    """Yield the parts of a text between separators that are not in brackets; empty parts are left out."""
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == separator and depth == 0:
            if position > start:
                yield text[start:position]
            start = position + 1
    if start < len(text):
        yield text[start:]


def expand_part(part: str, *, limit: int) -> tuple[str, ...]:
    """Return the hosts of one expression such as ``n[1-3,5]``.

    Raises ValueError, with words that follow "a host list", when it cannot be understood or has more than ``limit``.
    """
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    if any("[" in piece or "]" in piece for piece in pieces):
        raise _not_understood(part)
    choices = [[piece] if index % 2 == 0 else _numbers(piece, limit) for index, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
        if total > limit:
            raise ValueError("is too long")
    return tuple("".join(names) for names in product(*choices))


def _numbers(piece: str, limit: int) -> list[str]:
    numbers: list[str] = []
    for item in piece.split(","):
        match = _RANGE.fullmatch(item)
        if not match:
            raise _not_understood(f"[{piece}]")
        first, last = match["first"], match["last"] or match["first"]
        if int(last) < int(first) or len(numbers) + int(last) - int(first) >= limit:
            raise _not_understood(f"[{piece}]")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _not_understood(text: str) -> ValueError:
    return ValueError(f"cannot be understood: {text[:80]!r}")
