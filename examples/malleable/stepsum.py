# SPDX-License-Identifier: Apache-2.0
"""A program whose processes compute in step, and whose number of processes changes while it runs.

    python3 stepsum.py [STEPS [SECONDS]]

Each process has a part of a long row of numbers. In each step all need the sum over the whole row, which the process of
rank 0 collects and sends round. At a change the row is dealt out anew. The result does not depend on how many processes
there are: run by itself, without koala, the program prints the same.

It needs nothing but Python and koala_app.py, which koala brings along. The processes find each other by what koala tells
of each: the address of its node, and its contact, which is its port here.
"""

import hashlib
import json
import socket
import sys
import time

import koala_app

NUMBERS = 240
PRIME = 2147483647


class Group:
    """The processes of a program between two changes: those of higher rank are connected with that of rank 0."""

    def __init__(self, members, rank, listening):
        """Connect them: all of them make their groups at the same time."""
        self.rank, self.size = rank, len(members)
        self._lines = {}
        if rank == 0:
            for _ in range(self.size - 1):
                stream, _ = listening.accept()
                lines = stream.makefile("rw")
                self._lines[json.loads(lines.readline())] = lines
                stream.close()
        else:
            with socket.create_connection((members[0].address or "127.0.0.1", int(members[0].contact))) as stream:
                self._lines[0] = stream.makefile("rw")
            self._send(0, rank)

    def gather(self, value):
        """Return the values of all processes, in the order of their ranks, in the process of rank 0."""
        if self.rank:
            self._send(0, value)
            return None
        return [value] + [self._receive(rank) for rank in range(1, self.size)]

    def scatter(self, values):
        """Return this process' own of the values that the process of rank 0 has."""
        if self.rank:
            return self._receive(0)
        for rank in range(1, self.size):
            self._send(rank, values[rank])
        return values[0]

    def close(self):
        """End the connections."""
        for lines in self._lines.values():
            lines.close()

    def _send(self, rank, value):
        self._lines[rank].write(json.dumps(value) + "\n")
        self._lines[rank].flush()

    def _receive(self, rank):
        line = self._lines[rank].readline()
        if not line:
            raise ConnectionError("process {} is gone".format(rank))
        return json.loads(line)


def dealt(row, size):
    """Return a row in as many parts."""
    bounds = [len(row) * rank // size for rank in range(size + 1)]
    return [row[begin:end] for begin, end in zip(bounds, bounds[1:])]


def main(steps=100, seconds=0.05):
    """Compute so many steps, each of which takes so long."""
    listening = socket.socket()
    listening.bind(("", 0))
    listening.listen(64)
    app = koala_app.join(contact=str(listening.getsockname()[1]))
    change, step, part, history = app.change, 0, None, []
    if change is None:
        group = Group(app.members, app.rank, listening)
        part = dealt(list(range(1, NUMBERS + 1)), app.size)[app.rank]
        history = [app.size]
    while True:
        if change is not None:
            parts = None
            if change.old_rank is not None:  # a new process has nothing to give
                parts = group.gather(part)
                group.close()
            if change.rank is None:  # this process was taken out
                app.done()
                app.leave()
                return
            history.append(change.size)
            group = Group(change.members, change.rank, listening)
            row = sum(parts, []) if parts else []
            step, part = group.scatter([(step, one) for one in dealt(row, change.size)])
            app.done()
        if step == steps:
            break
        total = group.gather(sum(part) % PRIME)
        total = group.scatter([sum(total) % PRIME] * group.size if total else None)
        part = [(48271 * number + total) % PRIME for number in part]
        time.sleep(seconds)
        step += 1
        change = app.point()
    parts = group.gather(part)
    if parts is not None:
        print("sizes", *history)
        print("result", hashlib.sha256(json.dumps(sum(parts, [])).encode()).hexdigest())
    group.close()
    app.close()


if __name__ == "__main__":
    main(*(kind(text) for kind, text in zip((int, float), sys.argv[1:])))
