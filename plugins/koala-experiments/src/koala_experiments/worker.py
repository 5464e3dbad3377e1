# SPDX-License-Identifier: Apache-2.0
"""A worker of an application that runs live at the pace of a simulated one: it takes units of work and sleeps.

python3 worker.py HOST PORT BAG

It is sent to the nodes as an input file, and runs there for Python 3.6 or newer with the connection beside it. SIGTERM
asks it to leave: what it has not done of its unit goes back at once. The file `contact` beside it has the fingerprint
of the server's certificate and the token that proves who the worker is.
"""

import os
import signal
import sys
import time
from pathlib import Path

from koala_adapter.tasks.connection import connected, received, sent


def work(host: str, port: int, bag: str) -> None:
    """Process units until the bag is over or SIGTERM arrives."""
    fingerprint, token = Path("contact").read_text().split()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    units = connected(host, port, fingerprint)
    units.sendall(bytes.fromhex(token))
    sent(units, "{} {}".format(bag, os.environ["KOALA_RANK"]).encode())
    while True:
        seconds = float(received(units) or b"-1")
        if seconds < 0:
            return
        begin = time.monotonic()
        leave = signal.sigtimedwait([signal.SIGTERM], seconds) is not None
        part = 1.0 if not leave or seconds <= 0 else (time.monotonic() - begin) / seconds
        sent(units, "{} {:.6f}".format("leaves" if leave else "done", part).encode())
        if leave:
            return


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), sys.argv[3])
