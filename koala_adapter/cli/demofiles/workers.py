# SPDX-License-Identifier: Apache-2.0
"""Computes pi: a head hands out parts of the integral of 4 / (1 + x * x) to workers that come and go."""

import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.managers import BaseManager
from pathlib import Path

STEPS, PARTS, SECONDS = 340000, 340, 0.5


class Queues(BaseManager):
    """Manager of two queues, of tasks and results, which workers reach over the network."""


with Path("authkey").open("rb") as file:
    key = file.read()
port = int(os.environ["PORT"])
if "head" in sys.argv:
    parts, results, found, missed = queue.Queue(), queue.Queue(), {}, 0
    Queues.register("parts", callable=lambda: parts)
    Queues.register("results", callable=lambda: results)
    server = Queues(("127.0.0.1", port), authkey=key).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while len(found) < PARTS:
        if parts.empty():
            for number in range(PARTS):
                if number not in found:
                    parts.put(number)
        try:
            while True:
                number, part = results.get(timeout=4 * SECONDS)
                found[number] = part
                if len(found) == PARTS:
                    break
        except queue.Empty:
            continue  # a worker has gone with its part: what is missing is handed out again
    print(f"the sum of all {PARTS} parts is pi = {sum(found.values()) / STEPS:.10f}", flush=True)
else:
    leave = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leave.set())
    Queues.register("parts")
    Queues.register("results")
    queues = Queues((os.environ["KOALA_HEAD_ADDRESS"], port), authkey=key)
    while not leave.is_set():
        try:
            queues.connect()
            break
        except ConnectionRefusedError:  # the head is not there yet
            leave.wait(0.1)
    parts, results = (queues.parts(), queues.results()) if not leave.is_set() else (None, None)
    while not leave.is_set():
        try:
            number = parts.get_nowait()
        except queue.Empty:
            leave.wait(0.1)
            continue
        except (EOFError, OSError):  # all is done
            break
        part = sum(4 / (1 + ((i + 0.5) / STEPS) ** 2) for i in range(number, STEPS, PARTS))
        time.sleep(SECONDS)
        results.put((number, part))
