# SPDX-License-Identifier: Apache-2.0
"""What a job had before it was tied to nodes, on disk while that lasts.

Between two of the requests that tie it, Slurm has the job smaller than it is (see :mod:`koala_slurm.pinning`); after a
kill in that moment only such a note can tell what its user had asked for. A note is locked by the process that wrote
it; the kernel unlocks it when that process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmUnreachableError
from koala_slurm.details import JobDetails

if TYPE_CHECKING:
    from pathlib import Path

    from koala_slurm.pinning import Pin


@dataclass(frozen=True, slots=True, kw_only=True)
class StartNote:
    """One note."""

    job: str
    nodes: tuple[str, ...]
    """One entry for each processor."""
    processors: int
    node_range: str
    requested_nodes: tuple[str, ...]
    reason: str

    def before(self) -> JobDetails:
        """Return what the job had."""
        return JobDetails(
            processors=self.processors,
            node_range=self.node_range,
            requested_nodes=self.requested_nodes,
            reason=self.reason,
        )


class StartNotes:
    """The notes of one cluster, each a file of mode 0600."""

    def __init__(self, directory: Path) -> None:
        """The directory is made with the first note."""
        self._directory = directory
        self._locked: dict[str, int] = {}

    def write(self, pin: Pin, before: JobDetails) -> None:
        """Write the note of a start, for certain. Raises LrmUnreachableError: then nothing may be changed."""
        note = StartNote(
            job=pin.job,
            nodes=tuple(node for node, count in pin.counts.items() for _ in range(count)),
            processors=before.processors,
            node_range=before.node_range,
            requested_nodes=before.requested_nodes,
            reason=before.reason,
        )
        path = self._path(pin.job)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            self._locked[pin.job] = descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(asdict(note)).encode())
            os.fsync(descriptor)
            path.with_suffix(".new").replace(path)
        except OSError as error:
            message = f"cannot note the start of job {pin.job} in {self._directory}: {error.strerror}"
            raise LrmUnreachableError(message, hint="is the disk full?") from error

    def remove(self, job: str) -> None:
        """Remove a note; harmless when there is none."""
        self._path(job).unlink(missing_ok=True)
        descriptor = self._locked.pop(job, None)
        if descriptor is not None:
            os.close(descriptor)

    def left(self) -> tuple[StartNote, ...]:
        """Return the notes whose writers have ended; one that cannot be read was never acted upon, and is removed."""
        found: list[StartNote] = []
        for path in sorted(self._directory.glob("*.json")):
            if _is_locked(path):
                continue
            try:
                values = json.loads(path.read_text())
                lists = {name: tuple(map(str, values[name])) for name in ("nodes", "requested_nodes")}
                found.append(StartNote(**{**values, **lists}))
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
        return tuple(found)

    def _path(self, job: str) -> Path:
        return self._directory / f"{job}.json"


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
