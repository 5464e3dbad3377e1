# SPDX-License-Identifier: Apache-2.0
"""Negotiations over real sockets: who gets in, what strangers may cost, and what is left of a peer that vanishes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import to_thread

from koala_adapter import negotiation as nt
from koala_adapter.errors import ServiceRunningError
from koala_adapter.negotiation.serviceside.document import frame
from koala_adapter.negotiation.serviceside.endpoint import Agreed, Consumed, Ended, Endpoint, Limits, OfferReceived
from koala_adapter.negotiation.serviceside.states import State
from koala_adapter.negotiation.serviceside.template import NegotiationKey, Side, accepted
from koala_adapter.service.sizes.port import GREETING, ListenerBounds, OneTimeTokens, PeerListener
from tests.granting import Conversation, Granter, Promised, ReservationBook, connect, connect_unix, serve_unix
from tests.unit.negotiation.templates import CPU, request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anyio.abc import SocketStream

    from koala_adapter.negotiation.serviceside.endpoint import Event

pytestmark = pytest.mark.anyio

FIRST = NegotiationKey(initiator=Side.APPLICATION, agreement_id="1")


@dataclass
class Manager:
    """Resource management with some free processors, listening for applications."""

    free: int = 6
    limits: Limits = field(default_factory=Limits)
    bounds: ListenerBounds = field(default_factory=ListenerBounds)
    port: int = 0
    heard: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make its parts."""
        self.book: ReservationBook[Promised] = ReservationBook({CPU: self.free})
        self.tokens = OneTimeTokens()
        self.listener = PeerListener(self.converse, self.tokens, self.bounds)
        self.endpoints: dict[str, Endpoint] = {}
        self.conversations: dict[str, Conversation] = {}
        self.news = anyio.Event()

    async def converse(self, application: str, stream: SocketStream) -> None:
        """Grant what is free, and report what is agreed on as allocated."""
        new = Endpoint(side=Side.RMS, host="head", peer=application, limits=self.limits)
        endpoint = self.endpoints.setdefault(application, new)
        granter = Granter(application, endpoint, self.book)

        def handle(event: Event, now: float) -> None:
            agreement = granter.handle(event, now)
            if agreement is not None:
                granter.allocated(agreement.key, now)
            self.heard.append(event)
            self.news.set()
            self.news = anyio.Event()

        self.conversations[application] = Conversation(stream, endpoint, handle)
        self.news.set()
        await self.conversations[application].run()

    async def until_heard(self, number: int) -> list[Event]:
        """Wait for so many events."""
        with anyio.fail_after(60):
            while len(self.heard) < number:
                await self.news.wait()
        return self.heard


@asynccontextmanager
async def listening(manager: Manager) -> AsyncIterator[Manager]:
    """Have a manager listen by TCP."""
    async with anyio.create_task_group() as tasks:
        manager.port = await tasks.start(manager.listener.serve_tcp)
        yield manager
        tasks.cancel_scope.cancel()


def settled(connection: nt.Connection, first: nt.Template) -> list[str]:
    """Take whatever is offered, to the end; return what happened."""
    connection.send(first)
    kinds = []
    while (event := connection.recv(10)) is not None:
        kinds.append(event.kind)
        if event.kind == "offer":
            assert event.template is not None
            connection.send(nt.accepted(event.template))
        elif event.kind == "accepted":
            assert event.template is not None
            connection.send(nt.committed(event.template))
        elif event.kind in {"consumed", "ended", "closed"}:
            break
    connection.close()
    return kinds


def wish(quantity: int = 14) -> nt.Template:
    """Return a request for processors."""
    return nt.template("1", "APPLICATION", "node7", "head", [nt.resource("CPU", quantity)], direction="grow")


async def test_an_application_with_a_token_negotiates_by_tcp() -> None:
    """14 are asked for, 6 are idle, 6 are taken and allocated; the connection ends."""
    async with listening(Manager()) as manager:
        token = manager.tokens.issue("job 14")
        connection = await to_thread.run_sync(nt.connect, "127.0.0.1", manager.port, token)
        kinds = await to_thread.run_sync(settled, connection, wish())
        assert kinds == ["offer", "agreed", "consumed"]
        assert manager.book.available(CPU) == 0
        assert manager.book.holders() == ()


