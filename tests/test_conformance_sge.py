# SPDX-License-Identifier: Apache-2.0
"""The plugin ``sge`` on the fake Grid Engine: the conformance kit on machines without the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import LrmJobId, LrmJobState, NodeState
from koala_adapter.testing import LrmConformance, LrmUnderTest, new_context
from koala_sge import PLUGIN, SgeSettings
from tests.fakes.gridengine.cell import FakeCell
from tests.undertest import started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from koala_adapter.testing import Trial

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
            PLUGIN,
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
        lrm = PLUGIN.factory(new_context(tmp_path), settings)
        await cell.stop()
        found = {result.subject: result for result in await lrm.check()}
        assert [subject for subject, result in found.items() if not result.ok] == ["qmaster"]
        assert list(found)[-1] == "qmaster"
        assert "start sge_qmaster" in found["qmaster"].remedy
    finally:
        cell.close()
