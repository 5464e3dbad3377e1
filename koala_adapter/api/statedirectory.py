# SPDX-License-Identifier: Apache-2.0
"""The state directory of a service: ownership, a service in the background, cleaned jobs, printed output.

The directory is private to its user and owned by one process at a time, by a lock on a file in it; it has the socket,
the journal and the log of the service.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from koala_adapter.config.written import is_text
from koala_adapter.errors import ConfigurationError, JobNotFoundError, ServiceRunningError, ServiceUnavailableError
from koala_adapter.host.privatedirectory import make_private_directory, user_name, weakness
from koala_adapter.host.regularfile import paths_matching
from koala_adapter.host.sockets import checked_path
from koala_adapter.report.values import ATTEMPTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from koala_adapter.service.journal import Journal


# -- Checks, ownership and the socket of a state directory ---------------------------------------------------

JOURNAL_NAME = "journal.sqlite"
LOCK_NAME = "service.lock"
LOG_NAME = "service.log"
SOCKET_NAME = "koala.sock"
STANDARD_ERROR = 2
LEFT_BY_THE_KILLED = 5.0
"""Seconds for which a directory is waited for whose owner is dead."""
_OWNER = re.compile(r"\(pid (\d{1,9})\)")


def check_directory(directory: Path) -> None:
    """Check that a state directory, if it exists, is the user's and safe from other users.

    Raises ConfigurationError.
    """
    if not is_text(str(directory)):
        raise _unusable(directory, "its name is not UTF-8")
    try:
        found = weakness(directory)
        if found:
            raise _unusable(directory, found)
        status = directory.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(directory, "it is no directory")
    if status.st_uid != os.geteuid():
        raise _unusable(directory, f"it belongs to {user_name(status.st_uid)}, not to you")


def prepare_directory(directory: Path) -> None:
    """Make the state directory private. Raises ConfigurationError."""
    check_directory(directory)
    try:
        make_private_directory(directory)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error


def _unusable(directory: Path, why: str) -> ConfigurationError:
    hint = "give a private directory of your own with --state or $KOALA_STATE"
    return ConfigurationError(f"cannot use the state directory {directory}: {why}", hint=hint)


@contextmanager
def ownership(
    directory: Path,
    role: str = "koala serve",
    *,
    way_out: str = "use it, stop it with `koala serve --stop`",
    inherited: int | None = None,
) -> Iterator[int]:
    """Hold the lock of a state directory during the block; the kernel releases it with the last process.

    ``role``: what others are told of the owner, ``way_out``: what they may do beside taking another directory,
    ``inherited``: the descriptor with which another process owned it and started this one; it is used only if it is
    open on the lock file. Yields the descriptor. Raises ServiceRunningError when another process owns it.
    """
    prepare_directory(directory)
    try:
        descriptor = inherited if inherited is not None and _is_lock(inherited, directory) else _open_lock(directory)
        fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    except OSError as error:
        raise _unusable(directory, error.strerror or str(error)) from error
    try:
        _lock(descriptor, directory, way_out)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{role} (pid {os.getpid()})\n".encode(), 0)
        except OSError as error:
            raise _unusable(directory, f"{LOCK_NAME}: {error.strerror}") from error
        yield descriptor
    finally:
        os.close(descriptor)


def _open_lock(directory: Path) -> int:
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return _above_standard(descriptor)


def _is_lock(descriptor: int, directory: Path) -> bool:
    """Return whether a descriptor is open on the state directory's lock file."""
    try:
        return os.path.samestat(os.fstat(descriptor), (directory / LOCK_NAME).stat())
    except OSError:
        return False


def _above_standard(descriptor: int) -> int:
    """Return a duplicate descriptor above 2, so that a child does not inherit it as a standard one."""
    if descriptor > STANDARD_ERROR:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, STANDARD_ERROR + 1)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path, way_out: str) -> None:
    """Lock the lock file, waiting for processes that a killed owner had just started.

    A new process has the descriptor until it runs its program; there is no event for that.
    """
    until = time.monotonic() + LEFT_BY_THE_KILLED
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            if _runs(owner) or time.monotonic() >= until:
                raise ServiceRunningError(
                    f"{owner or 'a koala service'} already owns {directory}",
                    hint=f"{way_out}, or give another --state directory",
                ) from None
            time.sleep(0.02)
        else:
            return


