# SPDX-License-Identifier: Apache-2.0
"""The service's port over real sockets: who gets in, what strangers may cost, and what a bad peer leaves behind."""

from __future__ import annotations

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketStream

from koala_adapter import negotiation as nt
from koala_adapter.errors import ServiceRunningError
from koala_adapter.host.accepting import Admission
from koala_adapter.negotiation.states import ACCEPTING, CONSUMED
from koala_adapter.service.sizes import port
from koala_adapter.service.sizes.port import Access
from tests.unit.negotiation.templates import Manager, listening

FIRST = ("APPLICATION", "1")


def wish(quantity: int = 14) -> nt.Template:
    """Return a request for processors."""
    return nt.template("1", "APPLICATION", "node7", "head", [nt.resource("CPU", quantity)], direction="grow")


async def connected(access: Access, endpoint: nt.Endpoint | None = None) -> nt.Connection:
    """Return the connection of a program."""
    return await to_thread.run_sync(nt.connect, access.host, access.port, access.token, endpoint)


def settled(connection: nt.Connection, first: nt.Template | None = None) -> list[str]:
    """Take whatever is offered, to the end; return what happened."""
    if first is not None:
        connection.send(first)
    kinds = []
    while (event := connection.recv(60)) is not None:
        kinds.append(event.kind)
        if event.kind in {"consumed", "ended", "closed"}:
            break
        if event.template is not None and event.kind != "agreed":
            answer = nt.accepted if event.kind == "offer" else nt.committed
            connection.send(answer(event.template))
    connection.close()
    return kinds


def greeting(access: Access) -> bytes:
    """Return the first frame of a connection."""
    return nt.frame(nt.GREETING + access.token.encode())


async def stream_to(access: Access) -> SocketStream:
    """Return a bare connection to the port."""
    return await anyio.connect_tcp(access.host, access.port)


async def rest(stream: SocketStream) -> bytes:
    """Return what comes until the connection ends."""
    data = b""
    with anyio.fail_after(60):
        try:
            while True:
                data += await stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return data


async def refused(access: Access, data: bytes) -> bool:
    """Tell whether a connection that says so is closed without a word."""
    async with await stream_to(access) as stream:
        await stream.send(data)
        return not await rest(stream)


async def until_gone(manager: Manager) -> None:
    """Wait until no program is connected."""
    with anyio.fail_after(60):
        while manager.connections:
            await anyio.wait_all_tasks_blocked()


async def test_koala_begins() -> None:
    """Four idle processors are offered to a malleable application, which takes them."""
    async with listening(Manager(offers=4)) as manager:
        connection = await connected(await manager.access())
        assert await to_thread.run_sync(settled, connection) == ["offer", "agreed", "consumed"]
        assert manager.free == 2


@pytest.mark.parametrize(
    "data",
    [
        nt.frame(nt.GREETING),
        nt.frame(nt.GREETING + b"x" * 43),
        nt.frame(nt.build(wish())),
        b"99999999\n",
        b"00000257\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 300,
    ],
)
async def test_a_stranger_is_not_heard(data: bytes) -> None:
    """Without a token there is no conversation, and no template is read."""
    async with listening(Manager()) as manager:
        assert await refused(await manager.access(), data)
        assert manager.endpoints == {}
        assert manager.connections == 0


async def test_a_token_is_good_for_one_connection() -> None:
    """A peer that has seen it on its way cannot use it again; one that is replaced by another is good for none."""
    async with listening(Manager()) as manager:
        access = await manager.access("a")
        await to_thread.run_sync(settled, await connected(access), wish(1))
        assert await refused(access, greeting(access))
        other = await manager.access("b")
        await manager.access("b")
        assert await refused(other, greeting(other))
        assert list(manager.endpoints) == ["a"]


async def test_silent_strangers_are_bounded_in_time_and_number() -> None:
    """The one that has been silent longest goes when there are too many; all go in the end. Programs get in."""
    async with listening(Manager(admission=Admission(limit=3, time_limit=1.0, patience=0.0))) as manager:
        access = await manager.access()
        strangers = [await stream_to(access) for _ in range(6)]
        assert await to_thread.run_sync(settled, await connected(access), wish(2)) == ["accepted", "consumed"]
        for stranger in strangers:
            assert await rest(stranger) == b""
            await stranger.aclose()


async def test_connected_programs_are_bounded() -> None:
    async with listening(Manager(offers=2)) as manager:
        manager.port.most_connections = 1
        first = await connected(await manager.access("a"))
        assert await to_thread.run_sync(first.recv, 60) is not None
        access = await manager.access("b")
        assert await refused(access, greeting(access))
        assert await to_thread.run_sync(settled, first, wish(2)) == ["accepted", "consumed"]


