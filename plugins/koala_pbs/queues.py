# SPDX-License-Identifier: Apache-2.0
"""Vnodes, queues and server of PBS, and which queues and chunks a vnode serves. No I/O.

PBS keeps chunks and queues to vnodes by resources: by numbers, such as ``ngpus``, of which jobs take away, and by
words, such as ``Qlist``, which must be among those of the vnode (pbs_resources(7B)).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from koala_adapter.errors import LrmRejectedError
from koala_adapter.model import WAITING, LrmJob, Node, Queue
from koala_pbs.jobs import CONSUMABLE, NOT_CONSUMED, mapping_of, parse_select, value_of
from koala_pbs.words import mebibytes_of, number_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_pbs.jobs import Assignment, Attributes, Chunk, Entries


# -- Vnodes --------------------------------------------------------------------------------------------------

COUNTED_ELSEWHERE = frozenset({"ncpus", "mem", *NOT_CONSUMED})
"""Resources that nodes and jobs have fields for, and those that vnodes do not have."""
DEFAULT_PARTITION = "pbs-default"
"""That of vnodes and queues that are given none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vnode:
    """Resources and partition of a vnode."""

    available: Mapping[str, str]
    assigned: Mapping[str, str]
    partition: str = ""

    def never_has(self, name: str, amount: str) -> bool:
        """Return whether the vnode has less than an amount of a resource even when unused."""
        return _amount(self.available.get(name, "0")) < _amount(amount)

    def times(self, name: str, amount: str) -> tuple[int, int]:
        """Return how many times an amount of a resource fits, in all and now."""
        there, each = _amount(self.available.get(name, "0")), _amount(amount)
        taken = min(there, _amount(self.assigned.get(name, "0")))
        return int(there // each), int((there - taken) // each)

    def lacks(self, name: str, value: str, *, times: int = 1) -> bool:
        """Return whether the vnode lacks an amount for each of so many chunks, or a required word."""
        there = self.available.get(name, "")
        if CONSUMABLE.fullmatch(value):
            return not there or _amount(there) - _amount(self.assigned.get(name, "0")) < times * _amount(value)
        return value.lower() not in {word.strip().lower() for word in there.split(",")}


def _amount(text: str) -> float:
    # Sizes end with a letter; all amounts of a resource are of one kind.
    if text[-1:].isalpha():
        return float(mebibytes_of(text) or 0)
    return float(number_of(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTie:
    """Resources and partition that bind a queue to vnodes."""

    resources: Mapping[str, str]
    """Of ``default_chunk`` and ``resources_default``: words keep jobs to vnodes."""
    chunk: Mapping[str, str] = field(default_factory=dict)
    """Of ``default_chunk`` alone, which each chunk gets: numbers keep it to vnodes, too."""
    partition: str = ""

    def with_defaults(self, chunk: Mapping[str, str]) -> QueueTie:
        """Return the tie of a queue with the default resources of chunks added."""
        return replace(self, resources={**chunk, **self.resources}, chunk={**chunk, **self.chunk})


@dataclass(frozen=True, slots=True)
class Vnodes:
    """All vnodes of a server by their names."""

    by_name: Mapping[str, Vnode]

    @property
    def known(self) -> frozenset[str]:
        """Resources that any vnode has; others cannot be located."""
        return frozenset(name for vnode in self.by_name.values() for name in vnode.available) - COUNTED_ELSEWHERE

    def serving(self, chunk: Chunk) -> frozenset[str]:
        """Return vnodes that now have a chunk's resources beside processors and memory."""
        known = self.known
        asked = [(name, value) for name, value in chunk.resources if name in known]
        return frozenset(
            name for name, vnode in self.by_name.items() if not any(vnode.lacks(key, value) for key, value in asked)
        )

    def require(self, job: str, assignment: Assignment) -> None:
        """Raise LrmRejectedError when a vnode lacks what all chunks on it ask for together."""
        known = self.known
        counts: dict[tuple[str, str, str], int] = {}
        for chunk, vnode in assignment.pairs:
            for name, value in chunk.resources:
                if name in known:
                    counts[vnode, name, value] = counts.get((vnode, name, value), 0) + 1
        for (vnode, name, value), times in counts.items():
            if vnode in self.by_name and self.by_name[vnode].lacks(name, value, times=times):
                message = f"{vnode} has not what job {job} asks for: {times} times {name}={value}"
                raise LrmRejectedError(message, hint="start it on vnodes that are listed for it")

    def serves(self, vnode: str, tie: QueueTie) -> bool:
        """Tell whether a vnode runs jobs of a queue: it has its partition and all that jobs and chunks get there."""
        found, known = self.by_name[vnode], self.known
        words = {key: value for key, value in tie.resources.items() if key in known and not CONSUMABLE.fullmatch(value)}
        lacking = (
            *(found.lacks(key, value) for key, value in words.items()),
            *(found.never_has(key, value) for key, value in self._amounts(tie).items()),
        )
        return found.partition == tie.partition and not any(lacking)

    def chunks(self, vnode: str, tie: QueueTie) -> tuple[int, int] | None:
        """Return how many chunks of a queue fit on a vnode, in all and now.

        None: they get no amount of anything beside processors and memory.
        """
        counts = [self.by_name[vnode].times(name, amount) for name, amount in self._amounts(tie).items()]
        return (min(ever for ever, _ in counts), min(now for _, now in counts)) if counts else None

    def _amounts(self, tie: QueueTie) -> dict[str, str]:
        known = self.known
        pairs = ((name, text) for name, text in tie.chunk.items() if name in known and CONSUMABLE.fullmatch(text))
        return {name: text for name, text in pairs if _amount(text) > 0}


def partition_of(attributes: Attributes) -> str:
    """Return the partition of a vnode or queue; empty for the default one."""
    return value_of(attributes, "partition").removeprefix(DEFAULT_PARTITION)


def parse_vnodes(listed: Entries) -> Vnodes:
    """Return the resources of all vnodes of a listing."""
    return Vnodes(
        {
            name: Vnode(
                available=mapping_of(attributes, "resources_available"),
                assigned=mapping_of(attributes, "resources_assigned"),
                partition=partition_of(attributes),
            )
            for name, attributes in listed.items()
        }
    )


def tied(
    nodes: Iterable[Node], vnodes: Vnodes, ties: Mapping[str, QueueTie], *, default: Iterable[str]
) -> tuple[Node, ...]:
    """Return nodes with the queues that they serve; nodes of no queue are left out.

    A queue whose chunks each get an amount of a resource, such as a GPU, has as many places on a node as that allows.
    ``ties``: of all execution queues; ``default``: those in which jobs end up that name none.
    """
    found = []
    default = frozenset(default)
    for node in nodes:
        own = node.queues or tuple(ties)
        served = tuple(name for name in own if name not in ties or vnodes.serves(node.name, ties[name]))
        if not served and own:
            continue
        limits = {name: vnodes.chunks(node.name, ties[name]) for name in served if name in ties}
        places = {name: counts for name, counts in limits.items() if counts is not None}
        ends = default & set(served or default)
        if ends and ends <= places.keys():
            counts = [places[name] for name in ends]
            places[""] = (max(ever for ever, _ in counts), max(now for _, now in counts))
        limited = replace(node, queue_places=tuple((name, *counts) for name, counts in places.items()))
        if served == own:
            found.append(limited)
        else:
            closed = ("",) if default and not ends else ()
            found.append(replace(limited, queues=served, closed_queues=closed))
    return tuple(found)


def placed(jobs: Iterable[LrmJob], selections: Mapping[str, str], vnodes: Vnodes) -> tuple[LrmJob, ...]:
    """Return jobs; waiting ones with the vnodes that have the resources of one of their chunks.

    ``selections``: what each job asks for, with what its queue has added.
    """
    everywhere = frozenset(vnodes.by_name)
    known = vnodes.known
    if not known:
        return tuple(jobs)
    serving: dict[str, frozenset[str]] = {}
    found = []
    for job in jobs:
        select = selections.get(job.id, "")
        if job.state in WAITING and select not in serving:
            serving[select] = _places(select, vnodes, everywhere)
        possible = serving.get(select, everywhere)
        found.append(job if possible == everywhere else replace(job, possible_nodes=tuple(sorted(possible))))
    return tuple(found)


def _places(select: str, vnodes: Vnodes, everywhere: frozenset[str]) -> frozenset[str]:
    try:
        chunks = frozenset(parse_select(select))
    except ValueError:
        return everywhere
    return frozenset().union(*(vnodes.serving(chunk) for chunk in chunks)) if chunks else everywhere


# -- Queues and the server -----------------------------------------------------------------------------------
# From ``qstat -Q -f -F json`` and ``qstat -B -f -F json``.

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


def parse_server(listed: Entries) -> ServerConfig:
    """Return the server of a listing. Raises ValueError when there is none."""
    for name, attributes in listed.items():
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


def parse_queues(listed: Entries, *, home: str = "") -> tuple[QueueConfig, ...]:
    """Return the queues of a listing; ``home``: what their server is called."""
    return tuple(_queue(name, attributes, home) for name, attributes in listed.items())


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
