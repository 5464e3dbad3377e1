# SPDX-License-Identifier: Apache-2.0
"""koala's end of changes of size, as the protocol has it, and the same over real sockets."""

from __future__ import annotations

import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from koala_adapter import negotiation as nt
from koala_adapter.application.notes import Member, Note, encoded, note_payload, parse_note
from tests.frames import frames_of

# -- koala's end of changes of size, as the protocol has it: for tests of the library alone. Pure. It keeps in mind
# what a service writes down (the members, and which change is under way) and can forget all the rest.

Said = list[tuple[int, bytes]]
"""What is said to whom."""


def members_text(members: Iterable[Member]) -> str:
    """Return members as the value of a word."""
    return ",".join("@".join(encoded(str(field), "._~:/[]-") for field in one) for one in members)


@dataclass(kw_only=True)
class Plan:
    """A change: who was a member, and who is afterwards."""

    number: int
    old: list[int]
    members: list[int]
    reason: str = ""

    @property
    def leaving(self) -> list[int]:
        return [one for one in self.old if one not in self.members]

    @property
    def joining(self) -> list[int]:
        return [one for one in self.members if one not in self.old]

    @property
    def concerned(self) -> list[int]:
        return [*self.members, *self.leaving]


@dataclass(kw_only=True)
class Coordinator:
    """Brings the processes of one program through their changes."""

    first: list[int]
    minimum: int = 1
    maximum: int = 100
    address: str = ""
    """Of all nodes; otherwise each has its own."""
    members: list[int] = field(default_factory=list)
    plan: Plan | None = None
    phase: str = "forming"
    """forming, idle, gathering, asking, stopping, changing; asked: all have been asked who they are."""
    hellos: dict[int, Note] = field(default_factory=dict)
    answers: dict[int, int] = field(default_factory=dict)
    at: int = 0
    distance: int = 1
    """How many points away the next one is that is tried."""
    finished: int = 0
    errors: list[tuple[int, str]] = field(default_factory=list)

    def member(self, rank: int) -> Member:
        """Return what is told of a process."""
        contact = self.hellos[rank].words["contact"] if rank in self.hellos else ""
        return Member(rank, "alpha", self.address or f"node{rank}", contact)

    def begin(self, members: list[int], reason: str = "") -> Said:
        assert self.phase == "idle"
        self.plan = Plan(number=self.finished + 1, old=self.members, members=members, reason=reason)
        self.phase = "gathering"
        return self._gathered()

    def abandon(self) -> Said:
        assert self.plan is not None
        number, old = self.plan.number, self.plan.old
        self.finished, self.plan, self.phase = number, None, "idle"  # its number is not used again
        return [(rank, note_payload("abandon", change=number)) for rank in old]

    def forget(self) -> Said:
        """Forget all that is not written down, and ask."""
        self.phase, self.hellos, self.answers, self.at = "asked", {}, {}, 0
        return [(rank, note_payload("who")) for rank in self._expected()]

    def heard(self, rank: int, note: Note) -> Said:
        match note.verb:
            case "hello":
                self.hellos[rank] = note
                return self._greeted(rank)
            case "reached":
                return self._reached(rank, note)
            case "armed" | "waiting" | "passed":
                return self._stopping(rank, note)
            case "done":
                return self._done(rank, note.number("change"))
            case "leaving":
                pass
            case "error":
                self.errors.append((rank, note.text("text")))
            case other:
                raise AssertionError(other)
        return []

    def _expected(self) -> list[int]:
        return self.plan.concerned if self.plan is not None else (self.members or self.first)

    def _greeted(self, rank: int) -> Said:
        if self.phase != "forming" and rank not in self._expected() and self.hellos[rank].text("state") == "done":
            number = self.hellos.pop(rank).number("change")  # it was taken out, and lacks the word that all are done
            return [(rank, note_payload("resume", change=number))]
        if self.phase == "forming" and all(one in self.hellos for one in self.first):
            self.members, self.phase = list(self.first), "idle"
            return [(one, self._welcome(one)) for one in self.first]
        if self.phase == "gathering":
            lost = rank in self.members and self.hellos[rank].text("state") == "new"
            return ([(rank, self._welcome(rank))] if lost else []) + self._gathered()
        if self.phase == "asked":
            return self._recovered() if all(one in self.hellos for one in self._expected()) else []
        if self.phase == "forming" or rank not in self._expected():  # one that is early will be needed later
            return []
        # Somebody has come back, and what was said to it may not have arrived.
        hellos, self.phase = self.hellos, "asked"
        self.hellos = {one: hellos[one] for one in hellos if one == rank or one not in self._expected()}
        return [(one, note_payload("who")) for one in self._expected() if one != rank] or self._recovered()

    def _welcome(self, rank: int) -> bytes:
        return note_payload(
            "welcome", rank=rank, size=len(self.members), minimum=self.minimum, maximum=self.maximum, head="head",
            members=members_text(self.member(one) for one in self.members),
        )  # fmt: skip

    def _recovered(self) -> Said:
        states = {one: self.hellos[one].text("state") for one in self._expected()}
        again = [(one, self._welcome(one)) for one, state in states.items() if state == "new" and one in self.members]
        return again + self._recovered_from(states)

    def _recovered_from(self, states: dict[int, str]) -> Said:
        if self.plan is None:
            self.phase = "idle"
            return [
                (one, note_payload("abandon", change=self.hellos[one].number("change")))
                for one, state in states.items()
                if state in {"armed", "waiting"}
            ] + [
                (one, note_payload("resume", change=self.hellos[one].number("change")))
                for one, state in states.items()
                if state == "done"
            ]  # fmt: skip
        number = self.plan.number
        behind = [
            one for one, state in states.items() if state == "done" and self.hellos[one].number("change") < number
        ]
        if behind:  # they lack the resume of the change before
            lacking = [(one, note_payload("resume", change=self.hellos[one].number("change"))) for one in behind]
            return lacking + self._recovered_from({**states, **dict.fromkeys(behind, "running")})
        ends = {one for one, state in states.items() if self.hellos[one].number("change") == number
                and state in {"running", "left"}}  # fmt: skip
        if ends:
            return self._resume([one for one, state in states.items() if state == "done"])
        begun = [one for one, state in states.items() if state in {"changing", "done"}]
        if not begun:
            self.phase = "gathering"
            return self._gathered()
        self.phase, self.at = "changing", self.hellos[begun[0]].number("at")
        self.answers = {one: 1 for one in begun if states[one] == "done"}
        missed = [one for one in self.plan.concerned if states[one] in {"new", "waiting"}]
        return [(one, self._change(one)) for one in missed] + self._all_done()

    def _gathered(self) -> Said:
        assert self.plan is not None
        if not all(one in self.hellos for one in self.plan.joining):
            return []
        self.phase, self.answers, self.distance = "asking", {}, 1
        return [(one, note_payload("when", change=self.plan.number)) for one in self.plan.old]

    def _reached(self, rank: int, note: Note) -> Said:
        if self.phase != "asking" or self.plan is None or note.number("change") != self.plan.number:
            return []
        self.answers[rank] = note.number("point")
        return self._stop() if len(self.answers) == len(self.plan.old) else []

    def _stop(self) -> Said:
        assert self.plan is not None
        self.at = max(self.answers.values()) + self.distance
        self.phase, self.answers = "stopping", {}
        return [(one, note_payload("stop", change=self.plan.number, at=self.at)) for one in self.plan.old]

    def _stopping(self, rank: int, note: Note) -> Said:
        if self.phase != "stopping" or self.plan is None or note.number("change") != self.plan.number:
            return []
        if note.verb == "passed":
            if note.number("reached") < self.at:  # an earlier one: that this one is meant now is on its way
                return []
            self.answers = {rank: note.number("reached")}
            self.distance *= 2
            return self._stop()
        if note.number("at") == self.at and note.verb == "waiting":
            self.answers[rank] = self.at
        if len(self.answers) < len(self.plan.old):
            return []
        self.phase, self.answers = "changing", {}
        return [(one, self._change(one)) for one in self.plan.concerned]

    def _change(self, rank: int) -> bytes:
        plan = self.plan
        assert plan is not None
        return note_payload(
            "change", change=plan.number, at=self.at, size=len(plan.members), rank=rank,
            members=members_text(self.member(one) for one in plan.members), old=",".join(map(str, plan.old)),
            leaving=members_text(self.member(one) for one in plan.leaving), reason=plan.reason,
            minimum=self.minimum, maximum=self.maximum, head="head",
        )  # fmt: skip

    def _done(self, rank: int, number: int) -> Said:
        if self.phase == "asked" and rank in self.hellos:  # it has gone on since it said who it is
            words = {**self.hellos[rank].words, "state": "done", "change": str(number)}
            self.hellos[rank] = Note("hello", words)
        if self.phase != "changing" or self.plan is None or number != self.plan.number:
            return []
        self.answers[rank] = 1
        return self._all_done()

    def _all_done(self) -> Said:
        assert self.plan is not None
        return self._resume(self.plan.concerned) if len(self.answers) == len(self.plan.concerned) else []

    def _resume(self, whom: list[int]) -> Said:
        plan = self.plan
        assert plan is not None
        self.members, self.finished, self.plan, self.phase = plan.members, plan.number, None, "idle"
        return [(one, note_payload("resume", change=plan.number)) for one in whom]


