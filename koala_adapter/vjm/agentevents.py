# SPDX-License-Identifier: Apache-2.0
"""What the control center tells the service: values, given to its ``on_event`` one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from koala_adapter.model import EndReason, PlaceholderId, TaskEnd
    from koala_adapter.vjm.channel import TaskReport


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRegistered:
    """An agent proved itself, for the first time or again after a lost connection. It can be launched into now."""

    placeholder: PlaceholderId
    lrm_id: str
    """Id of the LRM job as the LRM told it inside the job; may be empty."""
    host: str
    """The node's own name."""
    address: str
    """IP address of the node: its own word, or what we see when that is none."""
    ends_in: float | None
    """Seconds until the walltime of the placeholder ends; None: not known."""
    tasks: tuple[TaskReport, ...]
    """Everything that this agent ever ran (the newest, when there were very many)."""
    first: bool
    """False when it comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDisconnected:
    """The connection is gone; the agent may come back within its lease."""

    placeholder: PlaceholderId
    detail: str
    closed: bool
    """The agent closed it. One that was lost, or ended here, says nothing of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRefused:
    """Somebody with the right token but another session asked for a placeholder that is taken.

    Either the LRM ran the same placeholder twice, or the token is stolen.
    """

    placeholder: PlaceholderId
    host: str
    address: str
    """As we see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTaskStarted:
    """The process of a task runs. May be told more than once."""

    placeholder: PlaceholderId
    task: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTaskEnded:
    """A task is over and all of its output is in its files. May be told more than once."""

    placeholder: PlaceholderId
    task: str
    end: TaskEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationSaid:
    """The process of a task says something to koala."""

    placeholder: PlaceholderId
    task: str
    frame: bytes
    """One whole frame, as the agent has cut it; what is in it is not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnding:
    """The placeholder is about to go, and its tasks with it; their ends follow."""

    placeholder: PlaceholderId
    reason: EndReason
    detail: str


AgentEvent: TypeAlias = (
    AgentRegistered
    | AgentDisconnected
    | AgentRefused
    | AgentTaskStarted
    | AgentTaskEnded
    | ApplicationSaid
    | AgentEnding
)
