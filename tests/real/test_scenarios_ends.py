# SPDX-License-Identifier: Apache-2.0
"""Jobs end: by themselves, on one of several systems, cancelled, ended from outside, and run again."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from koala_adapter.cli.display import SHORTEST_MEASURED
from koala_adapter.errors import EXIT_CANCELLED, EXIT_LOST, EXIT_WALLTIME
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport
from tests.real.conftest import NewUser
from tests.real.lrms import System, Traces, agents_directories, local_job, parent_of, placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import SeenProcess, find_processes
from tests.real.user import KoalaUser, part

# -- How processes can end, and what the user is told.


LONG = ("sleep", "600")
"""What ranks do that must be ended."""


def test_how_a_process_ends_is_told(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """`koala run` exits as the process, or as a shell does after a signal, and names it; all others are ended."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    for victim, other, end, reason, code in (
        ("a", "c", "echo failing >&2; exit 3", EndReason.EXITED, 3),
        ("c", "a", "kill -9 $$", EndReason.SIGNALLED, 128 + signal.SIGKILL),
    ):
        script = f"[ $KOALA_COMPONENT_RANK = 0 ] || {{ {end}; }}; exec sleep 600"
        bad = part(victim, 2, "sh", "-c", script, name="bad", environment=traces.mark)
        job, outcome = user.end_of(part(other, 1, *LONG, environment=traces.mark), bad)
        assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.FAILED, reason, code)
        assert (outcome.component, outcome.rank) == ("bad", 2)
        assert user.output_of(job, "bad", 1, "err") == (b"failing\n" if code == 3 else b"")
    assert "9" in outcome.detail
    traces.expect_none()


