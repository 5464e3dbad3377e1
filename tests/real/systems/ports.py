# SPDX-License-Identifier: Apache-2.0
"""TCP ports for test daemons, so that test processes running side by side never choose the same one.

Asking the kernel for a free port and closing it leaves a gap in which somebody else may get it, and a daemon that is
stopped and started again must find its port still free. So a port is *owned* through a lock file from the moment it is
chosen until it is given back, and ports are taken below the range from which the kernel serves outgoing connections.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import Self

FIRST_PORT = 15000
"""Lowest port handed out."""

LAST_PORT = 31999
"""Highest port handed out: Linux takes ports for outgoing connections from 32768 (ip_local_port_range)."""


class NoFreePortsError(Exception):
    """No run of consecutive free ports of the wanted length was found."""


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Daemons here listen on every address, so the wildcard address is what must be free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _lock(directory: Path, port: int) -> int | None:
    descriptor = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Ports:
    """Consecutive TCP ports owned by this process until `release` (or its end)."""

    def __init__(self, first: int, descriptors: list[int]) -> None:
        """Take over ports that are locked already; use `claim` instead."""
        self.first = first
        self._descriptors = descriptors

    @classmethod
    def claim(cls, count: int) -> Self:
        """Own `count` consecutive free ports; raises NoFreePortsError when there is no such run."""
        directory = Path(tempfile.gettempdir()) / f"koala-test-ports-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
        for _ in range(200):
            first = random.SystemRandom().randrange(FIRST_PORT, LAST_PORT - count)
            ports = cls(first, [])
            if all(ports._add(directory, port) for port in range(first, first + count)):
                return ports
            ports.release()
        message = f"found no {count} consecutive free TCP ports between {FIRST_PORT} and {LAST_PORT}"
        raise NoFreePortsError(message)

    def _add(self, directory: Path, port: int) -> bool:
        descriptor = _lock(directory, port)
        if descriptor is None:
            return False
        self._descriptors.append(descriptor)
        return _is_free(port)

    def __getitem__(self, index: int) -> int:
        """Port number `index` of the run, counted from 0."""
        if not 0 <= index < len(self._descriptors):
            raise IndexError(index)
        return self.first + index

    def release(self) -> None:
        """Give the ports back; harmless when done twice."""
        while self._descriptors:
            os.close(self._descriptors.pop())
