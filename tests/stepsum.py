# SPDX-License-Identifier: Apache-2.0
"""The example of processes that compute in step, as a user would write a job file for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from koala_adapter.application.libraryfile import FILE_NAME, library_file

EXAMPLE = Path(__file__).parents[1] / "examples" / "malleable" / "stepsum.py"


def write_stepsum(
    directory: Path,
    *,
    steps: int,
    seconds: float = 0.05,
    minimum: int = 1,
    maximum: int = 6,
    name: str = "stepsum",
    more: str = "flexible = true\n",
) -> str:
    """Return the path of its job file in a directory; ``more``: further keys of its component."""
    shutil.copy(EXAMPLE, directory)
    command = json.dumps(["python3", "stepsum.py", str(steps), str(seconds)])
    path = directory / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\nkind = "malleable"\nrunner = "adaptive"\nwalltime = 600\n'
        f'[[components]]\nname = "sum"\ncommand = {command}\n'
        f'minimum = {minimum}\nmaximum = {maximum}\ninput_files = ["stepsum.py"]\n{more}'
    )
    return str(path)


@cache
def expected_result(steps: int) -> str:
    """Return the last line that the program prints, as it says itself when it runs alone."""
    with TemporaryDirectory() as directory:
        Path(directory, FILE_NAME).write_text(library_file())
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), str(steps), "0"],
            env={"PYTHONPATH": directory},
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout.splitlines()[-1]