async def test_one_program_speaks_for_a_job_at_a_time() -> None:
    async with listening(Manager(offers=2)) as manager:
        first = await connected(await manager.access())
        assert await to_thread.run_sync(first.recv, 60) is not None
        second = await connected(await manager.access())
        complaint = await to_thread.run_sync(second.recv, 60)
        assert complaint is not None
        assert (complaint.kind, complaint.reason) == (
            "complaint",
            "another program negotiates for this job already",
        )
        second.close()
        assert await to_thread.run_sync(settled, first, wish(2)) == ["accepted", "consumed"]


@pytest.mark.parametrize("stage", ["asked", "half a frame", "offered", "garbage"])
async def test_a_program_that_vanishes_leaves_nothing(stage: str) -> None:
    """In whatever state it goes, no connection stays, and nothing waits for it."""
    async with listening(Manager()) as manager:
        access = await manager.access()
        async with await stream_to(access) as stream:
            data = greeting(access) + nt.frame(nt.build(wish()))
            await stream.send(data[:-5] if stage == "half a frame" else data)
            if stage == "offered":
                assert b"NT_NEGOTIATION" in await stream.receive()
            if stage == "garbage":
                await stream.send(b"<NT/>")
        with anyio.fail_after(60):
            while not manager.endpoints:
                await anyio.wait_all_tasks_blocked()
        await until_gone(manager)
        assert manager.endpoints["1"].open_negotiations == 0  # type: ignore[index]


async def test_a_commitment_that_was_lost_comes_on_a_new_connection() -> None:
    """The connection ends between acceptance and commitment; with the same endpoint both come to the agreement."""
    async with listening(Manager()) as manager:
        first = await connected(await manager.access())
        first.send(wish(2))
        accepted = await to_thread.run_sync(first.recv, 60)
        assert accepted is not None
        assert accepted.template is not None
        first.endpoint.tell(nt.committed(accepted.template), 0.0)  # said, and never written
        first.endpoint.take_outbox()
        first.close()
        first.endpoint.disconnected(0.0)
        await until_gone(manager)
        (endpoint,) = manager.endpoints.values()
        assert endpoint.state(FIRST) == ACCEPTING
        second = await connected(await manager.access(), first.endpoint)
        assert await to_thread.run_sync(settled, second) == ["consumed"]
        assert endpoint.state(FIRST) == CONSUMED


async def test_an_address_of_another_host_is_refused() -> None:
    async with listening(Manager(host="192.0.2.1")) as manager:
        with pytest.raises(ServiceRunningError, match=r"cannot listen on 192\.0\.2\.1: "):
            await manager.access()


async def test_a_program_that_sends_byte_by_byte_is_understood() -> None:
    async with listening(Manager()) as manager:
        access = await manager.access()
        async with await stream_to(access) as stream:
            for byte in greeting(access) + nt.frame(nt.build(wish())):
                await stream.send(bytes([byte]))
            with anyio.fail_after(60):
                assert b"NT_NEGOTIATION" in await stream.receive()


@pytest.mark.parametrize("claim", [b"00065537\n", b"00000000\n"])
async def test_a_claim_of_a_size_that_cannot_be_ends_the_connection(claim: bytes) -> None:
    """Before a byte of it is there, and after a sentence where the peer is known; what came before it counts."""
    async with listening(Manager()) as manager:
        access = await manager.access()
        assert await refused(access, claim)
        async with await stream_to(access) as stream:
            await stream.send(greeting(access) + nt.frame(nt.build(wish(2))) + claim)
            said = [nt.parse(payload) for payload in nt.FrameBuffer().feed(await rest(stream))]
            assert [one.status for one in said] == ["NT_ACCEPTED", "NT_ERROR"]


async def test_a_program_that_does_not_read_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for it for ever: what is not taken in time ends the connection."""
    monkeypatch.setattr(port, "WRITE_WITHIN", 0.2)
    async with listening(Manager()) as manager:
        access = await manager.access()
        async with await stream_to(access) as stream:
            again = nt.frame(nt.build(wish(4))) * 50  # each is answered by the acceptance once more
            await stream.send(greeting(access))
            gone = False
            with anyio.fail_after(60):
                while not gone:
                    try:
                        await stream.send(again)
                    except (anyio.BrokenResourceError, OSError):
                        gone = True
        await until_gone(manager)
