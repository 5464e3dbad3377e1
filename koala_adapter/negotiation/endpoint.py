# SPDX-License-Identifier: Apache-2.0
"""One end of a connection: templates in, templates and events out. No bytes, no socket, no clock. Pure.

One endpoint serves all negotiations with its peer. Time comes with each call, in seconds of any monotonic clock. An
endpoint outlives its connection: ``disconnected`` and ``resumed`` tell that one ended and that another has begun.
"""

from collections import OrderedDict
from contextlib import suppress
from typing import List, NamedTuple, Optional, Tuple

from koala_adapter.negotiation.states import (
    ACCEPTED,
    AGAIN,
    AGREED,
    ASKED,
    BARGAINING,
    CONSUMED,
    DISCONNECTED,
    ENDED,
    EXPIRED,
    NEW,
    OFFERED,
    RECEIVED,
    RESENT,
    SAID,
    SENT,
    completed,
    problem_of_closing,
    problem_of_counter,
)
from koala_adapter.negotiation.templates import (
    APPLICATION,
    NT_ERROR,
    NT_EXPIRED,
    NegotiationKey,
    NegotiationStepError,
    Template,
    checked,
    committed,
    ended,
    sayable,
)

_UNEXPLAINED = {
    "reject": "the peer has rejected it", "withdraw": "the peer has withdrawn it",
    "expire": "the peer has let it expire", "error": "the peer reports an error",
}  # fmt: skip
_EVENTS = {ASKED: "offer", ACCEPTED: "accepted", AGREED: "agreed", CONSUMED: "consumed"}


class Event(NamedTuple):
    """Event of a negotiation or of the connection."""

    kind: str
    """offer: it waits for our answer; accepted: for our commitment; agreed; consumed: it is real; ended: nothing is
    agreed (any more); complaint: the peer reports an error that belongs to no negotiation. Of connections also
    unreadable: the peer sent no template; closed."""
    key: NegotiationKey = ("", "")
    template: Optional[Template] = None
    """What stands in the negotiation, or stood last."""
    state: str = ""
    before: str = ""
    """The state before the event."""
    reason: str = ""

    @property
    def was_agreed(self) -> bool:
        """Whether there was an agreement before this event; if the event ends the negotiation, that is void."""
        return self.before in (AGREED, CONSUMED)


class _Negotiation:
    """State of one negotiation."""

    def __init__(self, standing: Template) -> None:
        self.state = NEW
        self.standing = standing
        """The last offer, and then what was accepted."""
        self.round = 0
        self.deadline: Optional[float] = None
        self.last_sent: Optional[Template] = None
        self.ended_by = ""
        """Why it has ended, if the peer ended it, time, or the end of the connection."""


