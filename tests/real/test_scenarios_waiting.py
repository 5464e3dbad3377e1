# SPDX-License-Identifier: Apache-2.0
"""Jobs wait: held, suspended, for a place, or for each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from koala_adapter.errors import EXIT_LOST, EXIT_WALLTIME
from koala_adapter.model import EndReason
from koala_adapter.outcome import JobState
from tests.real.conftest import NewUser
from tests.real.lrms import System, Traces, jobs_named, local_job, placeholders, submissions
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import KoalaUser, Values, at_most, part, runs_with_known_ids

# -- A job that cannot have all its processors at once: it holds what it has for a bounded time, and starts by itself.


def test_a_full_cluster_is_waited_for(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """With the cell full the job holds its Slurm processors, says so, and starts when the local job has ended."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    traces = Traces(user)
    with local_job(sge_cell, sge_cell.slots):
        command = ("sh", "-c", "echo rank $KOALA_RANK")
        job = user.submit(user.job_file(*(part(name, 2, *command, environment=traces.mark) for name in "abc")))
        report = user.wait_held(job, 4)
        assert [(c.held, c.queued) for c in report.components] == [(2, 0), (2, 0), (0, 2)]
        assert len(placeholders(slurm_a, running=True)) == 2
        assert len(placeholders(slurm_b, running=True)) == 2
        # The cell may have been looked at before the local job had it all.
        facts = ("holds 4 of 6 processors", "0 of 2 on c", "2 in the queue of c", "idle there: 0")
        wait_until(
            lambda: all(fact in user.run("explain", job).text for fact in facts),
            seconds=PATIENCE,
            what="says what it waits for",
            details=lambda: user.run("explain", job).text,
        )
        assert report.state is JobState.CLAIMING
    report = user.wait_over(job)
    assert report.outcome is not None
    assert (report.outcome.exit_code, report.hand_backs) == (0, 0)
    assert [user.output_of(job, f"c{1 + r // 2}", r % 2) for r in range(6)] == [b"rank %d\n" % r for r in range(6)]
    traces.expect_none()


