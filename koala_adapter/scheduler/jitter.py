# SPDX-License-Identifier: Apache-2.0
"""Deterministic jitter of life cycles and back-offs, so that two jobs in a deadlock do not give up at the same time.

Two co-allocators that each hold what the other needs know nothing of each other (Xing 2009). Both assume a
deadlock, and one of them must give its part back early enough for the other to get it before its own time is over: the
batch system has to see the end, start what waits, and the agent there has to report. So lives are whole gaps of that
length apart, as are the slots in which stations on a shared wire try again. Two that drew the same gap have drawn
others after the next setback.

Nothing here is random: the same history gives the same number, or a replay would decide differently.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from koala_adapter.scheduler.parameters import Parameters
    from koala_adapter.scheduler.records import JobRecord

SHORTEST_PAUSE = 1.0
"""Seconds between two looks at the same thing, at least: a setting of 0 must not make the scheduler spin."""
SHORTEST_GAP, LONGEST_GAP = 5.0, 60.0
"""Seconds between two lives: a batch system hands on what was given back within this."""
LONGEST_SPREAD = 240.0
"""Seconds between the shortest and the longest life, at most."""
FEWEST_LIVES = 3
"""Different lives, at least: two that drew the same have others with two chances in three."""
LONGEST_GRACE = 30.0
"""Seconds that are added to a life whose missing placeholders begin to start, at most."""


def life(record: JobRecord, parameters: Parameters) -> float:
    """Return the seconds for which the first held placeholders of a claim wait for the missing ones."""
    if not parameters.out_of_step:
        return parameters.placeholder_life * (1 - _checksum(record) / 5)
    longest = parameters.placeholder_life - grace(parameters)
    gap = min(max(longest / 4, min(SHORTEST_GAP, longest * 3 / 8)), LONGEST_GAP)
    lives = max(FEWEST_LIVES, 1 + int(min(longest / 2, LONGEST_SPREAD) / gap)) if gap > 0.0 else 1
    return longest - gap * int(_digest(record, parameters) * lives)


def grace(parameters: Parameters) -> float:
    """Return the seconds that are added once to a life when placeholders begin to start at its end."""
    return min(parameters.placeholder_life / 8, LONGEST_GRACE) if parameters.out_of_step else 0.0


def backoff(record: JobRecord, parameters: Parameters) -> float:
    """Return the seconds to pause after the latest setback: doubling, bounded, and out of step with others."""
    first, longest = parameters.backoff, parameters.longest_backoff
    doubled = first * 2.0 ** min(max(0, record.setbacks - 1), 30)
    if not parameters.out_of_step:
        return max(SHORTEST_PAUSE, min(longest, doubled * (1 + _checksum(record) / 4)))
    shortest = max(first, min(doubled, longest / 2))  # where the bound is reached they still differ
    return max(SHORTEST_PAUSE, min(longest, shortest * (1 + _digest(record, parameters))))


def _digest(record: JobRecord, parameters: Parameters) -> float:
    """Return a number in [0, 1) that differs between instances, jobs and tries.

    A CRC would not do: those of two instances differ by the same bits after every try.
    """
    digest = sha256(f"{parameters.instance}/{record.job.id}/{record.setbacks}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2.0**48


def _checksum(record: JobRecord) -> float:
    """Return a number in [0, 1) that differs between jobs and tries, but not between instances."""
    return crc32(f"{record.job.id}/{record.setbacks}".encode()) / 2.0**32
