# SPDX-License-Identifier: Apache-2.0
"""Hosting a service and its socket, in the foreground or inside ``koala run``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from koala_adapter.api.livereports import report_to_keep
from koala_adapter.api.ownsocket import listening
from koala_adapter.api.server import Server
from koala_adapter.driver.loop import SNAPSHOT_INTERVAL
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.service.service import Service

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from anyio.abc import TaskStatus

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.host.clock import HostClocks
    from koala_adapter.plugin import PluginDefinition


async def host(
    site: SiteConfig,
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    *,
    idle_limit: float | None = None,
    clocks: HostClocks | None = None,
    policies: Policies = OWN,
    snapshot_interval: int = SNAPSHOT_INTERVAL,
    task_status: TaskStatus[Server] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a service with its socket until a client stops it or the task is cancelled. The caller owns the directory.

    ``idle_limit``: it also ends when nothing has been unfinished for so many seconds; None: never. ``clocks``: None:
    those of this machine. ``policies``: those that the scheduler may use. ``snapshot_interval``: events of the journal
    after which a snapshot stands for them.
    """
    # Before anything that takes time: who comes meanwhile waits for the answer, instead of finding nobody.
    async with listening(directory) as listener:
        service = Service(
            site,
            plugins,
            directory,
            make_report=report_to_keep,
            clocks=clocks,
            policies=policies,
            snapshot_interval=snapshot_interval,
        )
        server = Server(service)
        async with anyio.create_task_group() as tasks:
            await tasks.start(service.run)
            tasks.start_soon(server.serve, listener)
            if idle_limit is not None:
                tasks.start_soon(_stop_when_idle, server, service, idle_limit)
            task_status.started(server)
            await server.stop_wanted.wait()
            tasks.cancel_scope.cancel()


async def _stop_when_idle(server: Server, service: Service, limit: float) -> None:
    idle_since: float | None = None
    while not server.stop_wanted.is_set():
        changed = service.changed
        idle_since = None if service.busy else idle_since or anyio.current_time()
        left = None if idle_since is None else idle_since + limit - anyio.current_time()
        if left is not None and left <= 0:
            server.stop_wanted.set()
            return
        with anyio.move_on_after(left):
            await changed.wait()
