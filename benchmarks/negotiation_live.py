# SPDX-License-Identifier: Apache-2.0
"""How long a wish of a running application takes that is refused: through agent, TLS channel, service and journal.

A malleable job of one process has all there is of a local cluster and asks for one more processor again and again. Each
wish is a negotiation of one round: from the application over the Unix socket of its agent, over the agent's TLS channel
to the control center, into the journal and the scheduler, and back. The baseline of the same run, in the same process,
is a Python echo of as many bytes by a Unix socket; both take turns. Milliseconds, medians.

    python benchmarks/negotiation_live.py [--repeat 100] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

MESSAGE = 1_500
"""Bytes, about as many as a template has."""
SETTLING = 1.0
"""Seconds that the job runs before the first wish is measured."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--as-application", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_application:
        be_application(options.repeat)
        return
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from benchmarks import cutoff  # noqa: PLC0415 - which the application, sent to a node alone, does not have

    cutoff.begin()
    load = os.getloadavg()[0]
    found = measure(options.repeat)
    row = {"wish": found["wish"], "echo": found["echo"], "ratio": found["wish"] / found["echo"], "load": load}
    if options.json:
        print(json.dumps(row))
        return
    print(f"a wish that is refused: {row['wish']:.2f} ms; echo: {row['echo']:.3f} ms; ratio {row['ratio']:.0f}")
    print(f"load {load:.1f}, {found['count']} wishes; the slowest {found['slowest']:.1f} ms")


def measure(repeat: int) -> dict[str, float]:
    """Run this file as the application of a malleable job, and return what it prints."""
    import koala_adapter as koala  # noqa: PLC0415 - where it runs as the application, there is none

    program = Path(__file__)
    with koala.local_site(["alpha"], processors=1) as site, tempfile.TemporaryDirectory() as name:
        command = ["python3", program.name, "--as-application", "--repeat", str(repeat)]
        text = (
            'kind = "malleable"\nrunner = "adaptive"\nwalltime = 600\n[[components]]\n'
            f"command = {json.dumps(command)}\nminimum = 1\nmaximum = 4\ninput_files = [{json.dumps(str(program))}]\n"
        )
        path = Path(name, "wishes.toml")
        path.write_text(text)
        result = site.submit(path).result(timeout=300)
        result.check()
        found: dict[str, float] = json.loads(result.output("c1", 0).splitlines()[-1])
        return found


def be_application(repeat: int) -> None:
    """Ask again and again, as an application of koala's; print the medians."""
    import koala_app  # type: ignore[import-not-found]  # noqa: PLC0415 - it is there where this runs

    app = koala_app.join()
    time.sleep(SETTLING)
    ours, theirs = socket.socketpair()
    threading.Thread(target=_echo, args=(theirs,), daemon=True).start()
    wishes, echoes = [], []
    for _ in range(repeat):
        begun = time.perf_counter()
        answer = app.request(1)
        wishes.append(time.perf_counter() - begun)
        assert answer.granted == 0, answer
        app.point()
        begun = time.perf_counter()
        ours.sendall(bytes(MESSAGE))
        assert len(ours.recv(MESSAGE, socket.MSG_WAITALL)) == MESSAGE
        echoes.append(time.perf_counter() - begun)
    app.close()
    found = {
        "wish": 1000 * statistics.median(wishes),
        "echo": 1000 * statistics.median(echoes),
        "slowest": 1000 * max(wishes),
        "count": len(wishes),
    }
    print(json.dumps(found))


def _echo(peer: socket.socket) -> None:
    while data := peer.recv(MESSAGE, socket.MSG_WAITALL):
        peer.sendall(data)


if __name__ == "__main__":
    main()
