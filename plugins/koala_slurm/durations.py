# SPDX-License-Identifier: Apache-2.0
"""Times as Slurm writes them: durations such as ``2-12:30:00``, and points in time in seconds or in ISO form."""

from __future__ import annotations

import re
import time
from typing import Final

TIME_FORMAT: Final = {"SLURM_TIME_FORMAT": "%s"}
"""Environment that makes squeue and sacct print points in time as seconds since the epoch, free of time zones."""

_DURATION = re.compile(r"(?:(?P<days>[0-9]{1,6})-)?(?P<clock>[0-9]{1,6}(?::[0-9]{1,2}){0,2})", re.ASCII)


def duration(text: str) -> int | None:
    """Return seconds of a duration; None for UNLIMITED, infinite, or anything that is no duration.

    Forms: ``minutes:seconds``, ``hours:minutes:seconds``, and with ``days-`` in front.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match:
        return None
    numbers = [int(number) for number in match["clock"].split(":")]
    if match["days"] is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return int(match["days"]) * 86400 + hours * 3600 + minutes * 60 + seconds
    hours, minutes, seconds = [0, 0, 0, *numbers][-3:] if len(numbers) > 1 else [0, numbers[0], 0]
    return hours * 3600 + minutes * 60 + seconds


def minutes(seconds: int) -> int:
    """Return whole minutes, rounded up and at least 1: Slurm's walltimes have no finer unit."""
    return max(1, -(-seconds // 60))


def moment(text: str) -> float | None:
    """Return seconds since the epoch; None for ``N/A``, ``Unknown``, 0, or anything that is no point in time.

    Takes seconds, and for Slurm commands that ignore SLURM_TIME_FORMAT ``2026-11-21T11:02:13`` in local time.
    """
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text) or None
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None
