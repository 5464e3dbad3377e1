# SPDX-License-Identifier: Apache-2.0
"""DYNACO, observe: what happens to a running application that may make it adapt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The scheduler would like the application to change its size."""

    component: str
    cluster: ClusterName
    processors: int
    """By how many."""
    size: int
    """Processors that the component has on all clusters, without those that it has agreed to give up."""
    minimum: int
    maximum: int
    coming: tuple[int, ...] = ()
    """Processors that it has accepted elsewhere and does not have: by each growth, which may come to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowOffer(Observation):
    """Processors could be had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRequest(Observation):
    """Processors are wanted back; the request is to be met as far as the minimum allows."""


@dataclass(frozen=True, slots=True)
class WalltimeNear:
    """The processes of the application are about to be ended, as their time is over. Its size stays as it is."""

    seconds_left: float


@dataclass(slots=True)
class WalltimeMonitor:
    """Sees how far the end of the time of an application is; all times are of one clock, in seconds."""

    warn_before: float
    """So long before the end, the end is near; 0: it never is."""
    ends_at: float | None = None
    """When the processes are ended; None: not known."""
    near: bool = False
    """That the end is near was observed, and it has not moved away since."""

    def move(self, ends_at: float, now: float) -> None:
        """Note that the processes are ended at another time than was known."""
        self.ends_at = ends_at
        self.near = self.near and ends_at - self.warn_before <= now

    def observe(self, now: float) -> WalltimeNear | None:
        """Return the event, once it has come, and then only once."""
        if self.ends_at is None or self.due is None or now < self.due:
            return None
        self.near = True
        return WalltimeNear(max(0.0, self.ends_at - now))

    @property
    def due(self) -> float | None:
        """When to look next; None: not before the end moves."""
        if self.ends_at is None or self.near or not self.warn_before:
            return None
        return self.ends_at - self.warn_before
