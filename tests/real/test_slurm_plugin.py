# SPDX-License-Identifier: Apache-2.0
"""The plugin ``slurm`` on a real Slurm cluster: the conformance kit, and what only a real system shows."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.model import LrmJobId
from koala_adapter.testing import LrmConformance, LrmUnderTest, new_context
from koala_slurm import PLUGIN, SlurmSettings
from tests.real.systems.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.real.systems import SlurmCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

PROCESSORS = 8


def responding(cluster: SlurmCluster) -> bool:
    """Tell whether all nodes have reported to the controller."""
    states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T").split()
    return all(state.isalpha() and state not in {"unknown", "down"} for state in states)


def foreign_job(cluster: SlurmCluster) -> Callable[[int], AbstractAsyncContextManager[None]]:
    """Return what makes a context in which jobs of another user run."""

    @contextlib.asynccontextmanager
    async def running(processors: int) -> AsyncIterator[None]:
        options = ("-n1", f"--array=1-{processors}", "--output=/dev/null")
        job = cluster.submit("#!/bin/sh\nexec sleep 600\n", *options, user="nobody")
        listed = lambda: len(cluster.squeue(f"--jobs={job}", "--states=RUNNING"))  # noqa: E731
        await anyio.to_thread.run_sync(lambda: wait_until(lambda: listed() == processors, seconds=30, what="job runs"))
        try:
            yield
        finally:
            cluster.run("scancel", job)

    return running


class TestSlurm(LrmConformance):
    """The conformance kit."""

    @pytest.fixture
    async def under_test(self, slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cluster."""
        settings, context = SlurmSettings(conf=slurm_a.conf), new_context(tmp_path)
        lrm = PLUGIN.factory(context, settings)
        await lrm.start()

        async def stop() -> None:
            # Killed, it would forget the last seconds, and start jobs a second time.
            await anyio.to_thread.run_sync(lambda: slurm_a.stop_controller(how=signal.SIGTERM))

        async def start() -> None:
            await anyio.to_thread.run_sync(slurm_a.start_controller)
            await anyio.to_thread.run_sync(lambda: wait_until(lambda: responding(slurm_a), seconds=30, what="nodes"))

        yield LrmUnderTest(
            definition=PLUGIN,
            settings=settings,
            context=context,
            lrm=lrm,
            scratch=tmp_path,
            processors=slurm_a.cpus * len(slurm_a.nodes),
            unknown_id=LrmJobId("999999_1"),
            foreign_job=foreign_job(slurm_a),
            stop_lrm=stop,
            start_lrm=start,
        )
        await lrm.close()
