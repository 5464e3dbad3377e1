# SPDX-License-Identifier: Apache-2.0
"""Notes: what a process of an application and koala say to each other beside negotiation templates. Pure.

A note is one line: a verb, and words ``key=value`` with a space before each. Of a value every byte is percent-encoded
(RFC 3986) but letters, digits and ``._~:,/@[]-``.
"""

import re
from typing import Dict, NamedTuple
from urllib.parse import quote, unquote_to_bytes

VERSION = 1
"""Of the notes; the first frame of a connection names it."""
LARGEST_NOTE = 65536
LARGEST_NUMBER = 2147483647
_SAFE = "._~:,/@[]-"
_VERB = re.compile(r"[a-z][a-z-]{0,31}\Z")
_WORD = re.compile(r"([a-z][a-z_-]{0,31})=((?:[A-Za-z0-9._~:,/@\[\]-]|%[0-9A-Fa-f]{2})*)\Z")
_DIGITS = re.compile(r"[0-9]{1,10}\Z")


class KoalaAppError(Exception):
    """A call that may not be made now, or something that koala refuses; the text says what and why."""


class NoteError(KoalaAppError):
    """What came is no note, or lacks a word."""


class Note(NamedTuple):
    """A verb, and words by their keys."""

    verb: str
    words: Dict[str, str] = {}  # noqa: RUF012 - of a NamedTuple, and never changed

    def text(self, key: str) -> str:
        """Return a word. Raises NoteError when it is missing."""
        if key not in self.words:
            raise NoteError("{} lacks {}=".format(self.verb, key))
        return self.words[key]

    def number(self, key: str) -> int:
        """Return a word that is a number of 0 to 2147483647. Raises NoteError."""
        text = self.text(key)
        if not _DIGITS.match(text) or int(text) > LARGEST_NUMBER:
            raise NoteError("{} has {}={:.40}, which is no number".format(self.verb, key, text))
        return int(text)


def encoded(text: str, safe: str = _SAFE) -> str:
    """Return a text percent-encoded, but for letters, digits and what is safe."""
    return quote(text, safe=safe)


def decoded(text: str) -> str:
    """Return what was percent-encoded. Raises NoteError where that is no UTF-8."""
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise NoteError("a note is in UTF-8") from None


def note_payload(verb: str, **words: object) -> bytes:
    """Return the payload of a note, without its frame. Raises NoteError when it is too large."""
    line = " ".join([verb] + ["{}={}".format(key, encoded(str(value))) for key, value in words.items()])
    payload = line.encode("ascii")
    if len(payload) > LARGEST_NOTE:
        raise NoteError("a note of {} bytes is too large".format(len(payload)))
    return payload


def parse_note(payload: bytes) -> Note:
    """Return the note that a payload is. Raises NoteError."""
    try:
        verb, *rest = payload.decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise NoteError("this is no note: {:.60}".format(repr(payload))) from None
    if not _VERB.match(verb):
        raise NoteError("this is no note: {:.60}".format(repr(payload)))
    words: Dict[str, str] = {}
    for one in rest:
        match = _WORD.match(one)
        if match is None or match.group(1) in words:
            raise NoteError("{} has a word that cannot be: {:.60}".format(verb, one))
        words[match.group(1)] = decoded(match.group(2))
    return Note(verb, words)


def one_line(text: str, longest: int = 500) -> str:
    """Return a text as it may be shown: on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:longest]
