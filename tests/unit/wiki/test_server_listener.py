# SPDX-License-Identifier: Apache-2.0
"""The port of a WIKI server: who is heard, what a silent or careless peer costs the others, and the key."""

from __future__ import annotations

import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.abc import SocketAttribute

from koala_adapter.errors import ConfigurationError, LrmUnavailableError, ServiceRunningError
from koala_adapter.host.sockets import is_loopback
from koala_adapter.wiki.client import Peer, exchange, load_key
from koala_adapter.wiki.codec.verbs import GetJobs, Initialize, build_event
from koala_adapter.wiki.codec.words import Dialect, Event
from koala_adapter.wiki.inventory import ServerOptions
from koala_adapter.wiki.server import networks, serve
from tests.unit.wiki.wiki_source import KEY, Server, job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anyio.abc import SocketStream

pytestmark = pytest.mark.anyio

LIVENESS = 60.0
"""Seconds after which nothing is waited for any more: no bound of the machine's speed."""


@asynccontextmanager
async def serving(tmp_path: Path, **options: object) -> AsyncIterator[tuple[Server, Peer]]:
    """Serve on a free port; give the server and how a client reaches it."""
    server = Server(tmp_path, None, **{"port": 0, "cache": 0.5, **options})  # type: ignore[arg-type]
    server.source.add(job("5", 6))
    server.resource._clock = time.time  # as the client does
    async with anyio.create_task_group() as tasks:
        port = await tasks.start(serve, server.resource)
        yield (
            server,
            Peer(host="127.0.0.1", port=port, key=KEY, dialect=server.options.dialect, user="maui", timeout=LIVENESS),
        )
        tasks.cancel_scope.cancel()


async def test_silent_peers_delay_nobody(tmp_path: Path) -> None:
    """Polls are answered while two hundred connections say nothing, or half of something, for longer than is waited."""
    async with serving(tmp_path, read_within=10 * LIVENESS) as (_, peer), AsyncExitStack() as silent:
        for number in range(200):
            stream = await silent.enter_async_context(await anyio.connect_tcp("127.0.0.1", peer.port))
            if number % 2:
                await stream.send(b"00000100\nCK=")
        for _ in range(5):
            assert (await exchange(peer, GetJobs())).status == 0


async def test_too_many_silent_peers(tmp_path: Path) -> None:
    """Beyond the bound the longest silent one is closed, and whoever has something to say is heard."""
    async with serving(tmp_path, connections=5, read_within=600) as (_, peer), AsyncExitStack() as silent:
        streams = [await silent.enter_async_context(await anyio.connect_tcp("127.0.0.1", peer.port)) for _ in range(7)]
        assert (await exchange(peer, GetJobs())).status == 0
        with anyio.fail_after(60), pytest.raises(anyio.EndOfStream):
            await streams[0].receive()


async def test_slow_peers_are_closed(tmp_path: Path) -> None:
    """A request that does not come in time ends its connection, without an answer."""
    async with serving(tmp_path, read_within=0.2) as (_, peer), await anyio.connect_tcp("127.0.0.1", peer.port) as late:
        await late.send(b"00000100\nCK=")
        with anyio.fail_after(60), pytest.raises(anyio.EndOfStream):
            await late.receive()


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.0\r\n\r\n", b"99999999\nx", b"-0000001\nx", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"00000010\nabc"],
)
async def test_no_frame_no_answer(tmp_path: Path, data: bytes) -> None:
    """What is no frame, or an incomplete one, gets nothing but the end of the connection."""
    async with serving(tmp_path, read_within=1.0) as (_, peer):
        async with await anyio.connect_tcp("127.0.0.1", peer.port) as stream:
            await stream.send(data)
            await stream.send_eof()
            with anyio.fail_after(60), pytest.raises(anyio.EndOfStream):
                await stream.receive()
        assert (await exchange(peer, GetJobs())).status == 0


async def test_thousands_of_broken_frames(tmp_path: Path) -> None:
    """Random bytes on two thousand connections do no harm."""
    chance = random.Random(5)
    async with serving(tmp_path, requests_per_minute=100_000) as (_, peer):

        async def disturb() -> None:
            for _ in range(100):
                async with await anyio.connect_tcp("127.0.0.1", peer.port) as stream:
                    size = chance.randrange(60)
                    await stream.send(b"%08d\n" % chance.choice((size, size + 1, 0)) + chance.randbytes(size))

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(disturb)
        assert (await exchange(peer, GetJobs())).status == 0


async def test_strangers_are_not_heard(tmp_path: Path) -> None:
    """From an address that is not allowed there is no answer, and the batch system is not asked."""
    async with serving(tmp_path, peers=("10.1.0.0/16",)) as (server, peer):
        with pytest.raises(LrmUnavailableError):
            await exchange(peer, GetJobs())
        assert server.source.reads == 0


async def test_too_many_requests(tmp_path: Path) -> None:
    """A peer that asks without end is not answered until its minute is over."""
    async with serving(tmp_path, requests_per_minute=5) as (_, peer):
        for _ in range(5):
            assert (await exchange(peer, GetJobs())).status == 0
        with pytest.raises(LrmUnavailableError):
            await exchange(peer, GetJobs())


async def test_port_in_use(tmp_path: Path) -> None:
    """A second server on the same port says so."""
    async with serving(tmp_path) as (_, peer):
        second = Server(tmp_path / "second", port=peer.port)
        with pytest.raises(BaseExceptionGroup) as caught:
            await serve(second.resource)
        assert caught.group_contains(ServiceRunningError, match="cannot listen")


async def test_events(tmp_path: Path) -> None:
    """A Moab that asks for events is told of a start at once, and of a job that came in, but not too often."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        heard: list[bytes] = []

        async def hear(stream: SocketStream) -> None:
            async with stream:
                heard.append(await stream.receive())

        moab = serving(tmp_path, dialect=Dialect.WIKI2, event_interval=0.3, cache=0.1)
        async with moab as (server, peer), anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, hear)
            port = listener.extra(SocketAttribute.local_port)
            await exchange(peer, Initialize(event_port=port))
            with anyio.fail_after(60):
                while build_event(Event.JOBS) not in heard:
                    server.source.add(job(str(100 + len(server.source.job_list))))
                    await anyio.sleep(0.1)
            tasks.cancel_scope.cancel()
        assert set(heard) <= {b"1234\0", b"1235\0"}


def test_peers_are_addresses() -> None:
    """Peers are given as addresses or networks; a name is refused, because nothing is looked up."""
    assert len(networks(("127.0.0.1", "10.0.0.0/8", "::1"))) == 3
    with pytest.raises(ConfigurationError, match="no address"):
        networks(("maui.example.org",))
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert ServerOptions().listen == "127.0.0.1"


def test_key_file(tmp_path: Path) -> None:
    """The key comes from a private file of ours, or not at all."""
    path = tmp_path / "key"
    with pytest.raises(ConfigurationError, match="cannot read"):
        load_key(path)
    path.write_text("1234567890\nmore\n")
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="mode 0640"):
        load_key(path)
    path.chmod(0o600)
    assert load_key(path) == KEY
    for text, words in (("\n", "no key"), ("secret\n", "takes it for 0"), ("9" * 300, "no key")):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=words):
            load_key(path)
    with pytest.raises(ConfigurationError, match="no ordinary file"):
        load_key(tmp_path)
