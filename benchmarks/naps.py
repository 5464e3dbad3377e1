# SPDX-License-Identifier: Apache-2.0
"""The tasks of benchmarks/tasks.py as workers of any kind import them: nothing else is imported with them."""

from __future__ import annotations

import subprocess
import time


def nap(seconds: float) -> None:
    """Do nothing for so long."""
    time.sleep(seconds)


def command(seconds: float) -> int:
    """Have a process of its own do nothing for so long."""
    return subprocess.run(["/usr/bin/sleep", str(seconds)], check=True).returncode


def shell_command(seconds: float) -> str:
    """Return what a shell is to do, as Parsl wants it."""
    return f"exec /usr/bin/sleep {seconds}"
