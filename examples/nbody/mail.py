# SPDX-License-Identifier: Apache-2.0
"""Messages of numbers between the processes of a program. It needs nothing but Python's standard library.

A process is found by the address of its node and by its contact, which is its port here. Only who knows the content of
the file `authkey` is listened to: make it with  head -c 32 /dev/urandom > authkey
"""

from __future__ import annotations

import threading
import time
from array import array
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

PATIENCE = 60.0
"""Seconds after which a message that should have come will not."""
PAUSE = 0.05
"""Seconds between two tries to reach a process that is just starting."""


class Peer(NamedTuple):
    """Where a process is."""

    rank: int
    address: str
    contact: str


class Mail:
    """What this process sends and gets; each message has a subject, and they are taken in whatever order."""

    def __init__(self, port: int = 0) -> None:
        """Listen, at a free port unless one is given; what comes is kept until it is asked for."""
        path = Path("authkey")
        self._authkey = path.read_bytes() if path.exists() else None  # None: a process that is alone
        self._listener = Listener(("" if self._authkey else "127.0.0.1", port), backlog=64, authkey=self._authkey)
        self.port = str(self._listener.address[1])
        self._lines: dict[int, Connection] = {}
        self._come: SimpleQueue[tuple[str, list[float]]] = SimpleQueue()
        self._kept: dict[str, list[float]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, to: Any, subject: str, numbers: list[float]) -> None:  # noqa: ANN401 - a Peer, or a Member of a library
        """Send numbers to a process, which has a rank that no other ever has."""
        if to.rank not in self._lines:
            self._lines[to.rank] = Client((to.address or "127.0.0.1", int(to.contact)), authkey=self._authkey)
        self._lines[to.rank].send_bytes(subject.encode() + b"\n" + array("d", numbers).tobytes())

    def receive(self, subject: str) -> list[float]:
        """Return the numbers that were sent with a subject."""
        while subject not in self._kept:
            come, numbers = self._come.get(timeout=PATIENCE)
            self._kept[come] = numbers
        return self._kept.pop(subject)

    def meet(self, rank: int, addresses: list[str], port: int) -> list[Peer]:
        """Return where all processes of a program are of which only the first is at a known port.

        For a program without the library: with it, koala tells the contacts.
        """
        first = Peer(0, addresses[0], str(port))
        if rank:
            self._wait_for(first)
            self.send(first, f"port of {rank}", [float(self.port)])
            ports = self.receive("ports")
        else:
            ports = [float(port), *(self.receive(f"port of {other}")[0] for other in range(1, len(addresses)))]
        members = [Peer(other, addresses[other], str(int(ports[other]))) for other in range(len(addresses))]
        if not rank:
            for member in members[1:]:
                self.send(member, "ports", ports)
        return members

    def _wait_for(self, peer: Peer) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._lines[peer.rank] = Client((peer.address, int(peer.contact)), authkey=self._authkey)
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE)
            else:
                return

    def _accept(self) -> None:
        while True:
            try:
                line = self._listener.accept()
            except (AuthenticationError, EOFError, OSError):
                continue  # somebody who does not know the key
            threading.Thread(target=self._read, args=(line,), daemon=True).start()

    def _read(self, line: Connection) -> None:
        try:
            while True:
                subject, _, content = line.recv_bytes().partition(b"\n")
                self._come.put((subject.decode(), array("d", content).tolist()))
        except (EOFError, OSError):
            line.close()
