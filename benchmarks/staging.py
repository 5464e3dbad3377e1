# SPDX-License-Identifier: Apache-2.0
"""A large file to a site and back, beside rsync and a plain copy over the same kind of connection.

python -m benchmarks.staging there-and-back [--repeat 3] [--megabytes 300]

It needs root, rsync and Slurm: the site is a network namespace with real sshd.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from benchmarks.common import Row, main, until
from benchmarks.sites import DELAYS, service_for
from tests.real.systems.othersite import OtherSite

if TYPE_CHECKING:
    from collections.abc import Iterator

MEGABYTE = 1_000_000
JOB = """
walltime = 600
[[components]]
command = ["sh", "-c", "mkdir out; cp input out/copy; date +%s.%N"]
processors = 1
cluster = "far"
input_files = [{{ source = "{source}", target = "input" }}]
output_files = ["out"]
"""
"""Copies its input file to its output files, and prints when it ends."""


def there_and_back(*, repeat: int = 3, megabytes: int = 300) -> list[Row]:
    """Seconds until a file is at a site, and back here, by koala, by rsync and by ``cat``.

    Koala's begin with ``koala submit``, which copies the file first, and with the end of the process that has written
    it. rsync and cat use an ssh connection that is there already, as koala does.
    """
    rows: list[Row] = []
    for one_way, delay in DELAYS.items():
        with (
            OtherSite(delay=one_way) as there,
            tempfile.TemporaryDirectory() as name,
            serving(there, Path(name)) as koala,
        ):
            turns = [_turn(there, Path(name), koala, megabytes) for _ in range(repeat)]
        for way in turns[0]:
            found = {by: statistics.median(turn[way][by] for turn in turns) for by in turns[0][way]}
            ratio = found["rsync, s"] / found["koala, s"]
            rows.append({"": way, "a way there and back": delay, **found, "speed, by that of rsync": ratio})
    return rows


@contextmanager
def serving(there: OtherSite, directory: Path) -> Iterator[tuple[str, ...]]:
    """Run a service for a site, and an ssh connection beside it; yield how ``koala`` is called."""
    master = _ssh(there, directory)
    with service_for(there, directory) as koala:
        kept = [*master, "-o", "ControlMaster=auto", "-o", "ControlPersist=600"]
        subprocess.run([*kept, there.name, "true"], check=True)
        try:
            yield koala
        finally:
            subprocess.run([*master, "-O", "exit", there.name], stderr=subprocess.DEVNULL, check=False)


def _ssh(there: OtherSite, directory: Path) -> list[str]:
    return ["ssh", "-F", str(there.ssh_config), "-S", str(directory / "ssh")]


def _turn(there: OtherSite, directory: Path, koala: tuple[str, ...], megabytes: int) -> dict[str, dict[str, float]]:
    """Return seconds, by way and program."""
    source, copy, back = directory / "source", directory / "copy", directory / "back"
    source.write_bytes(os.urandom(megabytes * MEGABYTE))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    ssh = _ssh(there, directory)
    rsync = ["rsync", "--whole-file", "--rsh", " ".join(ssh)]
    plain = {
        "there": ([*rsync, str(source), f"{there.name}:{copy}"], [*ssh, there.name, f"cat > {copy}"]),
        "back": ([*rsync, f"{there.name}:{copy}", str(back)], [*ssh, there.name, f"cat {copy}"]),
    }
    found: dict[str, dict[str, float]] = {}
    for way, (by_rsync, by_cat) in plain.items():
        found[way] = {"rsync, s": _seconds(by_rsync, source, back)}
        found[way]["cat, s"] = _seconds(by_cat, source, back)
    job_file = directory / "job.toml"
    job_file.write_text(JOB.format(source=source))
    began = time.monotonic()
    job = json.loads(
        subprocess.run([*koala, "submit", "--json", str(job_file)], check=True, capture_output=True).stdout
    )
    submitted = time.monotonic() - began
    cached = directory / "there" / "cache" / digest
    until("the file is there", cached.exists, look=0.005)
    found["there"] = {"koala, s": time.monotonic() - began, "until submitted, s": submitted, **found["there"]}
    arrived = directory / "state" / "jobs" / str(job["id"]) / "c1" / "0" / "out" / "copy"
    until("the file is back", arrived.exists, look=0.005)
    ended = time.time()
    out = subprocess.run([*koala, "logs", str(job["id"])], check=True, capture_output=True, text=True).stdout
    found["back"] = {"koala, s": ended - float(out.split()[-1]), **found["back"]}
    if hashlib.sha256(arrived.read_bytes()).hexdigest() != digest:
        raise SystemExit("another content has come back")
    for path in (source, copy, back, cached, arrived):
        path.unlink()
    return found


def _seconds(command: list[str], source: Path, target: Path) -> float:
    """Run a command that copies from its input, or to its output; return how long it takes."""
    target.unlink(missing_ok=True)
    with source.open("rb") as given, target.open("wb") as taken:
        began = time.monotonic()
        subprocess.run(command, stdin=given, stdout=taken, check=True)
        return time.monotonic() - began


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    main(there_and_back)
