# SPDX-License-Identifier: Apache-2.0
"""The connection of a process with koala: a thread that reads and writes the socket while the program computes."""

import atexit
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from typing import Callable, Deque, List, Optional

from koala_adapter.application.library.bargains import Bargains
from koala_adapter.application.library.notes import KoalaAppError, note_payload, one_line, parse_note
from koala_adapter.application.library.process import Process
from koala_adapter.negotiation.applicationside import NegotiationError, frame, unframed

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds between two tries to connect."""
LONGEST_SEPARATION = 300.0
"""Seconds without a connection after which a call that waits for koala gives up."""
JOIN_PATIENCE = 30.0
"""Seconds within which the first connection must be made."""
FAREWELL_PATIENCE = 5.0
"""Seconds in which the last words of a process that leaves must be on their way."""
MOST_WAITING = 1000
"""Frames; while more wait, nobody is told of errors."""
_PIECE = 65536


class Session:
    """A process' state and its negotiations, on a Unix socket. All of it is looked at under `lock`."""

    def __init__(self, path: str, process: Process, bargains: Bargains) -> None:
        self.lock = threading.Condition()
        self.process = process
        self.bargains = bargains
        self.ends_at: Optional[float] = None
        """When the processes are ended as their time is over, by time.monotonic(); None: nobody has told."""
        self.near_at: Optional[float] = None
        """When that is near, also for one that is out of contact then; None: never, or nobody has told."""
        self._path = path
        self._output: Deque[bytes] = deque()
        self._closing = False
        self._broken = ""
        self._shown = ""
        self._parting_with = 0
        self._wake, self._woken = socket.socketpair()
        for one in (self._wake, self._woken):
            one.settimeout(0)
        self._thread = threading.Thread(target=self._run, name="koala_app", daemon=True)

    def start(self) -> None:
        """Begin to speak with koala. What it says is heard when the lock is free."""
        self._thread.start()

    def say(self, payloads: List[bytes]) -> None:
        """Have something said. The lock is held."""
        self._output.extend(frame(one) for one in payloads)
        self._wake_up()

    def negotiate(self) -> None:
        """Have said what the negotiations have to say. The lock is held."""
        data = self.bargains.data_to_send()
        if data:
            self._output.append(data)
            self._wake_up()

    def wait(self, over: Callable[[], bool]) -> None:
        """Wait until something is so. The lock is held. Raises KoalaAppError when koala refuses, or is gone."""
        process = self.process
        process.failure = ""
        while not over() and not process.failure:
            if self._broken:
                raise KoalaAppError(self._broken)
            self.lock.wait()
        if process.failure:
            text, process.failure = process.failure, ""
            raise KoalaAppError(text)

    def refuse(self, error: KoalaAppError) -> None:
        """Tell people, here and at koala, of a wrong call. The lock is held."""
        self._show(str(error))
        if not self._parting_with:
            self._parting_with = os.getpid()
            atexit.register(self._part)
        if len(self._output) < MOST_WAITING:
            self.say([note_payload("error", text=one_line(str(error)))])

    def _part(self) -> None:
        """Say what is still to be said before a process ends, which may be because of its wrong call."""
        if self._parting_with == os.getpid():  # not a copy of it, which has no thread and perhaps the lock
            self.close()

    def close(self) -> None:
        """Say what is still to be said, and end the connection. The lock is not held."""
        with self.lock:
            self._closing = True
            self._wake_up()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(FAREWELL_PATIENCE)

    # The thread.

    def _run(self) -> None:
        try:
            self._connect_again_and_again()
        except Exception as error:  # noqa: BLE001 - what nobody has thought of must not leave the program waiting
            self._break("the application library failed: {}: {}".format(type(error).__name__, error))
        finally:
            with self.lock:
                self._broken = self._broken or "the connection with koala was closed"
                self.lock.notify_all()
                self._wake.close()
                self._woken.close()

    def _connect_again_and_again(self) -> None:
        pause, since, patience = FIRST_PAUSE, time.monotonic(), JOIN_PATIENCE
        while not self._closing:
            try:
                stream = connected_socket(self._path)
            except OSError as error:
                if time.monotonic() - since > patience:
                    self._break("there is no connection with koala by {}: {}".format(self._path, error))
            else:
                with stream:
                    if self._speak(stream):
                        pause = FIRST_PAUSE
                since, patience = time.monotonic(), LONGEST_SEPARATION
                with self.lock:
                    self.bargains.disconnected(since)
                    self.lock.notify_all()
            if not self._closing:
                self._pause(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    def _break(self, problem: str) -> None:
        with self.lock:
            self._broken = problem
            self._show(problem)
            self.lock.notify_all()

    def _pause(self, seconds: float) -> None:
        with self.lock:
            if not self._closing:
                self.lock.wait(seconds)

    def _speak(self, stream: socket.socket) -> bool:
        """Speak until the connection ends. Return whether koala has said anything."""
        received, heard = bytearray(), False
        stream.settimeout(0)
        with self.lock:
            self._broken = ""
            self._output.clear()
            self.say(self.process.connected())
            self.bargains.resumed()
            self.negotiate()
        try:
            while self._exchange(stream, received):
                heard = self._hear(received) or heard
                self._send(stream)  # at once: a program that computes lets this thread run only now and then
        except NegotiationError as error:  # no frame: nothing that follows can be told apart
            with self.lock:
                self.refuse(KoalaAppError("what came from koala cannot be read: {}".format(error)))
            _send_last(stream, self._output)
        except OSError:
            pass
        return heard

    def _exchange(self, stream: socket.socket, received: bytearray) -> bool:
        """Send what can be sent, and receive what is there. Return whether the connection goes on."""
        with self.lock:
            waiting = bool(self._output)
            if self._closing and not waiting:
                return False
            deadline = self.bargains.next_deadline()
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        poll = select.poll()
        poll.register(stream, select.POLLIN | (select.POLLOUT if waiting else 0))
        poll.register(self._woken, select.POLLIN)
        ready = dict(poll.poll(None if timeout is None else int(timeout * 1000) + 1))
        if self._woken.fileno() in ready:
            _drain(self._woken)
        events = ready.get(stream.fileno(), 0)
        if events & select.POLLOUT:
            self._send(stream)
        if not events & ~select.POLLOUT:
            return True
        piece = stream.recv(_PIECE)
        received += piece
        return bool(piece)

    def _send(self, stream: socket.socket) -> None:
        with self.lock:
            while self._output:
                try:
                    sent = stream.send(self._output[0])
                except BlockingIOError:
                    return
                except OSError:  # nobody reads any more; why, may have been said before, and is still to be heard
                    self._output.clear()
                    return
                rest = self._output.popleft()[sent:]
                if rest:
                    self._output.appendleft(rest)

    def _hear(self, received: bytearray) -> bool:
        """Take what has come, and what has passed. Return whether a frame was there."""
        heard = False
        with self.lock:
            payload = unframed(received)
            while payload is not None:
                heard = True
                self._take(payload)
                payload = unframed(received)
            self.bargains.time_passed(time.monotonic())
            self._tell_people()
            self.negotiate()
            self.lock.notify_all()
        return heard

    def _take(self, payload: bytes) -> None:
        change = self.process.change
        try:
            if payload.startswith(b"<"):
                self.bargains.receive(payload, time.monotonic())
            else:
                note = parse_note(payload)
                self.say(self.process.heard(note))
                if note.verb == "who":
                    self.bargains.resumed()
                if self.process.told_left is not None:
                    self._time_is_told(self.process.told_left)
        except (KoalaAppError, NegotiationError) as error:
            self.refuse(KoalaAppError("what koala has said cannot be followed: {}".format(error)))
        if change is None and self.process.change is not None:
            self.bargains.changed(self.process.change)
        self.bargains.members_are(max(1, len(self.process.members)), self.process.bounds)

    def _time_is_told(self, seconds_left: int) -> None:
        process = self.process
        self.ends_at, process.told_left = time.monotonic() + seconds_left, None
        self.near_at = self.ends_at - process.warn_before if process.warn_before else None

    def _tell_people(self) -> None:
        for text in self.bargains.complaints:
            self.refuse(KoalaAppError(text))
        for text in self.process.complaints:
            self._show(text)
        del self.bargains.complaints[:]
        del self.process.complaints[:]

    def _show(self, text: str) -> None:
        """Write to standard error, but not the same twice in a row."""
        line = one_line(text)
        if line != self._shown:
            self._shown = line
            show(self.process.own_number, line)

    def _wake_up(self) -> None:
        self.lock.notify_all()
        if threading.current_thread() is self._thread:
            return
        try:
            self._wake.send(b"x")
        except OSError:  # there are enough in it, or nobody reads any more
            pass


def show(rank: int, text: str) -> None:
    """Write a line to standard error, if there is one."""
    try:
        sys.stderr.write("koala_app: process {}: {}\n".format(rank, text))
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass


def connected_socket(path: str) -> socket.socket:
    """Return a connection with the socket of the same user. Raises OSError."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.settimeout(FAREWELL_PATIENCE)
        stream.connect(path)
        if hasattr(socket, "SO_PEERCRED"):
            credentials = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            owner = int.from_bytes(credentials[4:8], sys.byteorder)
            if owner != os.geteuid():
                raise PermissionError("it belongs to user {}".format(owner))
    except OSError:
        stream.close()
        raise
    return stream


def _drain(woken: socket.socket) -> None:
    try:
        woken.recv(_PIECE)
    except BlockingIOError:
        pass


def _send_last(stream: socket.socket, output: Deque[bytes]) -> None:
    try:
        stream.send(b"".join(output))
    except OSError:
        pass
