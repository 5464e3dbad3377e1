# SPDX-License-Identifier: Apache-2.0
"""What became of the files that ranks left: plain values, which a client reads without the service. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesReport:
    """The files of a job's ranks. Names are ``COMPONENT/RANK: PATH``; of each sort only the first ones are named."""

    arrived: int = 0
    size: int = 0
    """Bytes of what has arrived."""
    refused: int = 0
    """Files that were wanted and did not arrive."""
    refusals: tuple[str, ...] = ()
    """Their names, each with the reason."""
    left: int = 0
    """Files that nobody asked for, and that are gone with the ranks' directories."""
    left_names: tuple[str, ...] = ()
    awaited: int = 0
    """Ranks not all of whose output files have arrived, or that never said so."""
    awaited_ranks: tuple[str, ...] = ()
    """``COMPONENT/RANK`` of the first of them."""


NO_FILES = FilesReport()
