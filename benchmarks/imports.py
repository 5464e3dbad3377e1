# SPDX-License-Identifier: Apache-2.0
"""Processor time of short commands over that of ``python -c "import click"``, which none of them can do without.

A service runs on two local clusters and has run a job; each command asks it. The least of several runs counts: what is
more than that came from other work on the machine.

    python benchmarks/imports.py [--repeat 7] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "plugins")]

from benchmarks import cutoff  # noqa: E402 - needs the path set above
from tests.local_koala import Koala  # noqa: E402 - needs the path set above


def processor_seconds(command: Sequence[str], environment: Mapping[str, str], repeat: int) -> float:
    """Run a command so many times and return its least processor time."""
    found = []
    for _ in range(repeat):
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, (command, process.returncode)
        found.append(usage.ru_utime + usage.ru_stime)
    return min(found)


def measure(koala: Koala, repeat: int) -> dict[str, float]:
    """Return the processor time of each command, by its arguments; that of click is the first."""
    job = koala.job("true")
    koala.serve()
    koala.run("run", job)
    commands = {
        "--version": ["--version"],
        "--help": ["--help"],
        "status --json": ["status", "--json"],
        "status": ["status"],
        "explain 1": ["explain", "1"],
        "logs 1": ["logs", "1"],
        "cancel 1": ["cancel", "1"],
        "clusters": ["clusters"],
        "plan JOB": ["plan", job],
        "submit JOB": ["submit", job],
        "check --no-submit": ["check", "--no-submit"],
    }
    click = processor_seconds([sys.executable, "-c", "import click"], koala.environment, repeat)
    times = {
        name: processor_seconds(koala.command(*arguments), koala.environment, repeat)
        for name, arguments in commands.items()
    }
    return {"click": click, **times}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=7, help="times that each is run (default 7)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    cutoff.begin()
    with tempfile.TemporaryDirectory() as directory:
        koala = Koala(Path(directory))
        try:
            times = measure(koala, options.repeat)
        finally:
            koala.close()
    if options.json:
        print(json.dumps({name: {"seconds": used, "ratio": used / times["click"]} for name, used in times.items()}))
        return
    print(f"least of {options.repeat}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"{'':20}{'processor time, s':>18}{'ratio':>8}")
    for name, used in times.items():
        print(f"{name:20}{used:18.3f}{used / times['click']:8.1f}")


if __name__ == "__main__":
    main()
