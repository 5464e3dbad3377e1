# SPDX-License-Identifier: Apache-2.0
"""PBS through pbs-drmaa, where a machine has both: the plugin ``drmaa``, and ``pbs`` with that transport."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.model import LrmJobId
from koala_adapter.testing import LrmConformance, LrmUnderTest, new_context
from koala_drmaa import PLUGIN
from koala_drmaa.lrm import DrmaaSettings
from koala_pbs import PLUGIN as PBS_PLUGIN
from koala_pbs import PbsSettings
from tests.real.systems.pbs import PbsServer, missing_for_pbs
from tests.real.systems.requirements import drmaa_library, require
from tests.undertest import started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from koala_adapter.lrm import Lrm
    from koala_adapter.testing import Trial

pytestmark = [pytest.mark.real, pytest.mark.never_required, pytest.mark.nightly, pytest.mark.anyio]


@pytest.fixture
def server() -> Iterator[PbsServer]:
    """Give the server of this machine, without jobs."""
    missing = [] if drmaa_library("pbs") else ["pbs-drmaa (KOALA_TEST_PBS_DRMAA, its libdrmaa.so)"]
    require([*missing_for_pbs(), *missing])
    server = PbsServer()
    with server.alone():
        yield server


async def processors_of(lrm: Lrm) -> int:
    """Return how many processors are idle."""
    return sum(node.processors_idle for node in await lrm.nodes())


class TestPbsThroughDrmaa(LrmConformance):
    """The conformance kit on the plugin ``pbs`` that submits through DRMAA and does all else by commands."""

    @pytest.fixture
    async def under_test(self, server: PbsServer, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on that server."""
        settings = PbsSettings(
            conf=server.conf,
            bin_directory=server.bin_directory,
            operator=True,
            submit_by="drmaa",
            drmaa_library=drmaa_library("pbs"),
        )
        context = new_context(tmp_path)
        lrm = PBS_PLUGIN.factory(context, settings)
        await lrm.start()
        yield LrmUnderTest(
            definition=PBS_PLUGIN,
            settings=settings,
            context=context,
            lrm=lrm,
            scratch=tmp_path,
            processors=await processors_of(lrm),
            unknown_id=LrmJobId(f"999999.{server.name}"),
            foreign_job=server.foreign_job,
            namesake_job=server.namesake_job,
            patience=60,
            walltime_precision=40,
        )
        await lrm.close()

    async def test_start_on_a_busy_node_is_accepted(self, live_trial: Trial) -> None:
        """As by commands, an operator's start is refused where there is no room."""
        full = await live_trial.submit(count=live_trial.under_test.processors)
        await live_trial.wait_running(full)
        node = (await live_trial.jobs(full))[full.ids[0]].nodes[0]
        batch = await live_trial.submit(held=True)
        with pytest.raises(LrmRejectedError):
            await live_trial.lrm.start_on(batch.ids[0], [node])


class TestDrmaaOnPbs(LrmConformance):
    """The conformance kit; nothing is read by commands."""

    @pytest.fixture
    async def under_test(self, server: PbsServer, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on that server."""
        processors = server.processors()
        settings = DrmaaSettings(
            library=drmaa_library("pbs"), processors=processors, environment={"PBS_CONF_FILE": str(server.conf)}
        )
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=processors,
            unknown_id=LrmJobId(f"999999.{server.name}"),
            namesake_job=server.namesake_job,
            patience=60,
            walltime_precision=40,
        ) as under:
            yield under
