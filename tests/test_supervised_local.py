# SPDX-License-Identifier: Apache-2.0
"""Servers that systemd has started tell it that they serve and that they live, in real processes."""

from __future__ import annotations

import socket
import subprocess

import pytest

from tests.local_koala import LIVENESS, Koala

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("command", ["serve", "schedule --cluster alpha --shadow"])
def test_systemd_hears_of_a_server(koala: Koala, command: str) -> None:
    """First that it serves or lives, then signs of life."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        path = str(koala.directory / "n")
        supervisor.bind(path)
        supervisor.settimeout(LIVENESS)
        wanted = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "600000"}
        server = subprocess.Popen(
            koala.command(*command.split()),
            env={**koala.environment, **wanted},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        koala.running.append(server)
        heard: list[bytes] = []
        while heard.count(b"WATCHDOG=1") < 3 or b"READY=1" not in heard:
            heard.append(supervisor.recv(100))
        assert set(heard) == {b"READY=1", b"WATCHDOG=1"}
