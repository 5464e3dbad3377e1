# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - these are tests
"""Conformance tests of jobs: their life and end, controlling them, and failures of the LRM.

In order: jobs are queued, run and end, and their end is never reported wrongly; cancelling, and each further operation
where the plugin states it; and the LRM out of reach.
"""

from __future__ import annotations

import re
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmError, LrmNotFoundError, LrmRejectedError, LrmUnavailableError, LrmUnsupportedError
from koala_adapter.lrm import PinnedStart
from koala_adapter.model import EndReason, LrmJobState
from koala_adapter.testing.trial import BEATS_PER_SECOND, LONGEST_JOB

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from koala_adapter.lrm import CheckResult, Lrm, RenderedSubmission
    from koala_adapter.model import LrmJob, LrmJobId
    from koala_adapter.testing.trial import Batch, LrmUnderTest, Trial


# -- The life of a job ---------------------------------------------------------------------------------------

ORDER = (
    LrmJobState.QUEUED,
    LrmJobState.STARTING,
    LrmJobState.RUNNING,
    LrmJobState.ENDING,
    LrmJobState.ENDED,
)
SHELL_SIGNAL = 128
"""From here on a shell's exit status means death by a signal."""

CLOCK_SLACK = 5.0
"""Seconds by which times of the LRM may differ from ours."""


