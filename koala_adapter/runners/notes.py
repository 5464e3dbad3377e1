# SPDX-License-Identifier: Apache-2.0
"""What koala and the processes of an adaptive job say beside templates, and what a coordinator takes and returns. Pure.

In order: notes on the line to applications, members, the values of a coordinator, the notes about members.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

from koala_adapter.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.runners.nodes import RelayPlan


# -- Notes: messages between an application and koala beside templates ---------------------------------------
# A note is one line: a verb, then words ``key=value`` with a space before each. Of a value every byte is
# percent-encoded (RFC 3986) except letters, digits and ``._~:,/@[]-``. The application's end is the library
# ``koala_app.py``.

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
    """A message of the protocol: a verb and its parameters."""

    verb: str
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def text(self, key: str) -> str:
        """Return a word of the message. Raises ProtocolError when it is missing."""
        if key not in self.words:
            raise ProtocolError(f"{self.verb} lacks {key}=")
        return self.words[key]

    def number(self, key: str) -> int:
        """Return a word of the message as a number up to 2147483647. Raises ProtocolError."""
        text = self.text(key)
        if not _NUMBER.fullmatch(text) or int(text) > LARGEST_NUMBER:
            raise ProtocolError(f"{self.verb} has {key}={text[:40]}, which is no number")
        return int(text)


def note(verb: str, **words: object) -> Note:
    """Return a message from its verb and words."""
    return Note(verb, MappingProxyType({key: str(value) for key, value in words.items()}))


def payload_of(said: Note) -> bytes:
    """Return a message as the payload of a frame. Raises ProtocolError when it is too large."""
    line = " ".join([said.verb, *(f"{key}={quote(value, safe=_SAFE)}" for key, value in said.words.items())])
    if len(line) > LARGEST_NOTE:
        raise ProtocolError(f"{said.verb} of {len(line)} bytes is too large for the application to read")
    return line.encode("ascii")


def parse_note(payload: bytes) -> Note:
    """Parse the payload of a frame. Raises ProtocolError."""
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
    """Host of a process and how other processes reach it."""

    rank: int
    cluster: str
    address: str
    contact: str = ""
    """Free text of the program."""


def listed(places: Iterable[Place]) -> str:
    """Return processes in the form of a message's word."""
    return ",".join(
        "@".join(quote(one, safe=_SAFE_IN_FIELD) for one in (str(p.rank), p.cluster, p.address, p.contact))
        for p in places
    )


# -- Input and output of a coordinator, as values ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChange:
    """A change of size that is under way by the scheduler's records."""

    number: int
    """The scheduler's."""
    joining: tuple[int, ...] = ()
    """Ranks; their processes are started already."""
    leaving: tuple[int, ...] = ()
    reason: str = ""
    adaptation: int = 0
    """The coordinator's own number, once all processes stood at the point; 0: not yet."""
    point: int = 0
    """The point at which they stood then."""
    made: bool = False
    """All processes have said that they are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Members and wanted change of a component by the scheduler's records."""

    members: tuple[int, ...]
    """Ranks of its processes in the order of their positions, before the changes in ``wanted`` that are not made."""
    places: Mapping[int, Place]
    """Of these, and of all that join or leave; without their contacts."""
    wanted: tuple[WantedChange, ...] = ()
    ended: frozenset[int] = frozenset()
    """Ranks whose processes are over."""
    minimum: int = 1
    maximum: int = 1
    head: Place | None = None
    """The first process of the head component; None: the first member is in its place."""
    relay: RelayPlan | None = None
    """How processes reach those that they cannot reach by themselves; None: nothing is relayed."""
    first_only: bool = False
    """The first member alone speaks with koala, for all others, and starts newcomers itself (MPI)."""

    @property
    def speakers(self) -> tuple[int, ...]:
        """Return the members that have a link to koala."""
        return self.members[:1] if self.first_only else self.members

    def address_for(self, rank: int, place: Place) -> str:
        """Return the address by which a process reaches another one."""
        if self.relay is None:
            return place.address
        return self.relay.address_for(self.places[rank].cluster, place.rank, place.cluster, place.address)

    def awaited(self, wanted: WantedChange) -> tuple[int, ...]:
        """Return the new processes that a change waits for."""
        return () if self.first_only else wanted.joining


@dataclass(frozen=True, slots=True)
class Tell:
    """A message to be sent to a process."""

    rank: int
    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A process made a wrong call or sent a message that is not allowed."""

    rank: int
    text: str


# -- Notes that tell processes the members, at first and at each change --------------------------------------


def after(membership: Membership, wanted: WantedChange) -> tuple[int, ...]:
    """Return the members after a change, in order of position."""
    return (*(rank for rank in membership.members if rank not in wanted.leaving), *wanted.joining)


def welcome_note(membership: Membership, contacts: Mapping[int, str], rank: int) -> Note:
    """Return the message that starts the program in a first member."""
    return note(
        "welcome",
        rank=rank,
        size=len(membership.members),
        members=_listed(membership, membership.members, contacts, rank),
        minimum=membership.minimum,
        maximum=membership.maximum,
        head=_head(membership, rank),
    )


def change_note(membership: Membership, wanted: WantedChange, contacts: Mapping[int, str], rank: int) -> Note:
    """Return the message that describes a change to a process."""
    members = after(membership, wanted)
    return note(
        "change",
        change=wanted.adaptation,
        at=wanted.point,
        size=len(members),
        members=_listed(membership, members, contacts, rank),
        old=",".join(map(str, membership.members)),
        leaving=_listed(membership, wanted.leaving, contacts, rank),
        rank=rank,
        minimum=membership.minimum,
        maximum=membership.maximum,
        head=_head(membership, rank),
        reason=wanted.reason,
    )


def _listed(membership: Membership, ranks: Iterable[int], contacts: Mapping[int, str], rank: int) -> str:
    """Return processes as a word for one of them, by the addresses at which that reaches them."""
    return listed(
        replace(place, address=membership.address_for(rank, place), contact=contacts.get(place.rank, ""))
        for place in (membership.places[one] for one in ranks)
    )


def _head(membership: Membership, rank: int) -> str:
    return membership.address_for(rank, membership.head or membership.places[membership.members[0]])
