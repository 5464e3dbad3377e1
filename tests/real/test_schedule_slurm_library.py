# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` that reads and starts the jobs of a real Slurm by pyslurm; its helper, or itself, is killed.

Skipped where pyslurm of the release under test is not installed (with KOALA_TEST_SLURM another Slurm is tested).
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.scheduling import Scheduling
from tests.real.systems import SlurmCluster
from tests.real.systems.requirements import missing_for_slurm, require
from tests.real.test_schedule_slurm import SITE_PIECE, submit, unfinished
from tests.real.test_slurm_library import releases

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real, pytest.mark.never_required]

BY_LIBRARY = "by pyslurm: for Slurm "
GIVEN_UP = "pyslurm is not used"
HELPER = "library_helper.py"


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    """Run two nodes of four processors whose jobs come in held."""
    require(missing_for_slurm(lua=True))
    cluster = SlurmCluster("bylib", nodes=2, cpus=4, settings={"JobSubmitPlugins": "lua"})
    (cluster.directory / SITE_PIECE.name).write_text(SITE_PIECE.read_text())
    with cluster:
        yield cluster


def require_library(cluster: SlurmCluster) -> None:
    """Skip the test where pyslurm does not have the release of a cluster."""
    found, installed = releases(cluster)
    require([] if installed == found else [f"pyslurm of Slurm {found}"])


def helpers(scheduling: Scheduling) -> set[int]:
    """Return the processes of pyslurm that a scheduler has started and that have not ended."""
    log = str(scheduling.user.state)
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            number = int(entry.name)
            words = (entry / "cmdline").read_bytes().split(b"\0")
            written = str((entry / "fd" / "2").readlink())
            if any(word.endswith(HELPER.encode()) for word in words) and written.startswith(log):
                found.add(number)
    return found


def is_said(scheduling: Scheduling, text: str) -> bool:
    """Tell whether the scheduler has logged something."""
    return any(text in line for line in scheduling.said())


def kill(scheduling: Scheduling) -> set[int]:
    """Kill the helpers that there are, and return them."""
    found = helpers(scheduling)
    for helper in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(helper, signal.SIGKILL)
    return found


def test_helper_that_is_killed_again_and_again(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A new one goes on where it was killed once; after three deaths in a row commands do; all jobs run once."""
    require_library(cluster)
    scheduling = Scheduling(tmp_path, cluster)
    first = submit(scheduling, "first", 8, until_told=True)
    with scheduling:
        scheduling.wait(lambda: first in scheduling.told("started"), what="the cluster is full")
        assert is_said(scheduling, BY_LIBRARY)
        jobs = [submit(scheduling, f"j{number}", 1 + number, seconds=0.1) for number in range(4)]
        killed = kill(scheduling)
        assert len(killed) == 1
        scheduling.wait(lambda: bool(helpers(scheduling) - killed), what="another helper")
        scheduling.wait(lambda: set(jobs) <= set(scheduling.told("submitted")), what="all are seen")
        assert not is_said(scheduling, GIVEN_UP)

        def given_up() -> bool:
            kill(scheduling)
            return is_said(scheduling, GIVEN_UP)

        scheduling.wait(given_up, what="commands are used")
        scheduling.let_end("first")
        last = submit(scheduling, "last", 8, seconds=0.1)
        scheduling.wait(lambda: {*jobs, last} <= set(scheduling.told("ended")), what="all have run")
        assert helpers(scheduling) == set()
    assert all(found == ["run", "end"] for found in scheduling.traces().values())


def test_scheduler_that_is_killed(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Its helper ends by itself; started again it knows what runs and what waits, and each job runs once."""
    require_library(cluster)
    scheduling = Scheduling(tmp_path, cluster)
    with scheduling.ended():
        scheduling.start()
        first = submit(scheduling, "first", 5, until_told=True)
        scheduling.wait(lambda: first in scheduling.told("started"), what="it runs")
        jobs = [submit(scheduling, f"j{number}", 2, seconds=0.1) for number in range(6)]
        wide = submit(scheduling, "wide", 8, seconds=0.1)
        assert helpers(scheduling)
        scheduling.kill()
        scheduling.wait(lambda: not helpers(scheduling), what="no helper is left")
        scheduling.let_end("first")
        scheduling.start()
        scheduling.wait_runs({"first", "wide", *(f"j{number}" for number in range(6))})
        scheduling.wait(lambda: not unfinished(cluster), what="nothing left")
        scheduling.wait(lambda: {wide, *jobs} <= set(scheduling.told("ended")), what="the ends are seen")
        scheduling.stop()
    assert all(found == ["run", "end"] for found in scheduling.traces().values())
    assert sum(BY_LIBRARY in line for line in scheduling.said()) == 2


def test_library_of_another_release(cluster: SlurmCluster, tmp_path: Path) -> None:
    """Jobs are scheduled by commands, and the reason is logged."""
    found, installed = releases(cluster)
    require([] if installed not in {"", found} else [f"pyslurm of another release than Slurm {found}"])
    scheduling = Scheduling(tmp_path, cluster)
    job = submit(scheduling, "job", 8)
    with scheduling:
        scheduling.wait(lambda: job in scheduling.told("ended"), what="it has run")
        assert is_said(scheduling, f"pyslurm is for Slurm {installed}, and the controller runs {found}")
        assert helpers(scheduling) == set()
