# SPDX-License-Identifier: Apache-2.0
"""Programs with Dask in tests: the example as a user would copy it, and programs that use KoalaCluster."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

from distributed import Security

from koala_adapter.host.sockets import free_port
from tests.examplejobs import EXAMPLE

PROGRAMS = Path(__file__).with_name("daskprograms.py")
LIVENESS = 240.0
LEAKS = ("ResourceWarning", "Task was destroyed", "never retrieved", "never awaited")
"""What Python says of what a program has left behind."""
DASKS_OWN = "/site-packages/distributed/"
"""The path in the line after such a message, if it is about a task of Dask itself: its scheduler leaves the exception
of a handler alone that looks for a worker which has just left (``handle_request_refresh_who_has`` in 2026.8)."""
OWN = frozenset({"sum", "during", "scattered", "executor", "lost", "none", "another", "closed"})
"""Words with which lines of the programs begin that are the same each time."""


class DaskProgram:
    """One of these programs while it runs; what it prints goes into a file."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str], name: str, *arguments: object, site: Path, state: Path
    ) -> None:
        """Start it."""
        self.output = directory / f"{name}.output"
        options = ["-W", "default::ResourceWarning", str(PROGRAMS), name, *map(str, arguments)]
        with self.output.open("wb") as output:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, *options],
                env={**environment, "KOALA_SITE": str(site), "KOALA_STATE": str(state)},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> list[str]:
        """The lines that it has printed."""
        return self.output.read_text(errors="replace").splitlines()

    @property
    def results(self) -> list[str]:
        """The lines that are its own, without what Dask logs beside them."""
        return [line for line in self.said if line.partition(" ")[0] in OWN]

    def until_said(self, beginning: str) -> str:
        """Return what follows the beginning of a line, as soon as there is one."""
        end = time.monotonic() + LIVENESS
        while True:
            gone = self.process.poll() is not None
            for line in self.said:
                if line.startswith(beginning):
                    return line.removeprefix(beginning).strip()
            assert not gone, f"it ended with {self.process.returncode} and never said {beginning!r}: {self.said}"
            assert time.monotonic() < end, f"it never said {beginning!r}: {self.said}"
            time.sleep(0.05)

    def ended(self) -> int:
        """Return its status once it has ended by itself; it leaks nothing, and leaves nothing undone."""
        status = self.process.wait(LIVENESS)
        said = self.said
        leaks = [
            line
            for line, after in pairwise([*said, ""])
            if any(sign in line for sign in LEAKS) and DASKS_OWN not in after
        ]
        assert not leaks, said
        return status

    def __enter__(self) -> Self:
        """Stay for a block, and not longer."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


def sum_of_squares(first: int, last: int) -> str:
    """Return what a program prints of the sum of the squares from ``first`` to before ``last``."""
    return f"sum {sum(number * number for number in range(first, last))}"


# The example of Dask, as a user would copy it, with this Python, a port of its own, and fewer or shorter tasks.


def write_dasksum(directory: Path, *, tasks: int, seconds: float, replaced: dict[str, str] | None = None) -> Path:
    """Return the path of its job file in a directory; ``replaced``: what of its text is to be something else."""
    for name in ("dasksum.py", "leave.py"):
        shutil.copy(EXAMPLE / name, directory)
    temporary = Security.temporary()
    key = directory / "dask.pem"
    key.write_text(temporary.tls_scheduler_key + temporary.tls_scheduler_cert)
    key.chmod(0o600)
    text = (EXAMPLE / "dasksum.toml").read_text().replace('"200"', f'"{tasks}"')
    text = text.replace('"python3"', json.dumps(sys.executable)).replace("exec python3", f"exec {sys.executable}")
    for old, new in (replaced or {}).items():
        assert old in text
        text = text.replace(old, new)
    own = f'DASKSUM_PORT = "{free_port()}"\nDASKSUM_SECONDS = "{seconds}"\n'
    path = directory / "dasksum.toml"
    path.write_text(text.replace("[environment]\n", f"[environment]\n{own}"))
    return path
