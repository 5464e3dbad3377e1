# SPDX-License-Identifier: Apache-2.0
"""Tasks on local clusters: the launcher of a sweep as a process, the executor and sweeps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

import koala_adapter as koala
from koala_adapter.cli.jsonshapes import shape_schema
from koala_adapter.model import Component, Job, JobId, JobKind, RunnerName, Sweep
from koala_adapter.python.executor import TaskServer
from koala_adapter.service.sweepfiles import Contact, SweepFiles
from koala_adapter.service.sweeps import PROGRAM, RunningSweep, restored_book
from koala_adapter.tasks import server
from koala_adapter.tasks.connection import connected, received, sent
from koala_adapter.tasks.launcher import SETTINGS
from koala_adapter.tasks.results import RESULTS
from koala_adapter.tasks.server import TOKEN_BYTES, listening_socket, node_files
from koala_adapter.tasks.sweep import Expansion, list_axis
from koala_adapter.vjm.certificate import load_or_create
from tests.json_shapes import deviations
from tests.local_koala import LIVENESS, Koala, eventually

# -- The launcher of a sweep as a process, and the running sweep that it pulls from, without any batch system.

HOST = "127.0.0.1"
TOKEN = "17" * TOKEN_BYTES


@dataclass
class Place:
    """A directory with a sweep of shell commands, and launchers."""

    directory: Path
    scripts: tuple[str, ...]
    repeats: int = 0
    grace: int = 0
    port: int = 0
    command: tuple[str, ...] = ("sh", "-c", "{script}")
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def job(self) -> Job:
        """The job of the sweep."""
        component = Component(name="c", command=self.command, minimum=1, maximum=2)
        return Job(
            id=JobId("1"),
            name="sweep",
            kind=JobKind.MALLEABLE,
            components=(component,),
            walltime=60,
            user="u",
            submitted_at=0.0,
            runner=RunnerName.SWEEP,
            sweep=Sweep(axes=(list_axis("script", self.scripts),), repeats=self.repeats),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RunningSweep]:
        """Have the sweep run during the block; the service is away outside of it."""
        files = SweepFiles(self.directory / "sweep")
        files.keep(self.job)
        assert self.job.sweep is not None
        expansion = Expansion(self.job.sweep, {})
        book = restored_book(self.job, files, expansion)
        sweep = RunningSweep(self.job, files, expansion, book, changed=self.changed.set)
        listening = listening_socket(HOST, self.port)
        self.port = int(listening.getsockname()[1])
        contact = Contact(port=self.port, token=TOKEN)
        sweep.serve(listening, contact, load_or_create(self.directory / "certificate"))
        try:
            yield sweep
        finally:
            await sweep.close()

    def launcher(self) -> subprocess.Popen[bytes]:
        """Start a launcher as an agent does."""
        library = self.directory / "library"
        library.mkdir(exist_ok=True)
        settings = {
            "hosts": {"": HOST},
            "doors": {},
            "port": self.port,
            "token": TOKEN,
            "fingerprint": load_or_create(self.directory / "certificate").fingerprint,
            "grace": self.grace,
            "patience": LIVENESS,
        }
        files = {**node_files("koala_adapter.tasks", "launcher", PROGRAM), SETTINGS: json.dumps(settings).encode()}
        for name, content in files.items():
            (library / name).write_bytes(content)
        command = [sys.executable, "-S", "-B", str(library / PROGRAM)]
        with (self.directory / "complaints").open("wb") as complaints:
            return subprocess.Popen(command, cwd=self.directory, stderr=complaints)

    async def returned(self, answer: bytes) -> ssl.SSLSocket:
        """Connect as a launcher does that has lost its connection, with the answer that it has kept."""
        certificate = load_or_create(self.directory / "certificate")

        def connect() -> ssl.SSLSocket:
            line = connected(HOST, self.port, certificate.fingerprint)
            line.sendall(bytes.fromhex(TOKEN))
            assert sent(line, b'{"cluster": "alpha", "host": "node"}')
            assert sent(line, answer)
            return line

        return await asyncio.to_thread(connect)

    def entries(self) -> list[dict[str, Any]]:
        """Return what is written down."""
        return [json.loads(line) for line in (self.directory / "sweep" / RESULTS).read_bytes().splitlines()]

    async def until_over(self, sweep: RunningSweep) -> None:
        """Wait until every task is over."""
        await self.until(lambda: sweep.over)

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something has become true that the sweep tells of."""
        async with asyncio.timeout(LIVENESS):
            while not true():
                await self.changed.wait()
                self.changed.clear()


