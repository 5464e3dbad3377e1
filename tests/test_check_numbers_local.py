# SPDX-License-Identifier: Apache-2.0
"""``koala check`` tries two placeholders of one submission: a batch system may tell both the same number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.config.sitefile import load_site_text
from koala_adapter.model import LrmJobState
from koala_adapter.sitecheck.trialcenter import TrialCenter
from koala_adapter.sitecheck.trialplaceholder import Trial
from koala_adapter.testing import new_context
from koala_local import PLUGIN
from koala_local.lrm import LocalLrm
from koala_local.settings import LocalSettings
from tests.local_daemon import end_daemon

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.plugin import CheckResult

pytestmark = pytest.mark.anyio

SITE = """
[control_center]
address = "127.0.0.1"
[[clusters]]
name = "a"
plugin = "local"
settings.processors = 2
"""


class Numberless(LocalLrm):
    """Tells the elements of an array no index."""

    array_index_variable = "KOALA_NOBODY_SETS_THIS"


async def tried(kind: type[LocalLrm], processors: int, directory: Path) -> dict[str, CheckResult]:
    """Return what a trial of a plugin says, by subject; nothing of it stays behind."""
    site = load_site_text(SITE, {"local": PLUGIN})
    center = TrialCenter(site, directory, state=directory)
    lrm = kind(new_context(directory), LocalSettings(processors=processors))
    await lrm.start()
    try:
        async with anyio.create_task_group() as tasks:
            await center.serve(tasks)
            results = await Trial(center, site.clusters[0], lrm, timeout=120, tell=lambda _: None).run()
            tasks.cancel_scope.cancel()
        assert [job for job in await lrm.jobs() if job.state is not LrmJobState.ENDED] == []
    finally:
        await lrm.close()
        await end_daemon(directory / "state")
    return {result.subject: result for result in results}


async def test_two_numbers(tmp_path: Path) -> None:
    """Both report, each as itself."""
    found = await tried(LocalLrm, 2, tmp_path)
    assert all(result.ok for result in found.values())
    assert "told them apart" in found["numbers"].found


async def test_one_number_for_both(tmp_path: Path) -> None:
    """The second is turned away, as it would be in every job of several placeholders: a FAIL, with the variable."""
    found = await tried(Numberless, 2, tmp_path)
    assert found["placeholder"].ok
    assert not found["numbers"].ok
    assert "KOALA_NOBODY_SETS_THIS" in found["numbers"].remedy


async def test_no_room_for_two(tmp_path: Path) -> None:
    """Where only one finds room nothing is wrong, and what was not tried is said."""
    found = await tried(LocalLrm, 1, tmp_path)
    assert all(result.ok for result in found.values())
    assert "not tried" in found["numbers"].found
