# SPDX-License-Identifier: Apache-2.0
"""What a coordinator of changes is told and what it tells: values. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from koala_adapter.dynaco.notes import Note, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChange:
    """A change of size that the scheduler's records say is under way."""

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
    """A component as the scheduler's records have it."""

    members: tuple[int, ...]
    """Ranks of its processes in the order of their positions, before the changes in ``wanted`` that are not made."""
    places: Mapping[int, Place]
    """Of these, and of all that join or leave; without their contacts."""
    wanted: tuple[WantedChange, ...] = ()
    ended: frozenset[int] = frozenset()
    """Ranks whose processes are over."""
    minimum: int = 1
    maximum: int = 1
    head: str = ""
    """Host of the head component; empty: the first member's."""
    first_only: bool = False
    """The first member alone speaks with koala, for all others, and starts newcomers itself (MPI)."""

    @property
    def speakers(self) -> tuple[int, ...]:
        """Return the members that speak with koala."""
        return self.members[:1] if self.first_only else self.members

    def awaited(self, wanted: WantedChange) -> tuple[int, ...]:
        """Return the newcomers that must have joined before a change."""
        return () if self.first_only else wanted.joining


@dataclass(frozen=True, slots=True)
class Tell:
    """Say something to a process."""

    rank: int
    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class AllStand:
    """All old members stand at the point, and all newcomers have joined: the change can be made."""

    number: int
    adaptation: int
    point: int
    leaving: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllDone:
    """All processes have carried the change out, and wait to be told that they may go on."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The change is not made: the application goes on as it is."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """A process says that a call was wrong, or says itself what it may not say."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A process has not carried the change out in its time: it is taken as lost, and its part of the data with it."""

    rank: int
    reason: str


Report: TypeAlias = AllStand | AllDone | GivenUp | Complaint | Overdue
