# SPDX-License-Identifier: Apache-2.0
"""The calls of koala_app.py, by a program's own means: a socket, an XML parser, and a thread that negotiates.

It shows that no library is needed, and what one has to do; docs/negotiation.md has the whole protocol. A process
connects to the Unix socket that KOALA_APP_SOCKET names. What is said is a frame: its size in eight digits, a line feed,
and either a negotiation template, which is XML, or a note, which is a line of words:

    hello  state=…            koala: welcome  members=…      which processes there are
    reached  point=…          koala: when  change=…          how many points were reached
    armed, passed, waiting    koala: stop  at=…              at which point all of them stop
    done                      koala: change  members=…       which processes there are from then on
    leaving                   koala: resume                  all are done, go on
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Callable

EXTENSION = "urn:koala-adapter:negotiation"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
HEADER = 9
WISH = """<?xml version="1.0" encoding="UTF-8"?>
<NT NT_AgreementID="{id}" xmlns:k="urn:koala-adapter:negotiation" k:Direction="grow" k:AnswerWithin="60">
  <NT_Initiator>APPLICATION</NT_Initiator>
  <NT_Source>application</NT_Source>
  <NT_Dest>koala</NT_Dest>
  <NT_Status>NT_NEGOTIATION</NT_Status>
  <Resource>
    <Type>CPU</Type>
    <Quantity>{quantity}</Quantity>
    <Usage>NT_REQUIRED</Usage>
    <Negotiability>NT_NEGOTIABLE</Negotiability>
    <Status>NT_NEGOTIATION</Status>
  </Resource>
</NT>
"""

ET.register_namespace("k", EXTENSION)
ET.register_namespace("xsi", XSI)


class Member(NamedTuple):
    """One process of the program: koala's number of it, and where it is."""

    rank: int
    cluster: str
    address: str
    contact: str


class Change(NamedTuple):
    """Another number of processes, from a point on that all of them reach."""

    number: int
    old: list[Member]
    members: list[Member]
    rank: int | None
    old_rank: int | None

    @property
    def size(self) -> int:
        """Processes afterwards."""
        return len(self.members)


class Answer(NamedTuple):
    """What became of a wish."""

    granted: int
    reason: str


def join(sizes: str = "any", contact: str = "") -> App:
    """Return this process' part in the program, once all of its processes have joined."""
    app = App(sizes, contact)
    if "KOALA_APP_SOCKET" in os.environ:
        app.connect(os.environ["KOALA_APP_SOCKET"])
    return app


