# SPDX-License-Identifier: Apache-2.0
"""Relayed connections at the control center: two connections of agents joined, or one joined with a port of this host.

Each relayed connection has TLS connections of its own, so that no heartbeat and no order waits behind its bytes. What
an agent sends on one is frames: four bytes with the length, and the bytes; an empty frame ends its direction. So the
end of one direction and a reset, which is an end without that frame, stay different.
"""

from __future__ import annotations

import secrets
import struct
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute

from koala_adapter.errors import ProtocolError
from koala_adapter.vjm import channel
from koala_adapter.vjm.agent import sockets
from koala_adapter.vjm.output import LOST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from anyio.abc import ByteStream, SocketStream

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.vjm.channel import CenterMessage
    from koala_adapter.vjm.listener import Route

MOST_OF_JOB = 512
"""Relayed connections of one job at once."""
MOST_TUNNELS = 1024
"""Of all jobs; each takes up to two descriptors here and, at a site, two of the connection to it."""
DIALLING = 30.0
"""Seconds for the other agent to dial."""
PASSING_ON = 30.0
"""Seconds after a job in which what its ranks have sent to programs of this host is still passed on."""
PIECE = 32 * 1024
LONGEST_FRAME = 64 * 1024
LENGTH = struct.Struct(">I")


@dataclass(slots=True, eq=False)
class _Awaited:
    """A tunnel for which an agent is told to dial."""

    placeholder: PlaceholderId
    order: channel.Tunnel
    stream: ByteStream | None = None
    dialled: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)


class Tunnels:
    """The relayed connections of a service."""

    def __init__(
        self,
        route: Callable[[PlaceholderId, channel.TunnelAsked], Awaitable[Route | None]],
        order: Callable[[PlaceholderId, CenterMessage], bool],
        host: str,
    ) -> None:
        """``route``: knows what may be reached. ``order``: sends to an agent in contact. ``host``: this host."""
        self._route = route
        self._order = order
        self._host = host
        self._awaited: dict[str, _Awaited] = {}
        self._scopes: dict[JobId, set[anyio.CancelScope]] = {}

    def end(self, job_id: JobId) -> None:
        """End all connections of a job, a while later: their last bytes may come after the ends of its ranks."""
        for scope in self._scopes.get(job_id, ()):
            scope.deadline = anyio.current_time() + PASSING_ON

    def registered(self, placeholder: PlaceholderId) -> None:
        """Tell an agent that has come into contact what it was not told, or may not have heard."""
        for awaited in self._awaited.values():
            if awaited.placeholder == placeholder and awaited.stream is None:
                self._order(placeholder, awaited.order)

    async def asked(self, stream: ByteStream, placeholder: PlaceholderId, asked: channel.TunnelAsked) -> None:
        """Serve a connection that an agent has asked for; one that is not allowed is ended."""
        route = await self._route(placeholder, asked)
        if route is None:
            return
        if route.placeholder is not None:
            await self._join(route, stream)
            return
        with self._counted(route.job_id), suppress_lost():
            async with await anyio.connect_tcp(self._host, route.port) as local:
                await stream.send(channel.encode(channel.Joined()))
                await carry(local, stream)

    async def taken(self, stream: ByteStream, placeholder: PlaceholderId, taken: channel.TunnelTaken) -> None:
        """Serve a connection for which an agent has dialled as it was told."""
        awaited = self._awaited.get(taken.tunnel)
        if awaited is None or awaited.placeholder != placeholder or awaited.stream is not None:
            return
        with suppress_lost():
            await stream.send(channel.encode(channel.Joined()))
            awaited.stream = stream
            awaited.dialled.set()
            await awaited.over.wait()

    async def reach(self, route: Route, local: SocketStream) -> None:
        """Carry a connection of a process of this host to a rank; it is reset when that cannot be."""
        if not await self._join(route, local):
            reset(local)

    async def _join(self, route: Route, stream: ByteStream | SocketStream) -> bool:
        """Have the agent of a route dial and join its connection with another one; tell whether it did."""
        if route.placeholder is None:
            return False
        name = secrets.token_hex(16)
        order = channel.Tunnel(task=route.task, tunnel=name, port=route.port)
        awaited = self._awaited[name] = _Awaited(route.placeholder, order)
        try:
            with self._counted(route.job_id), suppress_lost():
                self._order(route.placeholder, order)
                with anyio.move_on_after(DIALLING):
                    await awaited.dialled.wait()
                if awaited.stream is None:
                    return False
                if isinstance(stream, anyio.abc.SocketStream):
                    await carry(stream, awaited.stream)
                else:
                    await stream.send(channel.encode(channel.Joined()))
                    await splice(stream, awaited.stream)
                return True
        finally:
            awaited.over.set()
            del self._awaited[name]
        return False

    @contextmanager
    def _counted(self, job_id: JobId) -> Iterator[None]:
        """Count a connection during the block, which is cancelled with the job, and at once when there are too many."""
        scopes = self._scopes.setdefault(job_id, set())
        with anyio.CancelScope() as scope:
            if len(scopes) >= MOST_OF_JOB or sum(map(len, self._scopes.values())) >= MOST_TUNNELS:
                scope.cancel()
            scopes.add(scope)
            try:
                yield
            finally:
                scopes.discard(scope)
                if not scopes and self._scopes.get(job_id) is scopes:
                    del self._scopes[job_id]


