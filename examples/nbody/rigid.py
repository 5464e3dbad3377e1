# SPDX-License-Identifier: Apache-2.0
"""N bodies on a fixed number of processes.

    python3 rigid.py [BODIES [STEPS [REST [PORT]]]]

REST: seconds after each step, so that a small example takes its time. PORT: where the first process listens for the
others; another number for each job of this kind on a node. Printed are, at the end, SHA-256 of all bodies: the same for
any number of processes, and for malleable.py and evolving.py, whatever changes they have seen.
"""

from __future__ import annotations

import os

from mail import Mail
from simulation import Simulation, numbers_given


def main(total: int, steps: int, rest: float, port: int) -> None:
    """Compute so many steps."""
    rank, size = int(os.environ.get("KOALA_RANK", "0")), int(os.environ.get("KOALA_SIZE", "1"))
    addresses = os.environ.get("KOALA_ADDRESSES", "127.0.0.1").split(",")[:size]
    mail = Mail(0 if rank or size == 1 else port)
    members = mail.meet(rank, addresses, port)
    simulation = Simulation(mail, total, rest)
    simulation.begin(members, rank)
    while simulation.step < steps:
        simulation.next_step(members, rank)
    simulation.end(members, rank)


if __name__ == "__main__":
    number, last, pause, place = numbers_given(64, 300, 0.05, 28790)
    main(int(number), int(last), pause, int(place))
