# SPDX-License-Identifier: Apache-2.0
"""Takes in the output that tasks write: into files, and told on; what cannot be written now is tried again.

The agent keeps its output until it is acknowledged. So of a stream whose file cannot be written only the first piece is
kept here; when that is in the file, the agent is asked for what came after it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import anyio

from koala_adapter.errors import ProtocolError
from koala_adapter.vjm import channel
from koala_adapter.vjm.outputstore import OutputStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.model import PlaceholderId
    from koala_adapter.vjm.agentconnection import AgentConnection

FIRST_RETRY = 0.5
"""Seconds before output that could not be written is tried again; doubled with each try."""
LONGEST_RETRY = 15.0
FILES = "files"
"""Stands for a stream where what an agent says of a task's output files cannot be written."""

_Stream: TypeAlias = "tuple[str, str]"
"""Task and name of one of its output streams."""


class OutputFiles:
    """Where the output of all tasks goes."""

    def __init__(
        self,
        *,
        path: Callable[[PlaceholderId, str], Path | None],
        on_output: Callable[[str, str, int, bytes], None] | None,
        on_unwritten: Callable[[str, str, Path, str], None] | None,
    ) -> None:
        """See :class:`~koala_adapter.vjm.center.ControlCenter`, where ``path`` is called ``output_path``."""
        self._path = path
        self._on_output = on_output
        self._on_unwritten = on_unwritten
        self._store = OutputStore()

    def file_of(self, placeholder: PlaceholderId, piece: channel.Output) -> Path | None:
        """Return where a piece goes; None: nowhere."""
        path = self._path(placeholder, piece.task)
        return None if path is None else path.with_name(f"{path.name}.{piece.stream}")

    def put(self, file: Path, piece: channel.Output) -> int:
        """Write a piece and tell of it; return the size of its file. Raises OSError."""
        size = self._write(file, piece)
        if self._on_output is not None:
            self._on_output(piece.task, piece.stream, piece.offset, piece.data)
        return size

    def _write(self, file: Path, piece: channel.Output) -> int:
        try:
            return self._store.append(file, piece.offset, piece.data)
        except ProtocolError:  # what is missing was acknowledged: somebody has emptied or removed the file since
            self._store.skip(file, piece.offset)
            return self._store.append(file, piece.offset, piece.data)

    def tell_unwritten(self, file: Path, piece: channel.Output, error: OSError) -> None:
        """Tell that a piece could not be written."""
        self._tell(piece.task, piece.stream, file, error)

    def tell_unkept(self, placeholder: PlaceholderId, task: str, error: OSError) -> None:
        """Tell that what is said of a task's output files could not be written."""
        path = self._path(placeholder, task)
        if path is not None:
            self._tell(task, FILES, path, error)

    def _tell(self, task: str, stream: str, file: Path, error: OSError) -> None:
        if self._on_unwritten is not None:
            self._on_unwritten(task, stream, file, os.strerror(error.errno) if error.errno else str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unwritten:
    """What is known of a stream whose file cannot be written."""

    file: Path
    piece: channel.Output | None
    """The first piece that could not be written; None: it is now, and the agent was asked to send on from there."""


class TaskOutput:
    """The output that comes by one connection."""

    def __init__(
        self,
        files: OutputFiles,
        connection: AgentConnection,
        tasks: TaskGroup,
        *,
        resends: bool,
        is_current: Callable[[], bool],
    ) -> None:
        """``tasks``: within which writing is tried again, while the connection ``is_current``.

        ``resends``: the agent understands Resend.
        """
        self._files = files
        self._connection = connection
        self._tasks = tasks
        self._resends = resends
        self._is_current = is_current
        self._unwritten: dict[_Stream, _Unwritten] = {}
        """Streams whose files cannot be written: what comes of them meanwhile is left to the agent, which keeps it."""
        self._retrying = False

    def is_behind(self, task: str) -> bool:
        """Tell whether output of a task is still to come."""
        return any(behind == task for behind, _ in self._unwritten)

    def resending(self, task: str, stream: str) -> None:
        """Hear that what follows of a stream is what was left to the agent."""
        self._unwritten.pop((task, stream), None)

    def keep(self, piece: channel.Output) -> None:
        """Write a piece and acknowledge it, now or later."""
        if (piece.task, piece.stream) in self._unwritten:
            return
        file = self._files.file_of(self._connection.placeholder, piece)
        if file is None:
            self._acknowledge(piece, piece.offset + len(piece.data))
            return
        try:
            self._acknowledge(piece, self._files.put(file, piece))
        except OSError as error:
            self._put_off(file, piece, error)

    def _acknowledge(self, piece: channel.Output, size: int) -> None:
        self._connection.post(channel.OutputAck(task=piece.task, stream=piece.stream, offset=size))

    def _put_off(self, file: Path, piece: channel.Output, error: OSError) -> None:
        self._unwritten[piece.task, piece.stream] = _Unwritten(file=file, piece=piece)
        self._files.tell_unwritten(file, piece, error)
        if not self._retrying:
            self._retrying = True
            self._tasks.start_soon(self._write_later)

    async def _write_later(self) -> None:
        """Try again, at growing intervals, what could not be written, until all is or the connection is gone."""
        pause = FIRST_RETRY
        while self._unwritten:
            await anyio.sleep(pause)
            pause = min(LONGEST_RETRY, 2 * pause)
            if not self._is_current():
                return
            for stream, unwritten in list(self._unwritten.items()):
                if unwritten.piece is not None and self._try_again(unwritten.file, unwritten.piece):
                    self._unwritten[stream] = _Unwritten(file=unwritten.file, piece=None)
                    pause = FIRST_RETRY
        self._retrying = False

    def _try_again(self, file: Path, piece: channel.Output) -> bool:
        try:
            self._acknowledge(piece, self._files.put(file, piece))
        except OSError as error:
            self._files.tell_unwritten(file, piece, error)
            return False
        if self._resends:
            self._connection.post(channel.Resend(task=piece.task, stream=piece.stream))
        else:
            self._connection.drop("its output can be written again, which it sends when it comes back")
        return True
