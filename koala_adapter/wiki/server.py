# SPDX-License-Identifier: Apache-2.0
"""A WIKI server: listens for schedulers, sends events, and settles what an earlier process left.

First the listener, which reads one request from each connection and sends one reply, then the server.
"""

from __future__ import annotations

import ipaddress
import os
from collections import OrderedDict
from contextlib import suppress
from pwd import getpwuid
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio import to_thread
from anyio.abc import SocketAttribute

from koala_adapter.errors import ConfigurationError, LrmError, ServiceRunningError, WikiError
from koala_adapter.host.accepting import serve_streams
from koala_adapter.host.containment import report_refused
from koala_adapter.host.sockets import is_loopback, local_tcp_user
from koala_adapter.lrm.rate import Priority, RequestWindow
from koala_adapter.wiki.codec.frames import FrameReader
from koala_adapter.wiki.codec.words import Dialect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyio.abc import SocketStream, TaskStatus

    from koala_adapter.wiki.resource import WikiResource

    Network = ipaddress.IPv4Network | ipaddress.IPv6Network
    Address = ipaddress.IPv4Address | ipaddress.IPv6Address


# -- Listener ------------------------------------------------------------------------------------------------
# There are bounds on everything a peer can do, and no peer waits for another: one that is slow or silent costs a
# descriptor for a few seconds. When there are too many of them, the one that has been silent longest goes.

CHUNK = 65_536
WRITE_WITHIN = 30.0
"""Seconds in which a peer must have taken its reply."""
MOST_PEERS = 1000
"""Peers whose number of requests is counted; of networks, so many addresses may ask at once."""

log = structlog.get_logger()


def networks(peers: Iterable[str]) -> tuple[Network, ...]:
    """Parse a list of peers into addresses and networks. Raises ConfigurationError."""
    found = []
    for peer in peers:
        try:
            found.append(ipaddress.ip_network(peer, strict=False))
        except ValueError as error:
            message = f"{peer!r} is no address or network of peers: {error}"
            raise ConfigurationError(
                message, hint="such as 127.0.0.1 or 10.1.0.0/16; names are not looked up"
            ) from None
    return tuple(found)


