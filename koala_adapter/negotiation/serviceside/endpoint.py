# SPDX-License-Identifier: Apache-2.0
"""The service's end of a connection: bytes and templates in, events and bytes out. Pure.

One endpoint serves all negotiations on its connection; the events that it reports come first. There is no socket and
no clock: ``receive`` takes bytes, ``send`` a template, ``data_to_send`` returns the bytes to be written, and time
comes with each call (seconds of any monotonic clock). An endpoint outlives its connection: ``disconnected`` and
``resumed`` tell that one ended and that another has begun.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.errors import NegotiationError, NegotiationStepError
from koala_adapter.negotiation.serviceside import document as templatexml
from koala_adapter.negotiation.serviceside.document import FrameBuffer, frame
from koala_adapter.negotiation.serviceside.states import (
    BARGAINING,
    DEADLINE,
    DISCONNECTED,
    ENDED,
    RECEIVED,
    RESENT,
    SAID,
    SENT,
    Message,
    Reply,
    State,
)
from koala_adapter.negotiation.serviceside.template import (
    Side,
    Status,
    Template,
    completed,
    expired,
    faulty,
    numbered,
    problem_of_closing,
    problem_of_counter,
    published,
    same_quantities,
    sayable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.negotiation.serviceside.template import NegotiationKey


# -- Events: what came from the peer, or did not come in time ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferReceived:
    """An offer or counter-offer has come and waits for our answer."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAccepted:
    """The peer has accepted what we offered, and waits for our commitment."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """The peer has committed to what we accepted: there is an agreement."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """The peer reports that what was agreed on is allocated, or released."""

    key: NegotiationKey
    template: Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A negotiation has ended without our having said so; nothing is agreed (any more)."""

    key: NegotiationKey
    template: Template
    """What stood last."""
    state: State
    before: State
    """Where it was. AGREED: the agreement is void; CONSUMED: so is what was already allocated, or released."""
    reason: str = ""

    @property
    def was_agreed(self) -> bool:
        """There was an agreement, which is void."""
        return self.before in {State.AGREED, State.CONSUMED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """What came is no template. Write what there is to send, then close the connection."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """The peer reports an error that belongs to none of the negotiations."""

    reason: str


Event: TypeAlias = OfferReceived | OfferAccepted | Agreed | Consumed | Ended | Unreadable | Complaint

_KINDS: Mapping[State, type[OfferReceived | OfferAccepted | Agreed | Consumed]] = {
    State.ASKED: OfferReceived, State.ACCEPTED: OfferAccepted, State.AGREED: Agreed, State.CONSUMED: Consumed,
}  # fmt: skip


def event_of(key: NegotiationKey, standing: Template, state: State, *, before: State, reason: str = "") -> Event:
    """Return what it means that a negotiation has come from one state to another; ``standing``: what stands in it."""
    kind = _KINDS.get(state)
    if kind is not None:
        return kind(key=key, template=standing)
    return Ended(key=key, template=standing, state=state, before=before, reason=reason)


# -- The endpoint --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the negotiations with one peer."""

    answer_within: float = 30.0
    """Seconds for an answer where an offer does not say; and for the commitment to what was accepted."""
    longest_answer: float = 3600.0
    """Seconds beyond which no offer of a peer keeps us."""
    most_rounds: int = 8
    """Offers of one negotiation, of both sides together."""
    most_open: int = 16
    """Negotiations that have not ended."""
    most_kept: int = 64
    """Negotiations that have ended and are still known, so that what comes late or twice gets the right answer."""


Watch: TypeAlias = "Callable[[Side, Template, bytes], None]"
"""Takes note of each template that passes: its sender, the template, and its text."""


Recall: TypeAlias = "Callable[[NegotiationKey], Template | None]"
"""Returns the template that ended a negotiation, from either side; None: it is not known to have ended."""
_GOES_ON = frozenset({Status.ACCEPTED, Status.COMMITTED, Status.CONSUMED})
# Module names are looked up several times faster than members of an enum class; each message needs several of these.
_NEW, _OFFERED, _ASKED, _CONSUMED = State.NEW, State.OFFERED, State.ASKED, State.CONSUMED
_OFFER, _ACCEPT, _NOTHING = Message.OFFER, Message.ACCEPT, Reply.NONE
_COMMITMENTS = frozenset({Message.COMMIT, Message.CONSUME})
_NUMBERED_CLOSINGS = frozenset({Message.ACCEPT, Message.COMMIT})
_CLOSINGS = _COMMITMENTS | _NUMBERED_CLOSINGS
_UNEXPLAINED = {
    **{message: f"{message.value!r} does not follow" for message in Message},
    Message.REJECT: "the peer has rejected it",
    Message.WITHDRAW: "the peer has withdrawn it",
    Message.EXPIRE: "the peer has let it expire",
    Message.ERROR: "the peer reports an error",
}
"""What is wrong with a message that may not come; of those that end a negotiation, why it has, if they do not say."""


@dataclass(slots=True, kw_only=True)
class _Negotiation:
    state: State = _NEW
    standing: Template
    """The last offer, and then what was accepted."""
    round: int = 0
    deadline: float | None = None
    last_sent: Template | None = None
    ended_by: str = ""
    """Why it has ended, if the peer ended it, time, or the end of the connection."""


class Endpoint:
    """One side of the negotiations with one peer."""

    def __init__(
        self, *, side: Side, host: str, peer: str, limits: Limits | None = None, strict_peer: bool = False,
        watch: Watch | None = None, recall: Recall | None = None,
        carried_out: Callable[[NegotiationKey], bool] | None = None,
    ) -> None:  # fmt: skip
        """``host`` and ``peer`` are named in complaints. ``strict_peer``: send nothing but the published form.

        ``watch`` takes note of all templates, those that are to be said before they are. ``recall`` is asked for what
        ended a negotiation that is not known here (any more). ``carried_out`` tells whether what was agreed on is being
        carried out: then it does not expire, whatever the peer says, which may be a program that was started anew.
        """
        self.side = side
        self._watch = watch
        self._recall = recall
        self._carried_out = carried_out
        self._host = host
        self._peer = peer
        self.limits = limits or Limits()
        self._strict_peer = strict_peer
        self._frames = FrameBuffer()
        self._known: OrderedDict[NegotiationKey, _Negotiation] = OrderedDict()
        self._output = bytearray()
        self.unreadable = False
        """Nothing is read any more: the connection must be closed."""

    def state(self, key: NegotiationKey) -> State:
        """Return where we are in a negotiation; NEW when it is not known (any more)."""
        known = self._known.get(key)
        return _NEW if known is None else known.state

    def standing(self, key: NegotiationKey) -> Template | None:
        """Return what stands in a negotiation: the last offer, and then what was accepted; None: it is not known."""
        known = self._known.get(key)
        return None if known is None else known.standing

    @property
    def open_negotiations(self) -> int:
        """Number of negotiations that have not ended."""
        return sum(one.state not in ENDED for one in self._known.values())

    def next_deadline(self) -> float | None:
        """Return when `time_passed` is to be called at the latest; None: not for now."""
        return min((one.deadline for one in self._known.values() if one.deadline is not None), default=None)

    def data_to_send(self) -> bytes:
        """Return what is to be written, once."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def send(self, template: Template, now: float) -> NegotiationKey:
        """Say something: what, is the template's status. Returns which negotiation it belongs to.

        Raises NegotiationStepError when it does not follow; then nothing has changed.
        """
        key = template.key
        known = self._known.get(key)
        message = SAID[template.status]
        state = _NEW if known is None else known.state
        following = SENT[state].get(message)
        if following is None:
            raise NegotiationStepError(f"cannot say {message.value!r}: negotiation {key} is {state.value!r}")
        problem = self._problem_of_sending(template, known)
        if problem:
            raise NegotiationStepError(f"cannot say {message.value!r} in negotiation {key}: {problem}")
        if known is None:
            known = self._known[key] = _Negotiation(standing=template)
        if message is _OFFER:
            known.round += 1
        within = (template.answer_within or self.limits.answer_within) if message is _OFFER else None
        template = numbered(template, answer_within=within, number=known.round)
        if following not in ENDED or following is _CONSUMED:
            known.standing = template
        self._move(key, known, following, now)
        self._say(known, template)
        return key

    def _problem_of_sending(self, template: Template, known: _Negotiation | None) -> str:
        if known is None:
            if template.initiator is not self.side:
                return f"{self.side} is the initiator of what it offers first"
            return "" if self.open_negotiations < self.limits.most_open else "too many negotiations are open"
        message = SAID[template.status]
        if message is _OFFER and known.round >= self.limits.most_rounds:
            return f"there were {known.round} offers already: accept or reject"
        if message is _OFFER:
            return problem_of_counter(known.standing, template)
        if message is _ACCEPT:
            return problem_of_closing(known.standing, template)
        changed = not same_quantities(template, known.standing)
        return "it is not what was accepted" if changed and message in _COMMITMENTS else ""

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take what has come from the peer, in whatever pieces, and return what happened by it."""
        events: list[Event] = []
        if self.unreadable:
            return events
        try:
            for payload in self._frames.feed(data):
                template = templatexml.parse(payload)
                if template.status is Status.EXPIRED and self._has_come_about(template.key):
                    continue
                if self._watch is not None:
                    self._watch(self.side.other, template, payload)
                events += self._take(template, now)
        except NegotiationError as error:
            self.unreadable = True
            reason = sayable(error.message)
            complaint = Template(
                agreement_id="unreadable", initiator=self.side, source=self._host, dest=self._peer,
                status=Status.ERROR, reason=reason,
            )  # fmt: skip
            self._write(complaint)
            events.append(Unreadable(reason=reason))
        return events

    def _has_come_about(self, key: NegotiationKey) -> bool:
        """Tell whether what was agreed on is real, or becomes so; only where ``carried_out`` is known."""
        if self._carried_out is None:
            return False
        state = self.state(key)
        if state is _NEW and self._recall is not None:
            last = self._recall(key)
            return last is not None and last.status is Status.CONSUMED
        return state is _CONSUMED or (state is State.AGREED and self._carried_out(key))

    def _take(self, template: Template, now: float) -> list[Event]:
        key = template.key
        known = self._known.get(key)
        if known is not None:
            template = completed(template, known.standing)
        elif self._told_how_it_ended(template):
            return []
        message, problem = self._classified(template, known)
        reason = template.reason or problem
        state = _NEW if known is None else known.state
        step = RECEIVED[state][message]
        if known is None:
            known = _Negotiation(standing=template)
            if step.state is not _NEW:
                self._known[key] = known
            elif message is Message.ERROR:
                return [Complaint(reason=template.reason)]
        if step.state is not state:
            if step.state not in ENDED or step.state is _CONSUMED:
                known.standing = template
            known.round += message is _OFFER
            known.ended_by = reason if step.state in ENDED else ""
            self._move(key, known, step.state, now, asked_within=template.answer_within)
        self._reply(known, step.reply, known.ended_by if state in ENDED else problem)
        if step.state is state:
            return []
        return [event_of(key, known.standing, step.state, before=state, reason=reason)]

    def _told_how_it_ended(self, template: Template) -> bool:
        """Tell a peer that goes on with a negotiation how that ended before this endpoint began, if it did."""
        if self._recall is None or template.status not in _GOES_ON:
            return False
        final = self._recall(template.key)
        if final is None:
            return False
        self._write(final)
        return True

    def _classified(self, template: Template, known: _Negotiation | None) -> tuple[Message, str]:
        """Return what a message is, and what is wrong with it."""
        message = SAID[template.status]
        if known is None:
            return self._classified_first(template, message)
        if message is _OFFER:
            return self._classified_offer(template, known)
        problem = ""
        if message is _ACCEPT and known.state is _OFFERED:
            problem = problem_of_closing(known.standing, template)
        elif message in _CLOSINGS:
            problem = "" if same_quantities(template, known.standing) else "it is not what stands"
        if message in _NUMBERED_CLOSINGS and template.round is not None and template.round != known.round:
            problem = f"round {template.round} is not the last one, {known.round}"
        return (Message.MISMATCH, problem) if problem else (message, _UNEXPLAINED[message])

    def _classified_first(self, template: Template, message: Message) -> tuple[Message, str]:
        if message is not _OFFER:
            return message, "there is no such negotiation (any more)"
        if template.initiator is self.side:
            return Message.UNFIT, f"{self.side} has not begun this negotiation"
        if template.round not in {None, 1}:
            return Message.UNFIT, "the first offer has round 1"
        if template.empty:
            return Message.UNFIT, "an offer in which everything is declined is none"
        if self.open_negotiations >= self.limits.most_open:
            return Message.UNFIT, f"{self.limits.most_open} negotiations are open already"
        return message, ""

    def _classified_offer(self, template: Template, known: _Negotiation) -> tuple[Message, str]:
        seen = template.round is not None and template.round <= known.round
        if seen or (
            template.round is None and known.state is not _OFFERED and same_quantities(template, known.standing)
        ):
            return Message.REPEATED, ""
        if template.round is not None and template.round != known.round + 1:
            return Message.UNFIT, f"round {template.round} does not follow {known.round}"
        if known.round >= self.limits.most_rounds:
            return Message.UNFIT, f"no agreement within {self.limits.most_rounds} offers"
        problem = problem_of_counter(known.standing, template)
        return (Message.UNFIT, problem) if problem else (_OFFER, "an offer does not follow")

    def time_passed(self, now: float) -> list[Event]:
        """End what was not answered in time, and tell the peer."""
        events: list[Event] = []
        late = [key for key, one in self._known.items() if one.deadline is not None and one.deadline <= now]
        for key in late:
            known = self._known[key]
            before = known.state
            reason = known.ended_by = "no answer in time" if known.state is _OFFERED else "not settled in time"
            self._move(key, known, DEADLINE[known.state], now)
            self._say(known, expired(known.standing, reason))
            events.append(event_of(key, known.standing, known.state, before=before, reason=reason))
        return events

    def disconnected(self, now: float) -> list[Event]:
        """Take note that the connection has ended; what was not agreed on is lost."""
        self._frames = FrameBuffer()
        self._output.clear()
        events: list[Event] = []
        for key, known in list(self._known.items()):
            before = known.state
            if before in DISCONNECTED:
                known.ended_by = "the connection ended"
                self._move(key, known, DISCONNECTED[before], now)
                events.append(event_of(key, known.standing, known.state, before=before, reason=known.ended_by))
        return events

    def resumed(self) -> None:
        """Say again, on a new connection, what may not have arrived on the last one."""
        self.unreadable = False
        for known in self._known.values():
            if known.last_sent is not None and known.last_sent.status is RESENT.get(known.state):
                self._write(known.last_sent)

    def restore(self, template: Template, state: State, round_: int, now: float) -> None:
        """Go on with a negotiation that an earlier endpoint had with the peer, whose end of it has lived on.

        ``template``: what stands in it, with the status that was said last by this side.
        """
        template = replace(template, round=round_)
        known = self._known[template.key] = _Negotiation(standing=template, round=round_, last_sent=template)
        self._move(template.key, known, state, now, asked_within=template.answer_within)

    def _move(
        self, key: NegotiationKey, known: _Negotiation, state: State, now: float, *, asked_within: float | None = None
    ) -> None:
        known.state = state
        within = self.limits.answer_within
        if state is _ASKED:
            within = min(asked_within or within, self.limits.longest_answer)
        elif state is _OFFERED:
            within = known.standing.answer_within or within
        known.deadline = now + within if state in BARGAINING else None
        if state in ENDED:
            self._known.move_to_end(key)
            ended = [key for key, one in self._known.items() if one.state in ENDED]
            for old in ended[: max(0, len(ended) - self.limits.most_kept)]:
                del self._known[old]

    def _reply(self, known: _Negotiation, reply: Reply, problem: str) -> None:
        if reply is _NOTHING:
            return
        if reply is Reply.AGAIN:
            if known.last_sent is not None:
                self._write(known.last_sent)
            return
        said = known.last_sent
        if said is not None and said.status.value == reply.value:  # it has ended so before: for the same reason
            self._write(said)
            return
        template = replace(faulty(known.standing, problem), status=Status(reply.value), round=known.round or None)
        self._say(known, template)

    def _say(self, known: _Negotiation, template: Template) -> None:
        known.last_sent = template
        self._write(template)

    def _write(self, template: Template) -> None:
        payload = templatexml.build(published(template) if self._strict_peer else template)
        if self._watch is not None:
            self._watch(self.side, template, payload)
        self._output += frame(payload)
