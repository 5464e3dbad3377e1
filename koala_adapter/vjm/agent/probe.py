# SPDX-License-Identifier: Apache-2.0
"""Trying whether nodes of two clusters can connect: a port that listens for a moment, and a connection to one.

The one who connects says a name that the control center has made up, and hears another one that only the agent there
knows: so no other program is taken for it.
"""

import selectors
import socket

from koala_adapter.vjm.agent.connection import Channel
from koala_adapter.vjm.agent.node import AgentState
from koala_adapter.vjm.agent.sockets import connecting

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List

LISTENING = 20.0  # seconds for which a port listens
CONNECTING = 5.0  # seconds for a connection and its answer
LONGEST = 100  # bytes of a name, and a line feed
MOST = 8  # connections to one port, and probes at once: further ones are dropped


class Probes:
    """The probes of an agent that are under way."""

    def __init__(self, agent: AgentState, channel: Channel) -> None:
        self._selector = agent.selector
        self._timers = agent.timers
        self._channel = channel
        self._open = 0

    def listen(self, message: "Dict[str, Any]") -> None:
        """Listen at a free port for a moment, and tell which one it is."""
        if self._open >= MOST:
            return
        expected, answer = str(message["probe"]).encode(), str(message["answer"]).encode()
        family = socket.AF_INET6 if ":" in self._channel.own_address() else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.bind(("", 0))
            listener.listen(MOST)
        except OSError:
            listener.close()
            return
        listener.setblocking(False)  # noqa: FBT003 - the library's own way
        self._open += 1
        left = [MOST]

        def accept(_mask: int) -> None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            left[0] -= 1
            connection.setblocking(False)  # noqa: FBT003 - likewise
            if left[0] < 0:
                connection.close()
                return
            self._hear(connection, lambda said: tell(said, connection))

        def tell(said: bytes, connection: socket.socket) -> None:
            if said == expected:
                connection.send(answer + b"\n")
                close()

        def close() -> None:
            if listener.fileno() >= 0:
                self._open -= 1
                self._selector.unregister(listener)
                listener.close()

        self._selector.register(listener, selectors.EVENT_READ, accept)
        self._timers.after(LISTENING, close)
        self._channel.send({"kind": "probing", "probe": message["probe"], "port": listener.getsockname()[1]})

    def reach(self, message: "Dict[str, Any]") -> None:
        """Connect to such a port, and tell what was heard there; nothing: it cannot be reached."""
        if self._open >= MOST:
            return
        name = str(message["probe"])
        self._open += 1

        def tell(said: bytes) -> None:
            self._open -= 1
            self._channel.send({"kind": "probed", "probe": name, "answer": said.decode("ascii", "replace")[:LONGEST]})

        try:
            connection = connecting(message["address"], int(message["port"]))
        except OSError:
            tell(b"")
            return
        self._hear(connection, tell, str(message["says"]).encode() + b"\n")

    def _hear(self, connection: socket.socket, heard: "Callable[[bytes], Any]", first: bytes = b"") -> None:
        """Say something first, then hear one line within a time; the connection is closed after that."""
        said = bytearray()
        over: "List[bool]" = []

        def end() -> None:
            if not over:
                over.append(True)
                self._selector.unregister(connection)
                try:
                    heard(bytes(said[:-1]) if said.endswith(b"\n") else b"")
                except OSError:
                    pass
                connection.close()

        def ready(mask: int) -> None:
            try:
                if mask & selectors.EVENT_WRITE:
                    connection.send(first)
                    self._selector.modify(connection, selectors.EVENT_READ, ready)
                if mask & selectors.EVENT_READ:
                    data = connection.recv(LONGEST)
                    said.extend(data)
                    if not data or said.endswith(b"\n") or len(said) > LONGEST:
                        end()
            except BlockingIOError:
                return
            except OSError:
                end()

        self._selector.register(connection, selectors.EVENT_WRITE if first else selectors.EVENT_READ, ready)
        self._timers.after(CONNECTING, end)
