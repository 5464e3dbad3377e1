# SPDX-License-Identifier: Apache-2.0
"""The example of processes that compute in step, as a user would write a job file for it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from koala_adapter.application.shipping import FILE_NAME, library_file

EXAMPLE = Path(__file__).parents[1] / "examples" / "malleable" / "stepsum.py"


NOT_YET = "not-yet"
"""Name of a file beside that one: while it is there, no process says that it is done with a change."""
UNTIL_TOLD = {
    "(int, float)": "(Path, float)",
    "import hashlib\n": "import hashlib\nfrom pathlib import Path\n",
    "        compute(app, listening, steps, seconds)\n": (
        '        print("joined", flush=True)\n        compute(app, listening, steps, seconds)\n'
    ),
    "0, [], [app.size]\n": "0, [], [app.size]\n    over = False\n",
    "step, part = group.scatter([(step, one) for": "step, over, part = group.scatter([(step, over, one) for",
    "if step == steps:": "if over:",
    "total = group.scatter([sum(sums) % PRIME] * group.size)": (
        "total, over = group.scatter([(sum(sums) % PRIME, steps.exists())] * group.size)"
    ),
    "            time.sleep(seconds)\n            app.done()\n": (
        "            time.sleep(seconds)\n"
        f"            while steps.with_name({NOT_YET!r}).exists():\n                time.sleep(0.05)\n"
        "            app.done()\n"
    ),
    'print("sizes", *sizes)': 'print("steps", step)\n        print("sizes", *sizes)',
}
"""What is changed in the program so that it goes on until there is a file, and says how many steps there were.

The places are those of the example: who changes that changes these.
"""


def write_stepsum_until(told: Path, directory: Path, **options: Any) -> str:  # noqa: ANN401 - passed on
    """Return the path of the job file of one that ends when there is a file ``told``; ``options`` as below."""
    path = write_stepsum(directory, steps=told, **options)
    program = directory / EXAMPLE.name
    text = program.read_text()
    for before, after in UNTIL_TOLD.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    program.write_text(text)
    return path


def write_stepsum(
    directory: Path,
    *,
    steps: int | Path,
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
