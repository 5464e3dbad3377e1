# SPDX-License-Identifier: Apache-2.0
"""Files that one site has, for a job at another one: directly where a route leads there, else through here."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from tests.real.systems.othersite import OtherSite
from tests.real.systems.processes import PATIENCE, find_processes, wait_until
from tests.real.test_other_sites import CENTER, Home

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real("slurmctld", "slurmd", "sshd")

MIB = 1024 * 1024
SIZE = 60 * MIB
JOB = """
walltime = 300
[[components]]
command = ["sha256sum", "input"]
processors = 1
cluster = "far"
input_files = [{{ source = "lfn:{name}", target = "input" }}]
"""


class Files(Home):
    """A user of two sites, with files that are known to one of them."""

    def __init__(self, directory: Path, one: OtherSite, other: OtherSite) -> None:
        super().__init__(directory, one)
        self.files = directory / "files"
        self.files.mkdir()
        self.site.write_text(
            CENTER
            + one.tables(directory / "one", site="leiden", cluster="near")
            + f'bandwidth = 100\ncatalogue = "{self.files}"\n'
            + other.tables(directory / "other", site="delft", cluster="far")
            + "bandwidth = 100\n"
        )
        self.cache = directory / "other" / "there" / "cache"

    def file(self, name: str) -> str:
        """Make a file of the first site and return the digest of its content."""
        data = os.urandom(SIZE)
        (self.files / name).write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    def submit_with(self, name: str) -> str:
        """Submit a job to the other site with a file of the first one."""
        job = self.directory / f"{name}.toml"
        job.write_text(JOB.format(name=name))
        return str(json.loads(self.run("submit", "--json", str(job)))["id"])

    def ends_with(self, job: str, digest: str) -> None:
        """Wait until a job has ended, and insist that its rank has seen the file."""
        assert self.wait_completed(job).split()[-2:] == [digest, "input"]

    def said(self) -> str:
        """Return the log of the service."""
        return self.log.read_text()


def carried(service: int) -> int:
    """Return the bytes that the connections of a service have taken in."""
    connections = find_processes(lambda process: process.command == "ssh" and process.parent == service)
    lines = [line for pid in connections for line in Path(f"/proc/{pid}/io").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("rchar"))


@pytest.fixture
def home() -> Iterator[Files]:
    with ExitStack() as stack:
        one, other = (stack.enter_context(OtherSite(name)) for name in ("one", "other"))
        one.connect(other)
        yield Files(Path(stack.enter_context(TemporaryDirectory(prefix="koala-"))), one, other)


def test_files_go_from_site_to_site(home: Files) -> None:
    """Directly while there is a route, also when koala's connection is killed in the middle; then through here."""
    digests = {name: home.file(name) for name in ("first", "second", "third")}
    with home.service() as service:
        before = carried(service.pid)
        home.ends_with(home.submit_with("first"), digests["first"])
        assert home.said().count("a file has come directly") == 1
        assert carried(service.pid) - before < SIZE / 10
        home.there.slow_route("100mbit")
        job, part = home.submit_with("second"), home.cache / f"{digests['second']}.part"
        wait_until(lambda: part.exists() and part.stat().st_size > 0, seconds=PATIENCE, what="something has come")
        for connection in find_processes(lambda one: one.command == "ssh" and one.parent == service.pid):
            os.kill(connection, signal.SIGKILL)
        home.ends_with(job, digests["second"])
        assert home.said().count("a file has come directly") == 2
        home.there.end_route()
        before = carried(service.pid)
        home.ends_with(home.submit_with("third"), digests["third"])
        assert carried(service.pid) - before > SIZE
        (network,) = (one["network"] for one in json.loads(home.run("clusters", "--json")) if one["name"] == "far")
        (route,) = network["routes"]
        assert (route["site"], route["bandwidth"]) == ("leiden", None)
        assert "cannot be reached" in route["trouble"]
