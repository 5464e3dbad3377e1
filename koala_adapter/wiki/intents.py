# SPDX-License-Identifier: Apache-2.0
"""A durable note of every start before it is tried, so that a service that is killed leaves no job half started.

One small file for each job in a private directory, written and synced before the LRM is asked and removed when the
outcome is known. After a restart each note that is left says: this job may be running, or released and not running.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from koala_adapter.errors import JournalError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUFFIX = ".start"


class Intents:
    """The notes of one server."""

    def __init__(self, directory: Path) -> None:
        """Use a directory, made here with mode 0700. Raises JournalError."""
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"cannot make {directory}: {error.strerror}") from error

    def note(self, job: str, nodes: Sequence[str], *, now: float) -> None:
        """Note that a job is about to be started there. Raises JournalError: then it must not be."""
        path = self._path(job)
        temporary = path.with_suffix(".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump({"job": job, "nodes": list(nodes), "at": now}, file)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
            self._sync_directory()
        except OSError as error:
            message = f"cannot note a start in {self._directory}: {error.strerror}"
            raise JournalError(message, hint="nothing is started without a note; is the disk full?") from error

    def remove(self, job: str) -> None:
        """Remove a note: the job runs, or is held, or is gone."""
        self._path(job).unlink(missing_ok=True)

    def left(self) -> dict[str, tuple[str, ...]]:
        """Return the notes that are there, as job and nodes; one that cannot be read was never acted upon."""
        found: dict[str, tuple[str, ...]] = {}
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            try:
                note = json.loads(path.read_text())
                found[str(note["job"])] = tuple(str(node) for node in note["nodes"])
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
        return found

    def _path(self, job: str) -> Path:
        safe = "".join(
            character if character.isalnum() or character in "._-" else f"%{ord(character):x}" for character in job
        )
        return self._directory / f"job-{safe}{SUFFIX}"

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
