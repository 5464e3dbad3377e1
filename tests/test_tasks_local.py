# SPDX-License-Identifier: Apache-2.0
"""Tasks on local clusters: the executor and sweeps."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import koala_adapter as koala
from koala_adapter.cli.jsonshapes import shape_schema
from koala_adapter.python.executor import TaskServer
from koala_adapter.tasks.server import TOKEN_BYTES
from koala_adapter.vjm.certificate import load_or_create
from tests.json_shapes import deviations
from tests.local_koala import LIVENESS, Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


# -- koala.Executor on local clusters: calls on the processors of both, which come back whatever becomes of a worker.


FINDS_US = {"PYTHONPATH": str(Path(__file__).parents[1])}
"""For workers, which import the module of a function."""


@pytest.fixture(scope="module")
def site() -> Iterator[koala.Site]:
    """Give two local clusters of two processors."""
    with koala.local_site(processors=2) as one:
        one.begin_service()
        yield one


def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


def fail(word: str) -> None:
    """Fail as programs do."""
    raise LookupError(word)


def fall_once(mark: Path) -> str:
    """Take the worker along when this is done for the first time."""
    if mark.exists():
        return "done"
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process outlives no SIGKILL")


def wait_for(mark: Path) -> str:
    """Wait for a file; return the cluster on which this is."""
    while not mark.exists():
        time.sleep(0.05)
    return os.environ["KOALA_CLUSTER"]


def test_calls_come_back_from_both_clusters(site: koala.Site, tmp_path: Path) -> None:
    with koala.Executor(4, site=site, environment=FINDS_US, name="squares") as executor:
        eventually(lambda: executor.workers == 4)
        assert list(executor.map(square, range(40), timeout=LIVENESS)) == [number * number for number in range(40)]
        error = executor.submit(fail, "nowhere").exception(LIVENESS)
        assert isinstance(error, LookupError)
        assert "raise LookupError(word)" in str(error.__cause__)
        unpicklable = executor.submit(id, socket.socket).exception(LIVENESS)
        assert unpicklable is None
        assert executor.submit(list, (one for one in "ab")).exception(LIVENESS) is not None
        held = [executor.submit(wait_for, tmp_path / "go") for _ in range(4)]
        eventually(lambda: all(one.running() for one in held))
        waiting = executor.submit(square, 1)
        assert waiting.cancel()
        assert not held[0].cancel()
        (tmp_path / "go").touch()
        assert sorted(one.result(LIVENESS) for one in held) == ["alpha"] * 2 + ["beta"] * 2
    assert executor.job.wait().state is koala.JobState.COMPLETED
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(len, "")


def test_workers_run_in_the_environment_that_is_asked_for(site: koala.Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPORTED", "from here")
    setup = f"export PYTHONPATH={FINDS_US['PYTHONPATH']} OWN=line"
    with koala.Executor(2, site=site, setup=setup, export="EXPORT*") as executor:
        assert [executor.submit(os.getenv, name).result(LIVENESS) for name in ("OWN", "EXPORTED")] == [
            "line",
            "from here",
        ]
        assert executor.submit(square, 3).result(LIVENESS) == 9


@pytest.mark.parametrize("workers", [1, 3])
def test_a_number_of_workers_that_does_not_change(site: koala.Site, workers: int) -> None:
    with koala.Executor(workers, minimum=workers, site=site, environment=FINDS_US) as executor:
        assert list(executor.map(square, range(4), timeout=LIVENESS)) == [0, 1, 4, 9]
    result = executor.job.wait(LIVENESS)
    assert (result.state, result.exit_code) == (koala.JobState.COMPLETED, 0)
    assert list((site.directory / "executors").iterdir()) == []


def test_a_call_outlives_its_worker(site: koala.Site, tmp_path: Path) -> None:
    with koala.Executor(3, minimum=2, site=site, environment=FINDS_US) as executor:
        eventually(lambda: executor.workers == 3)
        assert executor.submit(fall_once, tmp_path / "fallen").result(LIVENESS) == "done"


def test_calls_outlive_the_service(site: koala.Site) -> None:
    with koala.Executor(3, site=site, environment=FINDS_US) as executor:
        assert executor.submit(abs, -3).result(LIVENESS) == 3
        pid = site.client.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert list(executor.map(abs, range(10), timeout=LIVENESS)) == list(range(10))
    assert executor.job.wait(LIVENESS).state is koala.JobState.COMPLETED


def test_calls_end_with_their_job(site: koala.Site, tmp_path: Path) -> None:
    executor = koala.Executor(2, site=site, environment=FINDS_US)
    call = executor.submit(wait_for, tmp_path / "never")
    eventually(call.running)
    executor.job.cancel()
    with pytest.raises(koala.JobFailedError, match=f"job {executor.job.id} of the executor has ended by itself"):
        call.result(LIVENESS)
    with pytest.raises(koala.JobFailedError):
        executor.submit(len, "ab").result(LIVENESS)
    executor.shutdown()


def test_what_cannot_be_is_refused(site: koala.Site) -> None:
    with pytest.raises(koala.ConfigurationError, match="found minimum 2 and maximum 1"):
        koala.Executor(1, minimum=2, site=site)
    with pytest.raises(koala.ConfigurationError, match='found "gamma", allowed is a cluster of the site'):
        koala.Executor(2, site=site, cluster="gamma")


def test_who_has_not_the_token_gets_nothing(tmp_path: Path) -> None:
    server = TaskServer("127.0.0.1", load_or_create(tmp_path / "c"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=LIVENESS)
        with context.wrap_socket(plain) as connection:
            connection.sendall(bytes(TOKEN_BYTES))
            assert connection.recv(1) == b""
        assert server.workers == 0
    finally:
        server.close()


# -- Sweeps on local clusters: every result once, whatever is killed; what fails is tried again, and gone on with.


SWEEP = """\
name = "squares"
kind = "malleable"
runner = "sweep"
walltime = "30m"

