# SPDX-License-Identifier: Apache-2.0
"""The state of one process while its program changes size: notes in, notes and states out. No I/O.

========  =============================================================================================
new       has joined, is no member yet
running   is a member, and nothing is asked of it
armed     will stop at the point that was agreed on
waiting   stands there
changing  has the change, and has not said that it is done
done      has said so, and waits for the others
left      was taken out: may only leave
========  =============================================================================================

The program counts its points in `Process.reached`, without a lock, and then reads `Process.attention`. The thread
that arms a process sets `attention` first and reads `reached` afterwards. So when a point is passed at the same
moment, at least one of the two threads sees the other, and `stand`, which is called under the lock as `heard` is,
settles it.
"""

from typing import Callable, Dict, List, Optional, Tuple

from koala_adapter.application.notes import (
    VERSION,
    Bounds,
    Change,
    KoalaAppError,
    Member,
    Note,
    NoteError,
    note_payload,
    parse_bounds,
    parse_change,
    parse_members,
    position,
)

LARGEST_CONTACT = 200
"""Bytes."""
MPI_METHODS: Dict[str, Dict[str, int]] = {"": {}, "spawn": {"spawn": 1}, "restart": {"spawn": 0, "restart": 1}}
"""How a program changes its size whose first process speaks for all of them; and what hello says of it."""


