# SPDX-License-Identifier: Apache-2.0
"""A cluster that is reached by ssh alone: no packet goes between its nodes and koala's host."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from tests.nbody import ALONE, BODIES, REST, STEPS, sizes_and_digest, write_nbody
from tests.real.systems.othersite import ADDRESS, OtherSite, missing_for_other_site
from tests.real.systems.processes import PATIENCE, CommandError, base_environment, run_command, wait_until
from tests.real.systems.requirements import missing_for_slurm, require

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.real("slurmctld", "slurmd", "sshd"), pytest.mark.timeout(600)]

SITE = """
[control_center]
listen = "127.0.0.1"
[[sites]]
name = "delft"
ssh = "site"
ssh_options = ["-F", "{ssh_config}"]
directory = "{directory}/there"
listen = "{address}"
[[clusters]]
name = "far"
plugin = "slurm"
site = "delft"
poll_interval = 1
requests_per_minute = 600
settings.conf = "{conf}"
[[clusters]]
name = "near"
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
    with koala.Site(site, state=state) as opened:
        with koala.Executor(2, minimum=2, site=opened, cluster="far", walltime="5m") as executor:
            print("+".join(set(executor.map(place, range(10)))))
        wanted = dict(minimum=2, maximum=6, walltime="5m")
        with KoalaCluster(site=site, state=state, **wanted) as cluster, Client(cluster) as client:
            client.wait_for_workers(5, timeout=90)
            print("+".join(set(client.gather(client.map(place, range(40))))))
            parts = client.map(lambda number: bytes([number]) * 100_000, range(40))
            print(client.submit(lambda found: sum(map(sum, found)), parts).result(timeout=90))
