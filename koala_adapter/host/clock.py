# SPDX-License-Identifier: Apache-2.0
"""The service clock: seconds that never go back, however the time of day of this machine is set.

It begins at the time of day and advances with the time since boot, which counts suspension and is never set. After a
restart of the service on the same boot it continues exactly; after a reboot the time of day tells how long the machine
was down. Users are shown the time of day that a time of this clock corresponds to *now*, so that it agrees with their
own clocks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STEP = 1.0
"""Seconds by which time of day and service clock must move against each other for the time of day to have been set."""


def seconds_since_boot() -> float:
    """Return the seconds since this machine was booted, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's id of this boot; empty where it has none, so that it equals no other."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClocks:
    """Readings of a machine's clocks at one moment."""

    time_of_day: Callable[[], float] = time.time
    """Seconds since the epoch, as the machine believes; may be set at any time, in either direction."""
    since_boot: Callable[[], float] = seconds_since_boot
    boot: str = ""
    """Name of the boot; empty: not known."""

    @classmethod
    def of_this_machine(cls) -> HostClocks:
        """Read this machine's clocks."""
        return cls(boot=boot_id())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReading:
    """Readings of all clocks at one moment, from which a later process continues the service clock."""

    time: float
    """The service clock."""
    time_of_day: float
    since_boot: float
    boot: str


class ServiceClock:
    """Clock of a service that never goes back, also over restarts."""

    def __init__(
        self, clocks: HostClocks | None = None, *, before: ClockReading | None = None, latest: float | None = None
    ) -> None:
        """``before``: reading of an earlier process; ``latest``: last recorded time, which is not gone behind.

        ``clocks``: None: those of this machine.
        """
        self._clocks = clocks or HostClocks.of_this_machine()
        self._zero = self._first(before, latest) - self._clocks.since_boot()
        self._offset = 0.0
        self._told = self.offset

    def _first(self, before: ClockReading | None, latest: float | None) -> float:
        found = self._clocks.time_of_day()
        if before is not None:
            since_boot = self._clocks.since_boot() - before.since_boot
            same_boot = before.boot and before.boot == self._clocks.boot and since_boot >= 0
            away = since_boot if same_boot else max(0.0, found - before.time_of_day)
            found = before.time + away
        return found if latest is None else max(found, latest)

    def now(self) -> float:
        """Return the time in seconds: that since the epoch as long as the time of day is not set."""
        return self._zero + self._clocks.since_boot()

    @property
    def offset(self) -> float:
        """Seconds to add to a time of this clock to get the present time of day.

        It changes only when the time of day is set, so that what is shown of the same time stays the same.
        """
        found = self._clocks.time_of_day() - self.now()
        if abs(found - self._offset) >= STEP:
            self._offset = round(found, 3)
        return self._offset

    def reading(self) -> ClockReading:
        """Return all clocks as they stand now."""
        since_boot = self._clocks.since_boot()
        return ClockReading(
            time=self._zero + since_boot,
            time_of_day=self._clocks.time_of_day(),
            since_boot=since_boot,
            boot=self._clocks.boot,
        )

    def step(self) -> float:
        """Return by how many seconds the time of day was set since the last call."""
        before, self._told = self._told, self.offset
        return self._told - before
