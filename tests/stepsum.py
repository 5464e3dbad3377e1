# SPDX-License-Identifier: Apache-2.0
"""The example of processes that compute in step, as a user would write a job file for it."""

from __future__ import annotations

import json
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
    gate: Path | None = None,
) -> str:
    """Return the path of its job file in a directory; ``more``: further keys of its component.

    ``gate``: a file; as soon as there is one, steps take no time any more.
    """
    text, waits = EXAMPLE.read_text(encoding="utf-8"), "        time.sleep(seconds)\n"
    assert text.count(waits) == 2
    if gate is not None:
        text = text.replace(waits, f"        time.sleep(0 if os.path.exists({str(gate)!r}) else seconds)\n")
        text = text.replace("import json\n", "import json\nimport os\n", 1)
    (directory / EXAMPLE.name).write_text(text, encoding="utf-8")
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
