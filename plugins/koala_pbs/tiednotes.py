# SPDX-License-Identifier: Apache-2.0
"""What a job asked for before it was tied to vnodes, on disk as long as it is tied.

PBS keeps only what a job asks for now; one that ran and is queued again comes back tied.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmUnreachableError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from koala_adapter.model import LrmJob


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedNote:
    """One note."""

    job: str
    select: str
    place: str
    holds: str
    """Kinds of hold that it was in."""
    submitted_at: float | None = None

    def is_of(self, job: LrmJob) -> bool:
        """Tell whether a job is the one of this note, and not a later one with its number."""
        return self.submitted_at in {None, job.submitted_at}


class TiedNotes:
    """The notes of one server, each a file of mode 0600."""

    def __init__(self, directory: Path) -> None:
        """The directory is made with the first note."""
        self._directory = directory
        self._notes = {note.job: note for note in _read(directory)}

    @property
    def notes(self) -> Mapping[str, TiedNote]:
        """The notes by job."""
        return self._notes

    def write(self, note: TiedNote) -> None:
        """Put a note on disk, for certain. Raises LrmUnreachableError: then nothing may be changed."""
        path = self._path(note.job)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(asdict(note)).encode())
                file.flush()
                os.fsync(descriptor)
            path.with_suffix(".new").replace(path)
        except OSError as error:
            message = f"cannot note the start of job {note.job} in {self._directory}: {error.strerror}"
            raise LrmUnreachableError(message, hint="is the disk full?") from error
        self._notes[note.job] = note

    def remove(self, job: str) -> None:
        """Remove a note; harmless when there is none."""
        if self._notes.pop(job, None) is not None:
            with suppress(OSError):
                self._path(job).unlink(missing_ok=True)

    def _path(self, job: str) -> Path:
        return self._directory / f"{job}.json"


def _read(directory: Path) -> list[TiedNote]:
    """Return the notes on disk; one that cannot be read was never acted upon, and is removed."""
    found: list[TiedNote] = []
    for path in sorted(directory.glob("*.json")):
        try:
            found.append(TiedNote(**json.loads(path.read_text())))
        except (OSError, ValueError, TypeError):
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return found
