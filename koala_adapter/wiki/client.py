# SPDX-License-Identifier: Apache-2.0
"""One exchange with a WIKI resource manager over TCP: a connection, a request, a reply.

Whatever goes wrong is one of three: it could not be reached (nothing was done), it gave no reply that can be believed
(what was done is unknown), or it refused (`Reply.require` raises WikiError with its status).

A slurmctld with sched/wiki can be hung for ever by a GETNODES with the name of a node that it does not know: ask only
for names that were just read from a GETNODES of all, or, better, always for all.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import LrmUnavailableError, LrmUnreachableError, WikiError
from koala_adapter.wiki.codec.frames import LARGEST_SIZE, REPLY_SKEW, FrameReader, open_reply, seal
from koala_adapter.wiki.codec.replies import Reply, parse_reply
from koala_adapter.wiki.codec.requestbuilding import build_request

if TYPE_CHECKING:
    from anyio.abc import ByteStream

    from koala_adapter.wiki.codec.checksum import Key
    from koala_adapter.wiki.codec.requests import Request
    from koala_adapter.wiki.codec.words import Dialect

CHUNK = 1 << 18
LARGEST_REPLY = 64 << 20
"""Bytes: 300,000 jobs. Slurm has no limit of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A resource manager that speaks WIKI, and how to speak with it."""

    host: str
    port: int
    key: Key | None
    """None: neither requests nor replies are signed."""
    dialect: Dialect
    user: str
    """Who we say we are."""
    timeout: float = 30.0
    """Seconds for a whole exchange."""
    largest_reply: int = LARGEST_REPLY
    """Bytes."""
    skew: float = REPLY_SKEW
    """Seconds that its clock may differ from ours."""

    def __str__(self) -> str:
        """``HOST:PORT``."""
        return f"{self.host}:{self.port}"


async def exchange(peer: Peer, request: Request) -> Reply:
    """Send one request and return the reply, which may be a refusal.

    Raises WikiError when the request cannot be expressed, LrmUnreachableError when it certainly did not arrive, and
    LrmUnavailableError when it may have arrived but the reply did not, or cannot be believed.
    """
    message = build_request(request, peer.dialect)
    frame = seal(message, key=peer.key, timestamp=int(time.time()), user=peer.user, limit=LARGEST_SIZE)
    deadline = anyio.current_time() + peer.timeout
    stream = await _connect(peer, deadline)
    try:
        with anyio.CancelScope(deadline=deadline) as scope:
            payload = await _ask(stream, frame, peer, verb=str(request.verb))
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
    if scope.cancelled_caught:
        raise LrmUnavailableError(
            f"{peer} did not answer {request.verb} within {peer.timeout:g} s",
            hint="it serves one connection after the other: another client may keep it busy",
        )
    return _believed(payload, peer)


async def _connect(peer: Peer, deadline: float) -> ByteStream:
    hint = "is it running, and does it listen there for WIKI?"
    try:
        with anyio.fail_after(max(0.0, deadline - anyio.current_time())):
            return await anyio.connect_tcp(peer.host, peer.port)
    except TimeoutError:
        raise LrmUnreachableError(f"{peer} accepts no connection within {peer.timeout:g} s", hint=hint) from None
    except OSError as error:
        raise LrmUnreachableError(f"cannot connect to {peer}: {_why(error)}", hint=hint) from error


def _why(error: OSError) -> str:
    """Return the reason of a failed connection: of several addresses that were tried, that of the first."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    first = cause if isinstance(cause, OSError) else error
    # asyncio puts the address, which we name ourselves, in the place of the reason.
    return os.strerror(first.errno) if first.errno and first.errno > 0 else first.strerror or str(first)


async def _ask(stream: ByteStream, frame: bytes, peer: Peer, *, verb: str) -> bytes:
    reader = FrameReader(limit=peer.largest_reply)
    try:
        await stream.send(frame)
        while True:
            payload = reader.feed(await stream.receive(CHUNK))
            if payload is not None:
                return payload
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        try:
            reader.end()
        except WikiError as error:
            raise LrmUnavailableError(
                f"{peer} gave no answer to {verb}: {error.message}",
                hint="does it expect a key, or another one, or forbid this host?",
            ) from error
        raise LrmUnavailableError(f"{peer} gave no answer to {verb}") from None
    except WikiError as error:
        raise LrmUnavailableError(f"{peer} does not speak WIKI: {error.message}") from error


def _believed(payload: bytes, peer: Peer) -> Reply:
    try:
        envelope = open_reply(payload, key=peer.key, now=time.time(), skew=peer.skew)
        return parse_reply(envelope.message)
    except WikiError as error:
        raise LrmUnavailableError(
            f"the reply of {peer} cannot be believed: {error.message}", hint=error.hint
        ) from error
