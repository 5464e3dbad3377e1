# SPDX-License-Identifier: Apache-2.0
"""An MPI program whose processes come and go, on local clusters: they are spawned, and the result is right."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests.local_koala import Koala, eventually
from tests.mpi_by_hand import HandLauncher, of_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STEPS = "150"


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors, and end all of it afterwards."""
    one = Koala(tmp_path)
    try:
        yield one
    finally:
        one.close()


def size(koala: Koala, job: str = "1") -> int:
    """Return how many processors a job has."""
    return sum(one["processors"] for one in koala.json("status", job)["components"])


def test_nbody_grows_and_shrinks_over_two_clusters(koala: Koala, tmp_path: Path) -> None:
    """2 to 5 to 3 processes; the end state is that of fixed size."""
    mpich = of_wheel()
    if mpich is None:
        pytest.skip("the PyPI package mpich is not installed")
    program = mpich.compile("nbody", tmp_path)
    path = f"{mpich.commands}:{os.environ['PATH']}"
    file = tmp_path / "nbody.toml"
    file.write_text(
        'name = "nbody"\nkind = "malleable"\nrunner = "adaptive"\nlauncher = "mpi"\nwalltime = 600\n'
        f"environment = {{ PATH = {json.dumps(path)} }}\n"
        f'[[components]]\nname = "bodies"\ncommand = {json.dumps([str(program), "100", STEPS, "0.1"])}\n'
        "minimum = 1\nmaximum = 5\ninitial = 2\nflexible = true\n"
    )
    site = koala.site_file.read_text()
    koala.site_file.write_text(site.replace('plugin = "local"', 'plugin = "local"\nmpi_resize = "spawn"'))
    koala.serve()
    koala.run("submit", str(file))
    eventually(lambda: size(koala) == 5)
    koala.run("resize", "1", "3")
    eventually(lambda: size(koala) == 3)
    eventually(lambda: koala.json("status", "1")["outcome"] is not None)
    assert koala.json("status", "1")["outcome"]["exit_code"] == 0, koala.run("explain", "1").stdout
    lines = (koala.state / "jobs" / "1" / "bodies" / "0.out").read_text().splitlines()
    with HandLauncher(mpich, [str(program), "100", STEPS], size=2, environment={}) as fixed:
        assert fixed.wait() == 0
    assert lines[-1] == fixed.text[-1]
    sizes = [int(line.split(": ")[1].split()[0]) for line in lines[:-1]]
    assert (sizes[0], max(sizes), sizes[-1]) == (2, 5, 3), lines
    eventually(lambda: koala.placeholders() == [])
