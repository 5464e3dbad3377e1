# SPDX-License-Identifier: Apache-2.0
"""An outside scheduler of Slurm: what jobs need, and listings by its library."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.real.serving import HoldingCluster, Scheduling
from tests.real.systems import SlurmCluster
from tests.real.systems.requirements import require
from tests.real.test_schedule_slurm import submit, unfinished
from tests.real.test_slurm_library import releases

# -- What jobs need beside processors, as ``koala schedule`` sees it, is what a real Slurm gives them.


SETTINGS = {
    "SelectTypeParameters": "CR_Core_Memory",
    "DefMemPerCPU": "100",
    "Licenses": "x:2",
    "GresTypes": "gpu",
}


@contextmanager
def scheduled(cluster: SlurmCluster, directory: Path) -> Iterator[Scheduling[SlurmCluster]]:
    """Run a cluster, and one ``koala schedule`` for all jobs of a test or a module."""
    with cluster:
        scheduling = Scheduling(directory, cluster)
        with scheduling.ended(), scheduling:
            yield scheduling


@pytest.fixture(scope="module")
def scheduling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduling[SlurmCluster]]:
    """Schedule two nodes of four cores with two threads, two GPUs and 4000 MiB each."""
    threads = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2"
    cluster = HoldingCluster("needs", nodes=2, cpus=8, settings=SETTINGS, gres=("gpu", 2), node_options=threads)
    with scheduled(cluster, tmp_path_factory.mktemp("needs")) as running:
        yield running


def by_night(*case: object) -> object:
    """Return a case that differs from one by day in numbers alone."""
    return pytest.param(*case, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("options", "together"),
    [
        (("--gres=gpu:1",), 4),
        (("--gres=gpu:2",), 2),
        by_night(("--gres=gpu:1", "--cpus-per-gpu=4"), 4),
        (("--gres=gpu:1", "--cpus-per-gpu=6"), 2),
        (("--gres=gpu:1", "--mem-per-gpu=2500"), 2),
        (("--mem=1500",), 4),
        (("--mem-per-cpu=1000",), 4),
        (("--licenses=x",), 2),
        by_night(("--licenses=x:2",), 1),
        by_night(("--ntasks=2", "--threads-per-core=1"), 4),
        (("--ntasks=2", "--hint=nomultithread"), 4),
        (("--ntasks=2", "--mem-per-cpu=1000", "--hint=nomultithread"), 4),
        by_night(("--ntasks=4", "--threads-per-core=2"), 4),
        (("--cpus-per-task=2", "--hint=nomultithread"), 4),
        (("--ntasks=4", "--nodes=2", "--hint=nomultithread"), 2),
        by_night(("--ntasks=3", "--nodes=2", "--hint=nomultithread"), 2),
        (("--ntasks=5", "--nodes=2"), 2),
        (("--exclusive",), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_as_many_run_together_as_slurm_has_room_for(
    options: tuple[str, ...], together: int, scheduling: Scheduling[SlurmCluster]
) -> None:
    """No more are started, so none in vain, and no fewer; the rest follows."""
    expect_together(scheduling, options, together)


@pytest.mark.parametrize(
    ("parameters", "partition", "options", "together"),
    [
        ("CR_Core,CR_ONE_TASK_PER_CORE", "", ("--ntasks=2",), 2),
        ("CR_Core,CR_ONE_TASK_PER_CORE", "", ("--ntasks=2", "--ntasks-per-core=2"), 4),
        ("CR_Core", "SelectTypeParameters=CR_Socket", (), 2),
        ("CR_Core", "OverSubscribe=EXCLUSIVE", (), 1),
    ],
)
def test_what_the_site_gives_together(
    parameters: str, partition: str, options: tuple[str, ...], together: int, tmp_path: Path
) -> None:
    """Cores to each task, and sockets or whole nodes in a partition."""
    cluster = HoldingCluster(
        "gives",
        nodes=1,
        cpus=8,
        settings={"SelectTypeParameters": parameters},
        node_options="Sockets=2 CoresPerSocket=2 ThreadsPerCore=2",
        partition_options=f" {partition}",
    )
    with scheduled(cluster, tmp_path) as scheduling:
        expect_together(scheduling, options, together)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduling[SlurmCluster]]:
    """Schedule a node with two GPUs of each of two types, four shards of each, and a bandwidth of 4 Mi."""
    cluster = HoldingCluster(
        "typed",
        nodes=1,
        cpus=8,
        settings={"GresTypes": "gpu,shard,bandwidth"},
        node_options="Gres=gpu:tesla:2,gpu:kepler:2,shard:16,bandwidth:lustre:4M",
    )
    lines = ["Name=shard Count=16", "Name=bandwidth Type=lustre Count=4M Flags=CountOnly"]
    for type_ in ("tesla", "kepler"):
        devices = [cluster.directory / f"{type_}{number}" for number in range(2)]
        for device in devices:
            device.touch()
        lines.insert(0, f"Name=gpu Type={type_} File={','.join(map(str, devices))}")
    (cluster.directory / "gres.conf").write_text("\n".join(lines) + "\n")
    with scheduled(cluster, tmp_path_factory.mktemp("typed")) as running:
        yield running


@pytest.mark.parametrize(
    ("resources", "together"),
    [
        ("gpu:1", 4),
        ("gpu:tesla:1", 2),
        by_night("gpu:tesla:2", 1),
        ("gpu:tesla:1,gpu:kepler:1", 2),
        ("shard:4", 4),
        by_night("shard:3", 4),
        by_night("bandwidth:1M", 4),
        by_night("bandwidth:lustre:1M", 4),
        ("bandwidth:1536K", 2),
        ("bandwidth:lustre:1048577", 3),
        ("gpu:tesla:1,bandwidth:1K", 2),
        by_night("gpu:1,bandwidth:2M", 2),
    ],
)
def test_resources_with_types_and_units(resources: str, together: int, typed: Scheduling[SlurmCluster]) -> None:
    """Counts with K and M, types of a resource, and shards of GPUs."""
    expect_together(typed, (f"--gres={resources}",), together)


def expect_together(scheduling: Scheduling[SlurmCluster], options: tuple[str, ...], together: int) -> None:
    """Submit one job more than have room: so many run at once, and all in the end, without a start in vain."""
    cluster, before = scheduling.system, len(scheduling.traces())
    names = [f"j{before + number}" for number in range(together + 1)]
    given = ("--time=30", "--output=/dev/null", *options)
    jobs = {cluster.submit(scheduling.script_until_told(name), *given) for name in names}
    try:
        scheduling.wait(lambda: len(jobs & {*scheduling.told("started")}) == together, what=f"{together} of them run")
        scheduling.wait(lambda: jobs <= {*scheduling.told("submitted")}, what="all are seen")
        assert len(jobs & {*scheduling.told("start")}) == together, scheduling.details()
        for name in names:
            scheduling.let_end(name)
        scheduling.wait(lambda: jobs <= {*scheduling.told("ended")}, what="all have run")
    finally:
        cluster.reset()
    assert not jobs & {*scheduling.told("not started")}
    assert {name: scheduling.traces()[name] for name in names} == {name: ["run", "end"] for name in names}


# -- ``koala schedule`` that reads and starts the jobs of a real Slurm by pyslurm; its helper, or itself, is killed.
# Skipped where pyslurm of the release under test is not installed (with KOALA_TEST_SLURM another Slurm is tested).


BY_LIBRARY = "by pyslurm: for Slurm "
GIVEN_UP = "pyslurm is not used"
HELPER = "library_helper.py"


@pytest.fixture
def library_cluster() -> Iterator[SlurmCluster]:
    """Run two nodes of four processors whose jobs come in held."""
    with HoldingCluster("bylib", nodes=2, cpus=4) as cluster:
        yield cluster


def require_library(cluster: SlurmCluster) -> None:
    """Skip the test where pyslurm does not have the release of a cluster."""
    found, installed = releases(cluster)
    require([] if installed == found else [f"pyslurm of Slurm {found}"])


def helpers(scheduling: Scheduling[SlurmCluster]) -> set[int]:
    """Return the processes of pyslurm that a scheduler has started and that have not ended."""
    log = str(scheduling.user.state)
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number = int(entry.name)
            words = (entry / "cmdline").read_bytes().split(b"\0")
            written = str((entry / "fd" / "2").readlink())
            if any(word.endswith(HELPER.encode()) for word in words) and written.startswith(log):
                found.add(number)
    return found


def is_said(scheduling: Scheduling[SlurmCluster], text: str) -> bool:
    """Tell whether the scheduler has logged something."""
    return any(text in line for line in scheduling.said())


def kill(scheduling: Scheduling[SlurmCluster]) -> set[int]:
    """Kill the helpers that there are, and return them."""
    found = helpers(scheduling)
    for helper in found:
        with suppress(ProcessLookupError):
            os.kill(helper, signal.SIGKILL)
    return found


@pytest.mark.never_required
def test_helper_that_is_killed_again_and_again(library_cluster: SlurmCluster, tmp_path: Path) -> None:
    """A new one goes on where it was killed once; after three deaths in a row commands do; all jobs run once."""
    require_library(library_cluster)
    scheduling = Scheduling(tmp_path, library_cluster)
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


@pytest.mark.never_required
def test_scheduler_that_is_killed(library_cluster: SlurmCluster, tmp_path: Path) -> None:
    """Its helper ends by itself; started again it knows what runs and what waits, and each job runs once."""
    require_library(library_cluster)
    scheduling = Scheduling(tmp_path, library_cluster)
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
        scheduling.wait(lambda: not unfinished(library_cluster), what="nothing left")
        scheduling.wait(lambda: {wide, *jobs} <= set(scheduling.told("ended")), what="the ends are seen")
        scheduling.stop()
    assert all(found == ["run", "end"] for found in scheduling.traces().values())
    assert sum(BY_LIBRARY in line for line in scheduling.said()) == 2


@pytest.mark.never_required
def test_library_of_another_release(library_cluster: SlurmCluster, tmp_path: Path) -> None:
    """Jobs are scheduled by commands, and the reason is logged."""
    found, installed = releases(library_cluster)
    require([] if installed not in {"", found} else [f"pyslurm of another release than Slurm {found}"])
    scheduling = Scheduling(tmp_path, library_cluster)
    job = submit(scheduling, "job", 8)
    with scheduling:
        scheduling.wait(lambda: job in scheduling.told("ended"), what="it has run")
        assert is_said(scheduling, f"pyslurm is for Slurm {installed}, and the controller runs {found}")
        assert helpers(scheduling) == set()
