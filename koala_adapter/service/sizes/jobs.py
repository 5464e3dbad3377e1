# SPDX-License-Identifier: Apache-2.0
"""Which jobs can change their size, the deadlines of that, and the interface between a service and its resizers.

Deadlines come first: the earliest of many keys, at a cost that does not grow with their number. Then follow what a
resizer needs of the service, the resizers by kind of runner, and the check that a component can be resized.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from koala_adapter.errors import JobRefusedError, PolicyAnswerError
from koala_adapter.model import JobKind, RunnerName
from koala_adapter.sizes import OWN_SIZES, SizeRules

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from koala_adapter.model import JobId
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import JobRecord, State


# -- Deadlines (pure) ----------------------------------------------------------------------------------------

Key = TypeVar("Key", bound="Hashable")

_SLACK = 64
"""So many entries that do not hold any more are not worth a tidying up."""


class Deadlines(Generic[Key]):
    """One time for each key, in seconds of any clock; most keys have none."""

    def __init__(self) -> None:
        """Nothing is due."""
        self._at: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        """Also what does not hold any more. The number: keys need not be comparable."""
        self._set = 0

    def __len__(self) -> int:
        """Keys that are due at some time."""
        return len(self._at)

    def set(self, key: Key, at: float | None) -> None:
        """Have a key due at a time, in the place of an earlier one; None: not any more."""
        if self._at.get(key) == at:
            return
        if at is None:
            del self._at[key]
            return
        self._at[key] = at
        self._push(key, at)
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap.clear()
            for one, when in self._at.items():
                self._push(one, when)

    def _push(self, key: Key, at: float) -> None:
        self._set += 1
        heapq.heappush(self._heap, (at, self._set, key))

    def first(self) -> float | None:
        """Return when the first is due; None: none is."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Key]:
        """Return what is due by now, the first one first, and have it due no more."""
        keys = []
        while (at := self.first()) is not None and at <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._at[key]
            keys.append(key)
        return keys


# -- Resizers: one for each kind of runner -------------------------------------------------------------------


class Resizer(Protocol):
    """Brings the applications of one kind of runner to other sizes."""

    def offer(self, action: act.OfferProcessors) -> None:
        """Ask an application how many further processors it takes; OfferAnswered."""

    def request(self, action: act.RequestProcessors) -> None:
        """Ask an application to give processors up; OfferAnswered, and then it begins."""

    def take(self, action: act.TakeProcessors) -> None:
        """Start the processes of new ranks."""

    def withdraw(self, action: act.WithdrawOffer) -> None:
        """Tell an application that it does not get what it has accepted."""

    def grant(self, action: act.GrantProcessors) -> None:
        """Answer a wish of an application."""

    def resume(self) -> None:
        """Go on with what the records say is under way, after a restart."""


def resizable(record: JobRecord, name: str, processors: int, rules: SizeRules = OWN_SIZES) -> str:
    """Return the component that is to have a size. Raises JobRefusedError, with the way out, when it cannot."""
    job = record.job
    able = [one.name for one in job.components if job.changes_size(one.name)]
    if record.state.final:
        raise JobRefusedError(f"job {job.id} has ended", hint="`koala status` shows the jobs that run")
    if job.kind is JobKind.EVOLVING:
        raise JobRefusedError(
            f"job {job.id} is evolving: its application alone changes its size",
            hint='`koala resize` is for jobs of kind = "malleable"',
        )
    if not able:
        raise JobRefusedError(f"job {job.id} keeps its size", hint='only jobs of kind = "malleable" change it')
    if name not in able and (name or len(able) > 1):
        known = ", ".join(able)
        said = f"component {name!r} keeps its size, or there is none" if name else "several components can change"
        raise JobRefusedError(f"job {job.id}: {said}", hint=f"name one of: {known}")
    component = job.component(name or able[0])
    if not component.minimum <= processors <= component.maximum:
        bounds_ = f"{component.minimum} to {component.maximum}"
        message = f"job {job.id}: component {component.name!r} cannot have {processors} processors"
        raise JobRefusedError(message, hint=f"its job file allows {bounds_}")
    try:
        rule = rules.named(component.sizes)
        usable = {rule.largest(processors), rule.smallest(processors)}
    except PolicyAnswerError as error:
        raise JobRefusedError(f"job {job.id}: {error.message}", hint=error.hint) from error
    if processors not in usable:
        near = [str(size) for size in sorted(usable) if component.minimum <= size <= component.maximum]
        message = f"job {job.id}: component {component.name!r} cannot use {processors} processors"
        hint = f'its job file says sizes = "{component.sizes}"' + (f"; near are {' and '.join(near)}" if near else "")
        raise JobRefusedError(message, hint=hint)
    return component.name


class Resizing:
    """The part of a service that brings running applications to other sizes."""

    def __init__(self, *, workers: Resizer, adaptive: Resizer, state: Callable[[], State]) -> None:
        """``workers`` and ``adaptive`` serve the runners of these names."""
        self._workers = workers
        self._adaptive = adaptive
        self._state = state

    def offer(self, action: act.OfferProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).offer(action)

    def request(self, action: act.RequestProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).request(action)

    def take(self, action: act.TakeProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).take(action)

    def withdraw(self, action: act.WithdrawOffer) -> None:
        """See Resizer."""
        self._of(action.job_id).withdraw(action)

    def grant(self, action: act.GrantProcessors) -> None:
        """See Resizer."""
        self._of(action.job_id).grant(action)

    def resume(self) -> None:
        """See Resizer."""
        self._workers.resume()
        self._adaptive.resume()

    def _of(self, job_id: JobId) -> Resizer:
        record = self._state().jobs.get(job_id)
        adaptive = record is not None and record.job.runner is RunnerName.ADAPTIVE
        return self._adaptive if adaptive else self._workers
