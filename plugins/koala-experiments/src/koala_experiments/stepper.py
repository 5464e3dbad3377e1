# SPDX-License-Identifier: Apache-2.0
"""A process of an adaptive program whose steps take the less time the more processes it has: it sleeps its share.

python3 stepper.py STEPS WORK SIZES WISH GOAL MOST [GATE]

WORK: seconds that a step takes on one process. SIZES: on how many processes it can run, as koala_app.join has it.
WISH: so many more it asks for after a third of its steps; 0: none. It ends when its steps are done and a third of them
was done on GOAL processes; without that, after MOST steps. GATE: a file; it asks for nothing before that is there. The
process of rank 0 prints what it asked for, and each
step, with the time.

It is sent to the nodes as an input file, and needs koala_app.py, which koala brings along.
"""

import json
import sys
import time
from pathlib import Path

import koala_app  # type: ignore[import-not-found] # it is there where this runs


def compute(app: koala_app.App, steps: int, work: float, wish: int, goal: int, most: int, gates: list[Path]) -> None:  # noqa: PLR0917 - its command line
    """Compute in one process of the program until it leaves or the program ends."""
    if app.change is not None:
        app.done()
    since, wishes = app.reached, wish > 0 and app.rank == 0
    tell(app, "begins", app.reached, app.size)
    while not over(app, steps, since, goal, most):
        if wishes and app.reached >= steps // 3 and all(gate.exists() for gate in gates):
            wishes = False
            answer = app.request(wish)
            tell(app, "asks", wish, answer.granted, answer.reason)
        size = app.size
        time.sleep(work / size)
        change = app.point()
        tell(app, "step", app.reached, size)
        if change is not None:
            app.done()
            if change.rank is None:
                app.leave()
                return
            since = app.reached
            tell(app, "resized", app.reached, app.size)
    app.close()


def over(app: koala_app.App, steps: int, since: int, goal: int, most: int) -> bool:
    """Return whether the program is done; all processes get the same answer. ``since``: steps at the last change."""
    at_goal = app.size == goal and app.reached - since >= steps // 3
    return bool(app.reached >= (steps if at_goal else most))


def tell(app: koala_app.App, *what: object) -> None:
    """Print an event."""
    if app.rank == 0:
        print(json.dumps([time.time(), *what]), flush=True)  # noqa: T201 - its output is what it is run for


if __name__ == "__main__":
    steps, wish, goal, most = (int(one) for one in (sys.argv[1], *sys.argv[4:7]))
    gates = [Path(one) for one in sys.argv[7:]]
    compute(koala_app.join(sizes=sys.argv[3]), steps, float(sys.argv[2]), wish, goal, most, gates)
