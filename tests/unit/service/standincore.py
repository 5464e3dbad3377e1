# SPDX-License-Identifier: Apache-2.0
"""The core of a service in whose place a scheduler of the tests decides."""

from __future__ import annotations

import sqlite3
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio

from koala_adapter.config.sitefile import ClusterConfig, ControlCenterConfig, SiteConfig
from koala_adapter.service.core import Core
from koala_adapter.service.records import TABLES, NegotiationStore
from koala_adapter.sizes import OWN_SIZES
from tests.sqlite_watch import closed_later

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from koala_adapter.model import ClusterName, PlaceholderId
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import State
    from koala_adapter.slots import Slot
    from koala_adapter.vjm.channel import Launch, Signal


class World(Protocol):
    """A scheduler of the tests and its time."""

    @property
    def state(self) -> State:
        """What the scheduler knows."""

    @property
    def now(self) -> float:
        """The time."""

    def post(self, event: Event) -> object:
        """Give the scheduler an event."""


class Center:
    """In the place of the control center: connects nobody, and takes no order."""

    connected: AbstractSet[PlaceholderId] = frozenset()

    def launch(self, _placeholder: PlaceholderId, _launch: Launch) -> bool:
        return False

    def signal(self, _placeholder: PlaceholderId, _signal: Signal) -> bool:
        return False

    def tell_application(self, _placeholder: PlaceholderId, _task: str, _frame: bytes) -> bool:
        """Take a frame."""
        return False


class StandInCore(Core):
    """State and time are those of a site of the tests; events are posted there, and kept."""

    def __init__(self, world: World, directory: Path = Path("/nonexistent"), center: Center | None = None) -> None:
        """``center``: takes the orders for agents."""
        self.world = world
        self.directory = directory
        self.site = SiteConfig(
            clusters=(ClusterConfig(name="a", plugin="local"),), control_center=ControlCenterConfig(listen="127.0.0.1")
        )
        self.size_rules = OWN_SIZES
        self.center = center or Center()  # type: ignore[assignment]  # all that is asked of it
        self.changed = anyio.Event()
        self.name_prefix = "koala-k-"
        self.user = "alice"
        self.posted: list[Event] = []
        self.shapes: tuple[Slot, ...] = ()
        self.is_holding = self.shrinks_for_others = self.grows = False
        database = closed_later(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
        weakref.finalize(self, database.close)
        database.executescript(TABLES)
        self.negotiations = NegotiationStore(database.execute)

    @property
    def state(self) -> State:
        return self.world.state

    @property
    def holding(self) -> bool:
        return self.is_holding

    @property
    def busy(self) -> bool:
        return True

    def now(self) -> float:
        return self.world.now

    def post(self, event: Event) -> None:
        self.posted.append(event)
        self.world.post(event)

    def others_matter(self, _cluster: ClusterName) -> bool:
        return self.shrinks_for_others

    def shapes_on(self, _cluster: ClusterName) -> tuple[Slot, ...]:
        """Return what was set."""
        return self.shapes

    def growth_waits(self, _cluster: ClusterName) -> bool:
        return self.grows
