# SPDX-License-Identifier: Apache-2.0
"""A directory that another process removes between its being seen and its being read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest


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
