# SPDX-License-Identifier: Apache-2.0
"""What the plugin ``pbs`` makes of printed listings, in one step: their entries are read, then understood."""

from __future__ import annotations

from collections.abc import Mapping

from koala_adapter.model import LrmJob, Node
from koala_pbs import jobs, queues
from koala_pbs.jobs import JobRequest, Reader, read_entries
from koala_pbs.queues import QueueConfig, ServerConfig, Vnodes


def parse_jobs(text: str, read: Reader = read_entries) -> tuple[LrmJob, ...]:
    return jobs.parse_jobs(read(text, "Jobs"))


def parse_requests(text: str) -> Mapping[str, JobRequest]:
    return jobs.parse_requests(read_entries(text, "Jobs"))


def parse_selections(text: str) -> Mapping[str, str]:
    return jobs.parse_selections(read_entries(text, "Jobs"))


def parse_nodes(text: str, read: Reader = read_entries, *, queues: tuple[str, ...] = ()) -> tuple[Node, ...]:
    return jobs.parse_nodes(read(text, "nodes"), queues=queues)


def parse_vnodes(text: str) -> Vnodes:
    return queues.parse_vnodes(read_entries(text, "nodes"))


def parse_server(text: str, read: Reader = read_entries) -> ServerConfig:
    return queues.parse_server(read(text, "Server"))


def parse_queues(text: str, read: Reader = read_entries, *, home: str = "") -> tuple[QueueConfig, ...]:
    return queues.parse_queues(read(text, "Queue"), home=home)
