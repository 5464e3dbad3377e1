# SPDX-License-Identifier: Apache-2.0
"""What comes over a connection is cut into a token and frames, in whatever pieces it comes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from koala_adapter.pull.connection import LENGTH
from koala_adapter.pull.line import TOKEN_BYTES, Line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

LIVENESS = 120.0
TOKEN = bytes(range(TOKEN_BYTES))
LARGEST = 1000
REFUSED = b"refuse this"


def framed(data: bytes) -> bytes:
    """Return a frame as it is sent."""
    return LENGTH.pack(len(data)) + data


@dataclass
class Heard:
    """What a line has handed on, and a socket to speak into it."""

    line: Line
    speaking: socket.socket
    frames: list[bytes] = field(default_factory=list)
    tokens: list[bytes] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, count: int) -> list[bytes]:
        """Wait until so many frames are here."""
        async with asyncio.timeout(LIVENESS):
            while len(self.frames) < count:
                self.more.clear()
                await self.more.wait()
        return self.frames

    async def ended(self) -> None:
        """Wait until the connection is gone."""
        async with asyncio.timeout(LIVENESS):
            await self.line.gone


@asynccontextmanager
async def connected() -> AsyncIterator[Heard]:
    """Give a line over a real socket."""
    speaking, listening = socket.socketpair()
    frames: list[bytes] = []
    tokens: list[bytes] = []
    more = asyncio.Event()

    def shown(_: Line, token: bytes) -> None:
        tokens.append(token)
        if token != TOKEN:
            raise ConnectionError("another token")

    def heard(_: Line, frame: bytes) -> None:
        frames.append(frame)
        more.set()
        if frame == REFUSED:
            raise ConnectionError("not this")

    line = Line(shown=shown, heard=heard, largest=LARGEST)
    with speaking:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: line, listening)
        heard_here = Heard(line, speaking, frames, tokens, more)
        try:
            yield heard_here
        finally:
            line.abort()
            await heard_here.ended()


async def test_whole_frames_are_handed_on_however_they_come() -> None:
    """All in one piece, and byte by byte; a frame may be empty."""
    async with connected() as heard:
        heard.speaking.sendall(TOKEN + framed(b"one") + framed(b"") + framed(b"three") + framed(b"four")[:-1])
        assert await heard.until(3) == [b"one", b"", b"three"]
        heard.speaking.sendall(b"r")
        for byte in framed(b"five"):
            heard.speaking.sendall(bytes([byte]))
            await asyncio.sleep(0)
        assert (await heard.until(5))[3:] == [b"four", b"five"]
        assert heard.tokens == [TOKEN]
        assert heard.line.token_shown.done()
        assert not heard.line.gone.done()


@pytest.mark.parametrize(
    ("said", "frames"),
    [
        (bytes(TOKEN_BYTES) + framed(b"one"), []),
        (TOKEN + framed(b"one") + framed(bytes(LARGEST + 1)) + framed(b"two"), [b"one"]),
        (TOKEN + framed(REFUSED) + framed(b"two"), [REFUSED]),
        (TOKEN + framed(b"one") + framed(b"two")[:-1], [b"one"]),
    ],
    ids=["another token", "too large a frame", "a frame that is refused", "an end within a frame"],
)
async def test_nothing_is_handed_on_after_the_end(said: bytes, frames: list[bytes]) -> None:
    """Whoever ends it, and however much has come with what ended it."""
    async with connected() as heard:
        heard.speaking.sendall(said)
        heard.speaking.shutdown(socket.SHUT_WR)
        await heard.ended()
        assert heard.frames == frames


async def test_who_shows_nothing_is_gone_all_the_same() -> None:
    """Whoever waits for the token hears of the end."""
    async with connected() as heard:
        heard.speaking.close()
        async with asyncio.timeout(LIVENESS):
            await heard.line.token_shown
        assert heard.tokens == []
