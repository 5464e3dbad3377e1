# SPDX-License-Identifier: Apache-2.0
"""The CK= checksum of WIKI messages: a CRC-16/XMODEM mixed with a 32-bit key by four public Feistel rounds.

It finds damage and wrong keys. It is no security: one captured message gives the key away, because every round can be
run backwards. Pure.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from dataclasses import dataclass, field

_MASK = 0xFFFFFFFF
_LARGEST_UNSIGNED = (1 << 64) - 1
_XOR_BEFORE = (0xCBA4E531, 0x537158EB, 0x145CDC3C, 0x0D3FDEB2)
_XOR_AFTER = (0x12BE4590, 0xAB54CE58, 0x6954C7A6, 0x15A2CA46)
_NUMBER = re.compile(
    r"[ \t\n\v\f\r]*(?P<sign>[+-]?)(?:0[xX](?P<hexadecimal>[0-9a-fA-F]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9][0-9]*))",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The shared key of both sides. Its seed is not shown, so that it stays out of logs."""

    seed: int = field(repr=False)
    """32 bits."""


def read_key(text: str) -> Key:
    """Return the key that Maui and Slurm make of a text: the low 32 bits of C ``strtoul(text, NULL, 0)``.

    So a text that does not begin with a number is 0, and ``037``, ``0x1F`` and ``31`` are one key.
    """
    found = _NUMBER.match(text)
    if not found:
        return Key(seed=0)
    digits, base = next(
        (found[name], base) for name, base in (("hexadecimal", 16), ("octal", 8), ("decimal", 10)) if found[name]
    )
    # More digits than 64 bits can hold: no need to look at their value.
    number = int(digits, base) if len(digits.lstrip("0")) <= 22 else _LARGEST_UNSIGNED + 1  # noqa: PLR2004
    if number > _LARGEST_UNSIGNED:
        number = _LARGEST_UNSIGNED
    elif found["sign"] == "-":
        number = -number
    return Key(seed=number & _MASK)


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
