# SPDX-License-Identifier: Apache-2.0
"""What a peer, a client, a program or a plugin says or raises costs that connection or that job, and no more."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketStream
from anyio.lowlevel import checkpoint
from anyio.streams.tls import TLSStream
from structlog.testing import capture_logs

from koala_adapter import negotiation as nt
from koala_adapter.api import protocol
from koala_adapter.api.server import Server, listening
from koala_adapter.api.statedirectory import SOCKET_NAME, socket_path
from koala_adapter.errors import JobRefusedError, KoalaError
from koala_adapter.host import containment
from koala_adapter.host.accepting import serve_streams
from koala_adapter.host.containment import LOG_INTERVAL, MOST_KINDS, DefectLog
from koala_adapter.host.unixstream import Received
from koala_adapter.lrm import RenderedSubmission, Submission
from koala_adapter.model import JobId, PlaceholderId, RunnerName, Sweep, SweepAxis
from koala_adapter.negotiation import frame
from koala_adapter.outcome import JobState
from koala_adapter.service.service import Service
from koala_adapter.service.sizes.port import NegotiationPort
from koala_adapter.vjm import channel
from tests.unit.scheduler.malleable_site import malleable, part
from tests.unit.scheduler.scheduler_site import component, job
from tests.unit.service.scripted_lrm import ScriptedLrm
from tests.unit.service.standins import ScriptedAgent
from tests.unit.service.test_service import Served, queued, started, submit, until


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def test_a_defect_is_logged_once_a_minute_with_its_traceback() -> None:
    """Each place and type of exception by itself; the next entry tells how many there were between."""
    now = 0.0
    defects = DefectLog(lambda: now)
    with capture_logs() as logs:
        for _ in range(5):
            defects.report("a request", RuntimeError("one"))
        defects.report("a request", KeyError("two"))
        now = LOG_INTERVAL
        defects.report("a request", RuntimeError("three"))
    assert [(type(one["exc_info"]), one.get("not_logged_since")) for one in logs] == [
        (RuntimeError, None),
        (KeyError, None),
        (RuntimeError, 4),
    ]


def test_strangers_cannot_fill_the_log() -> None:
    """Whoever is turned away is logged once a minute for each kind; beyond a bound of kinds all others are one kind."""
    now = 0.0
    refused = DefectLog(lambda: now)
    with capture_logs() as logs:
        for number in range(10 * MOST_KINDS):
            refused.refused("a stranger", kind=number, peer=number)
        assert len(logs) == MOST_KINDS + 1
        now = LOG_INTERVAL
        refused.refused("a stranger", kind=0, peer=0)
        refused.refused("a stranger", kind="new", peer="new")
    assert [(one["log_level"], one["peer"]) for one in logs[-2:]] == [("warning", 0), ("warning", "new")]


async def test_strangers_at_the_negotiation_port_do_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred connections without a token are one line."""
    monkeypatch.setattr(containment, "_defects", DefectLog())

    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            port = NegotiationPort("127.0.0.1", object())  # type: ignore[arg-type] # nobody is let in
            port.open(tasks)
            access = await port.access(JobId("1"))
            for _ in range(100):
                async with await anyio.connect_tcp("127.0.0.1", access.port) as stream:
                    await stream.send_eof()
                    with pytest.raises(anyio.EndOfStream):
                        await stream.receive()
            tasks.cancel_scope.cancel()
    assert [one["event"] for one in logs] == ["a connection without a good token"]


@pytest.mark.parametrize("error", [RuntimeError, OSError])
async def test_a_plugin_that_raises_costs_the_request(served: Served, error: type[Exception]) -> None:
    class Failing(ScriptedLrm):
        def render(self, submission: Submission) -> RenderedSubmission:
            raise error(f"a defect of the plugin with {submission.key}")

    served.lrm = Failing()
    async with served.hosted() as (_, client):
        wanted = job("0", component("x", 1))
        with pytest.raises(KoalaError, match="a defect of the plugin"):
            await to_thread.run_sync(lambda: client.script(wanted, "a"))
        assert await to_thread.run_sync(client.jobs) == []


async def test_a_handler_that_raises_costs_its_connection() -> None:
    async def handle(stream: SocketStream) -> None:
        if await stream.receive() == b"bad":
            raise ValueError("a defect")
        await stream.send(b"well")

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_streams, listener, handle)
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"bad")
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"good")
            assert await stream.receive() == b"well"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("moment", ["comes", "leaves"])
