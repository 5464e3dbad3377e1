# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - these are tests
"""Conformance of control: cancelling always, each further operation just where it is stated."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnsupportedError
from koala_adapter.model import LrmJobState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from koala_adapter.model import LrmJobId
    from koala_adapter.plugin import Lrm
    from koala_adapter.testing.trial import Trial

LRM_MINUTE = 60
"""Seconds: many LRMs know walltimes only in whole minutes."""

OPERATIONS: Mapping[str, tuple[str, Callable[[Lrm, LrmJobId], Awaitable[object]]]] = {
    "history": ("accounting", lambda lrm, job: lrm.history([job])),
    "hold": ("hold", lambda lrm, job: lrm.hold([job])),
    "release": ("hold", lambda lrm, job: lrm.release([job])),
    "start_on": ("pin", lambda lrm, job: lrm.start_on(job, ["node"])),
    "annotate": ("annotate", lambda lrm, job: lrm.annotate([job], "place 1")),
    "suspend": ("suspend", lambda lrm, job: lrm.suspend([job])),
    "resume": ("suspend", lambda lrm, job: lrm.resume([job])),
    "requeue": ("requeue", lambda lrm, job: lrm.requeue([job])),
    "signal": ("signal", lambda lrm, job: lrm.signal([job], signal.SIGUSR1)),
    "modify": ("modify", lambda lrm, job: lrm.modify(job, walltime=60)),
}
"""Operation, the capability that it needs, and a call of it."""


class ControlTests:
    """Tests of what can be done to jobs after they were submitted."""

    async def test_cancel_running(self, live_trial: Trial) -> None:
        """A cancelled running job leaves the LRM and its processes are gone."""
        batch = await live_trial.submit(count=2)
        await live_trial.wait_running(batch)
        await live_trial.lrm.cancel(batch.ids)
        await live_trial.wait_ended(batch)
        await _stands_still(live_trial, batch.beats)

    async def test_cancel_queued(self, live_trial: Trial) -> None:
        """A cancelled queued job leaves the LRM and never starts, while the running ones go on."""
        trial = live_trial
        full = await trial.submit(count=trial.under_test.processors)
        await trial.wait_running(full)
        queued = await trial.submit(count=2)
        await trial.wait_states(queued, trial.waiting, trial.waiting)
        await trial.lrm.cancel(queued.ids)
        await trial.wait_ended(queued)
        assert set(await trial.states(full)) == {LrmJobState.RUNNING}
        full.go()
        await trial.wait_ended(full)
        assert queued.reports() == {}

    async def test_cancel_all_kinds_at_once(self, live_trial: Trial) -> None:
        """One call cancels running, queued, gone and unknown jobs together; the last two are no error."""
        trial = live_trial
        gone = await trial.submit(wait=False)
        await trial.wait_reports(gone, 1)
        await trial.wait_ended(gone)
        processors = trial.under_test.processors
        mixed = await trial.submit(count=processors + 2)
        await trial.wait_states(mixed, *[LrmJobState.RUNNING] * processors, *[trial.waiting] * 2)
        await trial.lrm.cancel([*gone.ids, trial.under_test.unknown_id, *mixed.ids])
        await trial.wait_ended(mixed)

    async def test_cancel_one_of_several(self, live_trial: Trial) -> None:
        """One element of a submission is cancelled alone."""
        batch = await live_trial.submit(count=2)
        await live_trial.wait_running(batch)
        await live_trial.lrm.cancel(batch.ids[:1])
        await live_trial.until(
            lambda: live_trial.states(batch),
            lambda states: states == [LrmJobState.ENDED, LrmJobState.RUNNING],
            what="the first ended, the second running",
        )

    async def test_cancel_what_is_not_there(self, trial: Trial) -> None:
        """Cancelling nothing, an unknown job, or one job twice is no error."""
        await trial.lrm.cancel([])
        await trial.lrm.cancel([trial.under_test.unknown_id])
        batch = await trial.submit()
        await trial.lrm.cancel(batch.ids)
        await trial.lrm.cancel(batch.ids)
        await trial.wait_ended(batch)
        await trial.lrm.cancel(batch.ids)

    @pytest.mark.parametrize("operation", sorted(OPERATIONS))
    async def test_unsupported_is_said(self, trial: Trial, operation: str) -> None:
        """An operation raises LrmUnsupportedError exactly when its capability is not stated."""
        capability, call = OPERATIONS[operation]
        job = trial.under_test.unknown_id
        if not getattr(trial.lrm.capabilities, capability):
            with pytest.raises(LrmUnsupportedError):
                await call(trial.lrm, job)
        elif operation == "history":
            assert await call(trial.lrm, job) == ()
        else:
            with pytest.raises(LrmNotFoundError):
                await call(trial.lrm, job)

    async def test_hold_and_release(self, live_trial: Trial) -> None:
        """A queued job that is held does not start when it could; released, it starts."""
        trial = live_trial
        trial.need("hold")
        full = await trial.submit(count=trial.under_test.processors)
        await trial.wait_running(full)
        queued = await trial.submit()
        await trial.wait_states(queued, LrmJobState.QUEUED)
        await trial.lrm.hold(queued.ids)
        await trial.wait_states(queued, LrmJobState.HELD)
        full.go()
        await trial.wait_ended(full)
        await anyio.sleep(2)
        assert await trial.states(queued) == [LrmJobState.HELD]
        await trial.lrm.release(queued.ids)
        await trial.wait_running(queued)

    async def test_release_of_a_held_submission(self, live_trial: Trial) -> None:
        """Of a submission in hold, the released elements run and the others stay."""
        live_trial.need("hold")
        batch = await live_trial.submit(count=2, held=True)
        await live_trial.wait_states(batch, LrmJobState.HELD, LrmJobState.HELD)
        await live_trial.lrm.release(batch.ids[1:])
        await live_trial.until(
            lambda: live_trial.states(batch),
            lambda states: states == [LrmJobState.HELD, LrmJobState.RUNNING],
            what="the second alone runs",
        )

    async def test_start_on_chosen_node(self, live_trial: Trial) -> None:
        """A held job starts on the node that is named, whichever the LRM would have taken."""
        live_trial.need("pin")
        for node in [node.name for node in await live_trial.lrm.nodes() if node.processors_idle]:
            batch = await live_trial.submit(held=True)
            await live_trial.wait_states(batch, LrmJobState.HELD)
            await live_trial.lrm.start_on(batch.ids[0], [node])
            await live_trial.wait_running(batch)
            await live_trial.lrm.confirm_start(batch.ids[0])
            assert (await live_trial.jobs(batch))[batch.ids[0]].nodes == (node,)
            batch.go()
            await live_trial.wait_ended(batch)

    async def test_start_on_a_busy_node_is_accepted(self, live_trial: Trial) -> None:
        """Nothing is waited for; taken back, twice, the job is held and starts nowhere, also when there is room."""
        trial = live_trial
        trial.need("pin")
        trial.need("hold")
        full = await trial.submit(count=trial.under_test.processors)
        await trial.wait_running(full)
        node = (await trial.jobs(full))[full.ids[0]].nodes[0]
        batch = await trial.submit(held=True)
        await trial.wait_states(batch, LrmJobState.HELD)
        await trial.lrm.start_on(batch.ids[0], [node])
        assert await trial.states(batch) == [LrmJobState.QUEUED]
        for _ in range(2):
            await trial.lrm.undo_start(batch.ids[0])
            await trial.wait_states(batch, LrmJobState.HELD)
        full.go()
        await trial.wait_ended(full)
        await anyio.sleep(2)
        assert await trial.states(batch) == [LrmJobState.HELD]
        await trial.lrm.start_on(batch.ids[0], [node])
        await trial.wait_running(batch)

    async def test_a_start_that_was_confirmed_may_be_confirmed_again(self, live_trial: Trial) -> None:
        """Also taking it back does not touch a job that runs."""
        trial = live_trial
        trial.need("pin")
        batch = await trial.submit(held=True)
        await trial.wait_states(batch, LrmJobState.HELD)
        node = next(node.name for node in await trial.lrm.nodes() if node.processors_idle)
        await trial.lrm.start_on(batch.ids[0], [node])
        await trial.wait_running(batch)
        for _ in range(2):
            await trial.lrm.confirm_start(batch.ids[0])
        if trial.lrm.capabilities.hold:
            with suppress(LrmRejectedError):  # where what runs cannot be put in hold
                await trial.lrm.undo_start(batch.ids[0])
        assert await trial.states(batch) == [LrmJobState.RUNNING]

    async def test_a_note_is_left_replaced_and_taken_away(self, live_trial: Trial) -> None:
        """The listing shows it with the waiting jobs that are named; taken away twice, there is none."""
        trial = live_trial
        trial.need("annotate")
        batch = await trial.submit(count=2, held=True)
        await trial.wait_states(batch, LrmJobState.HELD, LrmJobState.HELD)

        async def notes() -> set[str | None]:
            return {job.note for job in await trial.lrm.jobs() if job.id in batch.ids}

        for text in ("place 3, starts by 2026-11-23 15:27, as of 2026-11-23 14:05", "place 1", "", ""):
            await trial.lrm.annotate(batch.ids, text)
            await trial.until(notes, {text}.__eq__, what=f"the note {text!r}")
        assert await trial.states(batch) == [LrmJobState.HELD, LrmJobState.HELD]

    async def test_suspend_and_resume(self, live_trial: Trial) -> None:
        """A suspended job is SUSPENDED and stands still; resumed, it runs on."""
        trial = live_trial
        trial.need("suspend")
        batch = await trial.submit()
        await trial.wait_running(batch)
        await trial.lrm.suspend(batch.ids)
        await trial.wait_states(batch, LrmJobState.SUSPENDED)
        await _stands_still(trial, batch.beats)
        before = batch.beats()
        await trial.lrm.resume(batch.ids)
        await trial.wait_states(batch, LrmJobState.RUNNING)

        async def beats() -> int:
            return batch.beats()

        await trial.until(beats, lambda now: now > before, what="the job works again")

    async def test_cancel_suspended(self, live_trial: Trial) -> None:
        """A suspended job can be cancelled without being resumed first."""
        live_trial.need("suspend")
        batch = await live_trial.submit()
        await live_trial.wait_running(batch)
        await live_trial.lrm.suspend(batch.ids)
        await live_trial.wait_states(batch, LrmJobState.SUSPENDED)
        await live_trial.lrm.cancel(batch.ids)
        await live_trial.wait_ended(batch)

    async def test_requeue(self, live_trial: Trial) -> None:
        """A requeued job is stopped and started a second time under the same id."""
        trial = live_trial
        trial.need("requeue")
        batch = await trial.submit()
        await trial.wait_running(batch)
        await trial.lrm.requeue(batch.ids)

        async def starts() -> int:
            return batch.starts(1)

        await trial.until(starts, lambda count: count > 1, what="the second start")
        await trial.wait_states(batch, LrmJobState.RUNNING)

    async def test_signal(self, live_trial: Trial) -> None:
        """A signal reaches the script of a running job and only that job."""
        trial = live_trial
        trial.need("signal")
        trap = 'trap \': > "$d/signalled.$index"\' USR1; : > "$d/ready.$index"'
        batch = await trial.submit(count=2, body=trap)
        await trial.wait_running(batch)
        for index in (1, 2):
            await trial.wait_file(batch.directory / f"ready.{index}")
        await trial.lrm.signal(batch.ids[:1], signal.SIGUSR1)
        await trial.wait_file(batch.directory / "signalled.1")
        assert not (batch.directory / "signalled.2").exists()

    async def test_modify_walltime(self, live_trial: Trial) -> None:
        """The walltime of a running job is shortened, and the LRM shows the new end."""
        trial = live_trial
        trial.need("modify")
        batch = await trial.submit(walltime=3600)
        await trial.wait_running(batch)
        await trial.lrm.modify(batch.ids[0], walltime=1800)
        job = (await trial.jobs(batch))[batch.ids[0]]
        if job.ends_at is None or job.started_at is None:
            return

        async def length() -> float:
            seen = (await trial.jobs(batch))[batch.ids[0]]
            return (seen.ends_at or 0) - (seen.started_at or 0)

        await trial.until(length, lambda seconds: abs(seconds - 1800) <= LRM_MINUTE, what="a walltime of 1800 s")


async def _stands_still(trial: Trial, beats: Callable[[], int]) -> None:
    """Wait until the job's sign of life, given ten times a second, has stopped for a second."""

    async def silent() -> bool:
        before = beats()
        await anyio.sleep(1)
        return beats() == before

    await trial.until(silent, bool, what="no more signs of life from the job's processes")
