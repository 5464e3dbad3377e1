# SPDX-License-Identifier: Apache-2.0
"""The entry points of all installed distributions: what others have added to koala is found by them."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import cast


@cache
def installed_entry_points() -> metadata.EntryPoints:
    """Return them all, once for each process, as a file of every distribution is read. Nothing is imported."""
    # Up to 3.11 it is said to be a mapping, which can be selected from likewise.
    return cast("metadata.EntryPoints", metadata.entry_points())
