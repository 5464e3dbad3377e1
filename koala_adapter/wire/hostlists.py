# SPDX-License-Identifier: Apache-2.0
"""Expansion of Slurm host lists such as ``n[01-04,9],login1`` (scontrol(1), "show hostnames")."""

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
    return tuple(name for part in _parts(text.strip()) for name in _expand_part(part))


def _parts(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _expand_part(part: str) -> Iterator[str]:
    pieces = re.split(r"\[([^\[\]]*)\]", part)
    choices = [[piece] if index % 2 == 0 else _numbers(piece) for index, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if not 0 < total <= MAXIMUM_HOSTS:
        yield part
        return
    for names in product(*choices):
        yield "".join(names)


def _numbers(piece: str) -> list[str]:
    numbers: list[str] = []
    for item in piece.split(","):
        match = _RANGE.fullmatch(item)
        if not match:
            return []
        first, last = match["first"], match["last"] or match["first"]
        if len(numbers) + int(last) - int(first) >= MAXIMUM_HOSTS:
            return []
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
