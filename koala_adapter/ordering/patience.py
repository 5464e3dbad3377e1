# SPDX-License-Identifier: Apache-2.0
"""How long a start may take to show, and when one that failed is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE = 30.0
"""Seconds in which an accepted start must show."""
BACKOFF = 5.0
"""Seconds before a failed start is tried again; doubled with each try."""
LONGEST_BACKOFF = 600.0
REFUSED_BACKOFF = 10.0
"""Seconds at least when the batch system refused: asking again at once would be refused again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a start to show, and how long to leave a job alone that did not start (seconds)."""

    start: float = PATIENCE
    backoff: float = BACKOFF
    refused: float = REFUSED_BACKOFF
    longest: float = LONGEST_BACKOFF

    def after(self, failures: int, *, refused: bool) -> float:
        """Return the pause after so many failed starts."""
        least = self.refused if refused else 0.0
        return min(self.longest, max(least, self.backoff * 2.0 ** min(failures - 1, 20)))
