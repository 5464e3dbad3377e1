# SPDX-License-Identifier: Apache-2.0
"""Patterns for the files that a task is to leave."""

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Set, Tuple


class NamePattern:
    """One segment of a glob pattern. Matching takes no backtracking, whatever the pattern."""

    def __init__(self, segment: str) -> None:
        self.hidden = segment.startswith(".")
        pieces: "List[List[str]]" = [[]]
        for part in re.findall(r"\[(?:!.|[^!])[^\]]*\]|.", segment, re.DOTALL):
            if part == "*":
                pieces.append([])
            else:
                pieces[-1].append(self._expression(part))
        # What stands between two stars has a fixed length.
        self._pieces = [(self._compiled("".join(piece)), len(piece)) for piece in pieces]

    @staticmethod
    def _expression(part: str) -> str:
        if part == "?":
            return "."
        if len(part) == 1:
            return re.escape(part)
        inner = part[1:-1]
        negated = inner.startswith("!") and len(inner) > 1
        inner = inner[1:] if negated else inner
        return ("[^" if negated else "[") + "".join(c if c == "-" else re.escape(c) for c in inner) + "]"

    @staticmethod
    def _compiled(expression: str) -> "re.Pattern[str]":
        try:
            return re.compile(expression, re.DOTALL)
        except re.error:  # such as [z-a]
            return re.compile("(?!)")

    def matches(self, name: str) -> bool:
        """Tell whether a name matches; one that begins with a dot only if the pattern does, as in a shell."""
        if name.startswith(".") and not self.hidden:
            return False
        (first, size), (last, tail) = self._pieces[0], self._pieces[-1]
        if len(self._pieces) == 1:
            return first.fullmatch(name) is not None
        at, end = size, len(name) - tail
        if first.match(name) is None or end < at or last.fullmatch(name, end) is None:
            return False
        for piece, _ in self._pieces[1:-1]:
            found = piece.search(name, at, end)
            if found is None:
                return False
            at = found.end()
        return True


class Patterns:
    """Glob patterns for paths, followed from directory to directory; ``**`` is any number of directories.

    A *state* is a pattern and the segment of it that the next name is to match.
    """

    def __init__(self, patterns: "List[str]") -> None:
        self._patterns = [
            [None if segment == "**" else NamePattern(segment) for segment in pattern.split("/")]
            for pattern in patterns
        ]
        self.start = self._with_skipped({(number, 0) for number in range(len(patterns))})

    def step(self, states: "Set[Tuple[int, int]]", name: str) -> "Tuple[bool, Set[Tuple[int, int]]]":
        """Return whether the path that ends with ``name`` matches, and the states for what is below it."""
        matched = False
        below: "Set[Tuple[int, int]]" = set()
        for number, index in states:
            segment = self._patterns[number][index]
            if not (segment.matches(name) if segment else not name.startswith(".")):
                continue
            if segment is None:
                below.add((number, index))
            if index + 1 == len(self._patterns[number]):
                matched = True
            elif segment is not None:
                below.add((number, index + 1))
        return matched, self._with_skipped(below)

    def _with_skipped(self, states: "Set[Tuple[int, int]]") -> "Set[Tuple[int, int]]":
        for number, first in list(states):
            segments = self._patterns[number]
            index = first
            while segments[index] is None and index + 1 < len(segments):
                index += 1
                states.add((number, index))
        return states
