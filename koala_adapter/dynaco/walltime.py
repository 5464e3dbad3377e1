# SPDX-License-Identifier: Apache-2.0
"""DYNACO for the end of the walltime: an application with a library of its own keeps its size, and is told. Pure.

A process hears how long it may still run as soon as it is in contact, again when that changes, and once more when the
end is near; it is told, too, when that will be, for the time in which it may be out of contact. What it does then is
its own business, such as writing its state to a file. Nothing of this has to be remembered over a restart: who comes
into contact again is told again.

Libraries of earlier versions do not know the note, and would complain of it: who wants it says so in its hello.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.dynaco.adaptation import Tell
from koala_adapter.dynaco.notes import LARGEST_NUMBER, note
from koala_adapter.dynaco.observe import WalltimeMonitor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.dynaco.notes import Note

SLACK = 1.0
"""Seconds; an end that is known better than so is not told again."""


class WalltimeNotices:
    """What the processes of one job are told of the end of its walltime."""

    def __init__(self, warn_before: float) -> None:
        """``warn_before``: seconds before the end at which it is near; 0: never."""
        self._monitor = WalltimeMonitor(warn_before)
        self._hearing: set[int] = set()
        """Ranks in contact whose library knows the note."""
        self._tells: list[Tell] = []

    def ends(self, at: float, ranks: Iterable[int], now: float) -> None:
        """Take in when the first process is ended as its time is over, and which processes there are."""
        self._hearing.intersection_update(ranks)
        known = self._monitor.ends_at
        if known is None or abs(known - at) >= SLACK:
            self._monitor.move(at, now)
            self._monitor.observe(now)
            self._tell(self._hearing, now)

    def heard_hello(self, rank: int, hello: Note, now: float) -> None:
        """Take in that a process is in contact, or in contact again."""
        self._hearing.discard(rank)
        if hello.words.get("ends") == "1":
            self._hearing.add(rank)
            self._tell((rank,), now)

    def lost(self, rank: int) -> None:
        """Take in that a process is out of contact, or over."""
        self._hearing.discard(rank)

    def time_passed(self, now: float) -> None:
        """Tell all when the end has come near."""
        if self._monitor.observe(now) is not None:
            self._tell(self._hearing, now)

    def next_deadline(self) -> float | None:
        """Return when `time_passed` is to be called at the latest; None: not for now."""
        return self._monitor.due

    def take_tells(self) -> list[Tell]:
        """Return what is to be said, once."""
        tells, self._tells = self._tells, []
        return tells

    @property
    def warned(self) -> int:
        """How many processes in contact know that the end is near."""
        return len(self._hearing) if self._monitor.near else 0

    def _tell(self, ranks: Iterable[int], now: float) -> None:
        ends_at = self._monitor.ends_at
        if ends_at is None:
            return
        left = min(LARGEST_NUMBER, int(max(0.0, ends_at - now)))
        words = {"in": left, "near": int(self._monitor.near), "warn": int(self._monitor.warn_before)}
        said = note("ends", **words)
        self._tells.extend(Tell(rank, said) for rank in sorted(ranks))
