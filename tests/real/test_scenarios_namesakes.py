# SPDX-License-Identifier: Apache-2.0
"""Another user gives jobs the names of ours: neither does that end our job, nor do we, although we could, end theirs.

koala runs as root, who may end everybody's jobs in both systems; the stranger is `nobody`. Slurm knows its users by
munge.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from koala_adapter.outcome import JobState
from tests.real.lrms import jobs_named, listing, placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import KoalaUser, part

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.real.conftest import NewSlurm, NewUser
    from tests.real.lrms import System

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "munged", "sge_qmaster")]

STRANGER = "nobody"
SCRIPT = "#!/bin/sh\nexec sleep 600\n"
IMPOSSIBLE = "/nonexistent/x/y"
"""Where a job's output cannot go: it fails before it begins."""


def submit_as_stranger(system: System, name: str, *, held: bool) -> str:
    """Have the stranger submit an array of two, held or sure to fail, and return its id."""
    output = "/dev/null" if held else IMPOSSIBLE
    if isinstance(system, SlurmCluster):
        options = (f"--job-name={name}", "--array=1-2", "-n1", f"--output={output}", *(("--hold",) if held else ()))
    else:
        options = ("-N", name, "-t", "1-2", "-wd", "/tmp", "-o", output, "-j", "y", *(("-h",) if held else ()))
    return system.submit(SCRIPT, *options, user=STRANGER)


def has_failed(system: System, number: str) -> bool:
    """Tell whether a job of the stranger is shown as one that could not start."""
    if isinstance(system, SlurmCluster):
        rows = system.squeue("--states=all", f"--jobs={number}", form="%T")
        return bool(rows) and all(row[0].split(",")[0] in {"FAILED", "NODE_FAIL", "COMPLETED"} for row in rows)
    lines = [line.split() for line in system.qstat().splitlines()]
    return any(words[:1] == [number] and words[4].startswith("E") for words in lines)


def let_polls_pass(user: KoalaUser, systems: Sequence[System]) -> None:
    """Have a job run through on all systems: they are listed again and again for it."""
    job = user.submit(user.job_file(*(part(system.name, 1, "true") for system in systems), name="passing"))
    assert user.wait_over(job).state is JobState.COMPLETED


def is_shown_as_failed(system: System, name: str) -> None:
    """Have the stranger submit an array that fails, and wait until the system lists that."""
    number = submit_as_stranger(system, name, held=False)
    wait_until(lambda: has_failed(system, number), seconds=PATIENCE, what="failed", details=lambda: listing(system))


def test_jobs_of_one_name_belong_to_their_users(
    new_slurm: NewSlurm, sge_cell: GridEngineCell, new_user: NewUser
) -> None:
    """A stranger's failed array of our name is not our end; what a stranger calls as we would is never cancelled."""
    systems: tuple[System, ...] = (new_slurm("m", auth="munge"), sge_cell)
    user = new_user(*systems)
    go = user.directory / "go"
    waiting = ("sh", "-c", f"until [ -e {go} ]; do sleep 0.2; done")
    job = user.submit(user.job_file(*(part(system.name, 2, *waiting) for system in systems), name="ours"))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    unused: list[str] = []
    for system in systems:
        (name,) = set(placeholders(system))
        unused.append(re.sub(r"\d+$", "99", name))
        submit_as_stranger(system, name, held=True)
        submit_as_stranger(system, unused[-1], held=True)
        is_shown_as_failed(system, name)
    let_polls_pass(user, systems)
    assert user.report(job).state is JobState.RUNNING
    reaped = user.run("reap", "--all", "--yes", "--json")
    assert (reaped.code, reaped.json["found"]) == (0, [])
    go.touch()
    assert user.wait_over(job).state is JobState.COMPLETED
    for system, name in zip(systems, unused, strict=True):
        assert jobs_named(system, name) == [name] * 2


def test_what_stands_in_the_way_of_words_keeps_nobody(
    new_slurm: NewSlurm, sge_cell: GridEngineCell, new_user: NewUser, tmp_path: Path
) -> None:
    """Where all can write, a stranger's pipes and links of the names that will be used neither stop a job nor lead it.

    Names can be guessed: instance and number of the submission are public.
    """
    systems: tuple[System, ...] = (new_slurm("m"), sge_cell)
    shared, target = tmp_path / "shared", tmp_path / "target"
    target.mkdir()
    shared.mkdir()
    shared.chmod(0o777)
    user = new_user(*systems, clusters={system.name: {"output_directory": str(shared)} for system in systems})
    for number in range(1, 5):
        for index in range(1, 3):
            word = f"{user.prefix}{number}.{index}"
            os.mkfifo(shared / f"{word}.out", mode=0o666)
            (shared / word).symlink_to(target / word if index == 1 else target)
    waiting = user.job_file(*(part(system.name, 2, "sleep", "600") for system in systems), name="waiting")
    job = user.submit(waiting)
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    assert user.run("cancel", job).code == 0
    assert user.wait_over(job).state is JobState.CANCELLED
    assert list(target.iterdir()) == []
