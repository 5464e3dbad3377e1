# SPDX-License-Identifier: Apache-2.0
"""What koala knows of one process of an adaptive component, as it said last. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.errors import ProtocolError

if TYPE_CHECKING:
    from koala_adapter.dynaco.notes import Note

VERSION = 1
"""Of the notes."""
LONGEST_CONTACT = 200
"""Bytes."""


class Stand(StrEnum):
    """Where a process is in a change."""

    NEW = "new"
    """It has joined, and is no member yet."""
    RUNNING = "running"
    ARMED = "armed"
    """It will stop at the point that was agreed on."""
    WAITING = "waiting"
    """It stands there."""
    CHANGING = "changing"
    """It has the change, and has not said that it is done."""
    DONE = "done"
    """It waits for the others."""
    LEFT = "left"
    """It was taken out and may only leave."""


@dataclass(slots=True)
class Process:
    """One process; what it says later is noted here."""

    stand: Stand
    change: int
    """Number of the change that it is in; of the last one that has ended for it, while it is new or running."""
    at: int
    reached: int
    contact: str = ""
    sizes: str = "any"
    begun_anew: bool = False
    """It was started again in the middle of a change (MPI programs that restart), and is to hear of it once more."""
    leaving: bool = False
    """It is about to exit."""

    def in_change(self, number: int, *stands: Stand) -> bool:
        """Tell whether it is in one of these stands for a change."""
        return self.change == number and self.stand in stands

    def past(self, number: int) -> bool:
        """Tell whether a change has ended for it."""
        return self.stand in {Stand.RUNNING, Stand.LEFT} and self.change >= number

    def move(self, stand: Stand, change: int, at: int = 0) -> None:
        """Note where it is now."""
        self.stand, self.change, self.at = stand, change, at


def process_of(hello: Note) -> Process:
    """Return what a process says of itself in its first note. Raises ProtocolError."""
    if hello.number("version") != VERSION:
        raise ProtocolError(f"hello has version={hello.text('version')}: koala speaks {VERSION}")
    try:
        stand = Stand(hello.text("state"))
    except ValueError:
        raise ProtocolError(f"hello has state={hello.text('state')[:40]}, which is none") from None
    contact = hello.words.get("contact", "")
    if len(contact.encode()) > LONGEST_CONTACT:
        raise ProtocolError(f"hello has a contact of more than {LONGEST_CONTACT} bytes")
    return Process(
        stand=stand,
        change=hello.number("change"),
        at=hello.number("at"),
        reached=hello.number("reached"),
        contact=contact,
        sizes=hello.words.get("sizes", "any")[:40],
        begun_anew=stand is Stand.DONE and hello.words.get("restart") == "1",
    )