class LifeTests:
    """Tests of the states that a job goes through and of how its end is told."""

    async def test_states_go_forward(self, live_trial: Trial) -> None:
        """A job is queued, then runs on a node that exists, then is ended or gone; it never goes back."""
        trial = live_trial
        batch = await trial.submit()
        seen: list[LrmJobState] = []

        async def look() -> LrmJobState:
            (state,) = await trial.states(batch)
            if state is LrmJobState.UNKNOWN:
                words = {job.raw_state for job in (await trial.jobs(batch)).values()}
                pytest.fail(f"the plugin does not know the LRM's state {', '.join(sorted(words))}")
            if state is trial.waiting:
                state = LrmJobState.QUEUED
            # Not listed before it was ever listed: the LRM is slow to show it, it has not ended.
            if not seen and state is LrmJobState.ENDED:
                return LrmJobState.QUEUED
            if state not in ORDER:
                pytest.fail(f"a job that nobody holds or suspends is shown as {state.value}")
            seen.append(state)
            return state

        await trial.until(look, lambda state: state is LrmJobState.RUNNING, what="the job runs")
        job = (await trial.jobs(batch))[batch.ids[0]]
        assert set(job.nodes) <= {node.name for node in await trial.lrm.nodes()}
        assert job.nodes
        batch.go()
        await trial.until(look, lambda state: state is LrmJobState.ENDED, what="the job is ended or gone")
        steps = [ORDER.index(state) for state in seen]
        assert steps == sorted(steps), f"states went back: {seen}"

    async def test_times_are_told(self, live_trial: Trial) -> None:
        """Times of a running job, where told, are near now, in seconds since the epoch."""
        trial = live_trial
        earliest = time.time() - CLOCK_SLACK
        batch = await trial.submit(walltime=3600)
        await trial.wait_running(batch)
        job = (await trial.jobs(batch))[batch.ids[0]]
        for moment in (job.submitted_at, job.started_at):
            assert moment is None or earliest <= moment <= time.time() + CLOCK_SLACK
        if job.ends_at is not None:
            assert earliest + 3600 <= job.ends_at <= time.time() + 3600 + 60 + CLOCK_SLACK

    async def test_more_jobs_than_processors(self, live_trial: Trial) -> None:
        """What does not fit is QUEUED, does not run, and starts by itself when processors come free."""
        trial = live_trial
        processors = trial.under_test.processors
        batch = await trial.submit(count=processors + 2)
        wanted = [LrmJobState.RUNNING] * processors + [trial.waiting] * 2
        await trial.wait_states(batch, *wanted)
        await trial.wait_reports(batch, processors)
        if trial.lrm.capabilities.observes_nodes:

            async def idle() -> int:
                return sum(node.processors_idle for node in await trial.lrm.nodes())

            await trial.until(idle, lambda count: count == 0, what="no processor is idle")
        assert len(batch.reports()) == processors
        batch.go()
        await trial.wait_reports(batch, processors + 2)
        await trial.wait_ended(batch)

    async def test_exit_code(self, live_trial: Trial) -> None:
        """The end of a job that exits is told as just that, with its code, or is not told."""
        batches = {code: await live_trial.submit(exit_code=code) for code in (0, 3)}
        for batch in batches.values():
            await live_trial.wait_running(batch)
            batch.go()
        for code, batch in batches.items():
            for job in await _ends(live_trial, batch):
                assert job.end in {EndReason.EXITED, None}
                assert job.exit_code in {code, None}
                assert job.signal in {None, 0}

    async def test_death_by_signal(self, live_trial: Trial) -> None:
        """A job that kills itself is never told to have ended well, nor to have been cancelled."""
        batch = await live_trial.submit(body="kill -KILL $$")
        for job in await _ends(live_trial, batch):
            assert job.end in {EndReason.SIGNALLED, EndReason.EXITED, None}
            assert job.exit_code != 0
            assert job.signal in {signal.SIGKILL, None, 0}
            if job.end is EndReason.SIGNALLED:
                assert job.signal == signal.SIGKILL
            if job.end is EndReason.EXITED:
                assert (job.exit_code or 0) >= SHELL_SIGNAL

    async def test_array_elements_end_apart(self, live_trial: Trial) -> None:
        """Elements of one submission that end differently are told apart."""
        batch = await live_trial.submit(count=2, body='[ "$index" != 1 ] || exit 7', wait=False)
        codes = dict(zip(batch.ids, (7, 0), strict=True))
        for job in await _ends(live_trial, batch):
            assert job.exit_code in {codes[job.id], None}

    async def test_walltime_is_requested(self, live_trial: Trial) -> None:
        """The LRM knows the walltime: it shows the end of a running job, or the request names it."""
        trial = live_trial
        walltime = 7 * 60
        batch = await trial.submit(walltime=walltime)
        await trial.wait_running(batch)
        job = (await trial.jobs(batch))[batch.ids[0]]
        if job.ends_at is None:
            assert not trial.lrm.capabilities.submit or names_walltime(trial.lrm.render(batch.submission), walltime)
            return
        started = job.started_at if job.started_at is not None else time.time()
        assert abs(job.ends_at - started - walltime) <= 60 + CLOCK_SLACK

    async def test_walltime_is_enforced(self, live_trial: Trial) -> None:
        """A job that outlives its walltime is ended by the LRM, and its end, where told, is WALLTIME."""
        trial = live_trial
        precision = trial.under_test.walltime_precision
        if precision is None:
            pytest.skip("this LRM cannot end a job within seconds")
        batch = await trial.submit(walltime=1)
        await _wait_started(trial, batch)
        await trial.wait_ended(batch, seconds=1 + precision + trial.under_test.patience)
        assert batch.beats() < LONGEST_JOB * BEATS_PER_SECOND, "it came to its own end"
        for job in await _told_ends(trial, batch):
            assert job.end in {EndReason.WALLTIME, None}

    async def test_found_by_a_second_session(self, live_trial: Trial) -> None:
        """Another Lrm on the same cluster, as after our restart, finds the job and can cancel it."""
        trial, under = live_trial, live_trial.under_test
        trial.need("find_by_name")
        batch = await trial.submit(count=2)
        await trial.wait_running(batch)
        second = under.definition.factory(under.context, under.settings)
        await second.start()
        try:
            listed = await second.jobs(name_prefix=batch.key)
            assert {job.id for job in listed} == set(batch.ids)
            assert {job.state for job in listed} == {LrmJobState.RUNNING}
            await second.cancel(batch.ids)
        finally:
            await second.close()
        await trial.wait_ended(batch)


