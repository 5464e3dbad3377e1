# SPDX-License-Identifier: Apache-2.0
"""One process' part in the simulation: its bodies, and what it exchanges with the others; rigid.py runs it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import bodies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mail import Mail


class Simulation:
    """The bodies of one process, and how far they are."""

    def __init__(self, mail: Mail, total: int, rest: float) -> None:
        """``total`` bodies in all processes; ``rest``: seconds after each step, so that a small example takes time."""
        self.step = 0
        self._mail = mail
        self._total = total
        self._rest = rest
        self._part: list[float] = []
        self._turn = 0

    def begin(self, members: Sequence[Any], rank: int) -> None:
        """Take part from the beginning on."""
        self._part = bodies.begin(bodies.part_of(self._total, rank, len(members)))
        self._tell_size(len(members), rank)

    def next_step(self, members: Sequence[Any], rank: int) -> None:
        """Move our bodies by one step, together with the others."""
        bodies.drift(self._part)
        mine = bodies.seen(self._part)
        everything: list[float] = []
        for other, member in enumerate(members):
            if other != rank:
                self._mail.send(member, f"step {self.step} of {rank}", mine)
        for other in range(len(members)):
            everything += mine if other == rank else self._mail.receive(f"step {self.step} of {other}")
        bodies.kick(self._part, everything)
        bodies.drift(self._part)
        self.step += 1
        time.sleep(self._rest)

    def agreed(self, members: Sequence[Any], rank: int, *, word: bool) -> bool:
        """Return in all processes what the first one says."""
        self._turn += 1
        subject = f"turn {self._turn}"
        if rank:
            return bool(self._mail.receive(subject)[0])
        for member in members[1:]:
            self._mail.send(member, subject, [float(word)])
        return word

    def redistribute(self, change: Any) -> None:  # noqa: ANN401 - a Change of the library, or one made by hand
        """Send what others get of our bodies, and take what we get: as bodies, and how far they are."""
        if change.old_rank is not None:
            mine = bodies.part_of(self._total, change.old_rank, len(change.old))
            for rank, member in enumerate(change.members):
                its = _common(mine, bodies.part_of(self._total, rank, change.size))
                begin, end = ((body - mine.start) * bodies.WIDTH for body in (its.start, its.stop))
                count = [float(self.step), float(self._turn)]
                self._mail.send(member, f"change {change.number} from {change.old_rank}", count + self._part[begin:end])
        self._part = []
        if change.rank is None:
            return
        for rank in range(len(change.old)):
            step, turn, *numbers = self._mail.receive(f"change {change.number} from {rank}")
            self.step, self._turn = int(step), int(turn)
            self._part += numbers
        self._tell_size(change.size, change.rank)

    def end(self, members: Sequence[Any], rank: int) -> None:
        """Print the digest of all bodies, in the first process."""
        if rank:
            self._mail.send(members[0], f"end of {rank}", self._part)
            return
        everything = list(self._part)
        for other in range(1, len(members)):
            everything += self._mail.receive(f"end of {other}")
        print(f"step {self.step}: SHA-256 {bodies.digest(everything)}", flush=True)

    def _tell_size(self, size: int, rank: int) -> None:
        if rank == 0:
            print(f"step {self.step}: {size} processes at {time.time():.3f}", flush=True)


def _common(one: range, other: range) -> range:
    begin = max(one.start, other.start)
    return range(begin, max(begin, min(one.stop, other.stop)))


def numbers_given(*defaults: float) -> list[float]:
    """Return what stands on the command line, as numbers, and the defaults of what does not."""
    given = [float(word) for word in sys.argv[1:]]
    return given + list(defaults[len(given) :])