# -- koala's end over real sockets: one Unix socket for each process, a coordinator, and its side of negotiations.

LIVENESS = 60.0
"""Seconds within which what must happen does, on however busy a machine."""


@dataclass
class Peer:
    """A connection of a process."""

    rank: int
    stream: socket.socket
    received: nt.FrameBuffer = field(default_factory=nt.FrameBuffer)


class KoalaEnd:
    """Runs in a thread; tests look at it under its lock, and wait for what they want to see."""

    def __init__(self, directory: Path, first: int, *, minimum: int = 1, maximum: int = 100) -> None:
        self.lock = threading.Condition()
        self.coordinator = Coordinator(first=list(range(first)), minimum=minimum, maximum=maximum)
        self.endpoints: dict[int, nt.Endpoint] = {}
        self.peers: dict[int, Peer] = {}
        self.granting: Callable[[nt.Template], nt.Template] = nt.accepted
        """Answers what applications offer."""
        self.events: list[tuple[int, nt.Event]] = []
        self.notes: list[tuple[int, str]] = []
        self._directory = directory
        self._selector = selectors.DefaultSelector()
        self._wake, woken = socket.socketpair()
        self._sockets = [woken]
        self._selector.register(woken, selectors.EVENT_READ, woken)
        self._ending = False
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending = True
        self._wake.send(b"x")
        self._thread.join()
        for one in (*self._sockets, self._wake, *(peer.stream for peer in self.peers.values())):
            one.close()
        self._selector.close()

    def path(self, rank: int) -> Path:
        path = self._directory / str(rank)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        with self.lock:
            self._sockets.append(listening)
            self._selector.register(listening, selectors.EVENT_READ, rank)
        self._wake.send(b"x")
        return path

    def say(self, said: Said) -> None:
        """Send what the coordinator says."""
        for rank, payload in said:
            self.send(rank, nt.frame(payload))

    def send(self, rank: int, data: bytes) -> None:
        if rank in self.peers:
            with suppress(OSError):
                self.peers[rank].stream.sendall(data)

    def note(self, rank: int, verb: str, **words: object) -> None:
        self.send(rank, nt.frame(note_payload(verb, **words)))

    def begin(self, members: list[int], reason: str = "") -> None:
        """Begin a change, when none is under way."""
        self.wait(lambda: self.coordinator.phase == "idle")
        with self.lock:
            self.say(self.coordinator.begin(members, reason))

    def offer(self, number: int, direction: str, key: str = "", **more: object) -> tuple[str, str]:
        """Offer processors to the process at position 0, or ask for some back."""
        with self.lock:
            endpoint = self.endpoints[0]
            key = key or f"offer{len(self.events)}"
            cpu = nt.resource("CPU", number, **more)
            offer = nt.template(key, "RMS", "head", "node0", [cpu], direction=direction, obligation="voluntary")
            endpoint.tell(offer, time.monotonic())
            self.send(0, b"".join(frames_of(endpoint)))
            return offer.key

    def first_event(self, key: tuple[str, str]) -> nt.Event:
        self.wait(lambda: any(event.key == key for _, event in self.events))
        return next(event for _, event in self.events if event.key == key)

    def cut(self, rank: int) -> None:
        with self.lock:
            self._lose(self.peers[rank])

    def wait(self, over: Callable[[], bool]) -> None:
        with self.lock:
            assert self.lock.wait_for(over, LIVENESS), (self.coordinator.phase, self.notes[-20:])

    def said(self, rank: int, start: str) -> bool:
        """Tell whether a process has said a note that starts so."""
        return any(one == rank and text.startswith(start) for one, text in self.notes)

    def _run(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select():
                with self.lock:
                    if isinstance(key.data, int):
                        self._accept(key.data, key.fileobj)  # type: ignore[arg-type]
                    elif isinstance(key.data, Peer):
                        self._receive(key.data)
                    else:
                        key.data.recv(100)
                    self.lock.notify_all()

    def _accept(self, rank: int, listening: socket.socket) -> None:
        stream, _ = listening.accept()
        if rank in self.peers:
            stream.sendall(nt.frame(note_payload("fail", text="this process has a connection already")))
            stream.close()
            return
        self.peers[rank] = Peer(rank, stream)
        self.endpoints.setdefault(rank, nt.Endpoint("RMS", "head", f"node{rank}"))
        self._selector.register(stream, selectors.EVENT_READ, self.peers[rank])

    def _lose(self, peer: Peer) -> None:
        if self.peers.get(peer.rank) is peer:
            self._selector.unregister(peer.stream)
            peer.stream.close()
            del self.peers[peer.rank]
            self.endpoints[peer.rank].disconnected(time.monotonic())

    def _receive(self, peer: Peer) -> None:
        if self.peers.get(peer.rank) is not peer:
            return
        try:
            piece = peer.stream.recv(65536)
        except OSError:
            piece = b""
        if not piece:
            self._lose(peer)
            return
        for payload in peer.received.feed(piece):
            if payload.startswith(b"<"):
                self._negotiate(peer.rank, payload)
            else:
                self.notes.append((peer.rank, payload.decode()))
                note = parse_note(payload)
                if note.verb == "hello":
                    self.endpoints[peer.rank].resumed()
                self.say(self.coordinator.heard(peer.rank, note))

    def _negotiate(self, rank: int, payload: bytes) -> None:
        endpoint = self.endpoints[rank]
        for event in endpoint.hear(nt.parse(payload), time.monotonic()):
            self.events.append((rank, event))
            if event.template is None:
                continue
            if event.kind == "offer":
                answer = self.granting(event.template)
                endpoint.tell(answer, time.monotonic())
            elif event.kind == "accepted":
                endpoint.tell(nt.committed(event.template), time.monotonic())
        self.send(rank, b"".join(frames_of(endpoint)))


class Driver:
    """A program that makes the calls it is told."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0
        )
        self._received = b""

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")

    def hear(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                assert selector.select(LIVENESS), "no answer"
                piece = self._process.stdout.read(65536)
                assert piece, self.end()
                self._received += piece
        line, self._received = self._received.split(b"\n", 1)
        return line.decode()

    def call(self, line: str) -> str:
        self.tell(line)
        return self.hear()

    def end(self) -> str:
        _, complaints = self._process.communicate(timeout=LIVENESS)
        assert self._process.returncode == 0, complaints.decode()
        return complaints.decode()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
