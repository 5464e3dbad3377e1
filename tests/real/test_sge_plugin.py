# SPDX-License-Identifier: Apache-2.0
"""The plugin ``sge`` on a real Grid Engine cell: the conformance kit, and what only a real system shows."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.drmaa.choice import SubmitBy
from koala_adapter.lrm.drmaa.client import DrmaaClient, HelperLaunch, Loading
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery
from koala_adapter.model import BatchKey, EndReason, LrmJob, LrmJobId, LrmJobState, NodeState
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial, eventually, new_context
from koala_adapter.testing.trial import Batch, begin_start
from koala_sge import PLUGIN, SgeLrm, SgeSettings, lrm
from tests.real.lrms import foreign_job, namesake_job
from tests.real.systems import GridEngineCell
from tests.real.systems.processes import GRID_ENGINE_PROGRAMS, run_command
from tests.undertest import started_plugin

SLOTS = 4


def settings_of(
    cell: GridEngineCell,
    *,
    delivery: ScriptDelivery = ScriptDelivery.PRIVATE,
    queue: str | None = None,
    request_timeout: float = 60.0,
) -> SgeSettings:
    return SgeSettings(
        bin_directory=GRID_ENGINE_PROGRAMS,
        root=cell.root,
        cell=cell.cell,
        qmaster_port=cell.qmaster_port,
        execd_port=cell.execd_port,
        queue=queue,
        trigger_scheduler=True,
        script_delivery=delivery,
        request_timeout=request_timeout,
    )


def restart(cell: GridEngineCell) -> None:
    """Start sge_qmaster again, and sge_execd too.

    Left alone, sge_execd tries to reach the new qmaster only after 30 s, and may then hold back the ends of jobs for
    minutes ("delayed job reporting"). A new one looks once a minute for the ends of the jobs that it took over.
    """
    cell.start_qmaster()
    cell.kill_execd(with_jobs=False)
    cell.start_execd()
    cell.wait_ready()


class TestSge(LrmConformance):
    """The conformance kit, with DRMAA, which is found by itself."""

    SUBMIT_BY: ClassVar[SubmitBy] = "auto"

    @pytest.fixture
    async def under_test(self, sge_cell: GridEngineCell, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the shared cell."""
        self._cell = sge_cell
        settings = settings_of(sge_cell).model_copy(update={"submit_by": self.SUBMIT_BY})
        stopped = False

        async def stop() -> None:
            nonlocal stopped
            await anyio.to_thread.run_sync(sge_cell.stop_qmaster)
            stopped = True

        async def start() -> None:
            nonlocal stopped
            if stopped:
                await anyio.to_thread.run_sync(restart, sge_cell)
            stopped = False

        async with started_plugin(
            PLUGIN,
            settings,
            tmp_path,
            processors=SLOTS,
            unknown_id=LrmJobId("999999.1"),
            foreign_job=foreign_job(sge_cell),
            namesake_job=namesake_job(sge_cell),
            stop_lrm=stop,
            start_lrm=start,
            patience=90,
            unavailable_within=180,
            walltime_precision=15,
        ) as under:
            yield under

    async def end_survivors(self, batch: Batch) -> None:
        """End them by a loss of power: sge_execd tells other ends of jobs that it took over after a minute."""
        del batch
        await anyio.to_thread.run_sync(self._cell.kill_execd)
        self._cell.start_execd()


class TestSgeByCommands(TestSge):
    """The conformance kit, with qsub, qdel, qhold, qrls and qmod alone."""

    SUBMIT_BY = "commands"
    BY_DAY = frozenset(
        {
            "test_cancel_all_kinds_at_once",
            "test_found_again_by_name",
            "test_hold_and_release",
            "test_rejected_submission_leaves_nothing",
            "test_suspend_and_resume",
        }
    )


@contextlib.asynccontextmanager
async def trial_on(
    cell: GridEngineCell, directory: Path, settings: SgeSettings | None = None
) -> AsyncIterator[tuple[SgeLrm, Trial]]:
    """Give the plugin on a cell, and a trial with it; what the trial submits is removed at the end."""
    async with started_plugin(
        PLUGIN, settings or settings_of(cell), directory, processors=SLOTS, unknown_id=LrmJobId("999999.1")
    ) as under:
        assert isinstance(under.lrm, SgeLrm)
        trial = Trial(under)
        yield under.lrm, trial
        await trial.close()


