# SPDX-License-Identifier: Apache-2.0
"""Client side of WIKI: the shared key, and one exchange over TCP (connection, request, reply).

Whatever goes wrong is one of three: it could not be reached (nothing was done), it gave no reply that can be believed
(what was done is unknown), or it refused (`Reply.require` raises WikiError with its status).

A slurmctld with sched/wiki can be hung for ever by a GETNODES with the name of a node that it does not know: ask only
for names that were just read from a GETNODES of all, or, better, always for all.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import ConfigurationError, LrmUnavailableError, LrmUnreachableError, WikiError
from koala_adapter.lrm.commands import THIS_HOST
from koala_adapter.wiki.codec.frames import HEADER_SIZE, LARGEST_SIZE, FrameReader, Key, open_reply, read_key, seal
from koala_adapter.wiki.codec.verbs import Reply, Request, build_request, parse_reply

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import ByteStream

    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.wiki.codec.words import Dialect


# -- Key file ------------------------------------------------------------------------------------------------
# The key that a scheduler and we share, in a file that no other user can read or change.

LONGEST_KEY = 200
"""Bytes; Slurm keeps 31 characters of a key, Maui 63."""


def load_key(path: Path) -> Key:
    """Return the key in the first line of a file. Raises ConfigurationError when others could know or change it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        hint = "write the key that the scheduler has into a file of mode 0600 (Maui: $MAUIHOMEDIR/.moab.key)"
        raise ConfigurationError(f"cannot read the key file {path}: {error.strerror}", hint=hint) from error
    try:
        _require_private(path, os.fstat(descriptor))
        first = os.read(descriptor, LONGEST_KEY + 1).split(b"\n", 1)[0].strip()
    finally:
        os.close(descriptor)
    if not first or len(first) > LONGEST_KEY:
        message = f"the key file {path} has no key of at most {LONGEST_KEY} bytes in its first line"
        raise ConfigurationError(message, hint="one number, such as 1234567890 or 0x499602d2")
    key = read_key(first.decode("utf-8", "replace"))
    if not first[:1].isdigit():
        message = f"the key in {path} does not begin with a digit, so every peer takes it for 0"
        raise ConfigurationError(message, hint="one number, such as 1234567890 or 0x499602d2")
    return key


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"the key file {path} is no ordinary file")
    if status.st_uid != os.geteuid():
        message = f"the key file {path} belongs to user {status.st_uid}, not to us ({os.geteuid()})"
        raise ConfigurationError(message, hint=f"chown it: whoever owns {path} decides who may start and cancel jobs")
    if status.st_mode & 0o077:
        message = f"the key file {path} has mode {stat.S_IMODE(status.st_mode):04o}: others could read it"
        raise ConfigurationError(message, hint=f"chmod 600 {path}, and choose another key")


# -- One exchange --------------------------------------------------------------------------------------------

CHUNK = 1 << 18
LARGEST_REPLY = 64 << 20
"""Bytes: 300,000 jobs. Slurm has no limit of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Address, key and dialect of a WIKI resource manager, and the exchange of one request with it."""

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

    def __str__(self) -> str:
        """``HOST:PORT``."""
        return f"{self.host}:{self.port}"


UNCONNECTED = 3
"""Exit status of the program below where the peer accepts no connection."""
ASK_THERE = f"""import socket, sys
try:
    stream = socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]))
except OSError as error:
    sys.stderr.write(str(error))
    sys.exit({UNCONNECTED})
stream.sendall(sys.stdin.buffer.read())
wanted, found = {HEADER_SIZE}, b""
while len(found) < wanted:
    piece = stream.recv(65536)
    if not piece:
        break
    found += piece
    if wanted == {HEADER_SIZE} <= len(found):
        wanted += int(found[:{HEADER_SIZE}])
sys.stdout.buffer.write(found)"""
"""Makes the exchange from the login node of another site: address, port and seconds are its arguments."""


async def exchange(peer: Peer, request: Request, host: LrmHost = THIS_HOST) -> Reply:
    """Send one request and return the reply, which may be a refusal. ``host``: from where the peer is connected to.

    Raises WikiError when the request cannot be expressed, LrmUnreachableError when it certainly did not arrive, and
    LrmUnavailableError when it may have arrived but the reply did not, or cannot be believed.
    """
    message = build_request(request, peer.dialect)
    frame = seal(message, key=peer.key, timestamp=int(time.time()), user=peer.user, limit=LARGEST_SIZE)
    if not host.here:
        return _believed(await _asked_there(host, frame, peer, verb=request.verb), peer)
    deadline = anyio.current_time() + peer.timeout
    stream = await _connect(peer, deadline)
    try:
        with anyio.CancelScope(deadline=deadline) as scope:
            payload = await _ask(stream, frame, peer, verb=request.verb)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(stream)
    if scope.cancelled_caught:
        raise LrmUnavailableError(
            f"{peer} did not answer {request.verb} within {peer.timeout:g} s",
            hint="it serves one connection after the other: another client may keep it busy",
        )
    return _believed(payload, peer)


async def _asked_there(host: LrmHost, frame: bytes, peer: Peer, *, verb: str) -> bytes:
    """Return the payload of the reply to a frame that is sent from another site."""
    command = ((await host.facts()).interpreter, "-I", "-S", "-c", ASK_THERE, peer.host, str(peer.port))
    try:
        with anyio.fail_after(peer.timeout):
            status, output, complaint = await host.run((*command, str(peer.timeout)), stdin=frame)
    except TimeoutError:
        raise LrmUnavailableError(f"{peer} did not answer {verb} within {peer.timeout:g} s") from None
    except OSError as error:
        raise LrmUnavailableError(f"{peer} cannot be asked from the site: {error}") from error
    if status == UNCONNECTED:
        said = complaint.decode("utf-8", "replace")
        message = f"the site cannot connect to {peer}: {said}"
        raise LrmUnreachableError(message, hint="is it running, and does it listen there for WIKI?")
    reader = FrameReader(limit=peer.largest_reply)
    try:
        payload = reader.feed(output)
        if payload is None:
            reader.end()
    except WikiError as error:
        raise LrmUnavailableError(f"{peer} gave no answer to {verb}: {error.message}") from error
    return payload


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
    """Return why a connection failed; where several addresses were tried, the failure of the first."""
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
    except WikiError as error:
        raise LrmUnavailableError(f"{peer} does not speak WIKI: {error.message}") from error


def _believed(payload: bytes, peer: Peer) -> Reply:
    try:
        return parse_reply(open_reply(payload, key=peer.key, now=time.time()))
    except WikiError as error:
        raise LrmUnavailableError(
            f"the reply of {peer} cannot be believed: {error.message}{_refusal(payload)}", hint=error.hint
        ) from error


def _refusal(payload: bytes) -> str:
    """Return what an unsigned refusal says: a server signs nothing for a peer whose request is not signed rightly."""
    with suppress(WikiError):
        reply = parse_reply(open_reply(payload, key=None, now=0))
        if reply.status < 0 and reply.text:
            return f"; it says {reply.text!r} (SC={reply.status})"
    return ""
