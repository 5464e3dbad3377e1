# SPDX-License-Identifier: Apache-2.0
"""Benchmarks that are cut off leave nothing behind, and none of them waits for ever."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LIVENESS = 120.0
"""Seconds within which anything that is expected must have happened; on a busy machine, too."""
STARTS = re.compile(
    r"Popen|subprocess\.run|SlurmCluster\(|local_site\(|Koala\(|multiprocessing|LocalCluster\(|start_in_background\("
)
"""What begins another process."""
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


def test_each_benchmark_that_starts_processes_has_them_ended() -> None:
    """Those that start none compute, and end by themselves."""
    without = [
        path.name
        for path in sorted(BENCHMARKS.glob("*.py"))
        if "def main()" in path.read_text(encoding="utf-8")
        and STARTS.search(path.read_text(encoding="utf-8"))
        and "cutoff.begin(" not in path.read_text(encoding="utf-8")
    ]
    assert without == []


TEST_MODULES = re.compile(r"^\s*(?:from|import)\s+(?:tests\.)?(?:\w+\.)*(?:test_\w+|conftest)\b", re.MULTILINE)


def test_no_benchmark_imports_tests() -> None:
    """What both use is in modules of its own: a benchmark must not change with the tests of something else."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(BENCHMARKS.glob("*.py"))}
    assert len(texts) > 20
    assert [name for name, text in texts.items() if TEST_MODULES.search(text)] == []
    for line in ("from tests.unit.scheduler.malleable_site import AdaptiveSite", "import tests.conftest"):
        assert TEST_MODULES.search(line)
