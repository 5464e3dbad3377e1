# SPDX-License-Identifier: Apache-2.0
"""Slurm through slurm-drmaa, where a machine has it: the plugin ``drmaa``, and ``slurm`` with that transport."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, eventually, new_context
from koala_drmaa import PLUGIN
from koala_drmaa.lrm import DrmaaSettings
from koala_slurm import PLUGIN as SLURM_PLUGIN
from koala_slurm import SlurmSettings
from tests.real.systems.processes import wait_until
from tests.real.systems.requirements import drmaa_library, require
from tests.real.test_slurm_plugin import namesake_job, responding
from tests.undertest import started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from koala_adapter.testing import Trial
    from tests.real.systems import SlurmCluster

pytestmark = [pytest.mark.real, pytest.mark.never_required, pytest.mark.anyio]


def library() -> Path:
    """Return where slurm-drmaa is; skip the test when it is nowhere."""
    found = drmaa_library("slurm")
    require([] if found else ["slurm-drmaa (KOALA_TEST_SLURM_DRMAA, its libdrmaa.so)"])
    assert found is not None
    return found


def settings_of(cluster: SlurmCluster) -> DrmaaSettings:
    """Return settings of the plugin ``drmaa`` for a cluster: the rest is known of the library."""
    return DrmaaSettings(library=library(), processors=8, environment={"SLURM_CONF": str(cluster.conf)})


async def test_cancelled_bulk_comes_to_an_end(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """A bulk whose waiting elements were cancelled is over, although the library never tells so; ``check`` warns."""
    settings = settings_of(slurm_a).model_copy(update={"submission": "bulk"})
    lrm = PLUGIN.factory(new_context(tmp_path), settings)
    await lrm.start()
    script = "#!/bin/sh\nexec sleep 300\n"
    full = await lrm.submit(Submission(key=BatchKey("full"), count=8, script=script, walltime=600))
    waiting = await lrm.submit(Submission(key=BatchKey("waiting"), count=3, script=script, walltime=600))
    assert {job.state for job in await lrm.jobs(name_prefix="waiting")} <= {LrmJobState.UNKNOWN, LrmJobState.QUEUED}

    async def over() -> set[LrmJobState]:
        await lrm.cancel([*full, *waiting])
        return {job.state for job in await lrm.jobs()}

    await eventually(over, lambda states: states == {LrmJobState.ENDED}, what="all have ended", seconds=60, interval=1)
    abilities = next(result for result in await lrm.check() if result.subject == "abilities")
    assert not abilities.ok
    await lrm.close()


@pytest.mark.nightly
class TestDrmaaOnSlurm(LrmConformance):
    """The conformance kit; nothing is read by commands."""

    @pytest.fixture
    async def under_test(self, slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cluster."""
        settings = settings_of(slurm_a)

        async def stop() -> None:
            await anyio.to_thread.run_sync(lambda: slurm_a.stop_controller(how=signal.SIGTERM))

        async def start() -> None:
            if not responding(slurm_a):
                await anyio.to_thread.run_sync(slurm_a.start_controller)
            await anyio.to_thread.run_sync(lambda: wait_until(lambda: responding(slurm_a), seconds=90, what="nodes"))

        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=8,
            unknown_id=LrmJobId("999999"),
            namesake_job=namesake_job(slurm_a),
            stop_lrm=stop,
            start_lrm=start,
        ) as under:
            yield under


@pytest.mark.nightly
class TestSlurmThroughDrmaa(LrmConformance):
    """The conformance kit on the plugin ``slurm`` that submits through DRMAA and does all else by commands."""

    @pytest.fixture
    async def under_test(self, slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cluster."""
        settings = SlurmSettings.model_validate(
            {**slurm_a.plugin_settings, "submit_by": "drmaa", "drmaa_library": library()}
        )
        async with started_plugin(
            SLURM_PLUGIN,
            settings,
            tmp_path,
            processors=8,
            unknown_id=LrmJobId("999999_1"),
            namesake_job=namesake_job(slurm_a),
        ) as under:
            yield under

    async def test_requeue(self, live_trial: Trial) -> None:
        """A requeued job is stopped and queued under the same id; Slurm starts it again after two minutes."""
        batch = await live_trial.submit()
        await live_trial.wait_running(batch)
        await live_trial.lrm.requeue(batch.ids)
        await live_trial.wait_states(batch, LrmJobState.QUEUED)
