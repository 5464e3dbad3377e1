# SPDX-License-Identifier: Apache-2.0
"""Adaptive jobs grow and shrink: between the scheduler's records, the coordinators of changes, and the processes.

All work follows from the records: the offers made, and the changes under way. So nothing has to be restored after a
restart, and a process is told what it has missed when it is back in contact.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalBlockedError, ProtocolError
from koala_adapter.host.containment import contained, report_defect, report_refused
from koala_adapter.model import EndReason, RunnerName, TaskEnd
from koala_adapter.negotiation.serviceside.document import HEADER_SIZE, frame
from koala_adapter.outcome import JobState
from koala_adapter.runners.coordinator import (
    AllDone,
    AllStand,
    Complaint,
    GivenUp,
    Overdue,
    note,
    parse_note,
    payload_of,
)
from koala_adapter.runners.runner import job_ends_at
from koala_adapter.scheduler import events as ev
from koala_adapter.service.sizes.bargaining import NEGOTIATOR, AdaptiveParty, Negotiations, WorkersParty
from koala_adapter.service.sizes.jobs import Deadlines
from koala_adapter.sizes import OWN_SIZES, SizeRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.runners.coordinator import Coordinator, Report
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.records import NegotiationKeeper
    from koala_adapter.service.sizes.bargaining import Party
    from koala_adapter.service.sizes.port import NegotiationPort


LONGEST_COMPLAINT = 300
"""Characters that are shown of it."""

log = structlog.get_logger()


class Adaptations:
    """The part of a service that brings adaptive applications to other sizes, and settles with them how far."""

    def __init__(
        self,
        applications: Applications,
        *,
        state: Callable[[], State],
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
        tell: Callable[[PlaceholderId, str, bytes], bool],
        keeper: NegotiationKeeper,
        negotiators: NegotiationPort,
        rules: SizeRules = OWN_SIZES,
    ) -> None:
        """``report`` takes events in. ``tell`` sends a frame to the process of a task, which it may not reach.

        ``keeper`` takes note of each template, and which side has said it. ``negotiators``: where programs connect that
        negotiate for jobs.
        """
        self._applications = applications
        self._state = state
        self._clock = clock
        self._report = report
        self._tell = tell
        self._runners: dict[JobId, AdaptiveRunner] = {}
        """Those of the adaptive jobs that run."""
        self._negotiators = negotiators
        self.negotiations = Negotiations(
            clock=clock,
            report=report,
            say=self._say,
            keep=keeper.keep,
            answer_timeout=lambda: state().parameters.answer_timeout,
            recalled=keeper.recalled,
            rules=rules,
        )
        self._complaints: dict[JobId, str] = {}
        self._deadlines: Deadlines[JobId] = Deadlines()
        self._moved = anyio.Event()
        applications.listener = self

    # ---- what the scheduler wants (Resizer) -------------------------------------------------------------------------

    def offer(self, action: act.OfferProcessors) -> None:
        """See Resizer. That there is an offer is in the records."""
        self._follow_job(action.job_id)

    def request(self, action: act.RequestProcessors) -> None:
        """See Resizer. Likewise."""
        self._follow_job(action.job_id)

    def take(self, action: act.TakeProcessors) -> None:
        """See Resizer."""
        record = self._state().jobs.get(action.job_id)
        if record is not None:
            log.info("a job grows", job=action.job_id, component=action.component, by=len(action.ranks))
            self._follow_job(action.job_id)
            self._applications.grow(record, [rank.rank for rank in action.ranks])

    def withdraw(self, action: act.WithdrawOffer) -> None:
        """See Resizer."""
        self.negotiations.withdraw(action.job_id, action.number, action.reason)
        self.look_again(action.job_id)

    def grant(self, action: act.GrantProcessors) -> None:
        """See Resizer."""
        self.negotiations.grant(action)
        self._follow_job(action.job_id)
        self.look_again(action.job_id)

    def resume(self) -> None:
        """See Resizer."""
        for record in list(self._state().jobs.values()):
            if record.job.runner is RunnerName.ADAPTIVE and record.state is JobState.RUNNING:
                with contained("resuming a change of size", job=record.job.id):
                    runner = self._applications.adaptive(record)
                    if runner is not None:
                        self._follow(record, runner)

    # ---- what happens -----------------------------------------------------------------------------------------------

    def handled(self, touched: Iterable[JobId]) -> None:
        """The scheduler has handled an event that touched these jobs: see what it means for their applications."""
        for job_id in touched:
            if job_id in self._runners:
                with contained("following a change of size", job=job_id):
                    self._follow_job(job_id)
        jobs = self._state().jobs
        for job_id in [one for one in self._complaints if one not in jobs]:  # not before: who asks why it ended is told
            del self._complaints[job_id]

    def _follow_job(self, job_id: JobId) -> None:
        record = self._state().jobs.get(job_id)
        runner = None if record is None else self._applications.adaptive(record)
        if record is None or runner is None:
            if job_id in self._runners:
                self.forget(job_id)
            return
        self._follow(record, runner)

    def _follow(self, record: JobRecord, runner: AdaptiveRunner) -> None:
        job_id = record.job.id
        new = self._runners.get(job_id) is not runner
        self._runners[job_id] = runner
        if runner.follow(record, self._clock()):
            self._note_end(record, runner)
            if new:
                self.negotiations.restore(record, self._party(runner))
            self._flush(record, runner)  # who may go on hears so before the next offer
            self.negotiations.follow(record, self._party(runner))
        elif record.changes:
            self.negotiations.follow(record, self._party(runner))  # what could not be said when the change began
        else:
            return  # nothing has happened to it: most jobs, each time one of them is looked after
        self._flush(record, runner)

    def _note_end(self, record: JobRecord, runner: AdaptiveRunner) -> None:
        """Take note of when the processes of a job are ended, as the records have it."""
        if record.launched_at is not None:
            now, here = self._clock(), [rank for one in runner.memberships.values() for rank in one.places]
            runner.notices.ends(job_ends_at(record, self._state().placeholders, now), here, now)

    def party_of(self, job_id: JobId) -> tuple[JobRecord, Party] | None:
        """Return a running job as far as its sizes are negotiated; None: they are not."""
        record = self._state().jobs.get(job_id)
        if record is None or record.state is not JobState.RUNNING:
            return None
        represented = self._negotiators.represents(job_id)
        if record.job.has_workers:
            return record, WorkersParty(record, represented)
        runner = self._applications.adaptive(record)
        return None if runner is None else (record, AdaptiveParty(runner, represented))

    def _party(self, runner: AdaptiveRunner) -> Party:
        return AdaptiveParty(runner, self._negotiators.represents(runner.application.job.id))

    def said(self, record: JobRecord, runner: AdaptiveRunner, rank: int, frame_: bytes) -> None:
        """See ApplicationListener."""
        try:
            self._take_frame(record, runner, rank, frame_)
        except JournalBlockedError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect costs this message, not the service and all its jobs
            report_defect("what a process said", error, job=record.job.id, rank=rank)
            self._complaints[record.job.id] = f"koala failed on what process {rank} said: {shown(repr(error))}."

    def _take_frame(self, record: JobRecord, runner: AdaptiveRunner, rank: int, frame_: bytes) -> None:
        self._follow(record, runner)
        component = runner.component_of(rank)
        if component is None:
            return
        payload = frame_[HEADER_SIZE:]
        coordinator = runner.coordinators[component]
        try:
            if payload.startswith(b"<"):
                self.negotiations.heard(record, self._party(runner), rank, frame_)
            else:
                self._note(record, runner, coordinator, rank, payload)
        except ProtocolError as error:
            self._complain(record, rank, error.message)
            self._say_note(record, rank, payload_of(note("error", text=error.message)))
        self._flush(record, runner)

    def _note(
        self, record: JobRecord, runner: AdaptiveRunner, coordinator: Coordinator, rank: int, payload: bytes
    ) -> None:
        said = parse_note(payload)
        coordinator.heard(rank, said, self._clock())
        if said.verb == "hello":
            runner.notices.heard_hello(rank, said, self._clock())
            self._flush(record, runner)
            self.negotiations.in_contact(record.job.id, rank)
        self.negotiations.follow(record, self._party(runner))

    def in_contact(self, record: JobRecord, runner: AdaptiveRunner, rank: int) -> None:
        """See ApplicationListener."""
        self._follow(record, runner)
        component = runner.component_of(rank)
        if component is not None:
            runner.coordinators[component].back(rank, self._clock())
            runner.notices.lost(rank)
            self._note_end(record, runner)  # an agent that comes back says anew how long its placeholder lasts
            self._say_note(record, rank, payload_of(note("who")))
            self._flush(record, runner)

    def out_of_contact(self, runner: AdaptiveRunner, rank: int) -> None:
        """See ApplicationListener."""
        component = runner.component_of(rank)
        if component is not None:
            runner.coordinators[component].lost(rank)
            runner.notices.lost(rank)
            self.look_again(runner.application.job.id)

    async def run(self) -> None:
        """Give up what takes too long, until cancelled."""
        while True:
            self.give_up_overdue()
            moved = self._moved  # not before: what was given up just now is no reason to look again
            with anyio.move_on_after(max(0.0, self.next_deadline() - self._clock())):
                await moved.wait()

    def give_up_overdue(self) -> None:
        """Give up what has taken too long by now."""
        for job_id in self._deadlines.due(self._clock()):
            with contained("a deadline of a change of size", job=job_id):
                self._give_up_overdue(job_id)

    def _give_up_overdue(self, job_id: JobId) -> None:
        found = self.party_of(job_id)
        if found is None:
            self.forget(job_id)
            return
        record, party = found
        runner = self._runners.get(job_id)
        if runner is not None:
            runner.notices.time_passed(self._clock())
            for coordinator in runner.coordinators.values():
                coordinator.time_passed(self._clock())
            self._flush(record, runner)
        self.negotiations.time_passed(record, party)
        self.look_again(job_id)

    def next_deadline(self) -> float:
        """Return when `give_up_overdue` is to be called next; infinity: not for now."""
        first = self._deadlines.first()
        return inf if first is None else first

    # ---- what follows -----------------------------------------------------------------------------------------------

    def _flush(self, record: JobRecord, runner: AdaptiveRunner) -> None:
        """Say what is to be said, and report what the scheduler must know, until there is nothing left of either."""
        for one in runner.notices.take_tells():  # who is welcomed knows how long it has
            self._say_note(record, one.rank, payload_of(one.note))
        for coordinator in runner.coordinators.values():
            for one in coordinator.take_tells():
                self._say_note(record, one.rank, payload_of(one.note))
            for report in coordinator.take_reports():
                self._take_report(record, report)
        self.look_again(record.job.id)

    def look_again(self, job_id: JobId) -> None:
        """Something has happened to a job by which it may be due at another time."""
        before, runner = self._deadlines.first(), self._runners.get(job_id)
        times = [] if runner is None else [one.next_deadline() for one in runner.coordinators.values()]
        times += [] if runner is None else [runner.notices.next_deadline()]
        due = min((one for one in (*times, self.negotiations.next_deadline(job_id)) if one is not None), default=None)
        self._deadlines.set(job_id, due)
        if self._deadlines.first() != before:
            self._moved.set()
            self._moved = anyio.Event()

    def forget(self, job_id: JobId) -> None:
        """A job is over, as far as its size is concerned."""
        self._runners.pop(job_id, None)
        self.negotiations.forget(job_id)
        self.look_again(job_id)

    def _take_report(self, record: JobRecord, report: Report) -> None:
        job_id, now = record.job.id, self._clock()
        match report:
            case AllStand(number=number, adaptation=adaptation, point=point, leaving=leaving):
                self._report(
                    ev.PointReached(
                        time=now, job_id=job_id, number=number, adaptation=adaptation, point=point, leaving=leaving
                    )
                )
            case AllDone(number=number):
                self._report(ev.ChangeMade(time=now, job_id=job_id, number=number))
            case GivenUp(number=number, reason=reason):
                log.warning("a change of size is given up", job=job_id, reason=reason)
                self.negotiations.withdraw(job_id, number, reason)
                self._report(ev.ChangeGivenUp(time=now, job_id=job_id, number=number, reason=reason))
            case Overdue(rank=rank, reason=reason):
                log.warning("a process holds a change of size up for too long", job=job_id, rank=rank)
                end = TaskEnd(reason=EndReason.LOST, detail=reason)
                self._report(ev.RankEnded(time=now, job_id=job_id, rank=rank, end=end))
            case Complaint(rank=rank, text=text):
                self._complain(record, rank, text)

    def warned(self, job_id: JobId) -> str:
        """Return, for people, who has been told that the end of the walltime is near; empty: nobody."""
        record, runner = self._state().jobs.get(job_id), self._runners.get(job_id)
        over = record is None or record.state.final
        told = 0 if runner is None or over else runner.notices.warned
        have = "has" if told == 1 else "have"
        return f"{told} of its processes {have} been told that the end of the walltime is near." if told else ""

    def complaint(self, job_id: JobId) -> str:
        """Return, for people, what processes of a job did last that they may not do; empty: nothing."""
        return self._complaints.get(job_id, "")

    def _complain(self, record: JobRecord, rank: int, text: str) -> None:
        self._complaints[record.job.id] = f"Process {rank} made a wrong call: {shown(text)}."
        job_id = record.job.id
        report_refused("an application says what it may not say", kind=job_id, job=job_id, rank=rank, problem=text)

    def _say_note(self, record: JobRecord, rank: int, payload: bytes) -> None:
        self._say(record.job.id, rank, frame(payload))

    def _say(self, job_id: JobId, rank: int, data: bytes) -> None:
        if rank == NEGOTIATOR:
            self._negotiators.say(job_id, data)
            return
        record = self._state().jobs.get(job_id)
        if record is not None and rank < len(record.ranks):
            self._tell(record.ranks[rank].placeholder, f"{job_id}:{rank}", data)


def shown(text: str) -> str:
    """Return what a process has said on one line, without control characters."""
    line = "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))
    return line[:LONGEST_COMPLAINT]
