# SPDX-License-Identifier: Apache-2.0
"""koala's end of an adaptive program over real sockets, for tests of the library alone, and programs that are told."""

from __future__ import annotations

import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self

from koala_adapter import negotiation as nt
from koala_adapter.application.notes import note_payload
from koala_adapter.model import JobId
from koala_adapter.runners.coordinator import Coordinator
from koala_adapter.runners.notes import Complaint, Membership, Note, Place, WantedChange, parse_note, payload_of
from koala_adapter.scheduler.events import ChangeMade, Event, PointReached
from tests.frames import frames_of

# -- What a service and its scheduler write down of one program, around koala's own coordinator of its processes.

Said = list[tuple[int, bytes]]
"""What is said to whom."""


class Records:
    """Brings the processes of one program through the changes that a test wants."""

    def __init__(self, first: int, minimum: int, maximum: int) -> None:
        self.first = list(range(first))
        self.members = list(self.first)
        self.here = set(self.first)
        """Ranks whose processes were started, and have not left."""
        self.address = ""
        """Of all nodes; otherwise each has its own."""
        self.finished = 0
        """Changes that were made."""
        self.at = 0
        """The point that the processes were told last to stop at."""
        self.errors: list[tuple[int, str]] = []
        self._wanted: tuple[WantedChange, ...] = ()
        self._begun = 0
        self._bounds = (minimum, maximum)
        self._coordinator = Coordinator(JobId("1"), inf, inf)
        self._follow()

    @property
    def idle(self) -> bool:
        """Whether all take part, and no change is under way."""
        return self._coordinator.joined and all(one.made for one in self._wanted)

    def begin(self, members: list[int], reason: str = "") -> Said:
        assert self.idle
        self._begun += 1
        joining = tuple(rank for rank in members if rank not in self.members)
        leaving = tuple(rank for rank in self.members if rank not in members)
        wanted = WantedChange(number=self._begun, joining=joining, leaving=leaving, reason=reason)
        self._wanted = (*self._wanted, wanted)
        return self._follow()

    def abandon(self) -> Said:
        self._wanted = ()
        return self._follow()

    def forget(self) -> Said:
        """Forget all that is not written down, and ask."""
        self._coordinator = Coordinator(JobId("1"), inf, inf)
        return [*self._follow(), *((rank, note_payload("who")) for rank in sorted(self.here))]

    def heard(self, rank: int, said: Note) -> Said:
        self._coordinator.heard(rank, said, 0.0)
        if said.verb == "leaving":
            self.here.discard(rank)
            self._wanted = tuple(one for one in self._wanted if not one.made or self.here.intersection(one.leaving))
        return self._follow()

    def _follow(self) -> Said:
        """Have the coordinator see what is written down, write down what it reports, and return what it says."""
        minimum, maximum = self._bounds
        membership = None
        while membership is None or self._write_down(self._coordinator.take_reports()):
            joining = (rank for one in self._wanted for rank in one.joining)
            membership = Membership(
                members=tuple(self.members),
                places={rank: self._place(rank) for rank in (*self.here, *joining)},
                wanted=self._wanted,
                minimum=minimum,
                maximum=maximum,
                head=Place(rank=0, cluster="alpha", address="head"),
            )
            self._coordinator.update(membership, 0.0)
        tells = self._coordinator.take_tells()
        self.at = next((one.note.number("at") for one in reversed(tells) if one.note.verb == "stop"), self.at)
        return [(one.rank, payload_of(one.note)) for one in tells]

    def _place(self, rank: int) -> Place:
        return Place(rank=rank, cluster="alpha", address=self.address or f"node{rank}")

    def _write_down(self, reports: list[Event | Complaint]) -> bool:
        """Write down what has happened; return whether that was anything."""
        by_number = {one.number: one for one in self._wanted}
        for report in reports:
            match report:
                case Complaint(rank=rank, text=text):
                    self.errors.append((rank, text))
                case PointReached(number=number):
                    point = replace(by_number[number], adaptation=report.adaptation, point=report.point)
                    by_number[number] = point
                case ChangeMade(number=number):
                    made = by_number.pop(number)
                    self.members = [*(one for one in self.members if one not in made.leaving), *made.joining]
                    self.finished += 1
                    if made.leaving:
                        by_number[number] = replace(made, made=True)
                case _:
                    raise AssertionError(report)
        self._wanted = tuple(by_number.values())
        return bool(reports)


# -- koala's end over real sockets: one Unix socket for each process, these records, and its side of negotiations.

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
        self.coordinator = Records(first, minimum, maximum)
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
            self.coordinator.here.add(rank)
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
        self.wait(lambda: self.coordinator.idle)
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
            assert self.lock.wait_for(over, LIVENESS), self.notes[-20:]

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


def together(call: str, *drivers: Driver) -> list[str]:
    """Have programs make a call at the same time, and return what each says of it."""
    for one in drivers:
        one.tell(call)
    return [one.hear() for one in drivers]
