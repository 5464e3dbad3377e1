# SPDX-License-Identifier: Apache-2.0
"""The socket of a service comes back when somebody has removed it."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.api.server import listening
from koala_adapter.api.statedirectory import SOCKET_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import SocketStream

pytestmark = pytest.mark.anyio


class Echo:
    """Sends back what comes."""

    def __init__(self) -> None:
        """Nobody has come."""
        self.left = [anyio.Event(), anyio.Event()]

    async def __call__(self, stream: SocketStream) -> None:
        """Answer until the peer ends."""
        async with stream:
            async for data in stream:
                await stream.send(data)
        next(event for event in self.left if not event.is_set()).set()


async def answered(stream: SocketStream) -> bool:
    """Tell whether what is sent comes back."""
    await stream.send(b"ping")
    return await stream.receive() == b"ping"


async def connected(path: Path) -> SocketStream:
    """Connect as soon as somebody listens."""
    with anyio.fail_after(60):
        while True:
            try:
                return await anyio.connect_unix(path)
            except OSError:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("whole_directory", [False, True])
async def test_removed_socket_is_made_anew(tmp_path: Path, *, whole_directory: bool) -> None:
    """Who is connected goes on, others are answered again, and nothing is left at the end."""
    directory = tmp_path / "state"
    directory.mkdir()
    path, echo = directory / SOCKET_NAME, Echo()
    async with listening(directory) as own, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(own.serve, echo, look_again=0.01))
        async with await connected(path) as before:
            assert await answered(before)
            path.unlink()
            if whole_directory:
                shutil.rmtree(directory)
                await anyio.sleep(0.05)  # it cannot be made now; that must not end the service
                directory.mkdir()
            async with await connected(path) as after:
                assert await answered(after)
            assert await answered(before)
        assert path.stat().st_mode & 0o777 == 0o600
        for event in echo.left:
            await event.wait()
        tasks.cancel_scope.cancel()
    assert not path.exists()