async def _wait_started(trial: Trial, batch: Batch) -> None:
    """Wait until a batch has begun, although on a busy machine its time may be over before it has reported."""
    before = {trial.waiting, LrmJobState.QUEUED, LrmJobState.STARTING}
    listed = False

    async def started() -> bool:
        nonlocal listed
        jobs = (await trial.jobs(batch)).values()
        listed = listed or bool(jobs)
        return bool(batch.reports()) or (listed and not any(job.state in before for job in jobs))

    await trial.until(started, bool, what=f"start of {batch.key}")


async def _ends(trial: Trial, batch: Batch) -> list[LrmJob]:
    """Wait for the end of a batch that has run; return what is told of it."""
    await trial.wait_ended(batch)
    await trial.wait_reports(batch, len(batch.ids))
    return await _told_ends(trial, batch)


async def _told_ends(trial: Trial, batch: Batch) -> list[LrmJob]:
    """Return what listing and accounting say about the ends of a batch, which may be nothing."""
    ends = [job for job in (await trial.jobs(batch)).values() if job.state is LrmJobState.ENDED]
    if trial.lrm.capabilities.accounting:
        kept = await trial.until(
            lambda: trial.lrm.history(batch.ids),
            lambda jobs: {job.id for job in jobs} == set(batch.ids),
            what="accounting knows the end",
        )
        assert {job.state for job in kept} == {LrmJobState.ENDED}
        ends += kept
    return ends


def names_walltime(rendered: RenderedSubmission, walltime: int) -> bool:
    """Tell whether a request names a walltime (seconds), in whatever form."""
    minutes, seconds = divmod(walltime, 60)
    times = (f"{minutes}:{seconds:02d}", f"0:{minutes:02d}:{seconds:02d}", f"0:{minutes}", f"0:{minutes:02d}")
    forms = (str(walltime), str(minutes), *times)
    pattern = r"(?<![\d:])0*(" + "|".join(map(re.escape, forms)) + r")(?![\d:])"
    return any(re.search(pattern, text) for text in rendered.command)


# -- Control: cancelling always, other operations where they are stated --------------------------------------

LRM_MINUTE = 60
"""Seconds: many LRMs know walltimes only in whole minutes."""

