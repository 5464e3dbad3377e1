# SPDX-License-Identifier: Apache-2.0
"""A program whose processes compute in step, and whose number changes while it runs.

    python3 stepsum.py [STEPS [SECONDS]]

Each process has a part of a long row of numbers. In each step all need the sum over the whole row, which that of rank
0 collects and sends round. At a change the row is dealt out anew. The result does not depend on how many processes
there are: run by itself, without koala, the program prints the same.

It needs nothing but Python and koala_app.py, which koala brings along. The processes find each other by what koala
tells of each: the address of its node, and its contact, which is its port here.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import time
from itertools import chain, pairwise
from typing import Any, TextIO

import koala_app

NUMBERS = 240
PRIME = 2147483647


class Group:
    """The processes of a program between two changes: those of higher rank are connected with that of rank 0."""

    def __init__(self, members: tuple[koala_app.Member, ...], rank: int, listening: socket.socket) -> None:
        """Connect them: all of them make their groups at the same time."""
        self.rank, self.size = rank, len(members)
        self._lines: dict[int, TextIO] = {}
        if rank == 0:
            for _ in range(self.size - 1):
                stream, _ = listening.accept()
                with stream:
                    lines = stream.makefile("rw")
                self._lines[json.loads(lines.readline())] = lines
        else:
            with socket.create_connection((members[0].address or "127.0.0.1", int(members[0].contact))) as stream:
                self._lines[0] = stream.makefile("rw")
            self._send(0, rank)

    def gather(self, value: Any) -> list[Any]:  # noqa: ANN401 - whatever JSON can say
        """Return the values of all processes by their ranks, in the process of rank 0; nothing in the others."""
        if self.rank:
            self._send(0, value)
            return []
        return [value] + [self._receive(rank) for rank in range(1, self.size)]

    def scatter(self, values: list[Any]) -> Any:  # noqa: ANN401 - likewise
        """Return this process' own of the values that the process of rank 0 has."""
        if self.rank:
            return self._receive(0)
        for rank in range(1, self.size):
            self._send(rank, values[rank])
        return values[0]

    def close(self) -> None:
        """End the connections."""
        for lines in self._lines.values():
            lines.close()

    def _send(self, rank: int, value: Any) -> None:  # noqa: ANN401 - likewise
        self._lines[rank].write(json.dumps(value) + "\n")
        self._lines[rank].flush()

    def _receive(self, rank: int) -> Any:  # noqa: ANN401 - likewise
        line = self._lines[rank].readline()
        if not line:
            raise ConnectionError(f"process {rank} is gone")
        return json.loads(line)


def dealt(row: list[int], size: int) -> list[list[int]]:
    """Return a row in as many parts."""
    return [row[begin:end] for begin, end in pairwise(len(row) * rank // size for rank in range(size + 1))]


def main(steps: int = 100, seconds: float = 0.05) -> None:
    """Compute so many steps, each of which takes so long."""
    with socket.create_server(("", 0), backlog=64) as listening:
        app = koala_app.join(contact=str(listening.getsockname()[1]))
        compute(app, listening, steps, seconds)
        app.close()


def compute(app: koala_app.App, listening: socket.socket, steps: int, seconds: float) -> None:
    """Compute as one process of the program, for as long as it is one."""
    change, step, part, sizes = app.change, 0, [], [app.size]
    if change is None:
        group = Group(app.members, app.rank, listening)
        part = dealt(list(range(1, NUMBERS + 1)), app.size)[app.rank]
    while True:
        if change is not None:
            parts = []
            if change.old_rank is not None:  # a new process has nothing to give
                parts = group.gather(part)
                group.close()
            if change.rank is None:  # this process was taken out
                app.done()
                app.leave()
                return
            sizes.append(change.size)
            group = Group(change.members, change.rank, listening)
            row = list(chain.from_iterable(parts))
            step, part = group.scatter([(step, one) for one in dealt(row, change.size)])
            time.sleep(seconds)
            app.done()
        if step == steps:
            break
        sums = group.gather(sum(part) % PRIME)
        total = group.scatter([sum(sums) % PRIME] * group.size)
        part = [(48271 * number + total) % PRIME for number in part]
        time.sleep(seconds)
        step += 1
        change = app.point()
    parts = group.gather(part)
    group.close()
    if app.rank == 0:
        row = list(chain.from_iterable(parts))
        print("sizes", *sizes)
        print("result", hashlib.sha256(json.dumps(row).encode()).hexdigest())


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:], strict=False)))
