# SPDX-License-Identifier: Apache-2.0
"""Jobs of workers and adaptive jobs in a schedule of faults: how they are drawn, and what must hold at any moment."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from koala_adapter.model import Component, JobKind, Retirement, RunnerName
from koala_adapter.outcome import JobState
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.scheduler.timers import TimerKind
from koala_adapter.sizes import rule_named
from tests.unit.scheduler.scheduler_site import component

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.model import ClusterName, Component, Job, JobId, TaskEnd
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.scheduler.sizechange import Change


# -- Jobs of a head and workers.


def of_workers(one: Job, clusters: Sequence[ClusterName], *, seed: int) -> Job:
    """Return a job of a head, or of none, and one or two components of workers, in the place of another one."""
    chance = random.Random(f"workers/{seed}/{one.id}")
    parts = [
        component(f"head{number}", chance.choice([1, 1, 2]), cluster=chance.choice([None, *clusters]))
        for number in range(chance.choice([0, 1, 1, 1, 1, 2]))
    ]
    for number in range(chance.choice([1, 1, 2])):
        minimum = chance.randint(1, 3)
        maximum = minimum + chance.randint(1, 6)
        part = component(f"workers{number}", minimum, maximum, cluster=chance.choice([None, None, *clusters]))
        command = chance.choice([(), ("retire",)])
        part = replace(
            part,
            flexible=part.cluster is None and chance.random() < 0.8,
            initial=chance.choice([None, maximum]),
            sizes=chance.choice(["any", "any", "power-of-two", "multiple-of-2"]),
            retirement=Retirement(command=command, grace=chance.choice([0, 5, 15])),
        )
        parts.append(part)
    return replace(
        one, kind=JobKind.MALLEABLE, runner=RunnerName.WORKERS, components=tuple(parts), placement="worst-fit"
    )


class WorkerLaws:
    """What must hold for jobs of a head and workers, from one moment to the next."""

    def __init__(self) -> None:
        self._agreed: dict[tuple[JobId, str], set[int]] = {}
        """Numbers of the releases that components had agreed to when they were looked at last."""
        self._departed: dict[JobId, int] = {}

    def check(self, state: State) -> None:
        """Check what must hold now, and for what has changed since the last look."""
        for record in state.jobs.values():
            if record.job.runner is RunnerName.WORKERS and record.state is JobState.RUNNING:
                for part in record.job.components:
                    self._check_size(record, part)
                self._departed[record.job.id] = len(record.departed)
                _check_ahead(state, record)
                _check_places(state, record)

    def _check_size(self, record: JobRecord, part: Component) -> None:
        id_ = record.job.id
        claims = [claim for claim in record.claims if claim.component == part.name]
        size = record.size(part.name)
        changes = [change for change in record.changes.values() if change.component == part.name]
        if record.job.is_head(part.name):
            assert size == part.minimum, f"job {id_}: the head has another size"
            assert not changes, f"job {id_}: the head is to change"
            return
        more = sum(change.accepted for change in changes if change.phase is ChangePhase.GATHERING)
        more += sum(len(claim.places) for claim in claims)
        assert size + more <= part.maximum, f"job {id_}: beyond its maximum"
        one_at_a_time = part.takes_any_size or len(changes) <= 1
        assert one_at_a_time, f"job {id_}: {part.name} has a rule, and changes on several clusters"
        agreed = {one.number for one in changes if one.phase is ChangePhase.RELEASING}
        if agreed - self._agreed.get((id_, part.name), set()) and self._departed.get(id_) == len(record.departed):
            left = size - sum(one.accepted - one.done for one in changes if one.phase is ChangePhase.RELEASING)
            assert left >= part.minimum, f"job {id_}: koala takes {part.name} below its minimum"
            rule = rule_named(part.sizes)
            assert rule.largest(left) == left, f"job {id_}: {left} is no size of {part.name}"
        self._agreed[id_, part.name] = agreed


def _check_places(state: State, record: JobRecord) -> None:
    """Check that only what an owner wants, and nobody offers, is queued for."""
    places = sum(len(claim.places) for claim in record.claims)
    assert not places or state.parameters.approach is Approach.NONE, f"job {record.job.id}: queues in spite of policies"
    assert not places or record.sizes_wanted, f"job {record.job.id}: queues for what nobody wants"


def _check_ahead(state: State, record: JobRecord) -> None:
    """Check that a pause will be over, and that a job in which nothing runs has something ahead of it."""
    id_ = record.job.id
    assert not record.growth_rests or TimerKind.WORKERS in record.timers, f"job {id_}: rests for ever"
    if any(claim.processors for claim in record.claims):
        return
    may_grow = state.parameters.approach is not Approach.NONE or record.sizes_wanted
    assert may_grow or TimerKind.WORKERS in record.timers, f"job {id_}: nothing runs, and nothing ever will"


def check_outcome(record: JobRecord, ends: Mapping[tuple[str, int], TaskEnd]) -> None:
    """Check that a job ended by its head, or by its last worker, and not by any other."""
    outcome, job = record.outcome, record.job
    assert outcome is not None
    mine = {rank.rank: ends.get((job.id, rank.rank)) for rank in record.ranks}
    head = [rank.rank for rank in record.ranks if job.is_head(rank.component)]
    if outcome.state is JobState.COMPLETED:
        for rank in head:
            end = mine[rank]
            assert end is not None, f"job {job.id}: completed before its head has ended"
            assert end.ok, f"job {job.id}: completed although its head failed"
        if not head:
            assert any(end is not None and end.ok for end in mine.values()), f"job {job.id}: completed without an end"
    if record.ended_by is not None and head:
        (rank,) = [rank.rank for rank in record.ranks if rank.placeholder == record.ended_by]
        assert rank in head, f"job {job.id}: the loss of a worker ended it"


# -- Adaptive jobs.


PATIENCE = 30
"""Seconds in which the processes of a component must meet."""
LONGEST_CHANGE = 4.0 * PATIENCE
"""Seconds within which a change that nobody can be brought to is given up, while nothing happens to the service.

