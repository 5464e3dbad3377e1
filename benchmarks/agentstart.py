# SPDX-License-Identifier: Apache-2.0
"""What does it cost to start an agent? Processor time of each, and the time until N of them are held.

Real job scripts on this machine, all at once, with a real control center; no batch system. The baseline, in turns with
them, are as many bare shell scripts that only say that they have begun. Once more with a shell script named ``python3``
first in the PATH, as pyenv, conda and modules have one.

    python benchmarks/agentstart.py [--sizes 1,8,64] [--repeat 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import cutoff
from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.vjm.center import ControlCenter
from koala_adapter.vjm.certificate import digest, load_or_create, matches, server_context
from koala_adapter.vjm.jobscript import AgentConfig, render_job_script
from koala_adapter.vjm.listener import AgentEvent, AgentListener, AgentRegistered

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH = BatchKey("koala-benchmark-1")
TOKEN = "a-token-that-guards-nothing-at-all"  # noqa: S105 - lives for the length of a benchmark
DEADLINE = 120.0
SHIM = f'#!/bin/sh\nname=$(basename "$0")\nexec {sys.executable} "$@"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of N programs that are started at once."""

    seconds: float
    """Until the last has begun, or is held."""
    processor_seconds: float
    """Of one, until it has begun, or is held."""
    whole_seconds: float
    """Likewise, to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Medians for one size."""

    agents: int
    bare: Cost
    system: Cost
    """With the plain PATH."""
    shim: Cost
    """With a shell script named ``python3`` first in it."""

    @property
    def ratio(self) -> float:
        """Seconds until held over those of bare scripts."""
        return self.system.seconds / self.bare.seconds


class Count(AgentListener):
    """Counts agents for one control center, and notes what they have used."""

    def __init__(self, agents: int, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._left = agents
        self._stored = digest(TOKEN)
        self._processes = processes
        self.used: list[float] = []
        self._owners: dict[PlaceholderId, str] = {}
        self.all_here = anyio.Event()

    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        """Admit agents with the token."""
        del placeholder
        return matches(token, self._stored)

    def output_path(self, placeholder: PlaceholderId, task: str) -> None:
        """Drop the output."""

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """Return who owns ``placeholder``."""
        return self._owners.get(placeholder)

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Remember it."""
        self._owners[placeholder] = session_hash

    def on_event(self, event: AgentEvent) -> None:
        """Count it."""
        if isinstance(event, AgentRegistered):
            self.used.append(used_by(self._processes[event.placeholder.index - 1].pid))
            self._left -= 1
        if self._left == 0:
            self.all_here.set()


def used_by(pid: int) -> float:
    """Return the processor time of a process so far, in seconds (without that of its children)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def start(script: Path, count: int, path: str, output: int | None = None) -> list[subprocess.Popen[bytes]]:
    """Start a script so many times, each with its index."""
    return [
        subprocess.Popen(
            ["/bin/sh", str(script)],
            env={"PATH": path, "INDEX": str(index)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            cwd="/",
        )
        for index in range(1, count + 1)
    ]


def processor_seconds(processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait for all and return the mean processor time."""
    total = 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, process.returncode
        total += usage.ru_utime + usage.ru_stime
    return total / len(processes)


def bare_scripts(count: int) -> Cost:
    """Start scripts that only say that they have begun."""
    reader, writer = os.pipe()
    with tempfile.TemporaryDirectory() as directory, os.fdopen(reader, "rb") as words:
        script = Path(directory) / "script"
        script.write_text("#!/bin/sh\necho begun\n")
        begin = time.monotonic()
        processes = start(script, count, os.defpath, writer)
        os.close(writer)
        for _ in range(count):
            words.readline()
        seconds = time.monotonic() - begin
        used = processor_seconds(processes)
    return Cost(seconds=seconds, processor_seconds=used, whole_seconds=used)


async def agents(count: int, path: str) -> Cost:
    """Start agents, release them when all are held."""
    processes: list[subprocess.Popen[bytes]] = []
    counted = Count(count, processes)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        own = load_or_create(directory / "certificate")
        center = ControlCenter(counted, server_context(own), lease=60, heartbeat=30)
        async with anyio.create_task_group() as tasks:
            port = await tasks.start(center.serve, "127.0.0.1", 0)
            config = AgentConfig(
                batch=BATCH,
                host="127.0.0.1",
                port=port,
                fingerprint=own.fingerprint,
                lease=60,
                walltime=600,
                token=TOKEN,
            )
            script = directory / "script"
            script.write_text(render_job_script(agent=config, array_index_variable="INDEX", job_id_variable=None))
            begin = time.monotonic()
            processes += start(script, count, path)
            with anyio.fail_after(DEADLINE):
                await counted.all_here.wait()
            seconds = time.monotonic() - begin
            for placeholder in center.connected:
                center.release(placeholder, 1.0)
            whole = await anyio.to_thread.run_sync(processor_seconds, processes)
            tasks.cancel_scope.cancel()
    return Cost(seconds=seconds, processor_seconds=statistics.mean(counted.used), whole_seconds=whole)


def measure(count: int, repeat: int, shims: str) -> Row:
    """Measure one size, in turns, so that all meet the same conditions."""
    found: dict[str, list[Cost]] = {"bare": [], "system": [], "shim": []}
    for _ in range(repeat):
        found["bare"].append(bare_scripts(count))
        found["system"].append(anyio.run(agents, count, os.defpath))
        found["shim"].append(anyio.run(agents, count, f"{shims}:{os.defpath}"))
    return Row(agents=count, **{name: middle(costs) for name, costs in found.items()})


def middle(costs: Sequence[Cost]) -> Cost:
    """Return the medians."""
    return Cost(
        seconds=statistics.median(cost.seconds for cost in costs),
        processor_seconds=statistics.median(cost.processor_seconds for cost in costs),
        whole_seconds=statistics.median(cost.whole_seconds for cost in costs),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", default="1,8,64", help="numbers of agents (default 1,8,64)")
    parser.add_argument("--repeat", type=int, default=5, help="times that each is measured (default 5)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    cutoff.begin()
    with tempfile.TemporaryDirectory() as shims:
        shim = Path(shims) / "python3"
        shim.write_text(SHIM)
        shim.chmod(0o755)
        rows = [measure(int(size), options.repeat, shims) for size in options.sizes.split(",")]
    if options.json:
        print(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=2))
        return
    print(f"medians of {options.repeat}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"{'':>4} {'until all are held, s':^38}  {'processor time of one, ms: until held (to its end)':^50}")
    heads = " ".join(f"{head:>9}" for head in ("bare", "agents", "shim", "ratio"))
    print(f"{'N':>4} {heads} " + " ".join(f"{head:>16}" for head in ("bare", "agents", "shim")))
    for row in rows:
        costs = (row.bare, row.system, row.shim)
        seconds = " ".join(f"{cost.seconds:9.3f}" for cost in costs)
        used = " ".join(f"{1000 * cost.processor_seconds:8.1f} ({1000 * cost.whole_seconds:5.1f})" for cost in costs)
        print(f"{row.agents:4} {seconds} {row.ratio:9.1f} {used}")


if __name__ == "__main__":
    main()
