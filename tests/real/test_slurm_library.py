# SPDX-License-Identifier: Apache-2.0
"""pyslurm on a real Slurm: the same values as the commands give, changes, and what happens without it.

Skipped where pyslurm of the release under test is not installed (with KOALA_TEST_SLURM another Slurm is tested).
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from koala_adapter.errors import LrmNotFoundError, LrmUnavailableError
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_adapter.testing import eventually, new_context
from koala_adapter.testing.trial import begin_start
from koala_slurm import SlurmSettings
from koala_slurm.listing import release_of
from koala_slurm.lrm import SlurmLrm
from tests.real.systems import SlurmCluster
from tests.real.systems.processes import CommandError, wait_until
from tests.real.systems.requirements import require

pytestmark = pytest.mark.never_required

SETTINGS = {"SelectTypeParameters": "CR_Core_Memory", "DefMemPerCPU": "100", "Licenses": "x:2"}
SLEEP = "#!/bin/sh\nexec sleep 600\n"

WAITING: Mapping[str, tuple[str, ...]] = {
    "plain": ("-n1",),
    "as many nodes as it needs": ("-n6",),
    "range of nodes": ("-N1-2", "-n2"),
    "two nodes": ("-N2-2", "-n3"),
    "processors of tasks": ("-n2", "-c2"),
    "tasks on nodes": ("-n4", "--ntasks-per-node=2"),
    "tasks on cores": ("-n2", "--ntasks-per-core=1"),
    "threads of cores": ("-n2", "--threads-per-core=1"),
    "tasks on sockets": ("-n2", "--ntasks-per-socket=1"),
    "nodes by name": ("-n2", "--nodelist=n2"),
    "not these nodes": ("-n1", "--exclude=n[1]"),
    "memory of nodes": ("-n1", "--mem=300"),
    "memory of processors": ("-n2", "--mem-per-cpu=150"),
    "all memory": ("-n1", "--mem=0"),
    "disk": ("-n1", "--tmp=1500"),
    "alone": ("-n1", "--exclusive"),
    "shared": ("-n1", "--oversubscribe"),
    "side by side": ("-N2", "--contiguous"),
    "switches": ("-n1", "--switches=1@5"),
    "all features": ("-n1", "--constraint=fast&big"),
    "any feature": ("-n1", "--constraint=fast|big"),
    "licence": ("-n1", "--licenses=x:1"),
    "no end": ("-n1", "--time=UNLIMITED"),
    "days": ("-n1", "--time=2-3:30"),
    "later": ("-n1", "--begin=now+3days"),
    "comment": ("-n1", "--comment=two\nlines [koala: place 3]"),
    "comment None": ("-n1", "--comment=None"),
    "letters": ("-n1", "--job-name=Größe", "--comment=é"),
    "no UTF-8": ("-n1", "--comment=caf\udce9"),
    "no UTF-8 in an array": ("-n1", "--comment=caf\udce9", "--array=1-2"),
    "no dependency": ("-n1", "--nice=50"),
    "array": ("-n1", "--array=1-40:3%2"),
    "array from 0": ("-n2", "--array=0-3"),
    "after all of one name": ("-n1", "--dependency=singleton"),
    "several partitions": ("-n1", "--partition=main,other"),
    "cores for the system": ("-n1", "--core-spec=1"),
}


def releases(cluster: SlurmCluster) -> tuple[str, str]:
    """Return the release of a cluster, and that of pyslurm; empty where it is not installed."""
    found = release_of(cluster.run("scontrol", "--version").split()[-1])
    try:
        return found, release_of(version("pyslurm"))
    except PackageNotFoundError:
        return found, ""


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[SlurmCluster]:
    """Run two nodes of four processors with features, two GPUs and licences; tests take `cluster`."""
    cluster = SlurmCluster("library", nodes=2, cpus=4, settings=SETTINGS, node_options="Feature=fast,big TmpDisk=5000")
    with cluster:
        found, installed = releases(cluster)
        require([] if installed == found else [f"pyslurm of Slurm {found}"])
        yield cluster


@pytest.fixture
def cluster(module_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Return the cluster without jobs that wait or run."""
    module_cluster.run("scontrol", "create", "PartitionName=other", "Nodes=n2", "MaxTime=INFINITE")
    yield module_cluster
    # What resets a cluster signals jobs, and scancel tries that for long with jobs that wait.
    module_cluster.run("scancel", "--state=PENDING", "--user=root")
    module_cluster.run("scontrol", "delete", "PartitionName=other", check=False)
    module_cluster.reset()


