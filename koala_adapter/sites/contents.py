# SPDX-License-Identifier: Apache-2.0
"""Contents of input files at sites: the cache of each, and transfers from one site to another.

A cache has contents by their SHA-256, in ``cache`` of the user's directory there. In a transfer the gateways of two
sites move a content without this host between them.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.gateway.cache import CACHE, Arrival
from koala_adapter.gateway.direct import digest_of
from koala_adapter.sites.remotesite import RemoteSite

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.lrm.lrmhost import LrmHost


# -- The cache of a site -------------------------------------------------------------------------------------

DIRECTORY = "cache"
BLOCK = 1024 * 1024
"""Bytes that are read, and handed to the connection, at once."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a cache has."""

    whole: Mapping[str, int]
    """Sizes by digests."""
    parts: Mapping[str, int]
    """Bytes that have come of contents that are not whole."""


class Cache(ABC):
    """The cache of one site, or of this host.

    Each method raises OSError for an error there, LrmUnavailableError while the site is away.
    """

    where: str
    """The site, or this host, as messages call it."""

    @abstractmethod
    async def _ask(self, request: dict[str, Any], pieces: AsyncIterable[bytes] | None = None) -> Mapping[str, Any]:
        """Have something done, as a gateway does it; ``pieces``: of a content that is put there."""

    async def look(self, digests: Collection[str] | None = None) -> Found:
        """Return what there is of contents, which count as used now; None: what was used latest."""
        wanted = None if digests is None else list(digests)
        found = await self._ask({"do": "look_into_cache", "path": DIRECTORY, "digests": wanted})
        return Found(whole=self._sizes(found.get("whole")), parts=self._sizes(found.get("parts")))

    async def make_room(self, need: int, *, bound: int, keep: Collection[str]) -> tuple[Sequence[str], int]:
        """Remove what was used longest ago, but nothing of ``keep``.

        Return the digests of what was removed, and how many bytes are lacking still.
        """
        request = {"do": "make_room_in_cache", "path": DIRECTORY, "need": need, "bound": bound, "keep": list(keep)}
        found = await self._ask(request)
        removed, lacking = found.get("removed"), found.get("lacking")
        if not isinstance(removed, list) or not isinstance(lacking, int):
            raise LrmUnavailableError(f"{self.where} gave no answer on the room in its cache")
        return [str(digest) for digest in removed], lacking

    async def put(self, pieces: AsyncIterable[bytes], digest: str, *, size: int, offset: int) -> None:
        """Send a content of ``size`` bytes; ``pieces``: of what comes after its first ``offset`` bytes."""
        request = {"do": "put", "path": DIRECTORY, "digest": digest, "size": size, "offset": offset}
        await self._ask(request, pieces)

    async def put_file(self, path: Path, digest: str, offset: int, sent: Callable[[int], None]) -> None:
        """Send a content from a file, after its first ``offset`` bytes; ``sent`` is told how many bytes went."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            await self.put(_pieces(descriptor, offset, sent), digest, size=size, offset=offset)
        finally:
            os.close(descriptor)

    def _sizes(self, found: object) -> Mapping[str, int]:
        if not isinstance(found, dict) or not all(isinstance(size, int) for size in found.values()):
            raise LrmUnavailableError(f"{self.where} gave no sizes of contents")
        return {str(digest): size for digest, size in found.items()}


class SiteCache(Cache):
    """The cache of one site."""

    def __init__(self, host: RemoteSite) -> None:
        """``host``: the site."""
        self._host = host
        self.where = f"site {host.name}"

    async def _ask(self, request: dict[str, Any], pieces: AsyncIterable[bytes] | None = None) -> Mapping[str, Any]:
        return await self._host.ask(request, b"" if pieces is None else pieces)


class HostCache(Cache):
    """The cache of this host: files that come from sites for its own clusters."""

    where = "this host"

    def __init__(self, directory: Path) -> None:
        """``directory``: that of this service, in which the cache is."""
        self._base = str(directory)

    async def _ask(self, request: dict[str, Any], pieces: AsyncIterable[bytes] | None = None) -> Mapping[str, Any]:
        request["base"] = self._base
        if pieces is None:
            return await to_thread.run_sync(CACHE[request["do"]], request)
        arrival = Arrival(request)
        try:
            await to_thread.run_sync(arrival.begin)
            async for piece in pieces:
                arrival.take(piece)
                await to_thread.run_sync(arrival.write)
            return await to_thread.run_sync(arrival.end)
        finally:
            arrival.close()


async def _pieces(descriptor: int, offset: int, sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    while data := await to_thread.run_sync(os.pread, descriptor, BLOCK, offset):
        yield data
        offset += len(data)
        sent(len(data))


# -- Transfers from one site to another ----------------------------------------------------------------------

PATIENCE = 20.0
"""Seconds for the gateway that listens to say where, and for the other one to connect."""
READS = 100 * 1024**2
"""Bytes a second at which a gateway reads what has come before, to go on with it: less than file systems do."""
TRIAL_SIZE = 4 * 1024**2
"""Bytes that are moved at most to measure the bandwidth."""
READ_SIZE = 8 * 1024**2
"""Bytes of a file of one site that are here at once on their way to another one."""
READ_PIECE = 'tail -c "+$1" -- "$3" | head -c "$2"'
LAST_WORDS = 2.0
"""Seconds for one gateway to end after the other one has."""
LONGEST_LINE = 64 * 1024
OF_CONNECTIONS = frozenset({errno.ECONNRESET, errno.EHOSTUNREACH, errno.ECANCELED, errno.EBADMSG, errno.EADDRINUSE})
"""Errors that a receiver has without a fault of its files."""
LOST = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EIO})
"""Errors of a sender whose connection is lost; the last is that of a timeout without a number."""


class PassingError(Exception):
    """A content cannot go from one site to the other in this way."""


class UnreachableError(PassingError):
    """The gateway of one site cannot connect to that of the other one."""


class BrokenOffError(PassingError):
    """A transfer between two sites ended before its time, and not by a fault of the receiver's files."""

    def __init__(self, message: str, *, connection: bool) -> None:
        """``connection``: the connection between the two was lost, or nothing came through it."""
        super().__init__(message)
        self.connection = connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two sites between which something is moved."""

    sender: RemoteSite
    receiver: RemoteSite
    receiver_listens: bool
    """Else the sender does, and the receiver connects to it."""
    addresses: Sequence[str] = ()
    """Of the one that listens; empty: those that it finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passport:
    """What the gateways of one transfer know each other by."""

    pem: str
    """Private key and certificate of the one that listens."""
    fingerprint: str
    """SHA-256 of the certificate (DER) in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """How a transfer went."""

    size: int
    seconds: float
    latency: float | None
    """Seconds of a round trip between the two; None: it was not seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is moved into the cache of the receiver."""

    path: str
    """Of the sender: absolute, or in the user's directory there for koala."""
    digest: str
    size: int
    offset: int
    """Bytes that the receiver has already."""


