# SPDX-License-Identifier: Apache-2.0
"""An adaptive program in small: the library's own processes, a relay that loses things, and the scheduler's records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from koala_adapter.application.notes import KoalaAppError
from koala_adapter.application.notes import parse_note as parse_as_library
from koala_adapter.application.process import Process
from koala_adapter.model import JobId
from koala_adapter.runners.coordinator import Coordinator
from koala_adapter.runners.notes import (
    Membership,
    Place,
    WantedChange,
    note,
    parse_note,
    payload_of,
)
from koala_adapter.scheduler.events import ChangeGivenUp, ChangeMade, PointReached, RankEnded

PATIENCE = 60.0
DONE_PATIENCE = 600.0


@dataclass
class Member:
    """A process with its program, and what is on its way between it and koala."""

    process: Process
    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    over: bool = False
    counted: bool = False
    """Whether the program has counted a point at which it has not looked yet for what is to be done."""
    adapted: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    """Of each change: its number, the point, and the ranks of the members afterwards."""
    known: tuple[int, ...] = ()
    """Ranks of the members that the program computes with since its latest change, in their order."""

    def say(self, payloads: list[bytes]) -> None:
        self.up.extend(payloads)

    def go_on(self) -> None:
        """Let the program do the next thing that it can do."""
        process = self.process
        if self.over or process.state in {"new", "waiting", "done"}:
            return
        if process.state == "changing":
            change = process.change
            if change is not None:
                told = tuple(one.rank for one in change.old)
                assert self.known in {(), told}, f"computes with {self.known}, and is told {told}"
                self.known = tuple(one.rank for one in change.members)
                self.adapted.append((change.number, change.at, tuple(one.rank for one in change.members)))
            self.say(process.finish())
        elif process.state == "left":
            self.say(process.leave())
            self.over = True
        elif self.counted:
            self.counted = False
            if process.attention:
                self.say(process.stand())
        else:
            process.reached += 1
            self.counted = True


class World:
    """One component, from the scheduler's records down to its processes."""

    def __init__(self, size: int) -> None:
        """Start the first members, which say hello."""
        self.now = 0.0
        self.processes: dict[int, Member] = {}
        self.members: tuple[int, ...] = ()
        self.wanted: tuple[WantedChange, ...] = ()
        self.departed: set[int] = set()
        self.changes = 0
        self.promised: list[int] = []
        self.given_up: list[str] = []
        self.made: list[int] = []
        self.complaints: list[str] = []
        self.overdue: list[RankEnded] = []
        self.coordinator = Coordinator(JobId("1"), PATIENCE, DONE_PATIENCE)
        self.members = tuple(self.start() for _ in range(size))
        self.follow()

    def start(self) -> int:
        rank = len(self.processes)
        member = Member(Process(rank, f"port{rank}", "any", 1000 + rank))
        member.say(member.process.connected())
        self.processes[rank] = member
        return rank

    # ---- the scheduler's records ----------------------------------------------------------------------------------

    def membership(self) -> Membership:
        """Return what the records say."""
        let_go = {rank for one in self.wanted if one.made for rank in one.leaving}
        here = [rank for rank in (*self.members, *self.joining()) if rank not in self.departed]
        return Membership(
            members=tuple(rank for rank in self.members if rank not in let_go),
            places={rank: Place(rank=rank, cluster="c", address=f"node{rank}") for rank in here},
            wanted=self.wanted,
            ended=frozenset(rank for rank in here if self.processes[rank].over),
            minimum=1,
            maximum=99,
        )

    def joining(self) -> list[int]:
        return [rank for one in self.wanted for rank in one.joining]

    def grow(self, count: int) -> None:
        """Have the scheduler start newcomers for a change."""
        self.changes += 1
        self._start_newcomers(self.changes, count)

    def promise(self) -> None:
        """Have the scheduler number a growth whose placeholders come later than those of others after it."""
        self.changes += 1
        self.promised.append(self.changes)

    def keep_promise(self, count: int) -> None:
        """Have the scheduler start newcomers for the oldest growth that was only numbered so far."""
        if self.promised:
            self._start_newcomers(self.promised.pop(0), count)

    def _start_newcomers(self, number: int, count: int) -> None:
        joining = tuple(self.start() for _ in range(count))
        self.wanted = (*self.wanted, WantedChange(number=number, joining=joining, reason="free"))
        self.follow()

    def shrink(self, count: int) -> None:
        """Have the scheduler want processors back."""
        taken = {rank for one in self.wanted for rank in one.leaving}
        able = [rank for rank in self.membership().members[1:] if rank not in taken]
        if not able[-count:]:
            return
        self.changes += 1
        self.wanted = (*self.wanted, WantedChange(number=self.changes, leaving=tuple(able[-count:])))
        self.follow()

    def withdraw(self) -> None:
        """Have the scheduler want none of the changes any more that are not being carried out."""
        for one in self.wanted:
            if not one.adaptation:
                self._drop(one)
        self.follow()

    def _drop(self, one: WantedChange) -> None:
        self.wanted = tuple(other for other in self.wanted if other.number != one.number)
        for rank in one.joining:
            self.departed.add(rank)
            self.processes[rank].over = True

    def follow(self) -> None:
        """Let the coordinator see the records, and do what it wants."""
        self.coordinator.update(self.membership(), self.now)
        self._carry_out()

    def _carry_out(self) -> None:
        for report in self.coordinator.take_reports():
            by_number = {one.number: one for one in self.wanted}
            if isinstance(report, PointReached) and report.number in by_number:
                one = replace(by_number[report.number], adaptation=report.adaptation, point=report.point)
                self._stand(one)
                self.wanted = tuple(one if other.number == one.number else other for other in self.wanted)
            elif isinstance(report, ChangeMade) and report.number in by_number:
                self._made(by_number[report.number])
            elif isinstance(report, ChangeGivenUp) and report.number in by_number:
                assert not by_number[report.number].adaptation
                self.given_up.append(report.reason)
                self._drop(by_number[report.number])
            elif isinstance(report, RankEnded):
                self.overdue.append(report)
            self.coordinator.update(self.membership(), self.now)
        for told in self.coordinator.take_tells():
            self.processes[told.rank].down.append(payload_of(told.note))
        if self.coordinator.take_reports() or self.coordinator.take_tells():
            raise AssertionError("something was wanted while nothing had happened")

    def _stand(self, one: WantedChange) -> None:
        """Look at the processes when they are said to stand at the point."""
        assert not any(other.adaptation and not other.made for other in self.wanted), "two changes at once"
        for rank in self.membership().members:
            process = self.processes[rank].process
            assert process.state == "waiting", f"{rank} is {process.state}"
            assert process.reached == process.at == one.point

    def _made(self, one: WantedChange) -> None:
        self.made.append(one.number)
        if one.joining:
            self.members = (*self.members, *one.joining)
            self.wanted = tuple(other for other in self.wanted if other.number != one.number)
        else:
            self.wanted = tuple(replace(o, made=True) if o.number == one.number else o for o in self.wanted)

    # ---- what happens ---------------------------------------------------------------------------------------------

    def alive(self) -> list[int]:
        return [rank for rank, one in self.processes.items() if not one.over]

    def hear(self, rank: int) -> None:
        member = self.processes[rank]
        if member.up:
            said = member.up.popleft()
            if rank in self.membership().places:
                self.coordinator.heard(rank, parse_note(said), self.now)
                self._carry_out()

    def tell(self, rank: int) -> None:
        member = self.processes[rank]
        if member.down and not member.over:
            try:
                member.say(member.process.heard(parse_as_library(member.down.popleft())))
            except KoalaAppError as error:
                self.complaints.append(str(error))

    def go_on(self, rank: int) -> None:
        member = self.processes[rank]
        before = member.over
        member.go_on()
        if member.over and not before:
            self._left(rank)

    def take_turns(self, count: int = 1, able: Callable[[int], bool] = lambda _: True) -> None:
        """Let each process hear, be heard and, if it is able to, go on, so often."""
        for _ in range(count):
            for rank in self.alive():
                self.tell(rank)
                self.hear(rank)
                if able(rank):
                    self.go_on(rank)

    def _left(self, rank: int) -> None:
        """Take a process that was taken out out of the records."""
        self.departed.add(rank)
        self.members = tuple(one for one in self.members if one != rank)
        self.wanted = tuple(one for one in self.wanted if not (one.made and self.departed.issuperset(one.leaving)))
        self.follow()

    def newcomer_dies(self, rank: int) -> None:
        """End a process that is started for a growth which may still be given up."""
        for one in self.wanted:
            if rank in one.joining and not one.adaptation:
                self._drop(one)
                self.follow()
                return

    def lose_contact(self, rank: int) -> None:
        """Lose what is on its way, both ways; the agent comes back and is asked how things stand."""
        member = self.processes[rank]
        member.up.clear()
        member.down.clear()
        self.coordinator.lost(rank)
        self.coordinator.back(rank, self.now)
        member.down.append(payload_of(note("who")))

    def break_connection(self, rank: int) -> None:
        """Break the connection of a process with its agent, of which koala does not know; it makes another."""
        member = self.processes[rank]
        member.up.clear()
        member.down.clear()
        member.say(member.process.connected())

    def restart_service(self) -> None:
        """Begin with a new coordinator, which knows the records alone; what was on its way to processes is gone."""
        self.coordinator = Coordinator(JobId("1"), PATIENCE, DONE_PATIENCE)
        for rank in self.alive():
            self.processes[rank].down.clear()
            self.processes[rank].down.append(payload_of(note("who")))
        self.follow()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.coordinator.time_passed(self.now)
        self._carry_out()

    def settle(self) -> None:
        """Let everything arrive and every program go on, until nothing is left to be done."""
        for turn in range(2000):
            self.take_turns()
            if turn % 200 == 199:
                self.wait(PATIENCE + 1)
            if turn % 10 == 9 and not self.wanted and self._quiet():
                return
        raise AssertionError(
            f"never quiet: {self.wanted}, {[(r, self.processes[r].process.state) for r in self.alive()]}"
        )

    def _quiet(self) -> bool:
        members = [self.processes[rank] for rank in self.alive()]
        return all(one.process.state == "running" and not one.up and not one.down for one in members)
