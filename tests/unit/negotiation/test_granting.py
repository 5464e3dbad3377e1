# SPDX-License-Identifier: Apache-2.0
"""Resource management answers applications from one book: what it promises can be had, whatever happens on the way."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from koala_adapter.negotiation.serviceside.endpoint import (
    Ended,
    Endpoint,
    Limits,
    OfferAccepted,
    OfferReceived,
)
from koala_adapter.negotiation.serviceside.states import State
from koala_adapter.negotiation.serviceside.template import (
    Direction,
    NegotiationKey,
    Side,
    Status,
    committed,
    countered,
    rejected,
    withdrawn,
)
from tests.examples import repeated
from tests.granting import Granter, Promised, ReservationBook, Terms, decide
from tests.unit.negotiation.foreign import ForeignEndpoint
from tests.unit.negotiation.templates import CPU, carried, pair, request

if TYPE_CHECKING:
    from koala_adapter.negotiation.serviceside.endpoint import Event

FIRST = NegotiationKey(initiator=Side.APPLICATION, agreement_id="1")


def served(free: int) -> tuple[Granter, ReservationBook[Promised], Endpoint, Endpoint]:
    """Return resource management with so many free processors, and its one application."""
    rms, app = pair()
    book: ReservationBook[Promised] = ReservationBook({CPU: free})
    return Granter("a", rms, book), book, rms, app


def exchanged(granter: Granter, rms: Endpoint, app: Endpoint, now: float = 0.0) -> list[Event]:
    """Carry what both have to say until nobody has anything, and return what the application heard."""
    heard: list[Event] = []
    while data := app.data_to_send():
        for event in rms.receive(data, now):
            granter.handle(event, now)
        heard += carried(rms, app, now)
    return heard


def test_what_local_users_took_is_withdrawn() -> None:
    """An agreement that cannot be kept any more is taken back with its reason, before it is consumed."""
    granter, book, rms, app = served(6)
    app.send(request(6), 0)
    (event,) = exchanged(granter, rms, app)
    assert isinstance(event, OfferAccepted)
    app.send(committed(event.template), 0)
    exchanged(granter, rms, app)
    for _, key in book.set_free(CPU, 3):
        granter.withdraw(key, "local users took them", 2)
    (ended,) = carried(rms, app)
    assert isinstance(ended, Ended)
    assert (ended.was_agreed, ended.reason) == (True, "local users took them")


def test_what_was_taken_while_the_peer_commits_is_withdrawn_afterwards() -> None:
    """We have accepted and cannot speak; when the commitment comes, the answer is that it cannot be kept."""
    granter, book, rms, app = served(6)
    app.send(request(14), 0)
    (event,) = exchanged(granter, rms, app)
    assert isinstance(event, OfferReceived)
    app.send(countered(event.template, {CPU: 5}), 1)
    (taken,) = exchanged(granter, rms, app)
    assert isinstance(taken, OfferAccepted)
    for _, key in book.set_free(CPU, 3):
        granter.withdraw(key, "local users took them", 2)
    assert rms.data_to_send() == b""
    app.send(committed(taken.template), 3)
    (ended,) = exchanged(granter, rms, app)
    assert isinstance(ended, Ended)
    assert (ended.was_agreed, ended.reason) == (True, "it is not free any more")


@dataclass
class Line:
    """An application, its side of resource management, and what is on the way between them."""

    name: str
    book: ReservationBook[Promised]
    limits: Limits
    application: type[Endpoint | ForeignEndpoint] = Endpoint
    connected: bool = True
    number: int = 0
    keys: set[NegotiationKey] = field(default_factory=set)
    to_rms: list[bytes] = field(default_factory=list)
    to_app: list[bytes] = field(default_factory=list)
    strays: list[tuple[bool, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make both ends."""
        self.rms = Endpoint(side=Side.RMS, host="head", peer=self.name, limits=self.limits)
        self.app = self.application(side=Side.APPLICATION, host=self.name, peer="head", limits=self.limits)
        self.granter = Granter(self.name, self.rms, self.book)

    def flush(self) -> None:
        """Put on the way what both have to say; without a connection it is lost."""
        for end, queue in ((self.rms, self.to_app), (self.app, self.to_rms)):
            if data := end.data_to_send():
                self.strays.append((queue is self.to_rms, data))
                if self.connected:
                    queue.append(data)

    def deliver(self, chance: random.Random, now: float, *, to_rms: bool) -> None:
        """Let one piece arrive, now and then twice."""
        queue = self.to_rms if to_rms else self.to_app
        if queue:
            data = queue.pop(0)
            for _ in range(1 + (chance.random() < 0.1)):
                self.arrive(data, chance, now, to_rms=to_rms)

    def arrive(self, data: bytes, chance: random.Random, now: float, *, to_rms: bool) -> None:
        """Let some bytes arrive, and have them answered."""
        if to_rms:
            for event in self.rms.receive(data, now):
                self.granter.handle(event, now)
        else:
            for event in self.app.receive(data, now):
                self.answer(event, chance, now)
        self.flush()

    def answer(self, event: Event, chance: random.Random, now: float) -> None:
        """Answer as an application with a mind of its own."""
        if isinstance(event, OfferAccepted):
            self.app.send(committed(event.template) if chance.random() < 0.8 else withdrawn(event.template), now)
        if isinstance(event, OfferReceived) and chance.random() < 0.9:
            answer = decide(event.template, {CPU: Terms(most=chance.randint(0, 12))})
            if answer.status is Status.NEGOTIATION and (event.template.round or 0) >= self.limits.most_rounds:
                answer = rejected(event.template)
            self.app.send(answer, now)

    def disconnect(self, now: float) -> None:
        """End the connection: what is on the way is lost, or comes again as a stray."""
        self.flush()
        self.connected = False
        self.to_rms.clear()
        self.to_app.clear()
        self.app.disconnected(now)
        for event in self.rms.disconnected(now):
            self.granter.handle(event, now)

    def connect(self) -> None:
        """Make a new connection."""
        self.connected = True
        self.rms.resumed()
        self.app.resumed()
        self.flush()

    def begin(self, chance: random.Random, now: float) -> None:
        """Begin a negotiation, from one side or the other."""
        self.number += 1
        if not self.connected:
            return
        if chance.random() < 0.6 and self.app.open_negotiations < self.limits.most_open:
            template = request(chance.randint(1, 12), agreement_id=str(self.number))
            if chance.random() < 0.2:
                template = replace(template, direction=Direction.SHRINK)
            self.keys.add(self.app.send(template, now))
        elif self.rms.open_negotiations < self.limits.most_open:
            template = request(chance.randint(1, 6), agreement_id=str(self.number), initiator=Side.RMS)
            if self.granter.offer(template, now):
                self.keys.add(template.key)

    def pass_time(self, now: float) -> None:
        """End what was not answered in time."""
        self.app.time_passed(now)
        for event in self.rms.time_passed(now):
            self.granter.handle(event, now)
        self.flush()

    def allocate(self, chance: random.Random, now: float) -> int:
        """Report one agreement as real, and return how many processors it used."""
        agreed = [key for key in sorted(self.keys) if self.rms.state(key) is State.AGREED]
        if not agreed:
            return 0
        key = chance.choice(agreed)
        used = sum(self.book.promised((self.name, key)).values())
        self.granter.allocated(key, now)
        self.flush()
        return used

    def settle(self, chance: random.Random, now: float) -> None:
        """Deliver all, on a good connection, until nobody has anything to say."""
        if not self.connected:
            self.connect()
        self.flush()
        while self.to_rms or self.to_app:
            self.deliver(chance, now, to_rms=bool(self.to_rms))