def cached_path(digest: str) -> str:
    """Return where the cache of a site has a content, in the user's directory there for koala."""
    return f"{DIRECTORY}/{digest}"


async def digest_at(host: LrmHost, path: str) -> tuple[str, int]:
    """Return SHA-256 and size of a file of this host or of a site. Raises OSError, LrmUnavailableError."""
    request = {"do": "digest", "path": path}
    found = await (host.ask(request) if isinstance(host, RemoteSite) else to_thread.run_sync(digest_of, request))
    digest, size = found.get("digest"), found.get("size")
    if not isinstance(digest, str) or not isinstance(size, int):
        raise LrmUnavailableError(f"the site gave no digest of {path}")
    return digest, size


async def pieces_at(host: LrmHost, path: str, offset: int, sent: Callable[[int], None]) -> AsyncIterator[bytes]:
    """Yield what a file of this host or of a site has after its first ``offset`` bytes.

    ``sent`` is told how many of these bytes were taken. Raises OSError, LrmUnavailableError.
    """
    while True:
        argv = ("sh", "-c", READ_PIECE, "sh", str(offset + 1), str(READ_SIZE), path)
        status, data, complaint = await host.run(argv)
        if status:
            raise OSError(errno.EIO, complaint.decode("utf-8", "replace").strip(), path)
        if not data:
            return
        yield data
        offset += len(data)
        sent(len(data))


async def pass_content(pair: Pair, content: Content, passport: Passport, came: Callable[[int], None]) -> Passed:
    """Move a content. ``came``: called with how many bytes more the receiver has.

    Raises UnreachableError and BrokenOffError, after which there may be another way; OSError of the receiver's files;
    and LrmUnavailableError while the receiver is away.
    """
    what = {"trial": False, "size": content.size, "offset": content.offset}
    sender = _Part(pair.sender, {**what, "sends": True, "path": content.path})
    receiver = _Part(pair.receiver, {**what, "sends": False, "path": DIRECTORY, "digest": content.digest}, came)
    passed = await _move(pair, sender, receiver, passport, PATIENCE + content.offset / READS)
    came(content.size - content.offset - receiver.came)
    return passed


