# SPDX-License-Identifier: Apache-2.0
"""Node and job records of WIKI: typed values on one side, ``n1:STATE=Idle;CPROC=8;`` on the other.

What is written harms no peer: STATE comes first, every attribute ends with ``;``, none is empty, no value contains a
separator, and Maui gets no name that it does not know. What is read may be as careless as Slurm's and Maui's own:
quoted, escaped, without the last ``;``, with octal numbers, with unknown names. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from koala_adapter.errors import WikiError
from koala_adapter.wiki.codec.hostlists import check_host, check_id, folded
from koala_adapter.wiki.codec.values import Count, Value, writer
from koala_adapter.wiki.codec.words import (
    JOB_ATTRIBUTES,
    JOB_ORDER_WIKI2,
    NODE_ATTRIBUTES,
    Dialect,
    HostFormat,
    JobWord,
    NodeWord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from koala_adapter.wiki.codec.words import Attribute

Plan = tuple["Callable[[object], tuple[Value | None, ...]]", tuple["Callable[[Value], str]", ...]]
"""How a record is written: what gets all its fields at once, and for each of them what writes the attribute."""

_NO_TEXT: Final = ""
_NO_LIST: Final = ()
_NODE_WORDS: Final = frozenset(map(str, NodeWord))
_JOB_WORDS: Final = frozenset(map(str, JobWord))


# Without slots: a record that is read gets only the fields that are on the wire, and the defaults of the class serve
# for the others. That makes reading 100,000 jobs twice as fast.
@dataclass(frozen=True, kw_only=True)
class NodeRecord:
    """A node as a resource manager reports it. None, "" and (): not reported. Memory, swap and disk are in MB."""

    name: str
    state: str = ""
    """A `NodeWord`, or whatever word a peer sent."""
    updated_at: int | None = None
    load: float | None = None
    reason: str = ""
    """Why it is down or drained (CAT; WIKI2)."""
    classes: tuple[Count, ...] = ()
    """Queues it serves, with the tasks each may have there. Maui also needs `classes_free`."""
    classes_free: tuple[Count, ...] = ()
    """When not given, what is sent to Maui is `classes`: it takes a missing ACLASS for "no room"."""
    architecture: str = ""
    operating_system: str = ""
    features: tuple[str, ...] = ()
    gres: str = ""
    partition: str = ""
    memory: int | None = None
    memory_free: int | None = None
    swap: int | None = None
    swap_free: int | None = None
    disk: int | None = None
    disk_free: int | None = None
    processors: int | None = None
    processors_free: int | None = None
    """Maui believes it as it is, and does not subtract its own running jobs; without it, it computes."""
    networks: tuple[str, ...] = ()
    networks_free: tuple[str, ...] = ()
    resources: tuple[Count, ...] = ()
    resources_free: tuple[Count, ...] = ()
    speed: float | None = None
    extra: tuple[tuple[str, str], ...] = ()
    """Pairs (name, text) of attributes that were read and are not in the table; never written."""

    @property
    def id(self) -> str:
        """Same as the name: what the record begins with."""
        return self.name


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job as a resource manager reports it. None, "" and (): not reported. Memory, swap and disk are in MB.

    Points in time are seconds since the epoch, spans are seconds.
    """

    id: str
    state: str = ""
    """A `JobWord`, or whatever word a peer sent."""
    exit_code: int | None = None
    task_list: tuple[str, ...] = ()
    """Hosts on which it runs, one entry for each task."""
    host_list: tuple[str, ...] = ()
    """Hosts it must use, one entry for each task slot."""
    excluded_hosts: tuple[str, ...] = ()
    eligible_at: int | None = None
    deadline: int | None = None
    maximum_nodes: int | None = None
    features: tuple[str, ...] = ()
    """All of them must be on its nodes."""
    rejection: str = ""
    directory: str = ""
    executable: str = ""
    arguments: str = ""
    input: str = ""
    output: str = ""
    error: str = ""
    flags: str = ""
    gres: str = ""
    submit_host: str = ""
    wckey: str = ""
    updated_at: int | None = None
    walltime: int | None = None
    """Seconds. Without it Maui assumes 100 days."""
    tasks: int | None = None
    nodes: int | None = None
    """Exactly so many; not reported: any number."""
    tasks_per_node: int | None = None
    processors_per_task: int | None = None
    queued_at: int | None = None
    started_at: int | None = None
    """0 while it waits."""
    partitions: tuple[str, ...] = ()
    """Partitions of nodes that it may use; a name that no node has keeps it waiting for ever."""
    memory_per_task: int | None = None
    disk_per_task: int | None = None
    swap_per_task: int | None = None
    queue: str = ""
    """Class (Maui) or partition (Slurm). More than one, or with counts: as on the wire, ``[a:2][b:1]``."""
    memory: int | None = None
    """That a node must have configured."""
    memory_comparison: str = ""
    disk: int | None = None
    disk_comparison: str = ""
    swap: int | None = None
    swap_comparison: str = ""
    operating_system: str = ""
    architecture: str = ""
    network: str = ""
    reservations: tuple[str, ...] = ()
    comment: str = ""
    completed_at: int | None = None
    suspended_for: int | None = None
    account: str = ""
    qos: str = ""
    name: str = ""
    """Only in WIKI2: Maui takes it for the job's id."""
    user: str = ""
    group: str = ""
    extra: tuple[tuple[str, str], ...] = ()
    """Pairs (name, text) of attributes that were read and are not in the table; never written."""


