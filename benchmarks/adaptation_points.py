# SPDX-License-Identifier: Apache-2.0
"""What an adaptation point costs at which nothing is asked: in Python and in C, beside the call of an empty function.

The process is a member of a program, its thread is connected with koala's end, which says nothing, as nearly always.
Nanoseconds for each call: the median of all repetitions and, on a machine that does other work too, the least.

    python benchmarks/adaptation_points.py [--repeat 15] [--calls 1000000] [--json]
"""

from __future__ import annotations

import argparse
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import cutoff
from koala_adapter.application.notes import note_payload
from koala_adapter.application.shipping import install
from koala_adapter.negotiation import frame

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Nanoseconds of one call."""

    language: str
    empty_median: float
    empty_least: float
    point_median: float
    point_least: float


@contextmanager
def koala_end(path: Path) -> Iterator[None]:
    """Listen as an agent does: make whoever joins a member, and say nothing more."""
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


def measure(language: str, command: list[str], directory: Path, repeat: int, calls: int) -> Cost:
    """Return what a program finds out about itself."""
    path = directory / f"{language}.socket"
    environment = {"PATH": os.environ["PATH"], "KOALA_APP_SOCKET": str(path)}
    with koala_end(path):
        words = [*command, str(directory), str(repeat), str(calls)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    empty, point = zip(*(map(float, line.split()) for line in done.stdout.splitlines()), strict=True)
    return Cost(
        language=language,
        empty_median=statistics.median(empty),
        empty_least=min(empty),
        point_median=statistics.median(point),
        point_least=min(point),
    )


def measurements(repeat: int, calls: int) -> Iterator[Cost]:
    """Yield what both languages cost; C where there is a compiler."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        install(directory)
        (directory / "points.py").write_text(PYTHON, encoding="utf-8")
        yield measure("Python", [sys.executable, str(directory / "points.py")], directory, repeat, calls)
        if compiler := shutil.which("cc"):
            (directory / "points.c").write_text(C, encoding="utf-8")
            program = str(directory / "points")
            sources = [str(directory / file) for file in ("points.c", "koala_app.c", "koala_nt.c")]
            subprocess.run([compiler, "-O2", "-pthread", "-I", name, "-o", program, *sources], check=True)
            yield measure("C", [program], directory, repeat, 10 * calls)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of an adaptation point at which nothing is asked.")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cutoff.begin()
    costs = list(measurements(options.repeat, options.calls))
    if options.json:
        print(json.dumps([asdict(one) for one in costs], indent=2))
        return
    print(f"{'ns':8}{'empty function':>26}{'point':>26}{'goal':>10}")
    for one in costs:
        empty = f"{one.empty_median:.1f} (least {one.empty_least:.1f})"
        point = f"{one.point_median:.1f} (least {one.point_least:.1f})"
        print(f"{one.language:8}{empty:>26}{point:>26}{GOALS[one.language]:>10.0f}")


if __name__ == "__main__":
    main()
