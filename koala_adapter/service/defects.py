# SPDX-License-Identifier: Apache-2.0
"""The events on which the scheduler failed, and what an operator is told of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TOLD_FOR = 86400.0
"""Seconds for which the operator is told of an event that was set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAside:
    """An event on which the scheduler failed, and which it therefore goes on without."""

    number: int
    time: float
    """By the service clock."""
    event_type: str
    event: str
    """The event itself, as JSON."""
    failure: str
    """The traceback."""

    @property
    def summary(self) -> str:
        """The last line of the traceback: what went wrong."""
        return self.failure.strip().rpartition("\n")[2]

    def sentence(self, now: float) -> str:
        """Say it to an operator, at a time of the service clock."""
        what, ago = f"event {self.number} ({self.event_type})", max(0.0, now - self.time) / 60
        return f"a defect of koala: {what} was set aside {ago:.0f} min ago: {self.summary}"


def sentences(set_aside: Iterable[SetAside], now: float) -> list[str]:
    """Return what an operator is to be told, at a time of the service clock, of the events set aside of late."""
    return [one.sentence(now) for one in set_aside if now - one.time <= TOLD_FOR]