async def pass_trial(pair: Pair, passport: Passport) -> Passed:
    """Measure bandwidth and round trip between two sites by some MiB. Raises the errors of `pass_content`."""
    what = {"trial": True, "size": TRIAL_SIZE}
    sender, receiver = _Part(pair.sender, {**what, "sends": True}), _Part(pair.receiver, {**what, "sends": False})
    return await _move(pair, sender, receiver, passport, PATIENCE)


class _Part:
    """What one of the two gateways does for a transfer."""

    def __init__(
        self, site: RemoteSite, request: Mapping[str, Any], told: Callable[[int], None] = lambda _size: None
    ) -> None:
        """``told``: called with how many bytes more have come."""
        self._site = site
        self._request = request
        self._told = told
        self._line = b""
        self.came = 0
        self.door: dict[str, Any] = {}
        """Addresses and port of the one that listens."""
        self.answered = anyio.Event()
        """Set when the door is known, or it is over."""
        self.over = anyio.Event()
        self.result: Mapping[str, Any] | None = None
        self.fault: OSError | LrmUnavailableError | None = None

    async def run(self, more: Mapping[str, Any], first: anyio.Event) -> None:
        """Have the gateway do it. ``first``: set at the end, and at that of the other part."""
        try:
            self.result = await self._site.ask({"do": "pass", **self._request, **more}, heard=self._hear)
        except (OSError, LrmUnavailableError) as error:
            self.fault = error
        finally:
            self.answered.set()
            self.over.set()
            first.set()

    def _hear(self, data: bytes) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            with suppress(ValueError, LookupError, TypeError):  # the gateway may be any program
                self._take(json.loads(line))
        self._line = self._line[:LONGEST_LINE]

    def _take(self, said: Mapping[str, Any]) -> None:
        if "port" in said:
            self.door = {"addresses": [str(one) for one in said["addresses"]], "port": int(said["port"])}
            self.answered.set()
        elif self.came < (came := int(said["came"])):
            self._told(came - self.came)
            self.came = came


async def _move(pair: Pair, sender: _Part, receiver: _Part, passport: Passport, patience: float) -> Passed:
    secret = secrets.token_hex(32)
    listener, dialer = (receiver, sender) if pair.receiver_listens else (sender, receiver)
    first = anyio.Event()
    async with anyio.create_task_group() as tasks:
        ports = (pair.receiver if pair.receiver_listens else pair.sender).ports
        listens = {"listens": True, "secret": secret, "certificate": passport.pem, "seconds": patience, "ports": ports}
        tasks.start_soon(listener.run, listens, first)
        with anyio.move_on_after(patience):
            await listener.answered.wait()
        if listener.door:
            door = {**listener.door, "addresses": list(pair.addresses) or listener.door["addresses"]}
            dials = {"listens": False, "secret": secret, "fingerprint": passport.fingerprint, **door}
            tasks.start_soon(dialer.run, dials, first)
            await first.wait()
            with anyio.move_on_after(0 if _is_unreachable(dialer) else LAST_WORDS):
                await sender.over.wait()
                await receiver.over.wait()
        tasks.cancel_scope.cancel()
    names = f"from {pair.sender.name} to {pair.receiver.name}"
    if receiver.result is not None:
        return _passed(receiver.result, dialer.result)
    if _is_unreachable(dialer):
        raise UnreachableError(f"no connection {names}: {_said(dialer)}")
    if isinstance(receiver.fault, LrmUnavailableError) or (
        receiver.fault is not None and receiver.fault.errno not in OF_CONNECTIONS
    ):
        raise receiver.fault
    lost = isinstance(receiver.fault, OSError) and receiver.fault.errno == errno.ECONNRESET
    raise BrokenOffError(
        f"the transfer {names} was broken off: {_said(sender) or _said(receiver) or 'no answer'}",
        connection=lost and (sender.fault is None or getattr(sender.fault, "errno", 0) in LOST),
    )


def _is_unreachable(dialer: _Part) -> bool:
    return isinstance(dialer.fault, OSError) and dialer.fault.errno == errno.EHOSTUNREACH


def _said(part: _Part) -> str:
    fault = part.fault
    return str(fault.strerror if isinstance(fault, OSError) else fault or "")


def _passed(result: Mapping[str, Any], dialed: Mapping[str, Any] | None) -> Passed:
    try:
        latency = None if dialed is None or dialed["latency"] is None else float(dialed["latency"])
        return Passed(size=int(result["came"]), seconds=float(result["seconds"]), latency=latency)
    except (LookupError, TypeError, ValueError) as error:
        raise LrmUnavailableError(f"an answer on a transfer cannot be used: {error}") from error
