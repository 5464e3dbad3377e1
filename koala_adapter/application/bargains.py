# SPDX-License-Identifier: Apache-2.0
"""Negotiations of one process with koala: offers, requests, and its own wishes. No I/O: templates in and out.

Decisions use the size that earlier agreements will lead to: processors agreed on and not yet there count.
"""

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from koala_adapter.application.notes import Bounds, Change, KoalaAppError
from koala_adapter.application.sizes import SizeRule
from koala_adapter.negotiation import (
    LARGEST_QUANTITY,
    Endpoint,
    Event,
    NegotiationError,
    Template,
    build,
    committed,
    decide,
    parse,
    rejected,
    resource,
    template,
)

_NO_HOST_CHARACTER = re.compile(r"[^A-Za-z0-9._:-]")
_HERE = "APPLICATION"
MANDATORY_PATIENCE = 600.0
"""Seconds that a mandatory wish waits for its answer: others must shrink first."""
VOLUNTARY_PATIENCE = 60.0
Key = Tuple[str, str]


class Answer(NamedTuple):
    """Result of a request for or offer of processors: number granted, and why not all."""

    granted: int
    reason: str


class Bargains:
    """The negotiations of one process."""

    def __init__(self, rule: SizeRule, host: str) -> None:
        """``host``: of this process."""
        self.size = 1
        self.bounds = Bounds()
        self.complaints: List[str] = []
        """Messages for the user; the caller that reads them removes them."""
        self._rule = rule
        self._host = _host(host)
        self._endpoint = Endpoint(_HERE, self._host)
        self._answers: Dict[Key, Optional[Answer]] = {}
        self._reasons: Dict[Key, str] = {}
        self._coming: Dict[Key, int] = {}
        """Processors of what was accepted or agreed on, and no change has brought yet, below 0: taken away."""
        self._asked = 0

    def members_are(self, size: int, bounds: Bounds) -> None:
        """Set the program's size and bounds."""
        self.size, self.bounds = size, bounds

    def changed(self, change: Change) -> None:
        """Register a change of size: its processors are no longer expected."""
        for sign, brought in ((1, len(change.joining)), (-1, len(change.leaving))):
            left = brought
            for key, coming in list(self._coming.items()):
                part = min(left, max(0, coming * sign))
                left -= part
                self._coming[key] = coming - sign * part

    # With the peer.

    def receive(self, payload: bytes, now: float) -> None:
        """Process a template. Raises NegotiationError for an invalid one."""
        self._take(self._endpoint.hear(parse(payload), now), now)

    def take_payloads(self) -> List[bytes]:
        """Return and clear the templates to be sent."""
        return [build(value) for value in self._endpoint.take_outbox()]

    def next_deadline(self) -> Optional[float]:
        """Return the next time at which `time_passed` must be called."""
        return self._endpoint.next_deadline()

    def time_passed(self, now: float) -> None:
        """End negotiations whose answers are overdue."""
        self._take(self._endpoint.time_passed(now), now)

    def disconnected(self, now: float) -> None:
        """Register the end of the connection."""
        self._take(self._endpoint.disconnected(now), now)

    def resumed(self) -> None:
        """Send again what may not have arrived."""
        self._endpoint.resumed()
        self._endpoint.offer_again()

    # The program's own wishes.

    def ask(self, direction: str, number: int, rank: int, now: float, *, mandatory: bool = False,
            memory: int = 0) -> Key:  # fmt: skip
        """Offer to grow or shrink by a number of processors, which come with memory (MiB). Raises KoalaAppError."""
        if isinstance(memory, bool) or not isinstance(memory, int) or not 0 <= memory <= LARGEST_QUANTITY:
            raise KoalaAppError("the memory is in MiB, 0 or more, not {:.40}".format(repr(memory)))
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise KoalaAppError("the number of processors is 1 or more, not {:.40}".format(repr(number)))
        size = self.expected()
        after = size + (number if direction == "grow" else -number)
        if not self.bounds.minimum <= after <= self.bounds.maximum:
            raise KoalaAppError("{} processors, {} and {}, are outside the bounds of the job, {} to {}".format(
                after, size, "{} more".format(number) if direction == "grow" else "{} fewer".format(number),
                self.bounds.minimum, self.bounds.maximum))  # fmt: skip
        self._asked += 1
        resources = [resource("CPU", number)]
        if memory:
            resources.append(resource("MEM", memory, negotiability="NT_FIXED"))
        wish = template(
            "{}-{}".format(rank, self._asked), _HERE, self._host, _host(self.bounds.head),
            resources, direction=direction, obligation="mandatory" if mandatory else "voluntary",
            answer_within=MANDATORY_PATIENCE if mandatory else VOLUNTARY_PATIENCE,
        )  # fmt: skip
        try:
            key = self._endpoint.tell(wish, now)
        except NegotiationError as error:
            raise KoalaAppError(str(error)) from None
        self._answers[key] = None
        return key

    def answer(self, key: Key) -> Optional[Answer]:
        """Return the result of a request and clear it; None when there is none yet."""
        answer = self._answers.get(key)
        if answer is not None:
            del self._answers[key]
            self._reasons.pop(key, None)
        return answer

    # Deciding.

    def _take(self, events: List[Event], now: float) -> None:
        for event in events:
            standing = event.template
            if standing is None:
                self.complaints.append("koala could not read what was said: {}".format(event.reason))
            elif event.kind == "offer":
                self._answer(standing, now)
            elif event.kind == "accepted":
                self._endpoint.tell(committed(standing), now)
                self._agreed(standing)
            elif event.kind == "agreed":
                self._agreed(standing)
            elif event.kind == "consumed":
                self._agreed(standing)
                self._coming.pop(event.key, None)
            else:
                self._coming.pop(event.key, None)
                self._settled(event.key, Answer(0, event.reason))

    def _agreed(self, agreement: Template) -> None:
        self._coming.setdefault(agreement.key, _signed(agreement))
        self._settled(
            agreement.key, Answer(agreement.quantity("CPU"), agreement.reason or self._reasons.get(agreement.key, ""))
        )

    def _settled(self, key: Key, answer: Answer) -> None:
        if key in self._answers and self._answers[key] is None:
            self._answers[key] = answer

    def _answer(self, offer: Template, now: float) -> None:
        if offer.key in self._answers:
            self._reasons[offer.key] = offer.reason
        self._coming.pop(offer.key, None)
        try:
            growing = offer.direction != "shrink"
            waits = growing and offer.initiator != _HERE and self._must_wait()
            answer = decide(offer, {} if waits else {"CPU": _Taking(self, growing), "MEM": LARGEST_QUANTITY})
        except Exception as error:  # noqa: BLE001 - whatever the program's own function raises
            problem = "sizes failed: {}: {}".format(type(error).__name__, error)
            self.complaints.append(str(error) if isinstance(error, KoalaAppError) else problem)
            answer = rejected(offer, self.complaints[-1])
        try:
            self._endpoint.tell(answer, now)
        except NegotiationError as error:
            answer = rejected(offer, str(error))
            self._endpoint.tell(answer, now)
        if answer.status == "NT_REJECTED":
            self._settled(offer.key, Answer(0, offer.reason or answer.reason))
        else:  # counted from now on: another offer may be here before this is agreed on
            self._coming[offer.key] = _signed(answer)

    def _must_wait(self) -> bool:
        """Return whether a second growth must wait: 2 + 2 + 4 processors, of which only 4 have come, would be 6."""
        wished = any(answer is None for answer in self._answers.values())
        return self._rule.one_growth_at_a_time(self.size) and (wished or any(self._coming.values()))

    def expected(self) -> int:
        """Return the size after all agreed changes."""
        return self.size + sum(self._coming.values())

    def take(self, offered: int, size: int, *, growing: bool) -> int:
        """Return how many offered or requested processors a program of ``size`` accepts."""
        if growing:
            return self._rule.accept(size, offered, self.bounds.minimum, self.bounds.maximum)
        return self._rule.release(size, offered, self.bounds.minimum)


class _Taking:
    """Decides on the resources of an offer one after another, counting what was accepted before."""

    def __init__(self, bargains: Bargains, growing: bool) -> None:  # noqa: FBT001 - private
        self._bargains = bargains
        self._growing = growing
        self._size = bargains.expected()

    def __call__(self, offered: int) -> int:
        number = self._bargains.take(offered, self._size, growing=self._growing)
        self._size += number if self._growing else -number
        return number


def _signed(agreement: Template) -> int:
    """Return the change of size by an agreement; negative: processors are given up."""
    number = agreement.quantity("CPU")
    return number if agreement.direction != "shrink" else -number


def _host(name: str) -> str:
    return _NO_HOST_CHARACTER.sub("-", name)[:255] or "localhost"
