# SPDX-License-Identifier: Apache-2.0
"""Placeholders that their batch system suspends while a job runs: what is told, what is kept, and what is lost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import EXIT_LOST, EXIT_WALLTIME
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.systems import SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part, runs_with_known_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.real.conftest import NewUser
    from tests.real.lrms import System
    from tests.real.systems import GridEngineCell
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

SUSPEND = {True: ("scontrol", "suspend"), False: ("qmod", "-sj")}
RESUME = {True: ("scontrol", "resume"), False: ("qmod", "-usj")}
COUNTING = """
n=0
until [ -e "$1" ]; do n=$((n + 1)); echo $n; sleep 0.2; done
echo over
"""
"""Counts until a file is there; what it prints has no gap."""
SHORT = {"lease": 6, "heartbeat": 1}
"""Settings of a control center that gives an agent up soon."""
TOLD = re.compile(r"1 of its placeholders on (\w+) is suspended by the batch system for (\d+) (s|min)\.")


class Counting:
    """A job of two processes that count, one of whose placeholders can be suspended."""

    def __init__(self, user: KoalaUser, system: System) -> None:
        """It runs."""
        self.user = user
        self.system = system
        self.go_on = user.directory / "go"
        file = user.job_file(part(system.name, 2, "sh", "-c", COUNTING, "sh", str(self.go_on)))
        self.id = user.submit(file)
        report = user.wait(self.id, runs_with_known_ids, what="runs")
        self.component = report.components[0].name
        self.number = report.components[0].lrm_ids[0]
        self.wait_for_progress()

    def _change(self, commands: Mapping[bool, tuple[str, ...]]) -> None:
        self.system.run(*commands[isinstance(self.system, SlurmCluster)], self.number)

    def suspend(self) -> None:
        """Suspend the placeholder of one of the processes."""
        self._change(SUSPEND)

    def resume(self) -> None:
        """Let it go on."""
        self._change(RESUME)

    def counted(self) -> list[int]:
        """Return how far each process has come, by what has arrived."""
        return [self.user.output_of(self.id, self.component, rank).count(b"\n") for rank in range(2)]

    def wait_for_progress(self) -> None:
        """Wait until both processes have gone on."""
        before = self.counted()
        wait_until(
            lambda: all(now > then for now, then in zip(self.counted(), before, strict=True)),
            seconds=PATIENCE,
            what="both count",
            details=self.user.details,
        )

    def wait_told(self, seconds: float = 0.0) -> None:
        """Wait until it is told that the placeholder has been suspended for so long."""

        def told() -> bool:
            found = TOLD.search(self.user.run("explain", self.id).text)
            if found is None or found[1] != self.system.name:
                return False
            return int(found[2]) * (60 if found[3] == "min" else 1) >= seconds

        wait_until(told, seconds=PATIENCE, what=f"suspended for {seconds} s", details=self.user.details)

    def expect_all(self) -> None:
        """Let it end, and insist that it has ended well and that each process has printed all numbers once."""
        self.go_on.touch()
        report = self.user.wait_over(self.id)
        assert report.state is JobState.COMPLETED, report
        for rank in range(2):
            lines = self.user.output_of(self.id, self.component, rank).decode().splitlines()
            assert lines == [*(str(number) for number in range(1, len(lines))), "over"]


def expect_kept(user: KoalaUser, system: System, *, seconds: float) -> None:
    """Suspend one of two placeholders for so long; it is told, and nothing is lost."""
    job = Counting(user, system)
    traces = Traces(user)
    job.suspend()
    job.wait_told(seconds)
    job.resume()
    wait_until(
        lambda: not TOLD.search(user.run("explain", job.id).text),
        seconds=PATIENCE,
        what="not suspended any more",
        details=user.details,
    )
    job.wait_for_progress()
    job.expect_all()
    traces.expect_none()


def expect_lost(user: KoalaUser, system: System) -> None:
    """Suspend one of two placeholders for longer than the lease; the job is lost, it is told why, and all is ended."""
    job = Counting(user, system)
    traces = Traces(user)
    job.suspend()
    report = user.wait_over(job.id)
    assert report.outcome is not None
    assert (report.outcome.state, report.outcome.reason) == (JobState.LOST, EndReason.LOST), report.outcome
    assert "its batch system lists it as suspended, for " in report.outcome.detail
    assert "await_suspended" in report.outcome.detail
    assert report.outcome.exit_code == EXIT_LOST
    traces.expect_none(but_words=True)


def test_a_suspension_in_slurm_within_the_lease(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """`scontrol suspend` and `resume`: the process goes on where it was."""
    expect_kept(new_user(slurm_a), slurm_a, seconds=2)


def test_a_suspension_in_grid_engine_within_the_lease(new_user: NewUser, sge_cell: GridEngineCell) -> None:
    """`qmod -sj` and `-usj`."""
    expect_kept(new_user(sge_cell), sge_cell, seconds=2)


AWAITED = {**SHORT, "await_suspended": True}


def test_a_suspension_in_slurm_is_awaited(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """Two leases long, at a site that wants its jobs to wait."""
    expect_kept(new_user(slurm_a, center=AWAITED), slurm_a, seconds=2 * SHORT["lease"])


def test_a_suspension_in_grid_engine_is_awaited(new_user: NewUser, sge_cell: GridEngineCell) -> None:
    """Two leases long, at a site that wants its jobs to wait."""
    expect_kept(new_user(sge_cell, center=AWAITED), sge_cell, seconds=2 * SHORT["lease"])


def test_a_suspension_in_slurm_beyond_the_lease(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """The placeholder that is suspended is cancelled, too."""
    expect_lost(new_user(slurm_a, center=SHORT), slurm_a)


def test_a_suspension_in_grid_engine_beyond_the_lease(new_user: NewUser, sge_cell: GridEngineCell) -> None:
    """The placeholder that is suspended is deleted, too."""
    expect_lost(new_user(sge_cell, center=SHORT), sge_cell)


def expect_ended_at_its_walltime(user: KoalaUser, system: System) -> None:
    """Suspend a placeholder until the job's walltime is over: the time counts, and what is suspended is ended."""
    traces = Traces(user)
    file = user.job_file(part(system.name, 2, "sleep", "600", environment=traces.mark), walltime=20)
    job = user.submit(file)
    report = user.wait(job, lambda report: report.over or runs_with_known_ids(report), what="runs")
    # On a very slow machine it may be over by now: then there is nothing to be suspended.
    number = report.components[0].lrm_ids[0]
    system.run(*SUSPEND[isinstance(system, SlurmCluster)], number, check=False)
    outcome = user.wait_over(job).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, EndReason.WALLTIME, EXIT_WALLTIME)
    traces.expect_none(but_words=True)


def test_the_walltime_goes_on_while_slurm_suspends(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """Slurm itself does not count that time: its own limit is later."""
    expect_ended_at_its_walltime(new_user(slurm_a), slurm_a)


def test_the_walltime_goes_on_while_grid_engine_suspends(new_user: NewUser, sge_cell: GridEngineCell) -> None:
    """Grid Engine counts it, too."""
    expect_ended_at_its_walltime(new_user(sge_cell), sge_cell)
