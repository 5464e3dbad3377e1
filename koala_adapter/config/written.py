# SPDX-License-Identifier: Apache-2.0
"""What people wrote, before it is checked: durations, whole jobs for the process that checks them, and any text.

Light: the types of files take long to import.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


# -- Durations -----------------------------------------------------------------------------------------------

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


# -- Jobs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedJob:
    """A job file, or the keys of one, with all that its meaning depends on beside the site file."""

    source: str
    """What refusals call it: the path of the file."""
    name: str
    """Name of the job where it gives none."""
    directory: str
    """Absolute; where relative input files are."""
    text: str | None = None
    """Content of the file; None: ``values`` are given in its place, and refusals name no line."""
    values: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the submitter, of which a job takes along those that it exports."""

    @classmethod
    def of_file(cls, path: Path, text: str) -> Self:
        """Return the job of a file that has been read."""
        directory = str(path.absolute().parent)
        return cls(source=str(path), name=path.stem, directory=directory, text=text, environment=dict(os.environ))

    @classmethod
    def of_values(cls, values: Mapping[str, object], *, source: str) -> Self:
        """Return the job that a program, or a command line, describes. Input files are relative to this directory."""
        return cls(
            source=source, name=source, directory=str(Path.cwd()), values=dict(values), environment=dict(os.environ)
        )


def is_text(value: str) -> bool:
    """Return whether a string can be written as UTF-8: it has no lone surrogates, which JSON can express."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
