# SPDX-License-Identifier: Apache-2.0
"""Which ports of a job's ranks, and of this host, are reached through koala, and from where.

Agents tell at which ports ranks listen; the agents of the other ranks are told to listen for them, and so does this
service where the job has ports of this host. A rank may reach ranks of its own job, at ports at which these listen, and
the ports of this host that its job names: the job came through the service's private socket. The bytes go through
``vjm.tunnels``.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import anyio
import structlog
from anyio.abc import SocketStream

from koala_adapter.host.accepting import handle_stream
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.runners.nodes import HOST, RelayPlan
from koala_adapter.runners.runner import task_id
from koala_adapter.vjm.agent.attempts import Attempts, answered, dropping_listener, left_over
from koala_adapter.vjm.channel import Forward, Forwarded, Listening, TunnelAsked
from koala_adapter.vjm.listener import Route
from koala_adapter.vjm.tunnels import join_directly, reset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anyio.abc import TaskGroup

    from koala_adapter.model import Job, JobId, PlaceholderId
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.service.core import Core

SETTLING = 3.0
"""Seconds that a relayed connection waits for agents to listen where its other end may be told to connect."""
FIRST_PORT = 1024
"""Lowest port at which this service listens for ranks."""

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Relayed:
    """A running job with relayed connections: of its ranks to each other, or to ports of this host."""

    plan: RelayPlan
    listening: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Ports by rank."""
    number: int = 0
    """Of the latest message that told an agent where to listen."""
    told: dict[PlaceholderId, int] = field(default_factory=dict)
    done: dict[PlaceholderId, int] = field(default_factory=dict)
    """Latest message that each agent got, and has carried out."""
    here: dict[tuple[int, int], socket.socket | None] = field(default_factory=dict)
    """By rank and port: what listens on this host, if anything can."""
    changed: anyio.Event = field(default_factory=anyio.Event)

    def note_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def stop_listening(self, key: tuple[int, int]) -> None:
        listener = self.here.pop(key)
        if listener is not None:
            listener.close()


