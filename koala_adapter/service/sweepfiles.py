# SPDX-License-Identifier: Apache-2.0
"""Files of a sweep: the job, the result of each task, and the output of the tasks.

``results.jsonl`` has a line for each entry of the ledger, and the ledger is rebuilt from it alone. A line is written
after the output of its task, so it never refers to missing output; an incomplete last line, left by a killed service,
is dropped. A power failure may lose the latest lines; their tasks are then run again.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from koala_adapter.config.sweeps import LARGEST_FILE
from koala_adapter.errors import KoalaError
from koala_adapter.host.regularfile import read_regular
from koala_adapter.report.values import SweepProgress
from koala_adapter.tasks.results import RESULTS, entry_of, output_file
from koala_adapter.tasks.sweep import Entry, Expansion, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from koala_adapter.model import Job, JobId, Sweep

FOLDER = "sweep"
JOB = "job.json"
PROGRESS = "progress.json"
CONTACT = "contact.json"


def first_job(job: Job) -> JobId:
    """Return the first job of a sweep, whose directory has the sweep's files."""
    return job.id if job.sweep is None or job.sweep.continues is None else job.sweep.continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """Address, token and certificate for launchers."""

    port: int
    token: str


class SweepFiles:
    """The directory of one sweep."""

    def __init__(self, directory: Path) -> None:
        """``directory``: there or not."""
        self.directory = directory
        self.resumed_by: set[str] = set()
        """Jobs that went on with the sweep, as far as is written down."""
        self._ledger: IO[bytes] | None = None
        self._incomplete_from: int | None = None
        """Where the last line of the results begins, if it is incomplete."""

    # ---- what was submitted -----------------------------------------------------------------------------------------

    def keep(self, job: Job) -> None:
        """Store the job and the values from files. Raises OSError, with ``filename``."""
        if job.sweep is None:
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        axes = []
        for number, axis in enumerate(job.sweep.axes):
            kept = self.directory / f"values-{number}"
            if axis.file is not None and axis.file != str(kept):
                kept.write_bytes(read_regular(axis.file, LARGEST_FILE)[0])
            axes.append(axis if axis.file is None else replace(axis, file=str(kept)))
        kept_job = replace(job, sweep=replace(job.sweep, axes=tuple(axes)))
        own = self.directory.parent.parent / job.id / FOLDER
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(own / JOB, json.dumps(asdict(kept_job), ensure_ascii=False))

    def expansion(self, sweep: Sweep) -> Expansion:
        """Return the tasks, with the stored values. Raises OSError and ConfigurationError."""
        lines = {
            axis.file: lines_of((self.directory / f"values-{number}").read_bytes())
            for number, axis in enumerate(sweep.axes)
            if axis.file is not None
        }
        return Expansion(sweep, lines)

    # ---- what became of the tasks -----------------------------------------------------------------------------------

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Yield all entries without an incomplete last line, which :meth:`open` removes.

        Raises OSError, and KoalaError for what is no entry.
        """
        path = self.directory / RESULTS
        if not path.exists():
            return
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield self._entry(line)
                else:
                    self._incomplete_from = file.tell() - len(line)

    def _entry(self, line: bytes) -> tuple[int, Entry]:
        try:
            task, entry, resumed_by = entry_of(line)
        except (ValueError, KeyError, TypeError) as error:
            message = f"{self.directory / RESULTS} has a line that is no entry: {error}"
            raise KoalaError(message, hint="move it away: all tasks are done anew") from error
        if entry is Entry.RESUMED:
            self.resumed_by.add(resumed_by)
        return task, entry

    def open(self) -> None:
        """Open for further entries after earlier ones were read. Raises OSError."""
        if self._incomplete_from is not None:
            os.truncate(self.directory / RESULTS, self._incomplete_from)
            self._incomplete_from = None
        self._ledger = (self.directory / RESULTS).open("ab", buffering=0)

    def write(self, task: int, entry: Entry, more: dict[str, Any]) -> None:
        """Write an entry. Raises OSError without effect."""
        if self._ledger is None:
            raise AssertionError("it was not opened")
        line = json.dumps({"task": task, "state": entry.value, **more}, ensure_ascii=False).encode() + b"\n"
        before = self._ledger.tell()
        try:
            _write_whole(self._ledger, line)
        except OSError:
            os.ftruncate(self._ledger.fileno(), before)
            raise

    def keep_output(self, task: int, out: bytes, err: bytes) -> dict[str, str | None]:
        """Store a task's output; return its path below the directory. Raises OSError."""
        kept: dict[str, str | None] = {"stdout": None, "stderr": None}
        if not out and not err:
            return kept
        for name, suffix, data in (("stdout", "out", out), ("stderr", "err", err)):
            path = self.directory / output_file(task, suffix)
            if data:
                try:
                    path.write_bytes(data)
                except FileNotFoundError:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    path.write_bytes(data)
                kept[name] = str(output_file(task, suffix))
        return kept

    def close(self, progress: SweepProgress, job_id: JobId) -> None:
        """Close the entries and store the progress, of the sweep and at the end of this job.

        Raises OSError.
        """
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        for name in (PROGRESS, _progress_with(job_id)):
            _replace(self.directory / name, json.dumps(asdict(progress)))

    # ---- how to get here --------------------------------------------------------------------------------------------

    def contact(self) -> Contact | None:
        """Return the stored contact for launchers; None: there is none."""
        try:
            return Contact(**json.loads((self.directory / CONTACT).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def keep_contact(self, contact: Contact) -> None:
        """Store the contact for launchers. Raises OSError."""
        _replace(self.directory / CONTACT, json.dumps(asdict(contact)))


def _write_whole(file: IO[bytes], data: bytes) -> None:
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, "there was room for half a line only")


def _replace(path: Path, text: str) -> None:
    """Write a private file atomically."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _progress_with(job_id: JobId) -> str:
    """Return the name of the file with a sweep's progress at the end of a job."""
    return f"progress-{job_id}.json"


def progress_in(directory: Path, name: str = PROGRESS) -> SweepProgress | None:
    """Return the stored progress of a sweep; None: there is none."""
    try:
        last = SweepProgress(**json.loads((directory / name).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return replace(last, first_failed=tuple(last.first_failed), running=0, seconds_left=None)


def recorded_progress(jobs: Path, job: Job) -> SweepProgress | None:
    """Return the progress that a job has brought its sweep to, by its files.

    A later job may have gone on with it. None: it has none.
    """
    if job.sweep is None:
        return None
    directory = jobs / first_job(job) / FOLDER
    return progress_in(directory, _progress_with(job.id)) or progress_in(directory)


def latest_progress(jobs: Path, job: Job) -> SweepProgress | None:
    """Return the present progress of a job's sweep, even if resumed by another job; None: it has no sweep."""
    return None if job.sweep is None else progress_in(jobs / first_job(job) / FOLDER)


def kept_job(jobs: Path, job_id: JobId) -> dict[str, Any]:
    """Return the fields of a sweep's stored job. Raises OSError and ValueError."""
    found: dict[str, Any] = json.loads((jobs / job_id / FOLDER / JOB).read_bytes())
    return found
