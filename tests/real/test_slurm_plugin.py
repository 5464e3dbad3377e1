# SPDX-License-Identifier: Apache-2.0
"""The plugin ``slurm`` on a real Slurm cluster: the conformance kit, and what only a real system shows."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import PinnedStart, Submission
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.listing import Listing
from koala_adapter.model import BatchKey, EndReason, LrmJob, LrmJobId, LrmJobState, NodeState
from koala_adapter.testing import LrmConformance, LrmUnderTest, RecordingRunner, Trial, eventually, new_context
from koala_adapter.testing.trial import begin_start
from koala_slurm import PLUGIN, SlurmSettings
from koala_slurm.client import SlurmCommands
from koala_slurm.lrm import SlurmLrm
from tests.real.lrms import foreign_job, namesake_job
from tests.real.systems import SlurmCluster
from tests.real.systems.processes import CommandError, run_command, wait_until
from tests.undertest import started_plugin

# -- The plugin ``slurm`` on a real Slurm cluster: the conformance kit, and what only a real system shows.


def responding(cluster: SlurmCluster) -> bool:
    """Tell whether all nodes have reported to the controller."""
    states = cluster.run("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()
    return bool(states) and all(state.isalpha() and state not in {"unknown", "down"} for state in states)


def slurm_settings(trial: Trial) -> SlurmSettings:
    """Return the settings of the plugin under test."""
    settings = trial.under_test.settings
    assert isinstance(settings, SlurmSettings)
    return settings


def outages(cluster: SlurmCluster) -> dict[str, Callable[[], Awaitable[None]]]:
    """Return how the kit makes the controller go away and come back, as fields of LrmUnderTest."""

    async def stop() -> None:
        # Killed, it would forget the last seconds, and start jobs a second time.
        await anyio.to_thread.run_sync(lambda: cluster.stop_controller(how=signal.SIGTERM))

    async def start() -> None:
        if not responding(cluster):
            await anyio.to_thread.run_sync(cluster.start_controller)
        await anyio.to_thread.run_sync(lambda: wait_until(lambda: responding(cluster), seconds=90, what="nodes"))

    return {"stop_lrm": stop, "start_lrm": start}


class TestSlurm(LrmConformance):
    """The conformance kit."""

    @pytest.fixture
    async def under_test(self, slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cluster."""
        settings = SlurmSettings.model_validate(slurm_a.plugin_settings)
        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=slurm_a.processors,
            unknown_id=LrmJobId("999999_1"),
            foreign_job=foreign_job(slurm_a),
            namesake_job=namesake_job(slurm_a),
            **outages(slurm_a),
            patience=90,
            unavailable_within=180,
        ) as under:
            yield under

    async def test_requeue(self, live_trial: Trial) -> None:
        """A requeued job is stopped and queued under the same id; Slurm starts it again after two minutes."""
        trial = live_trial
        batch = await trial.submit()
        await trial.wait_running(batch)
        await trial.lrm.requeue(batch.ids)
        await trial.wait_states(batch, LrmJobState.QUEUED)
        # Two minutes are longer than a test should take. They are there because a node refuses the credential of a run
        # that it has just ended: started again within the second, the job fails.
        due = ("scontrol", "update", f"JobId={batch.ids[0]}", "StartTime=now+5")
        commands = SlurmCommands(trial.under_test.context.commands, slurm_settings(trial))
        assert (await commands.run(due)).returncode == 0

        async def starts() -> int:
            return batch.starts(1)

        await trial.until(starts, lambda count: count == 2, what="the second start")
        await trial.wait_states(batch, LrmJobState.RUNNING)


# -- What the plugin ``slurm`` must bear on a real Slurm: a hanging controller, lost nodes, large arrays, other users.


SLEEP = "#!/bin/sh\nexec sleep 600\n"
SECONDS = 90.0
"""Bound on what Slurm does at once."""


def submission(key: str, count: int = 1, *, script: str = SLEEP, held: bool = False) -> Submission:
    """Return a submission of an hour."""
    return Submission(key=BatchKey(key), count=count, script=script, walltime=3600, held=held)


