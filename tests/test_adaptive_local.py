# SPDX-License-Identifier: Apache-2.0
"""Programs whose processes change together, on local clusters, with the application library as it travels."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.local_koala import LIVENESS, Koala, eventually, processes_naming
from tests.stepsum import expected_result, write_stepsum

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def koala(tmp_path: Path) -> Iterator[Koala]:
    """Give a site of two local clusters of four processors, and end all of it afterwards."""
    one = Koala(tmp_path)
    try:
        yield one
    finally:
        one.close()


def size(koala: Koala, job: str = "1") -> int:
    """Return how many processors a job has."""
    return sum(one.processors for one in koala.report(job).components)


def outcome(koala: Koala, job: str = "1") -> dict[str, Any]:
    """Return how a job ended, once it has."""
    eventually(lambda: koala.json("status", job)["outcome"] is not None)
    found: dict[str, Any] = koala.json("status", job)["outcome"]
    return found


def printed(koala: Koala, job: str = "1") -> list[str]:
    """Return what the process of rank 0 printed."""
    return (koala.state / "jobs" / job / "sum" / "0.out").read_text().splitlines()


def test_processes_come_and_go_and_the_result_is_the_same(koala: Koala) -> None:
    """It grows to all that is idle on two clusters, makes room for a rigid job, and computes what it would alone."""
    koala.serve()
    koala.run("submit", write_stepsum(koala.directory, steps=300))
    eventually(lambda: size(koala) == 6)
    koala.run("submit", koala.job("sleep 3", name="rigid", processors=3))
    assert outcome(koala, "2")["exit_code"] == 0
    assert outcome(koala)["exit_code"] == 0, koala.run("explain", "1").stdout
    sizes, result = printed(koala)[-2:]
    assert result == expected_result(300)
    assert {"1", "2", "6"} <= set(sizes.split()[1:]), sizes
    eventually(lambda: koala.placeholders() == [])


def process(rank: int, steps: int) -> int:
    """Return the pid of one process of the program; ``steps`` tells it from those of other tests."""
    for pid in processes_naming(f"stepsum.py\0{steps}\0"):
        with contextlib.suppress(OSError):
            if f"KOALA_RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                return pid
    raise AssertionError(f"process {rank} is not there")


def wait_for_phase(koala: Koala, words: str, job: str = "1") -> None:
    """Wait until the service says that a job is in some phase of a change."""
    until = time.monotonic() + LIVENESS
    while words not in koala.report(job).explanation:
        report = koala.report(job)
        assert report.outcome is None, report.explanation
        assert time.monotonic() < until, report.explanation
        time.sleep(0.01)


def restart(koala: Koala, service: subprocess.Popen[str]) -> None:
    """Kill the service, and begin another."""
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    koala.serve()


def expect_right(koala: Koala, steps: int, job: str = "1") -> list[int]:
    """Wait for the end of the program: its result is right and nothing is left; return its sizes."""
    ended = outcome(koala, job)
    assert ended["exit_code"] == 0, koala.run("explain", job).stdout
    sizes, result = printed(koala, job)[-2:]
    assert result == expected_result(steps)
    eventually(lambda: koala.placeholders() == [])
    return [int(one) for one in sizes.split()[1:]]


@pytest.mark.parametrize("phase", ["has been offered", "are being gathered", "it is taking in", "at its point"])
def test_a_service_that_is_killed_while_a_program_grows(koala: Koala, phase: str) -> None:
    """The program goes on, and has the same result; the growth is made, or given up and made later."""
    service = koala.serve()
    koala.run("submit", write_stepsum(koala.directory, steps=40, seconds=0.4, maximum=4))
    wait_for_phase(koala, phase)
    restart(koala, service)
    eventually(lambda: size(koala) == 4 or koala.state_of("1") == "completed")
    assert 4 in expect_right(koala, 40)


@pytest.mark.parametrize("phase", ["asked to give up", "it is giving up", "at its point"])
def test_a_service_that_is_killed_while_a_program_shrinks(koala: Koala, phase: str) -> None:
    """The program goes on, and has the same result; the one who waits gets the processors."""
    service, steps = koala.serve(), 41
    koala.run("submit", write_stepsum(koala.directory, steps=steps, seconds=0.4, minimum=2, maximum=6))
    eventually(lambda: size(koala) == 6 and "taking in" not in koala.report("1").explanation)
    if phase == "asked to give up":  # who is stopped does not answer
        os.kill(process(0, steps), signal.SIGSTOP)
    koala.run("submit", koala.job("sleep 1", name="rigid", processors=3))
    wait_for_phase(koala, phase)
    restart(koala, service)
    os.kill(process(0, steps), signal.SIGCONT)
    assert outcome(koala, "2")["exit_code"] == 0
    sizes = expect_right(koala, steps)
    assert min(sizes) == 2, sizes
