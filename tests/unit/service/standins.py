# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for parts of a service and of its machine: the core, clocks, an agent, and who negotiates."""

from __future__ import annotations

import sqlite3
import ssl
import weakref
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.streams.tls import TLSStream

from koala_adapter import negotiation as nt
from koala_adapter.config.sitefile import ClusterConfig, ControlCenterConfig, SiteConfig
from koala_adapter.host.clock import HostClocks
from koala_adapter.model import ClusterName, EndReason, JobId, LrmJobId, PlaceholderId, TaskEnd
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.notes import note
from koala_adapter.runners.runner import Application
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, GrantProcessors, WithdrawOffer
from koala_adapter.scheduler.events import Event
from koala_adapter.scheduler.parameters import Approach, ClusterParameters
from koala_adapter.scheduler.records import State
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.service.core import Core
from koala_adapter.service.journal import Journal
from koala_adapter.service.records import TABLES, KeptNegotiation, Message, NegotiationStore
from koala_adapter.service.sizes.adaptive import AdaptiveJob
from koala_adapter.service.sizes.bargaining import Surroundings
from koala_adapter.service.sizes.kept import NegotiationKeeper
from koala_adapter.sizes import OWN_SIZES, SizeRules
from koala_adapter.slots import Slot
from koala_adapter.vjm import channel
from koala_adapter.vjm.channel import CenterMessage
from tests.frames import hear
from tests.sqlite_watch import closed_later
from tests.unit.scheduler.malleable_site import AdaptiveSite
from tests.unit.scheduler.scheduler_site import Site, of_kind

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

    def tell(self, _placeholder: PlaceholderId, _message: CenterMessage) -> bool:
        return False


class NothingKept:
    """In the place of the journal: an earlier service has kept nothing."""

    def value(self, _key: str) -> None:
        return None


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
        self.journal = NothingKept()  # type: ignore[assignment]  # all that is asked of it
        self.center = center or Center()  # type: ignore[assignment]  # all that is asked of it
        self.changed = anyio.Event()
        self.loop = self  # type: ignore[assignment]  # all that is asked of it
        self.lrm_hosts = {}
        self.name_prefix = "koala-k-"
        self.user = "alice"
        self.posted: list[Event] = []
        self.shapes: tuple[Slot, ...] = ()
        self.is_holding = self.others_matter = self.grows = False
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

    @property
    def scheduler(self) -> Any:  # noqa: ANN401 - some of its questions are answered here
        return self

    def shrinks_for_others(self, _cluster: ClusterName) -> bool:
        return self.others_matter

    def slots_on(self, _cluster: ClusterName) -> dict[LrmJobId, Slot]:
        return {}

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
        self.admitted_at: list[float] = []
        """When it was let in (monotonic)."""
        self.end_task = anyio.Event()
        self._port = port
        self._token = token
        self._tasks: list[str] = []
        self._released = False

    @property
    def connections(self) -> int:
        return len(self.admitted_at)

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
            self.admitted_at.append(anyio.current_time())
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


# The stage of a negotiation: a scheduler with one job, its manager, and the endpoint of the application.

ID = JobId("1")


