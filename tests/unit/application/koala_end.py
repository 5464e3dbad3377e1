# SPDX-License-Identifier: Apache-2.0
"""koala's end over real sockets: one Unix socket for each process, a coordinator, and its side of negotiations."""

from __future__ import annotations

import selectors
import socket
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from koala_adapter import negotiation as nt
from koala_adapter.application.notes import note_payload, parse_note
from tests.frames import frames_of
from tests.unit.application.coordinator import Coordinator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from tests.unit.application.coordinator import Said

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
