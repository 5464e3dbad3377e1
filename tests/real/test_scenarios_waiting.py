# SPDX-License-Identifier: Apache-2.0
"""A job that cannot have all its processors at once: it holds what it has for a bounded time, and starts by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.lrms import local_job, placeholders, submissions
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]


def test_a_full_cluster_is_waited_for(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """With the cell full the job holds its Slurm processors, says so, and starts when the local job has ended."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    traces = Traces(user)
    with local_job(sge_cell, sge_cell.slots):
        command = ("sh", "-c", "echo rank $KOALA_RANK")
        job = user.submit(user.job_file(*(part(name, 2, *command, environment=traces.mark) for name in "abc")))
        report = user.wait_held(job, 4)
        assert [(c.held, c.queued) for c in report.components] == [(2, 0), (2, 0), (0, 2)]
        assert len(placeholders(slurm_a, running=True)) == 2
        assert len(placeholders(slurm_b, running=True)) == 2
        told = user.run("explain", job).text
        for fact in ("holds 4 of 6 processors", "0 of 2 on c", "2 in the queue of c", "idle there: 0"):
            assert fact in told, told
        assert report.state is JobState.CLAIMING
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.outcome.exit_code, report.hand_backs) == (0, 0)
    assert [user.output_of(job, f"c{1 + r // 2}", r % 2) for r in range(6)] == [b"rank %d\n" % r for r in range(6)]
    traces.expect_none()


def test_processors_are_handed_back_after_their_life(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """With a life cycle shorter than the wait they go to others in between, and the place in the queue is kept."""
    user = new_user(slurm_a, sge_cell, scheduler={"placeholder_life": 12, "backoff": 3, "longest_backoff": 3})
    traces = Traces(user)
    with local_job(sge_cell, sge_cell.slots):
        job = user.submit(user.job_file(*(part(name, 2, "true", environment=traces.mark) for name in "ac")))
        user.wait_held(job, 2)
        user.wait(job, lambda report: report.hand_backs >= 1, what="handed back")
        assert "handed back" in user.run("explain", job).text
        wait_until(
            lambda: len(submissions(slurm_a, user.prefix)) >= 2,
            seconds=PATIENCE,
            what="asks anew",
            details=user.details,
        )
        user.wait_held(job, 2)
        assert len(submissions(sge_cell, user.prefix)) == 1, "their place in the queue is kept"
    report = user.wait_over(job)
    assert report.outcome is not None
    assert report.outcome.exit_code == 0
    assert 2 <= len(submissions(slurm_a, user.prefix)) <= 1 + report.hand_backs
    rows = slurm_a.squeue("--states=all", form="%j|%F|%S|%e")
    runs = sorted((int(number), begin, end) for name, number, begin, end in rows if name.startswith(user.prefix))
    (first, *_), (second, *_) = runs[:2], runs[2:4]
    assert first[2] <= second[1], "the processors were free for others in between"
    traces.expect_none()
