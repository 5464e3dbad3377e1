# SPDX-License-Identifier: Apache-2.0
"""The socket that every user of the host may ask at: one question, one answer, and nothing else comes of it."""

from __future__ import annotations

import json
import os
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from anyio.from_thread import start_blocking_portal
from anyio.streams.buffered import BufferedByteReceiveStream
from click.testing import CliRunner
from structlog.testing import capture_logs

from koala_adapter.cli.koala import koala
from koala_adapter.cli.schedule import explanation
from koala_adapter.errors import ConfigurationError, JobNotFoundError, ServiceRunningError, ServiceUnavailableError
from koala_adapter.host.clock import ServiceClock
from koala_adapter.host.privatedirectory import user_name
from koala_adapter.lrm.starts import Patience, Starts
from koala_adapter.ordering import asking
from koala_adapter.ordering.asking import (
    BUSY,
    EVERYBODY,
    OWNER,
    PLACES,
    PLACES_OF_ONE,
    QUESTION_LIMIT,
    ExplainServer,
    Explanation,
    as_seen_by,
    ask_explanation,
    explain,
    explainer,
    listening,
    parse_question,
)
from koala_adapter.ordering.jobs import Phase, Rules
from koala_adapter.ordering.mirror import Mirror
from koala_adapter.policies.checked import CheckedQueues
from koala_adapter.queueing.backfill import POLICIES, Easy
from koala_adapter.queueing.queue import ARRIVAL, ClusterScheduler, LocalJob
from tests.unit.ordering.ordering_site import Listed

PATIENCE = 60
NOBODY = 65_534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
SITE = """
[[clusters]]
name = "a"
plugin = "local"
ask_socket = "{path}"
[clusters.settings]
"""
ANOTHER = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgid(65534)
os.setuid(65534)
"""
FLOOD = (
    ANOTHER
    + """
held = []
print("begun", flush=True)
while True:
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    if one.connect_ex("ask.sock") == 0:
        held.append(one)
    held = held[-200:]
"""
)
ASK = (
    ANOTHER
    + """
one = socket.socket(socket.AF_UNIX)
one.connect("ask.sock")
one.sendall(b'{"job_id": "1"}' + bytes([10]))
print(one.makefile().readline())
"""
)


public = partial(listening, mode=EVERYBODY)
ask = partial(ask_explanation, hint="start it with --ask-socket")


def busy_site(policy: str = "easy") -> Listed:
    """Return one where 1 is being started, 2 to 4 wait, and 5 is larger than all nodes together."""
    site = Listed(policy)
    for job_id, processors, walltime in (("1", 24, 100), ("2", 32, 100), ("3", 16, 500), ("4", 20, 50), ("5", 64, 9)):
        site.submit(job_id, processors, walltime)
    site.look()
    return site


@asynccontextmanager
async def asked(
    directory: Path, explain_job: Callable[[str], Explanation] | None = None, *, mode: int = EVERYBODY
) -> AsyncIterator[Path]:
    """Answer at a socket of a directory while the context lasts; by default of a busy site."""
    path = directory / "ask.sock"
    explain_job = explain_job or explainer(busy_site().mirror, ServiceClock())
    async with anyio.create_task_group() as tasks:
        await tasks.start(ExplainServer(explain_job, path, mode=mode).serve)
        yield path
        tasks.cancel_scope.cancel()


def said_to(path: Path, text: bytes) -> bytes:
    """Say something, end, and return all that is answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        with suppress(OSError):  # who has no place is answered and closed before that, and can be heard all the same
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
        heard = b""
        try:
            while more := connection.recv(65_536):
                heard += more
        except ConnectionResetError:
            pass  # it was closed before all was read
        return heard


@pytest.mark.parametrize("policy", POLICIES)
def test_what_was_noted_is_what_a_policy_would_say(policy: str) -> None:
    """Place, promise and reason of each job, in each phase."""
    site = busy_site(policy)
    waiting = [entry for entry in site.mirror.entries.values() if entry.phase is Phase.WAITING and entry.local]
    assert len(waiting) >= 3
    for entry in waiting:
        assert entry.local is not None
        assert entry.pool is not None
        asked = site.mirror.schedulers[entry.pool].reservation(entry.local, site.now)
        told = explain(site.mirror, entry.job.id)
        assert (told.position or 0, told.reserved_at, told.reason) == (asked.position, asked.start, asked.reason)
    with pytest.raises(JobNotFoundError):
        explain(site.mirror, "7")


def test_before_the_first_decision_nothing_is_said_of_places() -> None:
    site = Listed()
    site.submit("1", 24)
    site.observe()
    found = explain(site.mirror, "1")
    assert (found.phase, found.position, found.reserved_at) == ("waiting", None, None)


