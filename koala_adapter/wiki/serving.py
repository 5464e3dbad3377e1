# SPDX-License-Identifier: Apache-2.0
"""What a WIKI server works with: its settings, the running jobs on disk, and the notifier of a scheduler's event port.

The object that holds all that the parts of a server share comes last.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.lrm.starts import Patience, Starter, Starts
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_adapter.wiki.codec.verbs import build_event
from koala_adapter.wiki.codec.words import Dialect, Event
from koala_adapter.wiki.inventory import Inventory
from koala_adapter.wiki.reporting import ReportingRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from koala_adapter.lrm import Lrm
    from koala_adapter.lrm.startlog import StartLog


log = structlog.get_logger()


# -- Settings of a server ------------------------------------------------------------------------------------
# Its peers, its limits and its memory.

DEFAULT_PORT = 7321
"""Slurm's SchedulerPort, which guides and configurations of Maui name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of one server. Times are in seconds, sizes in bytes."""

    cluster: str = "koala"
    """What is served, for messages."""
    queue: str | None = None
    """Nodes that do not serve it are not shown, nor counted; None: all are."""
    partitions: Mapping[str, str] = field(default_factory=dict)
    """What is told as the partition of each node, by the node's name; may change with each listing."""
    dialect: Dialect = Dialect.WIKI
    listen: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0: any free one."""
    peers: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses and networks (10.0.0.0/24) whose requests are heard."""
    users: tuple[int, ...] = ()
    """Ids of users of this machine whose requests are heard, beside root and our own user."""
    user: str = "koala"
    """Our name in AUTH=; it is not checked."""
    cache: float = 2.0
    """How old a listing of the LRM may be that is answered from."""
    retention: float = 300.0
    """How long a finished job is reported, at least, and until two polls have seen it."""
    reply_within: float = 8.0
    """Every request is answered within this time: below Maui's TIMEOUT (9 by default)."""
    start_reply_within: float = 0.5
    """A start is answered within this time, whether or not the batch system has taken it yet: a scheduler that asks for
    one start after the other has several taken side by side then."""
    oldest: float = 120.0
    """How old a listing may be that is answered from while the next one takes longer than an answer may."""
    start_within: float = 20.0
    """A released job that does not run within this time is held again."""
    read_within: float = 10.0
    """A request must be complete so long after the connection was made."""
    largest_request: int = 1_000_000
    connections: int = 512
    """At once; beyond it the oldest that has not sent its request is closed."""
    requests_per_minute: int = 1200
    """Of each peer address, signed ones alone."""
    refusals_per_minute: int = 60
    """Answers at most to requests that are not signed with the key, of all peers; further ones are closed."""
    user_holds: bool = False
    """Jobs held by their owners are ours to start, too: where the LRM cannot tell whose hold it is."""
    event_host: str = ""
    """Where events go (WIKI2); empty: to the sender of INITIALIZE."""
    event_port: int = 0
    """0: no events until INITIALIZE names a port."""
    event_interval: float = 10.0
    """Shortest time between two events of one kind."""


# -- Running jobs on disk ------------------------------------------------------------------------------------
# Which jobs were running when a server last looked: their ends must be told also after a restart, because Grid Engine
# forgets a job at its end, and Maui never forgets one whose end it is not told. A note that is lost or damaged costs
# such an end, nothing else, so it is not forced to disk.


class RunningJobsFile:
    """The running jobs of one server, in one file of mode 0600."""

    def __init__(self, path: Path) -> None:
        """Keep the path; nothing is read yet."""
        self._path = path

    def save(self, jobs: Iterable[LrmJob]) -> None:
        """Replace the kept jobs by these; a failure is logged."""
        rows = [
            [job.id, job.user, job.processors, job.walltime, job.submitted_at, job.started_at, list(job.layout)]
            for job in jobs
        ]
        temporary = self._path.with_suffix(".new")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump(rows, file)
            temporary.replace(self._path)
        except OSError as error:
            log.warning("running jobs cannot be kept for a restart", path=str(self._path), error=str(error))

    def load(self) -> tuple[LrmJob, ...]:
        """Return the kept jobs; none when the file is missing or unreadable."""
        try:
            rows = json.loads(self._path.read_text())
            return tuple(
                LrmJob(
                    id=LrmJobId(str(id_)),
                    name="",
                    state=LrmJobState.RUNNING,
                    user=str(user),
                    processors=int(processors),
                    walltime=walltime,
                    submitted_at=submitted_at,
                    started_at=started_at,
                    layout=tuple((str(node), int(count)) for node, count in layout),
                )
                for id_, user, processors, walltime, submitted_at, started_at, layout in rows
            )
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError) as error:
            log.warning("the running jobs of an earlier server are not known", path=str(self._path), error=str(error))
            return ()


