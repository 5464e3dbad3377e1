# SPDX-License-Identifier: Apache-2.0
"""Bodies that attract each other, of which each process moves a part. Nothing here knows of processors.

The force on a body is summed over the others in their order, so the result is the same to the last bit for any number
of processes. It is also that of the MPI program in ../malleable/nbody: the same bodies, the same steps.
"""

from __future__ import annotations

import hashlib
import math
from array import array

WIDTH = 7
"""Numbers of a body: three of its position, three of its velocity, and its mass."""
SEEN = 4
"""Numbers of a body that the others need: position and mass."""
SOFTENING = 1e-4
"""Square of the distance below which the attraction grows no more."""
STEP = 1e-3
"""Time of a step."""
_MASK = (1 << 64) - 1


def part_of(bodies: int, rank: int, size: int) -> range:
    """Return which bodies a process has."""
    return range(bodies * rank // size, bodies * (rank + 1) // size)


def begin(part: range) -> list[float]:
    """Return bodies as they are at the beginning, for whatever process."""
    numbers: list[float] = []
    for body in part:
        numbers += [2 * _noise(8 * body + axis) - 1 for axis in range(3)]
        numbers += [0.1 * (_noise(8 * body + 3 + axis) - 0.5) for axis in range(3)]
        numbers.append(0.001 * (0.5 + _noise(8 * body + 6)))
    return numbers


def _noise(key: int) -> float:
    """Return a number from [0, 1) that depends on the key alone: finalizer of SplitMix64 (Steele and others 2014)."""
    key = (key + 0x9E3779B97F4A7C15) & _MASK
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) & _MASK
    return ((key ^ key >> 31) >> 11) * 2.0**-53


def drift(part: list[float]) -> None:
    """Move bodies for half a step."""
    half = STEP / 2
    for first in range(0, len(part), WIDTH):
        for axis in range(first, first + 3):
            part[axis] += half * part[axis + 3]


def seen(part: list[float]) -> list[float]:
    """Return what the others need of bodies."""
    return [number for first in range(0, len(part), WIDTH) for number in (*part[first : first + 3], part[first + 6])]


def kick(part: list[float], everything: list[float]) -> None:
    """Change the velocities of bodies by the attraction of all; a body attracts itself by 0."""
    others = [tuple(everything[first : first + SEEN]) for first in range(0, len(everything), SEEN)]
    sqrt = math.sqrt
    for first in range(0, len(part), WIDTH):
        x, y, z = part[first : first + 3]
        sum_x = sum_y = sum_z = 0.0
        for its_x, its_y, its_z, mass in others:
            way_x, way_y, way_z = its_x - x, its_y - y, its_z - z
            square = way_x * way_x + way_y * way_y + way_z * way_z + SOFTENING
            pull = mass / (square * sqrt(square))
            sum_x += pull * way_x
            sum_y += pull * way_y
            sum_z += pull * way_z
        part[first + 3] += STEP * sum_x
        part[first + 4] += STEP * sum_y
        part[first + 5] += STEP * sum_z


def digest(everything: list[float]) -> str:
    """Return SHA-256 of all bodies, on a machine whose numbers are little-endian."""
    return hashlib.sha256(array("d", everything).tobytes()).hexdigest()