async def plugin(cluster: SlurmCluster, directory: Path, **settings: object) -> SlurmLrm:
    lrm = SlurmLrm(new_context(directory), SlurmSettings.model_validate({**cluster.plugin_settings, **settings}))
    await lrm.start()
    return lrm


@pytest.fixture
async def lrm(slurm_a: SlurmCluster, tmp_path: Path) -> AsyncIterator[SlurmLrm]:
    """Return a started plugin on the shared cluster."""
    lrm = await plugin(slurm_a, tmp_path)
    yield lrm
    await lrm.close()


async def wait_for(lrm: SlurmLrm, key: str, *states: LrmJobState, seconds: float = SECONDS) -> list[LrmJob]:
    """Wait until the jobs of a submission have these states, in order of their indices; return them."""

    async def look() -> list[LrmJob]:
        jobs = [job for job in await lrm.jobs(name_prefix=key) if job.name == key]
        return sorted(jobs, key=lambda job: job.array_index or 0)

    return await eventually(
        look, lambda jobs: [job.state for job in jobs] == list(states), what=f"{key} {states}", seconds=seconds
    )


async def test_capabilities_are_true_here(lrm: SlurmLrm) -> None:
    """Without slurmdbd there is no accounting; as root, suspending is allowed."""
    assert not lrm.capabilities.accounting
    assert lrm.capabilities.suspend == (os.geteuid() == 0)
    assert {result.subject for result in await lrm.check()} >= {"controller", "submission", "accounting"}


