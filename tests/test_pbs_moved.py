# SPDX-License-Identifier: Apache-2.0
"""A placeholder that a PBS server has moved to another one: it is gone from its own, whose history says where to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey, EndReason
from koala_adapter.testing import new_context
from koala_pbs import PbsSettings
from koala_pbs.lrm import make_lrm
from tests.fakes.pbs import FakePbs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


async def test_a_moved_job_is_told_as_lost(tmp_path: Path) -> None:
    """It is not listed any more, the history names the other server, and it can still be cancelled."""
    home, other = FakePbs(tmp_path / "p", server="home"), FakePbs(tmp_path / "q", server="other")
    try:
        home.move_jobs_to(other)
        lrm = make_lrm(new_context(tmp_path), PbsSettings(conf=home.conf, bin_directory=home.bin_directory))
        await lrm.start()
        key = BatchKey("koala-k-1")
        (id_,) = await lrm.submit(
            Submission(key=key, count=1, walltime=600, script="#!/bin/sh\nexec sleep 60\n", held=True)
        )
        home.run("qmove", "workq@other", id_)
        assert id_ not in {job.id for job in await lrm.jobs()}
        (job,) = await lrm.history([id_])
        assert (job.end, "workq@other" in job.reason) == (EndReason.LOST, True)
        await lrm.cancel([id_])
        await lrm.close()
    finally:
        home.close()
        other.close()
