# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the plugin ``slurm`` with a fake Slurm: runs on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.model import LrmJobId
from koala_adapter.testing import LrmConformance, LrmUnderTest
from koala_slurm import PLUGIN, SlurmSettings
from tests.fakes.slurm import PYSLURM, FakeSlurm
from tests.undertest import queued_job, started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


OPTIONS = ("--ntasks=1", "--cpus-per-task=1", "--time=10", "--output=/dev/null")


class TestFakeSlurm(LrmConformance):
    """The conformance kit on a fake with accounting, of the release that the parameter says."""

    # With the older one the kit runs on real daemons, too.
    @pytest.fixture(params=["25.11.7", "25.11.7 with pyslurm", pytest.param("22.05.8", marks=pytest.mark.nightly)])
    async def under_test(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on a fake cluster of its own."""
        release, _, library = str(request.param).partition(" with ")
        fake = FakeSlurm(tmp_path / "fake", accounting=True, release=release)
        monkeypatch.syspath_prepend(PYSLURM)
        settings = SlurmSettings(
            conf=fake.conf,
            bin_directory=fake.bin_directory,
            submit_by="commands",
            access="pyslurm" if library else "commands",
            command_timeout=40,
        )

        async def stop() -> None:
            fake.stop_controller()

        async def start() -> None:
            fake.start_controller()

        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=fake.processors,
            unknown_id=LrmJobId("999999_1"),
            real=False,
            foreign_job=lambda processors: queued_job(
                fake.run, "sbatch", "scancel", *OPTIONS, "--job-name=other", f"--array=1-{processors}"
            ),
            namesake_job=lambda name, count: queued_job(
                fake.run, "sbatch", "scancel", *OPTIONS, "--hold", f"--job-name={name}", f"--array=1-{count}"
            ),
            stop_lrm=stop,
            start_lrm=start,
            patience=120,
        ) as under:
            if library:
                # Then changes of single jobs go through it, too.
                await under.lrm.jobs()
                assert "by pyslurm" in [result.found for result in await under.lrm.check()][-1]
            yield under
        await anyio.to_thread.run_sync(fake.close)
