# SPDX-License-Identifier: Apache-2.0
"""Negotiations with one peer over a blocking socket, TCP or Unix: for programs."""

import socket
import time
from typing import List, Optional

from koala_adapter.negotiation.document import FrameBuffer, build, frame, parse
from koala_adapter.negotiation.endpoint import Endpoint, Event
from koala_adapter.negotiation.templates import NegotiationError, NegotiationKey, Template, sayable

GREETING = b"KOALA-NT 1 "
"""Begins the first frame of a connection by TCP; the one-time token follows."""


class Connection:
    """Negotiations with one peer over a socket, which blocks. Not to be used by two threads at once."""

    def __init__(self, stream: socket.socket, endpoint: Optional[Endpoint] = None) -> None:
        """``endpoint`` is that of an earlier connection with the same peer, to go on where that ended."""
        self.endpoint = endpoint or Endpoint()
        self._stream = stream
        self._frames = FrameBuffer()
        if stream.family in (socket.AF_INET, socket.AF_INET6):  # several small templates in a row must not wait
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._events: List[Event] = []
        if endpoint is not None:
            endpoint.resumed()
            self._flush()

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._stream.fileno()

    def send(self, value: Template) -> NegotiationKey:
        """Send a template; return the key of its negotiation. Raises NegotiationStepError, OSError."""
        key = self.endpoint.tell(value, time.monotonic())
        self._flush()
        return key

    def recv(self, timeout: Optional[float] = None) -> Optional[Event]:
        """Wait for the next event; None after ``timeout`` seconds without one. "closed" is the last event."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._events:
            now = time.monotonic()
            self._events += self.endpoint.time_passed(now)
            try:
                self._flush()
                if self._events or (until is not None and now >= until):
                    break
                alive = self._receive(now, until)
            except OSError:
                alive = False
            if not alive:
                self.close()
                self._events += [*self.endpoint.disconnected(time.monotonic()), Event("closed")]
        return self._events.pop(0) if self._events else None

    def _receive(self, now: float, until: Optional[float]) -> bool:
        """Receive until the next deadline at most; return False when the connection has ended."""
        ends = [moment for moment in (until, self.endpoint.next_deadline()) if moment is not None]
        self._stream.settimeout(max(0.001, min(ends) - now) if ends else None)
        try:
            data = self._stream.recv(65536)
        except socket.timeout:  # another class than TimeoutError before Python 3.10
            return True
        readable = self._hear(data)
        self._flush()
        return bool(data) and readable

    def _hear(self, data: bytes) -> bool:
        """Process received bytes; return False after an invalid template, which the peer is told of."""
        try:
            for payload in self._frames.feed(data):
                self._events += self.endpoint.hear(parse(payload), time.monotonic())
        except NegotiationError as error:
            self.endpoint.complain(str(error))
            self._events.append(Event("unreadable", reason=sayable(str(error))))
            return False
        return True

    def _flush(self) -> None:
        data = b"".join([frame(build(value)) for value in self.endpoint.take_outbox()])
        if data:
            self._stream.settimeout(30.0)
            self._stream.sendall(data)

    def close(self) -> None:
        """Close the connection. Agreements stay valid."""
        self._stream.close()


def connect(host: str, port: int, token: str = "", endpoint: Optional[Endpoint] = None) -> Connection:
    """Connect by TCP, and show the one-time token if there is one. Raises OSError."""
    stream = socket.create_connection((host, port), timeout=30.0)
    if token:
        stream.sendall(frame(GREETING + token.encode("ascii")))
    return Connection(stream, endpoint)


def connect_unix(path: str, endpoint: Optional[Endpoint] = None) -> Connection:
    """Connect to a Unix socket. Raises OSError."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(path)
    except OSError:
        stream.close()
        raise
    return Connection(stream, endpoint)


def accept(listening: socket.socket, endpoint: Optional[Endpoint] = None) -> Connection:
    """Wait for a peer on a listening socket that only it can reach. Raises OSError."""
    stream, _ = listening.accept()
    return Connection(stream, endpoint)
