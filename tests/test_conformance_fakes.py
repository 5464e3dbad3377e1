# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on fakes of Slurm, PBS and Grid Engine: runs on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import PinnedStart
from koala_adapter.model import LrmJobId, LrmJobState, NodeState
from koala_adapter.testing import LrmConformance, LrmUnderTest, new_context
from koala_adapter.testing.trial import begin_start
from koala_pbs import PLUGIN as PBS
from koala_pbs import PbsSettings
from koala_sge import PLUGIN as SGE
from koala_sge import SgeSettings
from koala_slurm import PLUGIN as SLURM
from koala_slurm import SlurmSettings
from tests.fakes.gridengine.cell import FakeCell
from tests.fakes.pbs import FakePbs
from tests.fakes.slurm import PYSLURM, FakeSlurm
from tests.undertest import queued_job, started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from koala_adapter.testing import Trial


# The conformance kit on the plugin ``slurm`` with a fake Slurm: runs on every machine.

OPTIONS = ("--ntasks=1", "--cpus-per-task=1", "--time=10", "--output=/dev/null")


class SlurmConformance(LrmConformance):
    """The conformance kit on a fake with accounting."""

    release = "25.11.7"
    library = False

    @pytest.fixture
    async def under_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on a fake cluster of its own."""
        fake = FakeSlurm(tmp_path / "fake", accounting=True, release=self.release)
        monkeypatch.syspath_prepend(PYSLURM)
        settings = SlurmSettings(
            conf=fake.conf,
            bin_directory=fake.bin_directory,
            submit_by="commands",
            access="pyslurm" if self.library else "commands",
            command_timeout=40,
        )

        async def stop() -> None:
            fake.stop_server()

        async def start() -> None:
            fake.start_server()

        async with started_plugin(
            SLURM,
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
            if self.library:
                # Then changes of single jobs go through it, too.
                await under.lrm.jobs()
                assert "by pyslurm" in [result.found for result in await under.lrm.check()][-1]
            yield under
        await anyio.to_thread.run_sync(fake.close)


class TestSlurm(SlurmConformance):
    """By commands."""


@pytest.mark.nightly
class TestOldSlurm(SlurmConformance):
    """A release with which the kit runs on real daemons, too."""

    release = "22.05.8"


class TestSlurmByLibrary(SlurmConformance):
    """By pyslurm, which lists, and changes single jobs; all else is done by commands."""

    library = True
    BY_DAY = frozenset(
        {
            "test_cancel_all_kinds_at_once",
            "test_cancel_one_of_several",
            "test_cancel_suspended",
            "test_check_is_content",
            "test_exit_code",
            "test_foreign_job_is_seen",
            "test_found_again_by_name",
            "test_hold_and_release",
            "test_jobs_are_listed_oldest_first",
            "test_jobs_say_whose_they_are",
            "test_modify_walltime",
            "test_more_jobs_than_processors",
            "test_nodes_add_up",
            "test_poll_stays_within_its_bound",
            "test_queues",
            "test_requeue",
            "test_start_on_chosen_node",
            "test_states_go_forward",
            "test_suspend_and_resume",
            "test_times_are_told",
            "test_unavailable",
        }
    )


# The conformance kit on the plugin ``pbs`` with a fake PBS: runs on every machine.

PBS_OPTIONS = ("-C", "", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")


class PbsConformance(LrmConformance):
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
            PBS,
            settings,
            tmp_path,
            processors=fake.processors,
            unknown_id=LrmJobId("999999[1].vm"),
            real=False,
            foreign_job=lambda processors: queued_job(
                fake.run, "qsub", "qdel", *PBS_OPTIONS, "-l", f"select=1:ncpus={processors}"
            ),
            namesake_job=lambda name, count: queued_job(
                fake.run, "qsub", "qdel", *PBS_OPTIONS, "-h", "-N", name, "-J", f"1-{count}"
            ),
            stop_lrm=stop,
            start_lrm=start,
            patience=120,
            walltime_precision=120,
        ) as under:
            yield under


class TestPbsAsUser(PbsConformance):
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


class TestPbsAsOperator(PbsConformance):
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


# The plugin ``sge`` on the fake Grid Engine: the conformance kit on machines without the real one.

SLOTS = 3


def settings_of(cell: FakeCell) -> SgeSettings:
    """Choose the fake, and its library, whether or not this machine has a real one."""
    return SgeSettings(
        root=cell.root,
        bin_directory=cell.bin,
        environment=cell.helper_variables,
        request_timeout=60,
        submit_by="drmaa",
    )


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCell]:
    """Give a fake cell for all tests of this module."""
    cell = FakeCell(tmp_path_factory.mktemp("fake") / "cell", slots=SLOTS)
    yield cell
    cell.close()


class TestSgeOnFake(LrmConformance):
    """The conformance kit, and the few things that are easier to bring about on a fake."""

    @pytest.fixture
    async def under_test(self, cell: FakeCell, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the fake cell."""
        settings = settings_of(cell)
        async with started_plugin(
            SGE,
            settings,
            tmp_path,
            processors=SLOTS,
            unknown_id=LrmJobId("999999.1"),
            real=False,
            foreign_job=cell.foreign_job,
            namesake_job=cell.namesake_job,
            stop_lrm=cell.stop,
            start_lrm=cell.start,
            patience=120,
            walltime_precision=120,
        ) as under:
            yield under

    async def test_closed_queue(self, trial: Trial, cell: FakeCell) -> None:
        cell.set_queue("d")
        (node,) = await trial.lrm.nodes()
        (queue,) = await trial.lrm.queues()
        cell.set_queue("")
        assert (node.state, node.processors_idle, node.raw_state) == (NodeState.DRAINING, 0, "d")
        assert not queue.up

    async def test_error_state_says_why(self, live_trial: Trial, cell: FakeCell) -> None:
        """A job that Grid Engine could not start is HELD, with the reason that Grid Engine gives; asked for once."""
        batch = live_trial.prepare()
        (batch.directory / "output").rmdir()
        cell.misbehave("error-state")
        batch = await live_trial.send(batch)
        await live_trial.wait_states(batch, LrmJobState.HELD)
        cell.misbehave("error-state", on=False)
        before = live_trial.requests()
        (job,) = (await live_trial.jobs(batch)).values()
        assert live_trial.requests() - before == 1
        assert job.reason.startswith("error state Eqw: can't open output file")


@pytest.mark.anyio
async def test_a_qmaster_that_does_not_answer_is_asked_once(tmp_path: Path) -> None:
    """``check`` leaves out what would wait for it again: queues, the library, and the user's id."""
    cell = FakeCell(tmp_path / "cell", slots=1)
    try:
        settings = settings_of(cell)
        lrm = SGE.factory(new_context(tmp_path), settings)
        await cell.stop()
        found = {result.subject: result for result in await lrm.check()}
        assert [subject for subject, result in found.items() if not result.ok] == ["qmaster"]
        assert list(found)[-1] == "qmaster"
        assert "start sge_qmaster" in found["qmaster"].remedy
    finally:
        cell.close()
