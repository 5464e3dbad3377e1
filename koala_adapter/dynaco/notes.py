# SPDX-License-Identifier: Apache-2.0
"""Notes: what an application and koala say to each other beside negotiation templates. Pure.

A note is one line: a verb, then words ``key=value`` with a space before each. Of a value every byte is percent-encoded
(RFC 3986) but letters, digits and ``._~:,/@[]-``. The application's end is ``koala_app.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from koala_adapter.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LARGEST_NOTE = 65_536
"""Bytes."""
LARGEST_NUMBER = 2**31 - 1

_SAFE = "._~:,/@[]-"
_SAFE_IN_FIELD = "._~:/[]-"
_VERB = re.compile(r"[a-z][a-z-]{0,31}", re.ASCII)
_WORD = re.compile(r"([a-z][a-z_-]{0,31})=((?:[A-Za-z0-9._~:,/@\[\]-]|%[0-9A-Fa-f]{2})*)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Note:
    """A verb, and words by their keys."""

    verb: str
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def text(self, key: str) -> str:
        """Return a word. Raises ProtocolError when it is missing."""
        if key not in self.words:
            raise ProtocolError(f"{self.verb} lacks {key}=")
        return self.words[key]

    def number(self, key: str) -> int:
        """Return a word that is a number of 0 to 2147483647. Raises ProtocolError."""
        text = self.text(key)
        if not _NUMBER.fullmatch(text) or int(text) > LARGEST_NUMBER:
            raise ProtocolError(f"{self.verb} has {key}={text[:40]}, which is no number")
        return int(text)


def note(verb: str, **words: object) -> Note:
    """Return a note with these words."""
    return Note(verb, MappingProxyType({key: str(value) for key, value in words.items()}))


def payload_of(said: Note) -> bytes:
    """Return what stands in the frame of a note. Raises ProtocolError when it is too large."""
    line = " ".join([said.verb, *(f"{key}={quote(value, safe=_SAFE)}" for key, value in said.words.items())])
    if len(line) > LARGEST_NOTE:
        raise ProtocolError(f"{said.verb} of {len(line)} bytes is too large for the application to read")
    return line.encode("ascii")


def parse_note(payload: bytes) -> Note:
    """Return the note that stands in a frame. Raises ProtocolError."""
    verb, *rest = payload.decode("ascii", "replace").split(" ")
    if not payload.isascii() or not _VERB.fullmatch(verb):
        raise ProtocolError(f"this is no note: {payload[:60]!r}")
    words: dict[str, str] = {}
    for one in rest:
        match = _WORD.fullmatch(one)
        if match is None or match[1] in words:
            raise ProtocolError(f"{verb} has a word that cannot be: {one[:60]!r}")
        try:
            words[match[1]] = unquote_to_bytes(match[2]).decode("utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("a note is in UTF-8") from None
    return Note(verb, MappingProxyType(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process is, and how the others reach it."""

    rank: int
    cluster: str
    address: str
    contact: str = ""
    """Free text of the program."""


def listed(places: Iterable[Place]) -> str:
    """Return processes as the value of a word."""
    return ",".join(
        "@".join(quote(one, safe=_SAFE_IN_FIELD) for one in (str(p.rank), p.cluster, p.address, p.contact))
        for p in places
    )
