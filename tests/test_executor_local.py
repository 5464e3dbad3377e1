# SPDX-License-Identifier: Apache-2.0
"""koala.Executor on local clusters: calls on the processors of both, which come back whatever becomes of a worker."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import koala_adapter as koala
from koala_adapter.python.executor import TaskServer
from koala_adapter.tasks.server import TOKEN_BYTES
from koala_adapter.vjm.certificate import load_or_create
from tests.local_koala import LIVENESS, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

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
    """In order; an exception is what was raised, with where; what waits can be cancelled; then all is gone."""
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


@pytest.mark.parametrize("workers", [1, 3])
def test_a_number_of_workers_that_does_not_change(site: koala.Site, workers: int) -> None:
    """It is a rigid job, on both clusters if need be, and ends as well as one whose size changes."""
    with koala.Executor(workers, minimum=workers, site=site, environment=FINDS_US) as executor:
        assert list(executor.map(square, range(4), timeout=LIVENESS)) == [0, 1, 4, 9]
    result = executor.job.wait(LIVENESS)
    assert (result.state, result.exit_code) == (koala.JobState.COMPLETED, 0)
    assert list((site.directory / "executors").iterdir()) == []


def test_a_call_outlives_its_worker(site: koala.Site, tmp_path: Path) -> None:
    """It is begun again by another one."""
    with koala.Executor(3, minimum=2, site=site, environment=FINDS_US) as executor:
        eventually(lambda: executor.workers == 3)
        assert executor.submit(fall_once, tmp_path / "fallen").result(LIVENESS) == "done"


def test_calls_outlive_the_service(site: koala.Site) -> None:
    """Workers do not need it; another one is begun that sees to the job."""
    with koala.Executor(3, site=site, environment=FINDS_US) as executor:
        assert executor.submit(abs, -3).result(LIVENESS) == 3
        pid = site.client.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert list(executor.map(abs, range(10), timeout=LIVENESS)) == list(range(10))
    assert executor.job.wait(LIVENESS).state is koala.JobState.COMPLETED


def test_calls_end_with_their_job(site: koala.Site, tmp_path: Path) -> None:
    """What is not done then says so, and so does what comes later."""
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
    """Before anything is submitted; nothing is left listening."""
    with pytest.raises(koala.ConfigurationError, match="found minimum 2 and maximum 1"):
        koala.Executor(1, minimum=2, site=site)
    with pytest.raises(koala.ConfigurationError, match='found "gamma", allowed is a cluster of the site'):
        koala.Executor(2, site=site, cluster="gamma")


def test_who_has_not_the_token_gets_nothing(tmp_path: Path) -> None:
    """The connection is closed, and it is no worker."""
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
