# SPDX-License-Identifier: Apache-2.0
"""What systemd hears of a service that it has started."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from koala_adapter.host.process import ServiceManager, under_supervision

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def supervisor(path: str) -> Iterator[socket.socket]:
    """Listen as systemd does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(path)
        found.settimeout(120)
        yield found


def test_it_hears_of_beginning_and_end(tmp_path: Path) -> None:
    """One message each."""
    path = str(tmp_path / "n")
    with supervisor(path) as heard:
        manager = ServiceManager({"NOTIFY_SOCKET": path})
        manager.ready()
        manager.stopping()
        assert [heard.recv(100), heard.recv(100)] == [b"READY=1", b"STOPPING=1"]


def test_an_abstract_name_is_understood() -> None:
    """Systemd may give one instead of a path."""
    name = f"koala-test-{os.getpid()}"
    with supervisor(f"\0{name}") as heard:
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert heard.recv(100) == b"READY=1"


@pytest.mark.anyio
async def test_it_hears_signs_of_life(tmp_path: Path) -> None:
    """Again and again, while the event loop runs."""
    path = str(tmp_path / "n")
    with supervisor(path) as heard:
        environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000", "WATCHDOG_PID": str(os.getpid())}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ServiceManager(environment).keep_alive)
            for _ in range(3):
                assert await anyio.to_thread.run_sync(heard.recv, 100) == b"WATCHDOG=1"
            tasks.cancel_scope.cancel()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "/nowhere/n", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/nowhere/n", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere/n", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "vsock:2:1"},
    ],
)
async def test_where_nobody_waits_for_them_there_are_none(environment: dict[str, str]) -> None:
    """It returns at once; nor does a supervisor that is gone disturb anybody."""
    manager = ServiceManager(environment)
    await manager.keep_alive()
    manager.ready()


@pytest.mark.anyio
@pytest.mark.parametrize("goes_on", [True, False])
async def test_it_hears_of_the_end_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
) -> None:
    """Unless the server goes on in the same process."""
    path = str(tmp_path / "n")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with supervisor(path) as heard:
        async with anyio.create_task_group() as tasks:
            under_supervision(tasks, lambda: goes_on).ready()
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        assert heard.recv(100) == b"READY=1"
        heard.settimeout(0)
        if goes_on:
            with pytest.raises(BlockingIOError):
                heard.recv(100)
        else:
            assert heard.recv(100) == b"STOPPING=1"
