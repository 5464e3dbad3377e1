# SPDX-License-Identifier: Apache-2.0
"""Another user of the network or of a node against control center and agents."""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from anyio.streams.tls import TLSStream

from koala_adapter.vjm import center, channel
from koala_adapter.vjm.center import APPLICANTS
from koala_adapter.vjm.certificate import load_or_create, server_context
from koala_adapter.vjm.channel import AgentMessage, CenterMessage
from koala_adapter.vjm.listener import AgentDisconnected, AgentRefused, AgentRegistered
from tests.real.agents import BATCH, LIVENESS, Site, placeholder


async def connect(site: Site) -> SocketStream:
    """Connect by TCP until the center goes."""
    return await site.at_end.enter_async_context(await anyio.connect_tcp("127.0.0.1", site.port))


class Peer:
    """Somebody who speaks to the control center, with good or bad intent."""

    def __init__(self, stream: TLSStream) -> None:
        self.stream = stream
        self._decoder = channel.center_decoder()
        self._waiting: list[CenterMessage] = []

    @classmethod
    async def connect(cls, site: Site, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> Peer:
        """Come as far as TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = version
        transport = await connect(site)
        return cls(await TLSStream.wrap(transport, server_side=False, ssl_context=context, standard_compatible=False))

    async def say(self, message: AgentMessage) -> None:
        """Send a message."""
        await self.stream.send(channel.encode(message))

    async def hear(self) -> CenterMessage | None:
        """Return the next message; None when the center has closed the connection."""
        with anyio.fail_after(LIVENESS):
            while not self._waiting:
                try:
                    self._waiting += self._decoder.feed(await self.stream.receive())
                except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                    return None
        return self._waiting.pop(0)


def hello(site: Site, *, index: int = 1, token: str = "", session: str = "mine", version: int = 1) -> channel.Hello:
    """Return a Hello, good unless changed."""
    return channel.Hello(
        batch=BATCH, index=index, token=token or site.token, session=session, lrm_id="1", host="n1",
        address="10.0.0.1", pid=1, ends_in=None, python="3.6", version=version,
    )  # fmt: skip


async def test_a_wrong_token_is_refused(site: Site) -> None:
    """No event, no binding, and an answer that does not say what was wrong."""
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.say(hello(site, token="guessed"))
        assert await peer.hear() == channel.Refused(reason="not accepted")
        assert await peer.hear() is None
    assert site.events == []
    assert site.bound == {}


async def test_an_agent_with_a_wrong_token_ends(site: Site) -> None:
    """A placeholder of a batch that is not wanted any more gives its processor back at once."""
    async with site.serving():
        code, errors = await site.ended(site.start_agent(script=site.script(token="x" * 40)))
    assert code == 3
    assert "the control center refused: not accepted" in errors
    assert "x" * 40 not in errors


async def test_a_second_agent_for_a_placeholder_is_refused(site: Site) -> None:
    """The right token from elsewhere is of no use once the true agent has come, and the service hears of it."""
    async with site.serving_agent() as agent:
        thief = await Peer.connect(site)
        await thief.say(hello(site, session="stolen"))
        assert await thief.hear() == channel.Refused(reason="not accepted")
        assert (await site.wait_for(AgentRefused)).placeholder == placeholder()
        site.center.tell(placeholder(), channel.Launch(task="t", argv=("true",)))
        await site.wait_for(channel.TaskEnded)
        assert agent.poll() is None


async def test_a_placeholder_stays_bound_while_its_agent_is_away(site: Site) -> None:
    """Neither a lost connection nor a restart of the center lets another session in; the true one comes back."""
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.say(hello(site))
        assert isinstance(await peer.hear(), channel.Welcome)
        await peer.stream.aclose()
        await site.wait_for(AgentDisconnected)
    async with site.serving():
        thief = await Peer.connect(site)
        await thief.say(hello(site, session="stolen"))
        assert isinstance(await thief.hear(), channel.Refused)
        seen = len(site.events)
        again = await Peer.connect(site)
        await again.say(hello(site))
        assert isinstance(await again.hear(), channel.Welcome)
        assert not (await site.wait_for(AgentRegistered, after=seen)).first


async def test_a_new_connection_replaces_a_half_open_one(site: Site) -> None:
    """The agent knows better whether its old connection is dead; nobody is told that it went."""
    async with site.serving():
        old, new = await Peer.connect(site), await Peer.connect(site)
        for peer in (old, new):
            await peer.say(hello(site))
            assert isinstance(await peer.hear(), channel.Welcome)
        assert await old.hear() is None
        assert site.center.tell(placeholder(), channel.Release(grace=1))
        assert isinstance(await new.hear(), channel.Release)
        assert not [event for event in site.events if isinstance(event, AgentDisconnected)]


async def test_sessions_are_kept_as_digests(site: Site) -> None:
    """Whoever reads the journal cannot come as an agent."""
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.say(hello(site, session="my-session-secret"))
        await peer.hear()
    assert site.bound == {placeholder(): hashlib.sha256(b"my-session-secret").hexdigest()}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\n",
        b"{}\n",
        b"\0" * 1000 + b"\n",
        channel.encode(channel.Heartbeat()),
        channel.encode(channel.TaskStarted(task="t", pid=1)),
        b" " * (channel.HELLO_LIMIT + 1),
    ],
    ids=lambda data: str(data[:20]),
)
async def test_garbage_over_tls_closes_the_connection(site: Site, data: bytes) -> None:
    """Whatever comes first, if it is no good Hello, is the last; a registered agent does not notice."""
    async with site.serving():
        good = await Peer.connect(site)
        await good.say(hello(site))
        await good.hear()
        bad = await Peer.connect(site)
        with suppress(OSError, anyio.BrokenResourceError):
            await bad.stream.send(data)
        assert await bad.hear() is None
        await good.say(channel.Heartbeat())
        assert await good.hear() == channel.Pong()
    assert len(site.rejected) == 1


async def test_more_than_a_hello_before_the_welcome_is_refused(site: Site) -> None:
    """What is sent before the proof was accepted is never acted upon."""
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.stream.send(channel.encode(hello(site)) + channel.encode(channel.TaskStarted(task="t", pid=1)))
        assert await peer.hear() is None
    assert site.events == []


async def test_garbage_from_a_registered_agent_closes_its_connection(site: Site) -> None:
    """It may come back, but what it said after its fault does not count."""
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.say(hello(site))
        await peer.hear()
        await peer.stream.send(b"nonsense\n" + channel.encode(channel.TaskStarted(task="t", pid=1)))
        assert await peer.hear() is None
        gone = await site.wait_for(AgentDisconnected)
        assert ("malformed" in gone.detail, gone.closed) == (True, False)
    assert [type(event) for event in site.events] == [AgentRegistered, AgentDisconnected]


async def test_another_version_is_told(site: Site) -> None:
    """An agent of another release ends with a reason."""
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.say(hello(site, version=99))
        answer = await peer.hear()
    assert isinstance(answer, channel.Refused)
    assert "version 99" in answer.reason


async def test_plain_tcp_gets_nowhere(site: Site) -> None:
    """Without TLS there is no answer but the end."""
    async with site.serving():
        stream = await connect(site)
        await stream.send(channel.encode(hello(site)))
        with anyio.fail_after(LIVENESS), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                assert b"welcome" not in await stream.receive()
    assert site.events == []


async def test_old_tls_is_refused(site: Site) -> None:
    """TLS 1.2 is spoken, for nodes with an old OpenSSL; 1.1 is not."""
    async with site.serving():
        peer = await Peer.connect(site, ssl.TLSVersion.TLSv1_2)
        await peer.say(hello(site))
        assert isinstance(await peer.hear(), channel.Welcome)
        with (
            pytest.warns(DeprecationWarning, match="TLSv1_1"),
            pytest.raises((OSError, anyio.BrokenResourceError, anyio.EndOfStream)),
        ):
            await Peer.connect(site, ssl.TLSVersion.TLSv1_1)


async def test_silent_strangers_do_not_keep_agents_out(site: Site) -> None:
    """With the door full of connections that say nothing, an agent still gets in, long before they time out."""
    async with site.serving():
        for _ in range(APPLICANTS + 20):
            await connect(site)
        peer = await Peer.connect(site)
        await peer.say(hello(site))
        assert isinstance(await peer.hear(), channel.Welcome)


async def test_an_agent_that_does_not_read_is_dropped(site: Site) -> None:
    """What waits for one agent is bounded."""
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.say(hello(site))
        await peer.hear()
        large = channel.Launch(task="t", argv=("x" * 10_000,))
        for _ in range(10_100):
            site.center.tell(placeholder(), large)
        assert (await site.wait_for(AgentDisconnected)).detail == "does not read"


async def test_peers_without_a_proof_cost_a_bounded_amount_of_memory(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they have sent is bounded for all together; an agent with an ordinary Hello is let in meanwhile."""
    monkeypatch.setattr(center, "UNPROVEN_BYTES", 1_000_000)
    monkeypatch.setattr(center, "UNPROVEN_SHARE", 20_000)
    async with site.serving():
        strangers = [await Peer.connect(site) for _ in range(20)]
        with anyio.fail_after(LIVENESS):
            for stranger in strangers:
                with suppress(anyio.BrokenResourceError):
                    for _ in range(20):  # below the longest line that is taken
                        await stranger.stream.send(b"x" * 10_000)
            while not site.rejected:
                await site.news()
            most = site.center._unproven
            peer = await Peer.connect(site)
            await peer.say(hello(site))
            assert isinstance(await peer.hear(), channel.Welcome)
            for stranger in strangers:
                await stranger.stream.aclose()
            while site.center._unproven:  # noqa: ASYNC110 - it is not announced
                await anyio.sleep(0.01)
    assert "peers that have not proved themselves have sent too much" in site.rejected
    assert most < 1_000_000 + 20 * 20_000


async def test_output_of_a_former_attempt_is_not_written_into_the_files_of_the_next(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be written while its attempt lasted, and its agent is still there when the job runs again."""
    blocked = site.directory / "output"
    blocked.write_text("a file in the place of the directory")
    async with site.serving():
        peer = await Peer.connect(site)
        await peer.say(hello(site))
        await peer.hear()
        await peer.say(channel.Output(task="t", stream="out", offset=5, data=b"late"))
        with anyio.fail_after(LIVENESS):
            while not site.unwritten:
                await site.news()
        monkeypatch.setattr(site, "output_path", lambda _placeholder, _task: None)
        blocked.unlink()
        assert await peer.hear() == channel.OutputAck(task="t", stream="out", offset=9)
    assert not blocked.exists()


class FalseCenter:
    """A server with another certificate at the place of the control center; records every byte after the handshake."""

    def __init__(self, directory: Path) -> None:
        self.heard = b""
        self.handshakes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._context = server_context(load_or_create(directory))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(connection, server_side=True) as tls:
                    self.handshakes += 1
                    tls.settimeout(5)
                    while data := tls.recv(65536):
                        self.heard += data
            except OSError:
                connection.close()


async def test_an_agent_tells_nothing_to_another_server(site: Site) -> None:
    """The handshake is done, the certificate is not the pinned one: not a byte follows, neither token nor name."""
    false = FalseCenter(site.directory / "false")
    try:
        code, errors = await site.ended(site.start_agent(script=site.script(port=false.port, lease=10.0)))
    finally:
        await anyio.to_thread.run_sync(false.close)
    assert code == 4
    assert "another certificate" in errors
    assert false.handshakes > 1
    assert false.heard == b""
