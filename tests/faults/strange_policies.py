# SPDX-License-Identifier: Apache-2.0
"""Policies that answer anything. Pure, as all are: the same question has the same answer, or a replay would differ."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koala_adapter.policies.checked import CheckedMalleability, CheckedPlacement
from koala_adapter.scheduler.knownpolicies import Policies
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES, MalleabilityPolicy, MalleableJob
from koala_adapter.scheduler.placement.policies import FlexibleClusterMinimization
from koala_adapter.scheduler.placement.policy import Infeasible, Insufficient, Placed, PlacedComponent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.malleable.policies import J, RunningJobs, Step
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest

STRANGE = "strange"
"""Name of the policies."""
SENSIBLE = 0.6
"""Share of the answers that are good ones."""
ANYTHING: tuple[Any, ...] = (
    None, 0, True, "x", {}, (), [], float("nan"), -1, 10**9, Insufficient(reason=""), Insufficient(reason="no"),
    Infeasible(reason="never"), Placed(components=()), Placed(components=None),  # type: ignore[arg-type]
)  # fmt: skip


class StrangePlacement(FlexibleClusterMinimization):
    """Places as another one does, but for what it changes, leaves out, makes up, or fails on."""

    name = STRANGE

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def place(self, requests: Sequence[ComponentRequest], views: Mapping[ClusterName, ClusterView]) -> Any:  # noqa: ANN401 - anything
        shown = [(one.name, one.room, one.available, one.closed) for one in views.values()]
        chance = random.Random(f"{self._seed}/{requests}/{shown}")
        good = super().place(requests, views)
        draw = chance.random()
        if draw < SENSIBLE:
            return good
        if draw < SENSIBLE + 0.1:
            raise ZeroDivisionError("boom")
        if draw < SENSIBLE + 0.2 or not isinstance(good, Placed):
            return chance.choice(ANYTHING)
        parts = list(good.components)
        at = chance.randrange(len(parts))
        parts[at : at + 1] = [_changed(parts[at], list(views), chance) for _ in range(chance.choice([0, 1, 1, 1, 2]))]
        return Placed(components=tuple(parts))


def _changed(part: PlacedComponent, clusters: list[ClusterName], chance: random.Random) -> PlacedComponent:
    field = chance.choice(["component", "cluster", "processors", "piece"])
    near: dict[str, list[Any]] = {
        "component": ["", "other"],
        "cluster": [*clusters, "nowhere"],
        "processors": [part.processors + 1, part.processors - 1, 0, part.processors * 100],
        "piece": [part.processors, 1, 0],
    }
    choices: list[Any] = [*near[field], chance.choice(ANYTHING)]
    return replace(part, **{field: chance.choice(choices)})


class StrangeMalleability(MalleabilityPolicy):
    """Asks whom another one asks, but for what it changes, leaves out, makes up, or fails on."""

    name = STRANGE

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self._seed = seed
        self._sensible = MALLEABILITY_POLICIES[chance.choice(sorted(MALLEABILITY_POLICIES))]
        self.rebalances = chance.random() < 0.5

    def messages(self, running: RunningJobs[J], step: Step) -> Any:  # noqa: ANN401 - anything
        shown = [(job.order, job.size, job.busy) for job in running]
        asked = (step.direction, step.remaining, step.rounds, step.last, sorted(step.unwilling))
        chance = random.Random(f"{self._seed}/{asked}/{shown}")
        good = self._sensible.messages(running, step)
        draw = chance.random()
        if draw < SENSIBLE:
            return good
        if draw < SENSIBLE + 0.1:
            raise ZeroDivisionError("boom")
        if draw < SENSIBLE + 0.2 or not good:
            return chance.choice([*ANYTHING, [chance.choice(ANYTHING)], [(chance.choice(ANYTHING), 1)]])
        job, amount = chance.choice(good)
        stranger = MalleableJob(minimum=1, maximum=9, size=3, started_at=1.0, number=77)
        amounts = [amount + 1, amount - 1, -amount, 0, 10**6, -(10**6), chance.choice(ANYTHING)]
        changed = (chance.choice([job, job, job, stranger]), chance.choice(amounts))
        return [changed] if chance.random() < 0.5 else [*good, changed]

    def _grow(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        raise NotImplementedError

    def _shrink(self, running: RunningJobs[J], step: Step) -> list[tuple[J, int]]:
        raise NotImplementedError


def strange_policies(seed: int) -> Policies:
    """Return policies called ``strange``, as a service has those of its site."""
    return Policies(
        placement={STRANGE: CheckedPlacement(StrangePlacement(seed), "policy 'placement.strange'")},
        malleability={STRANGE: CheckedMalleability(StrangeMalleability(seed), "policy 'malleability.strange'")},
    )