The changes of a component are made one after the other: they count from when the one before it is over.
"""
_MOVING = (ChangePhase.TAKING, ChangePhase.RELEASING)


def adaptive_job(one: Job, clusters: Sequence[ClusterName], *, seed: int, spread: bool = False) -> Job:
    """Return a job of one or two components that adapt, perhaps beside one that does not, in the place of another.

    ``spread``: of one component that may be on all clusters, and begins with its minimum.
    """
    chance = random.Random(f"adaptive/{seed}/{one.id}")
    parts = [component("fixed", chance.choice([1, 2]), cluster=chance.choice([None, *clusters]))]
    parts = parts if chance.random() < 0.3 else []
    for number in range(chance.choice([1, 1, 1, 2])):
        minimum = chance.randint(1, 3)
        maximum = minimum + chance.randint(1, 6)
        part = component(f"grid{number}", minimum, maximum, cluster=chance.choice([None, None, *clusters]))
        part = replace(
            part,
            flexible=part.cluster is None and chance.random() < 0.7,
            initial=chance.choice([None, maximum]),
            sizes=chance.choice(["any", "any", "any", "power-of-two", "multiple-of-2"]),
            point_patience=PATIENCE,
        )
        parts.append(part)
    if spread:
        minimum = chance.randint(1, 2)
        only = component("grid0", minimum, minimum + chance.randint(6, 12))
        parts = [replace(only, flexible=True, initial=minimum, sizes="any", point_patience=PATIENCE)]
    return replace(
        one, kind=JobKind.MALLEABLE, runner=RunnerName.ADAPTIVE, components=tuple(parts), placement="worst-fit"
    )


@dataclass(slots=True)
class _Waiting:
    """A change that waits to be begun, or to be given up."""

    since: float
    """When it came, or when one ahead of it was over, or was being carried out: the latest of these."""
    ahead: set[int] = field(default_factory=set)
    """Numbers of those that are open and may be made before it."""

    def look(self, number: int, changes: Mapping[int, Change], now: float) -> None:
        """Take note of the changes of the component that are open, of which it is one."""
        over = self.ahead - changes.keys()
        self.ahead = (self.ahead & changes.keys()) | {other for other in changes if other < number}
        if over or any(changes[one].adaptation for one in (number, *self.ahead)):
            self.since = now


class AdaptiveLaws:
    """What must hold for adaptive jobs, from one moment to the next."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[JobId, int], _Waiting] = {}
        """Of the changes that are open."""

    def check(self, state: State, now: float, undisturbed_since: float) -> None:
        """Check what must hold now. ``undisturbed_since``: when something happened to the service last."""
        waiting: dict[tuple[JobId, int], _Waiting] = {}
        for record in state.jobs.values():
            if record.job.runner is not RunnerName.ADAPTIVE or record.state is not JobState.RUNNING:
                continue
            _check_placeholders(record)
            running = len(record.ranks) - len(record.departed) - len(record.ends)
            assert running > 0, f"job {record.job.id}: nobody is left who could end, and it runs"
            for part in record.job.components:
                _check_adaptive_size(record, part)
                changes = {one.number: one for one in _moving(record, part) if not one.made}
                for number in sorted(changes):
                    which = record.job.id, number
                    waiting[which] = one = self._waiting.get(which) or _Waiting(now, changes.keys() - {number})
                    one.look(number, changes, now)
                    late = f"job {record.job.id}: change {number} is neither made nor given up"
                    assert now < max(one.since, undisturbed_since) + LONGEST_CHANGE, late
        self._waiting = waiting


