# SPDX-License-Identifier: Apache-2.0
"""N bodies by a program that asks for processors when it needs more: after a third of its steps.

    python3 evolving.py [BODIES [STEPS [REST [MORE]]]]

It stops, asks for MORE, is granted all of them or what is idle, waits until its new processes are there, deals its
bodies out anew, and goes on. NBODY_LIBRARY=byhand: it speaks with koala itself, by sockets and XML, instead of using
koala's library.
"""

from __future__ import annotations

import importlib
import os
import time

from mail import Mail
from simulation import Simulation, numbers_given

koala = importlib.import_module(os.environ.get("NBODY_LIBRARY", "koala_app"))
LONGEST_WAIT = 60.0
"""Seconds for processors that were granted; then it goes on without."""
PAUSE = 0.02
"""Seconds between two points while it waits."""


def main(total: int, steps: int, rest: float, more: int) -> None:
    """Compute so many steps."""
    mail = Mail()
    app = koala.join(contact=mail.port)
    simulation = Simulation(mail, total, rest)
    change, until, asked = app.change, 0.0, False
    if change is None:
        simulation.begin(app.members, app.rank)
    while change is not None or simulation.step < steps:
        if change is None and app.rank == 0 and not asked and simulation.step == steps // 3:
            asked, until = True, ask(app, more)
        if change is None:
            change = app.point()
        if change is not None:
            simulation.redistribute(change)
            app.done()
            if change.rank is None:  # this process was taken out
                app.leave()
                return
            change, until = None, 0.0
        if simulation.agreed(app.members, app.rank, word=time.monotonic() < until):
            time.sleep(PAUSE)  # the processors are on their way
        else:
            simulation.next_step(app.members, app.rank)
    simulation.end(app.members, app.rank)
    app.close()


def ask(app: koala.App, more: int) -> float:
    """Ask for processors, and return until when it is worth while to wait for them."""
    answer = app.request(more)
    print(f"asked for {more}, granted {answer.granted}" + (f" ({answer.reason})" if answer.reason else ""), flush=True)
    return time.monotonic() + LONGEST_WAIT if answer.granted else 0.0


if __name__ == "__main__":
    number, last, pause, wanted = numbers_given(64, 300, 0.05, 2)
    main(int(number), int(last), pause, int(wanted))
