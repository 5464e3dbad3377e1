# SPDX-License-Identifier: Apache-2.0
"""Many jobs, jobs of one name, and MPI jobs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

from koala_adapter.config.jobfile import load_job
from koala_adapter.model import EndReason, JobId
from koala_adapter.outcome import JobState
from tests.real.conftest import NewUser
from tests.real.lrms import System, Traces, jobs_named, listing, placeholders, submit_array
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import part, until

# -- More jobs than the clusters can hold: all finish, no threshold is exceeded, and the controllers are spared.


JOBS = 10
PROCESSORS = 4
THRESHOLD = 2
BOUND = 120
"""Requests per minute that the site allows."""
LOOKS = 0.4
"""Seconds between two looks of the observer."""

States: TypeAlias = "Counter[str]"


class Observer:
    """Looks at what Slurm itself shows, past koala and its bounds, as often as it can."""

    def __init__(self, *clusters: SlurmCluster) -> None:
        """Begin with nothing seen."""
        self._clusters = clusters
        self.seen: dict[str, list[States]] = {cluster.name: [] for cluster in clusters}
        """For each look the number of placeholders by state."""

    def look(self) -> None:
        """Look once at each cluster."""
        for cluster in self._clusters:
            rows = cluster.squeue("--states=PENDING,CONFIGURING,RUNNING,COMPLETING", form="%T|%j")
            self.seen[cluster.name].append(Counter(state for state, name in rows if name.startswith("koala-")))

    def most(self, cluster: str, *states: str) -> int:
        """Return the largest number of placeholders in these states together that were seen at once."""
        return max(sum(seen[state] for state in states) for seen in self.seen[cluster]) if self.seen[cluster] else 0


@contextmanager
def looking(look: Callable[[], None]) -> Iterator[None]:
    """Look again and again during the block; what goes wrong there fails the test."""
    done = threading.Event()
    troubles: list[Exception] = []

    def again() -> None:
        try:
            while not done.wait(LOOKS):
                look()
        except Exception as error:  # noqa: BLE001 - raised again where the test sees it
            troubles.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    if troubles:
        raise troubles[0]


def test_ten_jobs_share_what_holds_two(
    new_user: NewUser, started: ExitStack, record_property: Callable[[str, object], None]
) -> None:
    """All ten finish, two at a time; the threshold is kept at every moment, and so is the bound of requests."""
    free = started.enter_context(SlurmCluster("free", nodes=1, cpus=PROCESSORS))
    kept = started.enter_context(SlurmCluster("kept", nodes=1, cpus=PROCESSORS + THRESHOLD))
    limits = {"requests_per_minute": BOUND, "poll_interval": 1.25}
    user = new_user(free, kept, clusters={"free": limits, "kept": {**limits, "threshold": THRESHOLD}})
    traces = Traces(user)
    go = user.directory / "go"
    command = ("sh", "-c", f"echo $KOALA_RANK of $KOALA_SIZE; until [ -e {go} ]; do sleep 0.2; done")
    parts = [part(name, 2, *command, environment=traces.mark) for name in ("free", "kept")]
    observer = Observer(free, kept)
    with looking(observer.look):
        # Not by ten commands: those take longer to come up than the jobs to run.
        job = load_job(user.job_file(*parts), job_id=JobId(""), user="root", submitted_at=0)
        jobs = [user.client.submit(job) for _ in range(JOBS)]
        # Both are full at some time, so that there is something to be kept.
        wait_until(
            lambda: all(observer.most(name, "RUNNING") == PROCESSORS for name in ("free", "kept")),
            seconds=PATIENCE,
            what="both are full",
            details=user.details,
        )
        go.touch()
        reports = [user.wait_over(job, seconds=2 * PATIENCE) for job in jobs]
    for report in reports:
        assert report.outcome is not None
        assert (report.state, report.outcome.exit_code) == (JobState.COMPLETED, 0)
        lines = [user.output_of(report.id, f"c{1 + rank // 2}", rank % 2) for rank in range(4)]
        assert lines == [b"%d of 4\n" % rank for rank in range(4)]
    active = ("CONFIGURING", "RUNNING", "COMPLETING")
    for name in ("free", "kept"):
        assert observer.most(name, "PENDING", *active) <= PROCESSORS
    for cluster in user.run("clusters", "--json").json:
        name, largest = cluster["name"], cluster["largest_requests_per_minute"]
        print(f"{name}: {largest} requests in a minute at most, allowed are {BOUND}")  # noqa: T201 - to be seen
        record_property(f"largest_requests_per_minute[{name}]", largest)
        assert 0 < largest <= cluster["requests_per_minute"] == BOUND
    traces.expect_none()


# -- Another user gives jobs the names of ours: neither does that end our job, nor do we, although we could, end theirs.
# koala runs as root, who may end everybody's jobs in both systems; the stranger is `nobody`. Slurm knows its users by
# munge.


IMPOSSIBLE = "/nonexistent/x/y"
"""Where a job's output cannot go: it fails before it begins."""


def has_failed(system: System, number: str) -> bool:
    """Tell whether a job of the stranger is shown as one that could not start."""
    if isinstance(system, SlurmCluster):
        rows = system.squeue("--states=all", f"--jobs={number}", form="%T")
        return bool(rows) and all(row[0].split(",")[0] in {"FAILED", "NODE_FAIL", "COMPLETED"} for row in rows)
    lines = [line.split() for line in system.qstat().splitlines()]
    return any(words[:1] == [number] and words[4].startswith("E") for words in lines)


