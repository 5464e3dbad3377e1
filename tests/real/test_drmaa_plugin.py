# SPDX-License-Identifier: Apache-2.0
"""The plugin ``drmaa`` with Grid Engine's real library: the conformance kit, without any command of Grid Engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import EndReason, LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial
from koala_drmaa import PLUGIN
from koala_drmaa.lrm import DrmaaSettings
from tests.real.test_sge_plugin import namesake_job
from tests.undertest import started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.real.systems import GridEngineCell

pytestmark = pytest.mark.real

LIBRARY = Path("/usr/lib/gridengine-drmaa/lib/libdrmaa.so.1.0")
SLOTS = 4


def settings_of(cell: GridEngineCell) -> DrmaaSettings:
    """Return settings for Grid Engine's library and a private cell."""
    return DrmaaSettings(
        library=LIBRARY,
        processors=SLOTS,
        environment=cell.variables(),
        native_specification="-shell n -r n",
    )


class TestDrmaa(LrmConformance):
    """The conformance kit; its tests of an unreachable LRM run with the plugin `sge`, which uses the same helper."""

    @pytest.fixture
    async def under_test(self, sge_cell: GridEngineCell, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cell."""
        settings = settings_of(sge_cell)
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=SLOTS,
            unknown_id=LrmJobId("999999.1"),
            namesake_job=namesake_job(sge_cell),
            patience=90,
            walltime_precision=15,
        ) as under:
            yield under

    async def test_ends_survive_a_restart(self, live_trial: Trial) -> None:
        """What was seen of a job's end is still told by the next session, from the ledger."""
        under = live_trial.under_test
        batch = await live_trial.submit(wait=False, exit_code=7)
        await live_trial.wait_ended(batch)
        (before,) = (await live_trial.jobs(batch)).values()
        second = PLUGIN.factory(under.context, under.settings)
        await second.start()
        (after,) = await second.jobs(name_prefix=batch.key)
        await second.close()
        assert (before.state, before.end, before.exit_code) == (LrmJobState.ENDED, EndReason.EXITED, 7)
        assert after == before
