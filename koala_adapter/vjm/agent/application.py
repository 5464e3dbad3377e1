# SPDX-License-Identifier: Apache-2.0
"""The Unix socket between the process of a task and koala: whole frames are passed on, both ways.

A frame is a size in eight digits, a line feed, and so many bytes. The agent does not read its contents.
"""

import collections
import contextlib
import os
import re
import selectors
import socket
import struct

from koala_adapter.vjm.agent.node import Timers, clock, raw, say
from koala_adapter.vjm.agent.sockets import Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Deque, Optional, Set

LARGEST = 65536  # bytes of what a frame holds
HEADER = 9
SAID = 256 * 1024  # bytes of frames that may wait for the control center, beyond which the process is not read
UNREAD = 1024 * 1024  # bytes that may wait for the process, beyond which it is cut off
SPELL, MOST = 10.0, 5000  # so many frames in so many seconds are a flood
PARTING = 1.0  # seconds for the last word to somebody who is cut off
BACKLOG = 8  # connections that may wait to be taken
NAME = "application"


AWAY = b"away"  # the note by which a process learns that koala is out of contact


class ApplicationSocket:
    """Unix socket for the process of one task; the first peer that connects is served until it leaves."""

    def __init__(self, selector: selectors.BaseSelector, timers: Timers, directory: str) -> None:
        """``directory`` is private, and exists."""
        self.path = os.path.join(directory, NAME)
        self._selector = selector
        self._timers = timers
        self._said: "Deque[bytes]" = collections.deque()
        self._size = 0
        self._peer: "Optional[Peer]" = None
        self._turned_away: "Set[Peer]" = set()  # those that still read why
        self._hears_away = False  # its library knows what AWAY means
        place = os.open(raw(directory), os.O_RDONLY | os.O_DIRECTORY)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.setblocking(False)  # noqa: FBT003 - the library's own way
        mask = os.umask(0o177)
        try:
            self._listening.bind(f"/proc/self/fd/{place}/{NAME}")  # however long the directory's own name is
            self._listening.listen(BACKLOG)
        except OSError:
            self._listening.close()
            raise
        finally:
            os.umask(mask)
            os.close(place)
        selector.register(self._listening, selectors.EVENT_READ, self._accept)

    @property
    def said(self) -> bool:
        """Whether frames wait for the control center."""
        return bool(self._said)

    def next(self) -> bytes:
        """Return and remove the next frame for the control center."""
        frame = self._said.popleft()
        self._size -= len(frame)
        if self._peer is not None and self._size < SAID:
            self._peer.listen()
        return frame

    def tell(self, frame: bytes) -> None:
        """Send a frame to the process, if it is connected."""
        if self._peer is not None:
            self._peer.send(frame)

    def out_of_contact(self) -> None:
        """Tell the process that koala is out of reach, so that it does not wait for a change."""
        if self._hears_away:
            self.tell(b"%08d\n" % len(AWAY) + AWAY)

    def finish(self) -> None:
        """Read what the process had sent before it ended."""
        for _ in range(BACKLOG + 1):
            if self._peer is not None:
                self._peer.finish()
            self._accept(0)
            if self._peer is None:
                return

    def close(self) -> None:
        """Close the socket; the process is gone."""
        if self._listening.fileno() >= 0:
            self._selector.unregister(self._listening)
            self._listening.close()
        if self._peer is not None:
            self._peer.close()
        for peer in list(self._turned_away):
            peer.close()

    def take(self, frame: bytes) -> bool:
        """Queue a frame for the control center; return False when reading must pause."""
        if frame[HEADER:].startswith(b"hello "):
            self._hears_away = b" away=1" in frame
        self._said.append(frame)
        self._size += len(frame)
        return self._size < SAID

    def gone(self, peer: "Peer") -> None:
        """Accept another connection after this one."""
        self._turned_away.discard(peer)
        if self._peer is peer:
            self._peer = None

    def _accept(self, _mask: int) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError:
            return
        connection.setblocking(False)  # noqa: FBT003 - the library's own way
        size = struct.calcsize("3i")
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        if user != os.geteuid():
            say("another user's process was turned away from a task's socket")
            connection.close()
            return
        peer = Peer(self._selector, self._timers, connection, self)
        if self._peer is not None:
            self._turned_away.add(peer)
            peer.cut_off("another process of this task speaks with koala already")
        else:
            self._peer = peer
            peer.listen()


