# SPDX-License-Identifier: Apache-2.0
"""Dask and Ray on malleable workers: clusters, tasks, and leaving while the job goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from distributed import Client, LocalCluster, Security, Worker, get_worker
from distributed.client import wait

from koala_adapter.dask import KoalaCluster, leave
from koala_adapter.errors import EXIT_CANCELLED, ConfigurationError, ServiceUnavailableError
from koala_adapter.host.sockets import free_port
from tests.daskprogram import DaskProgram, sum_of_squares, write_dasksum
from tests.daskprograms import TASKS as SQUARED
from tests.examplejobs import EXAMPLE, expected_sum
from tests.local_koala import Koala, eventually, processes_naming

# -- Dask on two local clusters: the example as it stands, and KoalaCluster from programs, a notebook and bad ends.


MANUAL = Path(__file__).parents[1] / "docs" / "dask.md"
SQUARES = "0 1 4 9 16"
TASKS = 300
"""Of the example: some ten seconds of work for its workers, so that it goes on while others come."""
CLOSED = frozenset({0, EXIT_CANCELLED})
"""How the job of a cluster that is closed ends: its workers do, and are cancelled where they take too long."""


def program(koala: Koala, name: str, *arguments: object) -> DaskProgram:
    """Start a program of a user of this site."""
    return DaskProgram(koala.directory, koala.environment, name, *arguments, site=koala.site_file, state=koala.state)


def exit_code(koala: Koala, job: str) -> int:
    """Wait until a job is over and nothing of it is left; return how it ended."""
    eventually(lambda: koala.report(job).over and koala.placeholders() == [])
    outcome = koala.report(job).outcome
    assert outcome is not None
    return outcome.exit_code


@pytest.mark.nightly
def test_the_example_makes_room_and_loses_nothing(koala: Koala) -> None:
    koala.serve()
    fewer = {"maximum = 20": "maximum = 5"}
    koala.inside("submit", str(write_dasksum(koala.directory, tasks=TASKS, seconds=0.2, replaced=fewer)))
    eventually(lambda: sum(one.processors for one in koala.report("1").components) == 6)
    koala.inside("submit", koala.job("sleep 1", name="rigid", processors=3))
    assert exit_code(koala, "1") == 0
    report = koala.report("1")
    assert any(one.reason == "room for job 2" and one.after < one.before for one in report.size_changes)
    output = koala.state / "jobs" / "1" / "head"
    lines = (output / "0.out").read_text().splitlines()
    assert (lines[-1], len(lines)) == (expected_sum(TASKS), TASKS + 1)
    assert {line.rpartition(" ")[2].partition("-")[0] for line in lines[:-1]} == {"alpha", "beta"}
    warnings = output / "0.err"
    assert not warnings.exists() or "recomputed" not in warnings.read_text()


@pytest.mark.nightly
def test_a_notebook_scales_from_none_to_none(koala: Koala) -> None:
    koala.serve()
    with program(koala, "notebook") as dask:
        assert dask.ended() == 0, dask.said
    sums = [sum_of_squares(0, SQUARED), sum_of_squares(SQUARED, 2 * SQUARED)]
    expected = ["none - 0", *sums, "another job True", f"executor {SQUARES}", "closed"]
    assert dask.results == expected, dask.said
    assert {exit_code(koala, job) for job in ("1", "2", "3")} <= CLOSED


def test_nobody_gets_in_without_the_key(koala: Koala) -> None:
    """Neither without TLS nor with a key of one's own; a cluster without workers needs no service of koala."""
    with KoalaCluster(maximum=4, n_workers=0, site=koala.site_file, state=koala.state) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        for where, key in ((address.replace("tls:", "tcp:"), Security()), (address, Security.temporary())):
            with pytest.raises(OSError, match=r"closed|certificate|[Tt]imed out"):
                _ = Client(where, security=key, timeout=2)
        with Client(cluster) as client:
            assert client.scheduler_info()["workers"] == {}
    assert not koala.state.exists()


