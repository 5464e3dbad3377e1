# SPDX-License-Identifier: Apache-2.0
"""Other doors on real systems: Dask, Parsl, sweeps and negotiation."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.errors import EXIT_CANCELLED
from koala_adapter.outcome import JobState
from koala_adapter.parsl import KoalaProvider
from koala_adapter.report.values import JobReport
from koala_experiments.framework import ALL, COUNTERED, DECLINING, EVOLVING, MALLEABLE, Pace, Scenario
from koala_experiments.negotiation import as_published, course_of
from koala_experiments.stage import Places, Stage
from tests.daskprogram import DaskProgram, sum_of_squares, write_dasksum
from tests.daskprograms import TASKS
from tests.parsl_pool import TASKS_ARE_FOUND, parsl_over, squares
from tests.real.conftest import NewUser
from tests.real.lrms import local_job, placeholders
from tests.real.systems import GridEngineCell, SlurmCluster
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.user import KoalaUser, at_most, part, until

# -- Dask over Slurm, Grid Engine and a local cluster at once, while local users come and go.


STREAM = Path(__file__).parents[1] / "daskstream.py"
LOCAL_CLUSTER = """
[[clusters]]
name = "here"
plugin = "local"
poll_interval = 1
requests_per_minute = 600
output_directory = "{directory}"
settings = {{ processors = 2, idle_seconds = 5 }}
"""


def workers(report: JobReport) -> int:
    """Return how many processors the workers have."""
    return sum(one.processors for one in report.components if one.name == "worker")


def expect_over(user: KoalaUser, job: str, *codes: int) -> JobReport:
    """Wait until a job has ended in one of these ways, and nothing of it is left in any batch system."""
    report = user.wait_over(job)
    assert report.outcome is not None
    assert report.outcome.exit_code in codes, report.outcome
    nothing_left(user)
    return report


def nothing_left(user: KoalaUser) -> None:
    """Wait until no batch system has anything of this user's: the service ends what it has a moment after the job."""
    wait_until(
        lambda: not any(placeholders(system) for system in user.systems.values()),
        seconds=PATIENCE,
        what="no placeholder is left",
        details=user.details,
    )