def one_step(line: Line, chance: random.Random, now: float) -> int:
    """Do something random on a line; return how many processors came into use."""
    match chance.randrange(12):
        case 0 | 1:
            line.begin(chance, now)
        case 2 | 3 | 4 | 5:
            line.deliver(chance, now, to_rms=chance.random() < 0.5)
        case 6:
            line.disconnect(now) if line.connected else line.connect()
        case 7 if line.strays and line.connected:
            to_rms, data = chance.choice(line.strays)
            line.arrive(data, chance, now, to_rms=to_rms)
        case 8:
            line.pass_time(now)
        case 9 | 10:
            return line.allocate(chance, now)
        case _:
            pass
    line.flush()
    return 0


@pytest.mark.hypothesis  # of random schedules: in the night there are more
@pytest.mark.parametrize("seed", range(repeated(10)))
def test_nothing_is_promised_twice_and_both_ends_agree(seed: int) -> None:
    """Over random schedules of applications, lost and doubled and late messages, and local users.

    What is promised is never more than what is free; in the end both sides of each negotiation know whether there is
    an agreement, and nothing is reserved for one that there is not.
    """
    chance = random.Random(seed)
    free = 20
    book: ReservationBook[Promised] = ReservationBook({CPU: free})
    limits = Limits(answer_within=10, most_kept=10_000, most_rounds=4)
    lines = {
        name: Line(name, book, limits, application)
        for name, application in (("a", Endpoint), ("b", ForeignEndpoint), ("c", ForeignEndpoint))
    }
    now = 0.0
    for _ in range(300):
        now += chance.random()
        free -= one_step(lines[chance.choice("abc")], chance, now)
        if chance.random() < 0.05:
            free = chance.randint(0, 20)
            for name, key in book.set_free(CPU, free):
                lines[name].granter.withdraw(key, "local users took them", now)
        assert sum(book.promised(holder).get(CPU, 0) for holder in book.holders()) <= free
    for _ in range(2):
        for line in lines.values():
            line.settle(chance, now)
        now += 100
        for line in lines.values():
            line.pass_time(now)
            line.settle(chance, now)
    standing = {State.AGREED, State.CONSUMED}
    for name, line in lines.items():
        assert (line.rms.next_deadline(), line.app.next_deadline()) == (None, None)
        for key in line.keys:
            assert (line.rms.state(key) in standing) == (line.app.state(key) in standing), (name, key)
    open_ = {(name, key) for name, line in lines.items() for key in line.keys if line.rms.state(key) is State.AGREED}
    assert set(book.holders()) <= open_