def settings_of(cluster: SlurmCluster, access: str) -> SlurmSettings:
    return SlurmSettings.model_validate({**cluster.plugin_settings, "access": access})


def new_lrm(cluster: SlurmCluster, directory: Path, access: str) -> SlurmLrm:
    directory.mkdir(exist_ok=True)
    return SlurmLrm(new_context(directory), settings_of(cluster, access))


@pytest.fixture
async def by_commands(cluster: SlurmCluster, tmp_path: Path) -> AsyncIterator[SlurmLrm]:
    """Give the plugin that reads by commands."""
    lrm = new_lrm(cluster, tmp_path / "commands", "commands")
    await lrm.start()
    yield lrm
    await lrm.close()


@pytest.fixture
async def by_library(cluster: SlurmCluster, tmp_path: Path) -> AsyncIterator[SlurmLrm]:
    """Give the plugin that reads by pyslurm."""
    lrm = new_lrm(cluster, tmp_path / "library", "pyslurm")
    await lrm.start()
    yield lrm
    assert lrm.library is not None
    assert str(lrm.library.choice).startswith("by pyslurm: for Slurm ")
    await lrm.close()


async def same(by_commands: SlurmLrm, by_library: SlurmLrm) -> tuple[LrmJob, ...]:
    """Return the jobs, which both readers give alike, in the same order, with the same value in each field."""
    # What changed between the two listings is no difference: then both are asked again.
    while True:
        before = await by_commands.jobs_to_schedule()
        told = await by_library.jobs_to_schedule()
        if before == await by_commands.jobs_to_schedule():
            break
    assert [job.id for job in told] == [job.id for job in before]
    differing = [
        (one.id, one.name, field.name, getattr(one, field.name), getattr(other, field.name))
        for one, other in zip(before, told, strict=True)
        for field in fields(one)
        if getattr(one, field.name) != getattr(other, field.name)
    ]
    assert not differing
    return told


async def test_waiting_jobs_are_the_same(cluster: SlurmCluster, by_commands: SlurmLrm, by_library: SlurmLrm) -> None:
    """Held jobs of many kinds, and the same once more when they are released behind others, or changed."""
    blocker = cluster.submit(SLEEP, "-N2", "--exclusive", "--output=/dev/null")
    refused = []
    for name, options in WAITING.items():
        try:
            cluster.submit(SLEEP, "--hold", f"--job-name={name}", "--output=/dev/null", *options)
        except CommandError as error:
            refused.append((name, str(error)[-300:]))
    assert [name for name, _ in refused] == [], refused
    parent = cluster.submit(SLEEP, "--hold", "--job-name=parent", "--output=/dev/null")
    dependencies = f"--dependency=afterok:{parent},singleton"
    cluster.submit(SLEEP, "--hold", "--job-name=child", "--output=/dev/null", dependencies)
    cluster.submit(
        SLEEP, "--job-name=child array", "--array=1-3", "--output=/dev/null", f"-dafterany:{parent}?after:{blocker}"
    )
    cluster.run("sbatch", "--hold", "-n1", ":", "-n2", stdin=SLEEP)
    jobs = await same(by_commands, by_library)
    assert len(jobs) > len(WAITING)
    held = [job.id for job in jobs if job.state is LrmJobState.HELD and "_" not in job.id and "+" not in job.id]
    for job in held[::2]:
        cluster.run("scontrol", "release", job)
    cluster.run("scontrol", "update", f"JobId={held[-1]}", "TimeLimit=77", "ReqNodeList=n1", "AdminComment=x")
    jobs = await same(by_commands, by_library)
    assert next(job for job in jobs if job.id == held[-1]).walltime == 77 * 60
    cluster.run("scancel", parent)
    await same(by_commands, by_library)