@pytest.fixture
async def sge(sge_cell: GridEngineCell, tmp_path: Path) -> AsyncIterator[tuple[SgeLrm, Trial]]:
    """Give the plugin on the shared cell, and a trial with it."""
    async with trial_on(sge_cell, tmp_path) as both:
        yield both


def library_of(lrm: SgeLrm) -> DrmaaClient:
    """Return the client of the DRMAA library through which a plugin submits."""
    drmaa = lrm._submitter.drmaa
    assert drmaa is not None
    return drmaa.client


@pytest.mark.parametrize("loading", list(Loading))
async def test_every_way_to_load_the_library(sge_cell: GridEngineCell, tmp_path: Path, loading: Loading) -> None:
    """Both cures for jemalloc's thread-local variables work; without either the plugin comes to one by itself."""
    lrm = SgeLrm(new_context(tmp_path), settings_of(sge_cell))
    launch = library_of(lrm).launch
    library_of(lrm).launch = HelperLaunch(library=launch.library, variables=launch.variables, loading=loading)
    opened = await library_of(lrm).open()
    await lrm.close()
    assert opened.system == "SGE 8.1.9"
    assert library_of(lrm).launch.loading in {loading, Loading.PRELOAD}


async def test_helper_killed_in_the_middle_of_a_submission(sge_cell: GridEngineCell, tmp_path: Path) -> None:
    """A submission whose helper dies is unavailable; its name tells whether it is in. Never is it in twice."""
    async with trial_on(sge_cell, tmp_path) as (lrm, trial):
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.004):
            await library_of(lrm).open()
            pid = library_of(lrm).helper_pid
            assert pid is not None
            batch = trial.prepare(count=3, held=True)

            async def kill(victim: int = pid, after: float = delay) -> None:
                await anyio.sleep(after)
                os.kill(victim, signal.SIGKILL)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kill)
                with contextlib.suppress(LrmUnavailableError):
                    await lrm.submit(batch.submission)
            await anyio.sleep(0.2)
            assert len(await trial.jobs(batch)) in {0, 3}
            await _settle(lrm)


async def _settle(lrm: SgeLrm) -> None:
    """Wait until a helper that died is replaced: after several deaths in a row that takes a pause."""

    async def reachable() -> bool:
        try:
            await library_of(lrm).reach()
        except LrmUnavailableError:
            return False
        return True

    await eventually(reachable, bool, what="helper replaced", seconds=90)


async def test_several_are_cancelled_by_one_request(sge: tuple[SgeLrm, Trial]) -> None:
    lrm, trial = sge
    batch = await trial.submit(count=3)
    before = trial.requests()
    await lrm.cancel(batch.ids)
    assert trial.requests() - before == 1
    await trial.wait_ended(batch)


async def test_job_that_cannot_start(sge: tuple[SgeLrm, Trial]) -> None:
    """A job that cannot start ends at once (submitted with qsub it would stay in error state), and history says why."""
    lrm, trial = sge
    batch = trial.prepare(count=2)
    (batch.directory / "output").rmdir()
    batch = await trial.send(batch)
    await trial.wait_ended(batch)

    async def ends() -> list[tuple[EndReason | None, str]]:
        return [(job.end, job.reason) for job in await lrm.history(batch.ids)]

    expected = (EndReason.LAUNCH_FAILED, "failed 26: opening input/output file")
    await trial.until(ends, lambda seen: seen == [expected] * 2, what="accounting knows why")


async def test_error_state(sge_cell: GridEngineCell, sge: tuple[SgeLrm, Trial]) -> None:
    """A job in error state (Eqw) is HELD: it neither runs nor waits for processors; the reason is asked for our own."""
    lrm, trial = sge
    mine = sge_cell.submit("#!/bin/sh\n", "-o", "/nonexistent/x", "-j", "y", "-wd", "/tmp")

    async def states() -> list[tuple[str, LrmJobState]]:
        return [(job.raw_state, job.state) for job in await lrm.jobs() if job.id == mine]

    await trial.until(states, lambda seen: seen == [("Eqw", LrmJobState.HELD)], what="error state")
    (job,) = [job for job in await lrm.jobs() if job.id == mine]
    await lrm.cancel([LrmJobId(mine)])
    assert job.reason.startswith("error state Eqw: can't open output file")


