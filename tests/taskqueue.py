# SPDX-License-Identifier: Apache-2.0
"""The example of a head and workers, as a user would copy it, with fewer or shorter tasks."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "malleable"


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


SUM = '    print(f"sum'
"""How the last line of the head begins."""


def write_taskqueue(
    directory: Path, *, tasks: int, seconds: float, name: str = "taskqueue", more: str = "", gate: Path | None = None
) -> Path:
    """Return the path of its job file in a directory; ``more``: further keys of the workers.

    ``gate``: the head does not end before this file exists, however long a test takes to look at it.
    """
    script = (EXAMPLE / "taskqueue.py").read_text(encoding="utf-8")
    if gate is not None:
        assert script.count(SUM) == 1
        wait = f"    while not os.path.exists({str(gate)!r}):\n        time.sleep(0.1)\n"
        script = script.replace(SUM, wait + SUM)
    (directory / "taskqueue.py").write_text(script, encoding="utf-8")
    key = directory / "authkey"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    text = (EXAMPLE / "taskqueue.toml").read_text().replace('"200"', f'"{tasks}"')
    environment = {"TASKQUEUE_PORT": str(free_port()), "TASKQUEUE_SECONDS": str(seconds)}
    inline = ", ".join(f"{key} = {json.dumps(value)}" for key, value in environment.items())
    path = directory / f"{name}.toml"
    path.write_text(f"environment = {{ {inline} }}\n{text}{more}")
    return path


def expected_sum(tasks: int) -> str:
    """Return the last line of what the head prints."""
    return f"sum {sum(number * number for number in range(tasks))}"