class Relays:
    """The relayed connections of a service's jobs: what is listened at, and what may be reached."""

    def __init__(self, core: Core) -> None:
        """Nothing is listened at on this host before :meth:`open`."""
        self._core = core
        self._jobs: dict[JobId, _Relayed] = {}
        self._tasks: TaskGroup | None = None
        self._seeking = False

    def open(self, tasks: TaskGroup) -> None:
        """Listen on this host, where that is wanted, within ``tasks``."""
        self._tasks = tasks

    def plan(self, job: Job) -> RelayPlan | None:
        """Return what is relayed for a job; None: it asks for no relay and for no port of this host."""
        if not job.relay and not job.host_ports:
            return None
        site = self._core.site
        state, now = self._core.state, self._core.now()
        clusters = {one.cluster_name: one.site for one in site.clusters}
        pairs = [(one, other) for one in clusters for other in clusters]
        direct = {
            (one, other) for one, other in pairs if clusters[one] == clusters[other] or state.connects(one, other, now)
        }
        return RelayPlan(
            job_id=job.id,
            instance=self._core.name_prefix,
            direct=frozenset(direct),
            host_addresses={one.name: site.node_address(one) for one in site.clusters if one.site is None},
            ranks=job.relay and (len(direct) < len(pairs) or any(clusters.values())),
        )

    def forget(self, job_id: JobId) -> None:
        """End all relayed connections of a job, and listen no more for it."""
        relayed = self._jobs.pop(job_id, None)
        if relayed is not None:
            for key in list(relayed.here):
                relayed.stop_listening(key)
            self._core.center.tunnels.end(job_id)

    # -- what agents say ----------------------------------------------------------------------------------------------

    def in_contact(self, placeholder: PlaceholderId) -> None:
        """Tell an agent, whose process runs, where to listen for the other ranks."""
        for record, rank in self._ranks_in(placeholder):
            relayed = self._of(record)
            if relayed is not None and relayed.plan.ranks:
                for other in self._others(record, rank):
                    self._tell(record, relayed, rank, other)

    def listens(self, placeholder: PlaceholderId, listening: Listening) -> None:
        """Take in at which ports a task listens; of tasks that are not its own an agent has nothing to say."""
        for record, rank in self._ranks_in(placeholder):
            relayed = self._of(record)
            if relayed is None or not relayed.plan.ranks or listening.task != task_id(record.job.id, rank.rank):
                continue
            ports = tuple(sorted(set(listening.ports)))
            if relayed.listening.get(rank.rank, ()) != ports:
                relayed.listening[rank.rank] = ports
                self._tell_all(record, relayed, rank)

    def task_ended(self, placeholder: PlaceholderId, task: str) -> None:
        """Register that an ended task listens on no port any more."""
        self.listens(placeholder, Listening(task=task, ports=()))

    def forwards(self, placeholder: PlaceholderId, done: Forwarded) -> None:
        """Register up to which number an agent has carried out its Forward orders; log its fault, if any."""
        for record, _ in self._ranks_in(placeholder):
            relayed = self._jobs.get(record.job.id)
            if relayed is not None and record.job.id == done.job:
                relayed.done[placeholder] = max(done.number, relayed.done.get(placeholder, 0))
                relayed.note_change()
                if done.fault:
                    log.warning("a rank cannot be reached through koala", job=record.job.id, why=done.fault)

    async def route(self, placeholder: PlaceholderId, asked: TunnelAsked) -> Route | None:
        """Return where a relayed connection goes; None: it is not allowed."""
        record = next((one for one, _ in self._ranks_in(placeholder) if one.job.id == asked.job), None)
        relayed = None if record is None else self._of(record)
        if record is None or relayed is None:
            return None
        for one in asked.listening:
            self.listens(placeholder, one)
        await self._settled(relayed)
        if asked.peer == HOST:
            return Route(job_id=record.job.id, port=asked.port) if asked.port in record.job.host_ports else None
        return self._route_to(record, relayed, asked.peer, asked.port)

    def _route_to(self, record: JobRecord, relayed: _Relayed, number: int, port: int) -> Route | None:
        if port not in relayed.listening.get(number, ()):
            return None
        rank = record.ranks[number]
        return Route(
            job_id=record.job.id, port=port, placeholder=rank.placeholder, task=task_id(record.job.id, rank.rank)
        )

    async def _settled(self, relayed: _Relayed) -> None:
        """Wait, for a bounded time, until all that are in contact listen where they were told."""
        wanted = dict(relayed.told)
        with anyio.move_on_after(SETTLING):
            while any(
                relayed.done.get(one, 0) < number for one, number in wanted.items() if self._core.in_contact(one)
            ):
                await relayed.changed.wait()

    # -- what agents are told -----------------------------------------------------------------------------------------

    def _of(self, record: JobRecord) -> _Relayed | None:
        known = self._jobs.get(record.job.id)
        if known is None and (plan := self.plan(record.job)) is not None:
            known = self._jobs[record.job.id] = _Relayed(plan)
        return known

    def _ranks_in(self, placeholder: PlaceholderId) -> Iterator[tuple[JobRecord, Rank]]:
        found = self._core.state.placeholders.get(placeholder)
        if found is None or found.state is not PlaceholderState.LAUNCHED:
            return
        record = self._core.state.jobs.get(found.job_id)
        if record is None or record.state not in {JobState.LAUNCHING, JobState.RUNNING}:
            return
        if record.job.relay or record.job.host_ports:
            for rank in record.ranks:
                if rank.placeholder == placeholder and rank.rank not in record.departed:
                    yield record, rank

    def _others(self, record: JobRecord, rank: Rank) -> Iterator[Rank]:
        return (one for one in record.ranks if one.rank not in record.departed and one.rank != rank.rank)

    def _tell_all(self, record: JobRecord, relayed: _Relayed, rank: Rank) -> None:
        """Have all agents of a job, and this host, listen for a rank."""
        for other in (*self._others(record, rank), rank):
            self._tell(record, relayed, other, rank)
        if record.job.host_ports:
            self._listen_here(record, relayed, rank)

    def _tell(self, record: JobRecord, relayed: _Relayed, rank: Rank, peer: Rank) -> None:
        """Have the agent of one rank listen for another one."""
        address = relayed.plan.address(peer.rank)
        if not address or peer.rank not in relayed.listening:
            return
        relayed.number += 1
        forward = Forward(
            job=record.job.id,
            number=relayed.number,
            peer=peer.rank,
            address=address,
            ports=relayed.listening[peer.rank],
            direct=(peer.address or peer.host) if relayed.plan.reaches(rank.cluster, peer.cluster) else "",
        )
        if self._core.center.tell(rank.placeholder, forward):
            relayed.told[rank.placeholder] = relayed.number

    # -- this host ----------------------------------------------------------------------------------------------------

    def _listen_here(self, record: JobRecord, relayed: _Relayed, rank: Rank) -> None:
        ports = [port for port in relayed.listening[rank.rank] if port >= FIRST_PORT]
        for key in [key for key in relayed.here if key[0] == rank.rank and key[1] not in ports]:
            relayed.stop_listening(key)
        address = relayed.plan.address(rank.rank)
        if self._tasks is None or not address:
            return
        for port in ports:
            if (rank.rank, port) not in relayed.here:
                relayed.here[rank.rank, port] = self._listener(record.job.id, address, port, rank.address)
        if not self._seeking:
            self._seeking = True
            self._tasks.start_soon(self._seek, self._tasks)

    def _listener(self, job_id: JobId, address: str, port: int, rank_address: str) -> socket.socket | None:
        try:
            return dropping_listener(address, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not is_of_this_host(rank_address):  # the rank itself listens there
                why = str(error)
                log.warning("a rank cannot be reached from here", job=job_id, address=f"{address}:{port}", why=why)
        return None

    async def _seek(self, tasks: TaskGroup) -> None:
        """Answer programs of this user on this host that try to connect to ranks, for as long as anything listens."""
        attempts = Attempts()
        try:
            while places := self._places():
                found = attempts.look(places)
                # A rank of a cluster of this host may be on it as well: it has an agent that answers it.
                beside = [one for one in found if self._has_ranks_here(*places[one.place][:2])]
                left = left_over(beside)
                for attempt, connection in answered(one for one in found if one not in beside or one.inode in left):
                    tasks.start_soon(self._serve, *places[attempt.place], connection)
                await anyio.sleep(attempts.pause)
        finally:
            self._seeking = False
            for _, relayed, key in self._places().values():
                relayed.stop_listening(key)

    def _has_ranks_here(self, job_id: JobId, relayed: _Relayed) -> bool:
        record = self._core.state.jobs.get(job_id)
        return record is not None and any(one.cluster in relayed.plan.host_addresses for one in record.ranks)

    def _places(self) -> dict[tuple[str, int], tuple[JobId, _Relayed, tuple[int, int]]]:
        """Return the rank and port for each address and port at which this host listens."""
        return {
            (relayed.plan.address(key[0]), key[1]): (job_id, relayed, key)
            for job_id, relayed in self._jobs.items()
            for key, listener in relayed.here.items()
            if listener is not None
        }

    async def _serve(self, job_id: JobId, relayed: _Relayed, key: tuple[int, int], connection: socket.socket) -> None:
        """Carry a connection of a program of this host to a rank and port."""
        try:
            await anyio.wait_writable(connection)
            stream = await SocketStream.from_socket(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | ValueError):  # it has been given up
                return
            raise
        await handle_stream(partial(self._carry, job_id, relayed, key), stream)

    async def _carry(self, job_id: JobId, relayed: _Relayed, key: tuple[int, int], stream: SocketStream) -> None:
        record = self._core.state.jobs.get(job_id)
        route = None if record is None else self._route_to(record, relayed, *key)
        if record is None or route is None:
            reset(stream)
            return
        rank = record.ranks[key[0]]
        if rank.cluster in relayed.plan.host_addresses:
            await join_directly(stream, rank.address or rank.host, key[1])
        else:
            await self._core.center.tunnels.reach(route, stream)


def is_of_this_host(address: str) -> bool:
    """Tell whether an address is one of this host."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