@pytest.mark.parametrize("way", ["tcp", "unix"])
async def test_an_application_may_use_the_same_modules(way: str, tmp_path: Path) -> None:
    """It connects, says what it wants, hears what there is, takes it, and hears that it is there."""
    manager, path = Manager(), tmp_path / "nt.sock"
    told: list[type[Event]] = []
    end = Endpoint(side=Side.APPLICATION, host="node7", peer="head")
    done = anyio.Event()

    def handle(event: Event, now: float) -> None:
        told.append(type(event))
        if isinstance(event, OfferReceived):
            end.send(accepted(event.template), now)
        elif isinstance(event, Consumed):
            done.set()

    async with anyio.create_task_group() as tasks:
        if way == "tcp":
            port = await tasks.start(manager.listener.serve_tcp)
            stream = await connect("127.0.0.1", port, manager.tokens.issue("a"))
        else:
            await tasks.start(serve_unix, path, manager.converse)
            stream = await connect_unix(path)
        conversation = Conversation(stream, end, handle)
        tasks.start_soon(conversation.run)
        await conversation.say(request(14))
        with anyio.fail_after(60):
            await done.wait()
        tasks.cancel_scope.cancel()
    assert told == [OfferReceived, Agreed, Consumed]
    assert manager.book.available(CPU) == 0


async def test_the_manager_begins() -> None:
    """Four idle processors are offered to a malleable application, which takes them."""
    async with listening(Manager()) as manager:
        token = manager.tokens.issue("a")
        connection = await to_thread.run_sync(nt.connect, "127.0.0.1", manager.port, token)
        with anyio.fail_after(60):
            while "a" not in manager.conversations:
                await manager.news.wait()
        await manager.conversations["a"].say(request(4, initiator=Side.RMS))
        event = await to_thread.run_sync(connection.recv, 10)
        assert event is not None
        assert event.template is not None
        connection.send(nt.accepted(event.template))
        agreed = await to_thread.run_sync(connection.recv, 10)
        connection.close()
        assert agreed is not None
        assert agreed.kind == "agreed"


async def test_an_answer_that_does_not_come_expires() -> None:
    """The deadline comes while the listener waits for bytes; both ends know, and the processors are free."""
    async with listening(Manager(limits=Limits(answer_within=0.1))) as manager:
        token = manager.tokens.issue("a")
        connection = await to_thread.run_sync(nt.connect, "127.0.0.1", manager.port, token)
        connection.send(wish())
        _asked, ended = await manager.until_heard(2)
        assert isinstance(ended, Ended)
        assert ended.state is State.EXPIRED
        assert manager.book.available(CPU) == 6
        kinds = [event.kind for event in (connection.recv(10), connection.recv(10)) if event is not None]
        connection.close()
        assert kinds == ["offer", "ended"]


async def refused(manager: Manager, data: bytes) -> bool:
    """Tell whether a connection that says so is closed without a word."""
    async with await anyio.connect_tcp("127.0.0.1", manager.port) as stream:
        await stream.send(data)
        with anyio.fail_after(60):
            try:
                return not await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return True


@pytest.mark.parametrize(
    "data",
    [
        frame(GREETING),
        frame(GREETING + b"x" * 43),
        frame(nt.build(wish())),
        b"99999999\n",
        b"00000257\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 300,
    ],
)
async def test_a_stranger_is_not_heard(data: bytes) -> None:
    """Without a token there is no conversation, and no template is read."""
    async with listening(Manager()) as manager:
        assert await refused(manager, data)
        assert manager.endpoints == {}
        assert manager.listener.connections == 0


async def test_a_token_is_good_for_one_connection() -> None:
    """Who has seen it on its way cannot use it again; a revoked one is good for none."""
    async with listening(Manager()) as manager:
        token = manager.tokens.issue("a")
        connection = await to_thread.run_sync(nt.connect, "127.0.0.1", manager.port, token)
        await to_thread.run_sync(settled, connection, wish(1))
        assert await refused(manager, frame(GREETING + token.encode()))
        other = manager.tokens.issue("b")
        manager.tokens.revoke("b")
        assert await refused(manager, frame(GREETING + other.encode()))
        assert list(manager.endpoints) == ["a"]


