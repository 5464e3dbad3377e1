# SPDX-License-Identifier: Apache-2.0
"""Callers and service on the socket between them, with a service and without one."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
import pytest
import structlog
from anyio.abc import SocketStream
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter import errors
from koala_adapter.api import protocol, statedirectory
from koala_adapter.api.asyncclient import AsyncClient
from koala_adapter.api.offline import end_daemon
from koala_adapter.api.reporting import plan_report
from koala_adapter.api.server import listening
from koala_adapter.api.statedirectory import LOCK_NAME, SOCKET_NAME, ownership, prepare_directory
from koala_adapter.config.written import DescribedJob
from koala_adapter.errors import (
    ConfigurationError,
    JobNotFoundError,
    KoalaError,
    ProtocolError,
    ServiceRunningError,
    ServiceUnavailableError,
)
from koala_adapter.outcome import JobState
from koala_adapter.report.sitevalues import PlanReport
from koala_adapter.slots import Slot
from koala_adapter.wire.messages import adapter_of
from tests.unit.api.jobreports import job_report
from tests.unit.scheduler.scheduler_site import Site, job

# -- The client for event loops: what a service answers arrives, refusals are raised, and what is wrong is told.


def report(state: JobState) -> dict[str, object]:
    """Return the report of a job as it is on the wire."""
    found = job_report(id="7", name="dask", kind="malleable", state=state)
    text: dict[str, object] = json.loads(found.to_json())
    return text


@asynccontextmanager
async def service(directory: Path, *lines: bytes) -> AsyncIterator[list[protocol.Request]]:
    """Have a service that answers each connection with these lines, and then closes it; yields what it was asked."""
    asked: list[protocol.Request] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(protocol.decode_request(await reader.readline()))
        writer.writelines(lines)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_unix_server(answer, directory / SOCKET_NAME)
    async with server:
        yield asked


def reply(result: object, *, last: bool = True) -> bytes:
    """Return the line of a reply."""
    return protocol.encode(protocol.Reply(result=result, last=last))


async def test_a_request_arrives_and_its_answer_comes_back(tmp_path: Path) -> None:
    async with service(tmp_path, reply(report(JobState.RUNNING))) as asked:
        found = await AsyncClient(tmp_path).resize("7", 3, "worker")
    assert (found.id, found.state) == ("7", JobState.RUNNING)
    assert asked == [protocol.Request(operation="resize", job_id="7", component="worker", processors=3)]


async def test_a_watch_yields_every_report_to_the_last(tmp_path: Path) -> None:
    """One that is cut off says so; what came before counts, and the service may be asked again."""
    states = [JobState.WAITING, JobState.RUNNING, JobState.COMPLETED]
    lines = [reply(report(state), last=state is states[-1]) for state in states]
    async with service(tmp_path, *lines):
        assert [one.state async for one in AsyncClient(tmp_path).watch("7")] == states
    async with service(tmp_path, lines[0]):
        watched = AsyncClient(tmp_path).watch("7")
        assert (await anext(watched)).state is JobState.WAITING
        with pytest.raises(ServiceUnavailableError, match="closed the connection"):
            await anext(watched)


async def test_a_refusal_is_raised_as_what_it_is(tmp_path: Path) -> None:
    """With the words of the service and its way out; where no service is, that is said."""
    refused = protocol.encode(protocol.refusal(JobNotFoundError("there is no job 7", hint="`koala status`")))
    async with service(tmp_path, refused):
        with pytest.raises(JobNotFoundError, match=r"there is no job 7 \(`koala status`\)"):
            await AsyncClient(tmp_path).cancel("7")
    with pytest.raises(ServiceUnavailableError, match=r"koala serve"):
        await AsyncClient(tmp_path).cancel("7")


@pytest.mark.parametrize("line", [b"no answer\n", b'{"result": 1, "more": 2}\n', b"\n"])
async def test_garbage_is_refused(tmp_path: Path, line: bytes) -> None:
    async with service(tmp_path, line):
        with pytest.raises(ProtocolError):
            await AsyncClient(tmp_path).cancel("7")


# -- What commands do by themselves where no service runs.


WAIT = "import sys; print(flush=True); sys.stdin.read()"


def test_only_the_daemon_of_a_directory_is_ended(tmp_path: Path) -> None:
    """A process that has got the id of one that was killed goes on; the daemon's command line names its directory."""
    for argument, ended in ((tmp_path / "other", False), (tmp_path, True)):
        with subprocess.Popen(
            [sys.executable, "-c", WAIT, str(argument)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            (tmp_path / "pid").write_text(str(process.pid))
            end_daemon(tmp_path)
            if ended:
                assert process.wait() < 0
            process.communicate()
            assert (process.returncode < 0) is ended


# -- The socket of a service comes back when somebody has removed it.


class Echo:
    """Sends back what comes."""

    def __init__(self) -> None:
        self.left = [anyio.Event(), anyio.Event()]

    async def __call__(self, stream: SocketStream) -> None:
        async with stream:
            async for data in stream:
                await stream.send(data)
        next(event for event in self.left if not event.is_set()).set()


async def answered(stream: SocketStream) -> bool:
    """Tell whether what is sent comes back."""
    await stream.send(b"ping")
    return await stream.receive() == b"ping"


async def connected(path: Path) -> SocketStream:
    with anyio.fail_after(60):
        while True:
            try:
                return await anyio.connect_unix(path)
            except OSError:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("whole_directory", [False, True])
async def test_removed_socket_is_made_anew(tmp_path: Path, *, whole_directory: bool) -> None:
    """Who is connected goes on, others are answered again, and nothing is left at the end."""
    missed = anyio.Event()

    def logged(_logger: object, _method: str, entry: structlog.typing.EventDict) -> str:
        if "cannot be made anew" in entry["event"]:
            missed.set()
        return str(entry["event"])

    structlog.configure(processors=[logged])
    directory = tmp_path / "state"
    directory.mkdir()
    path, echo = directory / SOCKET_NAME, Echo()
    async with listening(directory) as own, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(own.serve, echo, look_again=0.01))
        async with await connected(path) as before:
            assert await answered(before)
            path.unlink()
            if whole_directory:
                shutil.rmtree(directory)
                await missed.wait()  # it cannot be made now; that must not end the service
                directory.mkdir()
            async with await connected(path) as after:
                assert await answered(after)
            assert await answered(before)
        assert path.stat().st_mode & 0o777 == 0o600
        for event in echo.left:
            await event.wait()
        tasks.cancel_scope.cancel()
    assert not path.exists()


# -- The protocol of the service's socket: what goes out comes back, and anything else is refused by one kind of error.


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ERRORS = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, KoalaError)]


