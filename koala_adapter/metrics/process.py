# SPDX-License-Identifier: Apache-2.0
"""What every process of koala counts: who it is, and what it asks of batch systems."""

from __future__ import annotations

import time
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

from koala_adapter import __version__
from koala_adapter.metrics import catalogue as metric
from koala_adapter.metrics.meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable


class CountedWindow(Protocol):
    """How many requests went to a batch system."""

    @property
    def per_minute(self) -> int:
        """The bound."""

    @property
    def total(self) -> int:
        """Those of this process."""

    def recent(self) -> int:
        """Those of the last minute."""


class Observable(Protocol):
    """What runs the commands of a batch system: a CommandRunner."""

    observer: Callable[[str, float, str], None]

    @property
    def window(self) -> CountedWindow:
        """Its bound."""


def process_meter(role: str, *, began_at: float | None = None) -> Meter:
    """Return a meter that says who counts. ``role``: the command. ``began_at``: seconds since 1970; None: now."""
    meter = Meter()
    began = time.time() if began_at is None else began_at

    def who(meter: Meter) -> None:
        meter.set(metric.VERSION, __version__, role, value=1.0)
        meter.set(metric.STARTED_AT, value=began)

    meter.read_with(who)
    return meter


def watch_commands(meter: Meter, cluster: str, commands: Observable) -> None:
    """Count the requests to the batch system of a cluster."""
    commands.observer = partial(_ran, meter, cluster)

    def requests(meter: Meter) -> None:
        window = commands.window
        meter.set(metric.REQUESTS, cluster, value=window.total)
        meter.set(metric.REQUESTS_LAST_MINUTE, cluster, value=window.recent())
        meter.set(metric.REQUESTS_BOUND, cluster, value=window.per_minute)

    meter.read_with(requests)


def _ran(meter: Meter, cluster: str, program: str, seconds: float, failure: str) -> None:
    command = PurePath(program).name
    meter.observe(metric.COMMAND_SECONDS, cluster, command, seconds=seconds)
    if failure:
        meter.add(metric.COMMAND_ERRORS, cluster, command, failure)
