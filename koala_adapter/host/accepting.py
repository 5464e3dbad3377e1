# SPDX-License-Identifier: Apache-2.0
"""Accepting stream connections under load: admission control of unproven peers, and the accept loop.

Any client that reaches a port can open connections until this process, or the machine, has no descriptors left.
Admission control bounds the connections without a proof of identity. When accepting fails for want of descriptors
(accept(2)), the loop tries again a moment later.
"""

from __future__ import annotations

import errno
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketAttribute, SocketListener
from anyio.streams.stapled import MultiListener

from koala_adapter.host.containment import report_defect

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from anyio.abc import Listener, SocketStream, TaskGroup


# -- Admission control: how many unproven peers, and for how long --------------------------------------------
# Without a bound, connections of strangers would use up memory and descriptors; with a bound alone they would keep
# agents out. So the places are limited, each peer has a time limit, and when all places are taken the oldest peer has
# to leave as soon as it had a fair chance.


class Admission:
    """Limits connections of peers that have not proved themselves yet."""

    def __init__(self, *, limit: int, time_limit: float, patience: float) -> None:
        """``limit`` peers at once; each has ``time_limit`` seconds, but only ``patience`` while others must wait."""
        self._limit = limit
        self._time_limit = time_limit
        self._patience = patience
        self._applicants: dict[anyio.CancelScope, float] = {}
        self._left = anyio.Event()

    async def room(self) -> None:
        """Wait until another peer may connect."""
        while len(self._applicants) >= self._limit:
            oldest, since = next(iter(self._applicants.items()))
            wait = since + self._patience - anyio.current_time()
            if wait <= 0:
                self._applicants.pop(oldest)
                oldest.cancel()
                return
            with anyio.move_on_after(wait):
                await self._left.wait()

    @contextmanager
    def applicant(self) -> Iterator[anyio.CancelScope]:
        """Count a peer as unproven during the block; cancel the block when its time is up."""
        now = anyio.current_time()
        with anyio.CancelScope(deadline=now + self._time_limit) as scope:
            self._applicants[scope] = now
            try:
                yield scope
            finally:
                self._applicants.pop(scope, None)
                self._left.set()
                self._left = anyio.Event()


# -- The accept loop -----------------------------------------------------------------------------------------

if TYPE_CHECKING:
    Handle = Callable[[SocketStream], Coroutine[Any, Any, None]]

PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EPROTO, errno.EPERM}
)
"""Errors of accept(2) after which it is tried again: want of something, and peers that have gone again."""
PAUSE = 0.1
"""Seconds until then."""


async def serve_streams(listener: Listener[SocketStream], handle: Handle) -> None:
    """Handle each connection in a task until cancelled; an exception of a handler ends its connection only.

    Raises OSError for what does not pass.
    """
    async with anyio.create_task_group() as tasks:
        for one in parts(listener):
            tasks.start_soon(_serve_one, one, handle, tasks)


def parts(listener: Listener[SocketStream]) -> list[SocketListener]:
    """Return the listeners of which one consists, one for each of its addresses."""
    found = listener.listeners if isinstance(listener, MultiListener) else [listener]
    return [one for one in found if isinstance(one, SocketListener)]


async def _serve_one(listener: SocketListener, handle: Handle, tasks: TaskGroup) -> None:
    unix = listener.extra(SocketAttribute.family) is socket.AF_UNIX
    raw_socket = listener.extra(SocketAttribute.raw_socket)
    while True:
        if unix:  # cancelled as a peer comes, anyio's own waiting would be reported: see koala_adapter.host.unixstream
            await anyio.wait_readable(raw_socket)
        tasks.start_soon(handle_stream, handle, await accepted(listener))


async def handle_stream(handle: Handle, stream: SocketStream) -> None:
    """Handle a connection, and close it; an exception of the handler ends that alone."""
    async with stream:
        try:
            await handle(stream)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the peer has gone
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this connection alone
            report_defect("a connection", error)


async def accepted(listener: SocketListener, *, failed: Callable[[OSError], None] | None = None) -> SocketStream:
    """Return the next connection. Raises OSError and BrokenResourceError for lasting failures.

    ``failed`` is told of each failure that passes, before it is tried again.
    """
    while True:
        try:
            return await listener.accept()
        except (OSError, anyio.BrokenResourceError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in PASSING:
                raise
            if failed is not None:
                failed(cause)
        await anyio.sleep(PAUSE)
