# SPDX-License-Identifier: Apache-2.0
"""The application's end of a connection: bytes and templates in, events and bytes out. Pure.

One endpoint serves all negotiations on its connection.
"""

from collections import OrderedDict
from typing import List, NamedTuple, Optional, Tuple

from koala_adapter.negotiation.document import build, frame, parse, unframed
from koala_adapter.negotiation.states import (
    AGAIN,
    BARGAINING,
    DISCONNECTED,
    ENDED,
    RECEIVED,
    SAID,
    SENT,
    completed,
    problem_of_closing,
    problem_of_counter,
)
from koala_adapter.negotiation.templates import (
    NegotiationError,
    NegotiationStepError,
    Template,
    checked,
    ended,
    sayable,
)

_RESENT = {
    "accepting": "NT_ACCEPTED", "agreed": "NT_COMMITTED", "consumed": "NT_CONSUMED", "rejected": "NT_REJECTED",
    "withdrawn": "NT_WITHDRAWN", "expired": "NT_EXPIRED", "broken": "NT_ERROR",
}  # fmt: skip
_UNEXPLAINED = {
    "reject": "the peer has rejected it", "withdraw": "the peer has withdrawn it",
    "expire": "the peer has let it expire", "error": "the peer reports an error",
}  # fmt: skip
_EVENTS = {"asked": "offer", "accepted": "accepted", "agreed": "agreed", "consumed": "consumed"}


class Event(NamedTuple):
    """Something that happened in a negotiation, or to the connection."""

    kind: str
    """offer: it waits for our answer; accepted: for our commitment; agreed; consumed: it is real; ended: nothing is
    agreed (any more); unreadable: the peer sent no template; complaint: it reports an error; closed."""
    key: Tuple[str, str] = ("", "")
    template: Optional[Template] = None
    state: str = ""
    before: str = ""
    reason: str = ""


class _Negotiation:
    """State of one negotiation."""

    def __init__(self, standing: Template) -> None:
        self.state = "new"
        self.standing = standing
        self.round = 0
        self.deadline: Optional[float] = None
        self.last_sent: Optional[Template] = None
        self.ended_by = ""


