# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: S101 - these are tests
"""Conformance of a job's life: queued, running, ended, and never a wrong word about its end."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.model import EndReason, LrmJobState
from koala_adapter.testing.trial import BEATS_PER_SECOND, LONGEST_JOB

if TYPE_CHECKING:
    from koala_adapter.model import LrmJob
    from koala_adapter.plugin import RenderedSubmission
    from koala_adapter.testing.trial import Batch, Trial

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
        await anyio.sleep(1)
        assert len(batch.reports()) == processors
        if trial.lrm.capabilities.observes_nodes:

            async def idle() -> int:
                return sum(node.processors_idle for node in await trial.lrm.nodes())

            await trial.until(idle, lambda count: count == 0, what="no processor is idle")
        batch.go()
        await trial.wait_reports(batch, processors + 2)
        await trial.wait_ended(batch)

    @pytest.mark.parametrize("code", [0, 3])
    async def test_exit_code(self, live_trial: Trial, code: int) -> None:
        """The end of a job that exits is told as just that, with its code, or is not told."""
        batch = await live_trial.submit(exit_code=code)
        await live_trial.wait_running(batch)
        batch.go()
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
