# SPDX-License-Identifier: Apache-2.0
"""Notes between a process of an application and koala, and the members and changes in them. No I/O.

Notes are all messages beside the negotiation templates. A note is one line: a verb, and words ``key=value`` with a
space before each. In a value every byte is percent-encoded (RFC 3986) but letters, digits and ``._~:,/@[]-``.
"""

import re
from typing import Dict, NamedTuple, Optional, Tuple
from urllib.parse import quote, unquote_to_bytes

# -- Notes ---------------------------------------------------------------------------------------------------

VERSION = 1
"""Of the notes; the first frame of a connection names it."""
LARGEST_NOTE = 65536
LARGEST_NUMBER = 2147483647
_SAFE = "._~:,/@[]-"
_VERB = re.compile(r"[a-z][a-z-]{0,31}\Z")
_WORD = re.compile(r"([a-z][a-z_-]{0,31})=((?:[A-Za-z0-9._~:,/@\[\]-]|%[0-9A-Fa-f]{2})*)\Z")
_DIGITS = re.compile(r"[0-9]{1,10}\Z")


class KoalaAppError(Exception):
    """A call that is not allowed now, or a refusal by koala; the text says why."""


class NoteError(KoalaAppError):
    """A malformed note."""


class Note(NamedTuple):
    """A message between a process and koala: a verb, and words by their keys."""

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


def decoded(text: str) -> str:
    """Decode a percent-encoded text. Raises NoteError unless it is UTF-8."""
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise NoteError("a note is in UTF-8") from None


def note_payload(verb: str, **words: object) -> bytes:
    """Return a note as the payload of a frame. Raises NoteError when it is too large."""
    line = " ".join([verb] + ["{}={}".format(key, quote(str(value), safe=_SAFE)) for key, value in words.items()])
    payload = line.encode("ascii")
    if len(payload) > LARGEST_NOTE:
        raise NoteError("a note of {} bytes is too large".format(len(payload)))
    return payload


def parse_note(payload: bytes) -> Note:
    """Parse the payload of a frame. Raises NoteError."""
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
    """Return a text on one line without control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:longest]


# -- Members of a program, and a change of them --------------------------------------------------------------

_FIELDS = 4


class Member(NamedTuple):
    """One process of the program."""

    rank: int
    """koala's number of it, which is never used again; its rank in the program is its position among the members."""
    cluster: str
    address: str
    """Of its node."""
    contact: str
    """What it gave as its contact when it joined."""


class Change(NamedTuple):
    """A change of the program's processes, which all of them carry out at the same point."""

    number: int
    at: int
    """The point: how often each old member has called point()."""
    old: Tuple[Member, ...]
    """The members before, in the order of their ranks then."""
    members: Tuple[Member, ...]
    """The members afterwards, in the order of their ranks."""
    leaving: Tuple[Member, ...]
    joining: Tuple[Member, ...]
    rank: Optional[int]
    """That of this process afterwards; None: it leaves."""
    old_rank: Optional[int]
    """That of this process before; None: it is new."""
    size: int
    reason: str = ""


class Bounds(NamedTuple):
    """Usable sizes of a component and the host of the program's head, as koala sends them."""

    minimum: int = 1
    maximum: int = LARGEST_NUMBER
    head: str = ""


def parse_members(text: str) -> Tuple[Member, ...]:
    """Parse the members in a word. Raises NoteError."""
    members = tuple(_parse_member(one) for one in text.split(",")) if text else ()
    if len({one.rank for one in members}) != len(members):
        raise NoteError("a member is listed twice")
    return members


def _parse_member(text: str) -> Member:
    fields = [decoded(field) for field in text.split("@")]
    if len(fields) != _FIELDS:
        raise NoteError("a member is RANK@CLUSTER@ADDRESS@CONTACT, not {:.60}".format(text))
    return Member(parse_rank(fields[0]), *fields[1:])


def parse_rank(text: str) -> int:
    """Parse koala's number of a process. Raises NoteError."""
    return Note("member", {"rank": text}).number("rank")


def parse_bounds(note: Note) -> Bounds:
    """Parse sizes and head in a note. Raises NoteError."""
    return Bounds(
        note.number("minimum") if "minimum" in note.words else Bounds().minimum,
        note.number("maximum") if "maximum" in note.words else Bounds().maximum,
        note.words.get("head", ""),
    )


def position(rank: int, members: Tuple[Member, ...]) -> Optional[int]:
    """Return the rank in the program of the process with koala's number ``rank``; None when it is no member."""
    return next((place for place, one in enumerate(members) if one.rank == rank), None)


def parse_change(note: Note, rank: int, known: Tuple[Member, ...]) -> Change:
    """Parse a change for process ``rank``; ``before``: the members that it knew. Raises NoteError."""
    members, leaving = parse_members(note.text("members")), parse_members(note.text("leaving"))
    if len(members) != note.number("size"):
        raise NoteError("change has size={} and {} members".format(note.number("size"), len(members)))
    named = {one.rank: one for one in members + leaving}
    if len(named) != len(members) + len(leaving):
        raise NoteError("change has a member that both stays and leaves")
    if rank not in named:
        raise NoteError("change {} does not name this process, {}".format(note.number("change"), rank))
    if "old" in note.words:
        numbers = [parse_rank(one) for one in note.words["old"].split(",") if one]
        strangers = [one for one in numbers if one not in named]
        if strangers:
            raise NoteError("change names an old member {} that neither stays nor leaves".format(strangers[0]))
        if known and numbers != [one.rank for one in known]:  # what each has would be sought where it is not
            raise NoteError("change names other old members, or in another order, than this process knows")
        old = tuple(named[one] for one in numbers)
    else:
        old = known or tuple(sorted(members + leaving))
    before = {one.rank for one in old}
    return Change(
        number=note.number("change"),
        at=note.number("at"),
        old=old,
        members=members,
        leaving=leaving,
        joining=tuple(one for one in members if one.rank not in before),
        rank=position(rank, members),
        old_rank=position(rank, old),
        size=len(members),
        reason=note.words.get("reason", ""),
    )
