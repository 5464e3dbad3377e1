# SPDX-License-Identifier: Apache-2.0
"""Setup, software and containers of ranks: what each runner has an agent run before a program, and around it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import ClusterName, Launcher
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.mpi import AdaptiveMpiRunner, MpiRunner
from koala_adapter.runners.nodes import ClusterSoftware
from koala_adapter.runners.restartedmpi import RestartedMpiRunner
from koala_adapter.runners.runner import AddressedSignal, Application, ProcessRunner, Runner
from koala_adapter.runners.workers import COMMAND, SweepRunner, WorkersRunner
from koala_adapter.slots import Slot
from tests.unit.runners import test_runners, test_workers

EAST = ClusterSoftware(
    setup=("site east",),
    software={"gromacs": ("load gromacs", "check"), "cp2k": ("load cp2k",)},
    container_runtime="apptainer",
)
WEST = ClusterSoftware(software={"gromacs": ("load gromacs/west",)}, container_runtime="podman")


def application(launcher: Launcher = Launcher.PROCESS, **changes: Any) -> Application:  # noqa: ANN401 - any key
    """Return a job of components on both clusters, with the same changes to each component."""
    found = test_runners.application(launcher, working_directory="/data")
    components = tuple(replace(one, **changes) for one in found.job.components)
    return replace(found, job=replace(found.job, components=components), software={"east": EAST, "west": WEST})


def test_lines_go_from_the_site_to_the_component() -> None:
    """Those of the cluster first, then of the software in its order, then the component's own."""
    one = application(setup=("own",), software=("gromacs",))
    assert [launch.launch.setup for launch in ProcessRunner(one).launches()] == [
        ("site east", "load gromacs", "check", "own"),
        ("site east", "load gromacs", "check", "own"),
        ("load gromacs/west", "own"),
    ]


@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        (ProcessRunner, Launcher.PROCESS),
        (WorkersRunner, Launcher.PROCESS),
        (SweepRunner, Launcher.PROCESS),
        (AdaptiveRunner, Launcher.PROCESS),
        (MpiRunner, Launcher.MPI),
        (AdaptiveMpiRunner, Launcher.MPI),
        (RestartedMpiRunner, Launcher.MPI),
    ],
)
def test_every_runner_has_the_lines_run(kind: type[Runner], launcher: Launcher) -> None:
    """Before each process of a rank, and before mpiexec, which a module may bring."""
    runner = kind(application(launcher, setup=("own",)))
    found = list(runner.launches())
    found += test_runners.printed(runner, test_runners.PROXY.format(1).encode()).launches
    assert {launch.launch.setup for launch in found} == {("site east", "own"), ("own",)} - (
        {("own",)} if kind in {MpiRunner, AdaptiveMpiRunner} else set()
    )


def test_the_command_that_asks_a_worker_to_end_runs_in_the_same_environment() -> None:
    """With its lines, and in its container."""
    base = test_workers.application(test_workers.rank(1, "beta"))
    worker = replace(
        base.job.component("worker"),
        setup=("own",),
        container="image.sif",
        retirement=replace(base.job.component("worker").retirement, command=("leave", "now")),
    )
    job = replace(base.job, components=(base.job.component("head"), worker))
    runner = WorkersRunner(replace(base, job=job, software={"beta": EAST}))
    (order,) = runner.retire([1], 0.0)
    assert not isinstance(order, AddressedSignal)
    assert order.launch.setup == ("site east", "own")
    assert order.launch.argv[-3:] == ("image.sif", "leave", "now")


def test_tasks_of_a_sweep_run_in_the_container() -> None:
    """The launcher does not: it needs a Python of the node. It gets what stands before each command."""
    plain = next(iter(SweepRunner(application()).launches())).launch.argv
    contained = next(iter(SweepRunner(application(container="image.sif")).launches())).launch.argv
    assert plain == COMMAND
    assert contained[: len(COMMAND)] == COMMAND
    assert contained[-1] == "image.sif"


def test_lines_before_mpiexec_find_what_those_before_the_first_rank_find() -> None:
    """Variables of its component among them; without lines mpiexec has those of the job alone."""
    (launcher,) = MpiRunner(application(Launcher.MPI, setup=("own",))).launches()
    environment = dict(launcher.launch.environment)
    assert (environment["OWN"], environment["SHARED"], environment["KOALA_CLUSTER"]) == ("a", "a", "east")
    bare = replace(application(Launcher.MPI), software={})
    (launcher,) = MpiRunner(bare).launches()
    assert launcher.launch.environment == bare.job.environment