WHOLE = st.integers(-protocol.LARGEST_WHOLE, protocol.LARGEST_WHOLE)


@given(job_id=st.text(), cluster=st.text(), limit=WHOLE, job=st.none() | st.dictionaries(st.text(), JSON))
def test_request_survives_the_wire(job_id: str, cluster: str, limit: int, job: dict[str, object] | None) -> None:
    values: dict[str, object] = {"walltime": 1.5, "name": job_id}
    described = DescribedJob(
        source="job.toml", name=job_id, directory="/home/me", values=values, environment={"A": "C"}
    )
    request = protocol.Request(
        operation="submit", job_id=job_id, cluster=cluster, limit=limit, job=job, described=described
    )
    line = protocol.encode(request)
    assert line.count(b"\n") == 1
    assert protocol.decode_request(line) == request


@given(result=JSON, last=st.booleans())
def test_reply_survives_the_wire(result: object, last: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    reply = protocol.Reply(result=result, last=last)
    line = protocol.encode(reply)
    assert line.count(b"\n") == 1
    assert protocol.decode_reply(line) == reply


def test_the_slot_of_a_component_survives_the_wire() -> None:
    """Licenses are pairs of a name and a number; anything else in their place is refused."""
    slot = Slot(threads=2, features=("ib",), licenses=(("matlab", 2), ("ansys", 1)), directives=("--x",))
    sent = json.loads(json.dumps(asdict(slot)))
    assert protocol.from_json(Slot, sent) == slot
    for licenses in ([["matlab", "2"]], [["matlab"]], [["matlab", 2, 3]], "matlab"):
        with pytest.raises(ProtocolError, match=r"Slot\.licenses.*: expected"):
            protocol.from_json(Slot, sent | {"licenses": licenses})


@given(line=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_read(line: bytes) -> None:
    for decode in (protocol.decode_request, protocol.decode_reply):
        with suppress(ProtocolError):
            decode(line)


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"operation": "format-disk"},
        {"operation": "ping", "surprise": 1},
        {"operation": "job", "job_id": 7},
        {"operation": "jobs", "limit": "many"},
        {"operation": "jobs", "limit": 2**63},
        {"operation": "clean", "older": 10**400},
        {"operation": "submit", "job": []},
        [],
        "ping",
        None,
    ],
)
def test_what_is_no_request_is_refused(message: object) -> None:
    """Unknown operations and members, and wrong types, are refused, not guessed at."""
    with pytest.raises(ProtocolError):
        protocol.decode_request(json.dumps(message).encode())


