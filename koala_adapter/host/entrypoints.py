# SPDX-License-Identifier: Apache-2.0
"""The entry points of all installed distributions: what others have added to koala is found by them."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def installed_entry_points() -> metadata.EntryPoints:
    """Return them all, once for each process, as a file of every distribution is read. Nothing is imported."""
    return metadata.entry_points()