class Endpoint:
    """One side of the negotiations with one peer: bytes and templates in, events and bytes out; no socket, no clock."""

    def __init__(self, side: str = "APPLICATION", host: str = "localhost", peer: str = "localhost", *,
                 answer_within: float = 30.0, longest_answer: float = 3600.0, most_rounds: int = 8,
                 most_open: int = 16, most_kept: int = 64) -> None:  # fmt: skip
        """The bounds are those of ``Limits`` in negotiation/serviceside/endpoint.py."""
        self.side = side
        self._host = host
        self._peer = peer
        self._answer_within = answer_within
        self._longest_answer = longest_answer
        self._most_rounds = most_rounds
        self._most_open = most_open
        self._most_kept = most_kept
        self._received = bytearray()
        self._output = bytearray()
        self._known: OrderedDict[Tuple[str, str], _Negotiation] = OrderedDict()
        self.unreadable = False

    def state(self, key: Tuple[str, str]) -> str:
        """Return where we are in a negotiation; "new" when it is not known (any more)."""
        return self._known[key].state if key in self._known else "new"

    def standing(self, key: Tuple[str, str]) -> Optional[Template]:
        """Return what stands in a negotiation; None: it is not known."""
        return self._known[key].standing if key in self._known else None

    def next_deadline(self) -> Optional[float]:
        """Return when `time_passed` is to be called at the latest."""
        return min((one.deadline for one in self._known.values() if one.deadline is not None), default=None)

    def data_to_send(self) -> bytes:
        """Return what is to be written, once."""
        data = bytes(self._output)
        del self._output[:]
        return data

    def send(self, value: Template, now: float) -> Tuple[str, str]:
        """Say something: what, is its status. Returns which negotiation it belongs to. Raises NegotiationStepError."""
        known = self._known.get(value.key)
        message = SAID[checked(value).status]
        state = known.state if known is not None else "new"
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
        if following not in ENDED or following == "consumed":
            known.standing = value
        self._move(value.key, known, following, now, None)
        self._say(known, value)
        return value.key

    def _problem(self, value: Template, known: Optional[_Negotiation], message: str) -> str:
        if known is None:
            if value.initiator != self.side:
                return "{} is the initiator of what it offers first".format(self.side)
            return "" if self._number_open() < self._most_open else "too many negotiations are open"
        if message == "offer" and known.round >= self._most_rounds:
            return "there were {} offers already: accept or reject".format(known.round)
        if message == "offer":
            return problem_of_counter(known.standing, value)
        if message == "accept":
            return problem_of_closing(known.standing, value)
        changed = message in ("commit", "consume") and value.quantities() != known.standing.quantities()
        return "it is not what was accepted" if changed else ""

    def _number_open(self) -> int:
        return sum(one.state not in ENDED for one in self._known.values())

    def receive(self, data: bytes, now: float) -> List[Event]:
        """Take what has come from the peer, in whatever pieces, and return what happened by it."""
        events: List[Event] = []
        if self.unreadable:
            return events
        self._received += data
        try:
            while True:
                payload = unframed(self._received)
                if payload is None:
                    return events
                events += self._take(parse(payload), now)
        except NegotiationError as error:
            self.unreadable = True
            reason = sayable(str(error))
            self._write(Template("unreadable", self.side, self._host, self._peer, "NT_ERROR", reason=reason))
            return [*events, Event("unreadable", reason=reason)]

    def _take(self, value: Template, now: float) -> List[Event]:
        key = value.key
        known = self._known.get(key)
        if known is not None:
            value = completed(value, known.standing)
        message, problem = self._classified(value, known)
        reason = value.reason or problem
        state = known.state if known is not None else "new"
        following, answer = RECEIVED[state][message]
        if known is None:
            known = _Negotiation(value)
            if following != "new":
                self._known[key] = known
            elif message == "error":
                return [Event("complaint", reason=value.reason)]
        if following != state:
            if following not in ENDED or following == "consumed":
                known.standing = value
            known.round += message == "offer"
            known.ended_by = reason if following in ENDED else ""
            self._move(key, known, following, now, value.answer_within)
        self._reply(known, answer, known.ended_by if state in ENDED else problem)
        return [] if following == state else [_event(key, known, state, reason)]

    def _classified(self, value: Template, known: Optional[_Negotiation]) -> Tuple[str, str]:
        message = SAID[value.status]
        if known is None:
            return self._classified_first(value, message)
        if message == "offer":
            return self._classified_offer(value, known)
        problem = ""
        if message == "accept" and known.state == "offered":
            problem = problem_of_closing(known.standing, value)
        elif message in ("accept", "commit", "consume") and value.quantities() != known.standing.quantities():
            problem = "it is not what stands"
        if message in ("accept", "commit") and value.round not in (None, known.round):
            problem = "round {} is not the last one, {}".format(value.round, known.round)
        return ("mismatch" if problem else message), problem or _UNEXPLAINED.get(message, message + " does not follow")

    def _classified_first(self, value: Template, message: str) -> Tuple[str, str]:
        if message != "offer":
            return message, "there is no such negotiation (any more)"
        if value.initiator == self.side:
            return "unfit offer", "{} has not begun this negotiation".format(self.side)
        if value.round not in (None, 1):
            return "unfit offer", "the first offer has round 1"
        if not value.quantities():
            return "unfit offer", "an offer in which everything is declined is none"
        if self._number_open() >= self._most_open:
            return "unfit offer", "{} negotiations are open already".format(self._most_open)
        return message, ""

    def _classified_offer(self, value: Template, known: _Negotiation) -> Tuple[str, str]:
        same = value.quantities() == known.standing.quantities()
        if value.round is None and known.state != "offered" and same:
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
        """End what was not answered in time, and tell the peer."""
        events = []
        for key, known in list(self._known.items()):
            if known.deadline is not None and known.deadline <= now:
                before = known.state
                reason = known.ended_by = "no answer in time" if before == "offered" else "not settled in time"
                self._move(key, known, "expired", now, None)
                self._say(known, ended(known.standing, "NT_EXPIRED", reason))
                events.append(_event(key, known, before, reason))
        return events

    def disconnected(self, now: float) -> List[Event]:
        """Take note that the connection has ended; what was not agreed on is lost."""
        del self._received[:]
        del self._output[:]
        events = []
        for key, known in list(self._known.items()):
            before = known.state
            if before in DISCONNECTED:
                known.ended_by = "the connection ended"
                self._move(key, known, DISCONNECTED[before], now, None)
                events.append(_event(key, known, before, known.ended_by))
        return events

    def resumed(self) -> None:
        """Say again, on a new connection, what may not have arrived on the last one."""
        self.unreadable = False
        for known in self._known.values():
            if known.last_sent is not None and known.last_sent.status == _RESENT.get(known.state):
                self._write(known.last_sent)

    def offer_again(self) -> None:
        """Say again the own first offers that wait for an answer, to a peer that may have forgotten them."""
        for known in self._known.values():
            own = known.state == "offered" and known.round == 1 and known.standing.initiator == self.side
            if own and known.last_sent is not None:
                self._write(known.last_sent)

    def _move(self, key: Tuple[str, str], known: _Negotiation, state: str, now: float,
              asked_within: Optional[float]) -> None:  # fmt: skip
        known.state = state
        within = self._answer_within
        if state == "asked":
            within = min(asked_within or within, self._longest_answer)
        elif state == "offered":
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
            self._write(said)
            return
        value = ended(known.standing, answer, problem)
        self._say(known, value._replace(round=known.round or None))

    def _say(self, known: _Negotiation, value: Template) -> None:
        known.last_sent = value
        self._write(value)

    def _write(self, value: Template) -> None:
        self._output += frame(build(value))


def _event(key: Tuple[str, str], known: _Negotiation, before: str, reason: str) -> Event:
    kind = _EVENTS.get(known.state, "ended")
    return Event(kind, key, known.standing, known.state, before, reason if kind == "ended" else "")