"""
"""Prints in which networks workers of an executor were, in which those of a Dask cluster, and a sum of their data."""


class Home:
    """A user of koala here, with a site file that names the other site."""

    def __init__(self, directory: Path, there: OtherSite) -> None:
        self.directory, self.there = directory, there
        self.site = directory / "site.toml"
        self.site.write_text(
            SITE.format(ssh_config=there.ssh_config, directory=directory, address=ADDRESS, conf=there.conf)
        )
        where = ("--site", str(self.site), "--state", str(directory / "state"))
        self.koala = (str(Path(sys.executable).with_name("koala")), *where)

    def run(self, *arguments: str) -> str:
        """Return what a command prints. Raises CommandError."""
        return run_command([*self.koala, *arguments], environment=base_environment(), timeout=PATIENCE * 3)

    def sizes_and_digest(self, job: str) -> tuple[list[int], str]:
        """Run an n-body program; return on how many processes it was, and what it ended with."""
        return sizes_and_digest(re.sub(r"^\S+: ", "", self.run("run", job), flags=re.MULTILINE))

    def state_of(self, job: str) -> str:
        """Return the state of a job."""
        return str(json.loads(self.run("status", job, "--json"))["state"])

    def network(self) -> str:
        """Return what is known of the network and of files."""
        return self.run("clusters", "--network")

    def planned(self, job: Path) -> dict[str, Any]:
        """Return where the only component of a job would go."""
        (found,) = json.loads(self.run("plan", str(job), "--json"))["components"]
        return dict(found)

    def trouble(self) -> str:
        """Return what is said of the clusters."""
        return self.run("clusters")


@pytest.fixture(scope="module")
def there() -> Iterator[OtherSite]:
    require([*missing_for_slurm(), *missing_for_other_site(), *([] if os.getuid() == 0 else ["to be root"])])
    with OtherSite() as site:
        yield site


@pytest.fixture
def home(there: OtherSite) -> Iterator[Home]:
    with TemporaryDirectory(prefix="koala-") as directory:  # the path of a socket must be short
        yield Home(Path(directory), there)


def test_one_job_here_and_there(home: Home) -> None:
    """The check passes from the outside in; ranks run in both networks, and what they print comes to one place."""
    checked = home.run("check", "--cluster", "far")
    assert f"agents report to {ADDRESS}:" in checked
    assert "all" in checked.splitlines()[-1]
    said = home.run("run", "-n", "5", "--split", "--", "readlink", "/proc/self/ns/net")
    networks = [line.partition(": ")[2] for line in said.splitlines() if "net:[" in line]
    assert len(networks) == 5
    assert set(networks) == {str(Path("/proc/self/ns/net").readlink()), home.there.network}


def test_tasks_of_a_sweep_are_handed_out_there(home: Home) -> None:
    """Launchers have a connection of their own, which goes through the gateway, too."""
    home.run("sweep", "--cluster", "far", "--", "sh", "-c", "echo {x} $(readlink /proc/self/ns/net)", ":::", "x=1,2,3")
    told = [json.loads(line)["stdout"] for line in home.run("results", "1", "--json").splitlines()]
    assert sorted(told) == [f"{number} {home.there.network}\n" for number in (1, 2, 3)]


def test_a_program_computes_over_sites_without_a_route(home: Home) -> None:
    """Its processes reach each other by TCP through koala; an adaptive one grows from here to there."""
    apart = (
        'processors = 2\ncluster = "far"\ninput_files = {files}\n\n[[components]]\nname = "here"\ncluster = "near"\n'
    )
    files = '["rigid.py", "simulation.py", "bodies.py", "mail.py", "authkey"]'
    command = f'command = ["python3", "rigid.py", "{BODIES}", "{STEPS}", "{REST}", "28790"]\nprocessors = 2\n'
    relay = ("walltime =", "relay = true\nwalltime =")
    rigid = write_nbody(home.directory, "rigid", relay, ("processors = 4\n", apart.format(files=files) + command))
    assert home.sizes_and_digest(rigid) == ([4], ALONE)
    grows = write_nbody(
        home.directory, "malleable", relay, ("minimum = 2", "minimum = 2\ninitial = 2"), ("= 16", "= 4")
    )
    sizes, digest = home.sizes_and_digest(grows)
    assert (sizes[-1], digest) == (4, ALONE)


def test_workers_there_reach_a_program_here(home: Home) -> None:
    """Those of an executor and of a Dask cluster, which also hand results to each other; nothing is configured."""
    program = home.directory / "program.py"
    program.write_text(PROGRAM)
    said = run_command(
        [sys.executable, str(program), str(home.site), str(home.directory / "state")],
        environment=base_environment(),
        timeout=PATIENCE * 3,
    )
    there, mixed, total = said.split()[-3:]
    here = str(Path("/proc/self/ns/net").readlink())
    assert there == home.there.network
    assert set(mixed.split("+")) == {here, home.there.network}
    assert total == str(sum(range(40)) * 100_000)


def test_a_login_in_a_terminal_is_used(home: Home) -> None:
    """Where the site takes no key, it is said how to log in; after that, koala uses the login until it is ended."""
    keys = home.there.ssh_config.with_name("user_key.pub")
    kept = keys.read_text()
    home.run("login", "delft")
    try:
        keys.write_text("")
        assert home.run("run", "-n", "1", "--cluster", "far", "--", "echo", "here").endswith("here\n")
        home.run("login", "delft", "--end")
        with pytest.raises(CommandError, match=r"koala login delft"):
            home.run("check", "--cluster", "far")
    finally:
        keys.write_text(kept)


def test_a_job_outlives_the_connection(home: Home) -> None:
    """While the site is away, status says why; the job goes on there, and its end and output arrive later."""
    begun, go_on = home.directory / "begun", home.directory / "go-on"
    known = home.there.ssh_config.with_name("known_hosts")
    command = f"touch {begun}; until [ -e {go_on} ]; do sleep 0.1; done; echo done"
    with subprocess.Popen([*home.koala, "serve"], env=base_environment(), stderr=subprocess.DEVNULL) as service:
        try:
            wait_until(lambda: "far" in home.trouble(), seconds=PATIENCE, what="the service answers")
            job = home.run("submit", "--json", "-n", "1", "--cluster", "far", "--", "sh", "-c", command)
            number = str(json.loads(job)["id"])
            wait_until(begun.exists, seconds=PATIENCE, what="the job runs")
            kept = known.read_text()
            known.write_text("")
            os.kill(home.there.connection(service.pid), signal.SIGKILL)
            wait_until(
                lambda: "Host key verification failed" in home.trouble(),
                seconds=PATIENCE,
                what="it is said why the site is away",
                details=home.trouble,
            )
            go_on.touch()
            known.write_text(kept)
            wait_until(lambda: home.state_of(number) == "completed", seconds=2 * PATIENCE, what="the job has ended")
            assert "done" in home.run("logs", number)
        finally:
            service.terminate()


FILES = """
walltime = "5m"
placement = "close-to-files"
[[components]]
command = ["sh", "-c", "cat set; echo $KOALA_CLUSTER; wc -c < mine"]
processors = 1
input_files = [{{ source = "lfn:{name}", target = "set" }}, "mine"]
"""


def test_jobs_go_where_their_files_are_or_get_soonest(home: Home) -> None:
    """By a catalogue that is read there, and by the bandwidth to the site as it is measured."""
    catalogue, mine, job = (home.directory / name for name in ("catalogue", "mine", "job.toml"))
    (home.directory / "one").write_text("a genome\n")
    catalogue.write_text(f"genome {home.directory}/one\n")
    mine.write_bytes(bytes(5 * 1024**2))
    near = home.site.read_text() + "\n"
    home.site.write_text(near.replace('name = "far"', f'name = "far"\ncatalogue = "{catalogue}"'))
    with subprocess.Popen([*home.koala, "serve"], env=base_environment(), stderr=subprocess.DEVNULL) as service:
        try:
            wait_until(lambda: "measured" in home.network(), seconds=PATIENCE, what="the site is measured")
            assert "1 by its catalogue" in home.network()
            job.write_text(FILES.format(name="genome"))
            assert home.run("run", "-q", str(job)).split() == ["a", "genome", "far", str(5 * 1024**2)]
            job.write_text(FILES.format(name="gen"))
            with pytest.raises(CommandError, match=r"lfn:gen: no catalogue has that name"):
                home.run("run", str(job))
            job.write_text(FILES.format(name="genome").replace('{ source = "lfn:genome", target = "set" }, ', ""))
            assert home.planned(job)["cluster"] == "near", "the file is on this host"
        finally:
            service.terminate()
    home.site.write_text(home.site.read_text().replace('name = "near"', 'name = "near"\nbandwidth = 0.01'))
    planned = home.planned(job)
    assert planned["cluster"] == "far", "what the service has measured is known without it"
    assert 0 < planned["transfer_seconds"] < 500
    assert planned["missing"] == [str(mine)]