class Failing(Easy):
    """A site's own policy with a defect."""

    def schedule(self, now: float) -> list[LocalJob]:
        raise ZeroDivisionError(now)


def test_a_policy_at_fault_is_told_of() -> None:
    site, queues = Listed(), CheckedQueues(make=Failing, described="policy 'mine'", refused=lambda _: None)
    site.mirror = Mirror(lambda: queues(0, weights=ARRIVAL), Rules(), Starts(Patience()))
    site.submit("1", 8)
    site.look()
    found = explain(site.mirror, "1")
    assert "policy 'mine'" in found.reason


async def test_no_question_reaches_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's own policy may fail when it is asked; then it would decide no more."""
    site = busy_site()

    def fail(*_: object) -> None:
        raise AssertionError("a policy was asked")

    for name in ("reservation", "waiting", "running"):
        monkeypatch.setattr(ClusterScheduler, name, property(fail))
    async with asked(tmp_path, explainer(site.mirror, ServiceClock())) as path:
        found = await to_thread.run_sync(ask, path, "a", "2")
    assert (found.position, found.queued, found.reason[:8]) == (1, 3, "it needs")
    assert found.reserved_at is not None


@pytest.mark.parametrize("mode", [OWNER, EVERYBODY])
async def test_any_job_is_asked_for(tmp_path: Path, mode: int) -> None:
    async with asked(tmp_path, mode=mode) as path:
        assert stat.S_IMODE(path.stat().st_mode) == mode
        assert (await to_thread.run_sync(ask, path, "a", "1")).phase == "starting"
        with pytest.raises(JobNotFoundError, match="no unfinished job 9"):
            await to_thread.run_sync(ask, path, "a", "9")
    assert not path.exists()
    with pytest.raises(ServiceUnavailableError, match=r"ask\.sock: No such file"):
        ask(path, "a", "1")


def test_names_and_nodes_are_told_to_the_owner_alone() -> None:
    """Root and the user of the scheduler are told them, too; what others are told can be shown."""
    found = replace(explain(busy_site().mirror, "1"), name="secret", nodes=(("n7", 4),), user="owner")
    assert [as_seen_by(user, found) for user in (0, os.geteuid())] == [found] * 2
    own = replace(found, user=user_name(NOBODY))
    assert as_seen_by(NOBODY, own) == own
    told = as_seen_by(NOBODY, found)
    assert told == replace(found, name="", nodes=(), user="")
    shown = "\n".join(explanation(told, "a"))
    assert "job 1 of another user on a" in shown
    assert "It is being started.\n" in f"{shown}\n"


@pytest.mark.parametrize(
    "text",
    [
        b"\n",
        b"nonsense\n",
        b"\x00\xff\xfe\n",
        b"[" * QUESTION_LIMIT + b"\n",
        b'{"job_id": 1}\n',
        b'{"job_id": ["1"]}\n',
        b'{"job_id": ""}\n',
        b'{"job_id": "1; scancel 1", "more": 1}\n',
        b'{"job_id": "1\\n2"}\n',
        b'{"job_id": "\\u001b[2J"}\n',
        b'{"job_id": "\\ud800"}\n',
        b'{"job_id": "' + b"1" * 200 + b'"}\n',
        b"x" * 100_000,
        b"x" * 100_000 + b"\n",
    ],
    ids=range(14),
)
async def test_what_is_no_question_is_refused(tmp_path: Path, text: bytes) -> None:
    async with asked(tmp_path) as path:
        try:
            heard = await to_thread.run_sync(said_to, path, text)
        except BrokenPipeError:
            heard = b""  # it was closed before all was sent
        assert heard == b"" or "malformed" in json.loads(heard)["error"]
        assert (await to_thread.run_sync(ask, path, "a", "1")).phase == "starting"


async def test_one_question_is_answered_and_no_half_one(tmp_path: Path) -> None:
    async with asked(tmp_path) as path:
        for text in (b"", b'{"job_id"'):
            assert await to_thread.run_sync(said_to, path, text) == b""
    async with asked(tmp_path) as path:
        heard = await to_thread.run_sync(said_to, path, b'{"job_id": "1"}\n{"job_id": "2"}\n')
    assert json.loads(heard)["job_id"] == "1"


def test_ids_of_all_batch_systems_are_asked_for() -> None:
    for job_id in ("12", "12_3", "12.3", "12[3].server.site", "12.server"):
        assert parse_question(json.dumps({"job_id": job_id}).encode()) == job_id


