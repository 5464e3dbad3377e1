# SPDX-License-Identifier: Apache-2.0
"""Starting held jobs of a batch system on chosen nodes, for `koala schedule` and for WIKI.

Every start comes to one end: the job is seen to run and the plugin is told so (``confirm_start``), or the job is taken
back (``undo_start``). With either the plugin releases what it had reserved for the start. First the progress of all
starts as judged by listings, then the starter, which acts on the batch system. Their log is ``startlog``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalError, LrmError, LrmNotFoundError, LrmUnavailableError, LrmUnsupportedError
from koala_adapter.lrm.contract import Lrm, PinnedStart
from koala_adapter.lrm.listing import answering, is_another
from koala_adapter.lrm.startlog import Layout, Pin, StartLog, entries_of
from koala_adapter.model import OCCUPYING, WAITING, LrmJob, LrmJobId, LrmJobState, Node, NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence


# -- Progress of starts, judged by what is listed ------------------------------------------------------------
# This part is pure: listings and times come in, decisions go out.


PATIENCE = 30.0
"""Seconds in which an accepted start must show."""
BLOCKED_AFTER = 1.5
"""Seconds after which a released job that waits for something else than processors is not started: until then the batch
system may still show a reason of before."""

REQUEUED = "it was queued again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Limits in seconds: for a start to show, and for keeping back a job that did not start."""

    start: float = PATIENCE
    backoff: float = 5.0
    """Before a failed start is tried again; doubled with each try."""
    refused: float = 10.0
    """Pause at least when the batch system refused: asking again at once would be refused again."""
    longest: float = 600.0
    """Longest pause."""

    def after(self, failures: int, *, refused: bool) -> float:
        """Return the pause after ``failures`` failed starts."""
        least = self.refused if refused else 0.0
        return min(self.longest, max(least, self.backoff * 2.0 ** min(failures - 1, 20)))


class Stage(StrEnum):
    """Progress of a start."""

    DECIDED = "decided"
    ASKED = "asked for"
    ACCEPTED = "accepted"
    UNCERTAIN = "perhaps accepted"
    """There was no answer: what is listed tells whether it was."""
    REFUSED = "refused"
    """The job is in hold as it was."""
    RUNS = "seen to run"
    """The plugin is to be told so."""
    CONFIRMED = "confirmed"
    FAILED = "failed"
    """The job is to be taken back: it did not start in time, or was queued again."""
    TAKEN_BACK = "taken back"
    GONE = "gone"
    """The job is not there any more; what was reserved for its start is to be given back."""


