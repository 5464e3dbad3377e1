# SPDX-License-Identifier: Apache-2.0
"""Programs that ask for processors themselves, on Slurm and on Grid Engine."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.config.jobfile import load_job
from koala_adapter.lrm.commands import login_name
from koala_adapter.model import JobId
from koala_adapter.outcome import JobState
from tests.real.lrms import placeholders
from tests.real.systems import GridEngineCell
from tests.wishes import write_wishes

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.lrms import System
    from tests.real.systems import SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

FOUR = 4
"""Processors of each system that the programs may use."""


def said(user: KoalaUser, job: str) -> list[list[Any]]:
    """Return what a program wrote of its wishes and of its sizes."""
    return [json.loads(line) for line in user.output_of(job, "sum", 0).decode().splitlines()]


def submit(user: KoalaUser, system: System, name: str, initial: int, *wishes: str) -> str:
    """Submit a program of one to four processes on one system."""
    more = f'minimum = 1\nmaximum = {FOUR}\ncluster = "{system.name}"\ninitial = {initial}\n'
    path = Path(write_wishes(user.directory, *wishes, name=f"{name}-{system.name}", more=more))
    return user.client.submit(load_job(path, job_id=JobId("0"), user=login_name(), submitted_at=time.time()))


def test_wishes_on_both_systems(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """A voluntary one gets part of what it asks for; for a mandatory one another program of that cluster shrinks."""
    systems = (slurm_a, sge_cell)
    thresholds = {slurm_a.name: slurm_a.cpus * len(slurm_a.nodes) - FOUR, sge_cell.name: sge_cell.slots - FOUR}
    clusters = {name: {"threshold": one} for name, one in thresholds.items()}
    user = new_user(*systems, scheduler={"approach": "none"}, clusters=clusters)
    rich = {one.name: submit(user, one, "rich", 2) for one in systems}
    poor = {one.name: submit(user, one, "poor", 1, "voluntary=2", "mandatory=1") for one in systems}
    for job in (*rich.values(), *poor.values()):
        user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    user.wait(poor[slurm_a.name], lambda _: [one.available for one in user.client.clusters()] == [1, 1], what="polled")
    for system in systems:
        (user.directory / f"poor-{system.name}" / "go").touch()
    for system in systems:
        job = poor[system.name]
        user.wait(job, lambda _, job=job: len(said(user, job)) == FOUR, what="has what it asked for")  # type: ignore[misc]
        assert said(user, job) == [
            ["voluntary", 2, 1, "no more is free"],
            ["size", 2],
            ["mandatory", 1, 1, ""],
            ["size", 3],
        ]
        assert said(user, rich[system.name]) == [["size", 1]]
        assert f"job {job} asked for 1 more" in user.report(rich[system.name]).explanation
        assert len(placeholders(system, running=True)) == FOUR
    for directory in user.directory.glob("*-*/"):
        (directory / "stop").touch()
    for job in (*rich.values(), *poor.values()):
        report = user.wait_over(job)
        assert report.state is JobState.COMPLETED, report.outcome
    assert all(not placeholders(system) for system in systems)


LIMIT, WANTED = 200, 150
"""MiB that the site gives an application with a processor, and that it asks for."""


@pytest.mark.nightly
def test_memory_comes_with_new_processors(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """The batch system itself says how much the new placeholder has; what is beyond the site's limit is refused."""
    systems = (slurm_a, sge_cell)
    clusters = {one.name: {"memory_limit": LIMIT} for one in systems}
    user = new_user(*systems, scheduler={"approach": "none"}, clusters=clusters)
    jobs = {one.name: submit(user, one, "big", 1, f"memory={LIMIT + 1}", f"memory={WANTED}") for one in systems}
    for job in jobs.values():
        user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    for system in systems:
        (user.directory / f"big-{system.name}" / "go").touch()
    for system in systems:
        job = jobs[system.name]
        user.wait(job, lambda _, job=job: len(said(user, job)) == 3, what="has what it asked for")  # type: ignore[misc]
        refused = f"on {system.name} a processor comes with {LIMIT} MiB of memory at most, not {LIMIT + 1}"
        assert said(user, job) == [
            ["memory", LIMIT + 1, 0, refused],
            ["memory", WANTED, 1, ""],
            ["size", 2],
        ]
        assert sorted(memory_of(system, one) for one in placeholders(system)) == ["", f"{WANTED}M"]
        (user.directory / f"big-{system.name}" / "stop").touch()
    for job in jobs.values():
        user.wait(job, lambda report: report.state is JobState.COMPLETED, what="has ended")


def memory_of(system: System, name: str) -> str:
    """Return how much memory a batch system says that a placeholder asks for; empty: none, or not so much."""
    if isinstance(system, GridEngineCell):
        found = re.search(r"h_vmem=(\w+)", system.run("qstat", "-j", name))
        return "" if found is None else found[1]
    (memory,) = {row[1] for row in system.squeue(form="%j|%m") if row[0] == name}
    return memory if memory == f"{WANTED}M" else ""
