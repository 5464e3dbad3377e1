# SPDX-License-Identifier: Apache-2.0
"""A worker of raysquares.py: one node of Ray with one processor, which joins the head as soon as that is there.

A signal ends it: what runs on it then is begun again elsewhere.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

HEAD = os.environ["KOALA_HEAD_ADDRESS"], int(os.environ.get("RAYSQUARES_PORT", "26379"))
PATIENCE = 60.0
"""Seconds in which the head must have begun."""
OBJECTS = 128 * 1024 * 1024
"""Bytes of memory for results."""


def wait_for_head() -> None:
    """Return when the head can be reached, or let Ray say that it cannot."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            socket.create_connection(HEAD, 5.0).close()
        except OSError:
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    wait_for_head()
    options = ["--block", "--num-cpus=1", f"--object-store-memory={OBJECTS}", "--disable-usage-stats"]
    options += ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    ray = str(Path(sys.executable).with_name("ray"))
    os.execv(ray, [ray, "start", f"--address={HEAD[0]}:{HEAD[1]}", *options])  # noqa: S606 - no shell is wanted
