# SPDX-License-Identifier: Apache-2.0
"""What jobs need beside processors, as ``koala schedule`` sees it, is what a real Slurm gives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.real.scheduling import Scheduling
from tests.real.systems import SlurmCluster
from tests.real.systems.requirements import missing_for_slurm, require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real("slurmctld", "slurmd")]

SITE_PIECE = Path(__file__).parents[2] / "conf" / "job_submit.lua"
SETTINGS = {
    "JobSubmitPlugins": "lua",
    "SelectTypeParameters": "CR_Core_Memory",
    "DefMemPerCPU": "100",
    "Licenses": "x:2",
    "GresTypes": "gpu",
}


@pytest.fixture(scope="module")
def module_cluster() -> Iterator[SlurmCluster]:
    """Run two nodes of four cores with two threads, two GPUs and 4000 MiB each; tests take `cluster`."""
    require(missing_for_slurm(lua=True))
    threads = "Sockets=1 CoresPerSocket=4 ThreadsPerCore=2"
    cluster = SlurmCluster("needs", nodes=2, cpus=8, settings=SETTINGS, gres=("gpu", 2), node_options=threads)
    (cluster.directory / SITE_PIECE.name).write_text(SITE_PIECE.read_text())
    with cluster:
        yield cluster


@pytest.fixture
def cluster(module_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Return the cluster without jobs."""
    yield module_cluster
    module_cluster.reset()


JOBS = 5


@pytest.mark.parametrize(
    ("options", "together"),
    [
        (("--gres=gpu:1",), 4),
        (("--gres=gpu:2",), 2),
        (("--gres=gpu:1", "--cpus-per-gpu=4"), 4),
        (("--gres=gpu:1", "--cpus-per-gpu=6"), 2),
        (("--gres=gpu:1", "--mem-per-gpu=2500"), 2),
        (("--mem=1500",), 4),
        (("--mem-per-cpu=1000",), 4),
        (("--licenses=x",), 2),
        (("--licenses=x:2",), 1),
        (("--ntasks=2", "--threads-per-core=1"), 4),
        (("--ntasks=2", "--hint=nomultithread"), 4),
        (("--ntasks=2", "--mem-per-cpu=1000", "--hint=nomultithread"), 4),
        (("--ntasks=4", "--threads-per-core=2"), 4),
        (("--cpus-per-task=2", "--hint=nomultithread"), 4),
        (("--ntasks=4", "--nodes=2", "--hint=nomultithread"), 2),
        (("--ntasks=3", "--nodes=2", "--hint=nomultithread"), 2),
        (("--ntasks=5", "--nodes=2"), 2),
        (("--exclusive",), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_as_many_run_together_as_slurm_has_room_for(
    options: tuple[str, ...], together: int, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """No more are started, so none in vain, and no fewer; the rest follows."""
    expect_together(Scheduling(tmp_path, cluster), options, together)


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
    require(missing_for_slurm(lua=True))
    cluster = SlurmCluster(
        "gives",
        nodes=1,
        cpus=8,
        settings={"JobSubmitPlugins": "lua", "SelectTypeParameters": parameters},
        node_options="Sockets=2 CoresPerSocket=2 ThreadsPerCore=2",
        partition_options=f" {partition}",
    )
    (cluster.directory / SITE_PIECE.name).write_text(SITE_PIECE.read_text())
    with cluster:
        expect_together(Scheduling(tmp_path, cluster), options, together)


@pytest.fixture(scope="module")
def typed_cluster() -> Iterator[SlurmCluster]:
    """Run a node with two GPUs of each of two types, four shards of each, and a bandwidth of 4 Mi; see `typed`."""
    require(missing_for_slurm(lua=True))
    cluster = SlurmCluster(
        "typed",
        nodes=1,
        cpus=8,
        settings={"JobSubmitPlugins": "lua", "GresTypes": "gpu,shard,bandwidth"},
        node_options="Gres=gpu:tesla:2,gpu:kepler:2,shard:16,bandwidth:lustre:4M",
    )
    (cluster.directory / SITE_PIECE.name).write_text(SITE_PIECE.read_text())
    lines = ["Name=shard Count=16", "Name=bandwidth Type=lustre Count=4M Flags=CountOnly"]
    for type_ in ("tesla", "kepler"):
        devices = [cluster.directory / f"{type_}{number}" for number in range(2)]
        for device in devices:
            device.touch()
        lines.insert(0, f"Name=gpu Type={type_} File={','.join(map(str, devices))}")
    (cluster.directory / "gres.conf").write_text("\n".join(lines) + "\n")
    with cluster:
        yield cluster


@pytest.fixture
def typed(typed_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """Return the cluster without jobs."""
    yield typed_cluster
    typed_cluster.reset()


@pytest.mark.parametrize(
    ("resources", "together"),
    [
        ("gpu:1", 4),
        ("gpu:tesla:1", 2),
        ("gpu:tesla:2", 1),
        ("gpu:tesla:1,gpu:kepler:1", 2),
        ("shard:4", 4),
        ("shard:3", 4),
        ("bandwidth:1M", 4),
        ("bandwidth:lustre:1M", 4),
        ("bandwidth:1536K", 2),
        ("bandwidth:lustre:1048577", 3),
        ("gpu:tesla:1,bandwidth:1K", 2),
        ("gpu:1,bandwidth:2M", 2),
    ],
)
def test_resources_with_types_and_units(resources: str, together: int, typed: SlurmCluster, tmp_path: Path) -> None:
    """Counts with K and M, types of a resource, and shards of GPUs."""
    expect_together(Scheduling(tmp_path, typed), (f"--gres={resources}",), together)


def expect_together(scheduling: Scheduling, options: tuple[str, ...], together: int) -> None:
    """Submit some jobs and expect that so many of them run at once, and all in the end, without a start in vain."""
    assert isinstance(scheduling.system, SlurmCluster)
    names = [f"j{number}" for number in range(JOBS)]
    jobs = [
        scheduling.system.submit(scheduling.script_until_told(name), "--time=30", "--output=/dev/null", *options)
        for name in names
    ]
    with scheduling:
        scheduling.wait(lambda: len(scheduling.told("started")) == together, what=f"{together} of them run")
        # All that had room was decided in one look.
        assert len(scheduling.told("start")) == together
        for name in names:
            scheduling.let_end(name)
        scheduling.wait(lambda: set(jobs) <= set(scheduling.told("ended")), what="all have run")
    assert scheduling.told("not started") == {}
    assert scheduling.traces() == {name: ["run", "end"] for name in names}
