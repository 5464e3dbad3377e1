# SPDX-License-Identifier: Apache-2.0
"""Serving whoever connects, in a way that no want of descriptors ends.

Whoever can reach a port can open connections until this process, or the machine, has no descriptors left. Then
accepting fails (accept(2)); it is tried again a moment later, when some of them have gone.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import anyio
from anyio.abc import SocketListener
from anyio.streams.stapled import MultiListener

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from anyio.abc import Listener, SocketStream, TaskGroup

    Handle = Callable[[SocketStream], Coroutine[Any, Any, None]]

PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED, errno.EPROTO, errno.EPERM}
)
"""Errors of accept(2) after which it is tried again: want of something, and peers that have gone again."""
PAUSE = 0.1
"""Seconds until then."""


async def serve_streams(listener: Listener[SocketStream], handle: Handle) -> None:
    """Have each connection handled in a task of its own, until cancelled. Raises OSError for what does not pass."""
    async with anyio.create_task_group() as tasks:
        for one in parts(listener):
            tasks.start_soon(_serve_one, one, handle, tasks)


def parts(listener: Listener[SocketStream]) -> list[SocketListener]:
    """Return the listeners of which one consists, one for each of its addresses."""
    found = listener.listeners if isinstance(listener, MultiListener) else [listener]
    return [one for one in found if isinstance(one, SocketListener)]


async def _serve_one(listener: SocketListener, handle: Handle, tasks: TaskGroup) -> None:
    while True:
        tasks.start_soon(handle, await accepted(listener))


async def accepted(listener: SocketListener, *, failed: Callable[[OSError], None] | None = None) -> SocketStream:
    """Return the next connection. Raises OSError and BrokenResourceError for what does not pass.

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
