# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the plugin ``drmaa`` with libraries as odd as slurm-drmaa and pbs-drmaa."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.lrm.drmaa.libraries import PBS, SLURM
from koala_adapter.model import LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest
from koala_drmaa import PLUGIN
from koala_drmaa.lrm import DrmaaSettings
from tests.fakes.gridengine.cell import FakeCell
from tests.undertest import started_plugin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from koala_adapter.lrm.drmaa.libraries import Library
    from koala_adapter.testing import Trial

pytestmark = pytest.mark.anyio

SLOTS = 3


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCell]:
    """Give a fake cell for all tests of this module."""
    cell = FakeCell(tmp_path_factory.mktemp("fake") / "cell", slots=SLOTS)
    yield cell
    cell.close()


class OddLibraryConformance(LrmConformance):
    """The conformance kit; what a library must not be asked is refused, and skipped."""

    kind: str
    library: Library
    unknown: str

    @pytest.fixture
    async def under_test(self, cell: FakeCell, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin with the options that it knows for the library."""
        settings = DrmaaSettings(processors=SLOTS, environment=cell.variables_of(self.kind), request_timeout=60)
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=SLOTS,
            unknown_id=LrmJobId(self.unknown),
            real=False,
            namesake_job=cell.namesake_job,
            stop_lrm=cell.stop,
            start_lrm=cell.start,
            patience=120,
            walltime_precision=120,
        ) as under:
            yield under
            left = [job.id for job in await under.lrm.jobs() if job.state is not LrmJobState.ENDED]
            await under.lrm.cancel(left)

    async def test_what_crashes_or_lies_is_not_offered(self, trial: Trial) -> None:
        assert not trial.lrm.capabilities.suspend
        batch = await trial.submit(held=True)
        assert all(("." in id_) == (self.library is PBS) and "_" not in id_ for id_ in batch.ids)


class TestSlurmDrmaa(OddLibraryConformance):
    """slurm-drmaa."""

    kind, library, unknown = "slurm", SLURM, "999999"
    # What goes through the library in a way of its own; its shortest walltime is a minute.
    BY_DAY = frozenset(
        {
            "test_array_elements_end_apart",
            "test_cancel_all_kinds_at_once",
            "test_cancel_one_of_several",
            "test_cancel_what_is_not_there",
            "test_check_is_content",
            "test_exit_code",
            "test_found_again_by_name",
            "test_held_submission_waits",
            "test_one_request_gives_ids_in_order",
            "test_placeholders_know_who_they_are",
            "test_rejected_submission_leaves_nothing",
            "test_release_of_a_held_submission",
            "test_states_go_forward",
            "test_unavailable",
            "test_unsupported_is_said",
            "test_walltime_is_requested",
            "test_what_crashes_or_lies_is_not_offered",
            "test_what_is_rendered_is_sent",
        }
    )

    async def test_walltime_is_enforced(self, live_trial: Trial) -> None:
        await super().test_walltime_is_enforced(live_trial)


class TestPbsDrmaa(OddLibraryConformance):
    """pbs-drmaa."""

    kind, library, unknown = "pbs", PBS, "999999.vm"
