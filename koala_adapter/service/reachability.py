# SPDX-License-Identifier: Apache-2.0
"""Whether nodes of clusters at different sites can connect: agents try it, and it is remembered.

In this order: having two agents try it, what ``koala check`` leaves in the state directory, and the part of a service
that has it tried whenever it is not known of clusters of which agents are in contact. The scheduler is told by events;
what it knows is forgotten after a day.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog
from pydantic import ValidationError

from koala_adapter.host.containment import contained
from koala_adapter.model import ClusterName, PlaceholderId  # noqa: TC001 - types of fields are read at run time
from koala_adapter.scheduler.clusters import CONNECTIONS_LAST
from koala_adapter.scheduler.events import NodesConnect
from koala_adapter.service.core import Core, Nudge
from koala_adapter.vjm.channel import Probed, ProbeListen, ProbeReach, Probing
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from koala_adapter.vjm.center import ControlCenter

    Direction = tuple[ClusterName, ClusterName]
    """From the nodes of which cluster to those of which."""

log = structlog.get_logger()


# -- Two agents try a connection -----------------------------------------------------------------------------

ANSWER = 15.0
"""Seconds for an agent to do its part of a probe."""


@dataclass(frozen=True, slots=True)
class Contact:
    """An agent that is in contact, and the address of its node."""

    placeholder: PlaceholderId
    address: str


class Prober:
    """Has agents of a control center try connections."""

    def __init__(self, center: ControlCenter) -> None:
        """``center`` hands what agents say of probes on to :meth:`answered`."""
        self._center = center
        self._answers: dict[str, Probing | Probed | None] = {}
        """What agents have answered, by the names of probes under way."""
        self._answered = anyio.Event()

    def answered(self, answer: Probing | Probed) -> None:
        """Take in what an agent says of a probe."""
        if answer.probe in self._answers:
            self._answers[answer.probe] = answer
            self._answered.set()
            self._answered = anyio.Event()

    async def try_all(
        self,
        wanted: Iterable[Direction],
        agents: Mapping[ClusterName, Contact],
        found: Callable[[ClusterName, ClusterName, bool], None],
    ) -> None:
        """Try connections from clusters to others, and tell each result; nothing is told where there is none."""

        async def one(cluster: ClusterName, other: ClusterName) -> None:
            with contained("trying whether nodes connect"):
                connects = await self._connects(agents[cluster], agents[other])
                if connects is not None:
                    found(cluster, other, connects)

        for pairs in rounds(wanted):
            async with anyio.create_task_group() as tasks:
                for pair in pairs:
                    tasks.start_soon(one, *pair)

    async def _connects(self, one: Contact, its: Contact) -> bool | None:
        """Tell whether one agent can connect to the node of another one; None: they do not say."""
        answer, listens, reaches = (secrets.token_hex(16) for _ in range(3))
        listening = await self._ask(listens, its, ProbeListen(probe=listens, answer=answer))
        if not isinstance(listening, Probing):
            return None
        reach = ProbeReach(probe=reaches, says=listens, address=its.address, port=listening.port)
        heard = await self._ask(reaches, one, reach)
        return heard.answer == answer if isinstance(heard, Probed) else None

    async def _ask(self, name: str, agent: Contact, probe: ProbeListen | ProbeReach) -> Probing | Probed | None:
        """Return what an agent answers; None: nothing in its time."""
        self._answers[name] = None
        try:
            sent = self._center.tell(agent.placeholder, probe)
            with anyio.move_on_after(ANSWER if sent else 0):
                while self._answers[name] is None:
                    await self._answered.wait()
            return self._answers[name]
        finally:
            del self._answers[name]


def rounds(wanted: Iterable[Direction]) -> Iterator[list[Direction]]:
    """Share directions out to rounds, in each of which a cluster connects at most once, and is connected to once."""
    left = list(wanted)
    while left:
        sources: set[ClusterName] = set()
        targets: set[ClusterName] = set()
        chosen = []
        for cluster, other in left:
            if cluster not in sources and other not in targets:
                sources.add(cluster)
                targets.add(other)
                chosen.append((cluster, other))
        yield chosen
        left = [one for one in left if one not in chosen]


# -- What ``koala check`` has found out ----------------------------------------------------------------------
# A file of the state directory, as a service may run or not. Who reads it compares it with what is known.

FILE = "connections.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """Whether nodes of one cluster could connect to those of another one, and when that was tried."""

    cluster: ClusterName
    other: ClusterName
    connects: bool
    at: float
    """Seconds since 1970."""


def read_tried(directory: Path) -> Sequence[Tried]:
    """Return what was tried in the last day; nothing where the file cannot be read."""
    try:
        tried = adapter_of(list[Tried]).validate_json((directory / FILE).read_bytes())
    except (OSError, ValidationError):
        return []
    return [one for one in tried if 0 <= time.time() - one.at <= CONNECTIONS_LAST]


def keep_tried(directory: Path, tried: Sequence[Tried]) -> None:
    """Add to what was tried in the last day. Raises OSError."""
    kept = {(one.cluster, one.other): one for one in (*read_tried(directory), *tried)}
    new = directory / f"{FILE}.new"
    new.write_bytes(adapter_of(list[Tried]).dump_json(list(kept.values())))
    new.replace(directory / FILE)


def connections_tried(directory: Path, now: float) -> list[NodesConnect]:
    """Return the recorded trials of connections between nodes, as events of a service whose clock says ``now``."""
    wall = time.time()
    return [
        NodesConnect(time=now, cluster=one.cluster, other=one.other, connects=one.connects, age=max(0.0, wall - one.at))
        for one in read_tried(directory)
    ]


# -- The part of a service -----------------------------------------------------------------------------------

LOOK_INTERVAL = 2.0
"""Seconds between two looks at the file, and at which agents are in contact."""
AGAIN = 20.0
"""Seconds before a probe is tried again that gave no result, such as with an agent that went meanwhile."""
SAME = 1.0
"""Seconds by which the times of what was tried are alike: the time of day may have been set."""


class Reachability:
    """Finds out which clusters' nodes can connect to those of which others."""

    def __init__(self, core: Core) -> None:
        """Nothing is tried before :meth:`run`."""
        self._core = core
        self.prober = Prober(core.center)
        self._several = len({one.site for one in core.site.clusters}) > 1
        self._come = Nudge()
        self._tried: dict[Direction, float] = {}
        self._file_read = 0

    def in_contact(self) -> None:
        """Take in that an agent has come into contact."""
        self._come.set()

    async def run(self) -> None:
        """Try what is not known of clusters of which agents are in contact, until cancelled."""
        while self._several:
            with contained("finding out which nodes connect"):
                self.read()
                await self._try_unknown()
            with anyio.move_on_after(LOOK_INTERVAL):
                await self._come.wait()

    def read(self) -> None:
        """Tell the scheduler what the file has that is newer than what it knows."""
        try:
            changed = (self._core.directory / FILE).stat().st_mtime_ns
        except OSError:
            return
        if changed != self._file_read:
            self._file_read = changed
            state = self._core.state
            for event in connections_tried(self._core.directory, self._core.now()):
                cluster = state.clusters.get(event.cluster)
                known = None if cluster is None else cluster.connections.get(event.other)
                if cluster is not None and (known is None or known.seen_at < event.time - event.age - SAME):
                    self._core.loop.post(event)

    async def _try_unknown(self) -> None:
        state, now = self._core.state, self._core.now()
        found = (state.placeholders.get(one) for one in self._core.center.connected)
        agents = {one.cluster: Contact(one.id, one.address) for one in found if one is not None and one.address}
        wanted = [
            (cluster, other)
            for cluster in agents
            for other in agents
            if state.connects(cluster, other, now) is None and now - self._tried.get((cluster, other), -AGAIN) >= AGAIN
        ]
        self._tried |= dict.fromkeys(wanted, now)
        await self.prober.try_all(wanted, agents, self._found)

    def _found(self, cluster: ClusterName, other: ClusterName, connects: bool) -> None:  # noqa: FBT001 - what was found
        text = "nodes of clusters connect" if connects else "nodes of clusters do not connect: MPI is kept within one"
        log.info(text, cluster=cluster, other=other)
        self._core.loop.post(NodesConnect(time=self._core.now(), cluster=cluster, other=other, connects=connects))
