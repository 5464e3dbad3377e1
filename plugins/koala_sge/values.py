# SPDX-License-Identifier: Apache-2.0
"""Times and sizes as Grid Engine writes them (sge_types(1)). Pure."""

from __future__ import annotations

_UNITS = {"": 1 / 2**20, "k": 1000 / 2**20, "K": 1 / 2**10, "m": 1e6 / 2**20, "M": 1.0}
_UNITS |= {"g": 1e9 / 2**20, "G": 2.0**10, "t": 1e12 / 2**20, "T": 2.0**20}


def seconds_of(text: str) -> int | None:
    """Return the seconds of ``3600``, ``1:00:00``, ``:5:`` or ``3600.000``; None for INFINITY and what is no time."""
    parts = text.strip().split(":")
    try:
        if len(parts) == 1:
            return int(float(parts[0]))
        hours, minutes, seconds = (int(part or 0) for part in parts)
    except (ValueError, OverflowError):
        return None
    return hours * 3600 + minutes * 60 + seconds


def mebibytes_of(text: str) -> int | None:
    """Return the MiB of ``23.5G``, ``476.6M`` or ``1024``; None for ``-`` and what is no size."""
    text = text.strip()
    number, unit = (text[:-1], text[-1]) if text and text[-1].isalpha() else (text, "")
    try:
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        return None