OPERATIONS: Mapping[str, tuple[str, Callable[[Lrm, LrmJobId], Awaitable[object]]]] = {
    "history": ("accounting", lambda lrm, job: lrm.history([job])),
    "hold": ("hold", lambda lrm, job: lrm.hold([job])),
    "release": ("hold", lambda lrm, job: lrm.release([job])),
    "start_on": ("pin", lambda lrm, job: lrm.start_on(PinnedStart(job=job, nodes=("node",)))),
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

    async def test_unsupported_is_said(self, trial: Trial) -> None:
        """Each operation raises LrmUnsupportedError exactly when its capability is not stated."""
        job = trial.under_test.unknown_id
        wrong: dict[str, str] = {}
        for operation, (capability, call) in OPERATIONS.items():
            stated = getattr(trial.lrm.capabilities, capability)
            try:
                answer = await call(trial.lrm, job)
            except LrmError as error:
                if type(error) is not (LrmNotFoundError if stated else LrmUnsupportedError):
                    wrong[operation] = f"raised {error!r}"
            else:
                if (stated, operation, answer) != (True, "history", ()):
                    wrong[operation] = f"returned {answer!r}"
        assert wrong == {}

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
        await trial.run_another()
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
            start = await live_trial.start_on(batch.ids[0], node)
            await live_trial.wait_running(batch)
            await live_trial.lrm.confirm_start(start)
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
        start = await trial.start_on(batch.ids[0], node)
        assert await trial.states(batch) == [LrmJobState.QUEUED]
        for _ in range(2):
            await trial.lrm.undo_start(start)
            await trial.wait_states(batch, LrmJobState.HELD)
        full.go()
        await trial.wait_ended(full)
        await trial.run_another()
        assert await trial.states(batch) == [LrmJobState.HELD]
        await trial.lrm.start_on(start)
        await trial.wait_running(batch)

    async def test_a_start_that_was_confirmed_may_be_confirmed_again(self, live_trial: Trial) -> None:
        """Also taking it back does not touch a job that runs."""
        trial = live_trial
        trial.need("pin")
        batch = await trial.submit(held=True)
        await trial.wait_states(batch, LrmJobState.HELD)
        node = next(node.name for node in await trial.lrm.nodes() if node.processors_idle)
        start = await trial.start_on(batch.ids[0], node)
        await trial.wait_running(batch)
        for _ in range(2):
            await trial.lrm.confirm_start(start)
        if trial.lrm.capabilities.hold:
            with suppress(LrmRejectedError):  # where what runs cannot be put in hold
                await trial.lrm.undo_start(start)
        assert await trial.states(batch) == [LrmJobState.RUNNING]

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
    """Wait until the job's sign of life has stayed away for the time of several."""

    async def silent() -> bool:
        before = beats()
        await anyio.sleep(5 / BEATS_PER_SECOND)
        return beats() == before

    await trial.until(silent, bool, what="no more signs of life from the job's processes")


# -- The LRM out of reach: the right error, soon, and no change afterwards -----------------------------------


class FailureTests:
    """Tests that stop the LRM and start it again; skipped when the LRM under test offers no way to."""

    @pytest.fixture
    async def stop(self, under_test: LrmUnderTest) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """Give the function that stops the LRM; whatever happens in the test, the LRM is started again."""
        stop_lrm, start_lrm = under_test.stop_lrm, under_test.start_lrm
        if stop_lrm is None or start_lrm is None:
            pytest.skip("the LRM under test cannot be stopped and started")
        stopped = False

        async def stop() -> None:
            nonlocal stopped
            stopped = True
            await stop_lrm()

        yield stop
        if stopped:
            await start_lrm()

    async def test_unavailable(self, trial: Trial, stop: Callable[[], Awaitable[None]]) -> None:
        """Without the LRM each operation soon raises LrmUnavailableError, and returns no empty list; ``check`` tells.

        All are asked at the same time, as each may have to wait for a time-out of its own.
        """
        lrm, batch = trial.lrm, trial.prepare()
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "nodes": lrm.nodes,
            "jobs": lrm.jobs,
            "queues": lrm.queues,
            "submit": lambda: lrm.submit(batch.submission),
            "cancel": lambda: lrm.cancel([trial.under_test.unknown_id]),
        }
        if not lrm.capabilities.submit:
            del operations["submit"]
        complaints: list[CheckResult] = []
        wrong: dict[str, str] = {}

        async def ask(name: str) -> None:
            try:
                wrong[name] = f"returned {await operations[name]()!r}"
            except LrmUnavailableError:
                pass
            except LrmError as error:
                wrong[name] = f"raised {error!r}"

        async def check() -> None:
            complaints.extend(result for result in await lrm.check() if not result.ok)

        await stop()
        with anyio.fail_after(trial.under_test.unavailable_within):
            async with anyio.create_task_group() as group:
                for name in operations:
                    group.start_soon(ask, name)
                group.start_soon(check)
        assert wrong == {}
        assert complaints
        assert all(result.remedy for result in complaints)

    async def test_jobs_survive_unavailability(self, live_trial: Trial, stop: Callable[[], Awaitable[None]]) -> None:
        """A job that runs while the LRM is away runs on, and is found by its name when the LRM is back."""
        batch = await live_trial.submit(count=2)
        await live_trial.wait_running(batch)
        await stop()
        start = live_trial.under_test.start_lrm
        assert start is not None
        await start()
        await live_trial.wait_states(batch, LrmJobState.RUNNING, LrmJobState.RUNNING)
        assert [batch.starts(index) for index in (1, 2)] == [1, 1]
        await self.end_survivors(batch)
        await live_trial.wait_ended(batch)

    async def end_survivors(self, batch: Batch) -> None:
        """Let jobs that ran while the LRM was away end. Overridden for an LRM that reports such an end late."""
        batch.go()
