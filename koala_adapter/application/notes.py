# SPDX-License-Identifier: Apache-2.0
"""The processes of a program, and a change of them, as koala tells of them. Pure."""

from typing import Iterable, NamedTuple, Optional, Tuple

from koala_adapter.application.library.notes import LARGEST_NUMBER, Note, NoteError, decoded, encoded

_SAFE_IN_FIELD = "._~:/[]-"
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
    """What koala says with the members: sizes that are possible, and the host of the program's head."""

    minimum: int = 1
    maximum: int = LARGEST_NUMBER
    head: str = ""


def members_text(members: Iterable[Member]) -> str:
    """Return members as the value of a word."""
    return ",".join("@".join(encoded(str(field), _SAFE_IN_FIELD) for field in one) for one in members)


def parse_members(text: str) -> Tuple[Member, ...]:
    """Return the members that a word lists. Raises NoteError."""
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
    """Return koala's number of a process. Raises NoteError."""
    return Note("member", {"rank": text}).number("rank")


def parse_bounds(note: Note) -> Bounds:
    """Return what a note says of sizes and head. Raises NoteError."""
    return Bounds(
        note.number("minimum") if "minimum" in note.words else Bounds().minimum,
        note.number("maximum") if "maximum" in note.words else Bounds().maximum,
        note.words.get("head", ""),
    )


def position(rank: int, members: Tuple[Member, ...]) -> Optional[int]:
    """Return the rank in the program of the process that koala calls so; None: it is none of these."""
    return next((place for place, one in enumerate(members) if one.rank == rank), None)


def parse_change(note: Note, rank: int, known: Tuple[Member, ...]) -> Change:
    """Return the change that a note tells the process ``rank``, which knew these members before. Raises NoteError."""
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
