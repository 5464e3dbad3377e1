# SPDX-License-Identifier: Apache-2.0
"""What a task writes: read, and kept until it is acknowledged."""

import binascii
import fcntl
import os
import selectors
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Tuple

KEPT = 1024 * 1024  # bytes of one output stream kept until acknowledged; beyond that its pipe is not read
CHUNK = 32 * 1024  # bytes of output in one message


def base64(data: bytes) -> str:
    """Return bytes as the channel has them."""
    return binascii.b2a_base64(data, newline=False).decode()


class Output:
    """One output stream of a task: what has been read and not yet been acknowledged."""

    def __init__(self) -> None:
        self._base = 0
        self._kept = bytearray()
        self._sent = 0

    @property
    def room(self) -> int:
        """Bytes that may be read before something must be acknowledged."""
        return max(0, KEPT - len(self._kept))

    @property
    def unsent(self) -> bool:
        """Whether something waits to be sent."""
        return self._sent < self._base + len(self._kept)

    @property
    def safe(self) -> bool:
        """Whether everything was acknowledged."""
        return not self._kept

    def add(self, data: bytes) -> None:
        """Take what a task wrote."""
        self._kept += data

    def next(self) -> "Tuple[int, bytes]":
        """Return offset and bytes of the next piece to send."""
        offset = self._sent
        data = bytes(self._kept[offset - self._base : offset - self._base + CHUNK])
        self._sent += len(data)
        return offset, data

    def acknowledge(self, offset: int) -> None:
        """Forget what came before ``offset``."""
        count = min(max(0, offset - self._base), len(self._kept))
        del self._kept[:count]
        self._base += count
        self._sent = max(self._sent, self._base)

    def rewind(self) -> None:
        """Send again what was not acknowledged: the connection is a new one."""
        self._sent = self._base


class Source:
    """A pipe or FIFO whose bytes go to an output stream, read only while that has room."""

    def __init__(self, selector: selectors.BaseSelector, descriptor: int, output: Output, *, fifo: bool) -> None:
        self._selector = selector
        self._descriptor = descriptor
        self._output = output
        self._watched = False
        self._left: "Optional[int]" = None
        self.fifo = fifo
        self.closed = False
        os.set_blocking(descriptor, False)

    def watch(self) -> None:
        """Listen to the descriptor as long as its bytes have a place."""
        wanted = not self.closed and self._output.room > 0
        if wanted and not self._watched:
            self._selector.register(self._descriptor, selectors.EVENT_READ, self._read)
        elif self._watched and not wanted:
            self._selector.unregister(self._descriptor)
        self._watched = wanted

    def finish(self) -> None:
        """The writers are dead: take what they left in the pipe, and no more, whoever may still write to it."""
        if self.closed:
            return
        import termios  # rarely loaded already, and not needed before

        self._left = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, b"\0\0\0\0"))[0]
        if not self._left:
            self.close()

    def close(self) -> None:
        """Stop listening and close the descriptor."""
        if not self.closed:
            self.closed = True
            self.watch()
            os.close(self._descriptor)

    def _read(self, _mask: int) -> None:
        size = min(65536, self._output.room if self._left is None else min(self._output.room, self._left))
        if self.closed or not size:
            return
        try:
            data = os.read(self._descriptor, size)
        except BlockingIOError:
            return
        self._output.add(data)
        if self._left is not None:
            self._left -= len(data)
        if not data or self._left == 0:
            self.close()
        else:
            self.watch()
