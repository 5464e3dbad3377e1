# SPDX-License-Identifier: Apache-2.0
"""What a Dask worker does when it is asked to leave: real schedulers and workers, as processes of Dask's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from distributed import Client, LocalCluster, get_worker
from distributed.client import wait

from koala_adapter.dask import leave

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distributed import Worker

pytestmark = [pytest.mark.slow]

LIVENESS = 120.0


class Workers:
    """A scheduler in this process, and workers that are processes started one by one."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Start the scheduler."""
        quiet = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "protocol": "tcp://"}
        self.cluster = stack.enter_context(LocalCluster(n_workers=0, **quiet))
        self.client = stack.enter_context(Client(self.cluster))
        self._directory = directory
        self._stack = stack

    def start(self, name: str, *, patience: float = 600) -> subprocess.Popen[bytes]:
        """Start a worker that can leave; return once it is there."""
        command = [sys.executable, "-m", "distributed.cli.dask_worker", self.cluster.scheduler_address]
        command += ["--name", name, "--nthreads", "1", "--no-nanny", "--no-dashboard", "--preload", leave.__file__]
        there = len(self.cluster.scheduler_info["workers"])
        with (self._directory / f"{name}.log").open("wb") as log:
            environment = {**os.environ, "DASK_LEAVE_SECONDS": str(patience), "TMPDIR": str(self._directory)}
            process = subprocess.Popen(command, stderr=log, env=environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self.client.wait_for_workers(there + 1, timeout=LIVENESS)
        return process


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Give a scheduler; end it and all its workers afterwards."""
    with ExitStack() as stack:
        yield Workers(tmp_path, stack)


def begin(path: str, seconds: float) -> str:
    """Note that the task begins, take some time, return where it was done."""
    with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - the worker has no need of another import
        file.write("begun\n")
    time.sleep(seconds)
    return str(get_worker().name)


def note_the_end(path: str) -> None:
    """Have the worker's process note in a file that it ends."""
    import atexit  # noqa: PLC0415 - the worker does it

    def note() -> None:
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - as above
            file.write("ended\n")

    atexit.register(note)


def await_begin(path: Path) -> None:
    """Wait until the task has begun."""
    until = time.monotonic() + LIVENESS
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_worker_that_leaves_hands_over_its_results_and_finishes_its_task(workers: Workers, tmp_path: Path) -> None:
    """Nothing is worked out twice, and data that were only there are kept."""
    leaver = workers.start("leaver")
    client, begun = workers.client, tmp_path / "begun"
    scattered = client.scatter([b"a" * 1000, b"b" * 1000])
    results = client.map(str, range(20))
    wait(results)
    workers.start("stayer")
    task = client.submit(begin, str(begun), 1.0, workers="leaver", allow_other_workers=True)
    await_begin(begun)
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(LIVENESS) == 0
    assert task.result(timeout=LIVENESS) == "leaver"
    assert begun.read_text() == "begun\n"
    assert client.gather(scattered) == [b"a" * 1000, b"b" * 1000]
    assert client.gather(results) == [str(number) for number in range(20)]
    events = [event for _, event in client.get_events("all") if event["action"] == "remove-worker"]
    assert [(event["expected"], event["lost-computed-tasks"]) for event in events] == [(True, set())]


def slow_stream(seconds: float, dask_worker: Worker) -> None:
    """Have what a worker says to the scheduler in its stream arrive late, as where both have much to do."""
    dask_worker.batched_stream.interval = seconds


def test_a_result_that_the_scheduler_has_not_heard_of_yet_is_handed_over(workers: Workers, tmp_path: Path) -> None:
    """The worker is idle when it asks to be retired, but what it has worked out is still on its way."""
    leaver, begun = workers.start("leaver"), tmp_path / "begun"
    workers.start("stayer")
    client = workers.client
    client.run(slow_stream, 3.0)
    task = client.submit(begin, str(begun), 1.0, workers="leaver", allow_other_workers=True)
    await_begin(begun)
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(LIVENESS) == 0
    assert task.result(timeout=LIVENESS) == "leaver"
    assert begun.read_text() == "begun\n"


def test_the_example_leaves_as_the_package_does() -> None:
    """Who copies the example gets what KoalaCluster sends along."""
    example = Path(__file__).parents[1] / "examples" / "malleable" / "leave.py"
    assert example.read_bytes() == Path(leave.__file__).read_bytes()


def test_a_task_that_takes_too_long_is_begun_again_by_another(workers: Workers, tmp_path: Path) -> None:
    """The worker leaves in time; the task does not count as one that kills workers."""
    begun = tmp_path / "begun"
    leaver = workers.start("leaver", patience=0.2)
    task = workers.client.submit(begin, str(begun), 3600.0)
    await_begin(begun)
    workers.start("stayer")
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(LIVENESS) == 0
    scheduler = workers.cluster.scheduler
    assert [one.suspicious for one in scheduler.tasks.values() if one.key == task.key] == [0]
    until = time.monotonic() + LIVENESS
    while begun.read_text() != "begun\nbegun\n":
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_last_worker_leaves_too(workers: Workers, tmp_path: Path) -> None:
    """Nobody can take its results; it ends all the same, and they are worked out again by whoever comes.

    What tasks want to be done at the end of their process is done once, though the end is a short one.
    """
    last = workers.start("last")
    workers.client.submit(note_the_end, str(tmp_path / "end")).result(timeout=LIVENESS)
    results = workers.client.map(str, range(5))
    wait(results)
    last.send_signal(signal.SIGTERM)
    assert last.wait(LIVENESS) == 0
    assert (tmp_path / "end").read_text() == "ended\n"
    workers.start("next")
    assert workers.client.gather(results) == [str(number) for number in range(5)]
