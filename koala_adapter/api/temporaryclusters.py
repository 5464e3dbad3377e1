# SPDX-License-Identifier: Apache-2.0
"""Clusters that live in a directory for a while: where that may be, and ending all that ran there."""

from __future__ import annotations

import os
import select
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from koala_adapter.model import LrmJobState
from koala_adapter.service.clusterdriver import close_lrm, make_lrm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.plugin import Lrm, PluginDefinition

LONGEST_DIRECTORY = 60
"""Bytes of a temporary directory in which Unix sockets still fit, unix(7)."""
ENDING = 10.0
"""Seconds that a cluster's daemon may take to end."""


def temporary_directory(prefix: str) -> Path:
    """Make a private directory whose path is short enough for Unix sockets in it."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base if len(base) < LONGEST_DIRECTORY else "/tmp"))  # noqa: S108 - its own directory is private


async def everywhere(
    site: SiteConfig,
    plugins: Mapping[str, PluginDefinition],
    directory: Path,
    do: Callable[[str, Lrm], Awaitable[None]],
) -> None:
    """Do something with all clusters of a site, side by side. ``directory``: its state directory."""

    async def with_cluster(name: str) -> None:
        lrm, _ = make_lrm(site.cluster(name), plugins, directory)
        try:
            await lrm.start()
            await do(name, lrm)
        finally:
            await close_lrm(lrm)

    async with anyio.create_task_group() as tasks:
        for config in site.clusters:
            tasks.start_soon(with_cluster, config.name)


async def cancel_all(_name: str, lrm: Lrm) -> None:
    """End whatever still runs in a cluster."""
    jobs = await lrm.jobs()
    await lrm.cancel([job.id for job in jobs if job.state is not LrmJobState.ENDED])


def end_daemons(state: Path) -> None:
    """End the daemons of the local clusters of a state directory."""
    for cluster in (state / "clusters").glob("*"):
        end_daemon(cluster)


def end_daemon(directory: Path) -> None:
    """End the daemon of a local cluster and see it gone."""
    with suppress(OSError, ValueError):
        process = os.pidfd_open(int((directory / "pid").read_text(encoding="ascii")))
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            select.select([process], [], [], ENDING)
        finally:
            os.close(process)
