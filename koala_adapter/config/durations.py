# SPDX-License-Identifier: Apache-2.0
"""Durations as people write them in files and options. Pure, and light: the types of files take long to import."""

from __future__ import annotations

import re

DURATION_WORDS = 'seconds as a number, "HH:MM:SS", "D-HH:MM:SS", or numbers with units such as "90s", "45m" or "1h30m"'
DURATION_PATTERN = (
    r"^([0-9]{1,4}-)?[0-9]{1,6}:[0-5][0-9]:[0-5][0-9]$"
    r"|^(?=[0-9])([0-9]{1,6}d)?([0-9]{1,7}h)?([0-9]{1,8}m)?([0-9]{1,9}s)?$"
)
_CLOCK = re.compile(r"(?:([0-9]{1,4})-)?([0-9]{1,6}):([0-5][0-9]):([0-5][0-9])")
_UNITS = re.compile(r"(?=[0-9])(?:([0-9]{1,6})d)?(?:([0-9]{1,7})h)?(?:([0-9]{1,8})m)?(?:([0-9]{1,9})s)?")
_SECONDS = (86_400, 3600, 60, 1)


class NotAllowedError(ValueError):
    """What a validator here raises: its text is what is allowed. No refusal by itself, pydantic turns it into one."""


def parse_duration(value: object) -> object:
    """Return seconds for a text such as ``01:30:00`` or ``1h30m``; anything that is no text is returned as it is.

    Raises NotAllowedError for a text that has several meanings: ``90`` is minutes to Slurm and seconds to Grid Engine;
    ``10:30`` is minutes and seconds to one reader and hours and minutes to another.
    """
    if not isinstance(value, str):
        return value
    if found := _CLOCK.fullmatch(value) or _UNITS.fullmatch(value):
        return sum(int(number or 0) * seconds for number, seconds in zip(found.groups(), _SECONDS, strict=True))
    if re.fullmatch(r"[0-9]+", value):
        number = value[:9]
        way_out = f'write "{number}s" for seconds or "{number}m" for minutes'
        raise NotAllowedError(f"{DURATION_WORDS}; digits alone may mean seconds or minutes: {way_out}")
    if re.fullmatch(r"[0-9]+:[0-9]+", value):
        raise NotAllowedError(
            f"{DURATION_WORDS}; two numbers may be hours and minutes or minutes and seconds: write all three"
        )
    raise NotAllowedError(DURATION_WORDS)
