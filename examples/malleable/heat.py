# SPDX-License-Identifier: Apache-2.0
"""Heat in a rod, by processes that compute in step and whose number changes while they run.

    python3 heat.py [STEPS [SECONDS]]

Each process has a part of the rod's cells, and in each step exchanges the cells at its ends with its neighbours. At a
change every old process sends each new one what that gets of its cells, straight from the one to the other. The result
is the same to the last bit for whatever sizes the program has had; run by itself, without koala, it prints it, too.

It needs nothing but Python and koala_app.py, which koala brings along. Processes find each other by what koala tells of
each: the address of its node, and its contact, which is its port here. They read the file `authkey`, which nobody else
may have: make it with  head -c 32 /dev/urandom > authkey
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import time
from array import array
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from queue import SimpleQueue

import koala_app

CELLS = 960
PATIENCE = 60.0
"""Seconds after which a message that should have come will not."""
Message = tuple[str, list[float]]


class Mail:
    """Messages of numbers between processes, each with a subject, in whatever order they come."""

    def __init__(self) -> None:
        """Listen; what comes is kept until it is asked for."""
        path = Path("authkey")
        self._authkey = path.read_bytes() if path.exists() else None  # None: a process that is alone
        self._listener = Listener(("", 0), backlog=64, authkey=self._authkey)
        self.port = str(self._listener.address[1])
        self._lines: dict[int, Connection] = {}
        self._come: SimpleQueue[Message] = SimpleQueue()
        self._kept: dict[str, list[float]] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def send(self, to: koala_app.Member, subject: str, numbers: list[float]) -> None:
        """Send numbers to a process."""
        if to.rank not in self._lines:
            self._lines[to.rank] = Client((to.address, int(to.contact)), authkey=self._authkey)
        self._lines[to.rank].send_bytes(subject.encode() + b"\n" + array("d", numbers).tobytes())

    def receive(self, subject: str) -> list[float]:
        """Return the numbers that were sent with a subject."""
        while subject not in self._kept:
            come, numbers = self._come.get(timeout=PATIENCE)
            self._kept[come] = numbers
        return self._kept.pop(subject)

    def _accept(self) -> None:
        while True:
            try:
                line = self._listener.accept()
            except Exception:  # noqa: BLE001, S112 - somebody who does not know the key
                continue
            threading.Thread(target=self._read, args=(line,), daemon=True).start()

    def _read(self, line: Connection) -> None:
        try:
            while True:
                subject, _, content = line.recv_bytes().partition(b"\n")
                self._come.put((subject.decode(), array("d", content).tolist()))
        except EOFError:
            line.close()


def part(rank: int, size: int) -> tuple[int, int]:
    """Return the first cell of a process, and the one after its last."""
    return CELLS * rank // size, CELLS * (rank + 1) // size


def redistributed(change: koala_app.Change, mail: Mail, cells: list[float]) -> list[float]:
    """Send what others get of our cells, and return our cells after the change."""
    if change.old_rank is not None:
        begin, end = part(change.old_rank, len(change.old))
        for rank, member in enumerate(change.members):
            first, last = part(rank, change.size)
            if max(first, begin) < min(last, end):
                subject = f"change {change.number} {begin}"
                mail.send(member, subject, cells[max(first, begin) - begin : min(last, end) - begin])
    if change.rank is None:
        return []
    first, last = part(change.rank, change.size)
    found: list[float] = []
    for rank in range(len(change.old)):
        begin, end = part(rank, len(change.old))
        if max(first, begin) < min(last, end):
            found += mail.receive(f"change {change.number} {begin}")
    return found


def next_step(app: koala_app.App, mail: Mail, cells: list[float]) -> list[float]:
    """Return our cells after one more step; the ends of the rod keep their heat."""
    left, right, step = app.rank - 1, app.rank + 1, app.reached
    if left >= 0:
        mail.send(app.members[left], f"step {step} from {app.rank}", cells[:1])
    if right < app.size:
        mail.send(app.members[right], f"step {step} from {app.rank}", cells[-1:])
    before = mail.receive(f"step {step} from {left}") if left >= 0 else cells[:1]
    after = mail.receive(f"step {step} from {right}") if right < app.size else cells[-1:]
    row = before + cells + after
    return [row[i] + 0.25 * (row[i - 1] - 2 * row[i] + row[i + 1]) for i in range(1, len(row) - 1)]


def main(steps: int = 200, seconds: float = 0.05) -> None:
    """Compute so many steps, each of which takes so long."""
    mail = Mail()
    app = koala_app.join(contact=mail.port)
    change, cells, sizes = app.change, [], [app.size]
    if change is None:
        cells = [math.sin(i) for i in range(*part(app.rank, app.size))]
    while change is not None or app.reached < steps:
        if change is None:
            change = app.point()
        if change is not None:
            cells = redistributed(change, mail, cells)
            app.done()
            if change.rank is None:  # this process was taken out
                app.leave()
                return
            sizes.append(change.size)
            change = None
        cells = next_step(app, mail, cells)
        time.sleep(seconds)
    if app.rank:
        mail.send(app.members[0], f"result {app.rank}", cells)
    else:
        for rank in range(1, app.size):
            cells += mail.receive(f"result {rank}")
        print("sizes", *sizes)
        print("result", hashlib.sha256(array("d", cells).tobytes()).hexdigest())
    app.close()


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
