# SPDX-License-Identifier: Apache-2.0
"""An MPI program whose processes come and go, on local clusters: they are spawned, and the result is right."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.local_koala import Koala, eventually
from tests.mpi_by_hand import HandLauncher, Mpich, of_system, of_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.local_koala import Running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def size(koala: Koala, job: str = "1") -> int:
    """Return how many processors a job has."""
    return sum(one["processors"] for one in koala.json("status", job)["components"])


def submit(koala: Koala, mpich: Mpich, command: Sequence[str], **component: int) -> Running:
    """Submit a job of launcher mpi, on clusters whose MPI can do what it can; return the service."""
    method = "spawn" if mpich.spawns else "restart"
    site = koala.site_file.read_text()
    koala.site_file.write_text(site.replace('plugin = "local"', f'plugin = "local"\nmpi_resize = "{method}"'))
    path = f"{mpich.commands}:{os.environ['PATH']}"
    keys = "".join(f"{name} = {value}\n" for name, value in component.items())
    file = koala.directory / "mpi.toml"
    file.write_text(
        'name = "mpi"\nkind = "malleable"\nrunner = "adaptive"\nlauncher = "mpi"\nwalltime = 600\n'
        f'working_directory = "{koala.directory}"\nenvironment = {{ PATH = {json.dumps(path)} }}\n'
        f'[[components]]\nname = "bodies"\ncommand = {json.dumps(list(command))}\n'
        f"minimum = 1\nflexible = true\n{keys}"
    )
    service = koala.serve()
    koala.inside("submit", str(file))
    return service


@pytest.fixture(params=["spawn", "restart"])
def mpich(request: pytest.FixtureRequest) -> Mpich:
    """An MPICH with dynamic processes, and that of the system, which has none."""
    found = of_wheel() if request.param == "spawn" else of_system()
    if found is None:
        pytest.skip("the PyPI package mpich is not installed" if request.param == "spawn" else "no MPICH of the system")
    return found


@pytest.mark.nightly  # tests/real shows the same
def test_nbody_grows_and_shrinks_over_two_clusters(koala: Koala, mpich: Mpich, tmp_path: Path) -> None:
    """2 to 5 to 3 processes; the end state is that of fixed size."""
    program, stop = mpich.compile("nbody", tmp_path), tmp_path / "stop"
    submit(koala, mpich, [str(program), "100", "100000", "0.1", str(stop)], maximum=5, initial=2)
    eventually(lambda: size(koala) == 5)
    koala.inside("resize", "1", "3")
    eventually(lambda: size(koala) == 3)
    stop.touch()
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    assert koala.json("status", "1")["outcome"]["exit_code"] == 0, koala.inside("explain", "1").stdout
    lines = (koala.state / "jobs" / "1" / "bodies" / "0.out").read_text().splitlines()
    steps = lines[-1].split(":")[0].removeprefix("step ")
    with HandLauncher(mpich, [str(program), "100", steps], size=2, environment={}) as fixed:
        assert fixed.wait() == 0
    assert lines[-1] == fixed.text[-1]
    sizes = [int(line.split(": ")[1].split()[0]) for line in lines[:-1]]
    assert (sizes[0], max(sizes), sizes[-1]) == (2, 5, 3), lines
    eventually(lambda: koala.placeholders() == [])
    assert not list(koala.directory.glob("koala-1-*")), "the directory of the keepers is gone"


@pytest.mark.nightly
def test_the_service_is_killed_between_two_changes(koala: Koala, mpich: Mpich, tmp_path: Path) -> None:
    """The next one goes on: it knows who was spawned as what, and in which directory the keepers meet."""
    program, stop = mpich.compile("nbody", tmp_path), tmp_path / "stop"
    service = submit(koala, mpich, [str(program), "100", "100000", "0.1", str(stop)], maximum=4)
    eventually(lambda: size(koala) == 4)
    service.kill()
    service.wait()
    koala.serve()
    koala.inside("resize", "1", "2")
    eventually(lambda: size(koala) == 2)
    koala.inside("resize", "1", "3")
    eventually(lambda: size(koala) == 3)
    stop.touch()
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    assert koala.json("status", "1")["outcome"]["exit_code"] == 0, koala.inside("explain", "1").stdout
    lines = (koala.state / "jobs" / "1" / "bodies" / "0.out").read_text().splitlines()
    assert " 3 processes" in lines[-2]
    assert "SHA-256" in lines[-1]
    eventually(lambda: koala.placeholders() == [])


@pytest.mark.nightly
@pytest.mark.parametrize("killed", ["$$", "$PPID $$"], ids=["program", "its shell, too"])
def test_a_process_that_ends_badly_ends_the_job(koala: Koala, mpich: Mpich, tmp_path: Path, killed: str) -> None:
    """Whoever of them it is, however the others hang in MPI then, and though mpiexec may end with 0."""
    program = mpich.compile("nbody", tmp_path)
    script = f'[ "$KOALA_RANK" != 1 ] || (sleep 2; kill -9 {killed}) & exec {program} 100 100000 0.1'
    submit(koala, mpich, ["sh", "-c", script], maximum=3, initial=2)
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    outcome = koala.json("status", "1")["outcome"]
    assert (outcome["state"], outcome["exit_code"] != 0) == ("failed", True), outcome
    eventually(lambda: koala.placeholders() == [])
    assert not list(koala.directory.glob("koala-1-*")), "the directory of the keepers is gone"
