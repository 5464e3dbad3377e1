# SPDX-License-Identifier: Apache-2.0
"""Scripts of placeholders on disk, which DRMAA needs because it takes a program, not a text.

They are files of mode 0600 in a directory of mode 0700, because they contain a secret. The job reads that very file
where it can: the copy that Grid Engine makes of a submitted script is world-readable (0755) in the spool directory of
each execution host as long as the job runs.
"""

from __future__ import annotations

import hashlib
import re
import socket
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm.contract import CheckResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.model import BatchKey

KEEP_SECONDS = 3600.0
"""A script without a job is kept this long: its submission may still be on its way into a slow LRM."""

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,127}")


class ScriptDelivery(StrEnum):
    """How a script gets from the submitting host to the nodes."""

    PRIVATE = "private"
    """The job runs ``/bin/sh`` on our file, which the nodes see (a home directory on NFS, or a single host)."""
    COPIED = "copied"
    """The LRM copies the script at submission. Nothing need be shared, but see above who can read the copy."""


def script_folder(given: Path | None, context: ClusterContext) -> Path:
    """Return the directory of a cluster's scripts: one in its state directory, or in the one that its site gives.

    A given directory, such as one in a home, may be that of several clusters, services and hosts. Each has a folder of
    its own there, because it deletes all scripts in its folder for which it sees no job. Where the batch system is at
    another site, the directory is in the user's private one there: a relative path.
    """
    if given is None and context.host.here:
        return context.state_directory / "scripts"
    return folder_there(given or "scripts", context)


def folder_there(parent: str | Path, context: ClusterContext) -> Path:
    """Return the folder of a cluster in a directory that other clusters, services and hosts may use, too."""
    owner = f"{socket.gethostname()}:{context.state_directory.absolute()}"
    name = f"{context.cluster}-{hashlib.sha256(owner.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
    return Path(parent) / name


class ScriptStore:
    """The directory of scripts of one cluster's plugin."""

    def __init__(self, directory: Path, host: LrmHost, *, delivery: ScriptDelivery = ScriptDelivery.PRIVATE) -> None:
        """``directory``: of ``host``; it is made when the first script is written."""
        self.directory = directory
        self.host = host
        self.delivery = delivery
        self._without_job: dict[str, float] = {}
        """Since when each script has not been that of a live job, as far as we have seen."""

    def path(self, key: BatchKey) -> Path:
        """Return where the script of a submission is kept.

        Raises LrmRejectedError for a key that is no safe file name.
        """
        if not _KEY.fullmatch(key):
            message = f"{key!r} cannot be the name of an LRM job"
            raise LrmRejectedError(message, hint="begin with a letter; use letters, digits, '_', '.', '-'; at most 128")
        return self.directory / f"{key}.sh"

    async def write(self, key: BatchKey, script: str) -> Path:
        """Put a script on disk and return its path. Raises LrmUnavailableError when that does not work."""
        path = self.path(key)
        self._without_job.pop(key, None)
        try:
            made, _ = await self.host.make_directory(str(self.directory))
            self.directory = Path(made)
            path = self.path(key)
            await self.host.write_private(str(path), script.encode("utf-8", "surrogateescape"))
        except OSError as error:
            message = f"cannot write the script {path}: {error.strerror or error}"
            raise LrmUnavailableError(message, hint="make room, or set script_directory to a writable place") from error
        return path

    @asynccontextmanager
    async def submitted(self, key: BatchKey, script: str) -> AsyncIterator[None]:
        """Keep a script on disk during a submission; delete it when it was refused or copied by the system."""
        await self.write(key, script)
        try:
            yield
        except LrmRejectedError:
            self.remove(key)
            raise
        if self.delivery is ScriptDelivery.COPIED:
            self.remove(key)

    def remove(self, key: BatchKey) -> None:
        """Delete a script; one that is not there is no error."""
        try:
            self.host.remove_soon(str(self.path(key)))
        except OSError as error:
            message = f"cannot delete the script of {key}: {error.strerror or error}"
            raise LrmUnavailableError(message, hint=f"look at {self.directory}") from error

    async def sweep(self, live: Collection[str], now: float) -> None:
        """Delete the scripts of submissions that have not been among ``live`` for KEEP_SECONDS.

        ``now``: seconds on a clock that nobody sets. The times of the files are not asked: they are of the time of day.
        """
        try:
            names = await self.host.list_directory(str(self.directory))
        except (FileNotFoundError, NotADirectoryError):
            return
        there = {name.removesuffix(".sh"): self.directory / name for name in names if name.endswith(".sh")}
        self._without_job = {key: self._without_job.get(key, now) for key in there if key not in live}
        for key, since in self._without_job.items():
            if now - since > KEEP_SECONDS:
                self.host.remove_soon(str(there[key]))

    async def check(self) -> CheckResult:
        """Report where scripts go and who can read them."""
        subject = "placeholder scripts"
        if self.delivery is ScriptDelivery.COPIED:
            found = (
                "copied by the batch system: other users of a node may read them while the job runs; "
                "script_delivery = 'private' avoids that"
            )
            return CheckResult(subject=subject, ok=True, found=found)
        try:
            made, mode = await self.host.make_directory(str(self.directory))
        except OSError as error:
            found, remedy = f"{self.directory}: {error.strerror}", "set script_directory to a directory of yours"
            return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
        if mode & 0o077:
            return CheckResult(subject=subject, ok=False, found=f"{made} is open to others", remedy=f"chmod 700 {made}")
        return CheckResult(subject=subject, ok=True, found=f"private in {made}, which the nodes must see")