def test_jobs_of_one_name_belong_to_their_users(
    started: ExitStack, sge_cell: GridEngineCell, new_user: NewUser
) -> None:
    """A stranger's failed array of our name is not our end; what a stranger calls as we would is never cancelled."""
    systems: tuple[System, ...] = (started.enter_context(SlurmCluster("m", nodes=1, auth="munge")), sge_cell)
    user = new_user(*systems)
    go = user.directory / "go"
    waiting = until(go)
    job = user.submit(user.job_file(*(part(system.name, 2, *waiting) for system in systems), name="ours"))
    user.wait_running(job)
    unused: list[str] = []
    for system in systems:
        (name,) = set(placeholders(system))
        unused.append(re.sub(r"\d+$", "99", name))
        submit_array(system, name, 2, held=True)
        submit_array(system, unused[-1], 2, held=True)
        number = submit_array(system, name, 2, output=IMPOSSIBLE)
        wait_until(lambda: has_failed(system, number), seconds=PATIENCE, what="failed", details=lambda: listing(system))  # noqa: B023
    # All are listed again and again for a job that runs through on both.
    parts = [part(system.name, 1, "true") for system in systems]
    user.wait_completed(user.submit(user.job_file(*parts, name="passing")))
    assert user.report(job).state is JobState.RUNNING
    reaped = user.run("reap", "--all", "--yes", "--json")
    assert (reaped.code, reaped.json["found"]) == (0, [])
    go.touch()
    user.wait_completed(job)
    for system, name in zip(systems, unused, strict=True):
        assert jobs_named(system, name) == [name] * 2


def test_what_stands_in_the_way_of_words_keeps_nobody(
    started: ExitStack, sge_cell: GridEngineCell, new_user: NewUser, tmp_path: Path
) -> None:
    """Where all can write, a stranger's pipes and links of the names that will be used neither stop a job nor lead it.

    Names can be guessed: instance and number of the submission are public.
    """
    systems: tuple[System, ...] = (started.enter_context(SlurmCluster("m", nodes=1)), sge_cell)
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
    user.wait_running(job)
    assert user.run("cancel", job).code == 0
    assert user.wait_over(job).state is JobState.CANCELLED
    assert list(target.iterdir()) == []


# -- One MPI program over several batch systems at once: it runs, it ends as it should, and nothing of it stays.


def test_one_world_over_three_batch_systems(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, sge_cell: GridEngineCell, allreduce: Path
) -> None:
    """12 ranks on two Slurm clusters and a Grid Engine cell form one world; afterwards nothing of ours is anywhere."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    traces = Traces(user)
    go = user.directory / "go"
    parts = [part(name, 4, str(allreduce), str(go), environment=traces.mark) for name in ("a", "b", "c")]
    job = user.submit(user.job_file(*parts, launcher="mpi"))
    user.wait_running(job)
    for system in (slurm_a, slurm_b, sge_cell):
        assert len(placeholders(system)) == 4, system.name
    traces.note_running()
    assert len(traces.directories) == 12
    go.touch()
    user.wait_completed(job)
    lines = [user.output_of(job, f"c{1 + rank // 4}", rank % 4).decode() for rank in range(12)]
    for rank, line in enumerate(lines):
        assert re.fullmatch(rf"rank={rank} size=12 host=\S+ component=c{1 + rank // 4} sum=78\n", line), line
    traces.expect_none()


def test_a_rank_that_ends_badly_ends_the_world(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, allreduce: Path
) -> None:
    """Rank 2 ends before MPI_Finalize: the others, which wait for it, are ended, and the user is told of rank 2."""
    user = new_user(slurm_a, slurm_b)
    traces = Traces(user)
    for how, number, code, reason in (
        ("exit", 3, 3, EndReason.EXITED),
        ("kill", int(signal.SIGKILL), 128 + signal.SIGKILL, EndReason.SIGNALLED),
    ):
        program = (str(allreduce), how, "2", str(number))
        _, outcome = user.end_of(*(part(name, 2, *program, environment=traces.mark) for name in "ab"), launcher="mpi")
        assert (outcome.state, outcome.exit_code, outcome.reason) == (JobState.FAILED, code, reason)
        assert (outcome.component, outcome.rank) == ("c2", 2)
    traces.expect_none()


def test_shell_of_a_rank_that_is_killed_is_a_signal(new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """Nobody is left to tell how the rank ended but mpiexec, whose exit status 9 stands for SIGKILL here.

    It does so when the program itself has ended, too, which lives on without its shell.
    """
    user = new_user(slurm_a)
    traces = Traces(user)
    go = user.directory / "go"
    program = until(go)
    parts = [part("a", 2, *program, environment=traces.mark) for _ in range(2)]
    job = user.submit(user.job_file(*parts, launcher="mpi"))
    user.wait_running(job)
    shells: list[int] = []

    def found() -> bool:
        shells[:] = rank_shells(traces.mark, 3)
        return bool(shells)

    wait_until(found, seconds=PATIENCE, what="the shell of rank 3", details=user.details)
    os.kill(shells[0], signal.SIGKILL)
    go.touch()
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.outcome.exit_code, report.outcome.reason) == (128 + signal.SIGKILL, EndReason.SIGNALLED)
    traces.expect_none()


def rank_shells(mark: Mapping[str, str], rank: int) -> list[int]:
    """Return the shells around a rank's program, found by the environment of its component."""
    wanted = {*(f"{name}={value}".encode() for name, value in mark.items()), b"KOALA_RANK=%d" % rank}
    shells = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            environment = set((process / "environ").read_bytes().split(b"\0"))
            if words[0] == b"sh" and words[-1] == b"koala-rank" and wanted <= environment:
                shells.append(int(process.name))
    return shells
