# SPDX-License-Identifier: Apache-2.0
"""Three sites that are reached by ssh alone, set up by ``koala init``, and this host: what runs over all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory

import pytest

from koala_adapter.api.offline import end_daemons
from tests.examplejobs import ALONE, sizes_and_digest, write_nbody
from tests.real.systems.othersite import OtherSite
from tests.real.systems.processes import PATIENCE, CommandError, base_environment, run_command, wait_until
from tests.real.test_sites import QUICK

pytestmark = pytest.mark.real("slurmctld", "slurmd", "sge_qmaster", "sshd")

DELAY = 0.04
HERE = """
[[clusters]]
name = "here"
plugin = "local"
settings.processors = 2
"""
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
    with ExitStack() as stack:
        delft, utrecht = OtherSite("delft", delay=DELAY), OtherSite("utrecht")
        yield [stack.enter_context(site) for site in (delft, utrecht, OtherSite("leiden", system="sge"))]


class Koala:
    """A user of koala here, with a site file in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.file, self.state = directory, directory / "site.toml", directory / "state"

    def __call__(self, *arguments: str) -> str:
        """Return what a command prints. Raises CommandError."""
        command = [str(Path(sys.executable).with_name("koala")), "--site", str(self.file), "--state", str(self.state)]
        return run_command([*command, *arguments], environment=base_environment(), timeout=PATIENCE * 3)


@pytest.fixture(scope="module")
def koala(there: Sequence[OtherSite]) -> Iterator[Koala]:
    """Run commands of koala with a site file that it has written itself."""
    with TemporaryDirectory(prefix="koala-") as directory:  # the path of a socket must be short
        koala = Koala(Path(directory))
        config = koala.directory / "ssh_config"
        config.write_text("".join(site.ssh_config.read_text() for site in there))
        names = [word for site in there for word in ("--ssh", site.name)]
        koala("init", *names, "--ssh-option=-F", f"--ssh-option={config}")
        koala.file.write_text(koala.file.read_text().replace("threshold = 0", QUICK) + HERE)
        yield koala
        end_daemons(koala.state)


def test_one_job_over_three_sites_and_this_host(koala: Koala, there: Sequence[OtherSite]) -> None:
    """All that `koala init` writes passes the check; a job has all processors that there are, at four places."""
    checked = koala("check")
    assert checked.splitlines()[-1].startswith("all ")
    speeds = dict(re.findall(r"^site (\w+)$.*?round trip ([0-9.]+) ms", checked, re.MULTILINE | re.DOTALL))
    assert float(speeds["delft"]) >= 2000 * DELAY
    assert "nodes of delft: do not connect to utrecht, leiden-gridengine, here" in " ".join(checked.split())
    said = koala("run", "-n", "14", "--split", "--", "readlink", "/proc/self/ns/net")
    networks = re.findall(r"^c1/\d+: (net:\[\d+\])$", said, re.MULTILINE)
    assert len(networks) == 14
    assert set(networks) == {str(Path("/proc/self/ns/net").readlink()), *(site.network for site in there)}


def test_programs_of_mpi_and_adaptive_ones(koala: Koala, allreduce: Path, tmp_path: Path) -> None:
    """Ranks of MPI are within a site, as nodes of two do not connect; adaptive ones grow to other sites, by relay."""
    go = tmp_path / "go"
    go.touch()
    said = koala("run", "--mpi", "-n", "4", "--cluster", "delft", "--", str(allreduce), str(go))
    assert len(re.findall(r"rank=\d size=4 .* sum=10$", said, re.MULTILINE)) == 4
    with pytest.raises(CommandError, match="which nodes of these clusters cannot: delft and here; delft and leiden-"):
        koala("plan", "--mpi", "--split", "-n", "6", "--", str(allreduce), str(go))
    changes = (
        ("walltime =", "relay = true\nwalltime ="),
        ("minimum = 2", "minimum = 4\ninitial = 4"),
        ("= 16", "= 8"),
    )
    job = write_nbody(tmp_path, "malleable", *changes, rest=0.25)  # it grows before it ends, also on a busy machine
    sizes, digest = sizes_and_digest(re.sub(r"^\S+: ", "", koala("run", job), flags=re.MULTILINE))
    assert digest == ALONE
    assert sizes[0] == 4
    assert max(sizes) > 4


def test_workers_at_sites_reach_a_program_here(koala: Koala, there: Sequence[OtherSite], tmp_path: Path) -> None:
    """Those of a sweep, of an executor and of a Dask cluster, which begin again when the connections have broken."""
    koala("sweep", "--cluster", "delft", "--", "sh", "-c", "echo {x} $(readlink /proc/self/ns/net)", ":::", "x=1,2,3")
    latest = json.loads(koala("status", "--json"))[-1]["id"]
    told = [json.loads(line)["stdout"] for line in koala("results", str(latest), "--json").splitlines()]
    assert sorted(told) == [f"{number} {there[0].network}\n" for number in (1, 2, 3)]
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(koala.file), str(koala.state)]
    with subprocess.Popen(command, env=base_environment(), stdin=PIPE, stdout=PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline().strip() == there[0].network
        networks = set(program.stdout.readline().strip().split("+"))
        assert len(networks) > 1
        total = program.stdout.readline()
        assert total == f"{sum(range(40)) * 100_000}\n"
        for site in there:
            site.end_connections()
        program.stdin.write("\n")
        program.stdin.close()
        assert program.stdout.read() == f"{there[0].network}\n{total}"
    assert program.returncode == 0


def test_files_go_where_they_are_soonest(koala: Koala, tmp_path: Path) -> None:
    """Of sites with equal room a job gets the one to which the measured bandwidth is best."""
    (tmp_path / "data").write_bytes(bytes(5 * 1024**2))
    job = tmp_path / "job.toml"
    job.write_text(
        'walltime = "5m"\nplacement = "close-to-files"\n[[components]]\ncommand = ["true"]\nprocessors = 4\n'
        'input_files = ["data"]\n'
    )
    # Begins a service.
    submitted = json.loads(koala("submit", "--json", "-n", "1", "--cluster", "here", "--", "sleep", "600"))
    try:
        wait_until(
            lambda: koala("clusters", "--network").count(" measured ") == 3,
            seconds=2 * PATIENCE,
            what="each site is measured",
        )
        found = {one["name"]: one["network"] for one in json.loads(koala("clusters", "--json"))}
        (planned,) = json.loads(koala("plan", str(job), "--json"))["components"]
        far = {name: network for name, network in found.items() if network["site"]}
        assert planned["cluster"] == max(far, key=lambda name: far[name]["bandwidth"])
        assert planned["transfer_seconds"] == pytest.approx(5 / far[planned["cluster"]]["bandwidth"])
        (delayed,) = (network for network in far.values() if network["site"] == "delft")
        assert delayed["latency"] >= 2 * DELAY
    finally:
        koala("cancel", str(submitted["id"]))
        koala("serve", "--stop")
