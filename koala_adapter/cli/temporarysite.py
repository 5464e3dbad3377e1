# SPDX-License-Identifier: Apache-2.0
"""A site of local clusters in a temporary directory, which is gone afterwards with all that ran there."""

from __future__ import annotations

import os
import select
import shutil
import signal
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from koala_adapter.cli.session import Session
from koala_adapter.model import LrmJobState
from koala_adapter.service.clusterdriver import close_lrm, make_lrm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from koala_adapter.cli.interrupts import Interrupts
    from koala_adapter.plugin import Lrm

LONGEST_DIRECTORY = 60
"""Bytes of a temporary directory in which Unix sockets still fit, unix(7)."""
ENDING = 10.0
"""Seconds that a cluster's daemon may take to end."""


def temporary_directory(prefix: str) -> Path:
    """Make a private directory whose path is short enough for Unix sockets in it."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=base if len(base) < LONGEST_DIRECTORY else "/tmp"))  # noqa: S108 - its own directory is private


@contextmanager
def temporary_site(
    interrupts: Interrupts, files: Callable[[Path], Mapping[str, str]], *, prefix: str = "koala-demo-"
) -> Iterator[Session]:
    """Yield a session with a site of its own; afterwards its clusters end, and everything is removed.

    ``files``: texts by their names for the directory that it is given, ``site.toml`` among them. ``prefix``: of the
    name of the directory.
    """
    directory = temporary_directory(prefix)
    try:
        state = directory / "state"
        state.mkdir(mode=0o700)
        for name, text in files(directory).items():
            (directory / name).write_text(text, encoding="utf-8")
        inner = Session(site_option=directory / "site.toml", state_option=state)
        try:
            yield inner
        finally:
            with interrupts.deferred():
                everywhere(inner, cancel_all)
                end_daemons(state)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def everywhere(session: Session, do: Callable[[str, Lrm], Awaitable[None]]) -> None:
    """Do something with all clusters, side by side."""

    async def with_cluster(name: str) -> None:
        lrm, _ = make_lrm(session.site.cluster(name), session.plugins, session.directory)
        try:
            await lrm.start()
            await do(name, lrm)
        finally:
            await close_lrm(lrm)

    async def all_clusters() -> None:
        async with anyio.create_task_group() as tasks:
            for config in session.site.clusters:
                tasks.start_soon(with_cluster, config.name)

    anyio.run(all_clusters)


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
