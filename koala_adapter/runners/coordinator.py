# SPDX-License-Identifier: Apache-2.0
"""Coordination of processes that compute in step: all of them change at the same point of progress. Pure.

This is DYNACO's execution with adaptation points of AFPAC (CoreGRID TR-0092). Each process counts the adaptation points
that it has reached. The point of a change is one that none has reached yet: the largest count that was reported, plus
one. No process stops while it is being agreed upon. A process that has passed it meanwhile says so, and the point is
put further away, each time twice as far, because the points of a program may come faster than messages.

Messages between koala and a process may get lost with a connection. A process says where it is on each new connection,
and is then told what it still has to know. What must not be forgotten is in the scheduler's records: that all stand at
the point (before any is told to change), and that all are done (before any is told to go on). So after a restart a
change that was begun is finished, and one that was not is agreed on anew.

In order: one process, one change, the coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from koala_adapter.errors import ProtocolError
from koala_adapter.model import EndReason, JobId, TaskEnd
from koala_adapter.runners.notes import (
    LARGEST_NUMBER,
    Complaint,
    Membership,
    Note,
    Tell,
    WantedChange,
    change_note,
    note,
    welcome_note,
)
from koala_adapter.scheduler.events import ChangeGivenUp, ChangeMade, Event, PointReached, RankEnded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# -- One process of an adaptive component, by its last messages ----------------------------------------------

VERSION = 1
"""Of the notes."""
LONGEST_CONTACT = 200
"""Bytes."""


class Stand(StrEnum):
    """State of a process within a change."""

    NEW = "new"
    """It has joined, and is no member yet."""
    RUNNING = "running"
    ARMED = "armed"
    """It will stop at the point that was agreed on."""
    WAITING = "waiting"
    """It stands there."""
    CHANGING = "changing"
    """It has the change, and has not said that it is done."""
    DONE = "done"
    """It waits for the others."""
    LEFT = "left"
    """It was taken out and may only leave."""


@dataclass(slots=True)
class Process:
    """One process; what it says later is noted here."""

    stand: Stand
    change: int
    """Number of the change that it is in; of the last one that has ended for it, while it is new or running."""
    at: int
    reached: int
    contact: str = ""
    sizes: str = "any"
    begun_anew: bool = False
    """It was started again in the middle of a change (MPI programs that restart), and is to hear of it once more."""
    leaving: bool = False
    """It is about to exit."""

    def in_change(self, number: int, *stands: Stand) -> bool:
        """Return whether the process is in one of these states of a change."""
        return self.change == number and self.stand in stands

    def past(self, number: int) -> bool:
        """Return whether the process has finished a change."""
        return self.stand in {Stand.RUNNING, Stand.LEFT} and self.change >= number

    def move(self, stand: Stand, change: int, at: int = 0) -> None:
        """Set the state of the process."""
        self.stand, self.change, self.at = stand, change, at


def process_of(hello: Note) -> Process:
    """Create a process from its first message. Raises ProtocolError."""
    if hello.number("version") != VERSION:
        raise ProtocolError(f"hello has version={hello.text('version')}: koala speaks {VERSION}")
    try:
        stand = Stand(hello.text("state"))
    except ValueError:
        raise ProtocolError(f"hello has state={hello.text('state')[:40]}, which is none") from None
    contact = hello.words.get("contact", "")
    if len(contact.encode()) > LONGEST_CONTACT:
        raise ProtocolError(f"hello has a contact of more than {LONGEST_CONTACT} bytes")
    return Process(
        stand=stand,
        change=hello.number("change"),
        at=hello.number("at"),
        reached=hello.number("reached"),
        contact=contact,
        sizes=hello.words.get("sizes", "any")[:40],
        begun_anew=stand is Stand.DONE and hello.words.get("restart") == "1",
    )


# -- One change under way: how far it is, and which processes it waits for -----------------------------------

_ACTIVE = (Stand.RUNNING, Stand.ARMED, Stand.WAITING)


class Stage(IntEnum):
    """Stage of a change."""

    GATHERING = 0
    """Members or newcomers are not all in contact yet."""
    ASKING = 1
    """How far are you?"""
    ARMING = 2
    """The point is set; not all stand there."""
    RECORDING = 3
    """All stand there; that is being written down."""
    CHANGING = 4
    CLOSING = 5
    """All are done; that is being written down."""


@dataclass(slots=True)
class ChangeUnderWay:
    """One change of the processes of a component, from the first question to the last answer."""

    wanted: WantedChange
    since: float
    stage: Stage = Stage.GATHERING
    number: int = 0
    at: int = 0
    distance: int = 1
    counts: dict[int, int] = field(default_factory=dict)
    told: bool = False
    """Those who stand have been told the change."""
    warned: bool = False
    """They have been told who holds it up."""
    overdue: RankEnded | None = None
    """End of the process that is taken as lost for that."""

    def ready(self, membership: Membership, processes: Mapping[int, Process]) -> bool:
        """Return whether all members compute and all new processes are in contact, so that a point can be set."""
        members = [processes.get(rank) for rank in membership.speakers]
        newcomers = [processes.get(rank) for rank in membership.awaited(self.wanted)]
        return all(one is not None and one.stand in _ACTIVE for one in members) and all(
            one is not None and one.stand is Stand.NEW for one in newcomers
        )

    def all_at_point(self, membership: Membership, processes: Mapping[int, Process]) -> bool:
        """Return whether all members wait at the point and all new processes are in contact."""
        members = [processes.get(rank) for rank in membership.speakers]
        newcomers = (processes.get(rank) for rank in membership.awaited(self.wanted))
        return None not in newcomers and all(
            one is not None and one.in_change(self.number, Stand.WAITING) and one.at == self.at for one in members
        )

    def unfinished(self, membership: Membership, processes: Mapping[int, Process]) -> list[int]:
        """Return the processes that the change waits for."""
        waited_for = []
        for rank in (*membership.speakers, *membership.awaited(self.wanted)):
            process = processes.get(rank)
            done = process is not None and (
                not self.told or process.in_change(self.number, Stand.DONE) or process.past(self.number)
            )
            if not done and rank not in membership.ended:
                waited_for.append(rank)
        return waited_for

    def problem(self, membership: Membership, processes: Mapping[int, Process]) -> str:
        """Return why a change that no process knows of cannot be made; empty when it can."""
        if self.at > LARGEST_NUMBER:
            return f"its processes count more than {LARGEST_NUMBER} adaptation points"
        for rank in membership.speakers:
            if rank in membership.ended:
                return f"process {rank} has ended"
            process = processes.get(rank)
            if process is not None and process.leaving:
                return f"process {rank} is about to exit"
        return ""

    def held_up_by(self, membership: Membership, processes: Mapping[int, Process]) -> str:
        """Return the ranks for which a change could not be made in time."""
        for rank in membership.speakers:
            if rank not in processes:
                return f"process {rank} was out of contact, and has not come back"
        for rank in membership.awaited(self.wanted):
            if rank not in processes:
                return f"the new process {rank} has not joined"
        return f"{who_has(self.late(membership, processes))} not reached an adaptation point"

    def late(self, membership: Membership, processes: Mapping[int, Process]) -> list[int]:
        """Return the old members in contact that have not reached the point."""
        there = [rank for rank in membership.speakers if rank in processes]
        return [rank for rank in there if not (processes[rank].in_change(self.number, Stand.WAITING) and self.number)]


def who_has(ranks: Sequence[int]) -> str:
    """Return the beginning of a sentence about processes, such as "rank 3 has"."""
    return f"process {ranks[0]} has" if len(ranks) == 1 else f"processes {', '.join(map(str, ranks))} have"


# -- The coordinator of one component ------------------------------------------------------------------------

LAST_WORDS = 2.0
"""Seconds in which the processes can tell people why their job is about to end."""


class Coordinator:
    """Brings the processes of one component from one size to another, one change at a time."""

    def __init__(self, job_id: JobId, patience: float, done_patience: float = 600.0) -> None:
        """``patience``: seconds in which all must stand at a point, or have joined, before a change is given up.

        ``done_patience``: seconds in which all must have carried it out; a process that has not is taken as lost.
        """
        self._job_id = job_id
        self._patience = patience
        self._done_patience = done_patience
        self._membership = Membership(members=(), places={})
        self._processes: dict[int, Process] = {}
        """Those that have said where they are since they came, or came back, into contact."""
        self._away: set[int] = set()
        """Those whose agents are out of contact: others watch over how long that may last."""
        self._current: ChangeUnderWay | None = None
        self._given_up: dict[int, str] = {}
        """Reasons by the numbers of changes that the records still have."""
        self._highest = 0
        self._tells: list[Tell] = []
        self._reports: list[Event | Complaint] = []

    # ---- what happens ---------------------------------------------------------------------------------------------

    def update(self, membership: Membership, now: float) -> None:
        """Take over the scheduler's records."""
        if membership == self._membership:
            return
        self._membership = membership
        wanted = {one.number for one in membership.wanted}
        self._given_up = {number: reason for number, reason in self._given_up.items() if number in wanted}
        for rank in self._processes.keys() - membership.places.keys():
            del self._processes[rank]
        self._away.intersection_update(membership.places)
        self._go_on(now)

    def heard(self, rank: int, said: Note, now: float) -> None:
        """Process a message of a process. Raises ProtocolError for one that is not allowed now."""
        if said.verb == "hello":
            self._processes[rank] = process = process_of(said)
            self._highest = max(self._highest, process.change)
            self._welcome()
            self._remind(rank, process)
            self._report_again(now)
        elif said.verb == "error":
            self._reports.append(Complaint(rank=rank, text=said.text("text")))
        else:
            process_known = self._processes.get(rank)
            if process_known is None:
                return  # it was on its way when the contact was lost: the hello that comes says it, too
            self._take(rank, process_known, said)
        self._go_on(now)

    def lost(self, rank: int) -> None:
        """Register that the agent of a process is out of contact; the process reports itself when it is back."""
        self._processes.pop(rank, None)
        self._away.add(rank)

    def back(self, rank: int, now: float) -> None:
        """Register that the agent of a process is in contact again; the process will report itself."""
        self._processes.pop(rank, None)
        self._away.discard(rank)
        if self._current is not None and self._current.stage is Stage.CHANGING:
            self._current.since = now

    def time_passed(self, now: float) -> None:
        """Give up the change whose time is over."""
        self._go_on(now)

    def next_deadline(self) -> float | None:
        """Return the next time at which `time_passed` must be called; None: not before another event."""
        current = self._current
        if current is None or current.stage in {Stage.RECORDING, Stage.CLOSING}:
            return None
        if current.stage < Stage.RECORDING:
            return current.since + self._patience
        if self._away or current.overdue is not None:
            return None
        return current.since + self._done_patience + LAST_WORDS * current.warned

    # ---- what follows ---------------------------------------------------------------------------------------------

    def take_tells(self) -> list[Tell]:
        """Return the messages to be sent, and clear them."""
        tells, self._tells = self._tells, []
        return tells

    def take_reports(self) -> list[Event | Complaint]:
        """Return and clear the events for the scheduler, and what processes did that they may not do."""
        reports, self._reports = self._reports, []
        return reports

    @property
    def joined(self) -> bool:
        """Return whether all members are in contact and take part."""
        known = [self._processes.get(rank) for rank in self._membership.speakers]
        return bool(known) and all(one is not None and one.stand is not Stand.NEW for one in known)

    # ---- what a process says --------------------------------------------------------------------------------------

    def _take(self, rank: int, process: Process, said: Note) -> None:
        match said.verb:
            case "reached":
                self._reached(rank, process, said.number("change"), said.number("point"))
            case "armed":
                process.move(Stand.ARMED, said.number("change"), said.number("at"))
            case "passed":
                self._passed(rank, process, said.number("change"), said.number("reached"))
            case "waiting":
                process.move(Stand.WAITING, said.number("change"), said.number("at"))
                process.reached = max(process.reached, process.at)
            case "done":
                process.move(Stand.DONE, said.number("change"), process.at)
                self._remind(rank, process)
            case "leaving":
                process.leaving = True
            case _:
                raise ProtocolError(f"{said.verb} is not known here")

    def _reached(self, rank: int, process: Process, number: int, point: int) -> None:
        process.reached = max(process.reached, point)
        current = self._current
        member = rank in self._membership.speakers
        if current is not None and current.stage is Stage.ASKING and number == current.number and member:
            current.counts[rank] = point

    def _passed(self, rank: int, process: Process, number: int, reached: int) -> None:
        process.reached = max(process.reached, reached)
        current = self._current
        if current is None or current.stage is not Stage.ARMING or number != current.number:
            return
        if rank not in self._membership.speakers:
            raise ProtocolError("passed is said by members, and this process is none yet")
        process.move(Stand.RUNNING, 0)
        if reached >= current.at:
            current.distance *= 2
            known = (self._processes.get(speaker) for speaker in self._membership.speakers)
            self._set_point(current, max(one.reached for one in known if one is not None))
        else:  # it passed an earlier one: that it is to stop at this one is on its way
            self._tells.append(Tell(rank, note("stop", change=current.number, at=current.at)))

    def _set_point(self, current: ChangeUnderWay, reached: int) -> None:
        """Set the point of a change beyond all counts, and tell the members if all can know it in time."""
        current.at = reached + current.distance
        if current.at <= LARGEST_NUMBER:
            self._say(self._membership.speakers, note("stop", change=current.number, at=current.at))

    # ---- what a process has to know -------------------------------------------------------------------------------

    def _remind(self, rank: int, process: Process) -> None:
        """Repeat to a process what it may have missed."""
        current = self._current
        number = current.number if current is not None and current.stage > Stage.GATHERING else 0
        if process.stand in {Stand.ARMED, Stand.WAITING} and process.change != number:
            self._tells.append(Tell(rank, note("abandon", change=process.change)))
            process.move(Stand.RUNNING, 0)
        if process.stand is Stand.DONE and process.change != number:
            self._resume(rank, process)
        if current is None:
            return
        old = rank in self._membership.speakers
        if current.stage is Stage.ASKING and old and rank not in current.counts:
            self._tells.append(Tell(rank, note("when", change=number)))
        elif current.stage is Stage.ARMING and old and process.at != current.at:
            self._tells.append(Tell(rank, note("stop", change=number, at=current.at)))
        elif current.stage is Stage.CHANGING and current.told:
            self._tell_change(current, rank, process)

    def _report_again(self, now: float) -> None:
        """Repeat a report that the records do not show; repeating does no harm."""
        for number, reason in self._given_up.items():
            self._report_given_up(number, reason, now)
        current = self._current
        if current is not None and current.stage is Stage.RECORDING:
            self._report_all_stand(current, now)
        elif current is not None and current.stage is Stage.CLOSING:
            self._report_made(current, now)
        elif current is not None and current.overdue is not None:
            self._reports.append(replace(current.overdue, time=now))

    def _report_all_stand(self, current: ChangeUnderWay, now: float) -> None:
        """Report that all old members wait at the point, and all new ones have joined: the change can be made."""
        self._reports.append(
            PointReached(
                time=now,
                job_id=self._job_id,
                number=current.wanted.number,
                adaptation=current.number,
                point=current.at,
                leaving=current.wanted.leaving,
            )
        )

    def _report_made(self, current: ChangeUnderWay, now: float) -> None:
        """Report that all processes have made the change, and wait to continue."""
        self._reports.append(ChangeMade(time=now, job_id=self._job_id, number=current.wanted.number))

    def _report_given_up(self, number: int, reason: str, now: float) -> None:
        """Report that a change is not made, and the application continues as before."""
        self._reports.append(ChangeGivenUp(time=now, job_id=self._job_id, number=number, reason=reason))

    def _resume(self, rank: int, process: Process) -> None:
        self._tells.append(Tell(rank, note("resume", change=process.change)))
        leaves = any(rank in one.leaving and one.adaptation for one in self._membership.wanted)
        process.move(Stand.LEFT if leaves else Stand.RUNNING, process.change)

    def _tell_change(self, current: ChangeUnderWay, rank: int, process: Process) -> None:
        newcomer = rank in self._membership.awaited(current.wanted)
        again = process.begun_anew and process.in_change(current.number, Stand.DONE)
        joins = newcomer and process.stand is Stand.NEW
        if not (joins or again or process.in_change(current.number, Stand.WAITING)):
            return
        process.begun_anew = False
        told = change_note(self._membership, current.wanted, self._contacts(), rank)
        self._tells.append(Tell(rank, told))

    def _contacts(self) -> dict[int, str]:
        return {rank: process.contact for rank, process in self._processes.items()}

    def _say(self, ranks: Iterable[int], said: Note) -> None:
        self._tells.extend(Tell(rank, said) for rank in ranks if rank in self._processes)

    def _welcome(self) -> None:
        """Start the program when all first members are in contact; repeat that to those who missed it."""
        members = self._membership.speakers
        known = [self._processes[rank] for rank in members if rank in self._processes]
        if len(known) + len(self._membership.ended.intersection(members)) < len(members):
            return
        for rank in members:
            process = self._processes.get(rank)
            if process is not None and process.stand is Stand.NEW:
                self._tells.append(Tell(rank, welcome_note(self._membership, self._contacts(), rank)))
                process.move(Stand.RUNNING, 0)

    # ---- the course of a change -----------------------------------------------------------------------------------

    def _go_on(self, now: float) -> None:
        self._welcome()
        self._follow_records(now)
        if self._current is None:
            self._begin(now)
        while self._current is not None and self._step(self._current, now):
            pass
        current = self._current
        if current is not None and current.stage < Stage.RECORDING:
            problem = current.problem(self._membership, self._processes)
            if not problem and now >= current.since + self._patience:
                problem = f"{current.held_up_by(self._membership, self._processes)} within {self._patience:g} s"
                late = current.late(self._membership, self._processes)[:1]  # one line says it, of however many
                self._say(late, note("error", text=f"{problem}: all go on as they are, and the size stays"))
            if problem:
                self._given_up[current.wanted.number] = problem
                self._report_given_up(current.wanted.number, problem, now)
                self._release(current)
                self._go_on(now)
        elif current is not None and current.stage is Stage.CHANGING:
            self._await_done(current, now)

    def _follow_records(self, now: float) -> None:
        """Take over the change that the records show as under way."""
        current = self._current
        if current is None:
            return
        found = next((one for one in self._membership.wanted if one.number == current.wanted.number), None)
        if current.stage <= Stage.RECORDING:
            if found is None:
                self._release(current)
            elif found.adaptation:
                current.wanted, current.stage, current.since = found, Stage.CHANGING, now
            elif current.stage < Stage.ASKING:
                current.wanted = found
        elif current.stage is Stage.CLOSING and (found is None or found.made):
            self._close(current)

    def _begin(self, now: float) -> None:
        open_ = [one for one in self._membership.wanted if not one.made and one.number not in self._given_up]
        if not open_:
            return
        wanted = min(open_, key=lambda one: (not one.adaptation, one.number))
        self._current = current = ChangeUnderWay(wanted=wanted, since=now)
        if wanted.adaptation:
            current.stage, current.number, current.at = Stage.CHANGING, wanted.adaptation, wanted.point
            self._highest = max(self._highest, wanted.adaptation)

    def _step(self, current: ChangeUnderWay, now: float) -> bool:
        """Advance the change by one stage; return False when it waits for something."""
        everybody = (*self._membership.speakers, *self._membership.awaited(current.wanted))
        match current.stage:
            case Stage.GATHERING:
                if not current.ready(self._membership, self._processes):
                    return False
                self._highest += 1
                current.number, current.stage, current.since = self._highest, Stage.ASKING, now
                self._say(self._membership.speakers, note("when", change=current.number))
            case Stage.ASKING:
                if any(rank not in current.counts for rank in self._membership.speakers):
                    return False
                current.stage = Stage.ARMING
                self._set_point(current, max(current.counts.values()))
            case Stage.ARMING:
                if not current.all_at_point(self._membership, self._processes):
                    return False
                current.stage = Stage.RECORDING
                self._report_all_stand(current, now)
            case Stage.CHANGING:
                return self._change(current, everybody, now)
            case _:
                return False
        return True

    def _change(self, current: ChangeUnderWay, everybody: tuple[int, ...], now: float) -> bool:
        if not current.told:
            if current.unfinished(self._membership, self._processes):
                return False
            current.told = True
            for rank in everybody:
                if rank in self._processes:
                    self._tell_change(current, rank, self._processes[rank])
        if current.unfinished(self._membership, self._processes):
            return False
        current.stage = Stage.CLOSING
        self._report_made(current, now)
        return True

    def _await_done(self, current: ChangeUnderWay, now: float) -> None:
        """Report who holds the change up; then give up that process as lost, with its data."""
        due = self.next_deadline()
        if due is None or now < due:
            return
        everybody = (*self._membership.speakers, *self._membership.awaited(current.wanted))
        late = current.unfinished(self._membership, self._processes)
        missing = "called done()" if current.told else "come back"
        within = f"within {self._done_patience:g} s of the change at point {current.at}"
        text = f"{who_has(late)} not {missing} {within}"
        if current.warned:
            end = TaskEnd(reason=EndReason.LOST, detail=text)
            current.overdue = RankEnded(time=now, job_id=self._job_id, rank=late[0], end=end)
            self._reports.append(current.overdue)
            return
        current.warned = True
        self._say(everybody, note("error", text=f"{text}; its part of the data is lost, and the job ends"))

    def _close(self, current: ChangeUnderWay) -> None:
        """Let the processes continue after a change, remaining ones first."""
        self._current = None
        leaving = set(current.wanted.leaving)
        for rank, process in sorted(self._processes.items(), key=lambda one: (one[0] in leaving, one[0])):
            if process.in_change(current.number, Stand.DONE):
                self._tells.append(Tell(rank, note("resume", change=current.number)))
                process.move(Stand.LEFT if rank in leaving else Stand.RUNNING, current.number)

    # ---- changes that are not made --------------------------------------------------------------------------------

    def _release(self, current: ChangeUnderWay) -> None:
        """Let all processes continue as if no change had been asked for."""
        self._current = None
        if current.stage is Stage.GATHERING:
            return
        for rank in self._membership.speakers:
            process = self._processes.get(rank)
            if process is not None:
                self._tells.append(Tell(rank, note("abandon", change=current.number)))
                if process.stand in {Stand.ARMED, Stand.WAITING}:
                    process.move(Stand.RUNNING, 0)