def test_dask_workers_come_and_go_with_local_users(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """1 worker becomes 6 on three systems, 2 for jobs of sbatch and qsub, and 4 when one of them ends."""
    clusters = {"a": at_most(slurm_a, 3), "c": at_most(sge_cell, 2)}
    user = new_user(slurm_a, sge_cell, clusters=clusters, serve=False)
    with user.site.open("a") as site:
        site.write(LOCAL_CLUSTER.format(directory=user.output))
    user.serve()
    enough = user.directory / "enough"
    shutil.copy(STREAM, user.directory)
    stream = {
        '"dasksum.py", "200"]': f'"daskstream.py", "{enough}"]\ncluster = "here"',
        '"dasksum.py", ': '"daskstream.py", ',
    }
    job = user.submit(write_dasksum(user.directory, tasks=200, seconds=0.25, replaced=stream))
    report = user.wait(job, lambda report: workers(report) == 6, what="has all there is")
    assert {one.cluster for one in report.components} == {"here", *user.systems}
    with local_job(sge_cell, sge_cell.slots):
        with local_job(slurm_a, slurm_a.processors - 3 + 2):
            # Where the batch system starts an array piece by piece, more may be given at first than is taken.
            user.wait(job, lambda report: workers(report) == 2, what="has made room")
        report = user.wait(job, lambda report: workers(report) == 4, what="has grown again on Slurm alone")
    shrunk = [one for one in report.size_changes if one.after < one.before]
    assert {one.cluster for one in shrunk} == set(user.systems)
    assert all(" that wait" in one.reason for one in shrunk), shrunk
    enough.touch()
    expect_over(user, job, 0)
    tasks, total, lost = (int(line) for line in user.output_of(job, "head", 0).split())
    assert (f"sum {total}", lost) == (sum_of_squares(0, tasks), 0)


def test_a_cluster_of_a_script_over_two_batch_systems(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """It begins a service, has workers from both, is made smaller by koala, and loses nothing; closed, all is gone."""
    user = new_user(slurm_a, sge_cell, clusters={"a": at_most(slurm_a, 2), "c": at_most(sge_cell, 1)})
    with DaskProgram(user.directory, user.environment(), "breathe", 3, 1, site=user.site, state=user.state) as dask:
        assert dask.until_said("many on") == " ".join(sorted(user.systems))
        go = user.directory / "go"
        waiting = until(go)
        rigid = user.submit(user.job_file(*(part(name, 1, *waiting) for name in user.systems)))
        dask.until_said("during")  # it was made smaller
        go.touch()
        dask.until_said("closed")
        assert dask.ended() == 0
    again = sum_of_squares(0, TASKS)
    assert dask.results == [again, "during True", again, "scattered True", "executor 0 1 4 9 16", "lost 0", "closed"], (
        dask.said
    )
    user.wait_completed(rigid)
    changes = expect_over(user, "1", 0, EXIT_CANCELLED).size_changes
    assert {one.cluster for one in changes if one.reason == f"room for job {rigid}"} == set(user.systems)


# -- Parsl over Slurm and Grid Engine with one executor: what is busy is passed over, and all blocks end with Parsl.


SQUARES = {number * number for number in range(8)}


@pytest.mark.nightly
def test_parsl_computes_where_processors_are_idle(
    new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell
) -> None:
    """While a local user has all of Slurm, all tasks finish on Grid Engine; afterwards both compute."""
    user = new_user(slurm_a, sge_cell)
    blocks = KoalaProvider(
        site=user.site,
        state=user.state,
        walltime="00:10:00",
        worker_init=TASKS_ARE_FOUND,
        init_blocks=2,
        min_blocks=2,
        max_blocks=sge_cell.slots + 2,
        status_polling_interval=1,
    )
    with ExitStack() as parsl:
        with local_job(slurm_a, slurm_a.processors):
            # A block goes where processors are idle by what was last seen, and waits in that queue for good.
            wait_until(
                lambda: (
                    {one.name: one.available for one in user.client.clusters()}
                    == {slurm_a.name: 0, sge_cell.name: sge_cell.slots}
                ),
                seconds=PATIENCE,
                what="only Grid Engine is idle",
                details=user.details,
            )
            kernel = parsl.enter_context(parsl_over(blocks, user.directory))
            tasks = squares(kernel, 20, seconds=0.1)
            wait_until(lambda: all(one.done() for one in tasks), seconds=PATIENCE, what="all", details=user.details)
            first = [one.result() for one in tasks]
        assert {where for _, where in first} == {sge_cell.name}
        second = [one.result(PATIENCE) for one in squares(kernel, 4, seconds=0.1)]
        until = time.monotonic() + PATIENCE
        while {where for _, where in second} != set(user.systems):  # blocks start when their batch system lets them
            assert time.monotonic() < until, user.details()
            second += [one.result(PATIENCE) for one in squares(kernel, 8, seconds=0.2)]
    assert all(number in SQUARES for number, _ in second)
    nothing_left(user)
    states = {one.id: one.state for one in user.client.jobs()}
    assert set(states.values()) == {JobState.CANCELLED}, user.details()


# -- A sweep of 2,000 tasks over two Slurm clusters and Grid Engine: every result once, whoever wants the processors.


SWEEP_TASKS = 2000
FREE = 600
"""Tasks that do not wait for a word."""
SWEEP_PATIENCE = 400.0
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


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_sweep_yields_and_every_result_comes_once(
    new_user: NewUser, slurm_a: SlurmCluster, slurm_b: SlurmCluster, sge_cell: GridEngineCell, tmp_path: Path
) -> None:
    """It fills all three, makes way for `sbatch`, and outlives the loss of a placeholder and of the service."""
    user = new_user(slurm_a, slurm_b, sge_cell)
    go = tmp_path / "go"
    file = user.directory / "sweep.toml"
    file.write_text(SWEEP.format(free=FREE, go=go, tasks=SWEEP_TASKS))
    everything = slurm_a.processors + slurm_b.processors + sge_cell.slots
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
        seconds=SWEEP_PATIENCE,
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
    report = user.wait_completed(job, seconds=SWEEP_PATIENCE)
    directory = user.state / "jobs" / job / "sweep"
    done = [one for one in entries(directory) if one["state"] == "done"]
    assert sorted(one["task"] for one in done) == list(range(SWEEP_TASKS))
    assert {one["cluster"] for one in done} == set(user.systems)
    for one in done:
        assert int((directory / one["stdout"]).read_text()) == int(one["parameters"]["a"]) ** 2
    assert all(not placeholders(system) for system in user.systems.values())


# -- The published negotiations on eight processors: on Slurm, on Grid Engine, and across both.


PACE = Pace(steps=6, work=0.4, rest=3.0)
SCENARIOS = (EVOLVING, COUNTERED, MALLEABLE, DECLINING)
NIGHTLY = [pytest.param(one, id=one.name, marks=pytest.mark.nightly) for one in SCENARIOS]


def expect_as_published(user: KoalaUser, scenario: Scenario, places: Places) -> None:
    """Play a scenario: sizes and messages are the paper's, and nothing is left in any batch system."""
    played = Stage(user.client, user.state, places, gate=user.directory / "may-ask").play(scenario, PACE)
    assert as_published(played), course_of(played)
    assert all(not placeholders(system) for system in user.systems.values())


@pytest.mark.parametrize(
    "scenario", [pytest.param(COUNTERED, id=COUNTERED.name), *(one for one in NIGHTLY if one.id != COUNTERED.name)]
)
def test_on_slurm(scenario: Scenario, new_user: NewUser, slurm_a: SlurmCluster) -> None:
    """Its eight processors are those of two nodes."""
    user = new_user(slurm_a, scheduler={"approach": scenario.approach.value})
    expect_as_published(user, scenario, Places(home=slurm_a.name, other=slurm_a.name))


@pytest.mark.parametrize("scenario", NIGHTLY)
def test_on_grid_engine(scenario: Scenario, new_user: NewUser, started: ExitStack) -> None:
    """Its eight processors are the slots of one host."""
    cell = started.enter_context(GridEngineCell("n", slots=ALL))
    user = new_user(cell, scheduler={"approach": scenario.approach.value})
    expect_as_published(user, scenario, Places(home=cell.name, other=cell.name))


@pytest.mark.parametrize("scenario", NIGHTLY)
def test_across_both(scenario: Scenario, new_user: NewUser, slurm_a: SlurmCluster, sge_cell: GridEngineCell) -> None:
    """The application begins on Grid Engine, and grows over to Slurm."""
    user = new_user(
        slurm_a,
        sge_cell,
        scheduler={"approach": scenario.approach.value},
        clusters={"a": at_most(slurm_a, ALL - scenario.initial), "c": at_most(sge_cell, scenario.initial)},
    )
    expect_as_published(user, scenario, Places(home=sge_cell.name, other=slurm_a.name))