SHOWS_SOON = frozenset({Stage.ACCEPTED, Stage.UNCERTAIN})
UNDONE_LATER = frozenset({Stage.FAILED, Stage.GONE})
OVER = frozenset({Stage.REFUSED, Stage.CONFIRMED, Stage.TAKEN_BACK})


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A start under way."""

    nodes: Layout
    stage: Stage = Stage.DECIDED
    since: float = 0.0
    """When it came to this stage."""
    error: LrmError | None = None
    """What the batch system said, or why it is not known whether it was accepted."""
    elsewhere: str = ""
    """How the job was placed, when that is not what was asked for: it is to be sent back."""
    tied_before: bool = False
    """An earlier start has tied the job, so that its request is known from then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Reason of a failed start."""

    reason: str
    at: float
    refused: bool = False


class Starts:
    """Starts under way and their records; times are of a clock that is never set."""

    def __init__(self, patience: Patience | None = None, *, pins: Iterable[Pin] = ()) -> None:
        """``pins``: starts that an earlier process has recorded."""
        self.patience = patience or Patience()
        self.pins = {pin.job_id: pin for pin in pins}
        """To be on disk before anything is asked for."""
        self.attempts: dict[LrmJobId, Attempt] = {}
        self._observed_at = -inf

    # -- what is done ------------------------------------------------------------------------------------------------

    def begin(self, pin: Pin) -> None:
        """Register a decided start. What the job asked for before its first start stays recorded."""
        former = self.pins.get(pin.job_id)
        tied_before = former is not None and former.wishes is not None
        if former is not None and tied_before:
            pin = replace(pin, wishes=former.wishes, original=former.original)
        self.pins[pin.job_id] = pin
        self.attempts[pin.job_id] = Attempt(nodes=pin.nodes, tied_before=tied_before)

    def resume(self, pin: Pin, stage: Stage) -> None:
        """Register a start that an earlier process requested."""
        self.attempts[pin.job_id] = Attempt(nodes=pin.nodes, stage=stage, since=pin.at)

    def advance(self, job_id: LrmJobId, stage: Stage, now: float, *, error: LrmError | None = None) -> None:
        """Set the stage of a start.

        What a listing has told meanwhile stays: that the job runs, or is gone.
        """
        attempt = self.attempts.get(job_id)
        if attempt is None or (attempt.stage is Stage.RUNS and stage is not Stage.CONFIRMED):
            return
        pin = self.pins.get(job_id)
        if stage is Stage.REFUSED and pin is not None and not attempt.tied_before:
            self.pins[job_id] = replace(pin, wishes=None, original="")
        if attempt.stage is not Stage.GONE:
            attempt.stage, attempt.error = stage, error or attempt.error
        elif stage in OVER:
            del self.attempts[job_id]
        attempt.since = now

    def observe(self, jobs: Iterable[LrmJob], read_at: float) -> Mapping[LrmJobId, Failure]:
        """Judge all starts by a listing and return the failed ones; for callers without a mirror of the queue."""
        self._observed_at = read_at
        failures: dict[LrmJobId, Failure] = {}
        listed = by_id(jobs)
        for job_id in [*self.attempts, *(id_ for id_ in self.pins if id_ not in self.attempts)]:
            job, pin = listed.get(job_id), self.pins.get(job_id)
            if job is not None and pin is not None and self.pin_of(job) is None:
                continue
            if job is None:
                self.gone(job_id)
            elif job.state is LrmJobState.ENDED:
                self.over(job, read_at)
            elif job.state in OCCUPYING:
                self.shown(job, read_at)
                if elsewhere := self.attempts[job_id].elsewhere:
                    failures[job_id] = Failure(reason=elsewhere, at=read_at, refused=True)
            elif pin is not None and pin.started:
                self.requeued(job_id, read_at)
            elif pin is not None and (failure := self.failure(job, read_at)) is not None:
                self.failed(job_id, failure)
                failures[job_id] = failure
                if self.attempts[job_id].stage is Stage.REFUSED:
                    self.dismiss(job_id)
        return failures

    def is_over(self, job_id: LrmJobId) -> bool:
        """Return whether a start is finished; one taken back is when a later listing shows it.

        Then it is certain that the job has not started meanwhile. A start of which nothing is known is over.
        """
        attempt = self.attempts.get(job_id)
        if attempt is None or attempt.stage not in OVER:
            return attempt is None
        return attempt.stage is not Stage.TAKEN_BACK or self._observed_at >= attempt.since

    # -- what is listed ----------------------------------------------------------------------------------------------

    def pin_of(self, job: LrmJob) -> Pin | None:
        """Return the record of a job's start; that of an earlier job with the same number is dropped."""
        pin = self.pins.get(job.id)
        if pin is None or not is_another(job, pin.submitted_at):
            return pin
        self.forget(job.id)
        return None

    def as_asked(self, job: LrmJob) -> LrmJob:
        """Return a job as its user submitted it, even while it is tied to nodes."""
        pin = self.pin_of(job)
        if pin is None or job.state not in WAITING:
            return job
        return replace(job if pin.wishes is None else pin.wishes.restored(job), tied=self.is_tied(job.id))

    def failure(self, job: LrmJob, now: float) -> Failure | None:
        """Return why a waiting job's start has failed; None while it may still show."""
        attempt = self.attempts.get(job.id)
        if attempt is None:
            return None
        if attempt.stage is Stage.REFUSED:
            return Failure(reason=str(attempt.error), at=attempt.since, refused=True)
        if attempt.stage not in SHOWS_SOON or now <= attempt.since:
            return None
        return self._not_shown(job, attempt, now)

    def _not_shown(self, job: LrmJob, attempt: Attempt, now: float) -> Failure | None:
        if attempt.stage is Stage.UNCERTAIN and job.state is LrmJobState.HELD:
            return Failure(reason=str(attempt.error), at=now)
        if job.blocked and now > attempt.since + BLOCKED_AFTER:
            return Failure(reason=f"the batch system does not start it: {job.reason}", at=now, refused=True)
        if now <= self.due(job.id):
            return None
        waited = f"it did not start within {now - attempt.since:.0f} s"
        return Failure(reason=f"{waited} ({job.reason})" if job.reason else waited, at=now)

    def due(self, job_id: LrmJobId) -> float:
        """Return the time by which an accepted start must show."""
        return self.attempts[job_id].since + self.patience.start

    def failed(self, job_id: LrmJobId, failure: Failure) -> float:
        """Register a failed start; return for how many seconds the job is kept back."""
        pin, attempt = self.pins[job_id], self.attempts.get(job_id)
        failures = pin.failures + 1
        pause = self.patience.after(failures, refused=failure.refused)
        not_before = failure.at + pause
        self.pins[job_id] = replace(pin, not_before=not_before, failure=failure.reason, failures=failures)
        if attempt is not None and attempt.stage is not Stage.REFUSED:
            attempt.stage, attempt.since = Stage.FAILED, failure.at
        return pause

    def shown(self, job: LrmJob, now: float) -> None:
        """Register that a job runs; if on the wrong nodes, it is to be sent back."""
        pin = self.pins.get(job.id)
        if pin is None:
            return
        attempt = self.attempts.setdefault(job.id, Attempt(nodes=pin.nodes))
        if attempt.stage in {Stage.RUNS, Stage.CONFIRMED}:
            return
        attempt.elsewhere = placed_elsewhere(job, pin.nodes) if attempt.stage in SHOWS_SOON else ""
        attempt.stage, attempt.since = Stage.RUNS, now
        if attempt.elsewhere:
            self.failed(job.id, Failure(reason=attempt.elsewhere, at=now, refused=True))
            attempt.stage = Stage.RUNS
            self.pins[job.id] = replace(self.pins[job.id], started=True)
        else:
            self.pins[job.id] = replace(pin, started=True, failures=0, not_before=0.0, failure="")

    def requeued(self, job_id: LrmJobId, now: float) -> bool:
        """Register that a running job waits again; return whether koala had started it."""
        pin = self.pins.get(job_id)
        if pin is None:
            return False
        failure = pin.failure or REQUEUED
        self.pins[job_id] = replace(pin, started=False, not_before=max(now, pin.not_before), failure=failure)
        self.attempts[job_id] = Attempt(nodes=(), stage=Stage.FAILED, since=now)
        return True

    def over(self, job: LrmJob, now: float) -> None:
        """Register that a listed job is over; its start is confirmed as for a running one."""
        attempt = self.attempts.get(job.id)
        if attempt is not None and attempt.stage is Stage.RUNS:
            return
        if attempt is None or attempt.stage not in SHOWS_SOON or job.started_at is None:
            self.gone(job.id)
            return
        attempt.stage, attempt.since = Stage.RUNS, now
        pin = self.pins.get(job.id)
        if pin is not None:
            self.pins[job.id] = replace(pin, started=True, failures=0, not_before=0.0, failure="")

    def gone(self, job_id: LrmJobId) -> None:
        """Register that a job is over or no longer listed."""
        self.pins.pop(job_id, None)
        attempt = self.attempts.get(job_id)
        if attempt is None or attempt.stage is Stage.GONE:
            return
        if attempt.stage is Stage.DECIDED or attempt.stage in OVER:
            del self.attempts[job_id]
        else:
            attempt.stage = Stage.GONE

    def dismiss(self, job_id: LrmJobId) -> None:
        """Drop a refused start; the record of an earlier one stays."""
        self.attempts.pop(job_id, None)
        pin = self.pins.get(job_id)
        if pin is not None and pin.wishes is None:
            del self.pins[job_id]

    def forget(self, job_id: LrmJobId) -> None:
        """Drop all of a start: the job is held, or its number was reused."""
        self.pins.pop(job_id, None)
        self.attempts.pop(job_id, None)

    # -- what is to be done ------------------------------------------------------------------------------------------

    def is_decided(self, job_id: LrmJobId) -> bool:
        """Return whether a start is decided and not requested or refused yet."""
        attempt = self.attempts.get(job_id)
        return attempt is not None and attempt.stage is Stage.DECIDED

    def in_stage(self, *stages: Stage) -> list[LrmJobId]:
        """Return the jobs with starts in a stage."""
        return [job_id for job_id, attempt in self.attempts.items() if attempt.stage in stages]

    def is_tied(self, job_id: LrmJobId) -> bool:
        """Return whether a waiting job must still be untied."""
        attempt = self.attempts.get(job_id)
        return attempt is not None and attempt.stage is Stage.FAILED

    def in_hand(self, read_at: float) -> set[str]:
        """Return nodes that a listing begun at ``read_at`` may show as reserved for our starts."""
        return {
            name
            for attempt in self.attempts.values()
            if attempt.stage not in OVER or attempt.since >= read_at
            for name, _ in attempt.nodes
        }