async def test_bytes_of_a_user_hide_no_job(sge_cell: GridEngineCell, sge: tuple[SgeLrm, Trial]) -> None:
    """A resource and a dependency that are no UTF-8: the job is listed, and so are all others, with their accounts."""
    lrm, _ = sge
    good = sge_cell.submit("#!/bin/sh\n", "-h", "-A", "bio")
    bad = sge_cell.submit("#!/bin/sh\n", "-h", "-l", "arch=a\udcff", "-hold_jid", "x\udcff")
    try:
        jobs = {str(job.id): job for job in await lrm.jobs_to_schedule()}
    finally:
        await lrm.cancel([LrmJobId(good), LrmJobId(bad)])
    assert {jobs[good].state, jobs[bad].state} == {LrmJobState.HELD}
    assert jobs[good].account == "bio"
    assert jobs[good].group


async def test_disabled_queue(sge_cell: GridEngineCell, sge: tuple[SgeLrm, Trial]) -> None:
    """A disabled queue has no idle processors and is not up; enabled, it is as before."""
    lrm, _ = sge
    sge_cell.run("qmod", "-d", "all.q")
    try:
        (node,), (queue,) = await lrm.nodes(), await lrm.queues()
    finally:
        sge_cell.run("qmod", "-e", "all.q")
    assert (node.state, node.processors_idle, node.raw_state) == (NodeState.DRAINING, 0, "d")
    assert not queue.up
    (node,) = await lrm.nodes()
    assert (node.state, node.processors_idle) == (NodeState.UP, SLOTS)


async def test_pinning_one_task_of_several(sge: tuple[SgeLrm, Trial]) -> None:
    """Tasks of one held array are started on a chosen node one after another, the others stay held.

    A node that the cell does not have is refused.
    """
    lrm, trial = sge
    (node,) = await lrm.nodes()
    batch = await trial.submit(count=3, held=True)
    with pytest.raises(LrmRejectedError):
        await begin_start(lrm, batch.ids[2], ["no-such-host"])
    for started in (1, 2):
        await begin_start(lrm, batch.ids[started - 1], [node.name])
        await trial.wait_states(
            batch, *[LrmJobState.RUNNING] * started, *[LrmJobState.HELD] * (3 - started), what=f"{started} run"
        )


@pytest.mark.parametrize("delivery", list(ScriptDelivery))
async def test_who_can_read_the_script(sge_cell: GridEngineCell, tmp_path: Path, delivery: ScriptDelivery) -> None:
    """Delivered privately, no other user finds the script's secret; copied, Grid Engine shows it to all, as we warn."""
    secret = "koala-canary-6f1d"
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    async with trial_on(sge_cell, tmp_path, settings_of(sge_cell, delivery=delivery)) as (lrm, trial):
        batch = await trial.submit(body=f": {secret}")
        await trial.wait_running(batch)
        shown = sge_cell.run("qstat", "-j", batch.ids[0].partition(".")[0], user="nobody")
        places = (str(sge_cell.spool), str(sge_cell.root / "default"), str(tmp_path))
        found = run_command(
            ("grep", "-rl", secret, *places), environment=sge_cell.environment("nobody"), user="nobody", check=False
        )
        checked = {result.subject: result for result in await lrm.check()}["placeholder scripts"]
    assert secret not in shown
    if delivery is ScriptDelivery.PRIVATE:
        assert found == ""
        assert "private" in checked.found
    else:
        assert "job_scripts" in found
        assert "other users of a node may read them" in checked.found


async def test_scripts_do_not_pile_up(sge: tuple[SgeLrm, Trial]) -> None:
    """A refused submission leaves no script, and that of one that is over is dropped when it is forgotten."""
    lrm, trial = sge
    scripts = trial.under_test.context.state_directory / "scripts"
    with pytest.raises(LrmRejectedError):
        await lrm.submit(trial.prepare(queue="koala-no-such-queue").submission)
    assert list(scripts.iterdir()) == []
    batch = await trial.submit(wait=False)
    await trial.wait_ended(batch)
    lrm.forget(batch.key)
    assert list(scripts.iterdir()) == []