class App:
    """One process of a program; a thread of it listens to koala."""

    def __init__(self, sizes: str, contact: str) -> None:
        """Be a program of one process until koala says otherwise."""
        self.members = [Member(0, "", "", contact)]
        self.change: Change | None = None
        self.reached = 0
        self._number = int(os.environ.get("KOALA_RANK", "0"))
        self._contact = contact
        self._sizes = sizes
        self._state, self._changing, self._at = "running", 0, 0
        self._minimum, self._maximum = 1, sys.maxsize
        self._bargain = Bargain()
        self._socket: socket.socket | None = None
        self._problem = ""
        self._moved = threading.Condition()
        self._hearing: dict[str, Callable[[dict[str, str]], None]] = {
            "who": self._heard_who, "welcome": self._heard_welcome, "when": self._heard_when, "stop": self._heard_stop,
            "abandon": self._heard_abandon, "change": self._heard_change, "resume": self._heard_resume,
            "fail": self._heard_fail,
        }  # fmt: skip

    @property
    def rank(self) -> int | None:
        """Rank of this process in the program; None: it was taken out."""
        return position(self._number, self.members)

    # What the program calls.

    def connect(self, path: str) -> None:
        """Begin to speak with koala, and wait until this process is a member."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._state = "new"
        threading.Thread(target=self._listen, daemon=True).start()
        with self._moved:
            self._heard_who({})
            self._wait(lambda: self._state != "new")

    def point(self) -> Change | None:
        """Say that this process is at a point; return the change that all processes carry out here, if there is one."""
        with self._moved:
            self.reached += 1
            if self._state == "armed" and self.reached >= self._at:
                self._state = "waiting"
                self._say("waiting", change=self._changing, at=self._at)
                self._wait(lambda: self._state != "waiting")
            return self.change

    def done(self) -> None:
        """Say that the change is carried out here, and wait until it is everywhere."""
        with self._moved:
            self._state = "done"
            self._say("done", change=self._changing)
            self._wait(lambda: self._state != "done")

    def leave(self) -> None:
        """Say that this process, which was taken out, is about to exit."""
        with self._moved:
            self._say("leaving")

    def request(self, number: int) -> Answer:
        """Ask for more processors; return how many of them are granted."""
        with self._moved:
            if self._socket is None:
                return Answer(0, "the program runs by itself")
            self._send(self._bargain.wish(number))
            self._wait(lambda: self._bargain.answer is not None)
            answer, self._bargain.answer = self._bargain.answer, None
            return answer or Answer(0, "")

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()

    def _wait(self, over: Callable[[], bool]) -> None:
        while not over():
            if self._problem:
                raise RuntimeError(self._problem)
            self._moved.wait()

    # The thread, and what it hears.

    def _listen(self) -> None:
        try:
            while True:
                payload = self._receive(int(self._receive(HEADER)))
                with self._moved:
                    if payload.startswith(b"<"):
                        self._heard_template(payload)
                    else:
                        verb, *words = payload.decode().split(" ")
                        pairs = (word.partition("=") for word in words)
                        self._hearing.get(verb, lambda _: None)({key: unquote(value) for key, _, value in pairs})
                    self._moved.notify_all()
        except (OSError, EOFError, ValueError, KeyError, ET.ParseError) as error:
            with self._moved:
                self._problem = f"no more is heard of koala: {error!r}"
                self._moved.notify_all()

    def _receive(self, size: int) -> bytes:
        data = b""
        while self._socket is not None and len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the connection has ended")
            data += piece
        return data

    def _say(self, verb: str, **words: object) -> None:
        said = [verb, *(f"{key}={quote(str(value), safe='._~:,/@[]-')}" for key, value in words.items())]
        self._send(" ".join(said).encode())

    def _send(self, payload: bytes) -> None:
        if self._socket is not None:
            self._socket.sendall(b"%08d\n" % len(payload) + payload)

    def _heard_who(self, _words: dict[str, str]) -> None:
        self._say(
            "hello", version=1, state=self._state, change=self._changing, at=self._at, reached=self.reached,
            contact=self._contact, sizes=self._sizes, pid=os.getpid(),
        )  # fmt: skip
        if self._bargain.unanswered:
            self._send(self._bargain.unanswered)

    def _heard_welcome(self, words: dict[str, str]) -> None:
        if self._state == "new":
            self._number, self.members, self._state = int(words["rank"]), members_of(words["members"]), "running"
            self._minimum, self._maximum = int(words["minimum"]), int(words["maximum"])

    def _heard_when(self, words: dict[str, str]) -> None:
        self._say("reached", change=words["change"], point=self.reached)

    def _heard_stop(self, words: dict[str, str]) -> None:
        number, at = int(words["change"]), int(words["at"])
        if self._state == "waiting" and at == self._at:
            self._say("waiting", change=number, at=at)
        elif at > self.reached:
            self._state, self._changing, self._at = "armed", number, at
            self._say("armed", change=number, at=at)
        else:
            self._say("passed", change=number, reached=self.reached)

    def _heard_abandon(self, _words: dict[str, str]) -> None:
        if self._state in ("armed", "waiting"):
            self._state = "running"

    def _heard_change(self, words: dict[str, str]) -> None:
        if self._state in ("changing", "done"):
            if self._state == "done":
                self._say("done", change=self._changing)
            return
        if self._state not in ("new", "waiting"):
            return
        self._number = int(words["rank"])
        members = members_of(words["members"])
        known = {one.rank: one for one in (*members, *members_of(words["leaving"]))}
        old = [known[int(rank)] for rank in words["old"].split(",")]
        number = int(words["change"])
        self.change = Change(number, old, members, position(self._number, members), position(self._number, old))
        self.members, self.reached = members, int(words["at"])
        self._minimum, self._maximum = int(words["minimum"]), int(words["maximum"])
        self._state, self._changing, self._at = "changing", number, self.reached
        self._bargain.changed(len(members) - len(old))

    def _heard_resume(self, _words: dict[str, str]) -> None:
        if self._state == "done":
            self.change, self._state = None, "running"

    def _heard_fail(self, words: dict[str, str]) -> None:
        self._problem = words["text"]

    def _heard_template(self, payload: bytes) -> None:
        answer = self._bargain.heard(payload, len(self.members), self._taken)
        if answer:
            self._send(answer)

    def _taken(self, size: int, offered: int) -> int:
        """Return how many processors of an offer are taken; below 0: wanted back, and given up."""
        wanted = max(self._minimum, min(size + offered, self._maximum))
        if self._sizes == "power-of-two":
            wanted = 1 << (wanted.bit_length() - 1)
        return wanted - size if (wanted - size) * offered > 0 else 0


class Bargain:
    """What is negotiated with koala: templates in, templates out."""

    def __init__(self) -> None:
        """Nothing was said."""
        self.answer: Answer | None = None
        self.unanswered = b""
        """A wish that koala has not answered yet."""
        self._wishes = 0
        self._reasons: dict[str, str] = {}
        self._coming: dict[str, int] = {}
        """Processors of what was accepted, and no change has brought yet; below 0: taken away."""

    def wish(self, quantity: int) -> bytes:
        """Return the template that asks for processors."""
        self._wishes += 1
        number = f"{os.environ.get('KOALA_RANK', '0')}-{self._wishes}"
        self.unanswered = WISH.format(id=number, quantity=quantity).encode()
        return self.unanswered

    def changed(self, more: int) -> None:
        """Take note that a change has brought processors, or taken them away."""
        for key in [key for key, coming in self._coming.items() if coming == more][:1]:
            del self._coming[key]

    def heard(self, payload: bytes, size: int, taken: Callable[[int, int], int]) -> bytes:
        """Return the answer to a template; empty: none. ``taken`` decides on an offer to a program of some size."""
        if b"<!" in payload:
            raise ValueError("a template has no document type")
        template = ET.fromstring(payload)  # noqa: S314 - no entity can be in it
        own = template.findtext("NT_Initiator") == "APPLICATION"
        key, status = template.get("NT_AgreementID", ""), template.findtext("NT_Status")
        reason = template.get(f"{{{EXTENSION}}}Reason", "")
        cpu = next((one for one in template.iter("Resource") if one.findtext("Type") == "CPU"), None)
        quantity = 0 if cpu is None else int(cpu.findtext("Quantity") or 0)
        if own:
            self.unanswered = b""
        if status == "NT_NEGOTIATION":
            self._reasons[key] = reason
            if own:  # fewer than were asked for: they will do
                return self._said(template, "NT_ACCEPTED")
            return self._decide(template, quantity, size + sum(self._coming.values()), taken)
        if status in ("NT_ACCEPTED", "NT_COMMITTED"):
            shrinks = template.get(f"{{{EXTENSION}}}Direction") == "shrink"
            self._coming[key] = -quantity if shrinks else quantity
            if own:
                self.answer = Answer(quantity, self._reasons.pop(key, reason))
            return self._said(template, "NT_COMMITTED") if status == "NT_ACCEPTED" else b""
        self._coming.pop(key, None)  # consumed: it is there; otherwise nothing will come
        if own and status != "NT_CONSUMED":
            self.answer = Answer(0, reason)
        return b""

    def _decide(self, offer: ET.Element, offered: int, size: int, taken: Callable[[int, int], int]) -> bytes:
        shrinks = offer.get(f"{{{EXTENSION}}}Direction") == "shrink"
        if not shrinks and any(self._coming.values()):
            return self._said(offer, "NT_REJECTED")  # one growth at a time: 2 + 2 + 4 would be 6 for a while
        quantity = abs(taken(size, -offered if shrinks else offered))
        if quantity == 0:
            return self._said(offer, "NT_REJECTED")
        self._coming[offer.get("NT_AgreementID", "")] = -quantity if shrinks else quantity
        return self._said(offer, "NT_ACCEPTED" if quantity == offered else "NT_NEGOTIATION", quantity)

    @staticmethod
    def _said(template: ET.Element, status: str, quantity: int = 0) -> bytes:
        """Return a template as it came, but for what it says now."""
        for element in (template.find("NT_Status"), *template.iterfind("Resource/Status")):
            if element is not None:
                element.text = status
        for name in ("Reason", "AnswerWithin"):
            template.attrib.pop(f"{{{EXTENSION}}}{name}", None)
        if status == "NT_NEGOTIATION":  # another offer
            template.attrib.pop(f"{{{EXTENSION}}}Round", None)
            for resource in template.iter("Resource"):
                for name in ("Minimum", "Maximum"):
                    resource.attrib.pop(f"{{{EXTENSION}}}{name}", None)
                element = resource.find("Quantity")
                if element is not None and resource.findtext("Type") == "CPU":
                    element.text = str(quantity)
        return ET.tostring(template, encoding="UTF-8", xml_declaration=True)


def members_of(text: str) -> list[Member]:
    """Return the processes that a note lists."""
    lists = [[unquote(field) for field in one.split("@")] for one in text.split(",") if one]
    return [Member(int(rank), cluster, address, contact) for rank, cluster, address, contact in lists]


def position(rank: int, members: list[Member]) -> int | None:
    """Return where among members the process is that koala calls so; None: it is none of them."""
    return next((place for place, one in enumerate(members) if one.rank == rank), None)