def test_mpi_runs_the_program_in_the_container_and_nothing_else() -> None:
    """Mpiexec and its proxies are those of the node: the command of the rank has the container in front."""
    runner = MpiRunner(application(Launcher.MPI, container="image.sif"))
    (launcher,) = runner.launches()
    assert launcher.launch.argv[0] == "mpiexec.hydra"
    (proxy,) = test_runners.printed(runner, test_runners.PROXY.format(1).encode()).launches
    assert proxy.launch.argv[0] == "/usr/bin/hydra_pmi_proxy"
    command = shlex.split(dict(proxy.launch.environment)["KOALA_COMMAND"])
    assert command[-4:] == ["image.sif", "program", "a", "an argument; with $things"]


@pytest.mark.parametrize(
    ("changes", "lack"),
    [
        ({"software": ("gromacs", "cp2k")}, "cluster west, component 'b': its software in the site file"),
        ({"container": "x"}, "cluster north, component 'b': the site file names no container_runtime"),
    ],
)
def test_what_the_site_file_has_no_more_is_refused(changes: dict[str, Any], lack: str) -> None:
    """It may have been changed between the placement of a job and its launch."""
    one = application(**changes)
    if "container" in changes:
        one = replace(one, ranks=(*one.ranks[:-1], replace(one.ranks[-1], cluster=ClusterName("north"))))
    with pytest.raises(ConfigurationError, match=lack):
        one.check_clusters()
    application(software=("gromacs",), container="x").check_clusters()


STAND_IN = """\
#!{python}
import json, os, sys
with open(os.environ["SAID"], "w") as file:
    json.dump(sys.argv, file)
at = sys.argv.index("an image")
os.environ.update(one.split("=", 2)[1:] for one in sys.argv[:at] if one.startswith("--env=") and one.count("=") == 2)
os.execvp(sys.argv[at + 1], sys.argv[at + 1 :])
"""
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]))"


@pytest.mark.parametrize(("runtime", "gpus"), [("apptainer", 0), ("singularity", 1), ("podman", 1)])
def test_containers_get_directory_variables_and_arguments(tmp_path: Path, runtime: str, gpus: int) -> None:
    """By a stand-in of each runtime, which says how it was called and runs the command on the node."""
    bin_, private, work = (tmp_path / name for name in ("bin", "private dir", "work dir"))
    for directory in (bin_, private, work):
        directory.mkdir()
    (bin_ / runtime).write_text(STAND_IN.format(python=sys.executable))
    (bin_ / runtime).chmod(0o755)
    software = ClusterSoftware(container_runtime=runtime)
    component = replace(application().job.components[0], container="an image", slot=Slot(gpus=gpus))
    before = software.container_of(component, ("SECRET", "BASH_FUNC_module%%"))
    environment = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "SAID": str(tmp_path / "said"),
        "KOALA_STDOUT": str(private / "out"),
        "SECRET": "a word of which others must not know",
    }
    done = subprocess.run(
        (*before, sys.executable, "-c", SHOW, "a b", "$HOME", ""),
        cwd=work,
        env=environment,
        check=True,
        capture_output=True,
    )
    arguments, directory, found = json.loads(done.stdout)
    assert (arguments, directory) == (["a b", "$HOME", ""], str(work))
    assert found["KOALA_STDOUT"] == environment["KOALA_STDOUT"]
    said = json.loads((tmp_path / "said").read_text())[1:]
    options = said[: said.index("an image")]
    assert environment["SECRET"] not in " ".join([*said, *before])
    if runtime == "podman":
        assert options[:2] == ["run", "--rm"]
        assert {f"--volume={private}:{private}", f"--volume={work}:{work}", f"--workdir={work}"} <= set(options)
        assert f"--env=KOALA_STDOUT={private}/out" in options
        assert {"--env=KOALA_*", "--env=SECRET", "--env=BASH_FUNC_module%%"} <= set(options)
    else:
        expected = ["exec", *(["--nv"] if gpus else []), "--bind", str(private), "--bind", str(work)]
        assert options == [*expected, "--pwd", str(work)]
