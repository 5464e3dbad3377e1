# SPDX-License-Identifier: Apache-2.0
"""What `koala clean` removed from a state directory, or would remove. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Things of one sort."""

    what: str
    """``directories``, ``reports``, ``request windows``, ``words of placeholders`` or ``logs``."""
    number: int
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanReport:
    """What was removed, and what was spared."""

    dry_run: bool
    """Nothing was removed: this is what would be."""
    older: float
    """Seconds since the end of the youngest job of which anything is removed, at least."""
    jobs: tuple[str, ...]
    """Ids of the jobs of which nothing is left but their number, in the order of their ends."""
    removed: tuple[Removed, ...]
    unfinished: int
    """Jobs that are spared because they have not ended, or something of them is left in a batch system."""
    newer: int
    """Jobs that are spared because they ended later than that."""
    continued: tuple[str, ...] = ()
    """Jobs that are spared because a spared one goes on with their sweep."""
    trouble: tuple[str, ...] = ()
    """What could not be removed, and why."""

    @property
    def size(self) -> int:
        """Bytes of all that is removed."""
        return sum(one.size for one in self.removed)
