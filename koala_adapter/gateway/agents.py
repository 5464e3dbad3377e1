# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors, and the port to which agents connect, with their connections until each has a stream.

Python 3.6 or newer.
"""

import errno
import resource
import selectors
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional, Tuple, Union

    Source = Union[int, socket.socket]

MOST_AGENTS = 4096
"""Connections of agents at once, or half of the descriptors where those are fewer: commands need some, too."""
MOST_SILENT = 1000
"""Connections of agents that have said nothing yet, or a quarter of all where those are fewer: with one more, the
oldest of them has to go. The agents of a large job may all connect at the same moment."""
EARLY = 4096
"""Bytes that are read of an agent before there is a stream for it: more than an agent says unasked."""
FULL_PAUSE = 0.1
"""Seconds without accepting when there are no more descriptors."""


# -- Descriptors that are waited for ------------------------------------------------------------------------------


class Watch:
    """Sources and what is done when they are ready."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._interest: "Dict[int, Tuple[Source, int]]" = {}

    def set(self, source: "Source", interest: int, act: "Callable[[int], None]") -> None:
        """Have ``act`` called when a source is ready for what is of interest; 0: for nothing."""
        number = source if isinstance(source, int) else source.fileno()
        known = self._interest.pop(number, None)
        if interest:
            self._interest[number] = (source, interest)
            if known is None:
                self._selector.register(source, interest, act)
            else:
                self._selector.modify(source, interest, act)
        elif known is not None:
            self._selector.unregister(source)

    def stop(self, source: "Source") -> None:
        """Do nothing more for a source."""
        self.set(source, 0, lambda _mask: None)

    def wait(self, seconds: float) -> None:
        """Wait until sources are ready, for ``seconds`` at most, and call what was set for each."""
        for key, mask in self._selector.select(seconds):
            # What an earlier one of these has closed may be another descriptor of the same number by now.
            now = self._selector.get_map().get(key.fd)
            if now is not None and now.data is key.data:
                key.data(mask)


# -- Connections of agents -----------------------------------------------------------------------------------------


class Agent:
    """The connection of an agent, whose bytes are relayed as they are."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.connection = connection
        self.peer = peer
        self.said = bytearray()  # before there was a stream for it
        self.served = False
        self.waiting = bytearray()  # for the agent
        self.ended = False  # nothing more comes for the agent
        self.finished = False  # nothing more comes from the agent


def bind_within(listener: socket.socket, place: "Tuple[Any, ...]", ports: "Tuple[int, int]") -> None:
    """Bind a socket to an address and the first free port of a range; 0 and 0: any free one. Raises OSError."""
    first, last = ports
    for port in range(first, last + 1):
        try:
            listener.bind((place[0], port, *place[2:]))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == last:
                raise
        else:
            break


class Agents:
    """The port for agents, and their connections until each has a stream.

    One that has said nothing gets none, and the oldest of too many of these has to go: any user who reaches the port
    can connect. What has said something is kept while koala is away, which ends it if it gives up before.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._listener: "Optional[socket.socket]" = None
        self._address = ""
        self._silent: "Dict[int, Agent]" = {}
        self._held: "Dict[int, Agent]" = {}
        self._served = 0
        self._serve: "Optional[Callable[[Agent], None]]" = None
        self._most = min(MOST_AGENTS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    @property
    def waiting(self) -> int:
        """How many have said something and have no stream."""
        return len(self._held)

    def listen(self, address: str, ports: "Tuple[int, int]") -> int:
        """Listen at a port from the first to the last of ``ports``, and return at which.

        Where it listens at that address already, that port stays.
        """
        if self._listener is None or address != self._address:
            self.close_port()
            found = socket.getaddrinfo(address or None, 0, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)[0]
            listener = socket.socket(found[0], found[1], found[2])
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bind_within(listener, found[4], ports)
                listener.listen(1024)
            except OSError:
                listener.close()
                raise
            listener.setblocking(False)  # noqa: FBT003 - the library's own way
            self._listener, self._address = listener, address
            self._watch.set(listener, selectors.EVENT_READ, self._accept)
        return int(self._listener.getsockname()[1])

    def close_port(self) -> None:
        """Listen no more."""
        if self._listener is not None:
            self._watch.stop(self._listener)
            self._listener.close()
            self._listener = None

    def serve(self, begin: "Optional[Callable[[Agent], None]]") -> None:
        """Have ``begin`` called with each that has said something; None: keep them until there is a connection."""
        self._serve = begin
        if begin is not None:
            for agent in list(self._held.values()):
                self._hand_on(agent, begin)

    def drop(self, agent: Agent) -> None:
        """End the connection of an agent."""
        number = agent.connection.fileno()
        if number < 0:
            return
        self._watch.stop(agent.connection)
        self._silent.pop(number, None)
        self._held.pop(number, None)
        self._served -= agent.served
        agent.connection.close()

    def _accept(self, _mask: int) -> None:
        if self._listener is None:
            return
        try:
            connection, peer = self._listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE}:
                time.sleep(FULL_PAUSE)  # else it would be told of at once again
            return
        for surplus, kind in (
            (len(self._silent) >= min(MOST_SILENT, self._most // 4), self._silent),
            (len(self._silent) + len(self._held) + self._served >= self._most, self._held),
        ):
            if surplus and kind:
                self.drop(next(iter(kind.values())))
            elif surplus:
                connection.close()
                return
        connection.setblocking(False)  # noqa: FBT003 - the library's own way
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        agent = Agent(connection, str(peer[0]))
        self._silent[connection.fileno()] = agent
        self._watch.set(connection, selectors.EVENT_READ, lambda _mask: self._hear(agent))

    def _hear(self, agent: Agent) -> None:
        try:
            data = agent.connection.recv(EARLY - len(agent.said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.drop(agent)
            return
        agent.said += data
        number = agent.connection.fileno()
        self._silent.pop(number, None)
        self._held[number] = agent
        if self._serve is not None:
            self._hand_on(agent, self._serve)
        elif len(agent.said) >= EARLY:
            self._watch.stop(agent.connection)

    def _hand_on(self, agent: Agent, begin: "Callable[[Agent], None]") -> None:
        self._watch.stop(agent.connection)
        del self._held[agent.connection.fileno()]
        agent.served = True
        self._served += 1
        begin(agent)