async def test_running_and_ended_jobs_are_the_same(
    cluster: SlurmCluster, by_commands: SlurmLrm, by_library: SlurmLrm
) -> None:
    """Jobs on one node and on two, elements of arrays, ends of all kinds, and a job that is queued again."""
    ends = {
        cluster.submit("#!/bin/sh\nexit 0\n", "--output=/dev/null"),
        cluster.submit("#!/bin/sh\nexit 3\n", "--output=/dev/null"),
        cluster.submit("#!/bin/sh\nexit 130\n", "--output=/dev/null"),
        cluster.submit("#!/bin/sh\nkill -SEGV $$\n", "--output=/dev/null"),
        cluster.submit("#!/bin/sh\n[ $SLURM_ARRAY_TASK_ID != 1 ]\n", "--array=0-2", "--output=/dev/null"),
    }
    await same(by_commands, by_library)
    wait_until(
        lambda: not cluster.squeue(f"--jobs={','.join(ends)}", "--states=PENDING,RUNNING,COMPLETING"),
        seconds=120,
        what="all have ended",
    )
    running = [
        cluster.submit(SLEEP, "-n1", "--output=/dev/null"),
        cluster.submit(SLEEP, "-N2", "-n3", "--time=UNLIMITED", "--output=/dev/null"),
        cluster.submit(SLEEP, "-n1", "--output=/dev/null"),
        cluster.submit(SLEEP, "--array=0-1", "--output=/dev/null"),
    ]
    waiting = cluster.submit(SLEEP, "-n8", "--array=0-4", "--output=/dev/null")

    def all_run() -> bool:
        return {state for _, state, _ in cluster.squeue(f"--jobs={','.join(running)}")} == {"RUNNING"}

    wait_until(all_run, seconds=120, what="they run")
    jobs = await same(by_commands, by_library)
    assert sum(job.state is LrmJobState.RUNNING for job in jobs) == 5
    cluster.run("scontrol", "suspend", running[0])
    cluster.run("scancel", running[1], waiting + "_2")
    cluster.run("scontrol", "requeuehold", running[2])
    wait_until(
        lambda: {state for _, state, _ in cluster.squeue(f"--jobs={running[2]}")} == {"PENDING"},
        seconds=120,
        what="it is queued again",
    )
    await same(by_commands, by_library)


