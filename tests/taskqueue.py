# SPDX-License-Identifier: Apache-2.0
"""The example of a head and workers, as a user would copy it, with fewer or shorter tasks."""

from __future__ import annotations

import json
import os
from pathlib import Path

from koala_adapter.host.sockets import free_port

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
