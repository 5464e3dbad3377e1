# SPDX-License-Identifier: Apache-2.0
"""What is promised to whom, and until when. Pure.

A promise is kept from the free resources, so that what was promised can be had when the peer accepts. The sum of all
promises is never more than what is free: where less becomes free (local users came), the youngest promises are taken
back, and their holders must be told.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from koala_adapter.negotiation.template import ResourceKey

Holder = TypeVar("Holder", bound="Hashable")


@dataclass(slots=True, kw_only=True)
class _Promise:
    quantities: dict[ResourceKey, int]
    until: float | None
    """None: it is settled, and stays until it is used or withdrawn."""


class ReservationBook(Generic[Holder]):
    """Free resources and the promises made of them."""

    def __init__(self, free: Mapping[ResourceKey, int]) -> None:
        """``free`` is what nobody uses."""
        self._free = dict(free)
        self._promises: OrderedDict[Holder, _Promise] = OrderedDict()
        self._total: Counter[ResourceKey] = Counter()
        """Of all promises."""

    def available(self, key: ResourceKey, *, holder: Holder | None = None) -> int:
        """Return how much of a resource is not promised to others than the holder."""
        own = self._promises.get(holder) if holder is not None else None
        promised = self._total[key] - (own.quantities.get(key, 0) if own is not None else 0)
        return max(0, self._free.get(key, 0) - promised)

    def promised(self, holder: Holder) -> dict[ResourceKey, int]:
        """Return what is promised to a holder."""
        promise = self._promises.get(holder)
        return {} if promise is None else dict(promise.quantities)

    def holders(self) -> tuple[Holder, ...]:
        """Return to whom something is promised, the oldest promise first."""
        return tuple(self._promises)

    def reserve(self, holder: Holder, quantities: Mapping[ResourceKey, int], *, until: float) -> bool:
        """Promise all of it or nothing, in the place of what the holder was promised before.

        Return whether it is promised; if not, the earlier promise stands. What is settled is not changed.
        """
        earlier = self._promises.get(holder)
        if earlier is not None and earlier.until is None:
            return earlier.quantities == dict(quantities)
        if any(many > self.available(key, holder=holder) for key, many in quantities.items()):
            return False
        if earlier is not None:  # it keeps its place among the others
            self._total.subtract(earlier.quantities)
        self._promises[holder] = _Promise(quantities=dict(quantities), until=until)
        self._total.update(quantities)
        return True

    def _drop(self, holder: Holder) -> _Promise | None:
        promise = self._promises.pop(holder, None)
        if promise is not None:
            self._total.subtract(promise.quantities)
        return promise

    def settle(self, holder: Holder) -> bool:
        """Let a promise stay until it is used or given up. Return False when there is none (any more)."""
        promise = self._promises.get(holder)
        if promise is None:
            return False
        promise.until = None
        return True

    def use(self, holder: Holder) -> dict[ResourceKey, int]:
        """Take what was promised out of what is free, for it is used now. Return what that was; twice is nothing."""
        promise = self._drop(holder)
        if promise is None:
            return {}
        for key, many in promise.quantities.items():
            self._free[key] -= many
        return promise.quantities

    def give_up(self, holder: Holder) -> None:
        """Take a promise back; without one it does nothing."""
        self._drop(holder)

    def expire(self, now: float) -> list[Holder]:
        """Take back all promises whose time is over, and return whose they were."""
        late = [one for one, promise in self._promises.items() if promise.until is not None and promise.until <= now]
        for holder in late:
            self._drop(holder)
        return late

    def set_free(self, key: ResourceKey, quantity: int) -> list[Holder]:
        """Take note of how much of a resource is free now. Return whose promises cannot be kept, and are taken back.

        Those that are not settled go first, and of each kind the youngest.
        """
        self._free[key] = max(0, quantity)
        youngest_first = list(reversed(self._promises.items()))
        broken = []
        for holder, promise in sorted(youngest_first, key=lambda one: one[1].until is None):
            if self._total[key] <= self._free[key]:
                break
            if promise.quantities.get(key, 0):
                self._drop(holder)
                broken.append(holder)
        return broken
