# SPDX-License-Identifier: Apache-2.0
"""Queues of PBS from ``qstat -Q -f -F json``, and the server from ``qstat -B -f -F json``. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.model import Queue
from koala_pbs.jobs import mapping_of, read_entries, value_of
from koala_pbs.vnodes import QueueTie, partition_of
from koala_pbs.words import number_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import Node
    from koala_pbs.jobs import Attributes, Reader

DEFAULT_MAX_ARRAY_SIZE = 10_000
TRUE = "True"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of a PBS server."""

    name: str
    version: str
    scheduling: bool
    """Its scheduler starts jobs."""
    history: bool
    """It keeps ended jobs for a while."""
    lists_others: bool
    """Everybody sees the jobs of all users."""
    default_queue: str
    max_array_size: int
    managers: str
    operators: str
    default_chunk: Mapping[str, str] = field(default_factory=dict)
    """What each chunk gets that neither its job nor its queue says otherwise."""

    def may_operate(self, *, user: str, uid: int) -> bool | None:
        """Tell whether a user is an operator or manager; None when it cannot be told from here."""
        named = {entry.partition("@")[0].strip() for entry in f"{self.managers},{self.operators}".split(",")}
        if user in named:
            return True
        # root of the server's host is one unless others are named.
        return None if uid == 0 else False


def parse_server(text: str, read: Reader = read_entries) -> ServerConfig:
    """Return the server of a listing. Raises ValueError when there is none."""
    for name, attributes in read(text, "Server").items():
        return ServerConfig(
            name=name,
            version=value_of(attributes, "pbs_version"),
            scheduling=value_of(attributes, "scheduling") == TRUE,
            history=value_of(attributes, "job_history_enable") == TRUE,
            lists_others=value_of(attributes, "query_other_jobs") == TRUE,
            default_queue=value_of(attributes, "default_queue"),
            max_array_size=number_of(value_of(attributes, "max_array_size"), DEFAULT_MAX_ARRAY_SIZE),
            managers=value_of(attributes, "managers"),
            operators=value_of(attributes, "operators"),
            default_chunk=mapping_of(attributes, "default_chunk"),
        )
    raise ValueError("there is no server")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """Settings of a queue."""

    name: str
    executes: bool
    """Jobs run from it; others only pass through (a routing queue)."""
    up: bool
    walltime_limit: int | None
    max_array_size: int | None
    tie: QueueTie = field(default_factory=lambda: QueueTie(resources={}))
    """What its jobs get that keeps them to vnodes."""
    destinations: tuple[str, ...] = ()
    """Queues that a routing queue passes jobs on to, in its order; ``queue@server`` is one elsewhere."""

    @property
    def servers(self) -> tuple[str, ...]:
        """The other servers among its destinations."""
        found = (name.partition("@")[2].partition(":")[0] for name in self.destinations)
        return tuple(dict.fromkeys(filter(None, found)))


def parse_queues(text: str, read: Reader = read_entries, *, home: str = "") -> tuple[QueueConfig, ...]:
    """Return the queues of a listing; ``home``: what their server is called. Raises ValueError."""
    return tuple(_queue(name, attributes, home) for name, attributes in read(text, "Queue").items())


def _queue(name: str, attributes: Attributes, home: str) -> QueueConfig:
    destinations = map(str.strip, value_of(attributes, "route_destinations").split(","))
    largest = value_of(attributes, "max_array_size")
    return QueueConfig(
        name=name,
        executes=value_of(attributes, "queue_type").lower().startswith("e"),
        up=value_of(attributes, "enabled") == value_of(attributes, "started") == TRUE,
        walltime_limit=seconds_of(mapping_of(attributes, "resources_max").get("walltime", "")),
        max_array_size=number_of(largest) if largest else None,
        tie=QueueTie(
            resources={**mapping_of(attributes, "resources_default"), **mapping_of(attributes, "default_chunk")},
            chunk=mapping_of(attributes, "default_chunk"),
            partition=partition_of(attributes),
        ),
        destinations=tuple(filter(None, (one.removesuffix(f"@{home}") if home else one for one in destinations))),
    )


def served(queues: Mapping[str, QueueConfig], nodes: Iterable[Node], *, default: str) -> tuple[Queue, ...]:
    """Return queues with the processors that serve them, for routing queues those of their destinations."""
    nodes = tuple(nodes)
    return tuple(
        Queue(
            name=queue.name,
            up=queue.up,
            processors=sum(
                node.processors
                for node in nodes
                if not node.queues or {one.name for one in ends_of(queue, queues)} & set(node.queues)
            ),
            walltime_limit=walltime_limit(queue, queues),
            default=queue.name == default,
        )
        for queue in queues.values()
    )


def ends_of(queue: QueueConfig, queues: Mapping[str, QueueConfig]) -> tuple[QueueConfig, ...]:
    """Return the execution queues of this server in which jobs of a queue may end up: it alone, if it is one."""
    return tuple(one for one in _way_of(queue, queues) if one.executes)


def servers_beyond(queue: QueueConfig, queues: Mapping[str, QueueConfig]) -> tuple[str, ...]:
    """Return the other servers on which jobs of a queue may end up."""
    return tuple(dict.fromkeys(server for one in _way_of(queue, queues) for server in one.servers))


def _way_of(queue: QueueConfig, queues: Mapping[str, QueueConfig]) -> tuple[QueueConfig, ...]:
    """Return a queue with all queues of this server that its jobs may reach."""
    found: list[QueueConfig] = []
    seen, waiting = {queue.name}, [queue]
    while waiting:
        one = waiting.pop(0)
        found.append(one)
        following = [queues[name] for name in dict.fromkeys(one.destinations) if name in queues and name not in seen]
        seen |= {other.name for other in following}
        waiting += following
    return tuple(found)


def walltime_limit(queue: QueueConfig, queues: Mapping[str, QueueConfig]) -> int | None:
    """Return the longest walltime that a queue takes: its own limit and, of a routing queue, its destinations' largest.

    PBS accepts a job into a routing queue first; when none of the destinations takes it, it is gone without a trace.
    """
    own = queue.walltime_limit or None
    ends = [one.walltime_limit or None for one in ends_of(queue, queues)]
    largest = None if not ends or None in ends else max(limit for limit in ends if limit is not None)
    return min((limit for limit in (own, largest) if limit is not None), default=None)


def largest_array(server: ServerConfig | None, queues: Mapping[str, QueueConfig], queue: str | None) -> int:
    """Return the largest array that a queue takes: the smallest limit of it, its server and all its destinations.

    To another server no arrays can be moved: they wait in the routing queue for ever.
    """
    limits = [server.max_array_size if server is not None else DEFAULT_MAX_ARRAY_SIZE]
    found = queues.get(queue or (server.default_queue if server is not None else ""))
    if found is not None and servers_beyond(found, queues):
        return 1
    if found is not None:
        limits += [one.max_array_size for one in (found, *ends_of(found, queues)) if one.max_array_size is not None]
    return max(1, min(limits))
