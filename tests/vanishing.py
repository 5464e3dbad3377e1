# SPDX-License-Identifier: Apache-2.0
"""Directories that other processes change while they are read."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.host.regularfile import paths_below


def vanish_when_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a directory removed at the moment at which its entries are to be listed."""
    scandir = os.scandir

    def removed_before(path: str | Path | int = ".") -> Any:  # noqa: ANN401 - that of os.scandir
        if str(path) == str(directory) and directory.exists():
            with monkeypatch.context() as own:
                own.setattr(os, "scandir", scandir)
                shutil.rmtree(directory)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", removed_before)


def size_below(directory: Path) -> int:
    """Return the bytes of all regular files below a directory, less those that are removed meanwhile."""
    size = 0
    for path in paths_below(directory):
        with suppress(FileNotFoundError):
            status = path.lstat()
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size
