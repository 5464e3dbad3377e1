# SPDX-License-Identifier: Apache-2.0
"""What a service notes in its journal at an orderly end, so that who asks afterwards need not replay it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.service.negotiationstore import Execute

_KEY = "closing"
_LATEST = "SELECT seq FROM sqlite_sequence WHERE name = 'events'"


def leave_closing_note(execute: Execute, unfinished: Iterable[str]) -> None:
    """Note which jobs are not over; of all others the last reports are kept. The next event makes the note void.

    Raises JournalBlockedError.
    """
    body = json.dumps({"event": _latest_event(execute), "unfinished": list(unfinished)})
    execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (_KEY, body))


def unfinished_at_close(execute: Execute) -> tuple[str, ...] | None:
    """Return the jobs that are not over; None: nobody has noted that, or something has happened since."""
    row = execute("SELECT value FROM meta WHERE key = ?", (_KEY,)).fetchone()
    if row is None:
        return None
    note = json.loads(row[0])
    return tuple(note["unfinished"]) if note["event"] == _latest_event(execute) else None


def _latest_event(execute: Execute) -> int:
    """Return the number of the latest event, whether a snapshot stands for it by now or not; 0: there was none."""
    row = execute(_LATEST).fetchone()
    return 0 if row is None else int(row[0])
