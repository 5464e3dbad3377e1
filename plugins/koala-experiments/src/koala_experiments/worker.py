# SPDX-License-Identifier: Apache-2.0
"""A worker of an application that runs live at the pace of a simulated one: it takes units of work and sleeps.

python3 worker.py HOST PORT BAG

It is sent to the nodes as an input file, and runs alone with whatever Python there is. SIGTERM asks it to leave: what
it has not done of its unit goes back at once. The file `authkey` beside it proves who it is.
"""

import os
import signal
import sys
import time
from multiprocessing.connection import Client
from pathlib import Path


def work(host: str, port: int, bag: str) -> None:
    """Take units until there are no more, or SIGTERM comes."""
    key = Path("authkey").read_bytes()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    units = Client((host, port), authkey=key)
    units.send_bytes("{} {}".format(bag, os.environ["KOALA_RANK"]).encode())
    while True:
        seconds = float(units.recv_bytes())
        if seconds < 0:
            return
        begin = time.monotonic()
        leave = signal.sigtimedwait([signal.SIGTERM], seconds) is not None
        part = 1.0 if not leave or seconds <= 0 else (time.monotonic() - begin) / seconds
        units.send_bytes("{} {:.6f}".format("leaves" if leave else "done", part).encode())
        if leave:
            return


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), sys.argv[3])
