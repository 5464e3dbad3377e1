# SPDX-License-Identifier: Apache-2.0
"""Scripts of placeholders on disk, which DRMAA needs because it takes a program, not a text.

They are files of mode 0600 in a directory of mode 0700, because they contain a secret. The job reads that very file
where it can: the copy that Grid Engine makes of a submitted script is world-readable (0755) in the spool directory of
each execution host as long as the job runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.host.privatedirectory import make_directory
from koala_adapter.lrm.contract import CheckResult

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext
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
    its own there, because it deletes all scripts in its folder for which it sees no job.
    """
    if given is None:
        return context.state_directory / "scripts"
    owner = f"{socket.gethostname()}:{context.state_directory.absolute()}"
    return given / f"{context.cluster}-{hashlib.sha256(owner.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"


class ScriptStore:
    """The directory of scripts of one cluster's plugin."""

    def __init__(self, directory: Path) -> None:
        """``directory`` is made when the first script is written."""
        self.directory = directory
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

    def write(self, key: BatchKey, script: str) -> Path:
        """Put a script on disk and return its path. Raises LrmUnavailableError when that does not work."""
        path = self.path(key)
        self._without_job.pop(key, None)
        try:
            make_directory(self.directory)
            # A file left from an earlier try must not keep its mode or its hard links.
            path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(script.encode("utf-8", "surrogateescape"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            message = f"cannot write the script {path}: {error.strerror or error}"
            raise LrmUnavailableError(message, hint="make room, or set script_directory to a writable place") from error
        return path

    @contextmanager
    def submitted(self, key: BatchKey, script: str, delivery: ScriptDelivery) -> Iterator[None]:
        """Have a script on disk for a submission, and delete it when it will not be read: refused, or copied by now."""
        self.write(key, script)
        try:
            yield
        except LrmRejectedError:
            self.remove(key)
            raise
        if delivery is ScriptDelivery.COPIED:
            self.remove(key)

    def remove(self, key: BatchKey) -> None:
        """Delete a script; one that is not there is no error."""
        try:
            self.path(key).unlink(missing_ok=True)
        except OSError as error:
            message = f"cannot delete the script of {key}: {error.strerror or error}"
            raise LrmUnavailableError(message, hint=f"look at {self.directory}") from error

    def sweep(self, live: Collection[str], now: float) -> None:
        """Delete the scripts of submissions that have not been among ``live`` for KEEP_SECONDS.

        ``now``: seconds on a clock that nobody sets. The times of the files are not asked: they are of the time of day.
        """
        if not self.directory.is_dir():
            return
        there = {path.stem: path for path in self.directory.glob("*.sh")}
        self._without_job = {key: self._without_job.get(key, now) for key in there if key not in live}
        for key, since in self._without_job.items():
            if now - since > KEEP_SECONDS:
                there[key].unlink(missing_ok=True)


def check_scripts(directory: Path, delivery: ScriptDelivery) -> CheckResult:
    """Report where scripts go and who can read them."""
    subject = "placeholder scripts"
    if delivery is ScriptDelivery.COPIED:
        return CheckResult(
            subject=subject,
            ok=True,
            found="copied by the batch system: other users of a node may read them while the job runs; "
            "script_delivery = 'private' avoids that",
        )
    try:
        make_directory(directory)
        mode = directory.stat().st_mode & 0o077
    except OSError as error:
        found, remedy = f"{directory}: {error.strerror}", "set script_directory to a directory of yours"
        return CheckResult(subject=subject, ok=False, found=found, remedy=remedy)
    if mode:
        return CheckResult(
            subject=subject, ok=False, found=f"{directory} is open to others", remedy=f"chmod 700 {directory}"
        )
    return CheckResult(subject=subject, ok=True, found=f"private in {directory}, which the nodes must see")
