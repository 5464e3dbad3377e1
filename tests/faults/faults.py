# SPDX-License-Identifier: Apache-2.0
"""What goes wrong, how often, and until when: drawn from a seed, so that every schedule can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from koala_adapter.driver.store import MemoryStore
from koala_adapter.errors import JournalBlockedError
from koala_adapter.policies.checked import CheckedMalleability, CheckedPlacement
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES, MalleabilityPolicy, MalleableJob
from koala_adapter.scheduler.placement.policies import FlexibleClusterMinimization
from koala_adapter.scheduler.placement.policy import Infeasible, Insufficient, Placed, PlacedComponent
from tests.unit.scheduler.scheduler_site import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.malleable.policies import J, RunningJobs, Step
    from koala_adapter.scheduler.placement.policy import ClusterView, ComponentRequest
    from koala_adapter.scheduler.records import BatchRecord, State


class SubmissionFate(Enum):
    """What becomes of one submission."""

    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN_IN = "unknown, but in"
    UNKNOWN_LATE = "unknown, in later"
    UNKNOWN_OUT = "unknown, not in"


@dataclass
class Faults:
    """Chances of single faults; all are 0 once the time of faults is over."""

    seed: int
    submission: float = 0.0
    """Of a submission whose outcome is unknown."""
    refusal: float = 0.0
    duplicate: float = 0.0
    """Of an event being told twice."""
    lie: float = 0.0
    """Of one listing being empty."""
    mute: float = 0.0
    """Of an agent that never reports."""
    slow: float = 0.0
    """Of a message that takes many seconds."""
    defect: float = 0.0
    """Of an event on which the scheduler fails."""
    kill: float = 0.0
    """Of a kill before, or after, a write of the journal."""
    stranger: float = 0.0
    """Of another user who submits an array with the name of one of ours that has just arrived."""

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        # Apart, because a stranger may change nothing of what happens to us.
        self._strange = random.Random(f"stranger/{self.seed}")
        self._doomed: dict[int, tuple[int, Event]] = {}
        """By identity: where the scheduler fails on an event; kept, so that no other gets its identity."""
        self.kill_at: int | None = None
        """Number of the one moment of the journal at which its owner is killed, beside those by chance."""

    @classmethod
    def drawn(cls, seed: int) -> Faults:
        """Return a schedule in which some kinds of fault occur and others do not."""
        chance = random.Random(-seed - 1)

        more = random.Random(f"defects and kills/{seed}")

        def some(most: float) -> float:
            return chance.choice([0.0, most / 3, most])

        return cls(
            seed=seed,
            submission=some(0.4),
            refusal=some(0.05),
            duplicate=some(0.3),
            lie=some(0.1),
            mute=some(0.15),
            slow=some(0.1),
            defect=more.choice([0.0, 0.0, 0.003, 0.02]),
            kill=more.choice([0.0, 0.0, 0.0005, 0.004]),
            stranger=random.Random(f"strangers/{seed}").choice([0.0, 0.5]),
        )

    def stop(self) -> None:
        self.submission = self.refusal = self.duplicate = self.lie = self.mute = self.slow = self.stranger = 0.0
        self.defect = self.kill = 0.0

    def hit(self, probability: float) -> bool:
        return probability > 0 and self.chance.random() < probability

    def strikes(self, moment: int) -> bool:
        """Tell whether the service is killed at a moment of its journal."""
        return moment == self.kill_at or self.hit(self.kill)

    def doom(self, event: Event) -> None:
        """Have the scheduler fail on an event, perhaps: now and whenever it is replayed."""
        if self.hit(self.defect):
            self._doomed[id(event)] = self.chance.randrange(3), event

    def _fails(self, event: Event, where: int) -> bool:
        return id(event) in self._doomed and self._doomed[id(event)][0] == where

    def fails_before(self, event: Event) -> bool:
        return self._fails(event, 0)

    def fails_within(self, event: Event) -> bool:
        return self._fails(event, 1)

    def fails_after(self, event: Event) -> bool:
        return self._fails(event, 2)

    def imitated(self) -> bool:
        """Tell whether another user gives an array the name of one of ours."""
        return self.stranger > 0 and self._strange.random() < self.stranger

    def delay(self) -> float:
        return self.chance.uniform(1.0, 30.0) if self.hit(self.slow) else self.chance.uniform(0.01, 0.5)

    def fate(self) -> SubmissionFate:
        if self.hit(self.refusal):
            return SubmissionFate.REFUSED
        if self.hit(self.submission):
            return self.chance.choice(
                [SubmissionFate.UNKNOWN_IN, SubmissionFate.UNKNOWN_LATE, SubmissionFate.UNKNOWN_OUT]
            )
        return SubmissionFate.TAKEN


# -- A journal whose owner can be killed at each of its writes, and that can be full.


GROUPS = 3
"""Pauses in the writing of a snapshot."""


class Killed(BaseException):
    """The process that wrote to the journal is gone."""


class FaultyStore(MemoryStore):
    """Keeps all events beside the snapshots, so that a recovery from either can be compared."""

    def __init__(self, strikes: Callable[[int], bool]) -> None:
        """``strikes``: whether the writer is killed at this moment: before or after each write, numbered from 0."""
        super().__init__()
        self.full = False
        self.moments = 0
        self.killed_within = False
        """Its owner was killed when an event was written that he had not taken in yet."""
        self.snapshots: list[tuple[int, State]] = []
        self._strikes = strikes

    def _moment(self) -> None:
        self.moments += 1
        if self._strikes(self.moments - 1):
            self.killed_within = True
            raise Killed

    def _write(self) -> None:
        if self.full:
            raise JournalBlockedError("no space left")

    def append(self, event: Event) -> int:
        self._write()
        self._moment()
        number = super().append(event)
        self._moment()
        return number

    def note_batch(self, batch: BatchRecord) -> None:
        self._write()
        self._moment()
        super().note_batch(batch)
        self._moment()

    def probe(self) -> None:
        self._write()

    def sync(self) -> None:
        self._write()
        self._moment()

    def snapshot_in_groups(self, state: State, number: int) -> Generator[None, None, None]:
        begun = copied(state)
        for _ in range(GROUPS):
            self._write()
            self._moment()
            yield
        assert state == begun, "the state has changed while a snapshot of it was being written"
        self.snapshots.append((number, begun))

    def set_aside(self, number: int, event: Event, failure: str) -> None:
        assert "InjectedError: " in failure, f"a defect that is nobody's fault but ours: {failure}"
        self._write()
        self._moment()
        super().set_aside(number, event, failure)
        self._moment()

    def recover(self) -> tuple[State | None, Generator[tuple[int, Event], None, None]]:
        after, state = self.snapshots[-1] if self.snapshots else (0, None)
        numbered = enumerate(list(self.events), start=1)
        events = ((number, event) for number, event in numbered if number > after and number not in self.left_out)
        return None if state is None else copied(state), events


# -- Policies of a site that answer anything.
# Pure, as all are: the same question has the same answer, or a replay would differ.


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
        placement={**OWN.placement, STRANGE: CheckedPlacement(StrangePlacement(seed), "policy 'placement.strange'")},
        malleability={
            **OWN.malleability,
            STRANGE: CheckedMalleability(StrangeMalleability(seed), "policy 'malleability.strange'"),
        },
    )