class Listener:
    """Accepts connections, reads one request from each and sends the reply.

    Requests that are signed with the key have a bound for each address, and the others one bound together, so that
    strangers take nothing from a scheduler on the same machine.
    """

    def __init__(self, resource: WikiResource) -> None:
        """``resource`` makes the replies. Raises ConfigurationError."""
        self._options = resource.options
        self._resource = resource
        self._peers = networks(self._options.peers)
        self._users = {0, os.geteuid(), *self._options.users}
        self._windows: OrderedDict[str, RequestWindow] = OrderedDict()
        self._refusals = RequestWindow(self._options.refusals_per_minute)
        self._silent: OrderedDict[int, anyio.CancelScope] = OrderedDict()
        """Connections whose request is not complete, the oldest first."""
        self._number = 0

    async def serve(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; report the port once it is open. Raises ServiceRunningError when it is taken."""
        options = self._options
        try:
            listeners = await anyio.create_tcp_listener(
                local_host=options.listen, local_port=options.port, reuse_port=False, backlog=1024
            )
        except OSError as error:
            message = f"cannot listen on {options.listen} port {options.port}: {error.strerror or error}"
            raise ServiceRunningError(message, hint="is another server there? give another --port") from error
        async with listeners:
            task_status.started(listeners.extra(SocketAttribute.local_port))
            await serve_streams(listeners, self._handle)

    async def _handle(self, stream: SocketStream) -> None:
        async with stream:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._exchange(stream)

    async def _exchange(self, stream: SocketStream) -> None:
        peer = str(stream.extra(SocketAttribute.remote_address)[0])
        if not self._may_connect(peer):
            report_refused("a connection from an address that is not allowed", kind=peer, peer=peer)
            return
        payload = await self._receive(stream, peer)
        if payload is None:
            return
        reply = await self._reply(stream, payload, peer)
        if reply is not None:
            with anyio.move_on_after(WRITE_WITHIN):
                await stream.send(reply)

    async def _reply(self, stream: SocketStream, payload: bytes, peer: str) -> bytes | None:
        """Return the reply to a request; None when the peer exceeds its rate and the connection is to be closed."""
        if not self._resource.is_signed(payload):
            answer = await self._resource.answer(payload, peer)
            return answer if _counted(self._refusals) else None
        user = await to_thread.run_sync(_user, stream)
        if user not in self._users and (user is not None or self._is_here(stream)):
            report_refused(
                "a request of a user who may not ask; --peer-user allows it", kind=user, peer=peer, user=_name(user)
            )
            return self._resource.refuse_user() if _counted(self._refusals) else None
        window = self._windows.setdefault(peer, RequestWindow(self._options.requests_per_minute))
        self._windows.move_to_end(peer)
        while len(self._windows) > MOST_PEERS:
            self._windows.popitem(last=False)
        if not _counted(window):
            report_refused("too many requests in a minute", kind=peer, peer=peer, bound=window.per_minute)
            return None
        return await self._resource.answer(payload, peer)

    def _may_connect(self, peer: str) -> bool:
        address = _plain(peer)
        return address is not None and any(address in network for network in self._peers)

    def _is_here(self, stream: SocketStream) -> bool:
        """Return whether the peer is on this machine, so that the kernel can tell its user."""
        client, server = (_plain(str(end[0])) for end in _ends(stream))
        return client is not None and (client.is_loopback or client == server)

    async def _receive(self, stream: SocketStream, peer: str) -> bytes | None:
        """Return the request's payload, or None if the peer sent nothing or an invalid frame."""
        reader = FrameReader(limit=self._options.largest_request)
        self._number += 1
        number = self._number
        with anyio.move_on_after(self._options.read_within) as scope:
            self._silent[number] = scope
            if len(self._silent) > self._options.connections:
                self._silent.popitem(last=False)[1].cancel()
            try:
                while True:
                    payload = reader.feed(await stream.receive(CHUNK))
                    if payload is not None:
                        return payload
            except anyio.EndOfStream:
                return None
            except WikiError as error:
                report_refused("what came in is no request", kind=peer, peer=peer, reason=error.message)
                return None
            finally:
                self._silent.pop(number, None)
        report_refused("a request did not come in time", kind=peer, peer=peer)
        return None


def _plain(peer: str) -> Address | None:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _counted(window: RequestWindow) -> bool:
    """Count a request of a peer; return False when it exceeds the rate."""
    now = anyio.current_time()
    if window.wait(now, Priority.URGENT) > 0:
        return False
    window.record(now)
    return True


def _ends(stream: SocketStream) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the peer's and the local (address, port)."""
    client, server = (
        stream.extra(SocketAttribute.remote_address),
        stream.extra(SocketAttribute.local_address),
    )
    return (str(client[0]), int(client[1])), (str(server[0]), int(server[1]))


def _user(stream: SocketStream) -> int | None:
    return local_tcp_user(*_ends(stream))


def _name(user: int | None) -> str:
    if user is None:
        return "not known: it closed the connection, or /proc/net/tcp cannot be read"
    try:
        return getpwuid(user).pw_name
    except KeyError:
        return str(user)


# -- Server --------------------------------------------------------------------------------------------------

LONGEST_PAUSE = 60.0


async def serve(resource: WikiResource, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve until cancelled; report the port once requests are accepted.

    Before that, starts that were interrupted are set right, if the LRM answers; else as soon as it does.
    """
    listener = Listener(resource)
    async with anyio.create_task_group() as tasks:
        await tasks.start(resource.readings.run)
        tried = anyio.Event()
        tasks.start_soon(_reconcile, resource, tried)
        with anyio.move_on_after(resource.options.reply_within):
            await tried.wait()
        await tasks.start(resource.starts.run)
        port: int = await tasks.start(listener.serve)
        if not is_loopback(resource.options.listen):
            log.warning(
                "listening beyond this machine: the checksum of WIKI is no protection, its key can be computed from "
                "one message; keep the port behind a firewall",
                listen=resource.options.listen,
                peers=list(resource.options.peers),
            )
        if resource.options.dialect is Dialect.WIKI2:
            tasks.start_soon(resource.notifier.run)
            tasks.start_soon(_watch, resource)
        task_status.started(port)


async def _reconcile(resource: WikiResource, tried: anyio.Event) -> None:
    """Complete interrupted starts, retrying until it succeeds; ``tried`` is set after the first attempt."""
    pause = 1.0
    while True:
        try:
            await resource.starts.reconcile()
        except LrmError as error:
            log.warning("interrupted starts cannot be looked at yet", error=str(error))
        else:
            return
        finally:
            tried.set()
        await anyio.sleep(pause)
        pause = min(LONGEST_PAUSE, 2 * pause)


async def _watch(resource: WikiResource) -> None:
    """Read the batch system regularly while a scheduler wants events, so that changes are noticed."""
    while True:
        await anyio.sleep(max(1.0, resource.options.cache))
        if resource.notifier.port:
            with suppress(LrmError):
                await resource.readings.fresh()
