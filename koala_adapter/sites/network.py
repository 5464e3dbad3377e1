# SPDX-License-Identifier: Apache-2.0
"""Estimate of bandwidth and latency between this host and a site. Pure: observations and times in, numbers out.

The bandwidth is all bytes that were moved by the seconds that this took, where what was observed earlier counts less:
half after ``HALF_LIFE`` seconds, and half after ``HALF_SIZE`` further bytes. So a transfer of 300 MiB counts more than
a measurement of 1 MiB, and the estimate is never outside of what was observed. After ``FORGOTTEN_AFTER`` seconds
without an observation nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

HALF_LIFE = 3600.0
HALF_SIZE = 256 * 1024**2
FORGOTTEN_AFTER = 86_400.0
SMALLEST = 64 * 1024
"""Bytes below which a transfer tells of latency, and nothing of bandwidth."""
NOTICEABLE = 0.2
"""Part of a bandwidth by which it must have changed for the scheduler to be told."""
MIB = 1024**2

MEASURED, TRANSFER = "measured", "transfer"
"""Where the latest observation of a bandwidth is from: a small transfer made for it, or a real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEstimate:
    """What was observed of the way to one site."""

    size: float = 0.0
    """Bytes that were moved, those of earlier observations by their weight."""
    seconds: float = 0.0
    """That this took, weighted in the same way."""
    moved_at: float | None = None
    """Time of the latest observation; None: there was none."""
    source: str = ""
    """That of the latest observation."""
    latency: float | None = None
    """Seconds of a round trip, when that was measured last."""
    latency_at: float | None = None

    def moved(self, size: int, seconds: float, *, now: float, source: str) -> NetworkEstimate:
        """Return the estimate after a transfer; a very small one changes nothing."""
        if size < SMALLEST or seconds <= 0:
            return self
        weight = 0.0
        if self.moved_at is not None and now - self.moved_at < FORGOTTEN_AFTER:
            weight = 0.5 ** (max(0.0, now - self.moved_at) / HALF_LIFE + size / HALF_SIZE)
        return replace(
            self,
            size=self.size * weight + size,
            seconds=self.seconds * weight + seconds,
            moved_at=now,
            source=source,
        )

    def answered(self, latency: float, *, now: float) -> NetworkEstimate:
        """Return the estimate after a measurement of the round trip."""
        return replace(self, latency=latency, latency_at=now)

    def bandwidth(self, now: float) -> float | None:
        """Return MiB/s; None: not known, or too long ago."""
        if self.moved_at is None or now - self.moved_at >= FORGOTTEN_AFTER:
            return None
        return self.size / self.seconds / MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What was observed of the way from one site to another one, on which this host is not."""

    estimate: NetworkEstimate = NetworkEstimate()
    sender_listens: bool = False
    """The receiver connects to the sender: it was found that the sender cannot connect to the receiver."""
    closed_at: float | None = None
    """When neither could connect to the other one; None: one could, or it was not tried."""
    trouble: str = ""
    """What was said then."""

    def is_closed(self, now: float) -> bool:
        """Tell whether it is known that neither can connect to the other one."""
        return self.closed_at is not None and now - self.closed_at < FORGOTTEN_AFTER

    def opened(self, *, sender_listens: bool) -> Route:
        """Return the route after a connection was made."""
        return replace(self, sender_listens=sender_listens, closed_at=None, trouble="")

    def closed(self, trouble: str, *, now: float) -> Route:
        """Return the route after no connection could be made."""
        return replace(self, closed_at=now, trouble=trouble)


def differs(known: float | None, found: float | None) -> bool:
    """Tell whether a bandwidth differs noticeably from the one that is known."""
    if known is None or found is None:
        return known is not found
    return abs(found - known) > NOTICEABLE * known