# -- writing ------------------------------------------------------------------------------------------------------


def build_node(record: NodeRecord, dialect: Dialect, *, brief: bool = False) -> bytes:
    """Return the record of one node. ``brief``: only what a scheduler needs to decide. Raises WikiError."""
    return _build_node(check_host(record.name), record, dialect, brief=brief)


def build_nodes(
    records: Iterable[NodeRecord], dialect: Dialect, *, hosts: HostFormat = HostFormat.PLAIN, brief: bool = False
) -> Iterator[bytes]:
    """Yield the records of several nodes; with HostFormat.NODES, one for each row of equal neighbours (WIKI2)."""
    if dialect is Dialect.WIKI or hosts is not HostFormat.NODES:
        for record in records:
            yield build_node(record, dialect, brief=brief)
        return
    for like, group in groupby(records, key=lambda record: replace(record, name="")):
        for expression in folded([check_host(record.name) for record in group]):
            yield _build_node(expression, like, dialect, brief=brief)


def _build_node(name: str, record: NodeRecord, dialect: Dialect, *, brief: bool) -> bytes:
    if record.state not in _NODE_WORDS:
        raise WikiError(f"a node cannot be {record.state!r}", hint=f"allowed: {', '.join(NodeWord)}")
    if dialect is Dialect.WIKI and record.classes and not record.classes_free:
        record = replace(record, classes_free=record.classes)
    return _assemble(name, record, _node_plan(dialect, brief))


def build_job(
    record: JobRecord, dialect: Dialect, *, hosts: HostFormat = HostFormat.PLAIN, brief: bool = False
) -> bytes:
    """Return the record of one job. ``brief``: only what a scheduler needs to decide.

    Raises WikiError for what cannot be sent: an id or host name with separators, a state that Maui does not know, a
    task list that Maui has no room for; and, to Maui, a job without user or number of tasks, which it would defer.
    """
    if record.state not in _JOB_WORDS:
        raise WikiError(f"a job cannot be {record.state!r}", hint=f"allowed: {', '.join(JobWord)}")
    if dialect is Dialect.WIKI and (not record.user or record.tasks is None):
        raise WikiError(f"job {record.id!r} needs a user and a number of tasks, or Maui defers it")
    return _assemble(check_id(record.id), record, _job_plan(dialect, hosts, brief))


def _assemble(name: str, record: NodeRecord | JobRecord, plan: Plan) -> bytes:
    fields, writers = plan
    parts = [name, ":"]
    for value, write in zip(fields(record), writers, strict=True):
        if value is not None and value is not _NO_TEXT and value is not _NO_LIST:
            parts.append(write(value))
    return "".join(parts).encode()


@cache
def _node_plan(dialect: Dialect, brief: bool) -> Plan:  # noqa: FBT001 - a key of the cache
    wanted = [item for item in NODE_ATTRIBUTES if dialect in item.dialects and (item.brief or not brief)]
    return _plan(wanted, dialect, HostFormat.PLAIN)


@cache
def _job_plan(dialect: Dialect, hosts: HostFormat, brief: bool) -> Plan:  # noqa: FBT001 - likewise
    wanted = [item for item in JOB_ATTRIBUTES if dialect in item.dialects and (item.brief or not brief)]
    if dialect is Dialect.WIKI2:
        first = {name: index for index, name in enumerate(JOB_ORDER_WIKI2)}
        wanted.sort(key=lambda item: first.get(item.name, len(first)))
    return _plan(wanted, dialect, hosts)


def _plan(wanted: Sequence[Attribute], dialect: Dialect, hosts: HostFormat) -> Plan:
    getter = attrgetter(*(attribute.field for attribute in wanted))
    return getter, tuple(writer(attribute, dialect, hosts) for attribute in wanted)
