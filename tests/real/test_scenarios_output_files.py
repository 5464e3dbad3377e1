# SPDX-License-Identifier: Apache-2.0
"""What ranks write into files reaches the user, however they end and whatever becomes of the service meanwhile."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import EXIT_CANCELLED, EXIT_WALLTIME
from koala_adapter.outcome import JobState
from tests.real.leftovers import Traces
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from pathlib import Path

    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")]

MIB = 1024 * 1024
LARGE = 3 * MIB
LONG_UNDER_WAY = 15 * MIB
"""Of each of four ranks: enough for the service to be killed twice before all is there."""


def writing(large: int = LARGE) -> str:
    """Return the piece of shell with which a rank leaves four files, one of them large."""
    return f"""\
mkdir -p logs; echo "rank $KOALA_RANK" >result-$KOALA_RANK; echo log >logs/$KOALA_RANK.txt; echo x >scratch
python3 -c 'import hashlib, os
block = hashlib.sha512(os.environ["KOALA_RANK"].encode()).digest() * 1024
open("large.bin", "wb").writelines(block for _ in range({large} // len(block)))'
"""


WANTED = ["result-*", "logs", "*.bin"]


def results(user: KoalaUser, job: str, component: str, rank: int) -> dict[str, str]:
    """Return the files of a rank that are there: their texts, and the digest of the large one."""
    directory = user.state / "jobs" / job / component / str(rank)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): shown(path) for path in files}


def shown(path: Path) -> str:
    """Return a text, or the digest of what is too large for one."""
    data = path.read_bytes()
    return data.decode() if len(data) < MIB else hashlib.sha256(data).hexdigest()


def expected(rank: int, large: int = LARGE) -> dict[str, str]:
    """Return what a rank must have left that wrote as ``writing`` says."""
    block = hashlib.sha512(str(rank).encode()).digest() * 1024
    digest = hashlib.sha256(block * (large // len(block))).hexdigest()
    return {"large.bin": digest, f"logs/{rank}.txt": "log\n", f"result-{rank}": f"rank {rank}\n"}


def two_of_each(traces: Traces, text: str) -> list[str]:
    """Return two ranks on the Slurm cluster and two on the Grid Engine cell that run a piece of shell."""
    return [part(name, 2, "sh", "-c", text, output_files=WANTED, environment=traces.mark) for name in "ac"]


@pytest.mark.parametrize("launcher", ["process", pytest.param("mpi", marks=pytest.mark.real("mpiexec.hydra"))])
def test_files_of_all_ranks_arrive(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, launcher: str
) -> None:
    """All are there, whole, when `koala run` returns, and it says where; nothing else is."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    done = user.run("run", str(user.job_file(*two_of_each(traces, writing()), launcher=launcher)))
    assert done.code == 0, done.stderr
    for rank in range(4):
        assert results(user, "1", f"c{1 + rank // 2}", rank % 2) == expected(rank)
    assert f"12 files of the ranks (12 MiB) in {user.state}/jobs/1/COMPONENT/RANK" in done.stderr
    assert "left in the ranks' directories" not in done.stderr
    files = user.run("status", "--json", "1").json["files"]
    assert (files["arrived"], files["refused"], files["left"], files["awaited"]) == (12, 0, 0, 0)
    traces.expect_none()


def test_files_of_failing_ranks_survive_a_killed_service(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """One rank fails, the others are ended for it, the service is killed while their files are on their way."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    written = user.directory / "written"
    written.mkdir()
    end = f"""touch {written}/$KOALA_RANK; [ "$KOALA_RANK" = 0 ] || exec sleep 600
while [ $(ls {written} | wc -l) -lt 4 ]; do sleep 0.2; done; exit 7"""
    job = user.submit(user.job_file(*two_of_each(traces, writing(LONG_UNDER_WAY) + end)))
    directory = user.state / "jobs" / job

    def size() -> int:
        return sum(path.stat().st_size for path in directory.glob("*/*/**/*") if path.is_file())

    def wait_for_size(least: int) -> None:
        wait_until(lambda: size() > least, seconds=PATIENCE, what="files arrive", details=user.details)

    for least in (MIB, 20 * MIB):  # long before all is there, unless this process hears of it late
        wait_for_size(least)
        user.kill()
        user.serve()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.FAILED, 7)
    assert (report.files.awaited, report.files.refused) == (0, 0), report.files
    for rank in range(4):
        assert results(user, job, f"c{1 + rank // 2}", rank % 2) == expected(rank, LONG_UNDER_WAY)
    assert not list(directory.glob("*/*.partial"))
    traces.expect_none()


def test_files_of_ranks_that_are_ended(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """At the walltime, after a cancellation, and killed by a signal: the same files are there."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    stay = writing() + "exec sleep 600"
    done = user.run("run", "--json", str(user.job_file(*two_of_each(traces, stay), walltime=30)))
    assert done.code == EXIT_WALLTIME
    assert done.json["files"]["arrived"] == 12
    job = user.submit(user.job_file(*two_of_each(traces, stay)))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    traces.note_running()
    wait_until(
        lambda: all(
            (path / "work" / "large.bin").exists() and (path / "work" / "large.bin").stat().st_size == LARGE
            for path in traces.directories
        ),
        seconds=PATIENCE,
        what="all has been written",
    )
    assert user.run("cancel", job).code == 0
    report = user.report(job)
    assert report.outcome is not None
    assert report.outcome.exit_code == EXIT_CANCELLED
    assert (report.files.arrived, report.files.awaited) == (12, 0)
    done = user.run("run", "--json", str(user.job_file(*two_of_each(traces, writing() + "sleep 1; kill -9 $$"))))
    assert done.code == 137
    assert done.json["files"]["arrived"] == 12
    for name in ("1", job, done.json["id"]):
        assert results(user, name, "c2", 1) == expected(3)
    traces.expect_none()


def test_what_was_left_is_named(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """Without output_files a user is told what is gone; what is too large is named with its size and the bound."""
    user = new_user(slurm_a, sge_cell, center={"output_files_per_rank_mib": 1})
    traces = Traces(user)
    (user.directory / "in.txt").write_text("in\n")
    text = "cat in.txt >result.txt"
    parts = [part(name, 1, "sh", "-c", text, input_files=["in.txt"], environment=traces.mark) for name in "ac"]
    done = user.run("run", str(user.job_file(*parts)))
    assert done.code == 0
    told = (
        "2 files were left in the ranks' directories and are gone: c1/0: result.txt, c2/0: result.txt; see output_files"
    )
    assert told in done.stderr
    assert told in user.run("status", "1").text
    text = "head -c 2000000 /dev/zero >large; echo small >small"
    done = user.run("run", str(user.job_file(part("a", 1, "sh", "-c", text, output_files=["*"]))))
    assert "1 file of the ranks did not come: c1/0: large: it has 1.907 MiB: a rank may leave 1 MiB" in done.stderr
    assert results(user, "2", "c1", 0) == {"small": "small\n"}
    traces.expect_none()
