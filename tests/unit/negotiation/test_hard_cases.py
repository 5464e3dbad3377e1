# SPDX-License-Identifier: Apache-2.0
"""Peers that vanish, speak at the same time, say things twice or in the wrong order, are slow, or claim too much.

Whatever they do, nothing is promised twice, and no connection and no reservation stays.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter import negotiation as nt
from koala_adapter.negotiation.serviceside.document import FrameBuffer, frame
from koala_adapter.negotiation.serviceside.endpoint import Ended, OfferAccepted, OfferReceived
from koala_adapter.negotiation.serviceside.states import State
from koala_adapter.negotiation.serviceside.template import (
    Side,
    Template,
    accepted,
    committed,
    countered,
    rejected,
    withdrawn,
)
from koala_adapter.service.sizes import port as conversation
from tests.granting import Granter, Promised, ReservationBook
from tests.unit.negotiation.templates import CPU, carried, pair, request
from tests.unit.negotiation.test_peerlistener import Manager, listening, refused, wish

if TYPE_CHECKING:
    from koala_adapter.negotiation.serviceside.endpoint import Endpoint, Event
    from koala_adapter.negotiation.serviceside.template import NegotiationKey

IDLE = 6


class Table:
    """Resource management with six processors, an application, and what is on its way between them."""

    def __init__(self) -> None:
        """Nothing was said."""
        self.rms, self.application = pair()
        self.book: ReservationBook[Promised] = ReservationBook({CPU: IDLE})
        self.granter = Granter("a", self.rms, self.book)
        self.now = 0.0

    def hear(self, data: bytes) -> list[Event]:
        """Have resource management hear something, and do what follows."""
        events = self.rms.receive(data, self.now)
        for event in events:
            self.granter.handle(event, self.now)
        return events

    def reach(self, state: State) -> NegotiationKey:
        """Bring resource management to a state; what it said last has not arrived."""
        if state in {State.OFFERED, State.ACCEPTED}:
            offer = request(4, initiator=Side.RMS)
            assert self.granter.offer(offer, self.now)
            if state is State.ACCEPTED:
                (event,) = carried(self.rms, self.application)
                assert isinstance(event, OfferReceived)
                self.application.send(accepted(event.template), self.now)
                (told,) = self.rms.receive(self.application.data_to_send(), self.now)  # not committed yet
                assert isinstance(told, OfferAccepted)
            return offer.key
        key = self.application.send(request(4), self.now)
        if state is State.ASKED:
            self.rms.receive(self.application.data_to_send(), self.now)  # not answered yet
            return key
        self.hear(self.application.data_to_send())
        if state in {State.AGREED, State.CONSUMED}:
            (event,) = carried(self.rms, self.application)
            self.application.send(committed(event.template), self.now)  # type: ignore[union-attr]
            self.hear(self.application.data_to_send())
        if state is State.CONSUMED:
            self.granter.allocated(key, self.now)
        return key


@pytest.mark.parametrize(
    ("state", "free"),
    [
        (State.OFFERED, IDLE),
        (State.ASKED, IDLE),
        (State.ACCEPTING, IDLE),
        (State.ACCEPTED, IDLE),
        (State.AGREED, 2),
        (State.CONSUMED, 2),
    ],
)
def test_a_peer_that_vanishes_in_a_state(state: State, free: int) -> None:
    """What was not agreed on is free when the time is over; what was is kept, or used, for it is the job's."""
    table = Table()
    key = table.reach(state)
    assert table.rms.state(key) is state
    for event in table.rms.disconnected(table.now):
        table.granter.handle(event, table.now)
    table.now += 31
    for event in table.rms.time_passed(table.now):
        table.granter.handle(event, table.now)
    table.book.expire(table.now)
    assert table.book.available(CPU) == free
    assert table.rms.open_negotiations == (state is State.AGREED)
    assert table.rms.next_deadline() is None


def test_both_begin_at_the_same_time() -> None:
    """Two negotiations of the same name, one of each side, do not touch each other; both take what is left."""
    table = Table()
    first, second = request(4, initiator=Side.RMS), request(4)
    assert table.granter.offer(first, 0)
    table.application.send(second, 0)
    from_rms, from_application = table.rms.data_to_send(), table.application.data_to_send()
    (offered,) = table.application.receive(from_rms, 0)
    assert isinstance(offered, OfferReceived)
    table.application.send(accepted(offered.template), 0)
    table.hear(from_application)  # of which 2 are left
    table.hear(table.application.data_to_send())
    events = carried(table.rms, table.application)
    countered_ = next(one for one in events if isinstance(one, OfferReceived))
    assert countered_.template.quantities() == {CPU: 2}
    table.application.send(accepted(countered_.template), 0)
    table.hear(table.application.data_to_send())
    carried(table.rms, table.application)
    for key in (first.key, second.key):
        assert table.rms.state(key) is State.AGREED
        assert table.application.state(key) is State.AGREED
    assert table.book.available(CPU) == 0


