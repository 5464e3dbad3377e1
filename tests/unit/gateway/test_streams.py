# SPDX-License-Identifier: Apache-2.0
"""The protocol between koala and a gateway: frames as they are on the wire, windows, and what breaks the rules."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.gateway.streams import (
    DATA,
    END,
    GRANT,
    GROWTH,
    HEAD,
    HELLO,
    MOST_STREAMS,
    OPEN,
    RESET,
    WINDOW,
    Event,
    Streams,
    ViolationError,
    after_hello,
)


def taken(side: Streams) -> bytes:
    """Return what a side has to send, and take it away."""
    data = bytes(side.outgoing)
    side.outgoing.clear()
    return data


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, stream, len(payload)) + payload


def opened(spare: int = 0) -> tuple[Streams, Streams, int]:
    """Return koala's side, the gateway's side and a stream that koala has opened."""
    home, there = Streams(gateway=False, spare=spare), Streams(gateway=True)
    number = home.open({"do": "facts"})
    there.receive(taken(home))
    return home, there, number


def test_what_a_request_and_its_result_look_like() -> None:
    home, there = Streams(gateway=False), Streams(gateway=True)
    number = home.open({"do": "run"})
    home.send(number, b"in")
    home.end(number)
    asked = taken(home)
    assert asked == (
        b'\x01\x00\x00\x00\x01\x00\x00\x00\x0d{"do": "run"}'
        b"\x02\x00\x00\x00\x01\x00\x00\x00\x02in"
        b"\x03\x00\x00\x00\x01\x00\x00\x00\x02{}"
    )
    assert there.receive(asked) == [
        Event(OPEN, 1, content={"do": "run"}),
        Event(DATA, 1, b"in"),
        Event(END, 1),
    ]
    there.grant(1, 7)  # the peer has ended: it needs no credit
    there.end(1, {"status": 0})
    assert home.receive(taken(there)) == [Event(END, 1, content={"status": 0})]
    assert home.credit(1) == 0, "the stream is over"


def test_credit_is_spent_and_granted() -> None:
    home, there, number = opened()
    home.send(number, bytes(WINDOW))
    assert home.credit(number) == 0
    with pytest.raises(ValueError, match="credit"):
        home.send(number, b"x")
    assert sum(len(event.data) for event in there.receive(taken(home))) == WINDOW
    there.grant(number, 10)
    assert home.receive(taken(there)) == [Event(GRANT, number)]
    assert home.credit(number) == 10


def test_a_reset_ends_both_directions() -> None:
    """What is still on its way on the stream is passed over."""
    home, there, number = opened()
    home.send(number, b"late")
    there.reset(number, "not wanted")
    assert home.receive(taken(there)) == [Event(RESET, number, content={"reason": "not wanted"})]
    assert there.receive(taken(home)) == []
    home.send(number, b"dropped")
    home.end(number)
    assert taken(home) == b""


@pytest.mark.parametrize(
    "wrong",
    [
        frame(9, 1),
        frame(DATA, 99, b"x"),
        frame(OPEN, 3, b"{}"),
        frame(OPEN, 2, b"[]"),
        frame(OPEN, 2, b"\xff"),
        frame(DATA, 1, bytes(WINDOW + 1)),
        frame(END, 1, b"{}") + frame(DATA, 1, b"x"),
        frame(GRANT, 1, b"\0"),
        frame(GRANT, 1, b"\xff\xff\xff\xff"),
        HEAD.pack(DATA, 1, 2**31),
        frame(OPEN, 2, b"{}") + frame(OPEN, 2, b"{}"),
    ],
)
def test_what_breaks_the_rules_is_refused(wrong: bytes) -> None:
    home, _, _ = opened()
    with pytest.raises(ViolationError):
        home.receive(wrong)


def test_streams_are_bounded() -> None:
    home = Streams(gateway=False)
    home.receive(b"".join(frame(OPEN, 2 * number, b"{}") for number in range(1, MOST_STREAMS + 1)))
    with pytest.raises(ViolationError):
        home.receive(frame(OPEN, 2 * MOST_STREAMS + 2, b"{}"))


def test_what_a_login_prints_first_is_passed_over() -> None:
    assert after_hello(b"Welcome!\n" + HELLO[:5]) == (None, b"Welcome!\n" + HELLO[:5])
    assert after_hello(b"Welcome!\n" + HELLO + b"\x01") == (b"\x01", b"Welcome!\n")


@given(st.data())
def test_streams_arrive_as_they_were_sent(data: st.DataObject) -> None:
    """Pieces of several streams, cut anywhere on their way, come out in the order of each stream and nothing else."""
    home, there = Streams(gateway=False), Streams(gateway=True)
    numbers = [home.open({"number": index}) for index in range(data.draw(st.integers(1, 4)))]
    sent = dict.fromkeys(numbers, b"")
    for number, piece in data.draw(st.lists(st.tuples(st.sampled_from(numbers), st.binary(max_size=50)), max_size=30)):
        home.send(number, piece)
        sent[number] += piece
    for number in numbers:
        home.end(number, {"sum": len(sent[number])})
    wire = taken(home)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=10)))
    events = [
        event
        for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True)
        for event in there.receive(wire[begin:end])
    ]
    found = dict.fromkeys(numbers, b"")
    for event in events:
        if event.kind == DATA:
            found[event.stream] += event.data
    assert found == sent
    ends = {event.stream: event.content for event in events if event.kind == END}
    assert ends == {number: {"sum": len(sent[number])} for number in numbers}


@given(st.binary(max_size=200))
def test_any_bytes_are_understood_or_refused(noise: bytes) -> None:
    home, _, _ = opened()
    with suppress(ViolationError):
        home.receive(noise)


def test_a_window_that_is_too_narrow_for_the_way_gets_wider() -> None:
    """Only where what has come is taken at once, and as far as there is something to spare."""
    spare = 2 * GROWTH * WINDOW
    home, there, number = opened(spare)

    def sent(*, again: bool = False) -> int:
        """Use all credit, and more of it as it comes back; return what there is of it when all was taken."""
        size = there.credit(number)
        there.send(number, bytes(size))
        assert sum(len(event.data) for event in home.receive(taken(there))) == size
        for _ in range(4):
            home.grant(number, size // 4)
            there.receive(taken(home))
            if again:
                there.send(number, bytes(size // 4))
                home.receive(taken(there))
        return there.credit(number)

    assert sent(again=True) == 0
    home.grant(number, WINDOW)
    there.receive(taken(home))
    assert there.credit(number) == GROWTH * WINDOW
    assert sent() == spare + WINDOW
    assert sent() == spare + WINDOW
    there.end(number)
    home.receive(taken(there))
    other = home.open({"do": "run"})
    home.widen(other, 2 * spare)
    there.receive(taken(home))
    assert there.credit(other) == spare + WINDOW, "what one that has ended leaves is for others"
