# SPDX-License-Identifier: Apache-2.0
"""Workers as processes at a real server: they do all the work, leave when asked to, and prove who they are."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from typing import TYPE_CHECKING

import pytest

from koala_experiments import liveruns
from koala_experiments.liveruns import MOST_UNPROVEN, WORKER, Bag, BagServer, bag_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


@pytest.fixture
def server() -> Iterator[BagServer]:
    """Give a server on this host."""
    with bag_server("127.0.0.1") as made:
        yield made


def start_worker(server: BagServer, directory: Path, rank: int, bag: str = "job") -> subprocess.Popen[bytes]:
    """Start a worker as its agent does."""
    (directory / "authkey").write_bytes(server.key)
    return subprocess.Popen(
        [sys.executable, str(WORKER), "127.0.0.1", str(server.port), bag],
        cwd=directory,
        env={**os.environ, "KOALA_RANK": str(rank)},
        stderr=subprocess.PIPE,
    )


def ended_well(worker: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a worker."""
    _, said = worker.communicate(timeout=PATIENCE)
    assert (worker.returncode, said) == (0, b"")


def test_two_workers_do_all_there_is(server: BagServer, tmp_path: Path) -> None:
    """Both end by themselves when the bag is empty; when each was ready to work is known."""
    bag = Bag([float("inf"), 2.0, 1.0], 0.1, at=2)
    server.put({"job": bag})
    for worker in [start_worker(server, tmp_path, rank) for rank in (0, 1)]:
        ended_well(worker)
    assert bag.empty
    assert set(server.joined_at) == {("job", 0), ("job", 1)}


def test_a_worker_that_is_asked_to_leave_gives_the_rest_back(server: BagServer, tmp_path: Path) -> None:
    """Of a unit of a thousand seconds almost all is left, or all if it had not begun, and it leaves at once."""
    bag = Bag([float("inf"), 1000.0], 1000.0, at=1)
    server.put({"job": bag})
    worker = start_worker(server, tmp_path, 0)
    until = time.monotonic() + PATIENCE
    while bag.left > 0 and time.monotonic() < until:
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    ended_well(worker)
    while bag.left < 0.9 and time.monotonic() < until:
        time.sleep(0.02)
    assert 0.9 < bag.left <= 1.0


def test_who_has_another_key_gets_nothing(server: BagServer) -> None:
    """The server goes on for those who have the right one."""
    server.put({"job": Bag([float("inf"), 1.0], 1.0, at=1)})
    with pytest.raises((AuthenticationError, EOFError, ConnectionError)):
        Client(("127.0.0.1", server.port), authkey=b"something else")
    with Client(("127.0.0.1", server.port), authkey=server.key) as client:
        client.send_bytes(b"job 0")
        assert float(client.recv_bytes()) == pytest.approx(1.0)


def test_connections_without_the_key_are_bounded(server: BagServer) -> None:
    """A thousand of them have a thread each for a moment only, and a worker is served meanwhile."""
    server.put({"job": Bag([float("inf"), 1.0], 1.0, at=1)})
    before = threading.active_count()
    most = 0
    with ExitStack() as strangers:
        for _ in range(500):
            stranger = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
            strangers.enter_context(stranger)
            most = max(most, threading.active_count() - before)
        with Client(("127.0.0.1", server.port), authkey=server.key) as client:
            client.send_bytes(b"job 0")
            assert float(client.recv_bytes()) == pytest.approx(1.0)
        most = max(most, threading.active_count() - before)
    assert most <= MOST_UNPROVEN + 2
    until = time.monotonic() + PATIENCE
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.02)
    assert threading.active_count() == before


def test_a_silent_connection_ends_in_time(server: BagServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever proves nothing is not waited for."""
    monkeypatch.setattr(liveruns, "PROVE_WITHIN", 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as stranger:
        heard = b"".join(iter(lambda: stranger.recv(4096), b""))
    assert b"CHALLENGE" in heard