def up_for_us(nodes: Iterable[Node], in_hand: Container[str]) -> tuple[Node, ...]:
    """Return the nodes; those that take no jobs only because our starts reserve them count as up.

    A plugin may reserve processors for a job until it runs (Slurm's does, for different numbers on several nodes), and
    the batch system then shows the nodes as if they took no jobs.
    """
    return tuple(
        replace(node, state=NodeState.UP) if node.state is NodeState.DRAINING and node.name in in_hand else node
        for node in nodes
    )


def placed_elsewhere(job: LrmJob, nodes: Layout) -> str:
    """Return where a job runs if not on the requested nodes; empty when it does, or that is not known.

    A job that has its nodes for itself has more processors there than it asked for.
    """
    asked, found = dict(nodes), dict(job.layout)
    if sum(asked.values()) == 1 or not found or job.state not in {LrmJobState.RUNNING, LrmJobState.STARTING}:
        return ""
    if found.keys() == asked.keys() and all(found[node] >= count for node, count in asked.items()):
        return ""
    places = ", ".join(f"{count} on {node}" for node, count in found.items())
    return f"it was started with {places}, which is not what was asked"


def by_id(jobs: Iterable[LrmJob]) -> Mapping[LrmJobId, LrmJob]:
    """Return jobs by their ids."""
    return {job.id: job for job in jobs}


