# SPDX-License-Identifier: Apache-2.0
"""What a control center reports of its agents, and the interfaces of the objects that it reports to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.vjm import channel

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.vjm.channel import TaskReport


# -- Events --------------------------------------------------------------------------------------------------


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
    """Event: an agent with the right token claimed a placeholder that another session owns.

    Either the LRM ran the same placeholder twice, or the token is stolen.
    """

    placeholder: PlaceholderId
    host: str
    address: str
    """As we see it."""


AgentEvent: TypeAlias = AgentRegistered | AgentDisconnected | AgentRefused

PlaceholderMessage: TypeAlias = channel.Ending | channel.Probing | channel.Probed
TaskMessage: TypeAlias = (
    channel.TaskStarted | channel.TaskEnded | channel.Application | channel.Listening | channel.Forwarded
)
AgentReport: TypeAlias = PlaceholderMessage | TaskMessage
"""A message of an agent that is handed on as it is. Those on a task may come more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a relayed connection goes."""

    job_id: JobId
    port: int
    placeholder: PlaceholderId | None = None
    """Whose agent connects to the port; None: it is a port of this host."""
    task: str = ""
    """Which listens at the port."""


# -- The listeners -------------------------------------------------------------------------------------------


class AgentListener(ABC):
    """Owner of the records of placeholders, told of their agents (protocol)."""

    @abstractmethod
    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        """Return whether a token is that of the placeholder's submission, and the placeholder is still wanted."""

    @abstractmethod
    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return the digest of the session that owns ``placeholder``; None when no agent has registered for it."""

    def lease_of(self, placeholder: PlaceholderId) -> float | None:  # noqa: ARG002 - for those that tell them apart
        """Return the lease of an agent; None: that of the control center."""
        return None

    @abstractmethod
    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Record the owner durably. Raises JournalBlockedError."""

    @abstractmethod
    def on_event(self, event: AgentEvent) -> None:
        """Handle an event, in order; an exception closes the agent's connection."""

    @abstractmethod
    def on_report(self, placeholder: PlaceholderId, report: PlaceholderMessage) -> None:
        """Handle a message of an agent, in order with its events; an exception closes the agent's connection."""

    def on_rejected(self, address: str, fault: str) -> None:
        """Called when a peer did not prove itself; any host that reaches the port can be one."""
        del address, fault


class TaskListener(ABC):
    """Owner of the files of tasks, told of what happens to them (protocol)."""

    @abstractmethod
    def on_report(self, placeholder: PlaceholderId, report: TaskMessage) -> None:
        """Handle a message on a task, in order with the events of its agent; an exception closes the connection.

        By the time of a TaskEnded all output of the task is in its files.
        """

    @abstractmethod
    def output_path(self, placeholder: PlaceholderId, task: str) -> Path | None:
        """Return the path of a task's output, to which ``.out`` or ``.err`` is added; None drops the output."""

    def on_output(self, task: str, stream: str, offset: int, data: bytes) -> None:
        """Called when output was written to its file."""
        del task, stream, offset, data

    def on_unwritten(self, task: str, stream: str, file: Path, why: str) -> None:
        """Called when output cannot be written now; it is retried. ``files``: the report on output files."""
        del task, stream, file, why

    def on_written(self, task: str, stream: str) -> None:
        """Called when the report on a task's output files is stored."""
        del task, stream

    def input_path(self, placeholder: PlaceholderId, task: str, content: str) -> Path | None:
        """Return the path of an input file by the digest of its content; None: the task has no such file."""
        del placeholder, task, content
        return None

    def on_input_sent(self, task: str, size: int) -> None:
        """Take in that an agent was sent so many bytes of the input files of a task."""
        del task, size

    def take_file(self, placeholder: PlaceholderId, piece: channel.FilePiece) -> channel.FileAck:
        """Store a piece of an output file, or refuse the file. Raises ProtocolError for an invalid message."""
        del placeholder
        return channel.FileAck(task=piece.task, number=piece.number, offset=0, refusal="not wanted here")

    async def check_file(self, placeholder: PlaceholderId, piece: channel.FilePiece) -> channel.FileAck:
        """Compare the digest of an output file of which the last piece was stored, and put the file in its place."""
        return self.take_file(placeholder, piece)

    async def route(self, placeholder: PlaceholderId, asked: channel.TunnelAsked) -> Route | None:
        """Return where a relayed connection that an agent asks for goes; None: it is not allowed."""
        del placeholder, asked
        return None

    def files_done(self, placeholder: PlaceholderId, files: channel.TaskFiles) -> None:
        """Store the final report on a task's output files. Raises OSError."""
        del placeholder, files
