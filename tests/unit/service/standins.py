# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for parts of a service and of its machine: the core, clocks, an agent."""

from __future__ import annotations

import sqlite3
import ssl
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio.streams.tls import TLSStream

from koala_adapter.config.sitefile import ClusterConfig, ControlCenterConfig, SiteConfig
from koala_adapter.host.clock import HostClocks
from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.service.core import Core
from koala_adapter.service.records import TABLES, NegotiationStore
from koala_adapter.sizes import OWN_SIZES
from koala_adapter.vjm import channel
from tests.sqlite_watch import closed_later

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from koala_adapter.model import ClusterName, PlaceholderId
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.journal import Journal
    from koala_adapter.slots import Slot
    from koala_adapter.vjm.channel import Launch, Signal


# The core of a service in whose place a scheduler of the tests decides.


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


# Clocks of a machine that a test moves by hand.

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


# An agent inside the test's own process: it speaks the channel, comes back when it is cut off, and runs nothing.

REDIAL = 0.05


class ScriptedAgent:
    """Registers, says that what it is told to launch has started, and ends it when the test says so."""

    def __init__(self, placeholder: PlaceholderId, *, port: int, token: str) -> None:
        self.placeholder = placeholder
        self.connections = 0
        """How often it was let in."""
        self.end_task = anyio.Event()
        self._port = port
        self._token = token
        self._tasks: list[str] = []
        self._released = False

    async def run(self) -> None:
        """Serve until it is released."""
        while not self._released:
            try:
                await self._converse()
            except* (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                await anyio.sleep(REDIAL)

    async def _converse(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        async with await anyio.connect_tcp("127.0.0.1", self._port) as transport:
            stream = await TLSStream.wrap(transport, server_side=False, ssl_context=context, standard_compatible=False)
            await stream.send(channel.encode(self._hello()))
            decoder = channel.center_decoder()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._say_ends, stream)
                while not self._released:
                    for message in decoder.feed(await stream.receive()):
                        await self._hear(stream, message)
                tasks.cancel_scope.cancel()

    def _hello(self) -> channel.Hello:
        known = tuple(channel.TaskReport(task=task, running=True) for task in self._tasks)
        return channel.Hello(
            batch=self.placeholder.batch, index=self.placeholder.index, token=self._token, session="one", lrm_id="1",
            host="n1", address="127.0.0.1", pid=1, ends_in=None, python="3.6", tasks=known, resends=True,
        )  # fmt: skip

    async def _hear(self, stream: TLSStream, message: channel.CenterMessage) -> None:
        if isinstance(message, channel.Welcome):
            self.connections += 1
        elif isinstance(message, channel.Launch) and message.task not in self._tasks:
            self._tasks.append(message.task)
            await stream.send(channel.encode(channel.TaskStarted(task=message.task, pid=2)))
        elif isinstance(message, channel.Release | channel.Refused):
            self._released = True

    async def _say_ends(self, stream: TLSStream) -> None:
        await self.end_task.wait()
        for task in self._tasks:
            end = TaskEnd(reason=EndReason.EXITED, exit_code=0)
            await stream.send(channel.encode(channel.TaskEnded(task=task, end=end)))


# Snapshots that are taken with nothing in between.


def take_snapshot(journal: Journal, state: State, number: int) -> None:
    """Store the state as of an event."""
    for _ in journal.snapshot_in_groups(state, number):
        pass
