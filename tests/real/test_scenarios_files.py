# SPDX-License-Identifier: Apache-2.0
"""What ranks are given and what they write; and how they end under MPI when they cannot even start."""

from __future__ import annotations

import hashlib
import stat
from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.config.jobfile import LARGEST_SUM
from koala_adapter.errors import EXIT_CONFIGURATION
from koala_adapter.outcome import JobOutcome, JobState
from tests.real.leftovers import Traces
from tests.real.systems.directories import SystemDirectory
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part, runs_with_known_ids

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser

pytestmark = [pytest.mark.real("slurmctld", "slurmd")]


def end_of(user: KoalaUser, *parts: str, **header: Any) -> tuple[str, JobOutcome]:  # noqa: ANN401
    """Run a job as a user does, from its file to its end; return its id and outcome, and insist on its exit code."""
    done = user.run("run", "--json", str(user.job_file(*parts, **header)))
    report = done.json
    outcome = user.report(report["id"]).outcome
    assert outcome is not None
    assert done.code == outcome.exit_code == report["outcome"]["exit_code"]
    return report["id"], outcome


@pytest.mark.real("mpiexec.hydra")
def test_an_mpi_program_that_cannot_be_started_is_told(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """The exit code and the reason of the shell that starts each rank reach the user, also though mpiexec goes on."""
    user = new_user(slurm_a)
    traces = Traces(user)
    _, outcome = end_of(user, part("a", 2, "no-such-command-anywhere", environment=traces.mark), launcher="mpi")
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 127)
    _, outcome = end_of(
        user, part("a", 2, "true", environment=traces.mark), launcher="mpi", working_directory="/no/such/directory"
    )
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 126)
    assert "/no/such/directory" in outcome.detail
    traces.expect_none()


def test_logs_prints_what_was_written(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """One rank's output comes out of `koala logs` byte for byte, with or without an end of line; several are marked."""
    user = new_user(slurm_a)
    traces = Traces(user)
    data = bytes(range(256)) * 1000
    (user.directory / "data").write_bytes(data)
    script = "cat data; echo word >&2"
    job, outcome = end_of(user, part("a", 2, "sh", "-c", script, input_files=["data"], environment=traces.mark))
    assert outcome.exit_code == 0
    assert user.run("logs", job, "--component", "c1", "--rank", "0").stdout == data
    assert user.run("logs", job, "--stderr").stdout == b"c1/0: word\nc1/1: word\n"
    traces.expect_none()


@pytest.mark.real("sge_qmaster")
def test_input_files_and_environment_reach_the_ranks(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """As they were when the job was submitted, at their paths, with their modes; nothing of the LRM's steps leaks."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    (user.directory / "data.bin").write_bytes(bytes(range(256)) * 1000)
    (user.directory / "run.sh").write_text('#!/bin/sh\nsha256sum <in/data.bin; echo "$GREETING $KOALA_RANK"; env\n')
    (user.directory / "run.sh").chmod(0o755)
    files = ["run.sh", {"source": "data.bin", "target": "in/data.bin"}]
    environment = {**traces.mark, "GREETING": "grüß dich"}
    parts = [part(name, 1, "./run.sh", input_files=files, environment=environment) for name in "ac"]
    job, outcome = end_of(user, *parts)
    assert outcome.exit_code == 0, user.output_of(job, outcome.component or "c1", 0, "err")
    expected = hashlib.sha256(bytes(range(256)) * 1000).hexdigest()
    for rank, component in enumerate(("c1", "c2")):
        first, second, *rest = user.output_of(job, component, 0).decode().splitlines()
        assert (first.split()[0], second) == (expected, f"grüß dich {rank}")
        assert [line for line in rest if line.startswith(("SLURM", "SGE_", "PMI", "JOB_ID", "PE_HOSTFILE"))] == []
    traces.expect_none()


def test_input_files_beyond_the_channel_are_refused(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """Just as much as is allowed arrives; a byte more is refused before anything is submitted."""
    user = new_user(slurm_a)
    traces = Traces(user)
    sizes = {"large": LARGEST_SUM, "larger": LARGEST_SUM + 1}
    for name, size in sizes.items():
        with (user.directory / name).open("wb") as file:
            file.truncate(size)
    job, outcome = end_of(user, part("a", 2, "wc", "-c", "large", input_files=["large"], environment=traces.mark))
    assert outcome.exit_code == 0
    assert user.output_of(job, "c1", 1) == b"%d large\n" % LARGEST_SUM
    done = user.run("run", str(user.job_file(part("a", 1, "true", input_files=["larger"]))))
    assert done.code == EXIT_CONFIGURATION
    assert "allowed are 20 MiB" in done.stderr
    traces.expect_none()


def test_a_token_can_travel_in_a_file(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """With a shared directory the job script holds no secret; the file does, for its owner alone, until all is over."""
    place = SystemDirectory.create("tokens")
    try:
        tokens = place.path / "tokens"
        user = new_user(slurm_a, clusters={"a": {"token_directory": str(tokens)}})
        traces = Traces(user)
        job = user.submit(user.job_file(part("a", 2, "sleep", "600", environment=traces.mark)))
        report = user.wait(job, runs_with_known_ids, what="runs")
        (file,) = tokens.iterdir()
        assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(tokens.stat().st_mode)) == (0o600, 0o700)
        script = slurm_a.run("scontrol", "write", "batch_script", report.components[0].lrm_ids[0], "-")
        assert str(file) in script
        assert file.read_text() not in script
        assert user.run("cancel", job).code == 0
        wait_until(lambda: not list(tokens.iterdir()), seconds=PATIENCE, what="no token left")
        traces.expect_none()
    finally:
        place.remove()
