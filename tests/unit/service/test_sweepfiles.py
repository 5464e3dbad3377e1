# SPDX-License-Identifier: Apache-2.0
"""What the files of a sweep tell of the jobs that were at it one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import JobId, Sweep
from koala_adapter.report.values import SweepProgress
from koala_adapter.service.sweeps import FOLDER, SweepFiles, latest_progress, recorded_progress
from tests.unit.scheduler.scheduler_site import component, job

if TYPE_CHECKING:
    from pathlib import Path


def test_a_job_that_stopped_tells_what_it_did_after_another_has_gone_on(tmp_path: Path) -> None:
    """Each job tells how far the sweep was when it left; what is left to be done is told by the last one."""
    first = replace(job("1", component("x", 4)), sweep=Sweep(axes=()))
    second = replace(first, id=JobId("2"), sweep=Sweep(axes=(), continues=first.id))
    directory = tmp_path / "1" / FOLDER
    directory.mkdir(parents=True)
    stopped = SweepProgress(total=100, done=36, failed=0, running=0, directory=str(directory))
    finished = replace(stopped, done=100)
    SweepFiles(directory).close(stopped, first.id)
    SweepFiles(directory).close(finished, second.id)
    assert recorded_progress(tmp_path, first) == stopped
    assert recorded_progress(tmp_path, second) == finished
    assert latest_progress(tmp_path, first) == latest_progress(tmp_path, second) == finished


def test_a_job_that_never_came_to_its_sweep_tells_how_far_that_is(tmp_path: Path) -> None:
    """Nothing else is known, also in directories of earlier versions."""
    first = replace(job("1", component("x", 4)), sweep=Sweep(axes=()))
    second = replace(first, id=JobId("2"), sweep=Sweep(axes=(), continues=first.id))
    assert recorded_progress(tmp_path, first) is None
    directory = tmp_path / "1" / FOLDER
    directory.mkdir(parents=True)
    stopped = SweepProgress(total=100, done=36, failed=0, running=0, directory=str(directory))
    SweepFiles(directory).close(stopped, first.id)
    assert recorded_progress(tmp_path, second) == stopped
