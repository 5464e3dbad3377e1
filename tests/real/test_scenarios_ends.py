# SPDX-License-Identifier: Apache-2.0
"""Jobs end: by themselves, on one of several systems, or cancelled."""

from __future__ import annotations

import hashlib
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from koala_adapter.errors import EXIT_CANCELLED, EXIT_WALLTIME
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobOutcome, JobState
from tests.real.leftovers import Traces
from tests.real.lrms import LOCAL, jobs_named, local_job, placeholders
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part

if TYPE_CHECKING:
    from tests.real.conftest import NewUser
    from tests.real.lrms import System
    from tests.real.systems import GridEngineCell, SlurmCluster
    from tests.real.user import KoalaUser


# -- How processes can end, and what the user is told; what they write, read and are given.


LARGE = 10 * 1024 * 1024
WAIT = ("sleep", "600")
"""What the ranks do that must be ended because another one has failed."""


def end_of(user: KoalaUser, *parts: str, **header: Any) -> tuple[str, JobOutcome]:  # noqa: ANN401
    """Run a job as a user does, from its file to its end; return its id and outcome, and insist on its exit code."""
    done = user.run("run", "--json", str(user.job_file(*parts, **header)))
    report = done.json
    outcome = user.report(report["id"]).outcome
    assert outcome is not None
    assert done.code == outcome.exit_code == report["outcome"]["exit_code"]
    return report["id"], outcome


@pytest.mark.real("slurmctld", "slurmd")
def test_a_component_that_exits_3(new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster) -> None:
    """`koala run` exits with 3 and names the component; the other one is ended."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    good = part("a", 2, *WAIT, name="good", environment=traces.mark)
    bad = part("b", 2, "sh", "-c", "echo failing >&2; exit 3", name="bad", environment=traces.mark)
    job, outcome = end_of(user, good, bad)
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, EndReason.EXITED, 3)
    assert (outcome.component, outcome.rank in {2, 3}) == ("bad", True)
    assert user.output_of(job, "bad", outcome.rank - 2, "err") == b"failing\n" if outcome.rank else False
    traces.expect_none()


@pytest.mark.real("slurmctld", "slurmd")
@pytest.mark.real("sge_qmaster")
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.nightly)])
def test_a_rank_killed_by_a_signal(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, number: signal.Signals
) -> None:
    """The signal is told, and the exit code is that of a shell, on Slurm and Grid Engine alike."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    for victim, other in (("a", "c"), ("c", "a")):
        script = f"[ $KOALA_COMPONENT_RANK = 1 ] && kill -{int(number)} $$; exec sleep 600"
        bad = part(victim, 2, "sh", "-c", script, name="bad", environment=traces.mark)
        _, outcome = end_of(user, part(other, 1, *WAIT, environment=traces.mark), bad)
        assert (outcome.state, outcome.reason) == (JobState.FAILED, EndReason.SIGNALLED)
        assert (outcome.exit_code, outcome.component, outcome.rank) == (128 + number, "bad", 2)
        assert str(int(number)) in outcome.detail or number.name in outcome.detail
    traces.expect_none()


@pytest.mark.real("slurmctld", "slurmd")
def test_what_cannot_be_started_is_told(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """No such command, no such directory, no permission: 127 or 126 as in a shell, and the reason in words."""
    user = new_user(slurm_a)
    traces = Traces(user)
    _, outcome = end_of(user, part("a", 1, "no-such-command-anywhere"))
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, EndReason.LAUNCH_FAILED, 127)
    assert "no-such-command-anywhere: command not found" in outcome.detail
    _, outcome = end_of(user, part("a", 1, "true"), working_directory="/no/such/directory")
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, EndReason.LAUNCH_FAILED, 126)
    assert "working directory /no/such/directory does not exist" in outcome.detail
    _, outcome = end_of(user, part("a", 1, "/etc/hostname"))
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, EndReason.LAUNCH_FAILED, 126)
    traces.expect_none()


@pytest.mark.real("slurmctld", "slurmd")
@pytest.mark.real("sge_qmaster")
def test_the_walltime_ends_a_job(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """After 3 s, on the clock of the job and not of its placeholders, with the documented exit code."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    script = "echo before; sleep 600; echo after"
    parts = [part(name, 1, "sh", "-c", script, environment=traces.mark) for name in "ac"]
    job, outcome = end_of(user, *parts, walltime=3)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, EndReason.WALLTIME)
    assert outcome.exit_code == EXIT_WALLTIME
    assert {user.output_of(job, name, 0) for name in ("c1", "c2")} <= {b"", b"before\n"}  # if it was so slow
    traces.expect_none()


@pytest.mark.real("slurmctld", "slurmd")
@pytest.mark.real("sge_qmaster")
def test_large_and_binary_output_arrives(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """10 MB on each stream of each rank, of all byte values, arrive as they were written."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    script = (
        f"import hashlib, os, sys; data = os.urandom({LARGE})\n"
        "sys.stdout.buffer.write(data); sys.stderr.buffer.write(data[::-1])\n"
        "print(hashlib.sha256(data).hexdigest(), file=open(os.environ['SUMS'] + os.environ['KOALA_RANK'], 'w'))"
    )
    environment = {**traces.mark, "SUMS": str(user.directory / "sum")}
    parts = [part(name, 2, "/usr/bin/python3", "-c", script, environment=environment) for name in "ac"]
    job, outcome = end_of(user, *parts)
    assert outcome.exit_code == 0
    for rank in range(4):
        component = f"c{1 + rank // 2}"
        expected = (user.directory / f"sum{rank}").read_text().strip()
        for stream, order in (("out", 1), ("err", -1)):
            data = user.output_of(job, component, rank % 2, stream)
            assert len(data) == LARGE
            assert hashlib.sha256(data[::order]).hexdigest() == expected
    shown = user.run("logs", job, "--component", "c1", "--rank", "0")
    assert hashlib.sha256(user.output_of(job, "c1", 0)).digest() == hashlib.sha256(shown.stdout).digest()
    traces.expect_none()


