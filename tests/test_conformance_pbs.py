# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the plugin ``pbs`` with a fake PBS: runs on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import PinnedStart
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest
from koala_adapter.testing.trial import begin_start
from koala_pbs import PLUGIN, PbsSettings
from tests.fakes.pbs import FakePbs
from tests.undertest import queued_job, started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from koala_adapter.testing import Trial

OPTIONS = ("-C", "", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")


class FakeConformance(LrmConformance):
    """The conformance kit on a fake with two vnodes of two processors."""

    operator = False

    @pytest.fixture
    async def fake(self, tmp_path: Path) -> AsyncIterator[FakePbs]:
        """Give a fake server of its own."""
        fake = FakePbs(tmp_path / "fake", operators=None if self.operator else ())
        yield fake
        await anyio.to_thread.run_sync(fake.close)

    @pytest.fixture
    async def under_test(self, fake: FakePbs, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on it."""
        settings = PbsSettings(
            conf=fake.conf, bin_directory=fake.bin_directory, operator=self.operator, command_timeout=40
        )

        async def stop() -> None:
            fake.stop_server()

        async def start() -> None:
            fake.start_server()

        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=fake.processors,
            unknown_id=LrmJobId("999999[1].vm"),
            real=False,
            foreign_job=lambda processors: queued_job(
                fake.run, "qsub", "qdel", *OPTIONS, "-l", f"select=1:ncpus={processors}"
            ),
            namesake_job=lambda name, count: queued_job(
                fake.run, "qsub", "qdel", *OPTIONS, "-h", "-N", name, "-J", f"1-{count}"
            ),
            stop_lrm=stop,
            start_lrm=start,
            patience=120,
            walltime_precision=120,
        ) as under:
            yield under


class TestAsUser(FakeConformance):
    """As an ordinary user, whose jobs PBS's scheduler starts."""

    # What he is not allowed, or what PBS's scheduler has a part in; the rest is as for an operator.
    BY_DAY = frozenset(
        {
            "test_a_start_that_was_confirmed_may_be_confirmed_again",
            "test_a_strangers_job_of_the_same_name",
            "test_cancel_all_kinds_at_once",
            "test_cancel_suspended",
            "test_check_is_content",
            "test_definition_and_lrm_agree",
            "test_foreign_job_is_seen",
            "test_held_submission_waits",
            "test_hold_and_release",
            "test_jobs_say_whose_they_are",
            "test_more_jobs_than_processors",
            "test_release_of_a_held_submission",
            "test_requeue",
            "test_start_on_a_busy_node_is_accepted",
            "test_start_on_chosen_node",
            "test_suspend_and_resume",
            "test_unsupported_is_said",
        }
    )


class TestAsOperator(FakeConformance):
    """As an operator, who starts jobs by qrun."""

    operator = True

    async def test_a_suspended_job_is_resumed_to_be_cancelled(self, live_trial: Trial) -> None:
        """PBS leaves it suspended, and its processes stopped, until it goes on or is killed."""
        batch = await live_trial.submit()
        await live_trial.wait_running(batch)
        await live_trial.lrm.suspend(batch.ids)
        await live_trial.wait_states(batch, LrmJobState.SUSPENDED)
        await live_trial.lrm.cancel(batch.ids)
        await live_trial.wait_ended(batch)

    async def test_start_on_a_busy_node_is_accepted(self, live_trial: Trial) -> None:
        """It is refused: qrun would put more onto the node than it has. The job is held as before, and starts later."""
        trial = live_trial
        full = await trial.submit(count=trial.under_test.processors)
        await trial.wait_running(full)
        node = (await trial.jobs(full))[full.ids[0]].nodes[0]
        batch = await trial.submit(held=True)
        await trial.wait_states(batch, LrmJobState.HELD)
        with pytest.raises(LrmRejectedError, match="where 0 are idle"):
            await begin_start(trial.lrm, batch.ids[0], [node])
        for _ in range(2):
            await trial.lrm.undo_start(PinnedStart(job=batch.ids[0], nodes=(node,)))
            await trial.wait_states(batch, LrmJobState.HELD)
        full.go()
        await trial.wait_ended(full)
        await begin_start(trial.lrm, batch.ids[0], [node])
        await trial.wait_running(batch)
