# SPDX-License-Identifier: Apache-2.0
"""Notes of starts that a server of version 0.1 left: one small file for each job in a directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from koala_adapter.batchsystem.startlog import OriginalRequest, Pin
from koala_adapter.model import LrmJobId
from koala_adapter.wiki.tasklists import host_counts

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.batchsystem.startlog import StartLog

SUFFIX = ".start"


def take_over_notes(directory: Path, starts: StartLog) -> None:
    """Put what is noted in a directory on record, and remove the notes. Raises JournalError.

    A note that cannot be read was never acted upon.
    """
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        try:
            note = json.loads(path.read_text())
            nodes = [str(node) for node in note["nodes"]]
            pin = Pin(
                job_id=LrmJobId(str(note["job"])),
                submitted_at=None,
                nodes=tuple(host_counts(nodes).items()),
                wishes=OriginalRequest(processors=len(nodes)),
                at=float(note["at"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            pass
        else:
            starts.note(pin)
        path.unlink(missing_ok=True)