async def test_one_user_has_few_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds them without asking keeps himself from asking; when one is free again he is answered."""
    refused, is_busy = threading.Event(), asking._is_busy

    def noted(line: bytes) -> bool:
        refused.set()
        return is_busy(line)

    monkeypatch.setattr(asking, "_is_busy", noted)
    async with asked(tmp_path) as path:
        with ExitStack() as stack:
            held = []
            for _ in range(PLACES_OF_ONE):
                held.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
                held[-1].connect(str(path))
            assert PLACES_OF_ONE < PLACES
            assert await to_thread.run_sync(said_to, path, b"") == BUSY
            found: list[Explanation] = []

            async def ask_again() -> None:
                found.append(await to_thread.run_sync(ask, path, "a", "1"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_again)
                await to_thread.run_sync(refused.wait)
                held[0].close()
            assert [one.phase for one in found] == ["starting"]


async def test_a_defect_ends_nothing(tmp_path: Path) -> None:
    """It is logged, and whoever asks is told no more than that there is no answer."""

    def fail(_: str) -> Explanation:
        raise ZeroDivisionError("secret")

    with capture_logs() as logs:
        async with asked(tmp_path, fail) as path:
            for _ in range(2):
                heard = await to_thread.run_sync(said_to, path, b'{"job_id": "1"}\n')
                assert json.loads(heard) == {"error": "job 1 cannot be explained now", "hint": ""}
    assert "secret" in str(logs)


async def test_an_answer_does_not_wait_for_the_rest_that_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "REST", 1e9)
    async with asked(tmp_path) as path:
        heard = await to_thread.run_sync(said_to, path, b'{"job_id": "1"}\n')
    assert json.loads(heard)["phase"] == "starting"


@AS_ROOT
async def test_another_user_may_ask(tmp_path: Path) -> None:
    await anyio.Path(tmp_path).chmod(0o755)
    async with asked(tmp_path):
        done = await anyio.run_process([sys.executable, "-c", ASK, str(tmp_path)])
    told = json.loads(done.stdout)
    assert (told["phase"], told["user"], told["nodes"]) == ("starting", "", [])


@AS_ROOT
async def test_a_flood_of_one_user_leaves_places_to_others(tmp_path: Path) -> None:
    """Who connects as fast as he can, and never asks, keeps nobody else from an answer."""
    await anyio.Path(tmp_path).chmod(0o755)
    async with asked(tmp_path) as path:
        flood = await anyio.open_process([sys.executable, "-c", FLOOD, str(tmp_path)], stdin=None)
        async with flood:
            try:
                assert flood.stdout is not None
                assert await BufferedByteReceiveStream(flood.stdout).receive_exactly(6) == b"begun\n"
                for _ in range(5):
                    assert (await to_thread.run_sync(ask, path, "a", "1")).phase == "starting"
                assert flood.returncode is None
            finally:
                flood.kill()


def test_koala_explain_finds_it(tmp_path: Path) -> None:
    """By the site file, where no scheduler of one's own answers."""
    path = tmp_path / "ask.sock"
    site = tmp_path / "site.toml"
    site.write_text(SITE.format(path=path))
    argv = ["--site", str(site), "--state", str(tmp_path / "state"), "explain"]
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(asked(tmp_path)):
        done = CliRunner().invoke(koala, [*argv, "a:2"])
    assert done.exit_code == 0
    assert "It waits, place 1 of 3 in the queue" in done.output
    done = CliRunner().invoke(koala, [*argv, "a:2"])
    assert done.exit_code == 246
    assert "--ask-socket" in " ".join(done.output.split())


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    """Where another user could put a socket of his own in its place, or take it away."""
    for mode in (0o775, 0o757, 0o1777):
        tmp_path.chmod(mode)
        with pytest.raises(ConfigurationError, match="write to"), public(tmp_path / "ask.sock"):
            pass
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigurationError, match="No such file"), public(tmp_path / "no" / "s"):
        pass
    if os.geteuid() == 0:
        os.chown(tmp_path, NOBODY, NOBODY)
        with pytest.raises(ConfigurationError, match="belongs to"), public(tmp_path / "ask.sock"):
            pass


def test_what_is_there_already(tmp_path: Path) -> None:
    """A file is kept, somebody who answers goes on, and what a killed process has left is replaced."""
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ConfigurationError, match="no socket"), public(file):
        pass
    assert file.read_text() == "mine"
    path = tmp_path / "ask.sock"
    with public(path):
        with pytest.raises(ServiceRunningError, match="already"), public(path):
            pass
        assert path.exists()
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(str(path))
    left.close()
    with public(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_a_long_path_will_do(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 120)
    directory.mkdir(mode=0o755)
    with public(directory / "ask.sock"):
        assert (directory / "ask.sock").is_socket()
