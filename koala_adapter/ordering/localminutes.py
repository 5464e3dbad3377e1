# SPDX-License-Identifier: Apache-2.0
"""Times of day in whole minutes, as people of one time zone write them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import tzinfo

_FORM = "%Y-%m-%d %H:%M"


@dataclass(frozen=True, slots=True)
class LocalMinutes:
    """Writes times such as ``2026-11-23 15:27``, and reads them."""

    zone: tzinfo | None = None
    """None: that of this host."""

    def text(self, time: float) -> str:
        """Return the minute of a time (seconds since the epoch)."""
        return datetime.fromtimestamp(time, self.zone).strftime(_FORM)

    def time(self, text: str) -> float | None:
        """Return the beginning of a minute; None for what is none."""
        try:
            return datetime.strptime(text, _FORM).replace(tzinfo=self.zone).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
