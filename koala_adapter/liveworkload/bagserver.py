# SPDX-License-Identifier: Apache-2.0
"""Hands the work units of running applications out to their workers: the head, elsewhere, of all of them."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from koala_adapter.liveworkload.bag import Bag

LOOK = 0.05
"""Seconds after which a worker for which there was nothing to do asks again."""
LONGEST_LINE = 100
BACKLOG = 512
NOBODY_TALKS = (OSError, EOFError, AuthenticationError, ValueError, KeyError)
"""What comes of a peer that goes away, proves nothing, or says what no worker says."""


class BagServer:
    """Serves bags by their names, a thread for each worker."""

    def __init__(self, address: str) -> None:
        """Listen on an address of this host, on a free port."""
        self.key = secrets.token_bytes(32)
        """What workers must have to be believed."""
        self._listener = socket.create_server((address, 0), backlog=BACKLOG)
        self.joined_at: dict[tuple[str, int], float] = {}
        """When, by the time of day, the worker of each bag and rank was ready to work for the first time."""
        self.emptied_at: dict[str, float] = {}
        """When the work of each bag was done."""
        self._bags: dict[str, Bag] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._numbers = count(1)
        self._connections: set[socket.socket] = set()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def put(self, bags: Mapping[str, Bag]) -> None:
        """Have further bags served."""
        with self._changed:
            self._bags.update(bags)

    def serve(self) -> None:
        """Accept workers until it is closed."""
        threads = []
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                break
            thread = threading.Thread(target=self._talk, args=(connected,), daemon=True)
            threads.append(thread)
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Talk to nobody any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for connected in self._connections:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _talk(self, connected: socket.socket) -> None:
        with connected:
            with self._changed:
                if self._closed:
                    return
                self._connections.add(connected)
            with suppress(*NOBODY_TALKS), Connection(connected.dup().detach()) as worker:
                deliver_challenge(worker, self.key)
                answer_challenge(worker, self.key)
                name, _, rank = worker.recv_bytes(LONGEST_LINE).decode().partition(" ")
                bag = self._bags[name]
                self.joined_at.setdefault((name, int(rank)), time.time())
                self._hand_out(worker, bag)
                if bag.empty:
                    self.emptied_at.setdefault(name, time.time())
            with self._changed:
                self._connections.discard(connected)

    def _hand_out(self, worker: Connection, bag: Bag) -> None:
        number = next(self._numbers)
        with self._changed:
            bag.join(number)
        try:
            while True:
                seconds = self._next(number, bag)
                worker.send_bytes(f"{seconds:.6f}".encode())
                if seconds < 0:
                    return
                word, _, part = worker.recv_bytes(LONGEST_LINE).decode().partition(" ")
                with self._changed:
                    bag.done(number, float(part))
                    self._changed.notify_all()
                if word != "done":
                    return
        finally:
            with self._changed:
                bag.leave(number)
                self._changed.notify_all()

    def _next(self, number: int, bag: Bag) -> float:
        """Return the seconds of the next unit; a moment when others have it all; -1 when there is no more."""
        with self._changed:
            seconds = bag.take(number)
            if seconds is not None:
                return seconds
            return -1.0 if bag.empty or self._closed else LOOK


@contextmanager
def bag_server(address: str) -> Iterator[BagServer]:
    """Run a server during the block."""
    server = BagServer(address)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()
