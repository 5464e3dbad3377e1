# SPDX-License-Identifier: Apache-2.0
"""Pieces of input files that agents ask for: read and sent one after the other, so that memory is bounded."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from koala_adapter.errors import ProtocolError
from koala_adapter.vjm.channel import FETCHES, INPUT_PIECE, Fetch, InputPiece

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.vjm.listener import TaskListener
    from koala_adapter.vjm.output import AgentConnection

AT_ONCE = 64
"""Pieces that are in memory for all agents together."""


class InputSender:
    """Answers the questions of one agent for pieces of input files."""

    def __init__(
        self, listener: TaskListener, connection: AgentConnection, tasks: TaskGroup, room: anyio.CapacityLimiter
    ) -> None:
        """``tasks``: within which pieces are sent. ``room``: shared by all agents, of AT_ONCE pieces."""
        self._listener = listener
        self._connection = connection
        self._tasks = tasks
        self._room = room
        self._wanted: deque[Fetch] = deque()
        self._sending = False

    def want(self, fetch: Fetch) -> None:
        """Send a piece after those asked for before. Raises ProtocolError when there are too many questions."""
        if len(self._wanted) >= FETCHES:
            raise ProtocolError(f"it asks for more than {FETCHES} pieces of input files at once")
        self._wanted.append(fetch)
        if not self._sending:
            self._sending = True
            self._tasks.start_soon(self._send)

    async def _send(self) -> None:
        while self._wanted and not self._connection.fault:
            fetch = self._wanted[0]
            async with self._room:
                self._connection.post(await self._piece(fetch))
                await self._connection.drained()
            self._wanted.popleft()
            self._listener.on_input_sent(fetch.task, INPUT_PIECE)
        self._sending = False

    async def _piece(self, fetch: Fetch) -> InputPiece:
        path = self._listener.input_path(self._connection.placeholder, fetch.task, fetch.digest)
        data, refusal = b"", "its job is not known any more"
        if path is not None:
            try:
                data, refusal = await anyio.to_thread.run_sync(_read, path, fetch.offset), ""
            except OSError as error:
                refusal = f"{path}: {error.strerror or error}"
        return InputPiece(task=fetch.task, digest=fetch.digest, offset=fetch.offset, data=data, refusal=refusal[:2000])


def _read(path: Path, offset: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(descriptor, INPUT_PIECE, offset)
    finally:
        os.close(descriptor)