def _moving(record: JobRecord, part: Component) -> list[Change]:
    return [one for one in record.changes.values() if one.component == part.name and one.phase in _MOVING]


def _check_adaptive_size(record: JobRecord, part: Component) -> None:
    id_ = record.job.id
    size = record.size(part.name)
    changes = [change for change in record.changes.values() if change.component == part.name]
    gathered = sum(change.accepted for change in changes if change.phase is ChangePhase.GATHERING)
    assert part.minimum <= size, f"job {id_}: {part.name} is below its minimum"
    assert size + gathered <= part.maximum, f"job {id_}: {part.name} is beyond its maximum"
    joining = sum(len(one.ranks) for one in _moving(record, part) if one.phase is ChangePhase.TAKING)
    leaving = sum(
        one.accepted - one.done
        for one in _moving(record, part)
        if one.phase is ChangePhase.RELEASING and (one.adaptation or not record.job.adapts(part.name))
    )
    assert size - leaving >= part.minimum, f"job {id_}: {part.name} is about to be below its minimum"
    assert joining == 0 or record.job.adapts(part.name), f"job {id_}: {part.name} keeps its size"


def _check_placeholders(record: JobRecord) -> None:
    """Check that no processor has two processes."""
    here = [rank.placeholder for rank in record.ranks if rank.rank not in record.departed]
    assert len(here) == len(set(here)), f"job {record.job.id}: a processor is promised twice"


def check_adaptive_outcome(
    record: JobRecord, ends: Mapping[tuple[str, int], TaskEnd], starts: Mapping[int, int]
) -> None:
    """Check that a job completed only if all that belonged to it did."""
    outcome, job = record.outcome, record.job
    assert outcome is not None
    if outcome.state is JobState.COMPLETED:
        for rank in record.ranks:
            if rank.rank not in record.departed:
                end = ends.get((job.id, rank.rank))
                assert starts.get(rank.rank) == 1, f"job {job.id}: completed without having run everywhere"
                assert end is not None, f"job {job.id}: completed before process {rank.rank} has ended"
                assert end.ok, f"job {job.id}: completed although process {rank.rank} failed"
