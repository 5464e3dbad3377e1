# SPDX-License-Identifier: Apache-2.0
"""The plugin ``pbs`` on a real server, where the machine has one: the conformance kit, in both ways to start jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial
from koala_adapter.testing.trial import begin_start
from koala_pbs import PLUGIN, PbsSettings
from tests.real.systems.pbs import PbsServer
from tests.undertest import StartsByOperator, started_plugin

pytestmark = pytest.mark.never_required


class PbsConformance(LrmConformance):
    """The conformance kit on a real PBS server."""

    operator = False

    @pytest.fixture
    async def under_test(self, server: PbsServer, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on that server."""
        settings = PbsSettings(conf=server.conf, bin_directory=server.bin_directory, operator=self.operator)
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            unknown_id=LrmJobId(f"999999[1].{server.name}"),
            foreign_job=server.foreign_job,
            namesake_job=server.namesake_job,
            patience=60,
            walltime_precision=40,
        ) as under:
            yield under

    async def test_hold_of_a_part_of_an_array_is_refused(self, live_trial: Trial) -> None:
        """PBS holds whole arrays: of a part nothing is done, of all that wait it is."""
        count = live_trial.under_test.processors + 2
        batch = await live_trial.submit(count=count)
        await live_trial.wait_states(
            batch, *[LrmJobState.RUNNING] * (count - 2), *[LrmJobState.QUEUED] * 2, what="two wait"
        )
        states = dict(zip(batch.ids, await live_trial.states(batch), strict=True))
        waiting = [id_ for id_, state in states.items() if state is LrmJobState.QUEUED]
        with pytest.raises(LrmRejectedError):
            await live_trial.lrm.hold(waiting[:1])
        await live_trial.lrm.hold(waiting)
        await live_trial.wait_states(batch, *[LrmJobState.RUNNING] * (count - 2), *[LrmJobState.HELD] * 2)
        await live_trial.lrm.release(waiting)
        await live_trial.wait_states(batch, *[LrmJobState.RUNNING] * (count - 2), *[LrmJobState.QUEUED] * 2)


class TestAsUser(PbsConformance):
    """As an ordinary user, whose jobs PBS's scheduler starts."""


class TestAsOperator(StartsByOperator, PbsConformance):
    """As an operator, who starts jobs by qrun."""

    operator = True

    async def test_elements_start_one_by_one(self, live_trial: Trial, server: PbsServer) -> None:
        """Of an array in hold, such as another user's, the elements that are named start on their vnodes."""
        trial = live_trial
        name = trial.prepare().key
        async with server.namesake_job(name, 3):
            listed = {job.id: job for job in await trial.lrm.jobs(name_prefix=name)}
            assert {job.state for job in listed.values()} == {LrmJobState.HELD}
            names = [node.name for node in await trial.lrm.nodes()]
            # A server may have one vnode only.
            nodes = (names * 2)[:2]
            for id_, node in zip(sorted(listed)[:2], nodes, strict=True):
                await trial.lrm.confirm_start(await begin_start(trial.lrm, id_, [node]))
            seen = {job.id: job for job in await trial.lrm.jobs(name_prefix=name)}
            assert [seen[id_].state for id_ in sorted(seen)] == [*[LrmJobState.RUNNING] * 2, LrmJobState.HELD]
            assert [seen[id_].layout for id_ in sorted(seen)[:2]] == [((node, 1),) for node in nodes]
