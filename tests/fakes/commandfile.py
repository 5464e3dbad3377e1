# SPDX-License-Identifier: Apache-2.0
"""The files of the fake commands, and the start of the resident process that carries them out."""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
READY = b"ready\n"


def write_command(file: Path, system: str) -> None:
    """Make ``file`` a command, of that name, of the fake ``system``: ``slurm``, ``pbs`` or ``gridengine``."""
    text = (Path(__file__).parent / "command.py").read_text()
    text = text.replace("@SERVER@", _server()).replace("@SYSTEM@", system)
    file.write_text(f"#!{sys.executable} -IS\n{text}")
    file.chmod(0o755)


@cache
def _server() -> str:
    """Start the resident of this test process, if it has none; return its socket."""
    # A path of a Unix socket is short; those that pytest makes need not be.
    directory = tempfile.mkdtemp(prefix="fakes-", dir="/tmp")
    path = f"{directory}/socket"
    argv = [sys.executable, "-S", "-E", "-m", "tests.fakes.resident", path]
    process = subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    # A process of xdist may end without this; then the end of the pipe says it, and nothing is left either.
    atexit.register(process.communicate)
    if process.stdout is None or process.stdout.readline() != READY:
        message = "the resident process of the fake commands did not start"
        raise RuntimeError(message)
    return path
