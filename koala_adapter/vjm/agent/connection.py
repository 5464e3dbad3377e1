# SPDX-License-Identifier: Apache-2.0
"""The TLS connection of an agent to the control center: one at a time, lines in and lines out."""

import errno
import hashlib
import json
import os
import selectors
import socket
import ssl

from koala_adapter.vjm.agent.node import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Protocol, Tuple, Union

    class ChannelOwner(Protocol):
        """Hears of a channel (protocol)."""

        def opened(self) -> None:
            """Called when the control center has proved itself."""

        def in_contact(self) -> None:
            """Called when bytes have arrived."""

        def received(self, line: bytes) -> None:
            """Called with each line. Raises OSError to end the connection."""

        def closed(self, reason: str) -> None:
            """Called when the connection has ended, or could not be made."""


LINE = 32 * 1024 * 1024  # longest line accepted from the control center
STALE = 8  # failures to connect after which the address of the control center is looked up again
PIECES = 64  # TLS records that are read at once; other things are looked after in between


def require_certificate(connection: ssl.SSLSocket, fingerprint: str) -> None:
    """Raise OSError unless the server has the certificate of our control center."""
    shown = connection.getpeercert(binary_form=True)
    if not shown or hashlib.sha256(shown).hexdigest() != fingerprint:
        raise OSError(errno.EPERM, "the server there shows another certificate than our control center's")


class Channel:
    """TLS connection of the agent to the control center, with queued lines; one at a time."""

    def __init__(self, settings: Settings, selector: selectors.BaseSelector, owner: "ChannelOwner") -> None:
        self._settings = settings
        self._selector = selector
        self._owner = owner
        self._socket: "Optional[socket.socket]" = None
        self._tls: "Optional[ssl.SSLSocket]" = None
        self._step: "Callable[[socket.socket], None]" = self._connect
        self._interest = 0
        self._in = bytearray()
        self._out = bytearray()
        self._tries = 0
        self._found: "List[Any]" = []
        self._good: "List[Any]" = []
        self._failures = 0
        self.open = False
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.context.check_hostname = False
        # Not left unchecked: the pin below is stricter than a chain, and does not depend on the clock of the node.
        self.context.verify_mode = ssl.CERT_NONE
        if hasattr(self.context, "minimum_version"):
            self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        else:
            self.context.options |= ssl.OP_NO_SSLv2 | ssl.OP_NO_SSLv3 | ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1

    @property
    def queued(self) -> int:
        """Number of bytes that wait for the socket."""
        return len(self._out)

    @property
    def closed(self) -> bool:
        """Whether there is no connection and none is being made."""
        return self._socket is None

    @property
    def peer(self) -> "Optional[Tuple[int, Any]]":
        """Family and address of the control center, as it is connected now; None: it is not."""
        return (self._socket.family, self._socket.getpeername()) if self.open and self._socket else None

    def own_address(self) -> str:
        """Address of this node on its way to the control center."""
        return str(self._socket.getsockname()[0]) if self._socket else ""

    def dial(self) -> None:
        """Start connecting; the owner is told later that it is open or closed."""
        try:
            found = self._addresses()
            family, kind, protocol, _, address = found[self._tries % len(found)]
            self._tries += 1
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setblocking(False)  # noqa: FBT003 - the library's own way
            self._step = self._connect
            try:
                self._socket.connect(address)
            except BlockingIOError:
                pass
            self._watch(selectors.EVENT_WRITE)
        except OSError as error:
            self.close(error.strerror or str(error))

    def _addresses(self) -> "List[Any]":
        """Return the addresses of the control center, cached after a success.

        A resolver that does not answer would stop everything else here for as long as it takes.
        """
        if not self._good or self._failures >= STALE:
            self._failures = 0
            host = self._settings.host
            # Given a text, Python imports all that it knows of names in other alphabets.
            name: "Union[str, bytes]" = host.encode() if max(host) < "\x80" else host
            try:
                self._found = socket.getaddrinfo(name, self._settings.port, 0, socket.SOCK_STREAM)
            except OSError:
                if not self._good:
                    raise
                self._found = self._good
        return self._found

    def send(self, message: "Dict[str, Any]", data: bytes = b"") -> None:
        """Queue a message, and the bytes that follow it."""
        self._out += json.dumps(message).encode() + b"\n"
        self._out += data

    def flush(self) -> None:
        """Write as much as the socket takes."""
        if self._socket is None or not self.open:
            return
        try:
            while self._out:
                # A view that the traceback of an error still has would keep close() from emptying what is viewed.
                with memoryview(self._out) as whole, whole[:65536] as piece:
                    sent = self._socket.send(piece)
                del self._out[:sent]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError as error:
            self.close(error.strerror or str(error))

    def finish(self) -> None:
        """Close for writing; ``closed`` is called when the control center has seen it."""
        if self._socket:
            self.open = False
            self._step = self._discard
            try:
                self._socket.shutdown(socket.SHUT_WR)
                self._watch(selectors.EVENT_READ)
            except OSError as error:
                self.close(str(error))

    def close(self, reason: str) -> None:
        """Close the connection and call ``closed``."""
        self._watch(0)
        self._failures += not self.open
        if self._socket:
            self._socket.close()
            self._socket = self._tls = None
        self.open = False
        self._in.clear()
        self._out.clear()
        self._owner.closed(reason)

    def _watch(self, interest: int) -> None:
        if self._socket is None or interest == self._interest:
            return
        if self._interest:
            self._selector.unregister(self._socket)
        if interest:
            self._selector.register(self._socket, interest, self._ready)
        self._interest = interest

    def _ready(self, _mask: int) -> None:
        if self._socket is None:
            return
        try:
            self._step(self._socket)
        except ssl.SSLWantReadError:
            self._watch(selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._watch(selectors.EVENT_READ | selectors.EVENT_WRITE)
        except OSError as error:
            self.close(error.strerror or str(error))

    def _connect(self, connection: socket.socket) -> None:
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        self._watch(0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = self._tls = self.context.wrap_socket(connection, do_handshake_on_connect=False)
        self._step = self._shake_hands
        self._step(self._socket)

    def _shake_hands(self, connection: socket.socket) -> None:
        if self._tls is None:
            return
        self._tls.do_handshake()
        require_certificate(self._tls, self._settings.fingerprint)
        self.open = True
        self._good, self._failures = self._found, 0
        self._step = self._transfer
        self._owner.opened()
        self._step(connection)

    def _transfer(self, connection: socket.socket) -> None:
        # Not all that there is: while a long order comes in fast, heartbeats are due, too. What TLS has taken from the
        # socket already would not be told of by the selector.
        pieces = 0
        while self._socket is connection and self.open and (pieces < PIECES or (self._tls and self._tls.pending())):
            pieces += 1
            data = connection.recv(65536)
            if not data:
                raise OSError(errno.ECONNRESET, "the control center closed the connection")
            self._owner.in_contact()
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        searched = len(self._in)
        self._in += data
        while True:
            end = self._in.find(b"\n", searched)
            if end < 0:
                break
            line = bytes(self._in[:end])
            del self._in[: end + 1]
            searched = 0
            self._owner.received(line)
        if len(self._in) > LINE:
            raise OSError(errno.EMSGSIZE, "the control center sent a line beyond all measure")

    def _discard(self, connection: socket.socket) -> None:
        if not connection.recv(65536):
            self.close("finished")
