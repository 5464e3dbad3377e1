# SPDX-License-Identifier: Apache-2.0
"""Workers as processes at a real server: they do all the work, leave when asked to, and prove who they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from koala_adapter.tasks.connection import connected, received, sent
from koala_adapter.tasks.server import TOKEN_BYTES
from koala_experiments.liveruns import WORKER, Bag, BagServer, bag_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BagServer]:
    """Give a server on this host."""
    with bag_server("127.0.0.1", tmp_path / "bags") as made:
        yield made


def start_worker(server: BagServer, rank: int, bag: str = "job") -> subprocess.Popen[bytes]:
    """Start a worker as its agent does."""
    return subprocess.Popen(
        [sys.executable, WORKER, "127.0.0.1", str(server.port), bag],
        cwd=server.files[0].parent,
        env={**os.environ, "KOALA_RANK": str(rank)},
        stderr=subprocess.PIPE,
    )


def ended_well(worker: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a worker."""
    _, said = worker.communicate(timeout=PATIENCE)
    assert (worker.returncode, said) == (0, b"")


def test_two_workers_do_all_there_is(server: BagServer) -> None:
    """Both end by themselves when the bag is empty; when each was ready to work is known."""
    bag = Bag([float("inf"), 2.0, 1.0], 0.1, at=2)
    server.board.bags["job"] = bag
    for worker in [start_worker(server, rank) for rank in (0, 1)]:
        ended_well(worker)
    assert bag.empty
    assert set(server.board.joined_at) == {("job", 0), ("job", 1)}


def test_a_worker_that_is_asked_to_leave_gives_the_rest_back(server: BagServer) -> None:
    """Of a unit of a thousand seconds almost all is left, or all if it had not begun, and it leaves at once."""
    bag = Bag([float("inf"), 1000.0], 1000.0, at=1)
    server.board.bags["job"] = bag
    worker = start_worker(server, 0)
    until = time.monotonic() + PATIENCE
    while bag.left > 0 and time.monotonic() < until:
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    ended_well(worker)
    while bag.left < 0.9 and time.monotonic() < until:
        time.sleep(0.02)
    assert 0.9 < bag.left <= 1.0


def test_a_peer_that_is_no_worker_is_not_served(server: BagServer) -> None:
    """One with another token, one without a bag, and one that says nothing that can be read; then a worker is."""
    server.board.bags["job"] = Bag([float("inf"), 1.0], 1.0, at=1)
    fingerprint, token = server.files[-1].read_text().split()
    for shown, said in (("00" * TOKEN_BYTES, b"job 0"), (token, b"nothing 0"), (token, b"job x"), (token, b"\xff")):
        with connected("127.0.0.1", server.port, fingerprint) as line:
            line.sendall(bytes.fromhex(shown))
            sent(line, said)
            assert received(line) is None
    with connected("127.0.0.1", server.port, fingerprint) as line:
        line.sendall(bytes.fromhex(token))
        sent(line, b"job 0")
        assert float(received(line) or b"") == pytest.approx(1.0)
