# SPDX-License-Identifier: Apache-2.0
"""Jobs that run again on real batch systems: after the loss of a node, and from the state that they have saved."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from koala_adapter.model import EndReason
from koala_adapter.outcome import JobState
from tests.real.user import part

if TYPE_CHECKING:
    from tests.real.conftest import NewSlurm, NewUser
    from tests.real.systems import SlurmCluster

pytestmark = pytest.mark.real("slurmctld", "slurmd")

WAITS_ONCE = 'echo "attempt $KOALA_ATTEMPT"; [ "$KOALA_ATTEMPT" = 2 ] || sleep 600'

COUNTS = """
import os, signal, sys, time

def save(*_):
    open("state", "w").write(str(step))
    sys.exit(75)

signal.signal(signal.SIGUSR1, save)
step = int(open("state").read()) if os.path.exists("state") else 0
print(f"attempt {os.environ['KOALA_ATTEMPT']} on {os.environ['KOALA_CLUSTER']} from {step}", flush=True)
while step < 200:
    time.sleep(0.1)
    step += 1
print(f"finished at {step}")
"""
"""Needs twenty seconds, of which it gets eight in one attempt."""


def test_a_job_runs_again_when_its_node_has_died(new_user: NewUser, new_slurm: NewSlurm) -> None:
    """SIGKILL of the slurmd and of all that runs there; the next attempt is on another node."""
    cluster = new_slurm("mortal", nodes=2)
    user = new_user(cluster)
    job = user.submit(user.job_file(part("mortal", 1, "sh", "-c", WAITS_ONCE), retries=1))
    first = user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    (node,) = cluster.squeue(f"--jobs={first.components[0].lrm_ids[0]}", form="%N")[0]
    cluster.kill_node(node)
    cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")  # as Slurm does after a while
    report = user.wait_over(job)
    assert report.state is JobState.COMPLETED, report.explanation
    (attempt,) = report.attempts
    assert attempt.outcome.state is JobState.LOST
    assert user.run("logs", job).stdout == b"attempt 2\n"
    assert user.run("logs", job, "--attempt", "1").stdout == b"attempt 1\n"


def test_a_job_goes_on_over_three_walltimes_and_two_clusters(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster
) -> None:
    """Each attempt begins where the one before has saved its state; what is drained meanwhile is not used."""
    user = new_user(slurm_a, slurm_b)
    shared = user.directory / "shared"
    shared.mkdir()
    program = shared / "counts.py"
    program.write_text(COUNTS)
    file = user.job_file(
        part(None, 1, sys.executable, str(program)),
        walltime=12,
        working_directory=str(shared),
        checkpoint_signal="USR1",
        warn_before=4,
        requeue_on_walltime=True,
    )
    job = user.submit(file)
    report = user.wait(job, lambda one: one.state is JobState.RUNNING, what="runs")
    first = report.components[0].cluster
    system = slurm_a if first == slurm_a.name else slurm_b
    system.run("scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test")
    try:
        report = user.wait_over(job)
    finally:
        system.return_to_use()
    assert report.state is JobState.COMPLETED, report.explanation
    assert {one.outcome.exit_code for one in report.attempts} == {75}
    assert {one.outcome.reason for one in report.attempts} == {EndReason.EXITED}
    ran_on = [*(one.clusters[0] for one in report.attempts), report.components[0].cluster]
    assert len(ran_on) >= 3
    assert (ran_on[0], set(ran_on[1:])) == (first, {"a", "b"} - {first})
    assert b"finished at 200" in user.run("logs", job).stdout
