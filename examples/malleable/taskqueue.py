# SPDX-License-Identifier: Apache-2.0
"""A head that hands out tasks and workers that do them, with nothing but Python's standard library.

python3 taskqueue.py head TASKS     hands out TASKS numbers, prints each square and who worked it out, then the sum
python3 taskqueue.py worker         works until SIGTERM: then it finishes its task and leaves

Both read the file `authkey`, which nobody else may have: make it with  head -c 32 /dev/urandom > authkey
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.managers import BaseManager
from pathlib import Path

PORT = int(os.environ.get("TASKQUEUE_PORT", "27180"))
SECONDS = float(os.environ.get("TASKQUEUE_SECONDS", "0.5"))
"""How long one task takes."""
PATIENCE = 10 * SECONDS + 5
"""Seconds without any result after which what is missing is handed out again: its workers are gone."""


class Queues(BaseManager):
    """Two queues that the workers reach over the network."""


def head(count: int) -> None:
    """Hand out the tasks; return when all results are there."""
    tasks: queue.Queue[int] = queue.Queue()
    results: queue.Queue[tuple[int, int, str]] = queue.Queue()
    Queues.register("tasks", callable=lambda: tasks)
    Queues.register("results", callable=lambda: results)
    server = Queues(("", PORT), authkey=Path("authkey").read_bytes()).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    squares: dict[int, int] = {}
    for number in range(count):
        tasks.put(number)
    while len(squares) < count:
        try:
            number, square, who = results.get(timeout=PATIENCE)
        except queue.Empty:
            for number in range(count):
                if number not in squares:
                    tasks.put(number)
            continue
        if number not in squares:
            squares[number] = square
            print(f"{number} squared is {square}, says {who}", flush=True)
    print(f"sum {sum(squares.values())}", flush=True)


def worker() -> None:
    """Do tasks until SIGTERM; what was begun is finished."""
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    who = f"worker {os.environ['KOALA_RANK']} on {os.environ['KOALA_CLUSTER']}"
    Queues.register("tasks")
    Queues.register("results")
    queues = Queues((os.environ["KOALA_HEAD_ADDRESS"], PORT), authkey=Path("authkey").read_bytes())
    with suppress(ConnectionError, EOFError):  # the head has ended: all is done
        work(queues, leave, who)
    print(f"{who} leaves", flush=True)


def work(queues: Queues, leave: threading.Event, who: str) -> None:
    """Join the head and do its tasks until the worker is to leave. Raises ConnectionError when the head ends."""
    while not leave.is_set():
        try:
            queues.connect()
            break
        except ConnectionRefusedError:  # the head is not there yet
            leave.wait(0.1)
    print(f"{who} joins", flush=True)
    while not leave.is_set():
        try:
            number = queues.tasks().get_nowait()  # type: ignore[attr-defined]
        except queue.Empty:
            leave.wait(0.1)
            continue
        time.sleep(SECONDS)
        queues.results().put((number, number * number, who))  # type: ignore[attr-defined]


if __name__ == "__main__":
    if sys.argv[1] == "head":
        head(int(sys.argv[2]))
    else:
        worker()
