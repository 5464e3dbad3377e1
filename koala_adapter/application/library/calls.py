# SPDX-License-Identifier: Apache-2.0
"""The calls of the library: `join`, and `point`, `done`, `leave`, `request` and `give_back` of what it returns."""

import os
import time
from typing import List, Optional, Tuple

from koala_adapter.application.library.bargains import Answer, Bargains
from koala_adapter.application.library.members import Change, Member
from koala_adapter.application.library.notes import KoalaAppError
from koala_adapter.application.library.process import Process
from koala_adapter.application.library.session import Session
from koala_adapter.application.library.sizes import Sizes, size_rule

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
        """Not to be called: see `join`."""
        self._process = process
        self._session = session

    @property
    def rank(self) -> Optional[int]:
        """Rank of this process in the program, from 0 on; None: it was taken out."""
        return self._process.rank

    @property
    def size(self) -> int:
        """Number of processes of the program."""
        return len(self._process.members)

    @property
    def members(self) -> Tuple[Member, ...]:
        """The processes of the program by their ranks; from the return of point() on those after the change."""
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
        """Whether the end of the walltime is near, as koala has told; costs a look at memory and at the clock.

        It is true from ``warn_before`` seconds before that end (see the job file) until koala says otherwise, without
        contact, too. Each process learns of it by itself: one that decides for all what follows has to tell the others.
        """
        near_at = None if self._session is None else self._session.near_at
        return self._process.ending or (near_at is not None and time.monotonic() >= near_at)

    def time_left(self) -> Optional[float]:
        """Return the seconds until the processes are ended as their walltime is over, 0 or more.

        None: nobody knows, as outside koala, or under a koala of an earlier version. What koala has said once holds
        without contact, too.
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
