# SPDX-License-Identifier: Apache-2.0
"""What ranks have used, compared with what GNU time says of the same processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.user import part

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster

BURN = """\
import time
kept = bytearray(200 * 2**20)
while time.process_time() < 3:
    pass
"""
COMMAND = ("/usr/bin/time", "-f", "%U %S %M", "sh", "-c", 'python3 -c "$0"; true', BURN)
"""Time and memory are used by a child of a shell."""
LOCAL = """
[[clusters]]
name = "l"
plugin = "local"
settings = { processors = 2 }
"""


@pytest.mark.real("slurmctld", "slurmd", "/usr/bin/time")
def test_a_rank_has_used_what_gnu_time_says(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """On Slurm, Grid Engine and locally; the job has used what its ranks have, of what it held."""
    user = new_user(slurm_a, sge_cell, serve=False)
    user.site.write_text(user.site.read_text() + LOCAL)
    user.serve()
    clusters = (slurm_a.name, sge_cell.name, "l")
    report = user.wait_over(user.submit(user.job_file(*(part(name, 1, *COMMAND, name=name) for name in clusters))))
    assert report.state is JobState.COMPLETED
    usage = report.usage
    assert usage is not None
    assert {one.component: one.rank for one in usage.by_rank} == {name: rank for rank, name in enumerate(clusters)}
    for one in usage.by_rank:
        *times, kib = map(float, user.output_of(report.id, one.component, 0, "err").split())
        assert one.used.processor_seconds == pytest.approx(sum(times), rel=0.1)
        assert one.used.memory_bytes == pytest.approx(kib * 1024, rel=0.1)
    assert usage.used_seconds == pytest.approx(sum(one.used.processor_seconds for one in usage.by_rank))
    assert usage.used_seconds <= usage.held_seconds
    assert f"used {100 * usage.share:.0f} % of the processors it held" in user.run("status", report.id).text
