# SPDX-License-Identifier: Apache-2.0
r"""Frames of a negotiation: a size of eight digits, a line feed, and so many bytes of one template. Pure.

::

    00000542\n<?xml version="1.0" encoding="UTF-8"?> ...

A size that is none, or too large, is refused when its nine bytes are there: nothing is kept for what it claims.
"""

from __future__ import annotations

import re

from koala_adapter.errors import NegotiationError
from koala_adapter.negotiation.templatexml import LARGEST_TEMPLATE

HEADER_SIZE = 9
_HEADER = re.compile(rb"[0-9]{8}\n")
_HEADER_SO_FAR = re.compile(rb"[0-9]{0,8}")


def frame(payload: bytes) -> bytes:
    """Return the frame of a template. Raises NegotiationError when it is empty or too large."""
    if not 1 <= len(payload) <= LARGEST_TEMPLATE:
        raise NegotiationError(f"a frame holds 1 to {LARGEST_TEMPLATE} bytes, not {len(payload)}")
    return b"%08d\n%b" % (len(payload), payload)


class FrameBuffer:
    """Takes the bytes of one connection in whatever pieces they come, and gives the payloads of its frames."""

    def __init__(self, *, limit: int = LARGEST_TEMPLATE) -> None:
        """``limit`` is the largest payload in bytes that is accepted."""
        self._limit = limit
        self._received = bytearray()

    @property
    def waiting(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._received)

    @property
    def missing(self) -> int:
        """Bytes that are certainly still to come before a payload is complete."""
        if len(self._received) < HEADER_SIZE:
            return HEADER_SIZE - len(self._received)
        return HEADER_SIZE + int(self._received[:HEADER_SIZE]) - len(self._received)

    def feed(self, data: bytes) -> list[bytes]:
        """Take some bytes and return the payloads that are complete with them.

        Raises NegotiationError for a size that is none or too large: the connection must be closed.
        """
        if not self._received and _HEADER.match(data):
            claimed = int(data[:HEADER_SIZE])
            if len(data) == HEADER_SIZE + claimed and 1 <= claimed <= self._limit:
                return [data[HEADER_SIZE:]]  # one whole frame and nothing else, as it nearly always is
        payloads = []
        self._received += data
        while (size := self._size()) is not None and len(self._received) >= HEADER_SIZE + size:
            payloads.append(bytes(self._received[HEADER_SIZE : HEADER_SIZE + size]))
            del self._received[: HEADER_SIZE + size]
        return payloads

    def _size(self) -> int | None:
        header = bytes(self._received[:HEADER_SIZE])
        if len(header) < HEADER_SIZE and _HEADER_SO_FAR.fullmatch(header):
            return None
        if not _HEADER.fullmatch(header):
            raise NegotiationError(f"a frame begins with its size in eight digits and a line feed, not with {header!r}")
        size = int(header)
        if not 1 <= size <= self._limit:
            raise NegotiationError(f"a frame of {size} bytes is refused: from 1 to {self._limit}")
        return size