# -- `koala cancel` takes everything of a job out of all batch systems, in little more time than these need themselves.


OUR_SHARE = 5.0
"""Seconds that koala may add to what the batch systems need."""


def own_time(system: System, processors: int) -> float:
    """Return how long a batch system itself takes to end a bare array of this size, until its listing is empty."""
    with local_job(system, processors):
        pass
    began = time.monotonic()
    wait_until(lambda: not jobs_named(system, LOCAL), seconds=PATIENCE, what="end of a bare array")
    return time.monotonic() - began


def time_to_cancel(user: KoalaUser, job: str) -> float:
    """Cancel a job as a user does; return the seconds until no batch system lists any of it."""
    began = time.monotonic()
    command = user.start("cancel", job)
    wait_until(
        lambda: not any(placeholders(system) for system in user.systems.values()),
        seconds=PATIENCE,
        what="placeholders gone",
        details=user.details,
    )
    took = time.monotonic() - began
    stdout, stderr = command.communicate(timeout=PATIENCE)
    assert command.returncode == 0, stderr
    assert b"cancelled" in stdout
    return took


def expect_cancelled(user: KoalaUser, job: str) -> None:
    """Insist on the outcome that a cancelled job has."""
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.state, report.outcome.exit_code) == (JobState.CANCELLED, EXIT_CANCELLED)


@pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")
@pytest.mark.parametrize(
    "in_time", [pytest.param(False, id="in the end"), pytest.param(True, id="in time", marks=pytest.mark.nightly)]
)
def test_cancelled_while_waiting_and_while_running(
    new_user: NewUser,
    slurm_a: SlurmCluster,
    slurm_b: SlurmCluster,
    sge_cell: GridEngineCell,
    *,
    in_time: bool,
) -> None:
    """Held, queued and launched placeholders are gone; on an idle machine within 5 s plus the systems' own time."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    traces = Traces(user)
    systems = (slurm_a, slurm_b, sge_cell)
    bound = OUR_SHARE + max(own_time(system, 4) for system in systems) if in_time else 2 * PATIENCE
    file = user.job_file(*(part(name, 4, "sleep", "600", environment=traces.mark) for name in "abc"), walltime=600)
    with local_job(sge_cell, sge_cell.slots):
        job = user.submit(file)
        user.wait_held(job, 8)
        waiting = time_to_cancel(user, job)
        expect_cancelled(user, job)
    wait_until(lambda: not jobs_named(sge_cell, LOCAL), seconds=PATIENCE, what="end of the local job")
    job = user.submit(file)
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    running = time_to_cancel(user, job)
    expect_cancelled(user, job)
    assert waiting <= bound, f"waiting: {waiting:.1f} s, bound {bound:.1f} s"
    assert running <= bound, f"running: {running:.1f} s, bound {bound:.1f} s"
    traces.expect_none()


@pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")
def test_processes_that_will_not_end_are_ended(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Neither ignoring SIGTERM nor a session of its own keeps a process, or a child of it, alive."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    stubborn = "trap '' TERM HUP INT; setsid sh -c \"trap '' TERM HUP; sleep 600\" & sleep 600"
    parts = [part(name, 2, "sh", "-c", stubborn, environment=traces.mark) for name in "ac"]
    job = user.submit(user.job_file(*parts, walltime=600))
    user.wait(job, lambda report: report.state is JobState.RUNNING, what="runs")
    assert user.run("cancel", job).code == 0
    expect_cancelled(user, job)
    traces.expect_none()


@pytest.mark.real("slurmctld", "slurmd", "sge_qmaster")
def test_cancelled_while_the_submission_is_under_way(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """A job cancelled at once, again and again, leaves nothing, whatever had been submitted of it by then."""
    user = new_user(slurm_a)
    traces = Traces(user)
    file = user.job_file(part("a", 2, "sleep", "600", environment=traces.mark), walltime=600)
    for _ in range(2):
        job = user.submit(file)
        user.run("cancel", "--no-wait", job)
        expect_cancelled(user, job)
    traces.expect_none(but_words=True)
