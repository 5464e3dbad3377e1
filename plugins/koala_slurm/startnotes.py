# SPDX-License-Identifier: Apache-2.0
"""What a job had before it was tied to nodes, on disk as long as it is tied.

Between two of the requests that tie it, Slurm has the job smaller than it is (see :mod:`koala_slurm.pinning`), and a
job that has run and is queued again comes back tied; only such a note can tell what its user had asked for. While a
start is tried its note is locked by the process that wrote it; the kernel unlocks it when that process ends, however it
ends. Afterwards it is kept until the job is over, or has been untied.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmUnreachableError
from koala_slurm.details import JobDetails

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.model import LrmJob
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
    user: str = ""
    submitted_at: float | None = None
    started: bool = False
    """It is over with the start; the job ran there, or may still be tied."""
    free: bool = False
    """The job was queued again and has been untied; Slurm does not show its range of nodes any more."""

    def is_of(self, job: LrmJob) -> bool:
        """Tell whether a job is the one of this note, and not a later one with its number."""
        if self.user and self.user != job.user:
            return False
        return job.requeues > 0 or self.submitted_at in {None, job.submitted_at}

    def asked(self, shown: JobDetails) -> JobDetails:
        """Return what the user of a waiting job asks for, of which Slurm shows this."""
        if not self.free:
            return self.before()
        return shown if "-" in shown.node_range else replace(shown, node_range=self.node_range)

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
        self.kept: dict[str, StartNote] = {}
        """Notes of jobs that were started, by job."""
        self._written: dict[str, StartNote] = {}

    def write(self, pin: Pin, before: JobDetails, job: LrmJob) -> None:
        """Write the note of a start, for certain. Raises LrmUnreachableError: then nothing may be changed."""
        note = StartNote(
            job=pin.job,
            nodes=tuple(node for node, count in pin.counts.items() for _ in range(count)),
            processors=before.processors,
            node_range=before.node_range,
            requested_nodes=before.requested_nodes,
            reason=before.reason,
            user=job.user,
            submitted_at=job.submitted_at,
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
            self.kept.pop(pin.job, None)
            self._written[pin.job] = note
        except OSError as error:
            message = f"cannot note the start of job {pin.job} in {self._directory}: {error.strerror}"
            raise LrmUnreachableError(message, hint="is the disk full?") from error

    def of(self, job: str) -> StartNote | None:
        """Return the note of a start of ours, under way or over."""
        return self._written.get(job) or self.kept.get(job)

    def is_open(self, job: str) -> bool:
        """Tell whether a start of ours is not over."""
        return job in self._written

    def keep(self, job: str, *, free: bool = False) -> None:
        """Keep the note of a start that is over; harmless when there is none. ``free``: the job is not tied any more.

        It is not forced to disk: a process that finds it as it was before looks at the job again.
        """
        note = self._written.pop(job, None) or self.kept.get(job)
        if note is not None:
            self.kept[job] = note = replace(note, started=True, free=free)
            temporary = self._path(job).with_suffix(".new")
            with suppress(OSError):
                temporary.write_text(json.dumps(asdict(note)))
                temporary.chmod(0o600)
                temporary.replace(self._path(job))
        self._unlock(job)

    def remove(self, job: str) -> None:
        """Remove a note; harmless when there is none."""
        self._path(job).unlink(missing_ok=True)
        self.kept.pop(job, None)
        self._written.pop(job, None)
        self._unlock(job)

    def _unlock(self, job: str) -> None:
        descriptor = self._locked.pop(job, None)
        if descriptor is not None:
            os.close(descriptor)

    def left(self) -> tuple[StartNote, ...]:
        """Return the notes of starts whose writers have ended in the middle; those of starts that are over are kept.

        One that cannot be read was never acted upon, and is removed.
        """
        found: list[StartNote] = []
        for path in sorted(self._directory.glob("*.json")):
            if _is_locked(path):
                continue
            try:
                values = json.loads(path.read_text())
                lists = {name: tuple(map(str, values[name])) for name in ("nodes", "requested_nodes")}
                note = StartNote(**{**values, **lists})
            except (OSError, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
                continue
            if note.started:
                self.kept.setdefault(note.job, note)
            else:
                self._written[note.job] = note
                found.append(note)
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