# -- Notifier of the event port ------------------------------------------------------------------------------
# Tells a scheduler's event port that something has changed (WIKI2): five bytes on a connection of their own.
#
# Slurm drops what comes too soon after another event, so that a job could wait a whole polling interval; here it is
# sent when the interval is over. A port that does not answer is tried again later, and never holds anything up.

CONNECT_WITHIN = 5.0
PAUSE_AFTER_FAILURE = 30.0


class Notifier:
    """Sends events to a scheduler's event port, each kind at most once in an interval."""

    def __init__(self, options: ServerOptions) -> None:
        """Start with the address of the options; `send_to` replaces it."""
        self._host = options.event_host
        self.port = options.event_port
        """0: events are not wanted."""
        self._interval = options.event_interval
        self._wanted: set[Event] = set()
        self._sent: dict[Event, float] = {}
        self._changed = anyio.Event()

    def send_to(self, host: str, port: int) -> None:
        """Set the address for events; port 0: send none."""
        self._host, self.port = host, port
        self._sent.clear()

    def tell(self, event: Event) -> None:
        """Schedule an event for as soon as its interval allows."""
        self._wanted.add(event)
        self._changed.set()

    async def run(self) -> None:
        """Send events until cancelled."""
        self.tell(Event.CONFIGURATION)
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            while self._wanted and self.port:
                event = min(self._wanted, key=self._due)
                await anyio.sleep(max(0.0, self._due(event) - anyio.current_time()))
                self._wanted.discard(event)
                if not await self._send(event):
                    self._wanted.add(event)
                    await anyio.sleep(PAUSE_AFTER_FAILURE)
            self._wanted.clear()

    def _due(self, event: Event) -> float:
        return self._sent.get(event, float("-inf")) + self._interval

    async def _send(self, event: Event) -> bool:
        self._sent[event] = anyio.current_time()
        if not (self.port and self._host):
            return True
        try:
            with anyio.fail_after(CONNECT_WITHIN):
                async with await anyio.connect_tcp(self._host, self.port) as stream:
                    await stream.send(build_event(event))
        except (OSError, TimeoutError, anyio.BrokenResourceError) as error:
            log.info("the event port does not answer", host=self._host, port=self.port, error=str(error))
            return False
        return True


# -- All of it -----------------------------------------------------------------------------------------------


class Served:
    """One served batch system: options, clocks, inventory, starts and notifier."""

    def __init__(
        self,
        lrm: Lrm,
        options: ServerOptions,
        record: StartLog,
        *,
        clock: Callable[[], float],
        steady: Callable[[], float],
        memory: RunningJobsFile | None = None,
    ) -> None:
        """``lrm`` is started and closed by its owner; ``record``: of its starts.

        ``clock``: the time of day, in which peers and batch systems speak; ``steady``: a monotonic clock, by which
        is counted how long something is so. ``memory``: where the running jobs are kept for the next server.
        """
        self.lrm = lrm
        self.options = options
        self.clock = clock
        self.steady = steady
        rules = ReportingRules(
            dialect=options.dialect,
            user_holds=options.user_holds,
            partitions=options.partitions,
            one_node=not lrm.capabilities.pin_several,
            one_by_one=not lrm.capabilities.pin_elements,
        )
        self.inventory = Inventory(rules, retention=options.retention)
        self.notifier = Notifier(options)
        starts = Starts(Patience(start=options.start_within), pins=record.pins)
        self.starter = Starter(lrm, starts, record, clock=anyio.current_time)
        self._memory = memory
        if memory is not None:
            self.inventory.recall(memory.load(), clock())

    def note_change(self) -> None:
        """Schedule an event: a job appeared, started or ended."""
        self.notifier.tell(Event.JOBS)
        self.remember()

    def remember(self) -> None:
        """Save the jobs that run or start, or ended unreported, so that the next server reports their ends."""
        if self._memory is not None:
            self._memory.save(self.inventory.unreported())
