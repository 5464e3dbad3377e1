# SPDX-License-Identifier: Apache-2.0
"""Clocks of a machine that a test moves by hand."""

from __future__ import annotations

from koala_adapter.host.clock import HostClocks

NOON = 1_800_000_000.0
"""A time of day, in seconds since the epoch."""
HOUR = 3600.0


class SteppedClocks:
    """Time that passes, and a time of day that is set while it does."""

    def __init__(self, *, time_of_day: float = NOON, since_boot: float = 500.0, boot: str = "first boot") -> None:
        self.time_of_day = time_of_day
        self.since_boot = since_boot
        self.boot = boot

    @property
    def clocks(self) -> HostClocks:
        return HostClocks(time_of_day=lambda: self.time_of_day, since_boot=lambda: self.since_boot, boot=self.boot)

    def passes(self, seconds: float) -> None:
        self.time_of_day += seconds
        self.since_boot += seconds

    def is_set(self, seconds: float) -> None:
        self.time_of_day += seconds

    def reboots(self, seconds: float) -> None:
        """Boot the machine again; it is away for so many seconds."""
        self.time_of_day += seconds
        self.since_boot, self.boot = 3.0, f"{self.boot}, another"
