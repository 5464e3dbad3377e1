# SPDX-License-Identifier: Apache-2.0
"""The benchmark of many agents: no agent is lost for good, and no wait is without a limit."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter.vjm import channel
from koala_adapter.vjm.certificate import load_or_create, server_context

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as one:
        one.settimeout(60)
        yield one


def client(listener: socket.socket, limit: int) -> subprocess.Popen[str]:
    port = str(listener.getsockname()[1])
    command = [sys.executable, "-m", "benchmarks.agents", "client", "--port", port, "--indices", "1:2"]
    return subprocess.Popen(
        [*command, "--limit", str(limit)], cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def test_an_agent_that_was_dropped_comes_again(listener: socket.socket, tmp_path: Path) -> None:
    """A server that closes a connection before its welcome is asked again: it waits for all agents."""
    context = server_context(load_or_create(tmp_path))
    with client(listener, 60) as process:
        try:
            first, _ = listener.accept()
            first.close()
            second, _ = listener.accept()
            second.settimeout(60)
            with context.wrap_socket(second, server_side=True) as tls:
                assert b"hello" in tls.recv(65536).lower()
                tls.send(channel.encode(channel.Welcome(lease=600, heartbeat=30)))
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_an_agent_that_gets_no_answer_ends(listener: socket.socket) -> None:
    with client(listener, 1) as process:
        try:
            assert process.wait(60) == 1
        finally:
            process.kill()
        assert process.stderr is not None
        assert "not done after 1 s: client: 0 of 1 agents welcomed" in process.stderr.read()
