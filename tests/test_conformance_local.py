# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the plugin ``local``: it needs no batch system, so it always runs."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import LrmJobId
from koala_adapter.testing import LrmConformance, LrmUnderTest
from koala_local.lrm import PLUGIN, LocalLrm, LocalSettings
from tests.local_daemon import daemon_pid, end_daemon, foreign_job, namesake_job
from tests.undertest import started_plugin

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
        given = {"unknown_id": LrmJobId("999999_1"), "patience": 120, "walltime_precision": 120, "poll_interval": 0.05}
        async with started_plugin(PLUGIN, settings, tmp_path, **given) as under:
            context, lrm = under.context, under.lrm
            assert isinstance(lrm, LocalLrm)

            async def stop_lrm() -> None:
                lrm._daemon._seconds = 2  # so that nobody has to wait a minute for who does not answer
                os.kill(daemon_pid(context.state_directory), signal.SIGSTOP)

            async def start_lrm() -> None:
                os.kill(daemon_pid(context.state_directory), signal.SIGCONT)
                lrm._daemon._seconds = ANSWER

            yield replace(
                under,
                foreign_job=foreign_job(lrm, lrm),
                namesake_job=namesake_job(context, settings),
                stop_lrm=stop_lrm,
                start_lrm=start_lrm,
            )
        await end_daemon(under.context.state_directory)
