# SPDX-License-Identifier: Apache-2.0
"""The order of one cluster's queue: a weighted sum of queue time, size and user share, as Maui and Slurm have it.

The time in the queue grows equally fast for all that wait, so it never changes who is before whom: a job's *rank* is
therefore fixed when it is submitted, and only the share of its user, where that has a weight, is added at each pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HALF_LIFE = 86_400.0
"""Seconds in which what a user has used counts half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityWeights:
    """What a job's priority is made of; the job with the higher sum goes first, among equals the earlier submitted.

    The default is the order of arrival. A negative weight turns a term round: ``processors=-1`` favours small jobs.
    """

    queue_time: float = 1.0
    """Points for each second since the submission."""
    processors: float = 0.0
    """Points for each processor that the job asks for."""
    share: float = 0.0
    """Points that a user loses who has used all that was used lately; who used a quarter loses a quarter of them."""
    half_life: float = HALF_LIFE
    """Seconds in which past use counts half; used only with ``share``."""

    def __post_init__(self) -> None:
        """Refuse a half-life that is none."""
        if not self.half_life > 0:
            msg = f"the half-life of past use must be above 0 s, not {self.half_life:g}"
            raise ValueError(msg)


ARRIVAL = PriorityWeights()
"""Who was submitted first goes first."""


class UserShares:
    """What part of all recent use each user has had; use fades with a half-life.

    Use is processors held times seconds, added up continuously while jobs run, so running jobs count as well.
    """

    __slots__ = ("_decay", "_held", "_used", "_when")

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._decay = log(2) / half_life
        self._held: dict[str, int] = {}
        self._used: dict[str, float] = {}
        self._when = 0.0

    def hold(self, user: str, processors: int, now: float) -> None:
        """Count processors that a user holds from now on; a negative number gives them back."""
        self._advance(now)
        self._held[user] = self._held.get(user, 0) + processors
        self._used.setdefault(user, 0.0)

    def shares(self, now: float) -> Mapping[str, float]:
        """Return each known user's part of the recent use, from 0 to 1; users not named have had none."""
        self._advance(now)
        total = sum(self._used.values())
        return {user: used / total for user, used in self._used.items()} if total > 0 else {}

    def _advance(self, now: float) -> None:
        """Let what was used fade until now, and add what was held meanwhile."""
        passed = now - self._when
        if passed <= 0:
            return
        left = exp(-self._decay * passed)
        gained = (1 - left) / self._decay
        for user, used in self._used.items():
            self._used[user] = used * left + self._held[user] * gained
        self._when = now