@pytest.mark.parametrize(
    ("says", "ends"),
    [
        (accepted, State.WITHDRAWN),
        (lambda offer: countered(offer, {CPU: 2}), State.WITHDRAWN),
        (rejected, State.WITHDRAWN),
        (withdrawn, State.WITHDRAWN),
    ],
)
def test_both_speak_at_the_same_time(says: object, ends: State) -> None:
    """An offer is withdrawn while the answer to it is on its way: both know that nothing is agreed on."""
    assert callable(says)
    table = Table()
    offer = request(4, initiator=Side.RMS)
    table.granter.offer(offer, 0)
    (event,) = carried(table.rms, table.application)
    answer: Template = says(event.template)  # type: ignore[union-attr]
    table.application.send(answer, 0)
    table.granter.withdraw(offer.key, "it is gone", 0)
    crossing = table.rms.data_to_send()
    table.hear(table.application.data_to_send())
    events = table.application.receive(crossing, 0) + carried(table.rms, table.application)
    assert table.rms.state(offer.key) is ends
    assert table.application.state(offer.key) in {ends, State.REJECTED}
    assert all(isinstance(one, Ended) for one in events)
    assert table.rms.receive(table.application.data_to_send(), 0) == []
    assert table.book.available(CPU) == IDLE


def frames_of(*endpoints: Endpoint) -> list[bytes]:
    """Return what is to be sent, frame by frame."""
    return [frame(payload) for one in endpoints for payload in FrameBuffer().feed(one.data_to_send())]


def test_commitments_that_come_twice_and_late_in_any_order() -> None:
    """After a reconnect, all that was said of three negotiations comes again in every order: each is agreed on once."""
    table = Table()
    said: list[bytes] = []
    commitments: list[bytes] = []  # of which none arrives before the connection ends
    for name in ("1", "2", "3"):
        table.application.send(request(2, agreement_id=name), 0)
        said += (frames := frames_of(table.application))
        table.hear(b"".join(frames))
        (event,) = carried(table.rms, table.application)
        table.application.send(committed(event.template), 0)  # type: ignore[union-attr]
        commitments += frames_of(table.application)
    for event in table.rms.disconnected(1):
        table.granter.handle(event, 1)
    table.application.disconnected(1)
    table.application.resumed()
    again = frames_of(table.application)
    assert sorted(again) == sorted(commitments)
    for order in itertools.permutations([*commitments, *again[:1], said[0]]):
        for one in order:
            table.hear(one)
    keys = [request(2, agreement_id=name).key for name in ("1", "2", "3")]
    assert [table.rms.state(key) for key in keys] == [State.AGREED] * 3
    for key in (*keys, *keys):
        table.granter.allocated(key, 2)
    assert table.book.available(CPU) == 0
    table.hear(b"".join(commitments))
    assert [table.rms.state(key) for key in keys] == [State.CONSUMED] * 3


@pytest.mark.anyio
async def test_a_peer_that_sends_byte_by_byte_is_understood() -> None:
    """However slow it is, once it has shown its token."""
    async with listening(Manager()) as manager:
        token = manager.tokens.issue("a")
        async with await anyio.connect_tcp("127.0.0.1", manager.port) as stream:
            for byte in frame(nt.GREETING + token.encode()) + nt.frame(nt.build(wish())):
                await stream.send(bytes([byte]))
            with anyio.fail_after(60):
                assert b"NT_NEGOTIATION" in await stream.receive()


@pytest.mark.anyio
@pytest.mark.parametrize("claim", [b"99999999\n", b"00065537\n", b"00000000\n", b"+0000100\n"])
async def test_a_claim_of_a_size_that_cannot_be_ends_the_connection(claim: bytes) -> None:
    """Before a byte of it is there, and after a sentence where the peer is known."""
    async with listening(Manager()) as manager:
        assert await refused(manager, claim)
        token = manager.tokens.issue("a")
        async with await anyio.connect_tcp("127.0.0.1", manager.port) as stream:
            await stream.send(frame(nt.GREETING + token.encode()) + claim)
            data = b""
            with anyio.fail_after(60):
                try:
                    while True:
                        data += await stream.receive()
                except anyio.EndOfStream:
                    pass
            assert nt.parse(data[nt.HEADER_SIZE :]).status == "NT_ERROR"


@pytest.mark.anyio
async def test_a_peer_that_does_not_read_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept for it for ever: what is not taken in time ends the connection, and the reservation."""
    monkeypatch.setattr(conversation, "WRITE_WITHIN", 0.2)
    async with listening(Manager()) as manager:
        token = manager.tokens.issue("a")
        async with await anyio.connect_tcp("127.0.0.1", manager.port) as stream:
            again = nt.frame(nt.build(wish(4))) * 50  # each is answered by the acceptance once more
            await stream.send(frame(nt.GREETING + token.encode()))
            gone = False
            with anyio.fail_after(60):
                while not gone:
                    try:
                        await stream.send(again)
                    except (anyio.BrokenResourceError, OSError):
                        gone = True
        with anyio.fail_after(60):
            while manager.listener.connections:
                await anyio.wait_all_tasks_blocked()
        for event in manager.endpoints["a"].time_passed(anyio.current_time() + 60):
            assert isinstance(event, Ended)
        assert manager.endpoints["a"].open_negotiations == 0
