# SPDX-License-Identifier: Apache-2.0
"""Local clusters in tests: their daemons, found and ended by process id, and jobs of others on them."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio

from koala_adapter.lrm import ClusterContext, Lrm, Submission
from koala_adapter.model import BatchKey, LrmJobState
from koala_adapter.testing import eventually
from koala_local.lrm import LocalLrm, LocalSettings


def daemon_pid(directory: Path) -> int:
    """Return the process id of the daemon that serves a state directory. Raises ProcessLookupError."""
    try:
        pid = int((directory / "pid").read_text(encoding="ascii"))
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError as error:
        raise ProcessLookupError(f"no daemon of {directory}") from error
    # A daemon that was killed leaves its id behind, which may be another process's by now.
    if os.fsencode(directory) not in arguments:
        raise ProcessLookupError(f"no daemon of {directory}")
    return pid


async def end_daemon(directory: Path, how: signal.Signals = signal.SIGTERM) -> None:
    """End the daemon, if one runs, and return when it has gone."""
    try:
        descriptor = os.pidfd_open(daemon_pid(directory))
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, how)
        with anyio.fail_after(120):
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def foreign_job(lrm: Lrm, seen_by: Lrm) -> Callable[[int], AbstractAsyncContextManager[None]]:
    """Return what makes a context in which jobs of another name run; it begins and ends as a plugin sees them."""

    @asynccontextmanager
    async def running(processors: int) -> AsyncIterator[None]:
        script = "#!/bin/sh\nexec sleep 600\n"
        ids = await lrm.submit(Submission(key=BatchKey("somebody"), count=processors, script=script, walltime=600))

        async def states() -> set[LrmJobState]:
            return {job.state for job in await seen_by.jobs() if job.id in ids}

        await eventually(states, {LrmJobState.RUNNING}.__eq__, what="foreign job runs", seconds=120)
        yield
        await lrm.cancel(ids)
        await eventually(states, {LrmJobState.ENDED}.__eq__, what="foreign job gone", seconds=120)

    return running


def namesake_job(
    context: ClusterContext, settings: LocalSettings
) -> Callable[[BatchKey, int], AbstractAsyncContextManager[None]]:
    """Return what makes a context in which another user's array of a name is held."""

    @asynccontextmanager
    async def held(name: BatchKey, count: int) -> AsyncIterator[None]:
        # The daemon believes what its clients say of themselves: nobody else can speak to it.
        other = LocalLrm(replace(context, user="nobody"), settings)
        ids = await other.submit(Submission(key=name, count=count, script="#!/bin/sh\n", walltime=60, held=True))
        yield
        await other.cancel(ids)
        await other.close()

    return held