def test_numbers_that_cannot_be_are_refused(koala: Koala) -> None:
    """The bounds are those that the job would have; what was planned before stays."""
    with KoalaCluster(minimum=2, maximum=4, n_workers=0, site=koala.site_file, state=koala.state) as cluster:
        for wrong in (1, 5):
            with pytest.raises(ValueError, match="2 to 4"):
                cluster.scale(wrong)
        with pytest.raises(ValueError, match="no memory of their own"):
            cluster.scale(memory="4 GiB")
        for minimum, maximum in ((0, 4), (1, 4), (3, 2)):
            with pytest.raises(ValueError, match="2 to 4 workers"):
                cluster.adapt(minimum=minimum, maximum=maximum)
        assert cluster.plan == set()
        assert cluster.job_id == ""


def test_the_program_of_the_manual_runs(koala: Koala) -> None:
    """What docs/dask.md shows works as it stands, here with fewer workers; nobody has begun a service."""
    (program_text,) = re.findall(r"^```python\n(.*?)^```$", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    assert "maximum=40" in program_text
    path = koala.directory / "manual.py"
    path.write_text(program_text.replace("maximum=40", "maximum=3"))
    own = {"KOALA_SITE": str(koala.site_file), "KOALA_STATE": str(koala.state)}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, env={**koala.environment, **own}, stdout=subprocess.PIPE, text=True, check=True)
    told, first, second = done.stdout.splitlines()
    assert told.endswith("and the workers are job 1")
    assert (first, second) == (str(sum(n * n for n in range(200))), str(sum(n * n for n in range(20))))
    assert exit_code(koala, "1") in CLOSED


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_ends_its_job(koala: Koala, number: signal.Signals) -> None:
    """It is killed, or interrupted by Ctrl-C: the workers lose their scheduler and leave."""
    koala.serve()
    with program(koala, "compute", 2) as dask:
        job = dask.until_said("job")
        os.killpg(dask.process.pid, number)
        dask.process.wait()
        assert exit_code(koala, job) in (CLOSED if number == signal.SIGINT else {0})
    assert list(koala.directory.glob("koala-dask-*")) == []


@pytest.mark.nightly
def test_a_program_that_forgets_to_close(koala: Koala) -> None:
    koala.serve()
    with program(koala, "forget") as dask:
        assert dask.ended() == 0
    assert f"executor {SQUARES}" in dask.said
    assert exit_code(koala, "1") in CLOSED


@pytest.mark.nightly
def test_a_cluster_goes_on_without_the_service(koala: Koala) -> None:
    service = koala.serve()
    with program(koala, "go_on", 2) as dask:
        job = dask.until_said("job")
        service.kill()
        service.wait()
        (koala.directory / "killed").touch()
        dask.until_said("asked")
        koala.serve()
        dask.until_said("closed")
        assert dask.ended() == 0
    assert f"executor {SQUARES}" in dask.said
    assert exit_code(koala, job) in CLOSED


@pytest.mark.nightly
def test_workers_that_cannot_start_are_told_of(koala: Koala, tmp_path: Path) -> None:
    """The Python of the nodes has no Dask: the cluster says that its job has ended, why, and where to see more."""
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\nexit 3\n")
    bare.chmod(0o700)
    koala.serve()
    with program(koala, "fail", bare) as dask:
        assert dask.ended() == 0
    said = "\n".join(dask.said)
    assert "job 1 has ended by itself" in said
    assert "exited with status 3" in said
    assert "`koala logs 1`" in said
    assert exit_code(koala, "1") == 3


def test_refusals_say_what_to_do(koala: Koala) -> None:
    """No site file, a site file or job that is not right, bounds that leave no room, a service that cannot start."""
    here = partial(KoalaCluster, site=koala.site_file, state=koala.state)
    with pytest.raises(ConfigurationError, match=r"there is no such site file"):
        _ = KoalaCluster(maximum=4, site=koala.directory / "none.toml")
    with pytest.raises(ConfigurationError, match=r"allowed is a larger maximum"):
        _ = here(minimum=4, maximum=4)
    with pytest.raises(ValueError, match=r"5 workers: the cluster has 1 to 4 of them"):
        _ = here(maximum=4, n_workers=5)
    with pytest.raises(ConfigurationError, match=r'cluster: found "gamma"'):
        _ = here(maximum=4, cluster="gamma")
    koala.state.mkdir(mode=0o700)
    (koala.state / "journal.sqlite").write_bytes(b"no journal at all" * 100)
    with pytest.raises(ServiceUnavailableError, match=r"the service did not come up"):
        _ = here(maximum=4)


