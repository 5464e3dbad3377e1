# SPDX-License-Identifier: Apache-2.0
"""Frames: whatever pieces they come in, and whatever they claim."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.schema import LARGEST_TEMPLATE
from koala_adapter.negotiation.serviceside.document import FrameBuffer, frame
from tests.examples import examples, repeated
from tests.unit.negotiation.templates import PUBLISHED, mutated


def test_a_frame_is_a_size_and_so_many_bytes() -> None:
    """As a shell would write it with printf."""
    assert frame(b"<NT/>") == b"00000005\n<NT/>"


@examples(50)
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.lists(st.integers(1, 30), max_size=40))
def test_frames_come_in_any_pieces(payloads: list[bytes], pieces: list[int]) -> None:
    """However the bytes are cut, the payloads are the same."""
    data = b"".join(map(frame, payloads))
    frames, found = FrameBuffer(), []
    for piece in [*pieces, len(data) + 1]:
        found += frames.feed(data[:piece])
        data = data[piece:]
    assert found == payloads
    assert frames.waiting == 0


@pytest.mark.parametrize(
    "data", [b"99999999\n", b"00065537\n", b"00000000\n", b"0000001x\n", b"00000010 x", b"<?xml", b"-1", b"\xff", b"1 "]
)
def test_a_wrong_size_is_refused_at_once(data: bytes) -> None:
    """No byte of the payload is waited for when the header is already wrong."""
    with pytest.raises(NegotiationError, match="frame"):
        FrameBuffer().feed(data)


def test_nothing_is_kept_for_a_claim() -> None:
    """A header that claims 100 MB costs nothing, nor does a thousand honest headers without their payloads."""
    tracemalloc.start()
    with pytest.raises(NegotiationError):
        FrameBuffer(limit=LARGEST_TEMPLATE).feed(b"99999999\n" + b"x" * 1000)
    waiting = [FrameBuffer() for _ in range(1000)]
    for one in waiting:
        assert one.feed(b"%08d\n" % LARGEST_TEMPLATE) == []
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000


@pytest.mark.hypothesis  # random: in the night there is more of it
def test_wounded_frames_are_read_or_refused() -> None:
    """Whatever is done to a stream of frames, payloads come out, or our error."""
    chance = random.Random(12)
    stream = frame(PUBLISHED) * 2
    for _ in range(repeated(5000)):
        frames, data = FrameBuffer(), mutated(stream[:40] if chance.random() < 0.5 else stream, chance)
        try:
            payloads = frames.feed(data)
        except NegotiationError:
            continue
        assert sum(map(len, payloads)) + frames.waiting <= len(data)


@pytest.mark.parametrize("payload", [b"", b"x" * (LARGEST_TEMPLATE + 1)])
def test_no_wrong_frame_can_be_made(payload: bytes) -> None:
    """What a reader would refuse is not written."""
    with pytest.raises(NegotiationError):
        frame(payload)
