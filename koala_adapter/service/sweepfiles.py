# SPDX-License-Identifier: Apache-2.0
"""What is kept of a sweep in its directory: its job, what became of each task, and what the tasks printed.

``results.jsonl`` has a line for each entry of the book, and is all that the book is made from again. A line is written
when the output of its task is, so that it never speaks of what is not there; half a line, of a service that was killed
in the middle of it, is dropped. A power failure may cost the latest lines: then these tasks are done again.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from koala_adapter.errors import KoalaError
from koala_adapter.sweeps.book import Entry
from koala_adapter.sweeps.parameters import Expansion, lines_of
from koala_adapter.sweeps.progress import SweepProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.model import Job, JobId, Sweep

FOLDER = "sweep"
RESULTS = "results.jsonl"
JOB = "job.json"
PROGRESS = "progress.json"
CONTACT = "contact.json"
IN_A_FOLDER = 1000
"""Tasks whose output is in one directory."""


def first_job(job: Job) -> JobId:
    """Return the first of the jobs of a sweep, whose directory has all that belongs to it."""
    return job.id if job.sweep is None or job.sweep.continues is None else job.sweep.continues


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """Where launchers find who hands out tasks, and what they show there."""

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

    # ---- what was submitted -----------------------------------------------------------------------------------------

    def keep(self, job: Job) -> None:
        """Keep the job, and the values that stand in files. Raises OSError, with ``filename``."""
        if job.sweep is None:
            return
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        axes = []
        for number, axis in enumerate(job.sweep.axes):
            kept = self.directory / f"values-{number}"
            if axis.file is not None and axis.file != str(kept):
                kept.write_bytes(Path(axis.file).read_bytes())
            axes.append(axis if axis.file is None else replace(axis, file=str(kept)))
        kept_job = replace(job, sweep=replace(job.sweep, axes=tuple(axes)))
        own = self.directory.parent.parent / job.id / FOLDER
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(own / JOB, json.dumps(asdict(kept_job), ensure_ascii=False))

    def expansion(self, sweep: Sweep) -> Expansion:
        """Return the tasks, with the values as they were kept. Raises OSError and ConfigurationError."""
        lines = {
            axis.file: lines_of((self.directory / f"values-{number}").read_text(encoding="utf-8"))
            for number, axis in enumerate(sweep.axes)
            if axis.file is not None
        }
        return Expansion(sweep, lines)

    # ---- what became of the tasks -----------------------------------------------------------------------------------

    def open(self) -> list[tuple[int, Entry]]:
        """Return all entries, and be ready for further ones. Raises OSError, and KoalaError for what is no entry."""
        path = self.directory / RESULTS
        data = path.read_bytes() if path.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            found = [(int(one["task"]), Entry(one["state"])) for one in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise KoalaError(
                f"{path} has a line that is no entry: {error}", hint="move it away: all tasks are done anew"
            ) from error
        self.resumed_by = {str(one["job"]) for one in lines if one["state"] == Entry.RESUMED}
        self._ledger = path.open("ab", buffering=0)
        return found

    def write(self, task: int, entry: Entry, more: dict[str, Any]) -> None:
        """Write an entry down. Raises OSError, and nothing is written then."""
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
        """Keep what a task has printed; return where, below the directory. Raises OSError."""
        kept: dict[str, str | None] = {"stdout": None, "stderr": None}
        if not out and not err:
            return kept
        folder = Path("tasks") / f"{task // IN_A_FOLDER:03}"
        for name, suffix, data in (("stdout", "out", out), ("stderr", "err", err)):
            path = self.directory / folder / f"{task}.{suffix}"
            if data:
                try:
                    path.write_bytes(data)
                except FileNotFoundError:
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    path.write_bytes(data)
                kept[name] = str(folder / path.name)
        return kept

    def close(self, progress: SweepProgress, job_id: JobId) -> None:
        """Close the entries, and keep how far the sweep is, and was with this job, for who reads it later.

        Raises OSError.
        """
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        for name in (PROGRESS, _progress_with(job_id)):
            _replace(self.directory / name, json.dumps(asdict(progress)))

    # ---- how to get here --------------------------------------------------------------------------------------------

    def contact(self) -> Contact | None:
        """Return what launchers were told; None: none ever was."""
        try:
            return Contact(**json.loads((self.directory / CONTACT).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def keep_contact(self, contact: Contact) -> None:
        """Keep what launchers are told. Raises OSError."""
        _replace(self.directory / CONTACT, json.dumps(asdict(contact)))


def _write_whole(file: IO[bytes], data: bytes) -> None:
    if file.write(data) != len(data):
        raise OSError(errno.ENOSPC, "there was room for half a line only")


def _replace(path: Path, text: str) -> None:
    """Write a private file, all of it or none."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _progress_with(job_id: JobId) -> str:
    """Return the name of the file that says how far a sweep was when this job left it."""
    return f"progress-{job_id}.json"


def progress_in(directory: Path, name: str = PROGRESS) -> SweepProgress | None:
    """Return how far the sweep of a directory is by what is written there; None: nothing is."""
    try:
        last = SweepProgress(**json.loads((directory / name).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return replace(last, first_failed=tuple(last.first_failed), running=0, seconds_left=None)


def recorded_progress(jobs: Path, job: Job) -> SweepProgress | None:
    """Return how far a job has brought its sweep by what is written below the directory of all jobs.

    A later job may have gone on with it. None: it has none.
    """
    if job.sweep is None:
        return None
    directory = jobs / first_job(job) / FOLDER
    return progress_in(directory, _progress_with(job.id)) or progress_in(directory)


def latest_progress(jobs: Path, job: Job) -> SweepProgress | None:
    """Return how far the sweep of a job is by now, whichever job went on with it; None: it has none."""
    return None if job.sweep is None else progress_in(jobs / first_job(job) / FOLDER)


def kept_job(jobs: Path, job_id: JobId) -> dict[str, Any]:
    """Return the fields of the job of a sweep as it was kept. Raises OSError and ValueError."""
    found: dict[str, Any] = json.loads((jobs / job_id / FOLDER / JOB).read_bytes())
    return found


def entries_in(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a sweep, as they are written down. Raises OSError."""
    with (directory / RESULTS).open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
