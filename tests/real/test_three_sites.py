# SPDX-License-Identifier: Apache-2.0
"""Three sites that are reached by ssh alone, set up by ``koala init``, and this host: what runs over all of them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.nbody import ALONE, sizes_and_digest, write_nbody
from tests.real.systems.othersite import OtherSite, missing_for_other_site
from tests.real.systems.processes import PATIENCE, base_environment, run_command, wait_until
from tests.real.systems.requirements import missing_for_grid_engine, missing_for_slurm, require

pytestmark = pytest.mark.real("slurmctld", "slurmd", "sge_qmaster", "sshd")

DELAY = 0.04
HERE = """
[[clusters]]
name = "here"
plugin = "local"
settings.processors = 2
"""
QUICK = "poll_interval = 1\nrequests_per_minute = 600\nthreshold = 0"


@pytest.fixture(scope="module")
def there() -> Iterator[Sequence[OtherSite]]:
    missing = [*missing_for_slurm(), *missing_for_grid_engine(), *missing_for_other_site()]
    require([*missing, *([] if os.getuid() == 0 else ["to be root"])])
    with ExitStack() as stack:
        delft, utrecht = OtherSite("delft", delay=DELAY), OtherSite("utrecht")
        yield [stack.enter_context(site) for site in (delft, utrecht, OtherSite("leiden", system="sge"))]


@pytest.fixture(scope="module")
def koala(there: Sequence[OtherSite]) -> Iterator[Callable[..., str]]:
    """Run commands of koala with a site file that it has written itself."""
    with TemporaryDirectory(prefix="koala-") as directory:  # the path of a socket must be short
        home = Path(directory)
        config, file = home / "ssh_config", home / "site.toml"
        config.write_text("".join(site.ssh_config.read_text() for site in there))

        def run(*arguments: str) -> str:
            command = [
                str(Path(sys.executable).with_name("koala")),
                "--site",
                str(file),
                "--state",
                str(home / "state"),
            ]
            return run_command([*command, *arguments], environment=base_environment(), timeout=PATIENCE * 3)

        names = [word for site in there for word in ("--ssh", site.name)]
        run("init", *names, "--ssh-option=-F", f"--ssh-option={config}")
        file.write_text(file.read_text().replace("threshold = 0", QUICK) + HERE)
        yield run


def test_one_job_over_three_sites_and_this_host(koala: Callable[..., str], there: Sequence[OtherSite]) -> None:
    """All that `koala init` writes passes the check; a job has all processors that there are, at four places."""
    checked = koala("check")
    assert checked.splitlines()[-1].startswith("all ")
    speeds = dict(re.findall(r"^site (\w+)$.*?round trip ([0-9.]+) ms", checked, re.MULTILINE | re.DOTALL))
    assert float(speeds["delft"]) >= 2000 * DELAY
    said = koala("run", "-n", "14", "--split", "--", "readlink", "/proc/self/ns/net")
    networks = re.findall(r"^c1/\d+: (net:\[\d+\])$", said, re.MULTILINE)
    assert len(networks) == 14
    assert set(networks) == {str(Path("/proc/self/ns/net").readlink()), *(site.network for site in there)}


def test_programs_of_mpi_and_adaptive_ones(koala: Callable[..., str], allreduce: Path, tmp_path: Path) -> None:
    """Ranks of MPI are within a site; a program that changes its size grows from one site to others, by relay."""
    go = tmp_path / "go"
    go.touch()
    said = koala("run", "--mpi", "-n", "4", "--cluster", "delft", "--", str(allreduce), str(go))
    assert len(re.findall(r"rank=\d size=4 .* sum=10$", said, re.MULTILINE)) == 4
    changes = (
        ("walltime =", "relay = true\nwalltime ="),
        ("minimum = 2", "minimum = 4\ninitial = 4"),
        ("= 16", "= 8"),
    )
    job = write_nbody(tmp_path, "malleable", *changes)
    sizes, digest = sizes_and_digest(re.sub(r"^\S+: ", "", koala("run", job), flags=re.MULTILINE))
    assert digest == ALONE
    assert sizes[0] == 4
    assert max(sizes) > 4


def test_files_go_where_they_are_soonest(koala: Callable[..., str], tmp_path: Path) -> None:
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
