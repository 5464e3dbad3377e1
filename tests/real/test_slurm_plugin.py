# SPDX-License-Identifier: Apache-2.0
"""The plugin ``slurm`` on a real Slurm cluster: the conformance kit, and what only a real system shows."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest
from koala_slurm import PLUGIN, SlurmSettings
from koala_slurm.client import SlurmCommands
from tests.real.systems.processes import wait_until
from tests.undertest import started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from koala_adapter.model import BatchKey
    from koala_adapter.testing import Trial
    from tests.real.systems import SlurmCluster

pytestmark = pytest.mark.real


def responding(cluster: SlurmCluster) -> bool:
    """Tell whether all nodes have reported to the controller."""
    states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()
    return bool(states) and all(state.isalpha() and state not in {"unknown", "down"} for state in states)


def slurm_settings(trial: Trial) -> SlurmSettings:
    """Return the settings of the plugin under test."""
    settings = trial.under_test.settings
    assert isinstance(settings, SlurmSettings)
    return settings


def foreign_job(cluster: SlurmCluster) -> Callable[[int], AbstractAsyncContextManager[None]]:
    """Return what makes a context in which jobs of another user run."""

    @contextlib.asynccontextmanager
    async def running(processors: int) -> AsyncIterator[None]:
        options = ("-n1", f"--array=1-{processors}", "--output=/dev/null")
        job = cluster.submit("#!/bin/sh\nexec sleep 600\n", *options, user="nobody")

        def runs() -> bool:
            return len(cluster.squeue(f"--jobs={job}", "--states=RUNNING")) == processors

        await anyio.to_thread.run_sync(lambda: wait_until(runs, seconds=90, what="job runs"))
        try:
            yield
        finally:
            cluster.run("scancel", job)

    return running


def namesake_job(cluster: SlurmCluster) -> Callable[[BatchKey, int], AbstractAsyncContextManager[None]]:
    """Return what makes a context in which another user's array of a name is held."""

    @contextlib.asynccontextmanager
    async def held(name: BatchKey, count: int) -> AsyncIterator[None]:
        options = ("-n1", f"--job-name={name}", f"--array=1-{count}", "--output=/dev/null", "--hold")
        job = cluster.submit("#!/bin/sh\nexec sleep 600\n", *options, user="nobody")
        try:
            yield
        finally:
            cluster.run("scancel", job)

    return held


def outages(cluster: SlurmCluster) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return how the kit makes the controller go away and come back, as fields of LrmUnderTest."""

    async def stop() -> None:
        # Killed, it would forget the last seconds, and start jobs a second time.
        await anyio.to_thread.run_sync(lambda: cluster.stop_controller(how=signal.SIGTERM))

    async def start() -> None:
        if not responding(cluster):
            await anyio.to_thread.run_sync(cluster.start_controller)
        await anyio.to_thread.run_sync(lambda: wait_until(lambda: responding(cluster), seconds=90, what="nodes"))

    return {"stop_lrm": stop, "start_lrm": start}


class TestSlurm(LrmConformance):
    """The conformance kit."""

    @pytest.fixture
    async def under_test(self, slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cluster."""
        settings = SlurmSettings.model_validate(slurm_a.plugin_settings)
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=slurm_a.cpus * len(slurm_a.nodes),
            unknown_id=LrmJobId("999999_1"),
            foreign_job=foreign_job(slurm_a),
            namesake_job=namesake_job(slurm_a),
            **outages(slurm_a),
            patience=90,
            unavailable_within=180,
        ) as under:
            yield under

    async def test_requeue(self, live_trial: Trial) -> None:
        """A requeued job is stopped and queued under the same id; Slurm starts it again after two minutes."""
        trial = live_trial
        batch = await trial.submit()
        await trial.wait_running(batch)
        await trial.lrm.requeue(batch.ids)
        await trial.wait_states(batch, LrmJobState.QUEUED)
        # Two minutes are longer than a test should take. They are there because a node refuses the credential of a run
        # that it has just ended: started again within the second, the job fails.
        due = ("scontrol", "update", f"JobId={batch.ids[0]}", "StartTime=now+5")
        commands = SlurmCommands(trial.under_test.context.commands, slurm_settings(trial))
        assert (await commands.run(due)).returncode == 0

        async def starts() -> int:
            return batch.starts(1)

        await trial.until(starts, lambda count: count == 2, what="the second start")
        await trial.wait_states(batch, LrmJobState.RUNNING)

    async def test_foreign_job_is_seen(self, trial: Trial) -> None:
        """A job of somebody else is listed and its processors are not idle; of ours only ended ones are listed."""
        lrm, make = trial.lrm, trial.under_test.foreign_job
        assert make is not None
        before = sum(node.processors_idle for node in await lrm.nodes())
        async with make(2):
            running = [job for job in await lrm.jobs() if job.state is LrmJobState.RUNNING]
            assert [(job.user, job.processors) for job in running] == [("nobody", 1)] * 2
            assert {job.state for job in await lrm.jobs(name_prefix="kk")} <= {LrmJobState.ENDED}
            assert sum(node.processors_idle for node in await lrm.nodes()) == before - 2
