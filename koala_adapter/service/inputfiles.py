# SPDX-License-Identifier: Apache-2.0
"""Input files of jobs: copies of what was submitted, so that later changes do not matter.

``inputs/DIGEST`` of the state directory has each content once. ``jobs/ID/_input`` has hard links to the contents of one
job, and for each component a list of its files. A content is removed with the last job that has a link to it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread
from pydantic import TypeAdapter

from koala_adapter.host.regularfile import files_below, open_regular
from koala_adapter.model import LARGEST_SENT, Component, InputFile, Job, JobId
from koala_adapter.vjm.channel import LaunchFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


INPUT = "_input"
"""Directory below that of a job's output with its input files. No component has such a name."""
CONTENTS = "inputs"
"""Directory of the state directory with the contents of all jobs."""
BLOCK = 1024 * 1024
"""Bytes that are read at once."""
STEP = 32
"""Blocks that are copied before the end of the service is looked for."""
MOST_KNOWN = 10_000
"""Files whose contents are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """An input file as it was when its job was submitted."""

    target: str
    """Path relative to the rank's working directory."""
    mode: int
    size: int
    modified: int
    """Seconds since the epoch."""
    digest: str
    """SHA-256 of its content."""
    source: str
    """Where it was on this host."""


_KEPT = TypeAdapter(tuple[KeptFile, ...])


class _Copy:
    """A file being copied into the store in steps."""

    def __init__(self, source: str, contents: Path) -> None:
        """``source``: a regular file. Raises OSError."""
        self._source = source
        self._contents = contents
        self._input = os.fdopen(open_regular(source), "rb")
        self.status = os.fstat(self._input.fileno())
        self.size = 0
        """Bytes that were copied."""
        self._digest = hashlib.sha256()
        self._path = contents / f".{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._output = os.fdopen(os.open(self._path, flags, 0o600), "wb")

    def step(self) -> bool:
        """Copy a piece; return False when all is copied. Raises OSError that names the file."""
        for _ in range(STEP):
            data = self._input.read(BLOCK)
            if not data:
                return False
            self.size += len(data)
            self._digest.update(data)
            try:
                self._output.write(data)
            except OSError as error:
                raise OSError(
                    error.errno, f"cannot be copied to {self._contents}: {error.strerror}", self._source
                ) from error
        return True

    def finish(self) -> str:
        """Move the copy to its place and return its digest."""
        self._output.close()
        digest = self._digest.hexdigest()
        self._path.rename(self._contents / digest)
        return digest

    def close(self) -> None:
        """Remove an unfinished copy."""
        self._input.close()
        self._output.close()
        self._path.unlink(missing_ok=True)


