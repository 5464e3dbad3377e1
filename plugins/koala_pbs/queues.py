# SPDX-License-Identifier: Apache-2.0
"""Queues from ``qstat -Q -f -F json``, and what the server says of itself in ``qstat -B -f -F json``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.model import Queue
from koala_pbs.documents import mapping_of, read_entries, value_of
from koala_pbs.values import number_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from koala_adapter.model import Node
    from koala_pbs.documents import Attributes

DEFAULT_MAX_ARRAY_SIZE = 10_000
TRUE = "True"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a PBS server says of itself."""

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

    def may_operate(self, *, user: str, uid: int) -> bool | None:
        """Tell whether a user is an operator or manager; None when it cannot be told from here."""
        named = {entry.partition("@")[0].strip() for entry in f"{self.managers},{self.operators}".split(",")}
        if user in named:
            return True
        # root of the server's host is one unless others are named.
        return None if uid == 0 else False


def parse_server(text: str) -> ServerConfig:
    """Return the server of a listing. Raises ValueError when there is none."""
    for name, attributes in read_entries(text, "Server").items():
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
        )
    raise ValueError("there is no server")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """What is set for a queue."""

    name: str
    executes: bool
    """Jobs run from it; others only pass through (a routing queue)."""
    up: bool
    walltime_limit: int | None
    max_array_size: int | None


def parse_queues(text: str) -> tuple[QueueConfig, ...]:
    """Return the queues of a listing. Raises ValueError."""
    return tuple(_queue(name, attributes) for name, attributes in read_entries(text, "Queue").items())


def _queue(name: str, attributes: Attributes) -> QueueConfig:
    largest = value_of(attributes, "max_array_size")
    return QueueConfig(
        name=name,
        executes=value_of(attributes, "queue_type").lower().startswith("e"),
        up=value_of(attributes, "enabled") == value_of(attributes, "started") == TRUE,
        walltime_limit=seconds_of(mapping_of(attributes, "resources_max").get("walltime", "")),
        max_array_size=number_of(largest) if largest else None,
    )


def served(queues: Iterable[QueueConfig], nodes: Iterable[Node], *, default: str) -> tuple[Queue, ...]:
    """Return queues with the processors that serve them. A routing queue counts with all."""
    nodes = tuple(nodes)
    return tuple(
        Queue(
            name=queue.name,
            up=queue.up,
            processors=sum(
                node.processors for node in nodes if not queue.executes or not node.queues or queue.name in node.queues
            ),
            walltime_limit=queue.walltime_limit or None,
            default=queue.name == default,
        )
        for queue in queues
    )


def largest_array(server: ServerConfig | None, queues: Mapping[str, QueueConfig], queue: str | None) -> int:
    """Return the largest array that a queue takes: its own limit, and its server's."""
    limit = server.max_array_size if server is not None else DEFAULT_MAX_ARRAY_SIZE
    found = queues.get(queue or (server.default_queue if server is not None else ""))
    own = found.max_array_size if found is not None else None
    return max(1, limit if own is None else min(limit, own))
