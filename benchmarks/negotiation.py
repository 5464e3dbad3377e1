# SPDX-License-Identifier: Apache-2.0
"""Negotiations of running applications, and what it costs a program that it could be asked.

python -m benchmarks.negotiation wish [--repeat 100]
python -m benchmarks.negotiation points [--repeat 15] [--calls 1000000]
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import koala_adapter as koala
from benchmarks.common import Row, main
from koala_adapter.application.notes import note_payload
from koala_adapter.application.shipping import install
from koala_adapter.negotiation import frame

if TYPE_CHECKING:
    from collections.abc import Iterator

# -- A wish that is refused ----------------------------------------------------------------------------------

WISHES = r"""
import json, socket, sys, threading, time
import koala_app
MESSAGE = 1_500  # bytes, about as many as a template has
def echo(peer):
    while data := peer.recv(MESSAGE, socket.MSG_WAITALL):
        peer.sendall(data)
app = koala_app.join()
time.sleep(1.0)  # the job has begun to run before the first wish is measured
ours, theirs = socket.socketpair()
threading.Thread(target=echo, args=(theirs,), daemon=True).start()
wishes, echoes = [], []
for _ in range(int(sys.argv[1])):
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
print(json.dumps([wishes, echoes]))
"""


def wish(*, repeat: int = 100) -> list[Row]:
    """How long a wish of a running application takes that is refused: through agent, TLS channel, service and journal.

    A malleable job of one process has all there is of a local cluster and asks for one more processor again and again.
    Each wish is a negotiation of one round: from the application over the Unix socket of its agent, over the agent's
    TLS channel to the control center, into the journal and the scheduler, and back. The baseline, in turns in the same
    process, is a Python echo of as many bytes by a Unix socket.
    """
    with koala.local_site(["alpha"], processors=1) as site, tempfile.TemporaryDirectory() as name:
        program = Path(name, "wishes.py")
        program.write_text(WISHES)
        text = (
            'kind = "malleable"\nrunner = "adaptive"\nwalltime = 600\n[[components]]\nminimum = 1\nmaximum = 4\n'
            f"command = {json.dumps(['python3', program.name, str(repeat)])}\n"
            f"input_files = [{json.dumps(str(program))}]\n"
        )
        path = Path(name, "wishes.toml")
        path.write_text(text)
        result = site.submit(path).result(timeout=300)
        result.check()
        wishes, echoes = json.loads(result.output("c1", 0).splitlines()[-1])
    middle, echo = statistics.median(wishes), statistics.median(echoes)
    return [
        {"wish, ms": 1000 * middle, "most, ms": 1000 * max(wishes), "echo, ms": 1000 * echo, "ratio": middle / echo}
    ]


# -- Adaptation points ---------------------------------------------------------------------------------------
# The process is a member of a program, its thread is connected with koala's end, which says nothing, as nearly always.

GOALS = {"Python": 5000.0, "C": 1000.0}
"""Nanoseconds."""
PYTHON = r"""
import sys, time
sys.path.insert(0, sys.argv[1])
import koala_app
def empty():
    return None
def measured(call, count):
    begin = time.perf_counter_ns()
    for _ in range(count):
        call()
    return (time.perf_counter_ns() - begin) / count
app = koala_app.join()
for _ in range(int(sys.argv[2])):
    print(measured(empty, int(sys.argv[3])), measured(app.point, int(sys.argv[3])))
assert app.reached == int(sys.argv[2]) * int(sys.argv[3])
app.close()
"""
C = r"""
#include <koala_app.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}
__attribute__((noinline)) static int empty(koala_app *app, const koala_app_change **change) {
    __asm__ volatile("" : : "r"(app), "r"(change) : "memory");
    return 0;
}
static double measured(int (*call)(koala_app *, const koala_app_change **), koala_app *app, long count) {
    const koala_app_change *change;
    double begin = now();
    for (long i = 0; i < count; i++) call(app, &change);
    return (now() - begin) / count;
}
int main(int count, char **words) {
    koala_app *app = koala_app_join("any", NULL, NULL, "");
    if (!app || count != 4) return 1;
    for (long i = 0; i < atol(words[2]); i++) {
        double least = measured(empty, app, atol(words[3]));
        printf("%f %f\n", least, measured(koala_app_point, app, atol(words[3])));
    }
    koala_app_close(app);
    return 0;
}
"""


def points(*, repeat: int = 15, calls: int = 1_000_000) -> list[Row]:
    """What an adaptation point costs at which nothing is asked, in Python and in C (where there is a compiler).

    Nanoseconds for each call, beside the call of an empty function: the median of all repetitions and, on a machine
    that does other work too, the least.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        install(directory)
        (directory / "points.py").write_text(PYTHON, encoding="utf-8")
        rows = [told_by("Python", [sys.executable, str(directory / "points.py")], directory, repeat, calls)]
        if compiler := shutil.which("cc"):
            (directory / "points.c").write_text(C, encoding="utf-8")
            program = str(directory / "points")
            sources = [str(directory / file) for file in ("points.c", "koala_app.c", "koala_nt.c")]
            subprocess.run([compiler, "-O2", "-pthread", "-I", name, "-o", program, *sources], check=True)
            rows.append(told_by("C", [program], directory, repeat, 10 * calls))
    return rows


@contextmanager
def koala_end(path: Path) -> Iterator[None]:
    """Accept a connection as an agent does: the process that joins becomes a member, and gets no further message."""
    welcome = frame(note_payload("welcome", rank=0, size=1, members="0@alpha@node@", minimum=1, maximum=9))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            stream, _ = listening.accept()
            with stream:
                stream.sendall(welcome)
                while stream.recv(65536):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join()


def told_by(language: str, command: list[str], directory: Path, repeat: int, calls: int) -> Row:
    """Return what a program finds out about itself."""
    path = directory / f"{language}.socket"
    environment = {"PATH": os.environ["PATH"], "KOALA_APP_SOCKET": str(path)}
    with koala_end(path):
        words = [*command, str(directory), str(repeat), str(calls)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    empty, point = zip(*(map(float, line.split()) for line in done.stdout.splitlines()), strict=True)
    return {
        "ns": language,
        "empty function": statistics.median(empty),
        "least": min(empty),
        "point": statistics.median(point),
        "its least": min(point),
        "goal": GOALS[language],
    }


if __name__ == "__main__":
    main(wish, points)
