# SPDX-License-Identifier: Apache-2.0
"""The launcher of a sweep as a process, and the running sweep that it pulls from, without any batch system."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from koala_adapter.model import Component, Job, JobId, JobKind, RunnerName, Sweep
from koala_adapter.service.sweepfiles import Contact, SweepFiles
from koala_adapter.service.sweeps import PROGRAM, RunningSweep
from koala_adapter.tasks import server
from koala_adapter.tasks.connection import connected, received, sent
from koala_adapter.tasks.launcher import SETTINGS
from koala_adapter.tasks.results import RESULTS
from koala_adapter.tasks.server import TOKEN_BYTES, listening_socket, node_files
from koala_adapter.tasks.sweep import Expansion, list_axis
from koala_adapter.vjm.certificate import load_or_create

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

LIVENESS = 120.0
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
        sweep = RunningSweep(self.job, files, Expansion(self.job.sweep, {}), changed=self.changed.set)
        if not self.port:
            with listening_socket(HOST) as found:
                self.port = int(found.getsockname()[1])
        contact = Contact(port=self.port, token=TOKEN)
        sweep.listen(HOST, contact, load_or_create(self.directory / "certificate"))
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