class Process:
    """State of one process of an adaptive program, without I/O. Not thread-safe, except for `reached`."""

    def __init__(self, rank: int, contact: str, sizes: str, pid: int, mpi: str = "") -> None:
        """``rank``: koala's number of the process; `join` gets the others. Raises KoalaAppError."""
        if mpi not in MPI_METHODS:
            raise KoalaAppError("mpi is spawn or restart, not {:.60}".format(repr(mpi)))
        if not isinstance(contact, str) or len(contact.encode("utf-8", "replace")) > LARGEST_CONTACT:
            raise KoalaAppError("contact is a text of at most {} bytes".format(LARGEST_CONTACT))
        self.reached = 0
        self.attention = True
        self.state = "new"
        self.own_number = rank
        self.number = 0
        """Of the change under way or, while new or running, of the last one that has ended here."""
        self.at = 0
        self.members: Tuple[Member, ...] = ()
        self.bounds = Bounds()
        self.change: Optional[Change] = None
        self.leaving = False
        self.ending = False
        """Whether koala has said that the end of the walltime is near."""
        self.told_left: Optional[int] = None
        """Seconds that are left of it, as koala has just told; the caller that reads it resets it."""
        self.warn_before = 0
        """So many seconds before its end the walltime is near, by itself; 0: never."""
        self.failure = ""
        """Why koala refuses a call that waits; the caller that reads it resets it."""
        self.complaints: List[str] = []
        """Messages for the user; the caller that reads them removes them."""
        self._contact = contact
        self._sizes = sizes
        self._mpi = MPI_METHODS[mpi]
        self._pid = pid
        self._ended = 0
        """Number of the last change that has ended here."""
        self._said = ""
        """The last note of an agreement that has not ended, which hello does not tell of."""
        self._agreement = 0
        self._hearing: Dict[str, Callable[[Note], List[bytes]]] = {
            "who": self._heard_who, "welcome": self._heard_welcome, "when": self._heard_when,
            "stop": self._heard_stop, "abandon": self._heard_abandon, "change": self._heard_change,
            "resume": self._heard_resume, "fail": self._heard_fail, "ends": self._heard_ends,
            "away": self._heard_away,
        }  # fmt: skip

    @property
    def rank(self) -> Optional[int]:
        """Rank in the program; None when it is no member."""
        return position(self.own_number, self.members)

    def be_alone(self, members: Tuple[Member, ...]) -> None:
        """Run without koala as one of these members."""
        self.members = members
        self._run()

    def come_back(self, number: int, at: int) -> None:
        """Continue where an earlier process ended in a change, which is done in this one."""
        self.state, self.number, self.at, self.reached = "done", number, at, at

    # What koala says.

    def connected(self) -> List[bytes]:
        """Return the first messages for a new connection."""
        hello = note_payload(
            "hello", version=VERSION, state=self.state, change=self.number, at=self.at, reached=self.reached,
            contact=self._contact, sizes=self._sizes, pid=self._pid,
            ends=1, away=1, **self._mpi,
        )  # fmt: skip
        said = [hello]
        if self.state == "running" and self._said:
            said.append(note_payload(self._said, **self._count()))
        if self.leaving:
            said.append(note_payload("leaving"))
        return said

    def heard(self, note: Note) -> List[bytes]:
        """Process a note of koala and return the replies. Raises KoalaAppError for an invalid one."""
        if note.verb == "error":  # for people, and never answered
            self.complaints.append(note.words.get("text", ""))
            return []
        if note.verb not in self._hearing:
            raise NoteError("{} is not known here".format(note.verb))
        return self._hearing[note.verb](note)

    def _heard_who(self, _note: Note) -> List[bytes]:
        return self.connected()

    def _heard_welcome(self, note: Note) -> List[bytes]:
        if self.state != "new":
            return []
        number, members = note.number("rank"), parse_members(note.text("members"))
        if len(members) != note.number("size") or position(number, members) is None:
            raise NoteError("welcome rank={} does not fit to its members".format(number))
        self.own_number, self.members, self.bounds = number, members, parse_bounds(note)
        self._run()
        return []

    def _heard_when(self, note: Note) -> List[bytes]:
        number = note.number("change")
        if self._is_no_matter(number):
            return []
        self._require("running", "armed", "waiting", note=note)
        self._agreement, self._said = number, "reached"
        return [note_payload("reached", **self._count())]

    def _heard_stop(self, note: Note) -> List[bytes]:
        number, at = note.number("change"), note.number("at")
        if self._is_no_matter(number):
            return []
        self._require("running", "armed", "waiting", note=note)
        if self.state == "waiting" and at == self.at:
            self.number = number
            return [note_payload("waiting", change=number, at=at)]
        self.attention = True  # before `reached` is looked at
        self._agreement, self._said = number, ""
        if at > self.reached:
            self.state, self.number, self.at = "armed", number, at
            return [note_payload("armed", change=number, at=at)]
        if self.state != "waiting":
            self._run()
            self._said = "passed"
        return [note_payload("passed", **self._count())]

    def _count(self) -> Dict[str, int]:
        count = "point" if self._said == "reached" else "reached"
        return {"change": self._agreement, count: self.reached}

    def _heard_abandon(self, note: Note) -> List[bytes]:
        number = note.number("change")
        if number == self._agreement:
            self._said = ""
        if self.state in ("armed", "waiting") and number == self.number:
            self._run()
        return []

    def _heard_away(self, _note: Note) -> List[bytes]:
        """Handle the news that the agent has lost koala: changes that not all processes wait for are off."""
        self.out_of_contact()
        return []

    def out_of_contact(self) -> None:
        """Pass a point without koala, which will set another one later.

        A process that has said it stays: all may have, and the change may be recorded.
        """
        self._said = ""
        if self.state == "armed":
            self._run()

    def _heard_change(self, note: Note) -> List[bytes]:
        number, at = note.number("change"), note.number("at")
        if number == self.number and self.state == "changing":
            return []
        if number == self.number and self.state == "done":
            if self.change is None:
                self._take(note, number, at)
                self.state = "done"
            return [note_payload("done", change=number)]
        if number <= self._ended and self.state in ("running", "left"):
            return []
        self._require("new", "waiting", note=note)
        if self.state == "waiting" and (number, at) != (self.number, self.at):
            raise NoteError("change {} at {} is not {} at {}, for which this process waits".format(
                number, at, self.number, self.at))  # fmt: skip
        self._take(note, number, at)
        return []

    def _take(self, note: Note, number: int, at: int) -> None:
        own = note.number("rank") if "rank" in note.words else self.own_number
        change = parse_change(note, own, self.members)
        if self.state == "new" and change.rank is None:
            raise NoteError("change {} takes out this process, which is not a member yet".format(number))
        self.own_number, self.members, self.bounds = own, change.members, parse_bounds(note)
        self.state, self.number, self.at, self.reached = "changing", number, at, at
        self.change = change
        self._said = ""

    def _heard_resume(self, note: Note) -> List[bytes]:
        number = note.number("change")
        if number <= self._ended and self.state in ("running", "left"):
            return []
        if self.state != "done" or number != self.number:
            raise NoteError("resume change={} does not follow: this process is {}".format(number, self._standing()))
        self._ended = number
        if self.change is not None and self.change.rank is None:
            self.state, self.attention = "left", True
        else:
            self._run()
        self.change = None
        return []

    def _heard_fail(self, note: Note) -> List[bytes]:
        self.failure = note.words.get("text", "") or "koala has refused something and does not say what"
        self.complaints.append(self.failure)
        if self.state == "waiting":
            self._run()
        return []

    def _heard_ends(self, note: Note) -> List[bytes]:
        self.told_left = note.number("in")
        self.ending = note.words.get("near") == "1"
        self.warn_before = note.number("warn") if "warn" in note.words else 0
        return []

    def _is_no_matter(self, number: int) -> bool:
        """Return whether a message about a change is late, repeated or early, and to be ignored.

        A process that is new has lost its welcome, and one that is done and hears of the next change its resume; what
        it has said itself brings that again.
        """
        return (
            self.state in ("new", "done")
            or number <= self._ended
            or (number == self.number and self.state == "changing")
        )

    def _run(self) -> None:
        self.state, self.number, self.at, self.attention = "running", self._ended, 0, False

    def _require(self, *states: str, note: Note) -> None:
        if self.state not in states:
            raise NoteError("{} does not follow: this process is {}".format(note.verb, self._standing()))

    def _standing(self) -> str:
        return self.state if self.state in ("new", "running") else "{} (change {})".format(self.state, self.number)

    # What the program does.

    def stand(self) -> List[bytes]:
        """Report that the program is at the point just counted, because `attention` was set.

        The state is ``waiting`` afterwards if it has to wait. Raises KoalaAppError when it may not be at a point.
        """
        if self.state in ("changing", "done", "left", "new"):
            self.reached -= 1
            if self.state == "left":
                raise KoalaAppError("point() in a process that was taken out: it calls leave(), and exits")
            raise KoalaAppError("point() before done(): change {} is not finished".format(self.number))
        if self.state == "armed" and self.reached >= self.at:
            self.state = "waiting"
            return [note_payload("waiting", change=self.number, at=self.at)]
        return []

    def check_asking(self) -> None:
        """Raise KoalaAppError during a change, when a request for processors would be ambiguous."""
        if self.state in ("changing", "done", "left"):
            raise KoalaAppError(
                "a process asks for processors when it is in no change, not while {}".format(self.state)
            )

    def finish(self) -> List[bytes]:
        """Report that the program has made the change. Raises KoalaAppError when there is none."""
        if self.state == "done":
            return []
        if self.state != "changing":
            raise KoalaAppError("done() without a change: this process is {}".format(self._standing()))
        self.state = "done"
        return [note_payload("done", change=self.number)]

    def leave(self) -> List[bytes]:
        """Report that this process is about to exit. Raises KoalaAppError when it was not asked to."""
        if self.state in ("changing", "done") and self.change is not None and self.change.rank is None:
            raise KoalaAppError("leave() before done(): change {} is not finished".format(self.number))
        if self.state != "left":
            raise KoalaAppError("leave() of a process that was not taken out: this process is {}".format(
                self._standing()))  # fmt: skip
        self.leaving = True
        return [note_payload("leaving")]
