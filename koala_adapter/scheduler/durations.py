# SPDX-License-Identifier: Apache-2.0
"""Lengths of time in the words of people."""

from __future__ import annotations

MINUTE, HOUR, DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Return a length of time as a person says it: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    whole = max(0, round(seconds))
    if whole < 2 * MINUTE:
        return f"{whole} s"
    if whole < 2 * HOUR:
        return f"{round(whole / MINUTE)} min"
    if whole < 2 * DAY:
        hours, minutes = divmod(round(whole / MINUTE), MINUTE)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(whole / HOUR), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
