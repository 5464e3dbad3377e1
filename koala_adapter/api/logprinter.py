# SPDX-License-Identifier: Apache-2.0
"""Printing what the processes of a job wrote, from the files in which the control center keeps it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LogPrinter:
    """Prints what is new in the output files of a job."""

    def __init__(
        self,
        directory: Path,
        *,
        component: str | None = None,
        rank: int | None = None,
        suffix: str = ".out",
        write: Callable[[bytes], None] | None = None,
    ) -> None:
        """Print files ``COMPONENT/RANK`` + ``suffix`` below ``directory`` with ``write`` (default: standard output)."""
        self._directory = directory
        self._write = write or to_standard_output
        self._pattern = f"{component or '*'}/{'*' if rank is None else rank}{suffix}"
        self.files: dict[Path, int] = {}
        self._rest: dict[Path, bytes] = {}

    def print_new(self, *, marked: bool, rest: bool = False) -> None:
        """Print complete lines that are new; with ``rest`` also what has no end of line yet.

        ``marked``: each line is to say whose it is.
        """
        for path in sorted(self._directory.glob(self._pattern), key=_order):
            data = self._rest.pop(path, b"") + self._read(path)
            *lines, last = data.split(b"\n")
            if last and not rest:
                self._rest[path] = last
            self._print(path, lines, marked=marked, last=last if rest else b"")

    @property
    def silent(self) -> bool:
        """Tell whether nothing has been written that could be printed."""
        return not any(path.stat().st_size for path in self._directory.glob(self._pattern))

    def _read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            file.seek(self.files.get(path, 0))
            data = file.read()
            self.files[path] = file.tell()
        return data

    def _print(self, path: Path, lines: list[bytes], *, marked: bool, last: bytes) -> None:
        """Print complete lines and a last one without an end: what is not marked comes out byte for byte."""
        mark = f"{path.parent.name}/{path.stem}: ".encode() if marked else b""
        if last and marked:
            lines, last = [*lines, last], b""
        if lines or last:
            self._write(b"".join(mark + line + b"\n" for line in lines) + last)


def _order(path: Path) -> tuple[str, int]:
    return path.parent.name, int(path.stem) if path.stem.isdecimal() else -1


def to_standard_output(data: bytes) -> None:
    """Write bytes to standard output as they are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
