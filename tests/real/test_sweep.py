# SPDX-License-Identifier: Apache-2.0
"""A sweep of 2,000 tasks over two Slurm clusters and Grid Engine: every result once, whoever wants the processors."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.outcome import JobState
from tests.real.lrms import local_job, placeholders

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.report.values import JobReport
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster

pytestmark = [
    pytest.mark.real("slurmctld", "slurmd", "sge_qmaster"),
    pytest.mark.nightly,
    pytest.mark.timeout(1200),
]

TASKS = 2000
FREE = 600
"""Tasks that do not wait for a word."""
PATIENCE = 400.0
SWEEP = """\
name = "sweep"
kind = "malleable"
runner = "sweep"
walltime = "30m"

[[components]]
command = ["sh", "-c", "[ {{a}} -le {free} ] || while [ ! -e {go} ]; do sleep 0.2; done; echo $(( {{a}} * {{a}} ))"]
minimum = 1
maximum = 40
flexible = true

[sweep.parameters]
a = "1..{tasks}"
"""


def launchers(report: JobReport) -> dict[str | None, int]:
    """Return the launchers on each cluster."""
    return {one.cluster: one.processors for one in report.components if one.processors}


def entries(directory: Path) -> list[dict[str, Any]]:
    """Return what is written down of the tasks of a sweep."""
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


def test_a_sweep_yields_and_every_result_comes_once(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path
) -> None:
    """It fills all three, makes way for `sbatch`, and outlives the loss of a placeholder and of the service."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    go = tmp_path / "go"
    file = user.directory / "sweep.toml"
    file.write_text(SWEEP.format(free=FREE, go=go, tasks=TASKS))
    everything = slurm_a.cpus * len(slurm_a.nodes) + slurm_b.cpus * len(slurm_b.nodes) + sge_cell.slots
    job = user.submit(file)
    user.wait(
        job,
        lambda report: (
            sum(launchers(report).values()) == everything
            and report.sweep is not None
            and report.sweep.done >= FREE
            and report.sweep.running == everything
        ),
        what="has all processors, and all that does not wait is done",
        seconds=PATIENCE,
    )
    submitted = time.monotonic()
    with local_job(slurm_a, 2):
        print(f"the job of sbatch ran after {time.monotonic() - submitted:.1f} s")  # noqa: T201 - to be seen
        report = user.report(job)
        assert report.state is JobState.RUNNING
        gave = [one for one in report.size_changes if one.after < one.before]
        assert {one.cluster for one in gave} == {slurm_a.name}
        assert all(" that wait" in one.reason for one in gave), gave
        latest = {one.cluster: one.lrm_ids[-1] for one in report.components}
        slurm_b.run("scancel", "--full", "--signal=KILL", latest[slurm_b.name])
        user.wait(
            job, lambda report: any("was lost" in one.reason for one in report.size_changes), what="lost a launcher"
        )
        user.kill()
        go.touch()
        user.serve()
    report = user.wait_over(job, seconds=PATIENCE)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0), report.outcome
    directory = user.state / "jobs" / job / "sweep"
    done = [one for one in entries(directory) if one["state"] == "done"]
    assert sorted(one["task"] for one in done) == list(range(TASKS))
    assert {one["cluster"] for one in done} == set(user.systems)
    for one in done:
        assert int((directory / one["stdout"]).read_text()) == int(one["parameters"]["a"]) ** 2
    assert all(not placeholders(system) for system in user.systems.values())