def _runs(owner: str) -> bool:
    """Return whether the recorded owner of a directory may still run."""
    said = _OWNER.search(owner)
    if said is None:
        return True
    try:
        os.kill(int(said[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def wait_until_unowned(directory: Path) -> None:
    """Wait until no process owns a state directory."""
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def socket_path(directory: Path) -> Path:
    """Return the path of the socket in a state directory. Raises ConfigurationError when the kernel cannot take it."""
    return checked_path(directory / SOCKET_NAME)


# -- A service in the background -----------------------------------------------------------------------------
# It is a process of its own, which outlives the command that needed it.

READY = b"ready\n"
IDLE_LIMIT = 1800
"""Seconds without an unfinished job after which a service that a command started in the background ends."""


def start_in_background(site_file: Path, directory: Path, *, timeout: float = 120.0) -> int:
    """Start ``koala serve`` as a background process; return its pid once it answers.

    Raises ServiceRunningError when another process owns the directory, and ServiceUnavailableError with the end of what
    it wrote to its log when it does not come up.
    """
    with ownership(directory, "koala serve, about to start") as lock:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        log = _above_standard(os.open(directory / LOG_NAME, flags, 0o600))
        reader, writer = map(_above_standard, os.pipe())
        earlier = os.fstat(log).st_size
        command = [sys.executable, "-m", "koala_adapter.cli", "--site", str(site_file), "--state", str(directory)]
        command += ["serve", "--ready-descriptor", str(writer), "--lock-descriptor", str(lock)]
        try:
            process = subprocess.Popen(
                [*command, "--end-when-idle", str(IDLE_LIMIT)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer, lock),
                start_new_session=True,
                cwd="/",
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
            os.close(log)
    # A caller that goes on for long, such as a notebook, is to have no zombie when the service ends.
    threading.Thread(target=process.wait, name="koala service", daemon=True).start()
    with os.fdopen(reader, "rb") as ready:
        if _read_within(ready.fileno(), timeout) == READY:
            return process.pid
    process.terminate()
    with (directory / LOG_NAME).open("rb") as file:
        file.seek(earlier)
        lines = file.read().decode(errors="replace").strip().splitlines()
    said = "".join(f"\n  {line}" for line in lines[-5:]) or " and said nothing"
    raise ServiceUnavailableError(f"the service did not come up{said}", hint=f"see {directory / LOG_NAME}")


def ended_within(pid: int, timeout: float) -> bool:
    """Wait for a process to end, at most ``timeout`` seconds; return whether it has."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([process], [], [], timeout)
        return bool(readable)
    finally:
        os.close(process)


def _read_within(descriptor: int, timeout: float) -> bytes:
    readable, _, _ = select.select([descriptor], [], [], timeout)
    return os.read(descriptor, len(READY)) if readable else b""


# -- State directories and jobs of which nothing is known -----------------------------------------------------


def require_journal(directory: Path) -> None:
    """Raise ServiceUnavailableError for a state directory in which no service has ever run."""
    if not (directory / JOURNAL_NAME).exists():
        message = f"no koala service runs in {directory}, and none ever has"
        raise ServiceUnavailableError(message, hint="run a job with `koala run JOB`, or start one with `koala serve`")


def require_not_cleaned(journal: Journal, job_id: str, wall_offset: float) -> None:
    """Raise JobNotFoundError when a job was cleaned away.

    ``wall_offset``: seconds to add to a time of the service clock for people's.
    """
    cleaned_at = journal.finished.cleaned_at(job_id)
    if cleaned_at is not None:
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(cleaned_at + wall_offset))
        hint = "it had ended long before; its output and its report are gone for good"
        raise JobNotFoundError(f"job {job_id} was removed by `koala clean` on {at}", hint=hint)


# -- Printing the output of jobs -----------------------------------------------------------------------------
# The control center keeps it in files of the state directory.


PIECE = 256 * 1024
"""Bytes of an output file that are read at once."""
LONGEST_WAIT = 1.0
"""Seconds for which an unfinished line is held back after its last byte."""
LONGEST_LINE = 64 * 1024
"""Bytes of an unfinished line that are held back."""
_MOVE = re.compile(rb"\r+(?![\r\n]|$)")
"""Carriage returns after which a line is written anew; not those of CR LF, which may be still to come."""


class LogPrinter:
    """Prints new output of a job's processes."""

    def __init__(
        self,
        directory: Path,
        *,
        component: str | None = None,
        rank: int | None = None,
        suffix: str = ".out",
        write: Callable[[bytes], None] | None = None,
        unfinished: bool = False,
        attempts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``directory`` has the files ``COMPONENT/RANK`` + ``suffix``; ``write``: default standard output.

        ``unfinished``: a line is not held back until its end, only until a carriage return, 64 KiB, or a second without
        more. It is then printed in pieces, each of which is marked as a line is. ``attempts``: what earlier attempts of
        the job have written comes first; else only that of those which end later.
        """
        self._directory = directory
        self._write = write or to_standard_output
        self._pattern = f"{component or '*'}/{'*' if rank is None else rank}{suffix}"
        self._offsets: dict[int, int] = {}
        """By the number of the inode: the files of an attempt are put away when the next one begins."""
        self._unfinished = unfinished
        self._clock = clock
        self._rest: dict[int, bytes] = {}
        """Unfinished line of each file, by its inode."""
        self._grown_at: dict[int, float] = {}
        self._passed_over: frozenset[Path] = frozenset(() if attempts else self._earlier())

    def print_new(self, *, marked: bool, rest: bool = False) -> None:
        """Print new complete lines; with ``rest`` also an unfinished one.

        ``marked``: each line is to say whose it is.
        """
        longest = LONGEST_LINE if self._unfinished else PIECE
        directories = (self._directory, *self._earlier())
        names = {
            path.relative_to(directory)
            for directory in directories
            for path in paths_matching(directory, self._pattern)
        }
        for path in (self._directory / name for name in sorted(names, key=_order)):
            for file, over in self._files(path):
                inode = os.fstat(file.fileno()).st_ino
                for data in self._pieces(file):
                    *lines, last = (self._rest.pop(inode, b"") + data).split(b"\n")
                    self._grown_at[inode] = self._clock()
                    if len(last) > longest:
                        self._print(path, lines, marked=marked, last=last)
                        continue
                    begun, last = self._split(last)
                    if last:
                        self._rest[inode] = last
                    self._print(path, lines, marked=marked, last=begun.rstrip(b"\r") if marked else begun)
                waits = self._unfinished and inode in self._rest
                if rest or over or (waits and self._clock() - self._grown_at[inode] >= LONGEST_WAIT):
                    self._print(path, [], marked=marked, last=self._rest.pop(inode, b""))

    def _split(self, line: bytes) -> tuple[bytes, bytes]:
        """Split an unfinished line at its last carriage return, up to which it can be printed."""
        returns = list(_MOVE.finditer(line)) if self._unfinished else []
        at = returns[-1].end() if returns else 0
        return line[:at], line[at:]

    @property
    def silent(self) -> bool:
        """Return whether nothing printable was written."""
        for path in paths_matching(self._directory, self._pattern):
            with suppress(FileNotFoundError):
                if path.stat().st_size:
                    return False
        return True

    def _earlier(self) -> list[Path]:
        """Return the directories of earlier attempts in order."""
        found = (path for path in paths_matching(self._directory / ATTEMPTS, "*") if path.name.isdecimal())
        return sorted(found, key=lambda path: int(path.name))

    def _files(self, path: Path) -> Iterator[tuple[BinaryIO, bool]]:
        """Yield each attempt's file and whether the attempt is over.

        That of the latest is opened first: it may be put away meanwhile, and another one begun in its place.
        """
        name = path.relative_to(self._directory)
        with ExitStack() as stack:
            latest = None
            with suppress(FileNotFoundError):
                latest = stack.enter_context(path.open("rb"))
            for directory in self._earlier():
                if directory not in self._passed_over:
                    with suppress(FileNotFoundError), (directory / name).open("rb") as file:
                        yield file, True
            if latest is not None:
                yield latest, False

    def _pieces(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the part of a file that was new at the start, in pieces of bounded size."""
        status = os.fstat(file.fileno())
        left = status.st_size - file.seek(self._offsets.get(status.st_ino, 0))
        while left > 0 and (data := file.read(min(PIECE, left))):
            left -= len(data)
            self._offsets[status.st_ino] = file.tell()
            yield data

    def _print(self, path: Path, lines: list[bytes], *, marked: bool, last: bytes = b"") -> None:
        """Print lines; without marks they are passed on byte for byte."""
        mark = f"{path.parent.name}/{path.stem}: ".encode() if marked else b""
        if last and marked:
            lines, last = [*lines, last], b""
        if marked and self._unfinished:
            lines = [part for line in lines for part in _MOVE.split(line) if part or not line]
        if lines or last:
            self._write(b"".join(mark + line + b"\n" for line in lines) + last)


def _order(path: Path) -> tuple[str, int]:
    return path.parent.name, int(path.stem) if path.stem.isdecimal() else -1


def to_standard_output(data: bytes) -> None:
    """Write bytes to standard output as they are."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
