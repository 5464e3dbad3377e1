# SPDX-License-Identifier: Apache-2.0
"""How long a job is followed: to its outcome, or until nothing of it is left in any LRM."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.cli.display import Display, closing, follow, job_lines
from koala_adapter.cli.session import make_console
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobOutcome, JobState
from tests.unit.api.jobreports import job_report

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from koala_adapter.report.values import JobReport


COMPLETED = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0)


def told(taken: list[JobReport]) -> Generator[JobReport, None, None]:
    """Yield a job that runs, has ended, whose agents are gone, of which nothing is left; note which were taken."""
    ended = job_report(state=JobState.COMPLETED, outcome=COMPLETED)
    for report in (
        job_report(),
        replace(ended, placeholders_left=2),
        replace(ended, placeholders_left=2, concluded=True),
        replace(ended, concluded=True),
    ):
        taken.append(report)
        yield report


@pytest.mark.parametrize(("released", "reports"), [(False, 3), (True, 4)])
def test_a_service_that_goes_on_sees_to_the_placeholders(released: bool, reports: int) -> None:  # noqa: FBT001
    """Whoever is the service waits for their ends, too."""
    taken: list[JobReport] = []
    screen = io.StringIO()
    last = follow(told(taken), Display(make_console(screen), quiet=False), released=released)
    assert (len(taken), last) == (reports, taken[-1])
    closing(last, make_console(screen))
    assert "still ending" not in screen.getvalue()


def test_placeholders_that_nobody_waits_for_are_told() -> None:
    """With how to find them."""
    screen = io.StringIO()
    closing(job_report(state=JobState.COMPLETED, outcome=COMPLETED, placeholders_left=2), make_console(screen))
    assert "2 placeholders are still ending" in screen.getvalue()


def test_what_processes_write_to_standard_error_is_shown_there(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Beside koala's own lines, and apart from their output."""
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "0.out").write_bytes(b"result")
    (tmp_path / "c1" / "0.err").write_bytes(b"no such file\n[1/2] not markup")
    screen = io.StringIO()
    report = job_report(
        state=JobState.COMPLETED, outcome=COMPLETED, concluded=True, output_directory=str(tmp_path), components=()
    )
    follow((one for one in [report]), Display(make_console(screen), quiet=False))
    assert capfdbinary.readouterr().out == b"result"
    assert "no such file\n[1/2] not markup" in screen.getvalue()


def test_a_job_in_detail_names_no_directory_that_is_not_there(tmp_path: Path) -> None:
    """As `koala run` does: a job that never started has printed nothing."""
    assert "no output" in job_lines(job_report(output_directory=str(tmp_path / "none")))
    assert f"output in {tmp_path}" in job_lines(job_report(output_directory=str(tmp_path)))


def test_the_reason_for_waiting_goes_to_a_pipe(tmp_path: Path) -> None:
    """Once, and again when it changes in more than times and counts; not when the job runs."""
    waiting = job_report(
        state=JobState.WAITING, launched_at=None, output_directory=str(tmp_path), explanation="It waits for 45 s."
    )
    screen = io.StringIO()
    display = Display(make_console(screen), quiet=False)
    for report in (
        waiting,
        replace(waiting, explanation="It waits for 2 h 10 min."),
        replace(waiting, explanation="Placeholders started but never reported: No route to host."),
        replace(waiting, state=JobState.RUNNING, launched_at=1.0, explanation="It runs."),
    ):
        display.show(report)
    reasons = [line.strip() for line in screen.getvalue().splitlines() if line.startswith(" ")]
    assert reasons == ["It waits for 45 s.", "Placeholders started but never reported: No route to host."]


def test_a_quiet_display_shows_what_processes_print_alone(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """And nothing of koala's."""
    (tmp_path / "c1").mkdir()
    (tmp_path / "c1" / "0.out").write_bytes(b"result\n")
    screen = io.StringIO()
    report = job_report(
        state=JobState.COMPLETED, outcome=COMPLETED, concluded=True, output_directory=str(tmp_path), components=()
    )
    for output, shown in ((True, b"result\n"), (False, b"")):
        follow((one for one in [report]), Display(make_console(screen), quiet=True, output=output))
        assert (capfdbinary.readouterr().out, screen.getvalue()) == (shown, "")
