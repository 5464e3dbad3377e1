# SPDX-License-Identifier: Apache-2.0
"""A job of others in the queue of a cluster, as the record of the cluster keeps it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OthersJob:
    """A job of others that waits in the queue of its cluster."""

    processors: int
    doubted_at: float | None = None
    """From when on it seems to wait for something else, because so many processors are idle; None: they are not."""
