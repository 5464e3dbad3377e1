# SPDX-License-Identifier: Apache-2.0
"""Which jobs can change their size, and the deadlines of that: the earliest of many keys."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

from koala_adapter.errors import JobRefusedError, PolicyAnswerError
from koala_adapter.model import JobKind
from koala_adapter.sizes import OWN_SIZES, SizeRules

if TYPE_CHECKING:
    from collections.abc import Hashable

    from koala_adapter.scheduler.records import JobRecord


# -- Deadlines (pure) ----------------------------------------------------------------------------------------

Key = TypeVar("Key", bound="Hashable")

_SLACK = 64
"""So many entries that do not hold any more are not worth a tidying up."""


class Deadlines(Generic[Key]):
    """One deadline for each key; most keys have none."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        """Also what does not hold any more. The number: keys need not be comparable."""
        self._set = 0

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: Key, at: float | None) -> None:
        """Set or (None) remove a key's deadline."""
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
        """Return the earliest deadline; None: there is none."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Key]:
        """Return and remove the keys that are due, earliest first."""
        keys = []
        while (at := self.first()) is not None and at <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._at[key]
            keys.append(key)
        return keys


# -- Which jobs can change their size --------------------------------------------------------------------------


def resizable(record: JobRecord, name: str, processors: int, rules: SizeRules = OWN_SIZES) -> str:
    """Return the component to be resized. Raises JobRefusedError with a remedy."""
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


def check_negotiable(record: JobRecord) -> None:
    """Raise JobRefusedError when no program can negotiate for a job."""
    job = record.job
    if record.state.final:
        raise JobRefusedError(f"job {job.id} has ended", hint="`koala status` shows the jobs that run")
    able = [one.name for one in job.components if job.changes_size(one.name)]
    if not job.kind.varies or not able:
        hint = 'only jobs of kind = "malleable" or "evolving" negotiate it'
        raise JobRefusedError(f"job {job.id} keeps its size", hint=hint)
    if len(able) > 1:
        raise JobRefusedError(f"job {job.id}: several components can change: {', '.join(able)}", hint="one is allowed")
