# SPDX-License-Identifier: Apache-2.0
"""The connection of a process with koala, in a thread of its own, and the calls that a program makes."""

import atexit
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from typing import Callable, Deque, Iterable, List, Optional, Tuple

from koala_adapter.application.bargains import Answer, Bargains
from koala_adapter.application.notes import Change, KoalaAppError, Member, note_payload, one_line, parse_note
from koala_adapter.application.process import Process
from koala_adapter.application.sizes import Sizes, size_rule
from koala_adapter.negotiation import FrameBuffer, NegotiationError, frame

# -- Session: a thread that reads and writes the socket ------------------------------------------------------

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
"""Frames; while more wait to be sent, errors are not reported."""
_PIECE = 65536


class Session:
    """Connection of a process to koala by a Unix socket; its state is protected by `lock`."""

    def __init__(self, path: str, process: Process, bargains: Bargains) -> None:
        self.lock = threading.Condition()
        self.process = process
        self.bargains = bargains
        self.ends_at: Optional[float] = None
        """Monotonic time at which the walltime ends the processes; None: not known."""
        self.near_at: Optional[float] = None
        """Monotonic time from which the end is near, in contact with koala or not; None: never, or not known."""
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
        """Start the thread that speaks with koala."""
        self._thread.start()

    def say(self, payloads: List[bytes]) -> None:
        """Send a message; the caller holds the lock."""
        self._output.extend(frame(one) for one in payloads)
        self._wake_up()

    def negotiate(self) -> None:
        """Send the templates of negotiations; the caller holds the lock."""
        payloads = self.bargains.take_payloads()
        if payloads:
            self.say(payloads)

    def wait(self, over: Callable[[], bool]) -> None:
        """Wait for a condition; the caller holds the lock. Raises KoalaAppError when koala refuses or is gone."""
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
        """Report a wrong call to the user and to koala; the caller holds the lock."""
        self._show(str(error))
        if not self._parting_with:
            self._parting_with = os.getpid()
            atexit.register(self._part)
        if len(self._output) < MOST_WAITING:
            self.say([note_payload("error", text=one_line(str(error)))])

    def _part(self) -> None:
        """Send what is left before the process ends, perhaps by its wrong call."""
        if self._parting_with == os.getpid():  # not a copy of it, which has no thread and perhaps the lock
            self.close()

    def close(self) -> None:
        """Send what is left and close the connection; the caller does not hold the lock."""
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
                    self.process.out_of_contact()
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
        """Serve the connection until it ends; return whether koala has sent anything."""
        frames, heard = FrameBuffer(), False
        stream.settimeout(0)
        with self.lock:
            self._broken = ""
            self._output.clear()
            self.say(self.process.connected())
            self.bargains.resumed()
            self.negotiate()
        try:
            piece = self._exchange(stream)
            while piece is not None:
                heard = self._hear(frames.feed(piece)) or heard
                self._send(stream)  # at once: a program that computes lets this thread run only now and then
                piece = self._exchange(stream)
        except NegotiationError as error:  # no frame: nothing that follows can be told apart
            with self.lock:
                self.refuse(KoalaAppError("what came from koala cannot be read: {}".format(error)))
            _send_last(stream, self._output)
        except OSError:
            pass
        return heard

    def _exchange(self, stream: socket.socket) -> Optional[bytes]:
        """Send and receive once; return the received bytes, or None when the connection has ended."""
        with self.lock:
            waiting = bool(self._output)
            if self._closing and not waiting:
                return None
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
            return b""
        return stream.recv(_PIECE) or None

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

    def _hear(self, payloads: Iterable[bytes]) -> bool:
        """Process received bytes and passed deadlines; return whether a frame was complete."""
        heard = False
        with self.lock:
            for payload in payloads:
                heard = True
                self._take(payload)
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
        """Write to standard error, without direct repetitions."""
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
    """Connect to a Unix socket of the same user. Raises OSError."""
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


# -- Calls: ``join``, and the methods of what it returns -----------------------------------------------------
# They are ``point``, ``done``, ``leave``, ``request`` and ``give_back``.

