# SPDX-License-Identifier: Apache-2.0
"""Times, sizes and words as PBS writes them (pbs_resources(7B)). Pure."""

from __future__ import annotations

import calendar
import re
from time import strptime

_DURATION = re.compile(r"(?:(?:(\d+):)?(\d+):)?(\d+)(?:\.\d*)?", re.ASCII)
_SIZE = re.compile(r"(\d+)([kmgtp]?)([bw]?)", re.ASCII | re.IGNORECASE)
_WORD_BYTES = 8
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def seconds_of(text: str) -> int | None:
    """Return the seconds of ``00:10:00``, ``10:00`` or ``600``; None for what is no duration."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def mebibytes_of(text: str) -> int | None:
    """Return the whole MiB of ``4gb``, ``204800kb`` or ``100mw``, rounded up; None for what is no size."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        return None
    number, power, unit = match.groups()
    size: int = int(number) * 1024 ** _POWERS[power.lower()] * (_WORD_BYTES if unit.lower() == "w" else 1)
    return -(-size // 1024**2)


def moment_of(text: str) -> float | None:
    """Return seconds since the epoch of ``Sun Nov 22 04:15:45 2026`` in UTC, or of a number; None otherwise.

    The commands must run with TZ=UTC: they tell the time as their own host has it.
    """
    text = text.strip()
    if text.isdecimal():
        return float(text)
    try:
        return float(calendar.timegm(strptime(text, "%a %b %d %H:%M:%S %Y")))
    except ValueError:
        return None


def number_of(text: str, default: int = 0) -> int:
    """Return a whole number, which PBS may print as ``1e3`` or ``2.0``; ``default`` for what is none."""
    try:
        return int(text)
    except ValueError:
        try:
            return int(float(text))
        except (ValueError, OverflowError):
            return default
