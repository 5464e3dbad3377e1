# SPDX-License-Identifier: Apache-2.0
"""The schedulers that the deadline experiment compares, and what came out of simulating them (Takefusa 2001)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from koala_adapter.simulation.bricks import (
    Bricks,
    CallParameters,
    GridParameters,
    Monitors,
    SchedulerParameters,
    failure_rate,
    make_calls,
    make_grid,
    mean_cost,
)
from koala_adapter.simulation.deadline_policies import P_LOAD, Deadline, Greedy

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE = 60.0
LOADS = {"high": 60 * MINUTE, "medium": 90 * MINUTE, "low": 120 * MINUTE}
"""Mean seconds between two calls of a client."""
OPTS = (0.5, 0.6, 0.7, 0.8, 0.9)
POLICIES: tuple[float | None, ...] = (None, *OPTS)
"""Opt of each policy that is compared; None stands for greedy."""
FALLBACKS = (0, 1, 2, 3, 4, 5)
Correction: TypeAlias = Literal["none", "shared", "own"]
"""Load correction: none, by one scheduler that knows all calls, or by one for each client that knows its own."""


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """A scheduler that is compared."""

    opt: float | None
    fallbacks: int = 0
    correction: Correction = "none"

    @property
    def parameters(self) -> SchedulerParameters:
        """The same for the simulator."""
        return SchedulerParameters(
            choice=Greedy() if self.opt is None else Deadline(self.opt),
            p_load=0.0 if self.correction == "none" else P_LOAD,
            maximum_fallbacks=self.fallbacks,
            shared=self.correction != "own",
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    load: str
    seed: int
    variant: Variant
    deadline_factor: tuple[float, float]
    monitor_interval: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is looked at."""

    failure_rate: float
    cost: float
    calls: int


VARIANTS = (
    *(Variant(opt, fallbacks) for opt in POLICIES for fallbacks in FALLBACKS),
    *(Variant(opt, 0, correction) for opt in POLICIES for correction in ("shared", "own")),
)


def simulate(case: Case) -> Outcome:
    """Run one simulation."""
    grid_parameters = GridParameters()
    grid = make_grid(case.seed, grid_parameters)
    calls = make_calls(case.seed, grid, CallParameters(interval=LOADS[case.load], deadline_factor=case.deadline_factor))
    monitors = Monitors(interval=case.monitor_interval)
    records = Bricks(case.seed, grid, case.variant.parameters, grid_parameters.others, monitors).run(calls)
    return Outcome(failure_rate(records), mean_cost(records), len(records))


class Outcomes:
    """All outcomes by load and variant, each a list over the seeds."""

    def __init__(self, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> None:
        """Sort them in; both sequences go together."""
        self._found: dict[tuple[str, Variant], list[Outcome]] = {}
        for case, outcome in zip(cases, outcomes, strict=True):
            self._found.setdefault((case.load, case.variant), []).append(outcome)

    def failures(self, load: str, variant: Variant) -> list[float]:
        """Return the failure rate for each seed."""
        return [one.failure_rate for one in self._found[load, variant]]

    def costs(self, load: str, variant: Variant) -> list[float]:
        """Return the mean cost for each seed."""
        return [one.cost for one in self._found[load, variant]]

    def calls(self, load: str) -> int:
        """Return the number of calls of all seeds together."""
        return sum(one.calls for one in self._found[load, Variant(None)])