class InputStore:
    """Keeps the input files of jobs from their submission to their end."""

    def __init__(self, directory: Path, prefix: str) -> None:
        """``directory``: the state directory. ``prefix``: how the names of its jobs in batch systems begin."""
        self._jobs = directory / "jobs"
        self.contents = directory / CONTENTS
        self._prefix = prefix
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}
        """By path: what tells a file from a changed one, and the digest of its content."""
        self._digests: dict[str, frozenset[str]] = {}
        """By the sources of job files."""

    def tidy(self) -> None:
        """Remove contents without a job, left by a service that was killed during a submission."""
        with suppress(OSError):
            for path in list(self.contents.iterdir()):
                if path.stat().st_nlink == 1:
                    path.unlink()

    # -- keeping -----------------------------------------------------------------------------------------------------

    async def take_in(self, job: Job) -> None:
        """Copy the large input files of a job that is about to be submitted, while all else goes on.

        What goes wrong is left to :meth:`keep` to tell.
        """
        large = (component for component in job.components if component.has_large_files)
        files = [one for component in large for one in component.files_sent]
        with suppress(OSError):
            for source, _ in await anyio.to_thread.run_sync(list, _expanded(files)):
                if self._content_of(source) is not None:
                    continue
                copy = self._begin(source)
                try:
                    while await anyio.to_thread.run_sync(copy.step):
                        pass
                    self._finish(source, copy)
                finally:
                    copy.close()

    def keep(self, job: Job) -> None:
        """Keep the input files of a job. Raises OSError, with ``filename``."""
        for component in job.components:
            if component.files_sent:
                self._keep(job.id, component)

    def _keep(self, job_id: JobId, component: Component) -> None:
        directory = self._jobs / job_id / INPUT
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept: list[KeptFile] = []
        left = None if component.has_large_files else LARGEST_SENT
        for file in component.files_sent:
            before = len(kept)
            for source, target in _expanded([file]):
                digest, size, status = self._kept_content(source, left)
                left = None if left is None else left - size
                _link(self.contents / digest, directory / digest)
                mode, modified = stat.S_IMODE(status.st_mode) & 0o700, max(0, int(status.st_mtime))
                kept.append(
                    KeptFile(target=target, mode=mode, size=size, modified=modified, digest=digest, source=source)
                )
            self._digests[file.source] = frozenset(one.digest for one in kept[before:])
        (directory / f"{component.name}.json").write_bytes(_KEPT.dump_json(tuple(kept)))

    def _kept_content(self, source: str, most: int | None) -> tuple[str, int, os.stat_result]:
        """Return digest and size of a file that is in the store now, and its status.

        ``most``: bytes that it may have.
        """
        digest = self._content_of(source)
        if digest is not None:
            status = Path(source).stat()
            return digest, status.st_size, status
        copy = self._begin(source)
        try:
            if most is not None and copy.status.st_size > most:
                text = f"it has more than {most // 1024**2} MiB, or had less when it was checked"
                raise OSError(None, text, source)
            while copy.step():
                pass
            return self._finish(source, copy), copy.size, copy.status
        finally:
            copy.close()

    def _begin(self, source: str) -> _Copy:
        self.contents.mkdir(mode=0o700, exist_ok=True)
        return _Copy(source, self.contents)

    def _finish(self, source: str, copy: _Copy) -> str:
        digest = copy.finish()
        self._known.pop(source, None)
        self._known[source] = _identity(copy.status), digest
        if len(self._known) > MOST_KNOWN:
            del self._known[next(iter(self._known))]
        return digest

    def _content_of(self, source: str) -> str | None:
        """Return the digest of a file that has not changed since it was copied, where the copy is still there."""
        identity, digest = self._known.get(source, ((), ""))
        if digest and identity == _identity(Path(source).stat()) and (self.contents / digest).exists():
            return digest
        return None

    def forget(self, job_id: JobId) -> None:
        """Drop a job's input files and contents that no other job has."""
        directory = self._jobs / job_id / INPUT
        try:
            names = os.listdir(directory)  # noqa: PTH208 - names are what is wanted
        except OSError:
            return
        shutil.rmtree(directory, ignore_errors=True)
        for name in names:
            with suppress(OSError):
                content = self.contents / name
                if content.stat().st_nlink == 1:
                    content.unlink()

    # -- what is kept ------------------------------------------------------------------------------------------------

    def files(self, job_id: JobId, component: Component) -> tuple[KeptFile, ...]:
        """Return the input files of a component. Raises OSError, ValueError."""
        if not component.files_sent:
            return ()
        return _KEPT.validate_json((self._jobs / job_id / INPUT / f"{component.name}.json").read_bytes())

    def digests(self, file: InputFile) -> frozenset[str]:
        """Return the digests of a file, or of those of a directory, as it was kept last by this process."""
        return self._digests.get(file.source, frozenset())

    def launch_files(self, job_id: JobId, component: Component) -> tuple[LaunchFile, ...]:
        """Return the input files of a component as a launch has them. Raises OSError, ValueError."""
        large = component.has_large_files
        return tuple(
            LaunchFile(
                target=file.target,
                mode=file.mode,
                content=b"" if large else self.path(job_id, file.digest).read_bytes(),
                digest=file.digest if large else "",
                size=file.size,
                modified=file.modified,
                source=file.source if large else "",
            )
            for file in self.files(job_id, component)
        )

    def share(self, job_id: JobId) -> str:
        """Return the name of a job's shared directory on nodes; always the same."""
        return f"koala-{hashlib.sha256(f'{self._prefix}{job_id}'.encode()).hexdigest()[:32]}"

    def path(self, job_id: JobId, digest: str) -> Path:
        """Return where a content of a job is."""
        return self._jobs / job_id / INPUT / digest


def _expanded(files: Sequence[InputFile]) -> Iterator[tuple[str, str]]:
    """Yield source and target of each file, with those of directories. Raises OSError."""
    for file in files:
        if Path(file.source).is_dir():
            for one in files_below(file.source):
                yield one.path, f"{file.target}/{one.below}"
        else:
            yield file.source, file.target


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _link(content: Path, path: Path) -> None:
    """Hard-link a content, or copy it where that is not supported."""
    try:
        os.link(content, path)
    except FileExistsError:
        pass
    except OSError:
        shutil.copyfile(content, path)