class Peer:
    """One connection of a process."""

    def __init__(
        self, selector: selectors.BaseSelector, timers: Timers, connection: socket.socket, owner: ApplicationSocket
    ) -> None:
        self._timers = timers
        self._connection = connection
        self._watched = Watched(selector, connection, self._ready)
        self._owner = owner
        self._in = bytearray()
        self._out = bytearray()
        self._reading = False
        self._parting = False
        self._spell = clock()
        self._frames = 0

    def listen(self) -> None:
        """Start reading from the process."""
        self._reading = not self._parting
        self._cut()

    def send(self, frame: bytes) -> None:
        """Queue a frame for the process."""
        if len(self._out) + len(frame) > UNREAD:
            say("a process that does not read what koala says was cut off")
            self.close()
            return
        self._out += frame
        self._write()

    def cut_off(self, text: str) -> None:
        """Send the reason and close the connection."""
        self._parting = True
        self._reading = False
        quoted = "".join(one if one.isalnum() else f"%{ord(one):02X}" for one in text)
        note = b"fail text=" + quoted.encode()
        self.send(b"%08d\n" % len(note) + note)
        self._timers.after(PARTING, self.close)

    def finish(self) -> None:
        """Read what the process had sent before it ended, and close the connection."""
        with contextlib.suppress(OSError):
            while not self._parting and len(self._in) < UNREAD:
                data = self._connection.recv(65536)
                if not data:
                    break
                self._in += data
        before = -1
        while not self._parting and len(self._in) != before:
            before = len(self._in)
            self._reading = True  # beyond what may wait, too: there is no process left that could
            self._cut()
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._watched.watch(0)
        self._reading = False
        self._connection.close()
        self._owner.gone(self)

    def _listen_on(self) -> None:
        if self._connection.fileno() >= 0:
            self._watched.watch(selectors.EVENT_READ * self._reading | selectors.EVENT_WRITE * bool(self._out))

    def _ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._write()
        if mask & selectors.EVENT_READ and self._reading:
            self._read()

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: self._connection.send(bytes(self._out[:65536]))]
        except BlockingIOError:
            pass
        except OSError:
            if self._parting:
                self.close()
            else:
                self.finish()
            return
        if self._parting and not self._out:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
        self._listen_on()

    def _read(self) -> None:
        try:
            data = self._connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._in += data
        self._cut()

    def _cut(self) -> None:
        """Pass on complete frames while there is room."""
        while self._reading:
            if not re.match(rb"[0-9]{0,8}\Z|[0-9]{8}\n", self._in[:HEADER]):
                self.cut_off("a frame begins with its size in eight digits and a line feed")
                return
            size = int(self._in[:8]) if len(self._in) >= HEADER else 1
            if not 1 <= size <= LARGEST:
                self.cut_off(f"a frame holds 1 to {LARGEST} bytes, not {size}")
                return
            if len(self._in) < HEADER + size:
                break
            if self._floods():
                self.cut_off(f"more than {MOST} frames in {SPELL:g} s")
                return
            frame = bytes(self._in[: HEADER + size])
            del self._in[: HEADER + size]
            self._reading = self._owner.take(frame)
        self._listen_on()

    def _floods(self) -> bool:
        if clock() - self._spell > SPELL:
            self._spell, self._frames = clock(), 0
        self._frames += 1
        return self._frames > MOST
