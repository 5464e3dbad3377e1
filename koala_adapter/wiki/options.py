# SPDX-License-Identifier: Apache-2.0
"""What a WIKI resource manager needs to know about its peers, its limits and its memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from koala_adapter.wiki.codec.frames import REQUEST_SKEW
from koala_adapter.wiki.codec.words import Dialect

DEFAULT_PORT = 7321
"""Slurm's SchedulerPort, which guides and configurations of Maui name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Settings of one server. Times are in seconds, sizes in bytes."""

    dialect: Dialect = Dialect.WIKI
    listen: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0: any free one."""
    peers: tuple[str, ...] = ("127.0.0.1", "::1")
    """Addresses and networks (10.0.0.0/24) whose requests are heard."""
    user: str = "koala"
    """What we call ourselves in AUTH=; nobody checks it."""
    cache: float = 2.0
    """How old a listing of the LRM may be that is answered from."""
    retention: float = 300.0
    """How long a finished job is reported, at least, and until two polls have seen it."""
    reply_within: float = 8.0
    """Every request is answered within this time: below Maui's TIMEOUT (9 by default)."""
    oldest: float = 120.0
    """How old a listing may be that is answered from while the next one takes longer than an answer may."""
    start_within: float = 20.0
    """A released job that does not run within this time is held again."""
    read_within: float = 10.0
    """A request must be complete so long after the connection was made."""
    skew: float = float(REQUEST_SKEW)
    largest_request: int = 1_000_000
    connections: int = 512
    """At once; beyond it the oldest that has not sent its request is closed."""
    requests_per_minute: int = 1200
    """Of each peer address."""
    user_holds: bool = False
    """Jobs held by their owners are ours to start, too: where the LRM cannot tell whose hold it is."""
    event_host: str = ""
    """Where events go (WIKI2); empty: to whoever sent INITIALIZE."""
    event_port: int = 0
    """0: no events until INITIALIZE names a port."""
    event_interval: float = 10.0
    """Shortest time between two events of one kind."""
