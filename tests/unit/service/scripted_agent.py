# SPDX-License-Identifier: Apache-2.0
"""An agent inside the test's own process: it speaks the channel, comes back when it is cut off, and runs nothing."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import anyio
from anyio.streams.tls import TLSStream

from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.vjm import channel

if TYPE_CHECKING:
    from koala_adapter.model import PlaceholderId

REDIAL = 0.05


class ScriptedAgent:
    """Registers, says that what it is told to launch has started, and ends it when the test says so."""

    def __init__(self, placeholder: PlaceholderId, *, port: int, token: str) -> None:
        self.placeholder = placeholder
        self.connections = 0
        """How often it was let in."""
        self.end_task = anyio.Event()
        self._port = port
        self._token = token
        self._tasks: list[str] = []
        self._released = False

    async def run(self) -> None:
        """Serve until it is released."""
        while not self._released:
            try:
                await self._converse()
            except* (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                await anyio.sleep(REDIAL)

    async def _converse(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        async with await anyio.connect_tcp("127.0.0.1", self._port) as transport:
            stream = await TLSStream.wrap(transport, server_side=False, ssl_context=context, standard_compatible=False)
            await stream.send(channel.encode(self._hello()))
            decoder = channel.center_decoder()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._say_ends, stream)
                while not self._released:
                    for message in decoder.feed(await stream.receive()):
                        await self._hear(stream, message)
                tasks.cancel_scope.cancel()

    def _hello(self) -> channel.Hello:
        known = tuple(channel.TaskReport(task=task, running=True) for task in self._tasks)
        return channel.Hello(
            batch=self.placeholder.batch, index=self.placeholder.index, token=self._token, session="one", lrm_id="1",
            host="n1", address="127.0.0.1", pid=1, ends_in=None, python="3.6", tasks=known, resends=True,
        )  # fmt: skip

    async def _hear(self, stream: TLSStream, message: channel.CenterMessage) -> None:
        if isinstance(message, channel.Welcome):
            self.connections += 1
        elif isinstance(message, channel.Launch) and message.task not in self._tasks:
            self._tasks.append(message.task)
            await stream.send(channel.encode(channel.TaskStarted(task=message.task, pid=2)))
        elif isinstance(message, channel.Release | channel.Refused):
            self._released = True

    async def _say_ends(self, stream: TLSStream) -> None:
        await self.end_task.wait()
        for task in self._tasks:
            end = TaskEnd(reason=EndReason.EXITED, exit_code=0)
            await stream.send(channel.encode(channel.TaskEnded(task=task, end=end)))
