# SPDX-License-Identifier: Apache-2.0
"""Frames of a negotiation: a size of eight digits, a line feed, and so many bytes. Pure."""

import re
from typing import Optional

from koala_adapter.negotiation.applicationside.values import LARGEST_TEMPLATE, NegotiationError, require

HEADER_SIZE = 9


def frame(payload: bytes) -> bytes:
    """Return the frame of a template: its size in eight digits, a line feed, and itself."""
    require(1 <= len(payload) <= LARGEST_TEMPLATE, "the size of a frame", len(payload))
    return b"%08d\n" % len(payload) + payload


def unframed(received: bytearray) -> Optional[bytes]:
    """Take the first payload out of what was received; None: it is not complete. Raises NegotiationError."""
    header = bytes(received[:HEADER_SIZE])
    if not re.match(rb"[0-9]{8}\n\Z" if len(header) == HEADER_SIZE else rb"[0-9]*\Z", header):
        raise NegotiationError("a frame begins with its size in eight digits and a line feed")
    if len(header) < HEADER_SIZE:
        return None
    size = int(header)
    require(1 <= size <= LARGEST_TEMPLATE, "the size of a frame", size)
    if len(received) < HEADER_SIZE + size:
        return None
    payload = bytes(received[HEADER_SIZE : HEADER_SIZE + size])
    del received[: HEADER_SIZE + size]
    return payload