[[components]]
command = ["sh", "-c", '''{script}''']
minimum = 1
maximum = 4
flexible = true

[sweep.parameters]
a = "1..{last}"
"""


@pytest.fixture
def sweep_koala(tmp_path: Path) -> Iterator[Koala]:
    """Give two local clusters of four processors."""
    one = Koala(tmp_path)
    yield one
    one.close()


def entries(koala: Koala, job: str) -> list[dict[str, Any]]:
    """Return what is written down of the tasks of a sweep."""
    path = koala.state / "jobs" / job / "sweep" / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_task_once_whatever_is_killed(sweep_koala: Koala, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"echo $PPID {{a}} >>{begun}; while [ ! -e {go} ]; do sleep 0.1; done; echo $(( {{a}} * {{a}} ))"
    job_file = tmp_path / "squares.toml"
    job_file.write_text(SWEEP.format(script=script, last=30))
    service = sweep_koala.serve()
    sweep_koala.run("submit", str(job_file))

    def launchers() -> set[int]:
        lines = begun.read_text().splitlines() if begun.exists() else []
        return {int(line.split()[0]) for line in lines}

    eventually(lambda: len(launchers()) >= 3)
    for pid in sorted(launchers())[:2]:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: sum(one["state"] == "lost" for one in entries(sweep_koala, "1")) == 2)
    os.kill(service.pid, signal.SIGKILL)
    service.wait(LIVENESS)
    go.touch()
    sweep_koala.serve()
    eventually(lambda: sweep_koala.report("1").over)
    report = sweep_koala.report("1")
    assert report.outcome is not None
    assert (report.outcome.exit_code, report.sweep and report.sweep.done) == (0, 30)
    done = [one for one in entries(sweep_koala, "1") if one["state"] == "done"]
    assert sorted(one["task"] for one in done) == list(range(30))
    directory = sweep_koala.state / "jobs" / "1" / "sweep"
    for one in done:
        assert int((directory / one["stdout"]).read_text()) == int(one["parameters"]["a"]) ** 2
    assert "30/30" in sweep_koala.inside("status").stdout


def test_what_failed_is_gone_on_with(sweep_koala: Koala, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"test {{a}} != 3 -o -e {tmp_path}/mended && echo {{a}}-{{b}}"
    sweep_koala.serve()
    saved = tmp_path / "saved.toml"
    words = ("sweep", "--repeats", "1", "--save", str(saved), "--", "sh", "-c", script, ":::", "a=1..4", "b=x,y")
    monkeypatch.chdir(tmp_path)
    done = sweep_koala.inside(*words, check=1)
    assert "2 of 8 tasks failed" in done.stderr
    assert "koala sweep --resume 1" in done.stderr
    assert [one["state"] for one in entries(sweep_koala, "1") if one["task"] == 4] == ["repeated", "failed"]
    told = sweep_koala.inside("results", "1")
    assert [line.split()[:4] for line in told.stdout.splitlines()[4:7]] == [
        ["3", "2", "y", "0"], ["4", "3", "x", "1"], ["5", "3", "y", "1"],
    ]  # fmt: skip
    assert "2 of 8 tasks" not in told.stderr
    (failed, _) = map(json.loads, sweep_koala.inside("results", "1", "--failed", "--json").stdout.splitlines())
    assert (failed["parameters"], failed["status"], failed["attempt"]) == ({"a": "3", "b": "x"}, 1, 2)
    assert deviations(failed, shape_schema("task-result")) == []
    assert sweep_koala.inside("logs", "1", "--task", "7").stdout == "4-y\n"
    assert sweep_koala.inside("logs", "1", "--task", "4").stdout == ""
    assert "has not ended" in sweep_koala.inside("logs", "1", "--task", "8", check=240).stderr
    logs = sweep_koala.inside("logs", "1")
    assert logs.stdout == ""
    where = f"{sweep_koala.state}/jobs/1/sweep/tasks,suchas000/4.outand.erroftask4,whichfailed;"
    assert where in "".join(logs.stderr.split())
    (tmp_path / "mended").touch()
    report = sweep_koala.json("sweep", "--resume", "1")
    assert (report["outcome"]["exit_code"], report["sweep"]["done"], report["sweep"]["failed"]) == (0, 8, 0)
    assert [one.last_line for one in koala.Site(state=sweep_koala.state).job("2").results()][4:6] == ["3-x", "3-y"]
    tasks = [one["task"] for one in entries(sweep_koala, "1") if one["state"] == "done"]
    assert sorted(tasks) == list(range(8))
    assert "all 8 tasks are done: there is nothing to go on with" in sweep_koala.inside("sweep", "--resume", "1").stderr
    assert sweep_koala.json("sweep", "--resume", "2")["id"] == "2"
    assert [one["job"] for one in entries(sweep_koala, "1") if one["state"] == "resumed"] == ["2"]
    assert sweep_koala.json("run", str(saved))["sweep"]["done"] == 8
    alone = sweep_koala.inside("sweep", "-n", "1", "--json", "--", "true", "{a}", ":::", "a=1..3")
    assert json.loads(alone.stdout)["sweep"]["done"] == 3
    assert "nothing is known of a sweep of job 99" in sweep_koala.inside("sweep", "--resume", "99", check=245).stderr
