# SPDX-License-Identifier: Apache-2.0
"""The examples of malleable jobs with their job files, as a user would copy them, with fewer or shorter steps."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from koala_adapter.application.shipping import FILE_NAME, library_file
from koala_adapter.host.sockets import free_port

# -- The example of a head and workers, as a user would copy it, with fewer or shorter tasks.

EXAMPLE = Path(__file__).parents[1] / "examples" / "malleable"


UNTIL_TOLD = {
    "    while len(squares) < count:\n": (
        '    told = Path(os.environ["TASKQUEUE_UNTIL"])\n'
        "    while len(squares) < count or not told.exists():\n"
        "        while tasks.qsize() < 20 and not told.exists():\n"
        "            tasks.put(count)\n"
        "            count += 1\n"
    ),
}
"""What is changed in the program so that there is work until there is a file."""


def write_taskqueue(
    directory: Path, *, tasks: int, seconds: float, name: str = "taskqueue", more: str = "", until: Path | None = None
) -> Path:
    """Return the path of its job file in a directory; ``more``: further keys of the workers.

    ``until``: there are new tasks until there is this file.
    """
    program = (EXAMPLE / "taskqueue.py").read_text()
    for before, after in UNTIL_TOLD.items() if until is not None else ():
        assert program.count(before) == 1, before
        program = program.replace(before, after)
    (directory / "taskqueue.py").write_text(program)
    key = directory / "authkey"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    text = (EXAMPLE / "taskqueue.toml").read_text().replace('"200"', f'"{tasks}"')
    environment = {"TASKQUEUE_PORT": str(free_port()), "TASKQUEUE_SECONDS": str(seconds)}
    if until is not None:
        environment["TASKQUEUE_UNTIL"] = str(until)
    inline = ", ".join(f"{key} = {json.dumps(value)}" for key, value in environment.items())
    path = directory / f"{name}.toml"
    path.write_text(f"environment = {{ {inline} }}\n{text}{more}")
    return path


def expected_sum(tasks: int) -> str:
    """Return the last line of what the head prints."""
    return f"sum {sum(number * number for number in range(tasks))}"


# -- The example of processes that compute in step, as a user would write a job file for it.

STEPSUM = Path(__file__).parents[1] / "examples" / "malleable" / "stepsum.py"


NOT_YET = "not-yet"
"""Name of a file beside that one: while it is there, no process says that it is done with a change."""
STEPSUM_UNTIL_TOLD = {
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
    program = directory / STEPSUM.name
    text = program.read_text()
    for before, after in STEPSUM_UNTIL_TOLD.items():
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
    text, waits = STEPSUM.read_text(encoding="utf-8"), "        time.sleep(seconds)\n"
    assert text.count(waits) == 2
    if gate is not None:
        text = text.replace(waits, f"        time.sleep(0 if os.path.exists({str(gate)!r}) else seconds)\n")
        text = text.replace("import json\n", "import json\nimport os\n", 1)
    (directory / STEPSUM.name).write_text(text, encoding="utf-8")
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
            [sys.executable, str(STEPSUM), str(steps), "0"],
            env={"PYTHONPATH": directory},
            capture_output=True,
            text=True,
            check=True,
        )
    return done.stdout.splitlines()[-1]


# -- The n-body programs of examples/nbody, with their job files, for tests that run them.

EXAMPLES = Path(__file__).parents[1] / "examples" / "nbody"
BODIES, STEPS, REST = 24, 60, 0.05
ALONE = "80d4b84fd0b2f561a9293eb6d2179697c8c13403447ca32891ba7b84281f9aae"
"""SHA-256 of the bodies after those steps, in whatever number of processes."""


def write_nbody(directory: Path, name: str, *changes: tuple[str, str], rest: float = REST, steps: int = STEPS) -> str:
    """Return the path of a job file as it is shipped, but for its length and for what is replaced in it."""
    for program in EXAMPLES.glob("*.py"):
        (directory / program.name).write_bytes(program.read_bytes())
    (directory / "authkey").write_bytes(b"of this test")
    text = (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8")
    for old, new in (('"64", "300", "0.05"', f'"{BODIES}", "{steps}", "{rest}"'), *changes):
        assert old in text, old
        text = text.replace(old, new)
    path = directory / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def sizes_and_digest(printed: str) -> tuple[list[int], str]:
    """Return on how many processes a program was, and what it ended with."""
    digests = re.findall(r"^step \d+: SHA-256 ([0-9a-f]{64})$", printed, re.MULTILINE)
    sizes = re.findall(r"^step \d+: (\d+) processes at [0-9.]+$", printed, re.MULTILINE)
    return [int(one) for one in sizes], digests[-1] if digests else ""