async def test_changes_do_what_the_commands_do(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job is tied, released, given time, written to, signalled and queued again by pyslurm; no more changes."""
    made: set[str] = set()
    context = new_context(tmp_path)
    context.commands.observer = lambda name, _seconds, _failure: made.add(name)
    by_library = SlurmLrm(context, settings_of(cluster, "pyslurm"))
    await by_library.start()
    await by_library.jobs_to_schedule()
    script = "#!/bin/sh\ntrap 'echo signalled' USR1\nwhile :; do sleep 0.2; done\n"
    output = cluster.directory / "changes.out"
    job = LrmJobId(cluster.submit(script, "--hold", "-n1", f"--output={output}", "--comment=mine", "--no-requeue"))
    await by_library.jobs_to_schedule()

    before = cluster.show(job)
    await by_library.modify(job, walltime=59 * 60)
    after = cluster.show(job)
    assert {name for name in before if before[name] != after[name]} == {"TimeLimit"}
    start = await begin_start(by_library, job, ["n2"])
    running = await eventually(
        by_library.jobs_to_schedule,
        lambda jobs: any(one.id == job and one.state is LrmJobState.RUNNING for one in jobs),
        what="it runs",
        seconds=60,
    )
    assert [one.nodes for one in running if one.id == job] == [("n2",)]
    await by_library.confirm_start(start)
    await by_library.notify(job, "hello there")
    await by_library.signal([job], signal.SIGUSR1)
    wait_until(
        lambda: "hello there" in output.read_text() and "signalled" in output.read_text(),
        seconds=60,
        what="message and signal",
    )
    await by_library.requeue([job])
    await eventually(
        by_library.jobs_to_schedule,
        lambda jobs: any(one.id == job and one.requeues == 1 for one in jobs),
        what="it is queued again",
        seconds=60,
    )
    with pytest.raises(LrmNotFoundError):
        await by_library.release([LrmJobId("999999")])
    changes = {"walltime", "pin", "release", "notify", "signal", "requeue"}
    assert made >= {f"pyslurm {change}" for change in changes}
    await by_library.close()


async def test_killed_helper(cluster: SlurmCluster, by_commands: SlurmLrm, tmp_path: Path) -> None:
    """A helper that is killed is started again, and tells all jobs again."""
    cluster.submit(SLEEP, "--hold", "--output=/dev/null")
    lrm = new_lrm(cluster, tmp_path / "dying", "auto")
    await lrm.start()
    assert await lrm.jobs_to_schedule() == await by_commands.jobs_to_schedule()
    assert lrm.library is not None
    first = lrm.library.client.helper_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    # Commands give the jobs where its death is not known yet.
    for _ in range(2):
        assert await lrm.jobs_to_schedule() == await by_commands.jobs_to_schedule()
    assert lrm.library.client.helper_pid not in {None, first}
    await lrm.close()


async def test_controller_that_does_not_answer(cluster: SlurmCluster, tmp_path: Path) -> None:
    """That is no fault of the library: the listing fails, and pyslurm is used again afterwards."""
    cluster.submit(SLEEP, "--hold", "--output=/dev/null")
    lrm = new_lrm(cluster, tmp_path / "silent", "auto")
    await lrm.start()
    listed = await lrm.jobs_to_schedule()
    cluster.stop_controller()
    try:
        with pytest.raises(LrmUnavailableError):
            await lrm.jobs_to_schedule()
    finally:
        cluster.start_controller()
    await eventually(
        lrm.jobs_to_schedule,
        lambda jobs: [job.id for job in jobs] == [job.id for job in listed],
        what="answers",
        seconds=60,
    )
    assert lrm.library is not None
    assert lrm.library.choice.by == "pyslurm"
    await lrm.close()


@pytest.fixture
def gpu_cluster() -> Iterator[SlurmCluster]:
    """Run a node with two GPUs."""
    with SlurmCluster("gpus", nodes=1, cpus=4, settings={"GresTypes": "gpu"}, gres=("gpu", 2)) as cluster:
        yield cluster


async def test_generic_resources(gpu_cluster: SlurmCluster, tmp_path: Path) -> None:
    """Where there are any, scontrol tells the details of all jobs: pyslurm does not show that a job asks for them."""
    cluster = gpu_cluster
    found, installed = releases(cluster)
    require([] if installed == found else [f"pyslurm of Slurm {found}"])
    for options in (("-n1",), ("-n1", "--gres=gpu:1"), ("-n1", "--gpus=2"), ("--gpus-per-node=1", "--cpus-per-gpu=2")):
        cluster.submit(SLEEP, "--hold", "--output=/dev/null", *options)
    commands, library = new_lrm(cluster, tmp_path / "c", "commands"), new_lrm(cluster, tmp_path / "l", "pyslurm")
    for lrm in (commands, library):
        await lrm.start()
    told = await same(commands, library)
    assert [bool(job.possible_nodes) for job in told] == [False, True, False, True]
    assert "not by node" in told[2].obstacle
    assert library.library is not None
    assert library.library.choice.by == "pyslurm"
    for lrm in (commands, library):
        await lrm.close()


async def test_library_of_another_release(slurm_a: SlurmCluster, tmp_path: Path) -> None:
    """It is not used, and the reason is told."""
    found, installed = releases(slurm_a)
    require([] if installed not in {"", found} else [f"pyslurm of another release than Slurm {found}"])
    lrm = new_lrm(slurm_a, tmp_path / "other", "auto")
    await lrm.start()
    await lrm.jobs_to_schedule()
    assert lrm.library is not None
    reason = f"pyslurm is for Slurm {installed}, and the controller runs {found}"
    assert str(lrm.library.choice) == f"by commands: pyslurm cannot be used: {reason}"
    await lrm.close()
