# SPDX-License-Identifier: Apache-2.0
"""A program that runs another one, whose input and output it passes on later: ``delay.py SECONDS COMMAND...``."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time


def relay(source: int, target: int, delay: float) -> None:
    """Pass bytes on, each so many seconds after it has come, until there are no more. Then the target is closed."""
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def read() -> None:
        while True:
            piece = os.read(source, 65536)
            waiting.put((time.monotonic() + delay, piece))
            if not piece:
                return

    threading.Thread(target=read, daemon=True).start()
    while (found := waiting.get())[1]:
        time.sleep(max(0.0, found[0] - time.monotonic()))
        left = found[1]
        while left:
            left = left[os.write(target, left) :]
    os.close(target)


def main() -> None:
    """Run the program until it ends or there is no more input."""
    delay, command = float(sys.argv[1]), sys.argv[2:]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("pipes were asked for")
        threading.Thread(target=relay, args=(0, os.dup(process.stdin.fileno()), delay), daemon=True).start()
        process.stdin.close()
        relay(process.stdout.fileno(), 1, delay)


if __name__ == "__main__":
    main()
