# SPDX-License-Identifier: Apache-2.0
"""Three sites that are reached by ssh alone, set up by ``koala init``, and this host: what runs over all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory

import pytest

from koala_adapter.api.offline import end_daemons
from tests.examplejobs import ALONE, write_nbody
from tests.real.systems.othersite import OtherSite
from tests.real.systems.processes import base_environment
from tests.real.test_other_sites import NEAR, Home
from tests.real.test_sites import QUICK

pytestmark = pytest.mark.real("slurmctld", "slurmd", "sge_qmaster", "sshd")

DELAY = 0.04
PROGRAM = """
import os, sys
from distributed import Client
import koala_adapter as koala
from koala_adapter.dask import KoalaCluster

def place(_):
    import os, time
    time.sleep(0.1)
    return os.readlink("/proc/self/ns/net")

if __name__ == "__main__":
    site, state = sys.argv[1:]
    wanted = dict(minimum=2, maximum=6, walltime="5m")
    with (
        koala.Site(site, state=state) as opened,
        koala.Executor(2, minimum=2, site=opened, cluster="delft", walltime="5m") as executor,
        KoalaCluster(site=site, state=state, **wanted) as cluster,
        Client(cluster) as client,
    ):
        print("+".join(set(executor.map(place, range(10)))), flush=True)
        client.wait_for_workers(5, timeout=180)
        print("+".join(set(client.gather(client.map(place, range(40))))), flush=True)
        parts = client.map(lambda number: bytes([number]) * 100_000, range(40))
        print(client.submit(lambda found: sum(map(sum, found)), parts).result(timeout=90), flush=True)
        input()  # until the connections to the sites have broken
        print("+".join(set(executor.map(place, range(10)))), flush=True)
        client.wait_for_workers(5, timeout=180)
        print(client.submit(lambda found: sum(map(sum, found)), parts, pure=False).result(timeout=90), flush=True)
"""
"""Prints in which networks workers of an executor and of a Dask cluster were, and a sum of their data.

After a break, it prints the first and the last once more."""


@pytest.fixture(scope="module")
def there() -> Iterator[Sequence[OtherSite]]:
    sites = (OtherSite("delft", delay=DELAY), OtherSite("utrecht"), OtherSite("leiden", system="sge"))
    with ExitStack() as stack, ThreadPoolExecutor() as together:
        yield [*together.map(stack.enter_context, sites)]


@pytest.fixture(scope="module")
def home(there: Sequence[OtherSite]) -> Iterator[Home]:
    """Run commands of koala with a site file that it has written itself."""
    with TemporaryDirectory(prefix="koala-") as directory:  # the path of a socket must be short
        home = Home(Path(directory), there[0], "")
        config = home.directory / "ssh_config"
        config.write_text("".join(site.ssh_config.read_text() for site in there))
        names = [word for site in there for word in ("--ssh", site.name)]
        home.run("init", *names, "--ssh-option=-F", f"--ssh-option={config}")
        home.site.write_text(home.site.read_text().replace("threshold = 0", QUICK) + NEAR.replace("near", "here"))
        yield home
        if home.client.running():  # a program has begun it for its workers
            home.run("serve", "--stop")
        end_daemons(home.state)


def test_one_job_over_three_sites_and_this_host(home: Home, there: Sequence[OtherSite]) -> None:
    """All that `koala init` writes passes the check; a job has all processors that there are, at four places."""
    checked = home.run("check")
    assert checked.splitlines()[-1].startswith("all ")
    speeds = dict(re.findall(r"^site (\w+)$.*?round trip ([0-9.]+) ms", checked, re.MULTILINE | re.DOTALL))
    assert float(speeds["delft"]) >= 2000 * DELAY
    assert "nodes of delft: do not connect to utrecht, leiden-gridengine, here" in " ".join(checked.split())
    said = home.run("run", "-n", "14", "--split", "--", "readlink", "/proc/self/ns/net")
    networks = re.findall(r"^c1/\d+: (net:\[\d+\])$", said, re.MULTILINE)
    assert len(networks) == 14
    assert set(networks) == {str(Path("/proc/self/ns/net").readlink()), *(site.network for site in there)}


def test_programs_of_mpi_and_adaptive_ones(home: Home, allreduce: Path, tmp_path: Path) -> None:
    """Ranks of MPI are within a site, as nodes of two do not connect; adaptive ones grow to other sites, by relay."""
    go = tmp_path / "go"
    go.touch()
    said = home.run("run", "--mpi", "-n", "4", "--cluster", "delft", "--", str(allreduce), str(go))
    assert len(re.findall(r"rank=\d size=4 .* sum=10$", said, re.MULTILINE)) == 4
    refused = home.refused("plan", "--mpi", "--split", "-n", "6", "--", str(allreduce), str(go))
    assert "which nodes of these clusters cannot: delft and here; delft and leiden-" in refused
    changes = (
        ("walltime =", "relay = true\nwalltime ="),
        ("minimum = 2", "minimum = 4\ninitial = 4"),
        ("= 16", "= 8"),
    )
    job = write_nbody(tmp_path, "malleable", *changes, rest=0.25)  # it grows before it ends, also on a busy machine
    sizes, digest = home.sizes_and_digest(job)
    assert digest == ALONE
    assert sizes[0] == 4
    assert max(sizes) > 4


def test_workers_at_sites_reach_a_program_here(home: Home, there: Sequence[OtherSite], tmp_path: Path) -> None:
    """Those of a sweep, of an executor and of a Dask cluster, which begin again when the connections have broken."""
    command = "echo {x} $(readlink /proc/self/ns/net)"
    home.run("sweep", "--cluster", "delft", "--", "sh", "-c", command, ":::", "x=1,2,3")
    latest = home.json("status")[-1]["id"]
    told = [json.loads(line)["stdout"] for line in home.run("results", str(latest), "--json").splitlines()]
    assert sorted(told) == [f"{number} {there[0].network}\n" for number in (1, 2, 3)]
    (tmp_path / "program.py").write_text(PROGRAM)
    program = [sys.executable, str(tmp_path / "program.py"), str(home.site), str(home.state)]
    with subprocess.Popen(program, env=base_environment(), stdin=PIPE, stdout=PIPE, text=True) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline().strip() == there[0].network
        networks = set(running.stdout.readline().strip().split("+"))
        assert len(networks) > 1
        total = running.stdout.readline()
        assert total == f"{sum(range(40)) * 100_000}\n"
        for site in there:
            site.end_connections()
        running.stdin.write("\n")
        running.stdin.close()
        assert running.stdout.read() == f"{there[0].network}\n{total}"
    assert running.returncode == 0
