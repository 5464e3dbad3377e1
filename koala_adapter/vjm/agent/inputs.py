# SPDX-License-Identifier: Apache-2.0
"""Large input files of tasks: found on the node or fetched in pieces, and shared by the agents of a job there.

A content is written to a part that its writer has locked, so that one agent gets it and the others wait; what a killed
one leaves is gone on with.
"""

import binascii
import collections
import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import stat

from koala_adapter.vjm.agent.node import clock, raw
from koala_adapter.vjm.agent.place import SLICE, Share, Workplace
from koala_adapter.vjm.agent.processes import LaunchError, file_identity, placed

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, Generator, Optional, Tuple

    Identity = Tuple[int, int, int]
    Steps = Generator[bool, None, None]

BLOCK = 1024 * 1024  # bytes that are copied in one step
PIECE = 256 * 1024  # bytes of an answer to a question for a piece
AHEAD = 8  # such questions before their answers
PAUSE = 0.25  # seconds until it is looked again whether another agent has got a file
PATIENCE = 600.0  # seconds in contact without a piece that was asked for
UNLINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


# -- The large files of one task -----------------------------------------------------------------------------

WAITING = True  # what the steps below yield when they cannot go on before something happens


class Inputs:
    """Gets the large input files of a task, in short steps, and puts them where it finds them."""

    def __init__(self, workplace: Workplace, message: "Dict[str, Any]", directory: str) -> None:
        """``directory``: that in which the task starts. Raises OSError."""
        self._workplace = workplace
        self._task = message["task"]
        self._files = [file for file in message["files"] if file.get("digest")]
        self._places = [os.path.join(os.path.expanduser(place), "") for place in message["places"]]
        self._directory = directory
        self._done: "Callable[[Dict[str, Identity], str], None]" = lambda _identities, _fault: None
        self._identities: "Dict[str, Identity]" = {}
        self._wanted: "Optional[Dict[str, Any]]" = None  # what is fetched now
        self._got = self._asked = 0  # bytes of it that have come, and up to which pieces were asked for
        self._pieces: "Deque[bytes]" = collections.deque()
        self._refusal = ""
        self._heard = clock()
        self._due = False  # a timer will go on with the steps
        self._watched = False  # and another one looks whether pieces come
        self._over = False
        name = message["share"]
        if name not in workplace.shares:
            workplace.shares[name] = Share(name)
        self._share = workplace.shares[name]
        self._share.users += 1
        self._name = name
        self._steps = self._get_all()

    def get(self, done: "Callable[[Dict[str, Identity], str], None]") -> None:
        """Begin; ``done`` is called with the identities of the files in the directory of the task, or with a fault."""
        self._done = done
        self._go_on()

    def leave(self) -> None:
        """Use the shared directory no more."""
        self._over = True
        self._steps.close()
        self._share.users -= 1
        if not self._share.users:
            del self._workplace.shares[self._name]
            self._workplace.work(self._share.leave())

    def rewind(self) -> None:
        """Ask again for what has not come: the connection is a new one."""
        self._asked = self._got
        self._heard = clock()

    def next(self) -> "Optional[Dict[str, Any]]":
        """Return the next question for a piece that can be asked now."""
        file = self._wanted
        if file is None or self._over or self._asked >= file["size"] or self._asked - self._got >= AHEAD * PIECE:
            return None
        offset, self._asked = self._asked, self._asked + PIECE
        return {"kind": "fetch", "task": self._task, "digest": file["digest"], "offset": offset}

    def take(self, message: "Dict[str, Any]") -> None:
        """Take a piece, or the reason why there is none."""
        file = self._wanted
        if file is None or message["digest"] != file["digest"] or message["offset"] != self._got:
            return  # asked for twice, over two connections
        data = binascii.a2b_base64(message["data"])
        if len(data) != min(PIECE, file["size"] - self._got):
            data, self._refusal = b"", message["refusal"] or "it has become shorter"
        self._got += len(data)
        self._heard = clock()
        self._pieces.append(data)
        self._go_on()

    def _go_on(self) -> None:
        """Do steps until something must be waited for, or other things are due."""
        if self._over:
            return
        until = clock() + SLICE
        try:
            for waiting in self._steps:
                if waiting:
                    return
                if clock() > until:
                    self._go_on_after(SLICE / 4)
                    return
        except LaunchError as error:
            self._end(str(error))
        except OSError as error:
            where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
            self._end(f"input files: {where}{error.strerror} on {socket.gethostname()}")
        else:
            self._end("")

    def _go_on_after(self, pause: float) -> None:
        if not self._due:
            self._due = True
            self._workplace.timers.after(pause, self._timed)

    def _timed(self) -> None:
        self._due = False
        self._go_on()

    def _watch(self) -> None:
        """Give up when no piece comes for too long."""
        self._watched = False
        if self._over or self._wanted is None:
            return
        if clock() - self._heard > PATIENCE:
            self._end(f"input file {self._wanted['target']!r}: no piece of it came in {PATIENCE:g} s")
        else:
            self._watched = True
            self._workplace.timers.after(PATIENCE / 10, self._watch)

    def _end(self, fault: str) -> None:
        self._over = True
        self._done(self._identities, fault)

    def _get_all(self) -> "Steps":
        for file in self._files:
            name = file["digest"] + (".x" if file["mode"] & 0o100 else "")
            path = os.path.join(self._share.path, name)
            if not os.path.exists(path):
                yield from self._get(file, path)
            yield from self._put(file, path)

    def _get(self, file: "Dict[str, Any]", path: str) -> "Steps":
        """Have a content in the shared directory."""
        part = path + ".part"
        while True:
            descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.exists(path):
                    yield from self._fill(file, descriptor)
                    os.fchmod(descriptor, 0o400 | file["mode"] & 0o100)
                    os.utime(descriptor, (file["modified"], file["modified"]))
                    os.rename(part, path)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(part)
                return
            except BlockingIOError:
                pass
            finally:
                os.close(descriptor)
            self._go_on_after(PAUSE)
            yield WAITING
            if os.path.exists(path):
                return

    def _fill(self, file: "Dict[str, Any]", descriptor: int) -> "Steps":
        sources = [raw(place + file["digest"]) for place in self._places]
        sources += [raw(file["source"])] if file["source"] else []
        for source in sources:
            if (yield from self._copied(source, file, descriptor)):
                return
        there = min(os.fstat(descriptor).st_size, file["size"]) // PIECE * PIECE
        for start in (there, 0) if there else (0,):
            if (yield from self._fetched(file, descriptor, start)):
                return
        os.ftruncate(descriptor, 0)
        raise LaunchError(f"input file {file['target']!r}: it came with another content than it had")

    def _copied(self, source: bytes, file: "Dict[str, Any]", descriptor: int) -> "Generator[bool, None, bool]":
        """Copy a file if it has the content that is wanted, and tell whether it had."""
        try:
            found = os.open(source, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            status = os.fstat(found)
            if not stat.S_ISREG(status.st_mode) or status.st_size != file["size"]:
                return False
            os.ftruncate(descriptor, 0)
            digest, offset = hashlib.sha256(), 0
            while offset < file["size"]:
                try:
                    data = os.pread(found, BLOCK, offset)
                except OSError:
                    break
                if not data:
                    break
                digest.update(data)
                offset = self._write(descriptor, data, offset)
                yield not WAITING
            if digest.hexdigest() == file["digest"]:
                return True
            os.ftruncate(descriptor, 0)  # nothing to go on with
            return False
        finally:
            os.close(found)

    def _write(self, descriptor: int, data: bytes, offset: int) -> int:
        """Write a block, and return the offset after it."""
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(descriptor, left, offset)
                offset += written
                left = left[written:]
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._share.path) from error
        return offset

    def _fetched(self, file: "Dict[str, Any]", descriptor: int, start: int) -> "Generator[bool, None, bool]":
        """Fetch what comes after ``start``, and tell whether the whole is what is wanted."""
        digest, offset = hashlib.sha256(), 0
        while offset < start:
            data = os.pread(descriptor, min(BLOCK, start - offset), offset)
            digest.update(data)
            offset += len(data)
            yield not WAITING
        self._wanted, self._got, self._heard = file, offset, clock()
        self._asked = offset
        if not self._watched:
            self._watch()
        while offset < file["size"]:
            while not self._pieces:
                yield WAITING
            data = self._pieces.popleft()
            if not data:
                raise LaunchError(f"input file {file['target']!r}: {self._refusal}")
            digest.update(data)
            offset = self._write(descriptor, data, offset)
            yield not WAITING
        self._wanted = None
        return bool(digest.hexdigest() == file["digest"])

    def _put(self, file: "Dict[str, Any]", path: str) -> "Steps":
        """Give the task a content: as a link, or as a copy in a directory elsewhere, unless it is there already."""
        there = os.path.join(self._directory, file["target"])
        with contextlib.suppress(OSError):
            status = os.lstat(raw(there))
            if stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime) == (file["size"], file["modified"]):
                self._identities[file["target"]] = file_identity(status)
                return
        with placed(self._directory, file["target"]) as (directory, name):
            try:
                os.link(path, name, dst_dir_fd=directory)
            except OSError as error:
                if error.errno not in UNLINKABLE:
                    raise
                yield from self._copy_to(directory, name, path, file)
        self._identities[file["target"]] = file_identity(os.lstat(raw(there)))

    @staticmethod
    def _copy_to(directory: int, name: str, path: str, file: "Dict[str, Any]") -> "Steps":
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(path, "rb") as found, os.fdopen(os.open(name, flags, 0o600, dir_fd=directory), "wb") as copy:
            data = found.read(BLOCK)
            while data:
                copy.write(data)
                copy.flush()
                yield not WAITING
                data = found.read(BLOCK)
            os.fchmod(copy.fileno(), 0o400 | file["mode"] & 0o100)
            os.utime(copy.fileno(), (file["modified"], file["modified"]))