# -- What a Dask worker does when it is asked to leave: real schedulers and workers, as processes of Dask's own.


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


def test_a_worker_that_leaves_hands_over_its_results_and_finishes_its_task(workers: Workers, tmp_path: Path) -> None:
    leaver = workers.start("leaver")
    client, begun = workers.client, tmp_path / "begun"
    scattered = client.scatter([b"a" * 1000, b"b" * 1000])
    results = client.map(str, range(20))
    wait(results)
    workers.start("stayer")
    task = client.submit(begin, str(begun), 1.0, workers="leaver", allow_other_workers=True)
    eventually(begun.exists)
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
    leaver, begun = workers.start("leaver"), tmp_path / "begun"
    workers.start("stayer")
    client = workers.client
    client.run(slow_stream, 3.0)
    task = client.submit(begin, str(begun), 1.0, workers="leaver", allow_other_workers=True)
    eventually(begun.exists)
    leaver.send_signal(signal.SIGTERM)
    assert leaver.wait(LIVENESS) == 0
    assert task.result(timeout=LIVENESS) == "leaver"
    assert begun.read_text() == "begun\n"


def test_the_example_leaves_as_the_package_does() -> None:
    example = Path(__file__).parents[1] / "examples" / "malleable" / "leave.py"
    assert example.read_bytes() == Path(leave.__file__).read_bytes()


def test_a_task_that_takes_too_long_is_begun_again_by_another(workers: Workers, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    leaver = workers.start("leaver", patience=0.2)
    task = workers.client.submit(begin, str(begun), 3600.0)
    eventually(begun.exists)
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


# -- Ray on two local clusters: the example as it stands, whose nodes come, make room for another job, and come back.

RAY_TASKS = 120


@pytest.fixture
def ray_directory() -> Iterator[Path]:
    """Give a directory for what Ray keeps: its sockets want a short path."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def write_raysquares(directory: Path, ray_directory: Path) -> Path:
    """Return the path of the example's job file in a directory, with fewer and shorter tasks on fewer nodes."""
    for name in ("raysquares.py", "raynode.py"):
        shutil.copy(EXAMPLE / name, directory)
    token = directory / "ray.token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef" * 4)
    text = (EXAMPLE / "raysquares.toml").read_text().replace('"200"', f'"{RAY_TASKS}"')
    own = {"RAYSQUARES_PORT": str(free_port()), "RAYSQUARES_SECONDS": "0.2", "RAY_TMPDIR": str(ray_directory)}
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in own.items())
    for old, new in (
        ('"python3"', json.dumps(sys.executable)),
        ("maximum = 20", "maximum = 2"),
        ("[environment]\n", f"[environment]\n{lines}"),
    ):
        assert old in text
        text = text.replace(old, new)
    path = directory / "raysquares.toml"
    path.write_text(text)
    return path


@pytest.mark.nightly
def test_the_example_with_ray_makes_room_and_loses_nothing(koala: Koala, ray_directory: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    koala.serve()
    koala.inside("submit", str(write_raysquares(koala.directory, ray_directory)))
    eventually(lambda: sum(one.processors for one in koala.report("1").components) == 3)
    output = koala.state / "jobs" / "1" / "head"
    eventually((output / "0.out").exists)  # Ray takes its time to start
    koala.inside("submit", koala.job("sleep 1", name="rigid", processors=3))
    eventually(lambda: koala.report("1").over)
    report = koala.report("1")
    assert report.outcome is not None
    assert report.outcome.exit_code == 0, (report.outcome, (output / "0.err").read_text()[-3000:])
    assert any(one.reason == "room for job 2" and one.after < one.before for one in report.size_changes)
    lines = (output / "0.out").read_text().splitlines()
    assert expected_sum(RAY_TASKS) in lines
    squares = [line for line in lines if " squared is " in line]  # Ray has a line of its own now and then
    assert len(squares) == RAY_TASKS
    assert {line.rpartition(" ")[2] for line in squares} <= {"alpha", "beta"}
    eventually(lambda: koala.placeholders() == [])
    eventually(lambda: processes_naming(str(ray_directory)) == [])