async def appears(path: Path) -> None:
    """Wait for a file."""
    async with asyncio.timeout(LIVENESS):
        while not await anyio.Path(path).exists():  # noqa: ASYNC110 - a task tells it by nothing else
            await asyncio.sleep(0.02)


async def exits(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process."""
    return await asyncio.to_thread(process.wait, LIVENESS)


async def test_what_becomes_of_tasks(tmp_path: Path) -> None:
    failing = "echo said >&2; exit 3"
    place = Place(tmp_path, ("echo one; echo $KOALA_TASK $KOALA_ATTEMPT", failing, "kill -9 $$"), repeats=1)
    async with place.running() as sweep:
        launcher = place.launcher()
        await place.until_over(sweep)
        assert await exits(launcher) == 0
        assert (sweep.progress.done, sweep.progress.failed, sweep.progress.first_failed) == (1, 2, (1, 2))
    found = {(one["task"], one["state"]): one for one in place.entries()}
    assert {state: found[state]["status"] for state in found} == {
        (0, "done"): 0,
        (1, "repeated"): 3,
        (2, "repeated"): -9,
        (1, "failed"): 3,
        (2, "failed"): -9,
    }
    assert (tmp_path / "sweep" / found[0, "done"]["stdout"]).read_text() == "one\n0 1\n"
    assert (tmp_path / "sweep" / found[1, "failed"]["stderr"]).read_text() == "said\n"
    assert found[0, "done"]["stderr"] is None


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    """What a shell would say of it is kept as the task's own words."""
    place = Place(tmp_path, ("no-such-program", "true"), command=("{script}",))
    async with place.running() as sweep:
        launcher = place.launcher()
        await place.until_over(sweep)
        assert await exits(launcher) == 0
    found = {one["task"]: one for one in place.entries()}
    assert [found[task]["status"] for task in (0, 1)] == [127, 0]
    said = (tmp_path / "sweep" / found[0]["stderr"]).read_text()
    assert said == "no-such-program: No such file or directory\n"


async def test_a_daemon_of_a_task_ends_with_it(tmp_path: Path) -> None:
    begun, number = tmp_path / "begun", tmp_path / "number"
    daemon = f"/usr/bin/setsid /usr/bin/env -i /bin/sh -c '>{begun}; exec /bin/sleep 61251'"
    first = f"{daemon} & echo $! >{number}; until [ -e {begun} ]; do sleep 0.02; done"
    place = Place(tmp_path, (first, f"! kill -0 $(cat {number})"))
    async with place.running() as sweep:
        launcher = place.launcher()
        await place.until_over(sweep)
        assert await exits(launcher) == 0
    assert [(one["task"], one["state"]) for one in place.entries()] == [(0, "done"), (1, "done")]


async def test_where_tmpdir_is_gone_output_is_kept_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    scripts = (f"rm -r {scratch}; echo one", "echo two", f"rm -r {tmp_path}/library; echo three", "echo four")
    place = Place(tmp_path, scripts)
    async with place.running() as sweep:
        assert await exits(place.launcher()) == 1
        assert sweep.progress.done == 3
        complaints = (tmp_path / "complaints").read_text()
        assert complaints.startswith("no room for the output of a task, neither where TMPDIR says nor in ")
        assert complaints.count("\n") == 1
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        other = place.launcher()
        await place.until_over(sweep)
        assert await exits(other) == 0
    assert sorted((one["task"], one["state"]) for one in place.entries()) == [(task, "done") for task in range(4)]


async def test_a_launcher_that_is_asked_to_leave_kills_its_task(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    place = Place(tmp_path, (f"touch {begun}; while [ ! -e {go} ]; do sleep 0.05; done; echo done",))
    async with place.running() as sweep:
        launcher = place.launcher()
        await appears(begun)
        launcher.send_signal(signal.SIGURG)
        assert await exits(launcher) == 0
        assert sweep.progress.done == 0
        go.touch()
        other = place.launcher()
        await place.until_over(sweep)
        assert await exits(other) == 0
    assert [(one["state"], one["attempt"]) for one in place.entries()] == [("done", 2)]


async def test_a_task_may_have_time_to_end(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    script = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.05; done; echo done"
    place = Place(tmp_path, (script, "echo second"), grace=int(LIVENESS))
    async with place.running() as sweep:
        launcher = place.launcher()
        await appears(begun)
        launcher.send_signal(signal.SIGURG)
        go.touch()
        assert await exits(launcher) == 0
        async with asyncio.timeout(LIVENESS):
            while sweep.progress.running:
                await place.changed.wait()
                place.changed.clear()
        assert (sweep.progress.done, sweep.progress.failed) == (1, 0)
    assert [(one["task"], one["state"]) for one in place.entries()] == [(0, "done")]


async def test_a_launcher_keeps_its_answer_while_the_service_is_away(tmp_path: Path) -> None:
    begun, go, ended = tmp_path / "begun", tmp_path / "go", tmp_path / "ended"
    script = f"echo x >>{begun}; while [ ! -e {go} ]; do sleep 0.05; done; touch {ended}"
    place = Place(tmp_path, (script,))
    async with place.running():
        launcher = place.launcher()
        await appears(begun)
    go.touch()
    await appears(ended)
    async with place.running() as sweep:
        await place.until_over(sweep)
        assert await exits(launcher) == 0
    assert [one["state"] for one in place.entries()] == ["done"]


async def test_who_returns_with_an_answer_gets_one_task(tmp_path: Path) -> None:
    place = Place(tmp_path, ("true",) * 5)
    async with place.running() as sweep:
        with await place.returned(
            b'{"task": 0, "attempt": 1, "status": 0, "seconds": 1, "out": 0, "err": 0}\n'
        ) as line:
            given = await asyncio.to_thread(received, line)
            assert given is not None
            await place.until(lambda: sweep.progress.done == 1)
            assert sweep.progress.running == 1
        await place.until(lambda: sweep.progress.running == 0)


async def test_who_shows_no_token_is_one_of_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that only connect the oldest goes when others come; who has the token gets work beside them."""
    monkeypatch.setattr(server, "MOST_UNPROVEN", 3)
    place = Place(tmp_path, ("true",))
    async with place.running() as sweep, AsyncExitStack() as connections:
        idle = [await asyncio.open_connection(HOST, place.port) for _ in range(4)]
        for _, writer in idle:
            connections.callback(writer.close)
        turned_away = [asyncio.create_task(reader.read(1)) for reader, _ in idle]
        async with asyncio.timeout(LIVENESS):
            done, waiting = await asyncio.wait(turned_away, return_when=asyncio.FIRST_COMPLETED)
        assert (len(done), len(waiting)) == (1, 3)
        launcher = place.launcher()
        await place.until_over(sweep)
        assert await exits(launcher) == 0


async def test_half_a_line_is_dropped(tmp_path: Path) -> None:
    place = Place(tmp_path, ("echo one", "echo two"))
    async with place.running() as sweep:
        launcher = place.launcher()
        await place.until_over(sweep)
        await exits(launcher)
    results = tmp_path / "sweep" / "results.jsonl"
    results.write_bytes(results.read_bytes()[:-5])
    async with place.running() as sweep:
        assert sweep.progress.done == 1
        launcher = place.launcher()
        await place.until_over(sweep)
        await exits(launcher)
    assert sorted(one["task"] for one in place.entries()) == [0, 1]


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
