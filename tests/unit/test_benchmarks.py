# SPDX-License-Identifier: Apache-2.0
"""Benchmarks run at small settings; those that are cut off leave nothing behind, and none waits for ever."""

from __future__ import annotations

import json
import math
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import Row, lines_of
from koala_adapter.simulation.models import lublin
from koala_adapter.simulation.workload import Field, write_trace

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIVENESS = 120.0
"""Seconds within which anything that is expected must have happened; on a busy machine, too."""
BENCHMARK = """
import subprocess, sys, tempfile, time
sys.path.insert(0, {directory!r})
import cutoff
cutoff.begin({limit})
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
apart = {{"stdout": subprocess.DEVNULL, "start_new_session": True}}
named = subprocess.Popen([*sleep, tempfile.gettempdir()], env={{}}, **apart)
heir = subprocess.Popen(sleep, **apart)
try:
    print(named.pid, heir.pid, tempfile.gettempdir(), flush=True)
    while True:  # one long sleep would not see a signal that comes in the moment before it
        time.sleep(0.1)
finally:
    print("cleaned up", flush=True)
"""


def ended(pid: int) -> bool:
    """Wait until a process has ended; tell whether it has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LIVENESS)[0])
    finally:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("how", "limit", "cleans"),
    [(signal.SIGINT, 600, True), (signal.SIGTERM, 600, True), (signal.SIGKILL, 600, False), (None, 1, True)],
)
def test_nothing_is_left_of_a_benchmark_that_is_cut_off(
    how: signal.Signals | None, limit: int, *, cleans: bool
) -> None:
    """Neither what names its directory in its command line nor what has its environment, nor the directory."""
    program = BENCHMARK.format(directory=str(BENCHMARKS), limit=limit)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        *pids, directory = process.stdout.readline().split()
        if how is not None:
            process.send_signal(how)
        assert process.wait(LIVENESS) != 0
        assert ("cleaned up" in process.stdout.read()) is cleans
    assert all(ended(int(pid)) for pid in pids)
    while Path(directory).exists():
        select.select([], [], [], 0.05)


SMALL = """
commands history --jobs 20 --repeat 1
agents many --agents 10 --clients 1 --limit 100
agents start --sizes 1 --repeat 1
scheduler decisions --clusters 2 --jobs 10,20 --repeat 1 --poll-clusters 2
scheduler snapshots --placeholders 1000 --repeat 1
scheduler month --jobs 200 --clusters 2 --processors 64
queues easy TRACE --repeat 1
queues others TRACE --jobs 50
queues looks --waiting 50 --running 20 --repeat 1
queues reading TRACE --repeat 1
negotiation wish --repeat 2
negotiation points --repeat 2 --calls 100
tasks handed-out --tasks 50 --pullers 2 --repeat 1
wiki codec --nodes 20 --jobs 20 --repeat 1
network catalogues --entries 100 --repeat 1
"""
"""Benchmarks that need no batch system, with the smallest settings."""
LONG = ("agents many", "negotiation wish", "queues others")
"""Those that are left to the night: another one of their module is run by day."""


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(line.split(), id=line, marks=pytest.mark.nightly if line.startswith(LONG) else ())
        for line in SMALL.split("\n")
        if line
    ],
)
def test_a_benchmark_gives_numbers(words: list[str], tmp_path: Path) -> None:
    trace = tmp_path / "small.swf.gz"
    jobs = lublin(100, seed=1, processors=64)
    columns = {Field.JOB: jobs.ids, Field.SUBMITTED: jobs.submits, Field.RUN: jobs.runs, Field.ALLOCATED: jobs.sizes}
    write_trace(trace, ["; MaxProcs: 64"], columns)
    module, *options = [str(trace) if word == "TRACE" else word for word in words]
    command = [sys.executable, "-m", f"benchmarks.{module}", *options, "--json"]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    assert all(isinstance(value, (str, int, float)) for row in rows for value in row.values())


def test_the_rows_of_a_benchmark_as_a_table() -> None:
    """Text stands left, numbers right; other columns have a heading of their own; what is not known is a dash."""
    rows: list[Row] = [{"": "a", "s": 1234.5}, {"": "long", "s": 0.01234}, {"ms": math.nan}]
    assert lines_of(rows) == ["           s", "a      1,234", "long  0.0123", "", "ms", " -"]


TEST_MODULES = re.compile(r"^\s*(?:from|import)\s+(?:tests\.)?(?:\w+\.)*(?:test_\w+|conftest)\b", re.MULTILINE)


def test_no_benchmark_imports_tests() -> None:
    """What both use is in modules of its own: a benchmark must not change with the tests of something else."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(BENCHMARKS.glob("*.py"))}
    assert len(texts) > 10
    assert [name for name, text in texts.items() if TEST_MODULES.search(text)] == []
    for line in ("from tests.unit.scheduler.test_state import record", "import tests.conftest"):
        assert TEST_MODULES.search(line)
