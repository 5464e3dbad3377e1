# SPDX-License-Identifier: Apache-2.0
"""Scenarios in which a live application negotiates its size, and what came of them. Who plays them comes from outside.

The experiments of Ghafoor et al. on eight processors (Ghafoor 2005).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from koala_adapter.scheduler.malleable.approaches import Approach

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = 8
"""Processors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One application, and what runs beside it."""

    name: str
    title: str
    approach: Approach
    """NONE: only the application begins negotiations."""
    initial: int
    maximum: int
    goal: int
    """Processors on which it is to end."""
    wish: int = 0
    """It asks for so many more after a third of its steps; 0: it does not ask."""
    sizes: str = "any"
    """On how many processes the program can run."""
    beside: tuple[int, ...] = ()
    """Processors of the rigid jobs beside it; one alone ends by itself, several end one after the other."""


EVOLVING = Scenario(
    name="asks-for-2",
    title="An evolving application on 2 asks for 2 more",
    approach=Approach.NONE,
    initial=2,
    maximum=16,
    goal=4,
    wish=2,
)
COUNTERED = Scenario(
    name="asks-for-14",
    title="An evolving application on 2 asks for 14 more, and 6 are idle",
    approach=Approach.NONE,
    initial=2,
    maximum=16,
    goal=8,
    wish=14,
)
MALLEABLE = Scenario(
    name="is-offered-4",
    title="A malleable application on 4 beside a rigid one on 4, which ends",
    approach=Approach.PRA,
    initial=4,
    maximum=8,
    goal=8,
    sizes="power-of-two",
    beside=(4,),
)
DECLINING = Scenario(
    name="declines-1-to-3",
    title="A malleable application on 4 beside four rigid ones on 1, which end one after the other",
    approach=Approach.PRA,
    initial=4,
    maximum=8,
    goal=8,
    sizes="power-of-two",
    beside=(1, 1, 1, 1),
)
SCENARIOS = (EVOLVING, COUNTERED, MALLEABLE, DECLINING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a scenario takes."""

    steps: int = 30
    work: float = 0.8
    """Seconds that a step takes on one processor."""
    rest: float = 6.0
    """Seconds that a rigid job runs which ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of a negotiation."""

    negotiation: int
    at: float
    """Seconds from the beginning of the scenario."""
    sender: str
    status: str
    processors: int
    reason: str
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a scenario; all times in seconds from its beginning."""

    scenario: Scenario
    sizes: Sequence[tuple[float, int]]
    """From when on the application had how many processors; 0 at its end."""
    beside: Sequence[tuple[int, float, float]]
    """Of each rigid job its processors, when it began and when it ended."""
    steps: Sequence[tuple[float, int]]
    """When each step was done, and on how many processes."""
    resized: Sequence[float]
    """When the application went on after a change."""
    messages: Sequence[Said]

    def rate(self, size: int) -> float | None:
        """Return the steps per second on so many processes, changes of size left out; None: there were not two."""
        pairs = [
            after - before
            for (before, earlier), (after, later) in pairwise(self.steps)
            if earlier == later == size and not any(before < at <= after for at in self.resized)
        ]
        return len(pairs) / sum(pairs) if pairs else None

    @property
    def course(self) -> list[int]:
        """Return the sizes that it had, one after the other."""
        return [size for _, size in self.sizes if size]

    def said(self, status: str, sender: str) -> list[int]:
        """Return of how many processors one side said something, in order."""
        return [one.processors for one in self.messages if (one.status, one.sender) == (status, sender)]


class PlaysScenarios(Protocol):
    """Plays scenarios on live clusters."""

    def __call__(self, scenario: Scenario, pace: Pace, site: str, /) -> Played:
        """Play one; ``site``: path of the site file with the clusters, empty: local ones. Raises KoalaError."""