def test_processors_are_handed_back_after_their_life(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """With a life cycle shorter than the wait they go to others in between, and the place in the queue is kept."""
    user = new_user(slurm_a, sge_cell, scheduler={"placeholder_life": 6, "backoff": 2, "longest_backoff": 2})
    traces = Traces(user)
    with local_job(sge_cell, sge_cell.slots):
        job = user.submit(user.job_file(*(part(name, 2, "true", environment=traces.mark) for name in "ac")))
        user.wait_held(job, 2)
        user.wait(job, lambda report: report.hand_backs >= 1, what="handed back")
        assert "handed back" in user.run("explain", job).text
        wait_until(
            lambda: len(submissions(slurm_a, user.prefix)) >= 2,
            seconds=PATIENCE,
            what="asks anew",
            details=user.details,
        )
        user.wait_held(job, 2)
        assert len(submissions(sge_cell, user.prefix)) == 1, "their place in the queue is kept"
    report = user.wait_completed(job)
    assert 2 <= len(submissions(slurm_a, user.prefix)) <= 1 + report.hand_backs
    rows = slurm_a.squeue("--states=all", form="%j|%F|%S|%e")
    runs = sorted((int(number), begin, end) for name, number, begin, end in rows if name.startswith(user.prefix))
    (first, *_), (second, *_) = runs[:2], runs[2:4]
    assert first[2] <= second[1], "the processors were free for others in between"
    traces.expect_none()


# -- Placeholders that somebody put in hold in their batch system: whoever waits is told who holds them.


HOLD = {
    "operator": {"a": ("scontrol", "hold"), "c": ("qhold", "-h", "o")},
    "user": {"a": ("scontrol", "uhold"), "c": ("qhold", "-h", "u")},
}
RELEASE = {"a": ("scontrol", "release"), "c": ("qrls", "-h", "uo")}


@pytest.mark.parametrize(
    ("holder", "said"),
    [
        ("operator", ("by an operator (JobHeldAdmin)", "by an operator for")),
        ("user", ("by its user or a submission hook (JobHeldUser)", "by its user or a submission hook for")),
    ],
)
def test_who_holds_placeholders_is_told(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, holder: str, said: Sequence[str]
) -> None:
    """The hold of an operator, and a user's own, which a hook's looks like; once released, the job runs."""
    user = new_user(slurm_a, sge_cell)
    systems: dict[str, System] = {"a": slurm_a, "c": sge_cell}
    with local_job(slurm_a, slurm_a.processors), local_job(sge_cell, sge_cell.slots):
        file = user.job_file(*(part(name, 2, "true") for name in systems))
        shown = user.directory / "progress"
        command = user.start_into(shown, "run", str(file))
        numbers = {}
        for name, system in systems.items():
            wait_until(
                lambda system=system: len(placeholders(system)) == 2,  # type: ignore[misc]
                seconds=PATIENCE,
                what=f"queued on {name}",
                details=user.details,
            )
            numbers[name] = submissions(system, user.prefix)[-1][1]
            system.run(*HOLD[holder][name], numbers[name])
        report = user.wait("1", lambda report: all(one.holds for one in report.components), what="in hold")
    for component in report.components:
        assert [(one.holder, one.placeholders) for one in component.holds] == [(holder, 2)]
    for told in (user.run("explain", "1").text, user.run("status", "1").text):
        assert all(f"2 in hold {words}" in told for words in said), told
    for component in user.run("status", "1", "--json").json["components"]:
        assert component["holds"][0]["holder"] == holder
    words = f"2 in hold there: {holder}"
    wait_until(lambda: words in shown.read_text(), seconds=PATIENCE, what=words, details=shown.read_text)
    for name, system in systems.items():
        system.run(*RELEASE[name], numbers[name])
    try:
        assert command.wait(PATIENCE) == 0, shown.read_text()
    finally:
        command.kill()


# -- Placeholders that their batch system suspends while a job runs: what is told, what is kept, and what is lost.


SUSPEND = {"a": ("scontrol", "suspend"), "c": ("qmod", "-sj")}
RESUME = {"a": ("scontrol", "resume"), "c": ("qmod", "-usj")}
LONG = ("sleep", "600")
COUNTING = """
n=0
until [ -e "$1" ]; do n=$((n + 1)); echo $n; sleep 0.2; done
echo over
"""
"""Counts until a file is there; what it prints has no gap."""
SHORT = {"lease": 6, "heartbeat": 1}
"""Settings of a control center that gives an agent up soon."""
TOLD = re.compile(r"1 of its placeholders on (\w+) is suspended by the batch system for (\d+) (s|min)\.")


class Counting:
    """A job of two processes that count, one of whose placeholders can be suspended."""

    def __init__(self, user: KoalaUser, system: System) -> None:
        """It runs."""
        self.user = user
        self.system = system
        self.go_on = user.directory / f"go-{system.name}"
        file = user.job_file(part(system.name, 2, "sh", "-c", COUNTING, "sh", str(self.go_on)), name=system.name)
        self.id = user.submit(file)
        report = user.wait(self.id, runs_with_known_ids, what="runs")
        self.component = report.components[0].name
        self.number = report.components[0].lrm_ids[0]
        self.wait_for_progress()

    def suspend(self) -> None:
        """Suspend the placeholder of one of the processes."""
        self.system.run(*SUSPEND[self.system.name], self.number)

    def resume(self) -> None:
        """Let it go on."""
        self.system.run(*RESUME[self.system.name], self.number)

    def counted(self) -> list[int]:
        """Return how far each process has come, by what has arrived."""
        return [self.user.output_of(self.id, self.component, rank).count(b"\n") for rank in range(2)]

    def wait_for_progress(self) -> None:
        """Wait until both processes have gone on."""
        before = self.counted()
        wait_until(
            lambda: all(now > then for now, then in zip(self.counted(), before, strict=True)),
            seconds=PATIENCE,
            what="both count",
            details=self.user.details,
        )

    def wait_told(self, seconds: float = 0.0) -> None:
        """Wait until it is told that the placeholder has been suspended for so long."""

        def told() -> bool:
            found = TOLD.search(self.user.run("explain", self.id).text)
            if found is None or found[1] != self.system.name:
                return False
            return int(found[2]) * (60 if found[3] == "min" else 1) >= seconds

        wait_until(told, seconds=PATIENCE, what=f"suspended for {seconds} s", details=self.user.details)

    def wait_not_told(self) -> None:
        """Wait until no placeholder is told as suspended any more."""
        wait_until(
            lambda: not TOLD.search(self.user.run("explain", self.id).text),
            seconds=PATIENCE,
            what="not suspended any more",
            details=self.user.details,
        )

    def expect_all(self) -> None:
        """Let it end, and insist that it has ended well and that each process has printed all numbers once."""
        self.go_on.touch()
        report = self.user.wait_over(self.id)
        assert report.state is JobState.COMPLETED, report
        for rank in range(2):
            lines = self.user.output_of(self.id, self.component, rank).decode().splitlines()
            assert lines == [*(str(number) for number in range(1, len(lines))), "over"]


def test_a_suspension_that_is_awaited_loses_nothing(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """It is told while it lasts, two leases long at a site that wants its jobs to wait; then all goes on.

    The walltime goes on, too, which Slurm itself does not count then: another job, also suspended, is ended by it.
    """
    user = new_user(slurm_a, sge_cell, center={**SHORT, "await_suspended": True})
    traces = Traces(user)
    jobs = [Counting(user, system) for system in (slurm_a, sge_cell)]
    limited = {}
    for name in user.systems:
        command = part(name, 2, *LONG, environment=traces.mark)
        limited[name] = user.submit(user.job_file(command, walltime=10, name=f"limited-{name}"))
    for name, id_ in limited.items():
        report = user.wait(id_, lambda report: report.over or runs_with_known_ids(report), what="runs")
        # On a very slow machine it may be over by now: then there is nothing to be suspended.
        user.systems[name].run(*SUSPEND[name], report.components[0].lrm_ids[0], check=False)
    for job in jobs:
        job.suspend()
    for job in jobs:
        job.wait_told(2 * SHORT["lease"])
        job.resume()
    for job in jobs:
        job.wait_not_told()
        job.wait_for_progress()
        job.expect_all()
    for id_ in limited.values():
        outcome = user.wait_outcome(id_)
        end = (outcome.state, outcome.reason, outcome.exit_code)
        assert end == (JobState.FAILED, EndReason.WALLTIME, EXIT_WALLTIME)
    traces.expect_none(but_words=True)


def test_a_suspension_beyond_the_lease_loses_the_job(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """It is told why, and the placeholder that is suspended is ended, too."""
    user = new_user(slurm_a, sge_cell, center=SHORT)
    traces = Traces(user)
    jobs = [Counting(user, system) for system in (slurm_a, sge_cell)]
    for job in jobs:
        job.suspend()
    for job in jobs:
        outcome = user.wait_outcome(job.id)
        assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.LOST, EndReason.LOST, EXIT_LOST), outcome
        assert "its batch system lists it as suspended, for " in outcome.detail
        assert "await_suspended" in outcome.detail
    traces.expect_none(but_words=True)


# -- Placement policies on real batch systems: a component in two pieces, and processors exchanged between two jobs.


def test_one_component_in_pieces_on_two_batch_systems(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell, allreduce: Path
) -> None:
    """A flexible component too large for either becomes one MPI world over both; its ranks are numbered through."""
    user = new_user(slurm_a, sge_cell, clusters={"a": at_most(slurm_a, 4)})
    traces = Traces(user)
    go = user.directory / "go"
    flexible = part(None, 6, str(allreduce), str(go), flexible=True, environment=traces.mark)
    file = user.job_file(flexible, launcher="mpi", placement="flexible-cluster-minimization")
    planned = {one["cluster"]: one["processors"] for one in user.run("plan", "--json", str(file)).json["components"]}
    assert planned in ({"a": 4, "c": 2}, {"a": 2, "c": 4})
    job = user.submit(file)
    user.wait_running(job)
    assert sorted(len(placeholders(system)) for system in (slurm_a, sge_cell)) == [2, 4]
    go.touch()
    user.wait_completed(job)
    for rank in range(6):
        line = user.output_of(job, "c1", rank).decode()
        assert re.fullmatch(rf"rank={rank} size=6 host=\S+ component=c1 sum=21\n", line), line
    traces.expect_none()


def test_a_job_starts_in_what_another_held_in_vain(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """Held on Slurm while Grid Engine is full, processors go to a job that starts; its places come back."""
    user = new_user(slurm_a, sge_cell, scheduler={"placeholder_life": 30})
    traces = Traces(user)
    rest = slurm_a.processors - 2
    command = ("sh", "-c", "echo rank $KOALA_RANK on $KOALA_CLUSTER")
    with local_job(sge_cell, sge_cell.slots), local_job(slurm_a, rest):
        wide = user.submit(user.job_file(*(part(name, 2, *command, environment=traces.mark) for name in "ac")))
        user.wait_held(wide, 2)
        narrow = user.submit(user.job_file(part("a", 2, *command, environment=traces.mark), name="narrow"))
        user.wait_completed(narrow)
        assert "exchanged for places in the queue" in user.run("explain", wide).text
    user.wait_completed(wide)
    assert [user.output_of(narrow, "c1", rank) for rank in range(2)] == [b"rank %d on a\n" % rank for rank in range(2)]
    where = [user.output_of(wide, f"c{1 + rank // 2}", rank % 2).decode().split()[-1] for rank in range(4)]
    assert where == ["a", "a", "c", "c"]
    traces.expect_none()


# -- Two jobs that each hold what the other needs, of people who know nothing of each other (Xing 2009). Two clusters
# of three nodes; on each somebody else is first in line. Whoever gives way lets the other run, and is next.


NODES = 3
LIFE = 15
SCHEDULER: Values = {"placeholder_life": LIFE, "backoff": 8, "longest_backoff": 120}
LAST_IN_LINE = "--nice=1000"
MOST_ROUNDS = 10
"""So often at most one of the two gives back what it holds: two that draw lives at chance agree in one of three."""
BOUND = MOST_ROUNDS * (LIFE + 10) + 120.0
"""Seconds within which both jobs are over: for each round a life and what Slurm and agents need; and both runs."""
DIRECT = """#!/bin/sh
touch {directory}/$SLURM_JOB_NAME
until [ -e {directory}/direct-a ] && [ -e {directory}/direct-b ]; do sleep 0.2; done
"""
"""A piece of a job that was submitted past koala: it holds its nodes until the other piece runs, too."""


@pytest.fixture
def clusters(started: ExitStack) -> tuple[SlurmCluster, SlurmCluster]:
    """Two clusters of three processors."""
    # By itself a newer Slurm gives all jobs one priority, from which --nice takes nothing.
    settings = {"PriorityType": "priority/basic"}
    first, second = (
        started.enter_context(SlurmCluster(name, nodes=NODES, cpus=1, settings=settings)) for name in ("a", "b")
    )
    return first, second


@pytest.fixture
def users(clusters: tuple[SlurmCluster, SlurmCluster], tmp_path: Path) -> Iterator[tuple[KoalaUser, KoalaUser]]:
    """Two users with a service each; the first is first in line on a, the second on b."""
    with ExitStack() as stack:
        made = []
        for name, behind in (("first", "b"), ("second", "a")):
            last: Values = {"directives": {"add": [LAST_IN_LINE]}}
            user = KoalaUser(tmp_path / name, clusters, scheduler=SCHEDULER, clusters={behind: last})
            stack.callback(user.close)
            user.serve()
            made.append(user)
        yield made[0], made[1]


def submitted(user: KoalaUser, mark: dict[str, str]) -> str:
    """Submit a job that needs all of both clusters; return when its placeholders are in both queues."""
    job = user.submit(user.job_file(*(part(name, NODES, "sleep", "1", environment=mark) for name in "ab")))
    wait_until(
        lambda: all(len(jobs_named(system, user.prefix)) == NODES for system in user.systems.values()),
        seconds=PATIENCE,
        what="its placeholders are in both queues",
        details=user.details,
    )
    return job


def test_two_instances_run_one_after_the_other(
    clusters: tuple[SlurmCluster, SlurmCluster], users: tuple[KoalaUser, KoalaUser]
) -> None:
    """Each gets one cluster; one gives it back in time for the other, and both jobs end."""
    traces = [Traces(user) for user in users]
    with ExitStack() as full:
        for cluster in clusters:
            full.enter_context(local_job(cluster, NODES))
        jobs = [submitted(user, one.mark) for user, one in zip(users, traces, strict=True)]
    reports = [user.wait_over(job, seconds=BOUND) for user, job in zip(users, jobs, strict=True)]
    assert [report.state for report in reports] == [JobState.COMPLETED, JobState.COMPLETED]
    assert 1 <= max(report.hand_backs for report in reports) <= MOST_ROUNDS
    for one in traces:
        one.expect_none()


def test_a_third_party_that_holds_directly_runs_first(
    clusters: tuple[SlurmCluster, SlurmCluster], users: tuple[KoalaUser, KoalaUser], tmp_path: Path
) -> None:
    """Both pieces went to sbatch; the one that runs never gives way. Ours does, and runs when both have ended."""
    user = users[0]
    traces = Traces(user)
    tmp_path.chmod(0o755)
    directory = tmp_path / "direct"
    directory.mkdir()
    with ExitStack() as full:
        for cluster in clusters:
            full.enter_context(local_job(cluster, NODES))
        job = submitted(user, traces.mark)
        for cluster in clusters:
            line = LAST_IN_LINE if cluster.name == "a" else "--nice=0"
            options = (f"--nodes={NODES}", "--output=/dev/null", f"--job-name=direct-{cluster.name}", line)
            cluster.submit(DIRECT.format(directory=directory), *options)
    wait_until((directory / "direct-b").exists, seconds=PATIENCE, what="the other piece holds b")
    wait_until((directory / "direct-a").exists, seconds=BOUND, what="the third party got a, too")
    assert user.report(job).hand_backs >= 1
    report = user.wait_completed(job, seconds=BOUND)
    assert report.hand_backs <= MOST_ROUNDS
    assert not any(jobs_named(cluster, "direct") for cluster in clusters)
    traces.expect_none()