class Endpoint:
    """One side of all negotiations with one peer, without I/O."""

    def __init__(self, side: str = APPLICATION, host: str = "localhost", peer: str = "localhost", *,
                 answer_within: float = 30.0, longest_answer: float = 3600.0, most_rounds: int = 8,
                 most_open: int = 16, most_kept: int = 64) -> None:  # fmt: skip
        """``host`` and ``peer``: names used in complaints.

        ``answer_within``: seconds for an answer where an offer does not say, and for the commitment to what was
        accepted. ``longest_answer``: seconds beyond which no offer of the peer keeps us. ``most_rounds``: offers of one
        negotiation, of both sides together. ``most_open``: negotiations that have not ended. ``most_kept``:
        negotiations that have ended and are still known, so that what comes late or twice gets the right answer.
        """
        self.side = side
        self.outbox: List[Template] = []
        """What is to be said, in order. The caller that takes templates out of it sends them."""
        self._host = host
        self._peer = peer
        self._answer_within = answer_within
        self._longest_answer = longest_answer
        self._most_rounds = most_rounds
        self._most_open = most_open
        self._most_kept = most_kept
        self._known: OrderedDict[NegotiationKey, _Negotiation] = OrderedDict()

    def state(self, key: NegotiationKey) -> str:
        """Return the state of a negotiation; "new" for an unknown one."""
        return self._known[key].state if key in self._known else NEW

    def standing(self, key: NegotiationKey) -> Optional[Template]:
        """Return the template in force: the last offer, later what was accepted; None for an unknown negotiation."""
        return self._known[key].standing if key in self._known else None

    @property
    def open_negotiations(self) -> int:
        """Number of negotiations that have not ended."""
        return sum(one.state not in ENDED for one in self._known.values())

    def next_deadline(self) -> Optional[float]:
        """Return the time of the next time-out, when `time_passed` must be called; None: there is none."""
        return min((one.deadline for one in self._known.values() if one.deadline is not None), default=None)

    def take_outbox(self) -> List[Template]:
        """Return and clear the templates to be sent."""
        said, self.outbox = self.outbox, []
        return said

    def tell(self, value: Template, now: float) -> NegotiationKey:
        """Put a template into the outbox; return the key of its negotiation.

        Raises NegotiationStepError when it does not follow; then nothing has changed.
        """
        known = self._known.get(value.key)
        message = SAID[checked(value).status]
        state = known.state if known is not None else NEW
        following = SENT[state].get(message)
        problem = "the negotiation is {}".format(state) if following is None else self._problem(value, known, message)
        if following is None or problem:
            raise NegotiationStepError("cannot say {} in {} of {}: {}".format(
                message, value.agreement_id, value.initiator, problem))  # fmt: skip
        if known is None:
            known = self._known[value.key] = _Negotiation(value)
        if message == "offer":
            known.round += 1
            value = value._replace(answer_within=value.answer_within or self._answer_within)
        value = value._replace(round=known.round)
        if following not in ENDED or following == CONSUMED:
            known.standing = value
        self._move(value.key, known, following, now, None)
        self._say(known, value)
        return value.key

    def _problem(self, value: Template, known: Optional[_Negotiation], message: str) -> str:
        if known is None:
            if value.initiator != self.side:
                return "{} is the initiator of what it offers first".format(self.side)
            return "" if self.open_negotiations < self._most_open else "too many negotiations are open"
        if message == "offer" and known.round >= self._most_rounds:
            return "there were {} offers already: accept or reject".format(known.round)
        if message == "offer":
            return problem_of_counter(known.standing, value)
        if message == "accept":
            return problem_of_closing(known.standing, value)
        changed = message in ("commit", "consume") and value.quantities() != known.standing.quantities()
        return "it is not what was accepted" if changed else ""

    def complain(self, reason: str) -> None:
        """Report an invalid template to the peer; no negotiation ends by it."""
        reason = sayable(reason)
        self.outbox.append(Template("unreadable", self.side, self._host, self._peer, NT_ERROR, reason=reason))

    def hear(self, value: Template, now: float) -> List[Event]:
        """Process a template from the peer and return the events."""
        key = value.key
        known = self._known.get(key)
        if known is not None:
            value = completed(value, known.standing)
        message, problem = self._classified(value, known)
        reason = value.reason or problem
        state = known.state if known is not None else NEW
        following, answer = RECEIVED[state][message]
        if known is None:
            known = _Negotiation(value)
            if following != NEW:
                self._known[key] = known
            elif message == "error":
                return [Event("complaint", reason=value.reason)]
        if following != state:
            if following not in ENDED or following == CONSUMED:
                known.standing = value
            known.round += message == "offer"
            known.ended_by = reason if following in ENDED else ""
            self._move(key, known, following, now, value.answer_within)
        self._reply(known, answer, known.ended_by if state in ENDED else problem)
        return [] if following == state else [_event(key, known, state, reason)]

    def replay(self, sender: str, value: Template, now: float) -> None:
        """Restore the state from a template sent or received in the past; nothing is sent.

        What this side can no longer say is passed over: that time has ended the negotiation, or the machine's own
        answers, which follow from what the peer said. Where there is an agreement, `resumed` says so: the peer
        cannot know whether its commitment was kept.
        """
        outbox, self.outbox = self.outbox, []
        with suppress(NegotiationStepError):
            if sender == self.side:
                self.tell(value, now)
            else:
                self.hear(value, now)
        self.outbox = outbox
        known = self._known.get(value.key)
        if known is not None and known.state == AGREED:
            known.last_sent = committed(known.standing)

    def _classified(self, value: Template, known: Optional[_Negotiation]) -> Tuple[str, str]:
        message = SAID[value.status]
        if known is None:
            return self._classified_first(value, message)
        if message == "offer":
            return self._classified_offer(value, known)
        problem = ""
        if message == "accept" and known.state == OFFERED:
            problem = problem_of_closing(known.standing, value)
        elif message in ("accept", "commit", "consume") and value.quantities() != known.standing.quantities():
            problem = "it is not what stands"
        if message in ("accept", "commit") and value.round not in (None, known.round):
            problem = "round {} is not the last one, {}".format(value.round, known.round)
        return ("mismatch" if problem else message), problem or _UNEXPLAINED.get(
            message, "{!r} does not follow".format(message)
        )

    def _classified_first(self, value: Template, message: str) -> Tuple[str, str]:
        if message != "offer":
            return message, "there is no such negotiation (any more)"
        if value.initiator == self.side:
            return "unfit offer", "{} has not begun this negotiation".format(self.side)
        if value.round not in (None, 1):
            return "unfit offer", "the first offer has round 1"
        if value.empty:
            return "unfit offer", "an offer in which everything is declined is none"
        if self.open_negotiations >= self._most_open:
            return "unfit offer", "{} negotiations are open already".format(self._most_open)
        return message, ""

    def _classified_offer(self, value: Template, known: _Negotiation) -> Tuple[str, str]:
        same = value.quantities() == known.standing.quantities()
        if value.round is None and known.state != OFFERED and same:
            return "repeated offer", ""
        if value.round is not None and value.round <= known.round:
            return "repeated offer", ""
        if value.round not in (None, known.round + 1):
            return "unfit offer", "round {} does not follow {}".format(value.round, known.round)
        if known.round >= self._most_rounds:
            return "unfit offer", "no agreement within {} offers".format(self._most_rounds)
        problem = problem_of_counter(known.standing, value)
        return ("unfit offer", problem) if problem else ("offer", "an offer does not follow")

    def time_passed(self, now: float) -> List[Event]:
        """End negotiations whose answers are overdue and tell the peer."""
        events = []
        for key, known in list(self._known.items()):
            if known.deadline is not None and known.deadline <= now:
                before = known.state
                reason = known.ended_by = "no answer in time" if before == OFFERED else "not settled in time"
                self._move(key, known, EXPIRED, now, None)
                self._say(known, ended(known.standing, NT_EXPIRED, reason))
                events.append(_event(key, known, before, reason))
        return events

    def disconnected(self, now: float) -> List[Event]:
        """End all negotiations without agreement, as the connection has ended."""
        del self.outbox[:]
        events = []
        for key, known in list(self._known.items()):
            before = known.state
            if before in DISCONNECTED:
                known.ended_by = "the connection ended"
                self._move(key, known, DISCONNECTED[before], now, None)
                events.append(_event(key, known, before, known.ended_by))
        return events

    def resumed(self) -> None:
        """Send again, on a new connection, what may not have arrived on the last one."""
        for known in self._known.values():
            if known.last_sent is not None and known.last_sent.status == RESENT.get(known.state):
                self.outbox.append(known.last_sent)

    def offer_again(self) -> None:
        """Send first offers that wait for an answer again, to a peer that may have forgotten them."""
        for known in self._known.values():
            own = known.state == OFFERED and known.round == 1 and known.standing.initiator == self.side
            if own and known.last_sent is not None:
                self.outbox.append(known.last_sent)

    def _move(self, key: NegotiationKey, known: _Negotiation, state: str, now: float,
              asked_within: Optional[float]) -> None:  # fmt: skip
        known.state = state
        within = self._answer_within
        if state == ASKED:
            within = min(asked_within or within, self._longest_answer)
        elif state == OFFERED:
            within = known.standing.answer_within or within
        known.deadline = now + within if state in BARGAINING else None
        if state in ENDED:
            self._known.move_to_end(key)
            ended = [key for key, one in self._known.items() if one.state in ENDED]
            for old in ended[: max(0, len(ended) - self._most_kept)]:
                del self._known[old]

    def _reply(self, known: _Negotiation, answer: str, problem: str) -> None:
        said = known.last_sent
        if answer == "-" or (answer == AGAIN and said is None):
            return
        if said is not None and answer in (AGAIN, said.status):
            self.outbox.append(said)
            return
        value = ended(known.standing, answer, problem)
        self._say(known, value._replace(round=known.round or None))

    def _say(self, known: _Negotiation, value: Template) -> None:
        known.last_sent = value
        self.outbox.append(value)


def _event(key: NegotiationKey, known: _Negotiation, before: str, reason: str) -> Event:
    kind = _EVENTS.get(known.state, "ended")
    return Event(kind, key, known.standing, known.state, before, reason if kind == "ended" else "")
