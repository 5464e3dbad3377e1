# SPDX-License-Identifier: Apache-2.0
"""Durations, sizes and text of others as a person is shown them, and text as TOML has it. Pure."""

from __future__ import annotations

import json


def show_duration(seconds: float) -> str:
    """Return seconds as ``HH:MM:SS`` when they are whole, for messages."""
    if seconds != int(seconds):
        return f"{seconds:g} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}"


def show_size(size: int) -> str:
    """Return a number of bytes in the unit that a person would choose, for messages."""
    power = max(0, (size.bit_length() - 1) // 10)
    if power == 0:
        return "1 byte" if size == 1 else f"{size} bytes"
    return f"{size / 1024**power:.4g} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB')[power - 1]}"


def printable(text: str) -> str:
    """Return ``text`` with whatever a terminal would act on escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def toml_text(value: str) -> str:
    """Return a TOML string: JSON's, but for the one control character that JSON leaves as it is."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