@pytest.mark.parametrize("kind", ERRORS)
def test_refusal_keeps_type_message_and_hint(kind: type[KoalaError]) -> None:
    reply = protocol.decode_reply(protocol.encode(protocol.refusal(kind("no such thing", hint="look elsewhere"))))
    with pytest.raises(kind) as caught:
        protocol.raise_refusal(reply)
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.hint) == ("no such thing", "look elsewhere")


def test_refusal_of_an_unknown_type_is_still_an_error() -> None:
    """A newer service may refuse by a type that this client does not have."""
    with pytest.raises(KoalaError, match="no such thing"):
        protocol.raise_refusal(protocol.Reply(error="no such thing", error_type="BrandNewError"))


def test_a_state_directory_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Reports name it, in JSON."""
    with pytest.raises(ConfigurationError, match="its name is not UTF-8"):
        prepare_directory(tmp_path / "\udcff")


# -- Who owns a state directory while another process still has the descriptor of its lock.


def locked(directory: Path, owner: int) -> int:
    """Lock a state directory in the name of a process; return the descriptor."""
    prepare_directory(directory)
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, f"koala serve (pid {owner})\n".encode(), 0)
    return descriptor


def dead() -> int:
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_what_a_killed_owner_had_begun_to_start_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the descriptor of the lock until it runs its program."""
    descriptor = locked(tmp_path / "state", dead())
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        os.close(descriptor)

    monkeypatch.setattr("koala_adapter.api.statedirectory.time.sleep", sleep)
    with ownership(tmp_path / "state"):
        assert len(waited) == 1
        assert (tmp_path / "state" / LOCK_NAME).read_text() == f"koala serve (pid {os.getpid()})\n"


@pytest.mark.parametrize("alive", [True, False])
def test_who_goes_on_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, alive: bool) -> None:
    """An owner that runs is not waited for, and what a dead one has left behind not for ever."""
    owner = os.getpid() if alive else dead()
    descriptor = locked(tmp_path / "state", owner)
    waited: list[float] = []
    monkeypatch.setattr("koala_adapter.api.statedirectory.time.sleep", waited.append)
    monkeypatch.setattr(statedirectory, "LEFT_BY_THE_KILLED", 0.01)
    said = rf"koala serve \(pid {owner}\) already owns"
    with pytest.raises(ServiceRunningError, match=said), ownership(tmp_path / "state"):
        pass
    assert not (alive and waited)
    os.close(descriptor)


def test_an_inherited_number_that_is_another_file_is_not_believed(tmp_path: Path) -> None:
    """The file is neither changed nor locked, and the directory is owned all the same."""
    other = tmp_path / "service.log"
    other.write_text("what was logged")
    descriptor = os.open(other, os.O_RDWR)
    directory = tmp_path / "state"
    try:
        with (
            ownership(directory, inherited=descriptor),
            pytest.raises(ServiceRunningError),
            ownership(directory),
        ):
            raise AssertionError("not reached")
    finally:
        os.close(descriptor)
    assert other.read_text() == "what was logged"


def test_the_lock_is_never_a_standard_descriptor(tmp_path: Path) -> None:
    """A service that inherits it would have its output there."""
    program = (
        "import os, sys; from pathlib import Path; from koala_adapter.api.statedirectory import ownership\n"
        "os.close(0); os.close(1)\n"
        "with ownership(Path(sys.argv[1])) as lock: assert lock > 2, lock\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "state")], check=True)


def test_a_plan_is_the_same_text_with_a_service_and_without() -> None:
    """Also where no file is missing: numbers that may have decimals have them."""
    site = Site({"a": 4})
    plan = plan_report(site.scheduler, job("1", 2), now=site.now)
    sent = protocol.from_json(PlanReport, adapter_of(PlanReport).dump_python(plan, mode="json"))
    assert json.dumps(asdict(plan)) == json.dumps(asdict(sent))
