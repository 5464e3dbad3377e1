# SPDX-License-Identifier: Apache-2.0
"""Runs one WIKI server: the port, the events, and what an earlier process left unfinished."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import LrmError
from koala_adapter.net.loopback import is_loopback
from koala_adapter.wiki.codec.words import Dialect
from koala_adapter.wiki.listener import Listener

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from koala_adapter.wiki.resource import WikiResource

LONGEST_PAUSE = 60.0

log = structlog.get_logger()


async def serve(resource: WikiResource, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED) -> None:
    """Serve until cancelled; the port is told when requests are taken.

    Before that, starts that were interrupted are set right, if the LRM answers; else as soon as it does.
    """
    listener = Listener(resource.options, resource.answer)
    async with anyio.create_task_group() as tasks:
        await tasks.start(resource.readings.run)
        tried = anyio.Event()
        tasks.start_soon(_reconcile, resource, tried)
        with anyio.move_on_after(resource.options.reply_within):
            await tried.wait()
        await tasks.start(resource.starts.run)
        port: int = await tasks.start(listener.serve)
        if not is_loopback(resource.options.listen):
            log.warning(
                "listening beyond this machine: the checksum of WIKI is no protection, its key can be computed from "
                "one message; keep the port behind a firewall",
                listen=resource.options.listen,
                peers=list(resource.options.peers),
            )
        if resource.options.dialect is Dialect.WIKI2:
            tasks.start_soon(resource.notifier.run)
            tasks.start_soon(_watch, resource)
        task_status.started(port)


async def _reconcile(resource: WikiResource, tried: anyio.Event) -> None:
    """Set right what was interrupted, as often as it takes; ``tried``: the first try has come to an end."""
    pause = 1.0
    while True:
        try:
            await resource.starts.reconcile()
        except LrmError as error:
            log.warning("interrupted starts cannot be looked at yet", error=str(error))
        else:
            return
        finally:
            tried.set()
        await anyio.sleep(pause)
        pause = min(LONGEST_PAUSE, 2 * pause)


async def _watch(resource: WikiResource) -> None:
    """Read while events are wanted, so that there is something to tell before anybody asks."""
    while True:
        await anyio.sleep(max(1.0, resource.options.cache))
        if resource.notifier.port:
            with suppress(LrmError):
                await resource.readings.fresh()