async def test_hanging_controller_leaves_the_outcome_unknown(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """Nothing waits longer than the time-out; a submission that was given up is in after all, and is found by name."""
    lrm = await plugin(slurm_a, tmp_path, command_timeout=2)
    assert slurm_a._controller is not None
    os.kill(slurm_a._controller.pid, signal.SIGSTOP)
    try:
        with anyio.fail_after(60):
            with pytest.raises(LrmUnavailableError):
                await lrm.submit(submission("koala-hang", 2))
            with pytest.raises(LrmUnavailableError):
                await lrm.jobs(name_prefix="koala-hang")
            with pytest.raises(LrmUnavailableError):
                await lrm.nodes()
    finally:
        os.kill(slurm_a._controller.pid, signal.SIGCONT)
    jobs = await wait_for(lrm, "koala-hang", LrmJobState.RUNNING, LrmJobState.RUNNING)
    await lrm.cancel([job.id for job in jobs])
    await wait_for(lrm, "koala-hang", LrmJobState.ENDED, LrmJobState.ENDED)


async def test_lost_node(started: ExitStack, tmp_path: Path) -> None:
    """When a node dies its job ends as NODE_LOST, is not started again, and its processors are not idle."""
    cluster = started.enter_context(SlurmCluster("lost", nodes=2, cpus=1))
    lrm = await plugin(cluster, tmp_path)
    await lrm.submit(submission("koala-lost", 2))
    jobs = await wait_for(lrm, "koala-lost", LrmJobState.RUNNING, LrmJobState.RUNNING)
    (node,) = jobs[0].nodes
    cluster.kill_node(node)
    cluster.give_up(node)
    ended, running = await wait_for(lrm, "koala-lost", LrmJobState.ENDED, LrmJobState.RUNNING)
    assert (ended.end, ended.raw_state) == (EndReason.NODE_LOST, "NODE_FAIL")
    assert running.nodes != ended.nodes
    states = {seen.name: (seen.state, seen.processors_idle) for seen in await lrm.nodes()}
    assert states[node] == (NodeState.DOWN, 0)


async def test_output_that_cannot_be_opened(lrm: SlurmLrm, tmp_path: Path) -> None:
    """A placeholder without a place for its output never runs: a failed launch, not an exit."""
    # A missing directory would be made, from 23.02 on.
    (tmp_path / "file").touch()
    await lrm.submit(replace(submission("koala-nowhere"), output_directory=str(tmp_path / "file" / "directory")))
    (job,) = await wait_for(lrm, "koala-nowhere", LrmJobState.ENDED)
    assert (job.end, job.exit_code) == (EndReason.LAUNCH_FAILED, None)


async def test_scattered_elements_of_a_large_array(lrm: SlurmLrm) -> None:
    """Every second of 1000 elements is cancelled with one command, and no other."""
    ids = await lrm.submit(submission("koala-large", 1000, held=True))
    runner = lrm._context.commands
    assert isinstance(runner, RecordingRunner)
    before = len(runner.commands)
    await lrm.cancel(ids[::2])
    assert len(runner.commands) == before + 1
    left = [job for job in await lrm.jobs(name_prefix="koala-large") if job.state is LrmJobState.HELD]
    assert {job.id for job in left} == set(ids[1::2])
    await lrm.cancel(ids)
    left = [job for job in await lrm.jobs(name_prefix="koala-large") if job.state is not LrmJobState.ENDED]
    assert left == []


async def test_array_larger_than_slurm_takes(slurm_a: SlurmCluster, lrm: SlurmLrm, tmp_path: Path) -> None:
    """The limit is told before asking; Slurm's own refusal is understood just as well."""
    with pytest.raises(LrmRejectedError, match="10000"):
        await lrm.submit(submission("koala-huge", 10001))
    unstarted = SlurmLrm(new_context(tmp_path), SlurmSettings.model_validate(slurm_a.plugin_settings))
    with pytest.raises(LrmRejectedError, match="Invalid job array specification"):
        await unstarted.submit(submission("koala-huge", 10001))
    assert await lrm.jobs(name_prefix="koala-huge") == ()


async def test_directives_reach_slurm(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """What the site adds, drops and renames is what Slurm sees."""
    directives = Directives(
        add=("--comment='two words'", "--nice=5"), drop=("--no-requeue",), rename=(("--mem", "--mem-per-cpu"),)
    )
    context = replace(new_context(tmp_path), directives=directives)
    lrm = SlurmLrm(context, SlurmSettings.model_validate(slurm_a.plugin_settings))
    await lrm.start()
    (job,) = await lrm.submit(replace(submission("koala-site", held=True), memory_mib=100))
    shown = slurm_a.run("scontrol", "--oneliner", "show", "job", job)
    for text in ("Comment=two words", "Nice=5", "Requeue=1", "MinMemoryCPU=100M"):
        assert text in shown


@pytest.mark.parametrize("kind", ["built", "login"])
async def test_environment_of_the_job(slurm_a: SlurmCluster, tmp_path: Path, kind: str) -> None:
    """Built, the job has our small environment at once; login, what the login shell on the node says."""
    lrm = await plugin(slurm_a, tmp_path, environment=kind)
    file = tmp_path / "environment"
    await lrm.submit(submission(f"koala-{kind}", script=f"#!/bin/sh\nenv > {file}\n"))
    await wait_for(lrm, f"koala-{kind}", LrmJobState.ENDED, seconds=SECONDS)
    environment = dict(line.partition("=")[::2] for line in file.read_text().splitlines())
    assert {"HOME", "USER", "PATH", "SLURM_ARRAY_TASK_ID"} <= set(environment)
    assert ("SLURM_GET_USER_ENV" in environment) == (kind == "login")
    assert ("SLURM_EXPORT_ENV" in environment) == (kind == "login")


async def test_signal_of_a_waiting_job_costs_no_time(lrm: SlurmLrm) -> None:
    """A job that does not run is not signalled, and nobody waits for it."""
    ids = await lrm.submit(submission("koala-quiet", 2, held=True))
    with anyio.fail_after(60):
        await lrm.signal(ids, signal.SIGUSR1)
    await wait_for(lrm, "koala-quiet", LrmJobState.HELD, LrmJobState.HELD)


async def running(lrm: SlurmLrm) -> dict[LrmJobId, dict[str, int]]:
    return {job.id: dict(job.layout) for job in await lrm.jobs() if job.state is LrmJobState.RUNNING}


async def test_starts_at_once_on_the_same_nodes(lrm: SlurmLrm, slurm_a: SlurmCluster) -> None:
    """Each job gets its different numbers on the two nodes; no reservation is left."""
    options = ("--hold", "--ntasks=3", "--nodes=2", "--output=/dev/null", "--time=10")
    first, second = (LrmJobId(slurm_a.submit(SLEEP, *options)) for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(begin_start, lrm, first, ["n1", "n2", "n2"])
        group.start_soon(begin_start, lrm, second, ["n1", "n1", "n2"])
    layouts = await eventually(partial(running, lrm), lambda found: len(found) == 2, what="both run", seconds=90)
    for job in (first, second):
        await lrm.confirm_start(PinnedStart(job=job, nodes=("n1", "n1", "n2")))
    assert layouts == {first: {"n1": 1, "n2": 2}, second: {"n1": 2, "n2": 1}}
    assert "No reservations" in slurm_a.run("scontrol", "show", "reservation")


async def test_other_users_cannot_read_the_script(started: ExitStack, tmp_path: Path) -> None:
    """The script, and the secret in it, can be had by no other user: from Slurm, or from the files of its daemons."""
    cluster = started.enter_context(SlurmCluster("munge", nodes=1, auth="munge"))
    lrm = await plugin(cluster, tmp_path)
    (job,) = await lrm.submit(submission("koala-secret", script=f"#!/bin/sh\n: TOP-SECRET\n{SLEEP}"))
    await wait_for(lrm, "koala-secret", LrmJobState.RUNNING)
    array = job.partition("_")[0]
    assert "TOP-SECRET" in cluster.run("scontrol", "write", "batch_script", array, "-")
    assert "TOP-SECRET" not in cluster.run("scontrol", "write", "batch_script", array, "-", user="nobody", check=False)
    search = ["grep", "-rl", "TOP-SECRET", str(cluster.directory)]
    environment = cluster.environment("nobody")
    assert run_command(search, environment=environment, check=False)
    with pytest.raises(CommandError) as nothing:
        run_command(search, environment=environment, user="nobody")
    assert nothing.value.stdout == ""


# -- How many jobs of one processor a real Slurm runs at once is what koala counts as its processors.


CPUS = 8
THREADS = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2"


@pytest.mark.parametrize(
    ("select", "options", "places"),
    [
        ("CR_Core", (THREADS, ""), 4),
        ("CR_CPU", (THREADS, ""), 4),
        ("CR_CPU", ("", ""), 8),
        ("CR_Socket", ("Sockets=2 CoresPerSocket=4 ThreadsPerCore=1", ""), 2),
        ("CR_Core", ("", "OverSubscribe=EXCLUSIVE"), 1),
        ("CR_Core", ("Sockets=2 CoresPerSocket=4 ThreadsPerCore=1", "SelectTypeParameters=CR_Socket"), 2),
    ],
    ids=["cores", "threads", "processors", "sockets", "nodes", "sockets of a partition"],
)
async def test_as_many_jobs_run_as_there_are_places(
    started: ExitStack, tmp_path: Path, select: str, options: tuple[str, str], places: int
) -> None:
    """Before, all places are idle; with more jobs than places all are taken, and no more jobs run."""
    of_nodes, of_partition = options
    cluster = started.enter_context(
        SlurmCluster(
            "x",
            nodes=1,
            cpus=CPUS,
            settings={"SelectTypeParameters": select},
            node_options=of_nodes,
            partition_options=of_partition,
        )
    )
    lrm = SlurmLrm(new_context(tmp_path), SlurmSettings.model_validate(cluster.plugin_settings))
    await lrm.start()

    async def counted() -> tuple[int, int]:
        listing = Listing(read_at=0.0, jobs=(), nodes=await lrm.nodes())
        return listing.processors, listing.idle

    assert await counted() == (places, places)
    job = cluster.submit("#!/bin/sh\nexec sleep 600\n", "-n1", f"--array=1-{CPUS + 2}", "--output=/dev/null")

    def settled() -> bool:
        waiting = cluster.squeue(f"--jobs={job}", "--states=PENDING")
        return bool(waiting) and {reason for *_, reason in waiting} <= {"Resources", "Priority"}

    wait_until(settled, seconds=90, what="all that can run does")
    assert len(cluster.squeue(f"--jobs={job}", "--states=RUNNING")) == places
    assert await counted() == (places, 0)
    await lrm.close()
