# SPDX-License-Identifier: Apache-2.0
"""Times and durations for people, and the marks of a time axis. No I/O, but for the time zone of this host.

A time zone of None is that of this host.
"""

from __future__ import annotations

from calendar import timegm
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
FINE = 10.0
"""Durations below this (seconds) are shown with a decimal."""
STEPS = (
    *(1.0, 2.0, 5.0, 10.0, 30.0),
    *(one * MINUTE for one in (1, 2, 5, 10, 30)),
    *(one * HOUR for one in (1, 2, 3, 6, 12)),
    *(one * DAY for one in (1, 2, 7, 14, 28, 91, 364)),
)
"""Seconds between two marks of an axis, as people divide time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Period of time that a chart shows; in seconds since the epoch."""

    begin: float
    end: float
    zone: tzinfo | None = None

    def share(self, at: float) -> float:
        """Return where a time lies in the period, from 0 to 1 and never outside."""
        return min(1.0, max(0.0, (at - self.begin) / (self.end - self.begin)))

    def marks(self, most: int) -> Iterator[tuple[float, str]]:
        """Yield at most about ``most`` round times with labels; the first of a day is labelled with its date."""
        length = self.end - self.begin
        step = next((one for one in STEPS if length / one <= most), STEPS[-1])
        shift = _local_offset(self.begin, self.zone)
        at, dated = (self.begin + shift) // step * step - shift, ""
        while at <= self.end:
            if at >= self.begin:
                day, clock = date(at, self.zone), f"{datetime.fromtimestamp(at, self.zone):%H:%M:%S}"
                if step >= DAY:
                    yield at, day
                else:
                    short = clock[:5] if step >= MINUTE else clock
                    yield at, short if day == dated else f"{day} {short}"
                dated = day
            at += step


def _local_offset(at: float, zone: tzinfo | None) -> float:
    """Return the UTC offset of a time zone in seconds."""
    return timegm(datetime.fromtimestamp(int(at), zone).timetuple()) - int(at)


def date(at: float, zone: tzinfo | None) -> str:
    """Return the date of a time."""
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d}"


def moment(at: float | None, zone: tzinfo | None) -> str:
    """Return date and time of day; a dash for None."""
    return "-" if at is None else f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M:%S}"


def zone_name(at: float, zone: tzinfo | None) -> str:
    """Return the UTC offset of a time zone as text, such as ``UTC+02:00``."""
    sign, minutes = ("-" if _local_offset(at, zone) < 0 else "+"), abs(_local_offset(at, zone)) // 60
    return f"UTC{sign}{int(minutes // 60):02}:{int(minutes % 60):02}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest sensible units; a dash for None."""
    if seconds is None:
        return "-"
    if seconds < FINE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 2 * MINUTE:
        return f"{whole} s"
    for unit, name, lesser, lesser_name in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")):
        if whole >= unit:
            count, rest = divmod(whole, int(unit))
            return f"{count} {name} {int(rest // lesser):02} {lesser_name}"
    raise AssertionError("there is no unit below a second")
