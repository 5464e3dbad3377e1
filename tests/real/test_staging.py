# SPDX-License-Identifier: Apache-2.0
"""Large files to sites that are reached by ssh alone, and back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.real.systems.othersite import OtherSite
from tests.real.systems.processes import PATIENCE, wait_until
from tests.real.test_other_sites import CENTER, Home, there

pytestmark = pytest.mark.real("slurmctld", "slurmd", "sshd")
__all__ = ["there"]

MIB = 1024 * 1024
SIZE = 200 * MIB
"""More than goes with a launch, than may be on its way, and than what rsync and ssh have in their buffers."""
CACHE_MIB = 350
"""Room for one such file at each site."""
JOB = """
walltime = 300
placement = "close-to-files"
[[components]]
command = ["sh", "-c", "{command}"]
processors = 1
input_files = [{{ source = "{source}", target = "input" }}]
{more}
"""


class Staging(Home):
    """A user with a service and two sites, of whose caches one is asked for by most jobs."""

    def __init__(self, directory: Path, there: OtherSite) -> None:
        super().__init__(directory, there)
        tables = there.tables(directory / "leiden", site="leiden", cluster="other")
        text = there.tables(directory, site="delft", cluster="far") + tables
        text = text.replace("[[clusters]]", f"cache_mib = {CACHE_MIB}\n[[clusters]]")
        # By this a file needs minutes, so that processors are claimed only when it is known that it needs less.
        self.site.write_text(CENTER + text.replace('name = "far"', 'name = "far"\nbandwidth = 1'))
        (directory / "leiden").mkdir()
        self.cache = directory / "there" / "cache"
        self.go = directory / "go"

    def file(self, name: str) -> tuple[Path, str]:
        """Return a new file and the digest of its content."""
        path, data = self.directory / name, os.urandom(SIZE)
        path.write_bytes(data)
        return path, hashlib.sha256(data).hexdigest()

    def submit_with(self, source: Path, command: str, more: str = 'cluster = "far"') -> str:
        """Submit a job with an input file."""
        job = self.directory / "job.toml"
        job.write_text(JOB.format(source=source, command=command, more=more))
        return str(json.loads(self.run("submit", "--json", str(job)))["id"])

    def told(self, job: str, what: str) -> None:
        """Wait until the explanation of a job says something."""
        wait_until(
            lambda: what in self.client.job(job).explanation,
            seconds=PATIENCE,
            what=f"it is said: {what}",
            details=lambda: str(self.client.job(job)),
        )


@pytest.fixture
def home(there: OtherSite) -> Iterator[Staging]:
    with TemporaryDirectory(prefix="koala-") as directory:
        yield Staging(Path(directory), there)


def test_large_files_there_and_back(home: Staging) -> None:
    """A service killed in the middle goes on, and a job without a cluster goes to the site that has its file.

    A job whose file has no room holds no processors, until the job that keeps another file there has ended.
    """
    first, digest = home.file("first")
    second, other = home.file("second")
    part = home.cache / f"{digest}.part"
    command = f"while [ ! -e {home.go} ]; do sleep 0.2; done; mkdir out; cp input out/copy"
    with home.service() as service:
        keeping = home.submit_with(first, command, 'cluster = "far"\noutput_files = ["out"]')
        wait_until(lambda: part.exists() and part.stat().st_size > 0, seconds=PATIENCE, what="something has come")
        service.kill()
        service.wait()
    assert not (home.cache / digest).exists()
    with home.service():
        wait_until(lambda: home.state_of(keeping) == "running", seconds=PATIENCE, what="the job runs")
        inode = (home.cache / digest).stat().st_ino
        again = home.directory / "another name"
        again.hardlink_to(first)
        printed = home.wait_completed(home.submit_with(again, "echo $KOALA_CLUSTER; sha256sum input", ""))
        assert printed.split()[-3:] == ["far", digest, "input"]
        assert (home.cache / digest).stat().st_ino == inode
        waiting = home.submit_with(second, "sha256sum input")
        home.told(waiting, "is full of files of other jobs")
        assert len(home.there.jobs()) == 1, "the processor of the job that runs"
        home.go.touch()
        home.wait_completed(keeping)
        back = home.directory / "state" / "jobs" / keeping / "c1" / "0" / "out" / "copy"
        assert hashlib.sha256(back.read_bytes()).hexdigest() == digest
        assert home.wait_completed(waiting).split()[-2:] == [other, "input"]
        assert [path.name for path in home.cache.iterdir()] == [other]
