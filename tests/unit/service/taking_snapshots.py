# SPDX-License-Identifier: Apache-2.0
"""Snapshots that are taken with nothing in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.journal import Journal


def take_snapshot(journal: Journal, state: State, number: int) -> None:
    """Store the state as of an event."""
    for _ in journal.snapshot_in_groups(state, number):
        pass