def test_what_cannot_be_started_is_told(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """No such command, no such directory: 127 or 126 as in a shell, and the reason, also though mpiexec goes on."""
    user = new_user(slurm_a)
    traces = Traces(user)
    nowhere = {"working_directory": "/no/such/directory"}
    for launcher, command, header, code, told in (
        ("process", "no-such-command-anywhere", {}, 127, "no-such-command-anywhere: command not found"),
        ("process", "true", nowhere, 126, "working directory /no/such/directory does not exist"),
        ("mpi", "no-such-command-anywhere", {}, 127, ""),
        ("mpi", "true", nowhere, 126, "/no/such/directory"),
    ):
        _, outcome = user.end_of(part("a", 2, command, environment=traces.mark), launcher=launcher, **header)
        assert (outcome.state, outcome.exit_code) == (JobState.FAILED, code)
        assert told in outcome.detail
    traces.expect_none()


def test_the_walltime_ends_a_job(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """After 3 s, on the clock of the job and not of its placeholders, with the documented exit code."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    script = "echo before; sleep 600; echo after"
    parts = [part(name, 1, "sh", "-c", script, environment=traces.mark) for name in "ac"]
    job, outcome = user.end_of(*parts, walltime=3)
    assert (outcome.state, outcome.reason) == (JobState.FAILED, EndReason.WALLTIME)
    assert outcome.exit_code == EXIT_WALLTIME
    assert {user.output_of(job, name, 0) for name in ("c1", "c2")} <= {b"", b"before\n"}  # if it was so slow
    traces.expect_none()


def test_cancelled_at_once_while_waiting_and_while_running(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Placeholders that are submitted, held, queued or launched are gone, and so are processes that will not end.

    Neither ignoring SIGTERM nor a session of its own keeps a process, or a child of it, alive.
    """
    user = new_user(slurm_a, slurm_b, sge_cell)
    traces = Traces(user)
    stubborn = "trap '' TERM HUP INT; setsid sh -c \"trap '' TERM HUP; sleep 600\" & sleep 600"
    file = user.job_file(*(part(name, 4, "sh", "-c", stubborn, environment=traces.mark) for name in "abc"))

    def cancel(job: str, *options: str) -> None:
        assert user.run("cancel", *options, job).code == 0
        outcome = user.wait_outcome(job)
        assert (outcome.state, outcome.exit_code) == (JobState.CANCELLED, EXIT_CANCELLED)
        assert not any(placeholders(system) for system in user.systems.values())

    with local_job(sge_cell, sge_cell.slots):
        for _ in range(2):
            cancel(user.submit(file), "--no-wait")
        job = user.submit(file)
        user.wait_held(job, 8)
        cancel(job)
    job = user.submit(file)
    user.wait_running(job)
    cancel(job)
    traces.expect_none(but_words=True)


# -- Placeholders that are ended from outside while the job runs: the user learns the true reason, and nothing stays.


def running(user: KoalaUser, traces: Traces, *parts: str, launcher: str = "process") -> JobReport:
    """Submit a job and return its report once all its ranks run."""
    job = user.submit(user.job_file(*parts, launcher=launcher))
    report = user.wait_running(job)
    traces.note_running()
    return report


def agent(system: System, index: int) -> SeenProcess:
    """Return the agent in the placeholder that is element ``index`` of its array."""

    def belongs(process: SeenProcess) -> bool:
        told = {process.environment.get(name) for name in ("SLURM_ARRAY_TASK_ID", "SGE_TASK_ID")}
        return process.uses(system.directory) and str(index) in told and process.command.startswith("python")

    # What it started has its environment, or is below it.
    found = find_processes(belongs)
    (seen,) = [SeenProcess.read(pid) for pid in found if parent_of(pid) not in found]
    assert seen is not None
    return seen


@pytest.mark.parametrize("victim", ["a", "c"], ids=["scancel", "qdel"])
def test_a_placeholder_that_is_cancelled_ends_the_job(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, victim: str
) -> None:
    """The user is told that the job was cancelled, and where; the placeholders of both clusters are ended.

    Grid Engine kills the agent without warning: the job is lost unless it is seen to delete the placeholder.
    """
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    report = running(user, traces, *(part(name, 2, *LONG, environment=traces.mark) for name in "ac"))
    ends = {EndReason.CANCELLED: (JobState.CANCELLED, EXIT_CANCELLED)}
    if victim == "a":
        slurm_a.run("scancel", report.components[0].lrm_ids[1])
    else:
        number, _, task = report.components[1].lrm_ids[1].partition(".")
        sge_cell.run("qdel", number, "-t", task)
        ends[EndReason.LOST] = (JobState.LOST, EXIT_LOST)
    outcome = user.wait_outcome(report.id)
    assert (outcome.state, outcome.exit_code) == ends[outcome.reason]
    assert f"on {victim}, " in outcome.detail
    traces.expect_none()


@pytest.mark.nightly  # Slurm looks for jobs beyond their limit once a minute
def test_time_limit_that_slurm_enforces_is_a_walltime(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """An operator cuts the limit short: the agent only gets SIGTERM, Slurm knows it for TIMEOUT."""
    user = new_user(slurm_a)
    traces = Traces(user)
    report = running(user, traces, part("a", 2, *LONG, environment=traces.mark))
    (first, _) = report.components[0].lrm_ids
    slurm_a.run("scontrol", "update", f"jobid={first}", "TimeLimit=1")
    outcome = user.wait_outcome(report.id)
    assert (outcome.state, outcome.exit_code, outcome.reason) == (JobState.FAILED, EXIT_WALLTIME, EndReason.WALLTIME)
    assert user.run("status", report.id, "--json").json["outcome"]["exit_code"] == EXIT_WALLTIME
    traces.expect_none()


@pytest.mark.parametrize("victim", ["a", "c"], ids=["Slurm", "Grid Engine"])
def test_a_killed_agent_loses_the_job(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, victim: str
) -> None:
    """SIGKILL of one agent, which can say nothing any more: its rank does not outlive it, and all others are ended."""
    user = new_user(slurm_a, sge_cell)
    traces = Traces(user)
    report = running(user, traces, *(part(name, 2, *LONG, environment=traces.mark) for name in "ac"))
    os.kill(agent(slurm_a if victim == "a" else sge_cell, 2).pid, signal.SIGKILL)
    outcome = user.wait_outcome(report.id)
    assert (outcome.state, outcome.exit_code) == (JobState.LOST, EXIT_LOST)
    assert f"on {victim}, " in outcome.detail
    if victim == "a":
        assert "its agent was killed by signal 9" in outcome.detail
    traces.expect_none()


def test_a_killed_agent_ends_an_mpi_world(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, allreduce: Path
) -> None:
    """The user is told of the agent, not of mpiexec, which fails for its sake; proxies and ranks are ended."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    parts = [part(name, 2, str(allreduce), "/no/such/file", environment=traces.mark) for name in "ab"]
    report = running(user, traces, *parts, launcher="mpi")
    os.kill(agent(slurm_b, 2).pid, signal.SIGKILL)
    outcome = user.wait_outcome(report.id)
    assert (outcome.state, outcome.exit_code) == (JobState.LOST, EXIT_LOST)
    assert "rank 3" in outcome.detail
    assert "its agent was killed by signal 9" in outcome.detail
    traces.expect_none()


def test_a_lost_node_loses_the_job(new_user: NewUser, started: ExitStack, slurm_a: SlurmCluster) -> None:
    """Whether a whole node dies or slurmd alone, while the ranks go on: Slurm gives it up, and so does the job."""
    dead, deaf = (started.enter_context(SlurmCluster(name, nodes=1, cpus=2)) for name in ("dead", "deaf"))
    user = new_user(slurm_a, dead, deaf)
    traces = Traces(user)
    jobs = {}
    for system in (dead, deaf):
        parts = [part(name, 2, *LONG, environment=traces.mark) for name in ("a", system.name)]
        jobs[system.name] = running(user, traces, *parts).id
    disk = agents_directories(dead) | {Path(f"/proc/{agent(dead, index).pid}/fd/2").readlink() for index in (1, 2)}
    dead.kill_node("n1")
    deaf.kill_node("n1", with_jobs=False)
    for system in (dead, deaf):
        system.give_up("n1")
    for name, job in jobs.items():
        outcome = user.wait_outcome(job)
        assert (outcome.state, outcome.reason) == (JobState.LOST, EndReason.NODE_LOST)
        assert outcome.exit_code == EXIT_LOST
        assert f"on {name}, host " in outcome.detail
    for path in disk:  # nobody could tidy up there
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    traces.expect_none()


# -- Jobs that run again on real batch systems: after the loss of a node, and from the state that they have saved.

WAITS_ONCE = 'echo "attempt $KOALA_ATTEMPT"; [ "$KOALA_ATTEMPT" = 2 ] || sleep 600'

COUNTS = """
import os, signal, sys, time

def save(*_):
    open("state", "w").write(str(step))
    sys.exit(75)

signal.signal(signal.SIGUSR1, save)
step = int(open("state").read()) if os.path.exists("state") else 0
print(f"attempt {os.environ['KOALA_ATTEMPT']} on {os.environ['KOALA_CLUSTER']} from {step}", flush=True)
while step < 200:
    time.sleep(0.1)
    step += 1
print(f"finished at {step}")
"""
"""Needs twenty seconds, of which it gets eight in one attempt."""


def test_a_job_runs_again_when_its_node_has_died(new_user: NewUser, started: ExitStack) -> None:
    """SIGKILL of the slurmd and of all that runs there; the next attempt is on another node."""
    cluster = started.enter_context(SlurmCluster("mortal", nodes=2))
    user = new_user(cluster)
    job = user.submit(user.job_file(part("mortal", 1, "sh", "-c", WAITS_ONCE), retries=1))
    first = user.wait_running(job)
    (node,) = cluster.squeue(f"--jobs={first.components[0].lrm_ids[0]}", form="%N")[0]
    cluster.kill_node(node)
    cluster.give_up(node)
    report = user.wait_completed(job)
    (attempt,) = report.attempts
    assert attempt.outcome.state is JobState.LOST
    assert user.run("logs", job).stdout == b"attempt 2\n"
    assert user.run("logs", job, "--attempt", "1").stdout == b"attempt 1\n"


def test_a_job_goes_on_over_three_walltimes_and_two_clusters(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster
) -> None:
    """Each attempt begins where the one before has saved its state; what is drained meanwhile is not used."""
    user = new_user(slurm_a, slurm_b)
    shared = user.directory / "shared"
    shared.mkdir()
    program = shared / "counts.py"
    program.write_text(COUNTS)
    file = user.job_file(
        part(None, 1, sys.executable, str(program)),
        walltime=12,
        working_directory=str(shared),
        checkpoint_signal="USR1",
        warn_before=4,
        requeue_on_walltime=True,
    )
    job = user.submit(file)
    report = user.wait(job, lambda one: one.state is JobState.RUNNING, what="runs")
    first = report.components[0].cluster
    system = slurm_a if first == slurm_a.name else slurm_b
    system.run("scontrol", "update", "NodeName=ALL", "State=DRAIN", "Reason=test")
    try:
        report = user.wait_over(job)
    finally:
        system.return_to_use()
    assert report.state is JobState.COMPLETED, report.explanation
    assert {one.outcome.exit_code for one in report.attempts} == {75}
    assert {one.outcome.reason for one in report.attempts} == {EndReason.EXITED}
    ran_on = [*(one.clusters[0] for one in report.attempts), report.components[0].cluster]
    assert len(ran_on) >= 3
    assert (ran_on[0], set(ran_on[1:])) == (first, {"a", "b"} - {first})
    assert b"finished at 200" in user.run("logs", job).stdout


# -- What ranks have used, compared with what GNU time says of the same processes.

BURN = f"""\
import time
end = time.monotonic() + {SHORTEST_MEASURED + 0.5}
kept = bytearray(200 * 2**20)
while time.process_time() < 1.5:
    pass
time.sleep(max(0.0, end - time.monotonic()))
"""
"""A status has a line on what was used only of a job that has run so long."""
COMMAND = ("/usr/bin/time", "-f", "%U %S %M", "sh", "-c", 'python3 -c "$0"; true', BURN)
"""Time and memory are used by a child of a shell."""
LOCAL_TABLE = """
[[clusters]]
name = "l"
plugin = "local"
settings = { processors = 2, idle_seconds = 5 }
"""


@pytest.mark.real("/usr/bin/time")
def test_a_rank_has_used_what_gnu_time_says(new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """On Slurm, Grid Engine and locally; the job has used what its ranks have, of what it held."""
    user = new_user(slurm_a, sge_cell, serve=False)
    user.site.write_text(user.site.read_text() + LOCAL_TABLE)
    user.serve()
    clusters = (slurm_a.name, sge_cell.name, "l")
    report = user.wait_completed(user.submit(user.job_file(*(part(name, 1, *COMMAND, name=name) for name in clusters))))
    usage = report.usage
    assert usage is not None
    assert {one.component: one.rank for one in usage.by_rank} == {name: rank for rank, name in enumerate(clusters)}
    for one in usage.by_rank:
        *times, kib = map(float, user.output_of(report.id, one.component, 0, "err").split())
        assert one.used.processor_seconds == pytest.approx(sum(times), rel=0.1)
        assert one.used.memory_bytes == pytest.approx(kib * 1024, rel=0.1)
    assert usage.used_seconds == pytest.approx(sum(one.used.processor_seconds for one in usage.by_rank))
    assert usage.used_seconds <= usage.held_seconds
    # Processors are held until they have been given back.
    (share,) = re.findall(r"used (\d+) % of the processors it held", user.run("status", report.id).text)
    later = user.report(report.id).usage
    assert later is not None
    assert round(100 * later.share) <= int(share) <= round(100 * usage.share)