async def test_hanging_qmaster(started: ExitStack, tmp_path: Path) -> None:
    """A qmaster that accepts connections and does not answer: each request ends in time, and later all is well."""
    cell = started.enter_context(GridEngineCell("hang", slots=2))
    lrm = SgeLrm(new_context(tmp_path), settings_of(cell, request_timeout=4))
    await lrm.start()
    submission = Submission(key=BatchKey("khang"), count=2, script="#!/bin/sh\n", walltime=60, held=True)
    cell.signal_qmaster(signal.SIGSTOP)

    async def expect_refusal(ask: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises(LrmUnavailableError):
            await ask()

    try:
        with anyio.fail_after(90):
            async with anyio.create_task_group() as together:
                for ask in (lrm.nodes, lrm.jobs, lrm.queues, lambda: lrm.submit(submission)):
                    together.start_soon(expect_refusal, ask)
        # What would wait for it again, queues, the library and the user's id, is left out of a check.
        checked = await SgeLrm(new_context(tmp_path), settings_of(cell, request_timeout=4)).check()
        assert [result.subject for result in checked if not result.ok] == [checked[-1].subject] == ["qmaster"]
        assert "start sge_qmaster" in checked[-1].remedy
    finally:
        cell.signal_qmaster(signal.SIGCONT)
    await _settle(lrm)
    found = await lrm.jobs(name_prefix="khang")
    assert len(found) in {0, 2}
    await lrm.cancel([job.id for job in found])
    await lrm.close()


async def test_lost_host(started: ExitStack, tmp_path: Path) -> None:
    """When a host is lost with its jobs, the node is DOWN; the listing goes on to show the job, so it is not ENDED."""
    cell = started.enter_context(GridEngineCell("lost", slots=2, configuration={"max_unheard": "00:00:10"}))
    lrm = SgeLrm(new_context(tmp_path), settings_of(cell))
    await lrm.start()
    submission = Submission(key=BatchKey("klost"), count=1, script="#!/bin/sh\nsleep 300\n", walltime=600)
    await lrm.submit(submission)

    async def state() -> list[LrmJobState]:
        return [job.state for job in await lrm.jobs(name_prefix="klost")]

    async def node() -> NodeState:
        return (await lrm.nodes())[0].state

    await eventually(state, lambda seen: seen == [LrmJobState.RUNNING], what="job runs", seconds=90)
    cell.kill_execd()
    await eventually(node, lambda seen: seen is NodeState.DOWN, what="node is DOWN", seconds=90)
    assert await state() == [LrmJobState.RUNNING]
    await lrm.close()


async def test_a_placeholder_that_never_starts_is_kept(
    started: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of its queue has come below its walltime; one that waits in a full cell is not kept."""
    monkeypatch.setattr(lrm, "VERIFIED_AFTER", 0.0)
    monkeypatch.setattr(lrm, "VERDICT_KEPT", 0.0)
    cell = started.enter_context(GridEngineCell("kept", slots=1))
    (queue,) = cell.run("qconf", "-sql").split()
    plugin = SgeLrm(new_context(tmp_path), settings_of(cell))
    await plugin.start()
    script = "#!/bin/sh\nexec sleep 600\n"
    try:
        fits = await plugin.submit(Submission(key=BatchKey("koala-fits"), count=2, script=script, walltime=600))
        long = await plugin.submit(Submission(key=BatchKey("koala-long"), count=2, script=script, walltime=7200))
        # What no queue takes is refused at once.
        cell.run("qconf", "-rattr", "queue", "h_rt", "0:30:0", queue)

        async def listed() -> dict[LrmJobId, LrmJob]:
            return {job.id: job for job in await plugin.jobs(name_prefix="koala-")}

        def settled(found: dict[LrmJobId, LrmJob]) -> bool:
            states = {found[id_].state for id_ in fits if id_ in found}
            known = all(id_ in found and found[id_].kept for id_ in long)
            return states == {LrmJobState.RUNNING, LrmJobState.QUEUED} and known

        await eventually(listed, settled, what="one runs, and those that never do are known", seconds=90)
        for _ in range(3):
            found = await listed()
            for id_ in long:
                assert (found[id_].kept, found[id_].blocked, found[id_].state) == (True, True, LrmJobState.QUEUED)
                assert "cannot run in queue" in found[id_].reason
            assert not any(found[id_].kept for id_ in fits)
        await plugin.cancel([*fits, *long])
    finally:
        await plugin.close()
