# SPDX-License-Identifier: Apache-2.0
r"""Frames of WIKI and their checksum: a size of eight digits, one more byte, and a message.

::

    00000069\nCK=4c44dc484a06c102 TS=1795245659 AUTH=root DT=CMD=GETNODES ARG=0:ALL

A message is usually signed. The size counts what follows the nine bytes. Slurm ends its replies with one NUL that
counts but is not signed; readers ignore everything from the first NUL on. Pure: the caller reads the clock and the
socket.
"""

from __future__ import annotations

import hmac
import re
from binascii import crc_hqx
from dataclasses import dataclass, field
from typing import NoReturn

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.words import LARGEST_UNSIGNED, Status, read_integer

# -- Checksum ------------------------------------------------------------------------------------------------
# The CK= of a message: a CRC-16/XMODEM mixed with a 32-bit key by four public Feistel rounds.
#
# It finds damage and wrong keys. It is no security: one captured message gives the key away, because every round can be
# run backwards. So nothing is signed for a peer that has not shown the key itself.

_MASK = 0xFFFFFFFF
_XOR_BEFORE = (0xCBA4E531, 0x537158EB, 0x145CDC3C, 0x0D3FDEB2)
_XOR_AFTER = (0x12BE4590, 0xAB54CE58, 0x6954C7A6, 0x15A2CA46)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The shared key of both sides. Its seed is not shown, so that it stays out of logs."""

    seed: int = field(repr=False)
    """32 bits."""


def read_key(text: str) -> Key:
    """Return the key that Maui and Slurm make of a text: the low 32 bits of C ``strtoul(text, NULL, 0)``.

    So a text that does not begin with a number is 0, and ``037``, ``0x1F`` and ``31`` are one key.
    """
    number = read_integer(text) or 0
    return Key(seed=(number if abs(number) <= LARGEST_UNSIGNED else LARGEST_UNSIGNED) & _MASK)


def checksum(key: Key, *parts: bytes | bytearray | memoryview) -> bytes:
    """Return the 16 lower-case hexadecimal digits that sign the concatenation of ``parts``.

    What is signed begins with the T of ``TS=`` and ends before a terminating NUL.
    """
    crc = 0
    for part in parts:
        crc = crc_hqx(part, crc)
    return mix(crc, key.seed)


def mix(crc: int, seed: int) -> bytes:
    """Return the four rounds (the psdes hash of the Numerical Recipes book) over CRC and seed as hexadecimal digits."""
    left, right = crc, seed
    for before, after in zip(_XOR_BEFORE, _XOR_AFTER, strict=True):
        mixed = right ^ before
        low, high = mixed & 0xFFFF, mixed >> 16
        product = (low * low + (~(high * high) & _MASK)) & _MASK
        swapped = (product >> 16) | ((product & 0xFFFF) << 16)
        left, right = right, left ^ (((swapped ^ after) + low * high) & _MASK)
    return b"%08x%08x" % (left, right)


# -- Frames --------------------------------------------------------------------------------------------------

HEADER_SIZE = 9
LARGEST_SIZE = 99_999_999
"""All that eight digits can say."""
MAUI_LARGEST_SIZE = 2_097_152
"""Maui closes the connection when a reply is larger; Slurm has no limit."""
REQUEST_SKEW = 300
"""Seconds that the clock of a request may differ from ours (Slurm)."""
REPLY_SKEW = 3600
"""Seconds that the clock of a reply may differ from ours (Maui)."""

_SIZE = re.compile(rb"[ \t]*\+?(?P<size>[0-9]{1,8})[\s\0]*", re.ASCII)
_SIGNATURE = re.compile(rb"CK=(?P<checksum>[0-9a-f]{16})")
_DECIMAL = re.compile(rb"[ \t]*(?P<number>[+-]?[0-9]{1,19})", re.ASCII)
_NOT_IN_USER_NAME = re.compile(rb"[^A-Za-z0-9._@-]")


def seal(message: bytes, *, key: Key | None, timestamp: int, user: str, limit: int = LARGEST_SIZE) -> bytes:
    """Return the frame of a message, signed unless ``key`` is None.

    Raises WikiError when the message with its signature block is larger than ``limit`` bytes.
    """
    if key is None:
        block: tuple[bytes, ...] = ()
    else:
        name = _NOT_IN_USER_NAME.sub(b"_", user.encode()) or b"_"
        signed = b"TS=%d AUTH=%s DT=" % (timestamp, name)
        block = (b"CK=", checksum(key, signed, message), b" ", signed)
    size = sum(map(len, block)) + len(message)
    if size > limit:
        raise WikiError(f"a message of {size} bytes is too large: at most {limit}")
    return b"".join((b"%08d\n" % size, *block, message))


def signature_size(user: str) -> int:
    """Return by how many bytes a signed payload is at most longer than its message."""
    return len("CK= TS= AUTH= DT=") + 16 + 20 + max(1, len(user.encode()))


class FrameReader:
    """Incremental reader of one frame from the bytes of a connection."""

    def __init__(self, *, limit: int = MAUI_LARGEST_SIZE) -> None:
        """``limit`` is the largest payload in bytes that is accepted."""
        self._limit = limit
        self._received = bytearray()
        self._size: int | None = None

    @property
    def missing(self) -> int:
        """Bytes that are certainly still to come: 0 when the payload is complete."""
        wanted = HEADER_SIZE + (self._size or 0)
        return max(0, wanted - len(self._received))

    def feed(self, data: bytes) -> bytes | None:
        """Take some bytes; return the payload once it is complete (what follows it is ignored), else None.

        Raises WikiError, without a status, for a size that is unreadable or too large: the connection must be closed.
        """
        self._received += data
        if self._size is None:
            if len(self._received) < HEADER_SIZE:
                return None
            self._size = read_size(bytes(self._received[:HEADER_SIZE]), limit=self._limit)
        if self.missing:
            return None
        return bytes(self._received[HEADER_SIZE : HEADER_SIZE + self._size])

    def end(self) -> NoReturn:
        """Raise WikiError that says how much came, as the connection ended before the frame was complete."""
        if self._size is None:
            raise WikiError(f"the connection ended after {len(self._received)} of {HEADER_SIZE} bytes of the header")
        got = len(self._received) - HEADER_SIZE
        raise WikiError(f"the connection ended after {got} of {self._size} bytes")


def read_size(header: bytes, *, limit: int = MAUI_LARGEST_SIZE) -> int:
    """Return the payload size that nine bytes announce. Raises WikiError when they do not, or it is above ``limit``.

    Read as Maui and Slurm do: leading blanks and a plus sign are accepted, and the ninth byte may be anything.
    """
    found = _SIZE.fullmatch(header[:8])
    if not found or len(header) < HEADER_SIZE:
        raise WikiError(f"a message begins with its size in eight digits, not with {header!r}")
    size = int(found["size"])
    if size > limit:
        raise WikiError(f"a message of {size} bytes is too large: at most {limit}")
    return size


def open_request(payload: bytes, *, key: Key | None, now: float) -> bytes:
    """Return the message of a request, from ``CMD=`` on, after the checks of a resource manager, in Slurm's order.

    Without a key nothing is checked and the signature block may be missing. With one it must be there and right: also
    in the dialect of Maui, where Slurm did not look at the checksum. Raises WikiError with the status to answer.
    """
    text = _until_nul(payload)
    if key is None and b"CMD=" in text:
        return text[text.find(b"CMD=") :]
    parts = {name: text.find(name) for name in (b"AUTH=", b"DT=", b"TS=")}
    for name, position in parts.items():
        if position < 0:
            raise WikiError(f"request lacks {name[:-1].decode()}", status=Status.BAD_REQUEST)
    timestamp = _number(text[parts[b"TS="] + 3 :])
    if key is not None:
        if timestamp is None or abs(now - timestamp) > REQUEST_SKEW:
            raise WikiError("TS value too far from NOW", status=Status.CLOCK_SKEW)
        if not is_signed(payload, key):
            raise WikiError("bad checksum", status=Status.BAD_CHECKSUM)
    return text[parts[b"DT="] + 3 :]


def is_signed(payload: bytes, key: Key) -> bool:
    """Return whether a request carries a valid checksum for the key, even if the rest of it is malformed."""
    text = _until_nul(payload)
    found, begin = _SIGNATURE.match(text), text.find(b"TS=")
    if not found or begin < 0:
        return False
    return hmac.compare_digest(found["checksum"], checksum(key, memoryview(text)[begin:]))


def open_reply(payload: bytes, *, key: Key | None, now: float) -> bytes:
    """Return the message of a reply, from ``SC=`` on, after the checks of a scheduler (Maui's).

    Without a key nothing is checked and the signature block may be missing. Raises WikiError without a status.
    """
    text = _until_nul(payload)
    data = text.find(b"DT=")
    signature = _SIGNATURE.search(text, 0, data if data >= 0 else len(text))
    if key is None:
        # A signed reply begins with its block; in any other place the letters DT= belong to the message.
        return text[data + 3 :] if data >= 0 and text.startswith((b"CK=", b"TS=", b"AUTH=")) else text
    if data < 0 or not signature:
        raise WikiError("the reply is not signed", hint="is the same key given on both sides?")
    begin = text.find(b"TS=", signature.end())
    timestamp = _number(text[begin + 3 :]) if begin >= 0 else None
    if timestamp is None or abs(now - timestamp) > REPLY_SKEW:
        raise WikiError(f"the time stamp of the reply differs by more than {REPLY_SKEW} s", hint="compare the clocks")
    if signature["checksum"] != checksum(key, memoryview(text)[begin:]):
        raise WikiError("the checksum of the reply is wrong", hint="is the same key given on both sides?")
    return text[data + 3 :]


def _until_nul(payload: bytes) -> bytes:
    end = payload.find(b"\0")
    return payload if end < 0 else payload[:end]


def _number(text: bytes) -> int | None:
    found = _DECIMAL.match(text)
    return int(found["number"]) if found else None
