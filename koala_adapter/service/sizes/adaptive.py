# SPDX-License-Identifier: Apache-2.0
"""A job whose processes change together: between its records, the coordinators of changes, and its processes.

All work follows from the records: the offers made, and the changes under way. So nothing has to be restored after a
restart, and a process is told what it has missed when it is back in contact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from koala_adapter.errors import JournalBlockedError, ProtocolError
from koala_adapter.host.containment import report_defect, report_refused
from koala_adapter.negotiation import HEADER_SIZE
from koala_adapter.outcome import JobState
from koala_adapter.runners.adaptive import AdaptiveRunner, able_to_leave
from koala_adapter.runners.notes import Complaint, note, parse_note, payload_of
from koala_adapter.runners.runner import job_ends_at
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.service.sizes.bargaining import SizedJob, Surroundings
from koala_adapter.service.sizes.offers import NEGOTIATOR

if TYPE_CHECKING:
    from koala_adapter.runners.coordinator import Coordinator
    from koala_adapter.scheduler.records import Claim, JobRecord
    from koala_adapter.scheduler.sizechange import Change


LONGEST_COMPLAINT = 300
"""Characters that are shown of it."""

log = structlog.get_logger()


class AdaptiveJob(SizedJob):
    """A running job whose processes change together; its first process or a program negotiates."""

    def __init__(self, around: Surroundings, runner: AdaptiveRunner) -> None:
        """``runner``: the job's runner."""
        super().__init__(around, runner.application.job.id)
        self.runner = runner
        self._new = True
        """The records have not been followed yet."""

    # ---- what the service tells it ---------------------------------------------------------------------------------

    def follow(self, record: JobRecord) -> None:
        """Update from the records, if they changed for the job."""
        new, self._new = self._new, False
        if self.runner.follow(record, self._core.now()):
            self._note_end(record)
            if new:
                self.bargaining.restore(record)
            self._flush()  # a process that may go on hears so before the next offer
            self.bargaining.follow(record)
        elif record.changes or (self.negotiated and record.state is JobState.RUNNING):
            self.bargaining.follow(record)  # what could not be said when the change began
        else:
            return  # nothing has happened to it: most jobs, each time one of them is looked after
        self._flush()

    def carry_out(self, record: JobRecord, action: act.SizeAction) -> None:
        """Start processes, or report an agreement's result; offers follow from the records."""
        match action:
            case act.OfferProcessors() | act.RequestProcessors():
                self.follow(record)
            case act.TakeProcessors():
                log.info("a job grows", job=self.id, component=action.component, by=len(action.ranks))
                self.follow(record)
                self._applications.grow(record, [rank.rank for rank in action.ranks])
            case act.WithdrawOffer():
                self.bargaining.withdraw(action.number, action.reason)
            case act.GrantProcessors():
                self.bargaining.grant(action)
                self.follow(record)

    def resume(self, record: JobRecord) -> None:
        """Update from the records, which have all that is under way."""
        self.follow(record)

    def time_passed(self, record: JobRecord) -> None:
        """Warn of the walltime's end and give up overdue changes."""
        self.runner.notices.time_passed(self._core.now())
        for coordinator in self.runner.coordinators.values():
            coordinator.time_passed(self._core.now())
        self._flush()
        self.bargaining.time_passed(record)

    def next_deadline(self) -> float | None:
        times = [one.next_deadline() for one in self.runner.coordinators.values()]
        times += [self.runner.notices.next_deadline(), self.bargaining.next_deadline()]
        return min((one for one in times if one is not None), default=None)

    @property
    def warned(self) -> int:
        """Number of processes that know of the walltime's near end."""
        return self.runner.notices.warned

    # ---- how it negotiates -----------------------------------------------------------------------------------------

    def negotiates(self, component: str) -> bool:
        return component in self.runner.coordinators

    def ready(self, component: str) -> bool:
        """Return whether offers can be made: once all processes have joined."""
        return self.runner.coordinators[component].joined

    def speaker(self, component: str) -> int | None:
        """Return the negotiating program or else the first process; None: there is none."""
        members = self.runner.memberships[component].members
        return NEGOTIATOR if self.represented else members[0] if members else None

    def size(self, component: str) -> int:
        return len(self.runner.memberships[component].members)

    def able_to_leave(self, record: JobRecord, claim: Claim) -> int:
        members = set(self.runner.memberships[claim.component].members)
        ranks = [one for one in record.ranks if one.rank in members]
        return len(able_to_leave(ranks, claim.cluster or ""))

    def component_of(self, rank: int) -> str | None:
        """Return the component of a process, or the only one a program can negotiate for; None: there is none."""
        if rank == NEGOTIATOR:
            return next(iter(self.runner.coordinators), None) if len(self.runner.coordinators) == 1 else None
        return self.runner.component_of(rank)

    def in_progress(self, change: Change) -> bool:
        return bool(change.adaptation)

    # ---- what its processes say ------------------------------------------------------------------------------------

    def said(self, record: JobRecord, rank: int, frame: bytes) -> None:
        """Process a frame of a process; an invalid one is answered and reported."""
        try:
            self._take_frame(record, rank, frame)
        except JournalBlockedError:
            raise
        except Exception as error:  # noqa: BLE001 - a defect costs this message, not the service and all its jobs
            report_defect("what a process said", error, job=self.id, rank=rank)
            self.complaint = f"koala failed on what process {rank} said: {shown(repr(error))}."

    def _take_frame(self, record: JobRecord, rank: int, frame: bytes) -> None:
        self.follow(record)
        component = self.runner.component_of(rank)
        if component is None:
            return
        payload = frame[HEADER_SIZE:]
        coordinator = self.runner.coordinators[component]
        try:
            if payload.startswith(b"<"):
                self.hear(record, rank, payload)
            else:
                self._note(record, coordinator, rank, payload)
        except ProtocolError as error:
            self._complain(rank, error.message)
            self.say(rank, payload_of(note("error", text=error.message)))
        self._flush()

    def _note(self, record: JobRecord, coordinator: Coordinator, rank: int, payload: bytes) -> None:
        said = parse_note(payload)
        coordinator.heard(rank, said, self._core.now())
        if said.verb == "hello":
            self.runner.notices.heard_hello(rank, said, self._core.now())
            self._flush()
            self.bargaining.in_contact(rank)
        self.bargaining.follow(record)

    def in_contact(self, record: JobRecord, rank: int) -> None:
        """Let a process whose agent is back report itself."""
        self.follow(record)
        component = self.runner.component_of(rank)
        if component is not None:
            self.runner.coordinators[component].back(rank, self._core.now())
            self.runner.notices.lost(rank)
            self._note_end(record)  # an agent that comes back says anew how long its placeholder lasts
            self.say(rank, payload_of(note("who")))
            self._flush()

    def out_of_contact(self, rank: int) -> None:
        """Note that the agent of a process is out of contact."""
        component = self.runner.component_of(rank)
        if component is not None:
            self.runner.coordinators[component].lost(rank)
            self.runner.notices.lost(rank)

    # ---- what follows ----------------------------------------------------------------------------------------------

    def _note_end(self, record: JobRecord) -> None:
        """Update the time at which the processes are ended."""
        if record.launched_at is not None:
            now, here = self._core.now(), [rank for one in self.runner.memberships.values() for rank in one.places]
            self.runner.notices.ends(job_ends_at(record, self._core.state.placeholders, now), here, now)

    def _flush(self) -> None:
        """Send messages and report to the scheduler until both are empty."""
        for one in self.runner.notices.take_tells():  # who is welcomed knows how long it has
            self.say(one.rank, payload_of(one.note))
        for coordinator in self.runner.coordinators.values():
            for one in coordinator.take_tells():
                self.say(one.rank, payload_of(one.note))
            for report in coordinator.take_reports():
                self._take_report(report)

    def _take_report(self, report: ev.Event | Complaint) -> None:
        if isinstance(report, Complaint):
            self._complain(report.rank, report.text)
            return
        if isinstance(report, ev.ChangeGivenUp):
            log.warning("a change of size is given up", job=self.id, reason=report.reason)
            self.bargaining.withdraw(report.number, report.reason)
        elif isinstance(report, ev.RankEnded):
            log.warning("a process holds a change of size up for too long", job=self.id, rank=report.rank)
        self._core.loop.post(report)

    def _complain(self, rank: int, text: str) -> None:
        self.complaint = f"Process {rank} made a wrong call: {shown(text)}."
        report_refused("an application says what it may not say", kind=self.id, job=self.id, rank=rank, problem=text)


def shown(text: str) -> str:
    """Return a process's message on one line without control characters."""
    line = "".join(one if one.isprintable() else "?" for one in " ".join(text.split()))
    return line[:LONGEST_COMPLAINT]
