# SPDX-License-Identifier: Apache-2.0
"""N bodies on as many processes as koala has processors for: it is offered more, or asked for some back.

    python3 malleable.py [BODIES [STEPS [REST]]]

NBODY_SIZES=power-of-two in its environment: it takes an offer only as far as the number of its processes stays a power
of two. NBODY_LIBRARY=byhand: it speaks with koala itself, by sockets and XML, instead of using koala's library. In both
cases a thread of its own negotiates while the program computes, which looks at each step whether something was settled.
"""

from __future__ import annotations

import importlib
import os

from mail import Mail
from simulation import Simulation, numbers_given

koala = importlib.import_module(os.environ.get("NBODY_LIBRARY", "koala_app"))


def main(total: int, steps: int, rest: float) -> None:
    """Compute so many steps."""
    mail = Mail()
    app = koala.join(sizes=os.environ.get("NBODY_SIZES", "any"), contact=mail.port)
    simulation = Simulation(mail, total, rest)
    change = app.change  # that of a process that starts later
    if change is None:
        simulation.begin(app.members, app.rank)
    while change is not None or simulation.step < steps:
        if change is None:
            change = app.point()
        if change is not None:
            simulation.redistribute(change)
            app.done()
            if change.rank is None:  # this process was taken out
                app.leave()
                return
            change = None
        simulation.next_step(app.members, app.rank)
    simulation.end(app.members, app.rank)
    app.close()


if __name__ == "__main__":
    number, last, pause = numbers_given(64, 300, 0.05)
    main(int(number), int(last), pause)
