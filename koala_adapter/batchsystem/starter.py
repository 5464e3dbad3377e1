# SPDX-License-Identifier: Apache-2.0
"""Starts held jobs on chosen nodes and sees each start to its end: for `koala schedule` and for WIKI.

A start is put on record, asked for, and judged by listings that others look at anyway; nothing is asked per job. What
does not start in time is held again and freed from its nodes; what runs is made to come back in hold should its batch
system queue it again. A kill at any moment is answered by the record and the next listing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio
import structlog

from koala_adapter.batchsystem.starts import SHOWS_SOON, UNDONE_LATER, Failure, Stage, entries_of
from koala_adapter.errors import (
    JournalError,
    LrmError,
    LrmNotFoundError,
    LrmUnavailableError,
    LrmUnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.batchsystem.startlog import Pin, StartLog
    from koala_adapter.batchsystem.starts import Starts
    from koala_adapter.model import LrmJob, LrmJobId
    from koala_adapter.plugin import Lrm

AT_ONCE = 8
"""Starts that are asked for at the same time."""
TO_LEAVE = 10.0
"""Seconds at most for taking starts back when nobody will look any more."""

log = structlog.get_logger()


class StartingSystem(Protocol):
    """What of a batch system is needed for starts. All raise LrmError; see the methods of Lrm."""

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """Have a held job start on these nodes; return when that is accepted."""

    async def confirm_starts(self, jobs: Sequence[LrmJobId]) -> Mapping[LrmJobId, LrmError]:
        """Hear that jobs were seen to run; return those of which that is to be told again, or was refused, and why."""

    async def undo_start(self, job: LrmJobId) -> None:
        """Hold a job that did not start, or waits again, and free it from its nodes."""

    async def requeue(self, job: LrmJobId) -> None:
        """Stop a job that was confirmed, and queue it again, in hold."""


class LrmStarts:
    """The starts of one LRM."""

    def __init__(self, lrm: Lrm) -> None:
        """``lrm`` is started by its owner."""
        self._lrm = lrm

    async def start_on(self, job: LrmJobId, nodes: Sequence[str]) -> None:
        """See StartingSystem."""
        await self._lrm.start_on(job, nodes)

    async def confirm_starts(self, jobs: Sequence[LrmJobId]) -> Mapping[LrmJobId, LrmError]:
        """See StartingSystem."""
        return await self._lrm.confirm_starts(jobs)

    async def undo_start(self, job: LrmJobId) -> None:
        """See StartingSystem."""
        await self._lrm.undo_start(job)

    async def requeue(self, job: LrmJobId) -> None:
        """See StartingSystem."""
        await self._lrm.requeue([job])


class Starter:
    """Does to one batch system what its starts need."""

    def __init__(self, system: StartingSystem, starts: Starts, record: StartLog, *, clock: Callable[[], float]) -> None:
        """``clock``: that of ``starts`` and of the listings by which they are judged."""
        self._system = system
        self.starts = starts
        self._record = record
        self._clock = clock
        self._limit = anyio.CapacityLimiter(AT_ONCE)
        self._in_hand: set[LrmJobId] = set()
        """Jobs about which the system is being told or asked something."""

    def note(self) -> None:
        """Put all starts on record; on return that is on disk. Raises JournalError: then nothing may be asked for."""
        self._record.store(self.starts.pins)

    def note_before(self, starting: Sequence[LrmJobId]) -> bool:
        """Put all starts on record before ``starting`` are asked for; where that fails these count as refused.

        Returns whether they may be asked for.
        """
        try:
            self.note()
        except JournalError as error:
            log.warning("nothing is started as long as that cannot be put on record", error=str(error))
            for job_id in starting:
                self.starts.advance(job_id, Stage.REFUSED, self._clock(), error=LrmUnavailableError(str(error)))
            return False
        return True

    async def ask(self, pin: Pin) -> tuple[Stage, LrmError | None]:
        """Ask for a start that is on record; return whether it is accepted, perhaps accepted, or refused, and why."""
        job_id = pin.job_id
        # So it stands when it is waited for no longer.
        stage: Stage = Stage.REFUSED
        error: LrmError | None = LrmUnavailableError("too many starts are asked for at once")
        try:
            async with self._limit:
                self.starts.advance(job_id, Stage.ASKED, self._clock())
                self._in_hand.add(job_id)
                stage, error = Stage.UNCERTAIN, LrmUnavailableError("it was not accepted in time")
                stage, error = await self._ask(pin)
        finally:
            self._in_hand.discard(job_id)
            self.starts.advance(job_id, stage, self._clock(), error=error)
        return stage, error

    async def _ask(self, pin: Pin) -> tuple[Stage, LrmError | None]:
        try:
            await self._system.start_on(pin.job_id, entries_of(pin.nodes))
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
        """Hold a job and free it from its nodes; return False when that is to be tried again."""
        if job_id in self._in_hand:
            return False
        self._in_hand.add(job_id)
        try:
            await self._system.undo_start(job_id)
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

    def to_confirm(self) -> list[LrmJobId]:
        """Return the jobs that were seen to run and are not being confirmed yet."""
        return [job_id for job_id in self.starts.in_stage(Stage.RUNS) if job_id not in self._in_hand]

    async def confirm(self, *job_ids: LrmJobId) -> None:
        """End starts whose jobs run, all in one go; one that runs elsewhere than it should is sent back."""
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
            return await self._system.confirm_starts(job_ids)
        except LrmError as error:
            return dict.fromkeys(job_ids, error)

    async def _end(self, job_id: LrmJobId) -> None:
        attempt = self.starts.attempts.get(job_id)
        if attempt is not None and attempt.elsewhere:
            log.warning("a job is sent back", job=job_id, reason=attempt.elsewhere)
            try:
                await self._system.requeue(job_id)
            except LrmError as error:
                if self._to_be_told_again(job_id, error):
                    return
        self.starts.advance(job_id, Stage.CONFIRMED, self._clock())

    def _to_be_told_again(self, job_id: LrmJobId, error: LrmError | None) -> bool:
        """Tell whether a plugin is to be told something of a running job again."""
        if isinstance(error, LrmUnavailableError):
            log.warning("the start of a job cannot be ended yet", job=job_id, error=str(error))
            return True
        if error is not None and not isinstance(error, LrmNotFoundError):
            # What cannot be held now is held as soon as it is seen to wait; of one that is over nothing need be said.
            log.warning("a job that is queued again will not be in hold", job=job_id, error=str(error))
        return False

    # -- for whoever keeps no picture of the queue ---------------------------------------------------------------------

    async def settle(self, jobs: Sequence[LrmJob], read_at: float) -> tuple[bool, Mapping[LrmJobId, Failure]]:
        """Judge all starts by a listing and do what follows.

        Returns whether any job was taken back, and the starts that have failed. Also jobs that had run and were queued
        again are held and freed, before anybody sees them wait.
        """
        failures = self.starts.observe(jobs, read_at)
        back = {*self.starts.in_stage(*UNDONE_LATER), *(job.id for job in jobs if job.tied)}
        for job_id in back:
            log.warning("a job is taken back", job=job_id)
            await self.undo_start(job_id)
        if running := self.to_confirm():
            await self.confirm(*running)
        self._put_away([id_ for id_ in self.starts.attempts if self.starts.is_over(id_)])
        return bool(back), failures

    def put_away(self, job_id: LrmJobId) -> None:
        """Forget a start that was refused: its job is in hold as it was."""
        self._put_away([job_id])

    def _put_away(self, over: Sequence[LrmJobId]) -> None:
        for job_id in over:
            self.starts.forget(job_id)
        try:
            self.note()
        except JournalError as error:
            # The next process finds out that these are over.
            log.warning("starts that are over stay on record", jobs=over, error=str(error))

    # -- leaving -------------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """End what is under way as well as that can be done at once: nobody will look any more."""
        unfinished = self.starts.in_stage(Stage.ASKED, *SHOWS_SOON, *UNDONE_LATER)
        running = self.starts.in_stage(Stage.RUNS)
        with anyio.CancelScope(shield=True), anyio.move_on_after(TO_LEAVE):
            for job_id in unfinished:
                await self.undo_start(job_id)
            if running:
                await self.confirm(*running)
