# SPDX-License-Identifier: Apache-2.0
"""Terminals that show ASCII only get ASCII: bars, lines and dots that stand for the same."""

from __future__ import annotations

import io
import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLE = "━█▁…"
BASIC_LOCALES = frozenset({"C", "POSIX"})
STEPS = "▁▂▃▄▅▆▇█"
"""Heights, from little to much."""
_STAND_INS = str.maketrans(
    {
        **dict(zip(STEPS, "_.-:=+*#", strict=True)),
        **dict.fromkeys("━▓■", "#"),
        **dict.fromkeys("╌─╶╴╺╸", "-"),
        **dict.fromkeys("│┃", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
        **dict.fromkeys("⠁⠂⠄⡀⢀⠠⠐⠈⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "*"),
        "▒": "=",
        "░": ".",
        **dict.fromkeys("·□▫", "."),
        "•": "*",
        "▸": ">",
        "◆": "@",
        "…": "~",
    }
)
"""Each as wide as what it stands for, so that columns stay where they are."""


def plain(text: str) -> str:
    """Return a text in ASCII; what nothing stands for is written as Python escapes it."""
    return text if text.isascii() else text.translate(_STAND_INS).encode("ascii", "backslashreplace").decode("ascii")


def shows_all(encoding: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a stream takes more than ASCII: by its encoding, and by the locale that the user chose.

    Under LC_ALL=C Python writes UTF-8 all the same, which the terminal is not said to understand.
    """
    try:
        SAMPLE.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    chosen = next((environment[name] for name in names if environment.get(name)), "")
    return bool(environment.get("PYTHONIOENCODING")) or chosen not in BASIC_LOCALES


class PlainText(io.TextIOBase):
    """Passes text on in ASCII."""

    encoding = "ascii"
    """By which rich chooses what it draws with."""

    def __init__(self, file: IO[str]) -> None:
        """Write to ``file``."""
        self._file = file

    def write(self, text: str) -> int:
        """Write in ASCII."""
        self._file.write(plain(text))
        return len(text)

    def flush(self) -> None:
        """Have what was written go out."""
        self._file.flush()

    def isatty(self) -> bool:
        """Tell whether it goes to a terminal."""
        return self._file.isatty()

    def fileno(self) -> int:
        """Return the descriptor that is written to."""
        return self._file.fileno()
