# SPDX-License-Identifier: Apache-2.0
"""A WIKI resource manager over a cluster, in a thread of its own, for tests of those who speak with it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import anyio
from anyio.from_thread import start_blocking_portal

from koala_adapter.host.sockets import free_port
from koala_adapter.lrm.starts import StartLog
from koala_adapter.wiki.resource import WikiResource
from koala_adapter.wiki.server import serve
from koala_adapter.wiki.serving import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from anyio.abc import TaskStatus

    from koala_adapter.lrm import Lrm
    from koala_adapter.wiki.codec.frames import Key
    from koala_adapter.wiki.codec.words import Dialect


class WikiServer:
    """Serves one cluster; may be stopped and started again on the same port."""

    def __init__(self, make: Callable[[], Lrm], *, dialect: Dialect, key: Key, directory: Path) -> None:
        """``make`` makes the cluster's LRM; ``directory``: where starts are noted. Nothing runs before `start`."""
        self._make = make
        self._dialect = dialect
        self._key = key
        self._directory = directory
        self._stack = ExitStack()
        self._serving = False
        self.port = free_port()

    def start(self) -> None:
        """Serve, on the port of the last time; returns when it takes requests. Nothing happens when it does."""
        if self._serving:
            return
        self._serving = True
        portal = self._stack.enter_context(start_blocking_portal())
        future, self.port = portal.start_task(self._serve)
        self._stack.callback(future.cancel)

    def stop(self) -> None:
        """Serve no more; returns when the port is closed."""
        self._serving = False
        self._stack.close()

    async def _serve(self, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
        options = ServerOptions(
            dialect=self._dialect,
            port=self.port,
            cache=0.05,
            reply_within=60.0,
            start_reply_within=60.0,
            user_holds=True,
            requests_per_minute=100_000,
        )
        lrm = self._make()
        await lrm.start()
        self._directory.mkdir(parents=True, exist_ok=True)
        starts = StartLog(self._directory / "starts.sqlite")
        try:
            await serve(WikiResource(lrm, self._key, starts, options, clock=time.time), task_status=task_status)
        finally:
            starts.close()
            await lrm.close()
