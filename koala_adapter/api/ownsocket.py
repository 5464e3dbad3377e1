# SPDX-License-Identifier: Apache-2.0
"""The socket of a state directory, which is made anew when somebody, such as a cleaner of old files, has removed it.

Without that a living service could be neither asked nor stopped, while its lock keeps every other one away.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.api.statedirectory import socket_path
from koala_adapter.net.accepting import serve_streams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from anyio.abc import Listener, SocketStream

    from koala_adapter.net.accepting import Handle

LOOK_AGAIN = 5.0
"""Seconds between two looks at the path of the socket."""

log = structlog.get_logger()


class OwnSocket:
    """Listens on the socket of a state directory that this process owns."""

    def __init__(self, path: Path, listener: Listener[SocketStream], resources: AsyncExitStack) -> None:
        """``listener``: the first one; ``resources``: closed by the owner, with all listeners."""
        self._path = path
        self._listener = listener
        self._resources = resources

    async def serve(self, handle: Handle, *, look_again: float = LOOK_AGAIN) -> None:
        """Serve whoever connects, and has connected before, until cancelled; look at the path at times (seconds)."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_streams, self._listener, handle)
            while True:
                await anyio.sleep(look_again)
                if self._path.exists():  # also if it is that of another service, in a directory made anew
                    continue
                try:
                    listener = await _new_listener(self._path)
                except OSError as error:
                    log.warning(
                        "the socket was removed and cannot be made anew", path=str(self._path), error=str(error)
                    )
                    continue
                # The one before stays open: conversations by it go on, and who has just connected is answered.
                await self._resources.enter_async_context(listener)
                log.warning("the socket was removed, and is made anew", path=str(self._path))
                tasks.start_soon(serve_streams, listener, handle)


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[OwnSocket]:
    """Listen on the socket of a state directory. Raises ConfigurationError."""
    path = socket_path(directory)
    with suppress(FileNotFoundError):
        path.unlink()
    listener = await _new_listener(path)
    try:
        async with AsyncExitStack() as resources:
            await resources.enter_async_context(listener)
            yield OwnSocket(path, listener, resources)
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


async def _new_listener(path: Path) -> Listener[SocketStream]:
    return await anyio.create_unix_listener(path, mode=0o600)
