# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the plugin ``local``: it needs no batch system, so it always runs."""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, eventually, new_context
from koala_local.lrm import PLUGIN, LocalLrm, LocalSettings
from tests.local_daemon import daemon_pid, end_daemon

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


ANSWER = 60.0
"""Seconds in which the daemon answers, whatever else the machine does."""


class TestLocal(LrmConformance):
    """A local cluster of two simulated nodes with two processors each."""

    @pytest.fixture
    async def under_test(self, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Start a cluster of its own for each test, and end its daemon afterwards."""
        settings = LocalSettings(
            nodes=2, processors_per_node=2, answer_seconds=ANSWER, gpus=1, gpu_kind="kind", features=("feature",)
        )
        context = new_context(tmp_path)
        lrm = LocalLrm(context, settings)
        await lrm.start()

        async def stop_lrm() -> None:
            lrm._daemon._seconds = 2  # so that nobody has to wait a minute for who does not answer
            os.kill(daemon_pid(context.state_directory), signal.SIGSTOP)

        async def start_lrm() -> None:
            os.kill(daemon_pid(context.state_directory), signal.SIGCONT)
            lrm._daemon._seconds = ANSWER

        @asynccontextmanager
        async def foreign_job(processors: int) -> AsyncIterator[None]:
            script = "#!/bin/sh\nexec sleep 600\n"
            ids = await lrm.submit(Submission(key=BatchKey("somebody"), count=processors, script=script, walltime=600))

            async def states() -> set[LrmJobState]:
                return {job.state for job in await lrm.jobs(name_prefix="somebody")}

            await eventually(states, {LrmJobState.RUNNING}.__eq__, what="foreign job runs", seconds=120)
            yield
            await lrm.cancel(ids)
            await eventually(states, {LrmJobState.ENDED}.__eq__, what="foreign job gone", seconds=120)

        @asynccontextmanager
        async def namesake_job(name: BatchKey, count: int) -> AsyncIterator[None]:
            # The daemon believes what its clients say of themselves: nobody else can speak to it.
            other = LocalLrm(replace(context, user="nobody"), settings)
            job = Submission(key=name, count=count, script="#!/bin/sh\n", walltime=60, held=True)
            ids = await other.submit(job)
            yield
            await other.cancel(ids)
            await other.close()

        yield LrmUnderTest(
            definition=PLUGIN,
            settings=settings,
            context=context,
            lrm=lrm,
            scratch=tmp_path,
            processors=4,
            unknown_id=LrmJobId("999999_1"),
            foreign_job=foreign_job,
            namesake_job=namesake_job,
            stop_lrm=stop_lrm,
            start_lrm=start_lrm,
            patience=120,
            walltime_precision=120,
            poll_interval=0.05,
        )
        await lrm.close()
        await end_daemon(context.state_directory)