@contextmanager
def suppress_lost() -> Iterator[None]:
    """Suppress that a connection ends or breaks, also in a group of exceptions, and a frame that breaks the rules."""
    try:
        yield
    except* (*LOST, ProtocolError):
        pass


async def splice(one: ByteStream, other: ByteStream) -> None:
    """Carry bytes as they are between two connections, until one of them ends."""

    async def copy(source: ByteStream, target: ByteStream) -> None:
        try:
            while True:
                await target.send(await source.receive(PIECE))
        except LOST:
            both.cancel_scope.cancel()

    async with anyio.create_task_group() as both:
        both.start_soon(copy, one, other)
        both.start_soon(copy, other, one)


async def carry(local: SocketStream, framed: ByteStream) -> None:
    """Carry bytes between a connection of this host and one of frames, until both directions have ended.

    Raises a group with one of LOST or ProtocolError when one of them breaks; the local one is reset then.
    """
    try:
        async with anyio.create_task_group() as both:
            both.start_soon(_into_frames, local, framed)
            both.start_soon(_out_of_frames, framed, local)
    except BaseException:
        reset(local)
        raise


async def _into_frames(local: SocketStream, framed: ByteStream) -> None:
    while True:
        try:
            data = await local.receive(PIECE)
        except anyio.EndOfStream:
            await framed.send(LENGTH.pack(0))
            return
        await framed.send(LENGTH.pack(len(data)) + data)


async def _out_of_frames(framed: ByteStream, local: SocketStream) -> None:
    rest = bytearray()
    while True:
        rest += await framed.receive(PIECE)
        while len(rest) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(rest)
            if size == 0:
                await local.send_eof()
                return
            if size > LONGEST_FRAME:
                raise ProtocolError(f"a frame of {size} bytes")
            if len(rest) < LENGTH.size + size:
                break
            await local.send(bytes(rest[LENGTH.size : LENGTH.size + size]))
            del rest[: LENGTH.size + size]


def reset(local: SocketStream) -> None:
    """Have a connection of this host end with a reset when it is closed."""
    sockets.reset(local.extra(SocketAttribute.raw_socket))


async def join_directly(local: SocketStream, host: str, port: int) -> None:
    """Carry a connection of this host to a port that it reaches itself; it is reset when that cannot be."""

    async def copy(source: SocketStream, target: SocketStream) -> None:
        try:
            while True:
                await target.send(await source.receive(PIECE))
        except anyio.EndOfStream:
            await target.send_eof()

    with suppress_lost():
        try:
            async with await anyio.connect_tcp(host, port) as stream, anyio.create_task_group() as both:
                both.start_soon(copy, local, stream)
                both.start_soon(copy, stream, local)
        except BaseException:
            reset(local)
            raise
