# SPDX-License-Identifier: Apache-2.0
"""Resource management that grants from what is free, for tests of the negotiation protocol.

koala decides by its scheduler. This is the least that answers an application: a granter for each, and the book of
promises that all share.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import anyio

from koala_adapter.negotiation.serviceside.document import frame
from koala_adapter.negotiation.serviceside.endpoint import Agreed, Ended, OfferAccepted, OfferReceived
from koala_adapter.negotiation.serviceside.states import State
from koala_adapter.negotiation.serviceside.template import (
    Direction,
    NegotiationKey,
    Status,
    Template,
    Terms,
    accepted,
    committed,
    consumed,
    decide,
    rejected,
    withdrawn,
)
from koala_adapter.service.sizes.port import GREETING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from pathlib import Path

    from anyio.abc import SocketStream

    from koala_adapter.negotiation.serviceside.endpoint import Endpoint, Event
    from koala_adapter.negotiation.serviceside.template import ResourceKey


# -- The book of promises (pure) -----------------------------------------------------------------------------
# Promised resources are taken from the free ones, so that they can be had when the peer accepts. The sum of all
# promises never exceeds what is free: when less becomes free (processors went to local users), the youngest promises
# are revoked, and their holders must be told.

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


# -- Granting: answers to requests from free resources (pure) ------------------------------------------------
# First come, first served: a request gets what is free and not promised, by an acceptance or by a counter-offer. Both
# reserve what they promise until they are settled or expired. Which application shrinks for a mandatory request is a
# policy's decision, not made here.

Promised: TypeAlias = tuple[str, NegotiationKey]
"""To whom something is promised: an application, in one of its negotiations."""

_NOT_FREE = "it is not free any more"


class Granter:
    """Answers one application from the book that all applications share."""

    def __init__(self, application: str, endpoint: Endpoint, book: ReservationBook[Promised]) -> None:
        """``application`` tells its promises from those of others."""
        self._application = application
        self._endpoint = endpoint
        self._book = book

    def offer(self, template: Template, now: float) -> bool:
        """Make a first offer, and reserve it. Return False when that is not free: then nothing was said."""
        if not self._reserve(template, now):
            return False
        self._endpoint.send(template, now)
        return True

    def handle(self, event: Event, now: float) -> Template | None:
        """Answer, reserve, settle or give up, as an event of the endpoint asks for.

        Return the agreement that there is by it, whichever side committed; None: there is none.
        """
        if isinstance(event, OfferReceived):
            self._answer(event.template, now)
        elif isinstance(event, OfferAccepted | Agreed):
            if not self._settle(event.template, now):
                self._endpoint.send(withdrawn(event.template, _NOT_FREE), now)
                return None
            if isinstance(event, OfferAccepted):
                self._endpoint.send(committed(event.template), now)
            return self._endpoint.standing(event.key)
        elif isinstance(event, Ended):
            self._book.give_up((self._application, event.key))
        return None

    def allocated(self, key: NegotiationKey, now: float) -> None:
        """Report that what was agreed on is allocated: it is not free any more. Twice does nothing."""
        agreement = self._endpoint.standing(key)
        if agreement is not None and self._endpoint.state(key) is State.AGREED:
            self._book.use((self._application, key))
            self._endpoint.send(consumed(agreement), now)

    def withdraw(self, key: NegotiationKey, reason: str, now: float) -> None:
        """Take back what cannot be had; where the peer must speak first, it is told when it does."""
        self._book.give_up((self._application, key))
        standing = self._endpoint.standing(key)
        if standing is not None and self._endpoint.state(key) in {State.OFFERED, State.ACCEPTED, State.AGREED}:
            self._endpoint.send(withdrawn(standing, reason), now)

    def _answer(self, offer: Template, now: float) -> None:
        if offer.direction is Direction.SHRINK:
            self._endpoint.send(accepted(offer), now)  # any side may give something back
            return
        holder = (self._application, offer.key)
        answer = decide(
            offer, {one: Terms(most=self._book.available(one, holder=holder)) for one in offer.quantities()}
        )
        last = (offer.round or 1) >= self._endpoint.limits.most_rounds
        if answer.status is Status.NEGOTIATION and last:
            answer = rejected(offer, "only a part of it is free, and no more offers may be made")
        if answer.status is Status.REJECTED:
            self._book.give_up(holder)
        elif not self._reserve(answer, now):
            answer = rejected(offer, "it was promised to another application")
        self._endpoint.send(answer, now)

    def _reserve(self, template: Template, now: float) -> bool:
        if template.direction is Direction.SHRINK:
            return True
        until = now + (template.answer_within or self._endpoint.limits.answer_within)
        return self._book.reserve((self._application, template.key), template.quantities(), until=until)

    def _settle(self, template: Template, now: float) -> bool:
        if template.direction is Direction.SHRINK:
            return True
        return self._reserve(template, now) and self._book.settle((self._application, template.key))


# -- Connecting to a listening peer -------------------------------------


async def connect(host: str, port: int, token: str = "") -> SocketStream:
    """Connect by TCP, and show the one-time token if there is one. The stream is for a `Conversation`.

    Raises OSError.
    """
    stream = await anyio.connect_tcp(host, port)
    if token:
        await stream.send(frame(GREETING + token.encode("ascii")))
    return stream


async def connect_unix(path: Path) -> SocketStream:
    """Connect to a Unix socket. Raises OSError."""
    return await anyio.connect_unix(path)