async def test_a_client_that_comes_or_leaves_as_the_service_is_cancelled_costs_no_message(
    moment: str, tmp_path: Path
) -> None:
    """A read that is done, and cancelled at the same time, would be reported by the event loop."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    server = Server(cast("Service", None))
    async with listening(tmp_path) as own, anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve, own)
        with socket.socket(socket.AF_UNIX) as client:
            if moment == "leaves":
                client.connect(str(socket_path(tmp_path)))
            await anyio.wait_all_tasks_blocked()
            if moment == "comes":
                client.connect(str(socket_path(tmp_path)))
            else:
                client.close()
            await checkpoint()  # the loop hears of it in the round in which all is cancelled
            tasks.cancel_scope.cancel()
    assert not reported


async def test_an_answer_that_comes_as_its_reader_is_cancelled_costs_no_message() -> None:
    """Such as that of a local cluster's daemon at the end of a service."""
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    here, there = socket.socketpair()
    with there:
        async with await anyio.abc.UNIXSocketStream.from_socket(here) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(Received(stream).receive)
            await anyio.wait_all_tasks_blocked()
            there.send(b"answer")
            await checkpoint()
            tasks.cancel_scope.cancel()
    assert not reported


async def test_an_agent_on_whose_words_koala_fails_comes_back(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is cut, it tells everything again, and the job ends as if nothing had been."""
    async with served.running() as service, anyio.create_task_group() as tasks:
        failed: list[object] = []
        take = service.applications.started

        def once(*told: object) -> None:
            if not failed:
                failed.append(told)
                raise RuntimeError("a defect")
            take(*told)  # type: ignore[arg-type]

        monkeypatch.setattr(service.applications, "started", once)
        id_, agent = await started(served, service)
        tasks.start_soon(agent.run)
        await until(lambda: service.state.jobs[id_].state is JobState.RUNNING, service)
        await until(lambda: agent.connections == 2, service)
        assert failed
        tasks.cancel_scope.cancel()


async def test_an_action_that_fails_costs_that_action(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served.running() as service:
        id_ = submit(service)
        with monkeypatch.context() as patch:
            patch.setattr(service.archive, "ended", lambda _: 1 / 0)
            service.cancel(id_)
        assert service.state.jobs[id_].state is JobState.CANCELLED
        assert submit(service) != id_


def sweep_of(path: str) -> Sweep:
    return Sweep(axes=(SweepAxis(names=("x",), count=1, file=path),))


@pytest.mark.parametrize("kind", ["fifo", "endless", "directory", "gone"])
async def test_a_values_file_that_is_none_refuses_the_job(served: Served, tmp_path: Path, kind: str) -> None:
    """The service neither waits for a writer nor reads for ever."""
    path = tmp_path / "values"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    found = "/dev/zero" if kind == "endless" else str(path)

    def wanted(id_: JobId, now: float) -> object:
        return replace(job(id_, component("x", 1), submitted_at=now), sweep=sweep_of(found), runner=RunnerName.SWEEP)

    async with served.running() as service:
        with pytest.raises(JobRefusedError, match="input file"):
            service.submit(wanted)  # type: ignore[arg-type]
        assert not service.state.jobs


def texts(chance: random.Random) -> Iterator[bytes]:
    """Yield requests that break the protocol, or nearly keep it, for ever."""
    values: list[object] = [
        None,
        0,
        -1,
        2**70,
        1.5,
        float("nan"),
        "",
        "1",
        "\ud800",
        "x" * 100_000,
        [],
        {},
        {"components": [{}]},
        True,
    ]
    members = ["job_id", "job", "cluster", "limit", "component", "processors", "number", "older", "dry_run", "other"]
    operations = sorted(protocol.OPERATIONS - {"stop", "stop-if-idle", "watch"})
    while True:
        request = {"operation": chance.choice(operations)}
        request |= {one: chance.choice(values) for one in chance.sample(members, chance.randrange(4))}  # type: ignore[misc]
        line = json.dumps(request).encode()
        cut = chance.randrange(len(line))
        yield chance.choice([line, line, line[:cut], chance.randbytes(40).replace(b"\n", b""), line[cut:] + line[:cut]])


def templates(chance: random.Random) -> Iterator[bytes]:
    types, clusters = ["CPU", "CPU", "CPU", "MEMORY", "GPU"], ["", "a", "b"]
    statuses = ["NT_NEGOTIATION", "NT_ACCEPTED", "NT_REJECTED", "NT_COMMITTED", "NT_CONSUMED", "NT_WITHDRAWN"]
    while True:
        resources = [
            nt.resource(
                chance.choice(types),
                chance.choice([1, 2, 3, 2**31 - 1]),
                cluster=chance.choice(clusters),
                status=chance.choice(["NT_NEGOTIATION", "NT_REJECTED"]),
                negotiability=chance.choice(["NT_FIXED", "NT_NEGOTIABLE"]),
                usage=chance.choice(["NT_REQUIRED", "NT_OPTIONAL", "NT_OPTIONAL"]),
            )
            for _ in range(chance.randrange(1, 4))
        ]
        number, direction = str(chance.randrange(chance.choice([4, 10**6]))), chance.choice(["", "grow", "shrink"])
        side = chance.choice(["APPLICATION", "APPLICATION", "RMS"])
        round_, status = (
            chance.choice([None, 1, 1, 1, 2]),
            chance.choice(["NT_NEGOTIATION", "NT_NEGOTIATION", chance.choice(statuses)]),
        )
        try:
            payload = nt.build(
                nt.template(number, side, "n1", "koala", resources, status=status, direction=direction, round=round_)
            )
        except nt.NegotiationError:
            continue
        cut = chance.randrange(1, len(payload))
        yield chance.choice([payload, payload, payload, payload[:cut], payload[:cut] + chance.randbytes(3)])


def notes(chance: random.Random) -> Iterator[bytes]:
    """Yield notes of every verb with numbers of every size, for ever."""
    verbs = ["hello", "reached", "armed", "passed", "waiting", "done", "leaving", "error", "who", "dance"]
    states = ["new", "running", "armed", "waiting", "changing", "done", "left", "odd"]
    while True:
        words = {
            **{one: chance.choice([0, 1, 2, 5, 2**31 - 1, 2**31]) for one in ("change", "at", "point", "reached")},
            "version": 1,
            "state": chance.choice(states),
            "text": "%00%ff",
            "contact": "x" * chance.choice([0, 10, 300]),
        }
        kept = chance.sample(sorted(words), chance.randrange(len(words) + 1)) if chance.random() < 0.3 else words
        yield " ".join([chance.choice(verbs), *(f"{key}={words[key]}" for key in kept)]).encode()


class Babbler(ScriptedAgent):
    """An agent whose process says anything at all once it has started."""

    babble: Iterator[bytes]

    def __init__(self, placeholder: PlaceholderId, *, port: int, token: str) -> None:
        super().__init__(placeholder, port=port, token=token)
        self.all_said = anyio.Event()

    async def _hear(self, stream: TLSStream, message: channel.CenterMessage) -> None:
        await super()._hear(stream, message)
        if isinstance(message, channel.Launch):
            for payload, _ in zip(self.babble, range(300), strict=False):
                await stream.send(channel.encode(channel.Application(task=message.task, data=frame(payload))))
            self.all_said.set()


async def answers(directory: Path) -> bool:
    async with await anyio.connect_unix(directory / SOCKET_NAME) as stream:
        await stream.send(protocol.encode(protocol.Request(operation="ping")))
        return b'"pid"' in await stream.receive()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_that_is_said_ends_the_service(
    served: Served, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests, negotiating programs and processes of a job all say anything, and nothing of that was unforeseen."""
    defects: list[Exception] = []
    monkeypatch.setattr(DefectLog, "report", lambda _, _what, error, **_context: defects.append(error))
    chance = random.Random(seed)
    async with served.hosted() as (server, client), anyio.create_task_group() as tasks:
        service = server._service
        wanted = replace(malleable("0", part(1, 4), initial=1), runner=RunnerName.ADAPTIVE)
        id_ = service.submit(lambda id_, now: replace(wanted, id=id_, submitted_at=now))
        batch = await queued(served, service, id_)
        served.lists(batch)
        agent = served.agent(service, batch, Babbler)
        told, spoken = notes(chance), templates(chance)
        agent.babble = (next(told) if chance.random() < 0.6 else next(spoken) for _ in iter(int, 1))
        tasks.start_soon(agent.run)
        with anyio.fail_after(60):
            await agent.all_said.wait()
        await negotiate_badly(service, id_, templates(chance))
        with anyio.fail_after(60):
            await ask_badly(served.directory, texts(chance))
            assert await answers(served.directory)
        assert await to_thread.run_sync(client.jobs)
        assert [repr(one) for one in defects] == []
        tasks.cancel_scope.cancel()


async def negotiate_badly(service: Service, id_: JobId, said: Iterator[bytes]) -> None:
    """Say anything at the negotiation port, by several connections."""
    for _ in range(20):
        record = service.state.jobs[id_]
        if record.state.final:
            return
        access = await service.sizes.made.access(record)
        async with await anyio.connect_tcp(access.host, access.port) as stream:
            try:
                await stream.send(frame(nt.GREETING + access.token.encode()))
                for payload, _ in zip(said, range(10), strict=False):
                    await stream.send(frame(payload))
                await stream.send_eof()
                while True:
                    await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass


async def ask_badly(directory: Path, said: Iterator[bytes]) -> None:
    """Say anything at the service's socket, by several connections."""
    for _ in range(60):
        async with await anyio.connect_unix(directory / SOCKET_NAME) as stream:
            try:
                for line, _ in zip(said, range(3), strict=False):
                    await stream.send(line + b"\n")
                await stream.send_eof()
                while True:
                    await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
