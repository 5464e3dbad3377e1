# SPDX-License-Identifier: Apache-2.0
"""The module for applications as an end of a connection, with the templates and events of the other modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter import negotiation as applicationside
from koala_adapter.errors import NegotiationStepError
from koala_adapter.negotiation.serviceside import document as templatexml
from koala_adapter.negotiation.serviceside.endpoint import (
    Agreed,
    Complaint,
    Consumed,
    Ended,
    Limits,
    OfferAccepted,
    OfferReceived,
    Unreadable,
)
from koala_adapter.negotiation.serviceside.states import State
from koala_adapter.negotiation.serviceside.template import NegotiationKey, Side, Template

if TYPE_CHECKING:
    from koala_adapter.negotiation.serviceside.endpoint import Event

KINDS: dict[str, type[OfferReceived | OfferAccepted | Agreed | Consumed]] = {
    "offer": OfferReceived,
    "accepted": OfferAccepted,
    "agreed": Agreed,
    "consumed": Consumed,
}


def ours(template: applicationside.Template) -> Template:
    """Return the same template as a value of the other modules."""
    return templatexml.parse(applicationside.build(template))


class ForeignEndpoint:
    """Behaves as `Endpoint`, and is that of the module for applications."""

    def __init__(self, *, side: Side, host: str, peer: str, limits: Limits | None = None) -> None:
        """As `Endpoint`."""
        self.limits = limits or Limits()
        self._end = applicationside.Endpoint(
            str(side), host, peer,
            answer_within=self.limits.answer_within, longest_answer=self.limits.longest_answer,
            most_rounds=self.limits.most_rounds, most_open=self.limits.most_open, most_kept=self.limits.most_kept,
        )  # fmt: skip

    def state(self, key: NegotiationKey) -> State:
        """As `Endpoint`."""
        return State(self._end.state((str(key.initiator), key.agreement_id)))

    @property
    def open_negotiations(self) -> int:
        """As `Endpoint`."""
        return self._end._number_open()

    @property
    def unreadable(self) -> bool:
        """As `Endpoint`."""
        return self._end.unreadable

    def next_deadline(self) -> float | None:
        """As `Endpoint`."""
        return self._end.next_deadline()

    def data_to_send(self) -> bytes:
        """As `Endpoint`."""
        return self._end.data_to_send()

    def send(self, template: Template, now: float) -> NegotiationKey:
        """As `Endpoint`."""
        try:
            self._end.send(applicationside.parse(templatexml.build(template)), now)
        except applicationside.NegotiationStepError as error:
            raise NegotiationStepError(str(error)) from None
        return template.key

    def receive(self, data: bytes, now: float) -> list[Event]:
        """As `Endpoint`."""
        return [_event(one) for one in self._end.receive(data, now)]

    def time_passed(self, now: float) -> list[Event]:
        """As `Endpoint`."""
        return [_event(one) for one in self._end.time_passed(now)]

    def disconnected(self, now: float) -> list[Event]:
        """As `Endpoint`."""
        return [_event(one) for one in self._end.disconnected(now)]

    def resumed(self) -> None:
        """As `Endpoint`."""
        self._end.resumed()


def _event(event: applicationside.Event) -> Event:
    if event.kind == "unreadable":
        return Unreadable(reason=event.reason)
    if event.kind == "complaint":
        return Complaint(reason=event.reason)
    assert event.template is not None
    key = NegotiationKey(initiator=Side(event.key[0]), agreement_id=event.key[1])
    template = ours(event.template)
    if kind := KINDS.get(event.kind):
        return kind(key=key, template=template)
    assert event.kind == "ended"
    return Ended(key=key, template=template, state=State(event.state), before=State(event.before), reason=event.reason)