# -- The starter: asks the batch system for starts, and undoes failed ones -----------------------------------
# A start is put on record, asked for, and judged by listings that are made anyway; no request is made for a single job.
# A job that does not start in time is held again and freed from its nodes; one that runs is made to come back in hold
# if its batch system queues it again. After a kill at any moment the record and the next listing tell what to do.

AT_ONCE = 8
"""Starts that are asked for at the same time."""
TO_LEAVE = 10.0
"""Seconds at most for taking starts back when nobody will look any more."""

NOT_THERE = LrmNotFoundError("the job is not there any more")

log = structlog.get_logger()


class Starter:
    """Carries out starts on one batch system."""

    def __init__(self, system: Lrm, starts: Starts, record: StartLog, *, clock: Callable[[], float]) -> None:
        """``clock``: that of ``starts`` and of listings."""
        self._system = system
        self.starts = starts
        self._record = record
        self._clock = clock
        self._limit = anyio.CapacityLimiter(AT_ONCE)
        self._in_hand: set[LrmJobId] = set()
        """Jobs about which the system is being told or asked something."""

    def note(self) -> None:
        """Record all starts on disk. Raises JournalError: then none may be requested."""
        self._record.store(self.starts.pins)

    async def put_on_record(self, starting: Sequence[LrmJobId]) -> list[LrmJobId]:
        """Record starts with all that undoing them needs; return those that may be requested.

        The others count as refused.
        """
        async with anyio.create_task_group() as tasks:
            for job_id in starting:
                tasks.start_soon(self._know_original, job_id)
        left = [job_id for job_id in starting if self.starts.is_decided(job_id)]
        try:
            self.note()
        except JournalError as error:
            log.warning("nothing is started as long as that cannot be put on record", error=str(error))
            for job_id in left:
                self.starts.advance(job_id, Stage.REFUSED, self._clock(), error=LrmUnavailableError(str(error)))
            return []
        return left

    async def _know_original(self, job_id: LrmJobId) -> None:
        """Record what undoing a start needs, unless an earlier start of the job did."""
        if self.starts.pins[job_id].original:
            return
        try:
            with answering(job_id):
                async with self._limit:
                    original = await self._system.original_request(job_id)
        except LrmError as error:
            self.starts.advance(job_id, Stage.REFUSED, self._clock(), error=error)
        else:
            if job_id in self.starts.pins:  # a listing may have shown meanwhile that the job is gone
                self.starts.pins[job_id] = replace(self.starts.pins[job_id], original=original)

    async def ask(self, job_id: LrmJobId) -> tuple[Stage, LrmError | None]:
        """Request a recorded start; return the new stage and the error of a refusal."""
        # So it stands when it is waited for no longer.
        stage: Stage = Stage.REFUSED
        error: LrmError | None = LrmUnavailableError("too many starts are asked for at once")
        try:
            async with self._limit:
                self.starts.advance(job_id, Stage.ASKED, self._clock())
                self._in_hand.add(job_id)
                stage, error = Stage.UNCERTAIN, LrmUnavailableError("it was not accepted in time")
                pin = self.starts.pins.get(job_id)
                stage, error = (Stage.REFUSED, NOT_THERE) if pin is None else await self._ask(pin)
        finally:
            self._in_hand.discard(job_id)
            self.starts.advance(job_id, stage, self._clock(), error=error)
        return stage, error

    async def _ask(self, pin: Pin) -> tuple[Stage, LrmError | None]:
        try:
            await self._system.start_on(pin.start)
        except LrmUnavailableError as error:
            log.warning("it is not known whether a start was taken", job=pin.job_id, error=str(error))
            return Stage.UNCERTAIN, error
        except LrmError as error:
            return Stage.REFUSED, error
        except Exception as defect:
            # A defect of a plugin costs this start, not the others.
            log.exception("a plugin failed", job=pin.job_id)
            return Stage.UNCERTAIN, LrmUnavailableError(f"its plugin failed: {defect!r}")
        return Stage.ACCEPTED, None

    async def undo_start(self, job_id: LrmJobId) -> bool:
        """Hold and untie a job; return False when that must be repeated."""
        if job_id in self._in_hand:
            return False
        self._in_hand.add(job_id)
        try:
            await self._system.undo_start(self._start_of(job_id))
        except (LrmNotFoundError, LrmUnsupportedError):
            pass
        except LrmError as error:
            log.warning("a job cannot be put in hold again", job=job_id, error=str(error))
            if isinstance(error, LrmUnavailableError) or self.starts.is_tied(job_id):
                return False
        finally:
            self._in_hand.discard(job_id)
        self.starts.advance(job_id, Stage.TAKEN_BACK, self._clock())
        return True

    def _start_of(self, job_id: LrmJobId) -> PinnedStart:
        """Return the recorded start of a job; where none is recorded, the start that was last attempted."""
        pin, attempt = self.starts.pins.get(job_id), self.starts.attempts.get(job_id)
        nodes = () if attempt is None else entries_of(attempt.nodes)
        return PinnedStart(job=job_id, nodes=nodes) if pin is None else pin.start

    def to_confirm(self) -> list[LrmJobId]:
        """Return running jobs whose starts are not confirmed yet."""
        return [job_id for job_id in self.starts.in_stage(Stage.RUNS) if job_id not in self._in_hand]

    async def confirm(self, *job_ids: LrmJobId) -> None:
        """Confirm starts of running jobs together; a job on the wrong nodes is sent back."""
        async with self._limit:
            mine = [job_id for job_id in job_ids if job_id not in self._in_hand]
            if not mine:
                return
            self._in_hand.update(mine)
            try:
                errors = await self._told_of(mine)
                for job_id in mine:
                    if not self._to_be_told_again(job_id, errors.get(job_id)):
                        await self._end(job_id)
            finally:
                self._in_hand.difference_update(mine)

    async def _told_of(self, job_ids: Sequence[LrmJobId]) -> Mapping[LrmJobId, LrmError]:
        try:
            return await self._system.confirm_starts([self._start_of(job_id) for job_id in job_ids])
        except LrmError as error:
            return dict.fromkeys(job_ids, error)

    async def _end(self, job_id: LrmJobId) -> None:
        attempt = self.starts.attempts.get(job_id)
        if attempt is not None and attempt.elsewhere:
            log.warning("a job is sent back", job=job_id, reason=attempt.elsewhere)
            try:
                await self._system.requeue([job_id])
            except LrmError as error:
                if self._to_be_told_again(job_id, error):
                    return
        self.starts.advance(job_id, Stage.CONFIRMED, self._clock())

    def _to_be_told_again(self, job_id: LrmJobId, error: LrmError | None) -> bool:
        """Return whether the confirmation of a job must be repeated."""
        if isinstance(error, LrmUnavailableError):
            log.warning("the start of a job cannot be ended yet", job=job_id, error=str(error))
            return True
        if error is not None and not isinstance(error, LrmNotFoundError):
            # What cannot be held now is held as soon as it is seen to wait; of one that is over nothing need be said.
            log.warning("a job that is queued again will not be in hold", job=job_id, error=str(error))
        return False

    # -- for callers without a picture of the queue --------------------------------------------------------------------

    async def settle(self, jobs: Sequence[LrmJob], read_at: float) -> tuple[bool, Mapping[LrmJobId, Failure]]:
        """Judge all starts by a listing and carry out what follows.

        Returns whether any job was taken back, and the starts that have failed. Also jobs that had run and were queued
        again are held and freed, before anybody sees them wait. What jobs that are gone have left is for `give_back`.
        """
        failures = self.starts.observe(jobs, read_at)
        back = self.starts.in_stage(Stage.FAILED)
        for job_id in back:
            log.warning("a job is taken back", job=job_id)
            await self.undo_start(job_id)
        if running := self.to_confirm():
            await self.confirm(*running)
        self.note_later()
        return bool(back), failures

    async def give_back(self) -> None:
        """Release reservations of starts whose jobs are gone, in the background."""
        for job_id in self.starts.in_stage(Stage.GONE):
            if job_id in self.starts.attempts:  # another look may have done so while we were at the one before it
                await self.undo_start(job_id)

    def note_later(self) -> None:
        """Record finished starts; if that fails, the next process finds them by a listing."""
        try:
            self.note()
        except JournalError as error:
            log.warning("what has become of starts is not on record", error=str(error))

    # -- leaving -------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Finish starts as far as possible at once, as no listing will follow."""
        unfinished = self.starts.in_stage(Stage.ASKED, *SHOWS_SOON, *UNDONE_LATER)
        running = self.starts.in_stage(Stage.RUNS)
        with anyio.CancelScope(shield=True), anyio.move_on_after(TO_LEAVE):
            for job_id in unfinished:
                await self.undo_start(job_id)
            if running:
                await self.confirm(*running)