class Stage(Center):
    """A scheduler with one adaptive job of two processes, the manager, and the process of rank 0."""

    def __init__(
        self,
        processors: int,
        approach: Approach = Approach.PWA,
        clusters: tuple[ClusterParameters, ...] = (),
        *,
        site: AdaptiveSite | None = None,
    ) -> None:
        """All have joined, and what the scheduler wants has not been said yet. ``site``: one where the job runs."""
        self.site = site or AdaptiveSite({"a": processors}, approach, clusters=clusters)
        if site is None:
            self.site.begin(most=9)
        self.application = nt.Endpoint("APPLICATION", "node")
        self.heard: list[nt.Event] = []
        self._carried = len(self.site.actions)
        self.journal_full = False
        self.kept: list[tuple[str, nt.Template]] = []
        """What was to be kept, and who said it."""
        self.start()

    def start(self) -> None:
        record = self.site.record("1")
        self.runner = AdaptiveRunner(Application(job=record.job, ranks=record.ranks, files={"m": ()}))
        self.job = AdaptiveJob(around(self, self, keeper=self), self.runner)
        self.manager = self.job.bargaining
        self.runner.follow(record, self.site.now)
        self.manager.restore(record)
        for rank in self.runner.memberships["m"].members:
            hello = note("hello", version=1, state="running", change=0, at=0, reached=3, contact="", sizes="any", pid=7)
            self.runner.coordinators["m"].heard(rank, hello, self.site.now)

    @property
    def state(self) -> State:
        return self.site.state

    @property
    def now(self) -> float:
        """Of the site."""
        return self.site.now

    def keep(self, job_id: JobId, rank: int, sender: str, template: nt.Template, text: str) -> None:
        assert (job_id, rank) == (ID, 0)
        assert nt.parse(text.encode()) == template
        self.kept.append((sender, template))

    def recalled(self, job_id: JobId, key: nt.NegotiationKey) -> KeptNegotiation | None:
        messages = tuple(
            Message(at=0.0, sender=sender, template=nt.build(template).decode())
            for sender, template in self.kept
            if template.key == key
        )
        if not messages:
            return None
        initiator, name = key
        return KeptNegotiation(
            job_id=job_id, component="m", rank=0, initiator=initiator, agreement_id=name, messages=messages
        )

    def post(self, event: ev.Event) -> None:
        if not self.journal_full:
            self.site.post(event)
            self.go_on()

    def tell(self, _placeholder: PlaceholderId, message: CenterMessage) -> bool:
        assert isinstance(message, channel.Application)
        assert message.task == "1:0"
        self.heard += hear(self.application, message.data, self.site.now)
        return True

    def go_on(self) -> None:
        actions: list[Action] = self.site.actions[self._carried :]
        self._carried = len(self.site.actions)
        self.runner.follow(self.site.record("1"), self.site.now)
        self.manager.follow(self.site.record("1"))
        for grant in of_kind(GrantProcessors, actions):
            self.manager.grant(grant)
        for withdrawal in of_kind(WithdrawOffer, actions):
            self.manager.withdraw(withdrawal.number, withdrawal.reason)

    def say(self, template: nt.Template) -> None:
        self.application.tell(template, self.site.now)
        self.deliver()

    def change(self) -> None:
        """Have all processes carry out the change that was agreed on."""
        self.site.hold_stubs()
        self.go_on()
        self.site.reach()
        self.go_on()
        self.site.made()
        self.go_on()

    def play(self, script: str) -> None:
        """Have happen what a script says, in words with commas between them.

        ``wish``, ``accept``, ``counter``, ``commit`` and ``reject`` are what the application says, of the latest
        template; with ``lost`` it does not arrive, with ``unsent`` not before ``deliver``.
        """
        for verb, *rest in (step.split() for step in script.split(", ")):
            match verb:
                case "offer" | "go":
                    self.go_on()
                case "wish":
                    self.say(wish(int(rest[0])))
                case "restart":
                    self.start()
                case "follow":
                    self.manager.follow(self.site.record("1"))
                case "contact":
                    self.manager.in_contact(0)
                case "later":
                    self.site.now += int(rest[0])
                    self.manager.time_passed(self.site.record("1"))
                case "change" | "deliver":
                    getattr(self, verb)()
                case _:
                    self._answer(verb, *rest)

    def _answer(self, verb: str, *rest: str) -> None:
        """Say something of the latest template that was heard."""
        offer = self.latest()
        said = {
            "accept": lambda: nt.accepted(offer),
            "commit": lambda: nt.committed(offer),
            "reject": lambda: nt.rejected(offer, "not now"),
            "counter": lambda: nt.countered(offer, {offer.resources[0].key: int(rest[0])}),
        }[verb]()
        self.application.tell(said, self.site.now)
        if "lost" in rest:
            self.application.take_outbox()
        elif "unsent" not in rest:
            self.deliver()

    def deliver(self) -> None:
        """Let what the application has said arrive."""
        for template in self.application.take_outbox():
            self.job.hear(self.site.record("1"), 0, nt.build(template))
        self.go_on()

    def latest(self) -> nt.Template:
        template = self.heard[-1].template
        assert template is not None
        return template

    @property
    def phase(self) -> ChangePhase | None:
        """Of the change that is under way."""
        change = self.site.record("1").change_on(0)
        return None if change is None else change.phase


class NoProgram:
    """In the place of the port, where no program negotiates."""

    def represents(self, _job_id: JobId) -> bool:
        return False

    def say(self, _job_id: JobId, payload: bytes) -> None:
        raise AssertionError(payload)


class Program(NoProgram):
    """A program that negotiates for a job."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self.application = nt.Endpoint("APPLICATION", "node")
        self.heard: list[nt.Event] = []

    def represents(self, _job_id: JobId) -> bool:
        return True

    def say(self, _job_id: JobId, payload: bytes) -> None:
        self.heard += self.application.hear(nt.parse(payload), self._site.now)


def around(
    world: World,
    center: Center | None = None,
    *,
    programs: NoProgram | None = None,
    keeper: object = None,
    rules: SizeRules = OWN_SIZES,
) -> Surroundings:
    """Return what a job that changes its size uses of a service."""
    core = StandInCore(world, center=center)
    core.size_rules = rules
    kept = keeper or NegotiationKeeper(core)
    return Surroundings(core, object(), programs or NoProgram(), kept)  # type: ignore[arg-type]


def wish(number: int, *, mandatory: bool = False, direction: str = "grow") -> nt.Template:
    """Return a wish of the application."""
    obligation = "mandatory" if mandatory else "voluntary"
    cpu = nt.resource("CPU", number)
    return nt.template("0-1", "APPLICATION", "node", "koala", [cpu], direction=direction, obligation=obligation)


def played(script: str, processors: int = 5) -> Stage:
    """Return a stage on which a script was played: koala offers of itself, unless the application begins."""
    stage = Stage(processors, Approach.NONE if script.startswith("wish") else Approach.PWA)
    stage.play(script)
    return stage
