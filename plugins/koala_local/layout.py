# SPDX-License-Identifier: Apache-2.0
"""What the daemon is told about its cluster: the simulated nodes and a few limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from koala_local.protocol import Fields, Json

KILL_WAIT = 2.0
QUEUE = "local"
"""Name of the one queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlots:
    """A simulated node: a name, and how many jobs of one processor run on it at once."""

    name: str
    processors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A cluster as its settings describe it."""

    nodes: tuple[NodeSlots, ...]
    walltime_limit: int | None = None
    """Seconds; None: no limit."""
    idle_seconds: float = 600.0
    remember_seconds: float = 600.0
    kill_wait: float = KILL_WAIT
    """Seconds from SIGTERM to SIGKILL."""

    @property
    def processors(self) -> int:
        """Processors of all nodes."""
        return sum(node.processors for node in self.nodes)

    def to_json(self) -> dict[str, Json]:
        """Return what `from_json` reads."""
        return {
            "nodes": [{"name": node.name, "processors": node.processors} for node in self.nodes],
            "walltime_limit": self.walltime_limit,
            "idle_seconds": self.idle_seconds,
            "remember_seconds": self.remember_seconds,
            "kill_wait": self.kill_wait,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Self:
        """Read what `to_json` wrote. Raises ProtocolError."""
        kill_wait = fields.optional_number("kill_wait")  # earlier versions do not say it
        return cls(
            nodes=tuple(
                NodeSlots(name=node.text("name"), processors=node.integer("processors"))
                for node in fields.objects("nodes")
            ),
            walltime_limit=fields.optional_integer("walltime_limit"),
            idle_seconds=fields.number("idle_seconds"),
            remember_seconds=fields.number("remember_seconds"),
            kill_wait=KILL_WAIT if kill_wait is None else kill_wait,
        )