RIGID = "the program does not run as an adaptive job of koala"
STARTED_WITH = (("KOALA_RANK", "KOALA_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""Variables that say which process this is, for a program that does not run as an adaptive job."""

LONGEST_NUMBER = 10
"""Digits."""


def join(sizes: Sizes = "any", contact: str = "", *, mpi: str = "") -> "App":
    """Return this process' part in the program, once all of the program's processes have joined.

    ``sizes`` says on how many processes the program can run: "any", "power-of-two", "multiple-of-N", or a function
    that is called with the size and the number of processors offered (below 0: wanted back) and returns the size that
    the program wants; it is called by another thread, and must return soon. ``contact`` is a text of at most 200
    bytes by which the others find this process, such as "host:port".

    ``mpi`` is for a program of MPI, of which only the first process joins: "spawn" when it starts newcomers itself,
    which come after the change, or "restart" when all processes end in the change and are started again.

    Not under koala the program is rigid: every call works, and there is never a change.

    Raises KoalaAppError when koala cannot be reached within 30 seconds, or refuses.
    """
    rule = size_rule(sizes)
    path = os.environ.get("KOALA_APP_SOCKET", "")
    if not path:
        return App(_rigid(contact), None)
    process = Process(_started_with()[0], contact, rule.name, os.getpid(), mpi)
    again = os.environ.get("KOALA_APP_RESUME", "").split() if mpi else []
    if len(again) == len(("change", "point")) and all(text.isdigit() for text in again):
        process.come_back(int(again[0]), int(again[1]))
    session = Session(path, process, Bargains(rule, os.uname().nodename))
    app = App(process, session)
    try:
        with session.lock:
            session.start()
            session.wait(lambda: process.state not in ("new", "done"))
    except BaseException:
        session.close()
        raise
    return app


def _started_with() -> Tuple[int, int]:
    for names in STARTED_WITH:
        numbers = [os.environ.get(name, "") for name in names]
        if all(text.isdigit() and len(text) < LONGEST_NUMBER for text in numbers) and int(numbers[0]) < int(numbers[1]):
            return int(numbers[0]), int(numbers[1])
    return 0, 1


def _rigid(contact: str) -> Process:
    rank, size = _started_with()
    process = Process(rank, contact, "any", os.getpid())
    addresses = os.environ.get("KOALA_ADDRESSES", "").split(",")
    known = addresses if len(addresses) == size else [""] * size
    process.be_alone(
        tuple(Member(number, "", known[number], contact if number == rank else "") for number in range(size))
    )
    return process


class App:
    """One process of a program. Its calls are made by one thread."""

    def __init__(self, process: Process, session: Optional[Session]) -> None:
        """Make a session; programs call `join` instead."""
        self._process = process
        self._session = session

    @property
    def rank(self) -> Optional[int]:
        """Rank of this process in the program, from 0; None: it was taken out."""
        return self._process.rank

    @property
    def size(self) -> int:
        """Number of processes of the program."""
        return len(self._process.members)

    @property
    def members(self) -> Tuple[Member, ...]:
        """Processes of the program by rank; after point() returns, those after the change."""
        return self._process.members

    @property
    def change(self) -> Optional[Change]:
        """The change that this process is in, until done() returns; a new process has one when join() returns."""
        return self._process.change

    @property
    def reached(self) -> int:
        """How many points were reached; a new process takes over the count of the others."""
        return self._process.reached

    @property
    def ending(self) -> bool:
        """Whether koala has announced the end of the walltime; a cheap check.

        It is true from ``warn_before`` seconds before that end (see the job file) until koala says otherwise, without
        contact, too. Each process learns of it by itself: one that decides for all what follows has to tell the others.
        """
        near_at = None if self._session is None else self._session.near_at
        return self._process.ending or (near_at is not None and time.monotonic() >= near_at)

    def time_left(self) -> Optional[float]:
        """Return the seconds until the processes are ended as their walltime is over, 0 or more.

        None: not known, as outside koala or under an earlier version of koala. What koala has said once holds without
        contact, too.
        """
        ends_at = None if self._session is None else self._session.ends_at
        return None if ends_at is None else max(0.0, ends_at - time.monotonic())

    def point(self) -> Optional[Change]:
        """Say that this process is at an adaptation point; all processes pass the same points.

        Returns None when nothing is to be done, which costs a look at memory, or the change that all processes carry
        out here: redistribute the state, and call done(). Raises KoalaAppError.
        """
        process = self._process
        process.reached += 1
        if process.attention:
            return self._stand()
        return None

    def _stand(self) -> Optional[Change]:
        session, process = self._session, self._process
        if session is None:
            return None
        with session.lock:
            self._act(session, "stand")
            session.wait(lambda: process.state != "waiting")
            return process.change

    def done(self) -> None:
        """Say that this process has carried out the change, and wait until all have. Raises KoalaAppError.

        A process with rank None has then to call leave() and to exit.
        """
        session, process = self._session, self._process
        if session is None:
            return
        with session.lock:
            self._act(session, "finish")
            session.wait(lambda: process.state != "done")

    def leave(self) -> None:
        """Say that this process, which was taken out, is about to exit. Raises KoalaAppError when it was not."""
        session = self._session
        if session is None:
            return
        with session.lock:
            self._act(session, "leave")
        session.close()

    def request(self, number: int, *, mandatory: bool = False, memory: int = 0) -> Answer:
        """Ask for more processors. Returns how many were granted, and why not all; they come with a later change.

        ``mandatory``: the program cannot go on without; others are shrunk for it. ``memory``: MiB for each new process,
        without which it is of no use; 0: as the others have. Raises KoalaAppError when the number is outside the
        bounds of the job.
        """
        return self._ask("grow", number, mandatory=mandatory, memory=memory)

    def give_back(self, number: int) -> Answer:
        """Give up processors. Returns how many koala will take, with a later change. Raises KoalaAppError."""
        return self._ask("shrink", number, mandatory=False)

    def close(self) -> None:
        """End the connection with koala; the program goes on as it is. A process that ends need not call it."""
        if self._session is not None:
            self._session.close()

    def _ask(self, direction: str, number: int, *, mandatory: bool, memory: int = 0) -> Answer:
        session, process = self._session, self._process
        if session is None:
            return Answer(0, RIGID)
        found: List[Answer] = []
        with session.lock:
            try:
                process.check_asking()
                now, rank = time.monotonic(), process.own_number
                key = session.bargains.ask(direction, number, rank, now, mandatory=mandatory, memory=memory)
            except KoalaAppError as error:
                session.refuse(error)
                raise
            session.negotiate()

            def answered() -> bool:
                answer = session.bargains.answer(key)
                found.extend([answer] if answer is not None else [])
                return bool(found)

            session.wait(answered)
        return found[0]

    def _act(self, session: Session, step: str) -> None:
        try:
            session.say(getattr(self._process, step)())
        except KoalaAppError as error:
            session.refuse(error)
            raise
