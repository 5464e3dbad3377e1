# SPDX-License-Identifier: Apache-2.0
"""Two PBS servers, a Slurm and a local cluster beside each other: fakes, with real agents and the real command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fakes.pbs import FakePbs
from tests.fakes.slurm import FakeSlurm
from tests.local_koala import Koala

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SITE = """\
[control_center]
listen = "127.0.0.1"
lease = 120
heartbeat = 1

[scheduler]
scan_interval = 0.5
"""
CLUSTER = """
[[clusters]]
name = "{name}"
plugin = "{plugin}"
poll_interval = 0.5
requests_per_minute = 6000
[clusters.settings]
{settings}
"""
PART = """
[[components]]
name = "on-{cluster}"
cluster = "{cluster}"
command = ["sh", "-c", "echo rank $KOALA_RANK of $KOALA_SIZE on {cluster}"]
processors = {processors}
"""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[FakePbs, FakePbs]]:
    """Give two servers, each with a pbs.conf of its own; both number their jobs from 1."""
    found = FakePbs(tmp_path / "p"), FakePbs(tmp_path / "q", max_array_size=1)
    yield found
    for server in found:
        server.close()


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    """Give a Slurm."""
    cluster = FakeSlurm(tmp_path / "r")
    yield cluster
    cluster.close()


@pytest.fixture
def koala(tmp_path: Path, servers: tuple[FakePbs, FakePbs], slurm: FakeSlurm) -> Iterator[Koala]:
    """Give a user whose site has all four."""
    koala = Koala(tmp_path)
    systems: dict[str, tuple[str, FakePbs | FakeSlurm]] = {
        "p": ("pbs", servers[0]),
        "q": ("pbs", servers[1]),
        "r": ("slurm", slurm),
    }
    text = SITE
    for name, (plugin, system) in systems.items():
        settings = f'conf = "{system.conf}"\nbin_directory = "{system.bin_directory}"'
        text += CLUSTER.format(name=name, plugin=plugin, settings=settings)
    text += CLUSTER.format(name="alpha", plugin="local", settings="processors = 2\nidle_seconds = 60")
    koala.site_file.write_text(text)
    yield koala
    koala.close()


def test_one_job_over_all_of_them(koala: Koala, servers: tuple[FakePbs, FakePbs], tmp_path: Path) -> None:
    """Placeholders as an array on one PBS, singly on the other, and on Slurm and local: all ranks start together."""
    sizes = {"p": 3, "q": 2, "r": 2, "alpha": 1}
    job = tmp_path / "job.toml"
    parts = (PART.format(cluster=cluster, processors=count) for cluster, count in sizes.items())
    job.write_text('name = "wide"\nwalltime = 600\n' + "".join(parts))
    done = koala.run("run", str(job))
    lines = sorted(line.partition(": ")[2] for line in done.stdout.splitlines())
    places = [cluster for cluster, count in sizes.items() for _ in range(count)]
    assert lines == [f"rank {rank} of 8 on {cluster}" for rank, cluster in enumerate(places)]
    shown = [server.run("qstat", "-x", "-t", "-f", "-F", "json") for server in servers]
    assert [text.count('"array":') for text in shown] == [1, 0]
    assert [text.count('"PBS_ARRAY_INDEX":') for text in shown] == [0, 2]
