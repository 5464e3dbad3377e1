# SPDX-License-Identifier: Apache-2.0
"""Large files to a site that is reached by ssh alone, and back."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.real.systems.othersite import OtherSite
from tests.real.systems.processes import PATIENCE, base_environment, wait_until
from tests.real.test_other_sites import Home, there

pytestmark = pytest.mark.real("slurmctld", "slurmd", "sshd")
__all__ = ["there"]

MIB = 1024 * 1024
SIZE = 120 * MIB
"""More than goes with a launch, than may be on its way, and than what rsync and ssh have in their buffers."""
CACHE_MIB = 200
JOB = """
walltime = 300
[[components]]
command = ["sh", "-c", "sha256sum input; mkdir out; cp input out/copy"]
processors = 1
cluster = "far"
input_files = [{{ source = "{source}", target = "input" }}]
output_files = ["out"]
"""


class Staging(Home):
    """A user with a service, whose cache at the site is small."""

    def __init__(self, directory: Path, there: OtherSite) -> None:
        super().__init__(directory, there)
        text = self.site.read_text()
        self.site.write_text(text.replace("[[clusters]]", f"cache_mib = {CACHE_MIB}\n[[clusters]]", 1))
        self.cache = directory / "there" / "cache"

    def start(self) -> subprocess.Popen[bytes]:
        """Start a service."""
        log = (self.directory / "log").open("ab")
        with log:
            service = subprocess.Popen([*self.koala, "serve"], env=base_environment(), stderr=log)
        wait_until(lambda: "far" in self.trouble(), seconds=PATIENCE, what="the service answers")
        return service

    def file(self, name: str, size: int = SIZE) -> tuple[Path, str]:
        """Return a new file and the digest of its content."""
        path, digest = self.directory / name, hashlib.sha256()
        with path.open("wb") as file:
            for _ in range(size // MIB):
                data = os.urandom(MIB)
                digest.update(data)
                file.write(data)
        return path, digest.hexdigest()

    def submit_with(self, source: Path) -> str:
        """Submit a job with an input file."""
        job = self.directory / "job.toml"
        job.write_text(JOB.format(source=source))
        return str(json.loads(self.run("submit", "--json", str(job)))["id"])

    def report(self, job: str) -> dict[str, object]:
        """Return the report of a job."""
        return dict(json.loads(self.run("status", job, "--json")))

    def is_over(self, job: str) -> bool:
        """Tell whether nothing more comes of a job."""
        report = self.report(job)
        return report["outcome"] is not None and not report["placeholders_left"]

    def ends_well(self, job: str) -> None:
        """Wait until a job has completed with all of its output."""
        wait_until(
            lambda: self.is_over(job),
            seconds=3 * PATIENCE,
            what="the job has ended",
            details=lambda: json.dumps(self.report(job)),
        )
        assert self.state_of(job) == "completed", self.report(job)


@pytest.fixture
def home(there: OtherSite) -> Iterator[Staging]:
    with TemporaryDirectory(prefix="koala-") as directory:
        yield Staging(Path(directory), there)


def test_large_files_there_and_back(home: Staging) -> None:
    """A service killed in the middle goes on; the second job sends nothing; another file makes room in the cache."""
    first, digest = home.file("first")
    part = home.cache / f"{digest}.part"
    service = home.start()
    try:
        job = home.submit_with(first)
        wait_until(lambda: part.exists() and part.stat().st_size > 0, seconds=PATIENCE, what="something has come")
        os.kill(service.pid, signal.SIGKILL)
        service.wait()
        assert not (home.cache / digest).exists()
        service = home.start()
        home.ends_well(job)
        assert home.run("logs", job).split()[-2:] == [digest, "input"]
        back = home.directory / "state" / "jobs" / job / "c1" / "0" / "out" / "copy"
        assert hashlib.sha256(back.read_bytes()).hexdigest() == digest
        inode = (home.cache / digest).stat().st_ino
        again = home.directory / "another name"
        again.hardlink_to(first)
        home.ends_well(home.submit_with(again))
        assert (home.cache / digest).stat().st_ino == inode
        second, other = home.file("second")
        home.ends_well(home.submit_with(second))
        assert [path.name for path in home.cache.iterdir()] == [other]
        huge, _ = home.file("huge", (CACHE_MIB + 1) * MIB)
        refused = home.submit_with(huge)
        wait_until(
            lambda: "raise its cache_mib" in str(home.report(refused)["explanation"]),
            seconds=PATIENCE,
            what="it is said that the cache is too small",
            details=lambda: json.dumps(home.report(refused)),
        )
    finally:
        service.terminate()
        service.wait()
