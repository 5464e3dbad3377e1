# SPDX-License-Identifier: Apache-2.0
"""``koala schedule`` of a cluster ``p`` as a process of its own, and what it says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from koala_adapter.cli.koala import koala
from tests import forkserver
from tests.real.systems.processes import wait_until

SECONDS = 120.0
SITE = """\
[[clusters]]
name = "p"
plugin = "pbs"
requests_per_minute = {requests}
poll_interval = 0.5
[clusters.settings]
conf = "{conf}"
bin_directory = "{bin_directory}"
operator = true
"""


def options_of(site: Path) -> list[str]:
    """Return what each command is told of the site and the state directory."""
    return ["--site", str(site), "--state", str(site.with_name("state"))]


def inside(site: Path, *arguments: str) -> Result:
    """Run one command inside the test's process, where what it says is all that matters."""
    done = CliRunner().invoke(koala, [*options_of(site), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


class Lines:
    """What ``koala schedule --json`` has printed."""

    def __init__(self, file: Path) -> None:
        """``file``: its standard output."""
        self._file = file

    def all(self) -> list[dict[str, Any]]:
        """Return all whole lines."""
        return [json.loads(line) for line in self._file.read_text().rpartition("\n")[0].splitlines()]

    def told(self, kind: str) -> list[str]:
        """Return the jobs of one kind of line, in order."""
        return [line["job_id"] for line in self.all() if line["kind"] == kind]

    def wait(self, kind: str, jobs: set[str]) -> None:
        """Wait until something was told of all these jobs."""
        wait_until(
            lambda: jobs <= set(self.told(kind)),
            seconds=SECONDS,
            what=f"{kind}: {jobs}",
            details=self._file.read_text,
        )


@contextmanager
def scheduling(site: Path, *options: str) -> Iterator[Lines]:
    """Run ``koala schedule`` during the block."""
    output = site.with_name("lines")
    arguments = [*options_of(site), "schedule", "--cluster", "p", "--json", *options]
    with output.open("wb") as file, site.with_name("errors").open("wb") as errors:
        process = forkserver.start(
            arguments,
            environment=os.environ,
            directory=Path.cwd(),
            output=file.fileno(),
            errors=errors.fileno(),
        )
    try:
        yield Lines(output)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
