# SPDX-License-Identifier: Apache-2.0
"""How resource management answers an application that asks for more, and keeps what it has promised. Pure.

First come, first served: who asks gets what is free and not promised, by an acceptance or by a counter-offer, and both
reserve what they promise until they are settled or their time is over. Who is shrunk for a mandatory request is the
business of a policy, and not decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.negotiation.bargaining import Terms, decide
from koala_adapter.negotiation.derivedtemplates import accepted, committed, consumed, rejected, withdrawn
from koala_adapter.negotiation.events import Agreed, Ended, OfferAccepted, OfferReceived
from koala_adapter.negotiation.states import State
from koala_adapter.negotiation.template import Direction, NegotiationKey, Status

if TYPE_CHECKING:
    from koala_adapter.negotiation.endpoint import Endpoint
    from koala_adapter.negotiation.events import Event
    from koala_adapter.negotiation.reservations import ReservationBook
    from koala_adapter.negotiation.template import Template

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
            self._endpoint.send(accepted(offer), now)  # whoever wants to give something back may
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
            answer = rejected(offer, "it was promised to somebody else")
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
