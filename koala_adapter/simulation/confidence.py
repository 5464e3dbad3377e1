# SPDX-License-Identifier: Apache-2.0
"""Means with confidence intervals over repetitions, by Student's t: few repetitions give wide intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom (any table); beyond, the normal one is near.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over repetitions and how far it can be trusted."""

    mean: float
    half_width: float
    """Half of the 95 % confidence interval; 0 with a single repetition, which tells nothing of its spread."""
    repetitions: int

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.mean + self.half_width


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent repetitions with its 95 % confidence interval. Raises ValueError for none."""
    if not values:
        message = "a mean needs at least one value"
        raise ValueError(message)
    count = len(values)
    if count == 1:
        return Estimate(values[0], 0.0, 1)
    quantile = T_95[count - 2] if count - 1 <= len(T_95) else NORMAL_95
    return Estimate(fmean(values), quantile * stdev(values) / math.sqrt(count), count)


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return ``first - second`` of pairs that share a seed: what both have in common cancels out."""
    return estimate([a - b for a, b in zip(first, second, strict=True)])
