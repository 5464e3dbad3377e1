# SPDX-License-Identifier: Apache-2.0
"""The cache of input files at a site: whole contents by their SHA-256, and parts of those that are on their way.

A part grows in order, so its size says where to go on after a broken connection. It becomes a whole content when its
digest is right, and until then nothing finds it under that name. Python 3.6 or newer.
"""

import collections
import errno
import fcntl
import hashlib
import os

from koala_adapter.gateway.files import absolute, make_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, Iterator, List, Tuple

PART = ".part"
BLOCK = 1024 * 1024
"""Bytes that are read at once."""
MOST_TOLD = 5000
"""Contents in one answer that asks for all."""


def look_into_cache(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return the sizes of whole contents and of parts, of those asked for or else of the latest.

    Whole ones that are asked for count as used now. The directory is made if it is not there.
    """
    directory = make_directory(request)["path"]
    wanted = request["digests"]
    found: "Dict[str, Dict[str, int]]" = {"whole": {}, "parts": {}}
    for digest in newest(directory)[:MOST_TOLD] if wanted is None else wanted:
        path = os.path.join(directory, checked(digest))
        try:
            found["whole"][digest] = os.stat(path).st_size
            if wanted is not None:
                os.utime(path)
        except FileNotFoundError:
            try:
                found["parts"][digest] = os.stat(path + PART).st_size
            except FileNotFoundError:
                pass
    return dict(found)


def make_room_in_cache(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Remove what was used longest ago until ``need`` bytes fit beside the rest, but nothing of ``keep``.

    The result says what was removed, and how many bytes are lacking nevertheless.
    """
    directory, kept = absolute(request), set(request["keep"])
    sizes = {name: status.st_size for name, status in entries(directory)}
    over = sum(sizes.values()) + request["need"] - request["bound"]
    removed = []
    for digest in reversed(newest(directory)):
        if over <= 0:
            break
        if digest in kept:
            continue
        for name in (digest, digest + PART):
            if name in sizes:
                os.unlink(os.path.join(directory, name))
                over -= sizes[name]
        removed.append(digest)
    return {"removed": removed, "lacking": max(0, over)}


def newest(directory: str) -> "List[str]":
    """Return the digests of contents and parts in a directory, the latest ones first."""
    times = {name.replace(PART, ""): status.st_mtime for name, status in entries(directory)}
    return sorted(times, key=lambda digest: -times[digest])


def entries(directory: str) -> "Iterator[Tuple[str, os.stat_result]]":
    """Yield the names in a directory with what they stand for, except what is gone by then."""
    for name in os.listdir(directory):
        try:
            yield name, os.stat(os.path.join(directory, name))
        except FileNotFoundError:
            pass


def checked(digest: str) -> str:
    """Return the digest of a content. Raises ValueError for what is none, such as a path."""
    if len(digest) != hashlib.sha256().digest_size * 2 or set(digest) - set("0123456789abcdef"):
        raise ValueError("{!r} is no digest".format(digest))
    return digest


class Arrival:
    """A content on its way into the cache. What may wait for the file system runs in the thread for transfers."""

    def __init__(self, request: "Dict[str, Any]") -> None:
        self._request = request
        self._descriptor = -1
        self._size = 0
        self._digest = hashlib.sha256()
        self._pieces: "Deque[bytes]" = collections.deque()
        self.writing = False
        """Whether `write` is about to be called, or its result to be told."""

    def begin(self) -> "Dict[str, Any]":
        """Open the part and go on after its first ``offset`` bytes. Raises BlockingIOError while another does."""
        path = os.path.join(absolute(self._request), checked(self._request["digest"])) + PART
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            pass  # a file system without locks
        offset = self._request["offset"]
        if os.fstat(self._descriptor).st_size < offset:
            raise OSError(errno.ESTALE, "less of it is there than was said", path)
        os.ftruncate(self._descriptor, offset)
        while self._size < offset:
            data = os.pread(self._descriptor, min(BLOCK, offset - self._size), self._size)
            self._digest.update(data)
            self._size += len(data)
        return {}

    @property
    def waiting(self) -> bool:
        """Whether pieces have come that are not written yet."""
        return bool(self._pieces)

    def take(self, data: bytes) -> None:
        """Queue a received piece of the content."""
        self._pieces.append(data)

    def write(self) -> "Dict[str, Any]":
        """Write the bytes that have arrived, and return their number."""
        before = self._size
        while self._pieces:
            left = memoryview(self._pieces.popleft())
            self._digest.update(left)
            while left:
                written = os.pwrite(self._descriptor, left, self._size)
                self._size += written
                left = left[written:]
        return {"written": self._size - before}

    def end(self) -> "Dict[str, Any]":
        """Give the complete content its name. Raises OSError when its size or digest is not the announced one.

        It is not forced to disk: agents compare the digest of what they read.
        """
        self.write()
        directory, digest = absolute(self._request), self._request["digest"]
        path = os.path.join(directory, digest)
        if self._size != self._request["size"]:
            raise OSError(errno.ESTALE, "it has {} bytes".format(self._size), path)
        if self._digest.hexdigest() != digest:
            os.unlink(path + PART)
            raise OSError(errno.EBADMSG, "it has come with another content", path)
        os.fchmod(self._descriptor, 0o400)
        os.rename(path + PART, path)
        return {}

    def close(self) -> "Dict[str, Any]":
        """Let go of it: what has come of it stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        return {}


CACHE: "Dict[str, Callable[[Dict[str, Any]], Dict[str, Any]]]" = {
    "look_into_cache": look_into_cache,
    "make_room_in_cache": make_room_in_cache,
}
