# SPDX-License-Identifier: Apache-2.0
"""What ``koala run`` and ``koala sweep`` do with interrupts and with sweeps that go on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.api.client import Client
from koala_adapter.cli.run import _resumed, run_job
from koala_adapter.cli.session import Session
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import EndReason, JobId
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.service.sweeps import FOLDER, SweepFiles
from tests.unit.api.jobreports import job_report

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from koala_adapter.model import Job
    from koala_adapter.report.values import JobReport

SWEEP = """
walltime = 60
kind = "malleable"
runner = "sweep"
[[components]]
command = ["p", "{a}"]
minimum = 4
maximum = 9
[sweep]
repeats = 1
[sweep.parameters]
a = "1..10"
"""


class Interrupted(Client):
    """A service whose watcher is interrupted after a report."""

    def __init__(self, directory: Path, report: JobReport) -> None:
        """Tell ``report``."""
        super().__init__(directory)
        self.report = report
        self.cancelled: list[str] = []

    def running(self) -> bool:
        """It answers."""
        return True

    def submit(self, job: Job, *, submission: str = "") -> str:
        """Take any job."""
        del job, submission
        return self.report.id

    def cancel(self, job_id: str) -> JobReport:
        """Note it."""
        self.cancelled.append(job_id)
        return self.report

    def follow(self, job_id: str, *, patience: float, on_lost: Callable[[], None]) -> Generator[JobReport, None, None]:
        """Tell the report, then be interrupted; after a cancellation the job is over."""
        del job_id, patience, on_lost
        if self.cancelled:
            yield replace(self.report, placeholders_left=0, concluded=True)
            return
        yield self.report
        raise KeyboardInterrupt


@pytest.mark.parametrize("ended", [True, False])
def test_an_interrupt_after_the_end_cancels_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, ended: bool
) -> None:
    """The job has its result already; what is left of it is seen to without the command."""
    outcome = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0) if ended else None
    state = JobState.COMPLETED if ended else JobState.RUNNING
    report = job_report(state=state, outcome=outcome, placeholders_left=2, output_directory=str(tmp_path))
    session = Session(site_option=None, state_option=tmp_path)
    client = Interrupted(tmp_path, report)
    session.here.client = client
    job = load_job_text(SWEEP, directory=tmp_path, job_id=JobId("0"), user="u", submitted_at=0.0)
    last = run_job(session, job, quiet=False)
    assert (client.cancelled, last.outcome) == ([] if ended else [report.id], outcome)
    assert ("cancelling job" in capsys.readouterr().err) is not ended


def test_a_resumed_sweep_takes_new_bounds(tmp_path: Path) -> None:
    """Also the number of new tries and the time to end; a size that cannot be is refused."""
    job = load_job_text(SWEEP, directory=tmp_path, job_id=JobId("12"), user="u", submitted_at=0.0)
    SweepFiles(tmp_path / "jobs" / "12" / FOLDER).keep(job)
    session = Session(site_option=None, state_option=tmp_path)
    resumed = _resumed(session, "12", maximum=5, repeats=3, grace=9)
    assert resumed.sweep is not None
    assert (resumed.sweep.repeats, resumed.components[0].retirement.grace, resumed.components[0].maximum) == (3, 9, 5)
    same = _resumed(session, "12")
    assert same.sweep is not None
    assert (same.sweep.repeats, same.components) == (1, job.components)
    with pytest.raises(ConfigurationError, match="-n: found 2, but the sweep of job 12 has at least 4"):
        _resumed(session, "12", maximum=2)