async def test_silent_strangers_are_bounded_in_time_and_number() -> None:
    """The one that has been silent longest goes when there are too many; all go in the end. Applications get in."""
    bounds = ListenerBounds(most_silent=3, greet_within=1.0)
    async with listening(Manager(bounds=bounds)) as manager:
        strangers = [await anyio.connect_tcp("127.0.0.1", manager.port) for _ in range(6)]
        token = manager.tokens.issue("a")
        connection = await to_thread.run_sync(nt.connect, "127.0.0.1", manager.port, token)
        assert await to_thread.run_sync(settled, connection, wish(2)) == ["accepted", "consumed"]
        with anyio.fail_after(60):
            for stranger in strangers:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stranger.receive()
                await stranger.aclose()


async def test_connected_applications_are_bounded() -> None:
    """One too many is closed; the others go on."""
    async with listening(Manager(bounds=ListenerBounds(most_connections=1))) as manager:
        first = await to_thread.run_sync(nt.connect, "127.0.0.1", manager.port, manager.tokens.issue("a"))
        with anyio.fail_after(60):
            while "a" not in manager.conversations:
                await manager.news.wait()
        assert await refused(manager, frame(GREETING + manager.tokens.issue("b").encode()))
        assert await to_thread.run_sync(settled, first, wish(2)) == ["accepted", "consumed"]


@pytest.mark.parametrize("stage", ["asked", "half a frame", "offered", "garbage"])
async def test_a_peer_that_vanishes_leaves_nothing(stage: str) -> None:
    """In whatever state it goes, no connection and no reservation stays."""
    async with listening(Manager()) as manager:
        token = manager.tokens.issue("a")
        async with await anyio.connect_tcp("127.0.0.1", manager.port) as stream:
            data = frame(GREETING + token.encode()) + frame(nt.build(wish()))
            await stream.send(data[:-5] if stage == "half a frame" else data)
            if stage == "offered":
                assert b"NT_NEGOTIATION" in await stream.receive()
            if stage == "garbage":
                await stream.send(b"<NT/>")
        with anyio.fail_after(60):
            while manager.listener.connections or "a" not in manager.endpoints:
                await anyio.wait_all_tasks_blocked()
        assert manager.book.available(CPU) == 6
        assert manager.endpoints["a"].open_negotiations == 0


async def test_a_commitment_that_was_lost_comes_after_a_new_connection(tmp_path: Path) -> None:
    """The connection ends between acceptance and commitment; with the same endpoint both come to the agreement."""
    manager, path = Manager(), tmp_path / "nt.sock"
    async with anyio.create_task_group() as tasks:
        await tasks.start(serve_unix, path, manager.converse)
        first = await to_thread.run_sync(nt.connect_unix, str(path))
        first.send(wish(2))
        accepted = await to_thread.run_sync(first.recv, 10)
        assert accepted is not None
        assert accepted.template is not None
        first.endpoint.send(nt.committed(accepted.template), 0.0)  # said, and never written
        first.endpoint.data_to_send()
        first.close()
        first.endpoint.disconnected(0.0)
        with anyio.fail_after(60):
            while manager.endpoints["a"].state(FIRST) is not State.ACCEPTING:
                await anyio.wait_all_tasks_blocked()
        assert manager.endpoints["a"].state(FIRST) is State.ACCEPTING
        second = await to_thread.run_sync(nt.connect_unix, str(path), first.endpoint)
        event = await to_thread.run_sync(second.recv, 10)
        second.close()
        assert event is not None
        assert event.kind == "consumed"
        tasks.cancel_scope.cancel()


async def test_a_port_that_is_taken() -> None:
    """The error names the port."""
    async with listening(Manager()) as manager:
        with pytest.raises(ServiceRunningError, match=f"port {manager.port}"):
            await manager.listener.serve_tcp(port=manager.port)


async def test_many_applications_share_one_book() -> None:
    """Twenty ask for two each where twelve are free: six get them, and nobody gets what is promised to another."""
    async with listening(Manager(free=12)) as manager:
        results: list[list[str]] = []

        async def one(number: int) -> None:
            token = manager.tokens.issue(f"job {number}")
            connection = await to_thread.run_sync(nt.connect, "127.0.0.1", manager.port, token)
            results.append(await to_thread.run_sync(settled, connection, wish(2)))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(one, number)
        assert sorted(map(tuple, results)) == [("accepted", "consumed")] * 6 + [("ended",)] * 14
        assert manager.book.available(CPU) == 0
