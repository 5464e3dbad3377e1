# SPDX-License-Identifier: Apache-2.0
"""koala's end of changes of size, as the protocol has it: for tests of the library alone. Pure.

It keeps in mind what a service writes down (the members, and which change is under way) and can forget all the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.application.notes import Member, Note, encoded, note_payload

Said = list[tuple[int, bytes]]
"""What is said to whom."""


if TYPE_CHECKING:
    from collections.abc import Iterable


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
    left: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    failed: bool = False
    """A member has died: the program is over."""

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

    def out_of_contact(self, rank: int) -> None:
        """Begin nothing before a process whose connection broke has said where it is: it may lack its resume."""
        if self.phase in {"idle", "asked"}:
            self.phase = "asked"
            self.hellos.pop(rank, None)

    def died(self, rank: int) -> Said:
        """Take note that a process is gone."""
        self.lost.add(rank)
        if rank in self.left or rank not in self._expected():
            return []
        if self.plan is not None and rank in self.plan.joining and self.phase in {"gathering", "asking", "stopping"}:
            return self.abandon()
        self.failed = True
        return []

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
                self.left.add(rank)
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
