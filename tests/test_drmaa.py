# SPDX-License-Identifier: Apache-2.0
"""The plugin ``drmaa`` on a fake library, and the plugins of Slurm and PBS that submit through one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from koala_adapter.config.sitefile import ClusterConfig
from koala_adapter.errors import (
    LrmError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnreachableError,
    LrmUnsupportedError,
)
from koala_adapter.lrm import Submission
from koala_adapter.lrm.commands import THIS_HOST
from koala_adapter.lrm.drmaa.client import SINGLE_AT_ONCE, DrmaaClient, HelperLaunch, Loading
from koala_adapter.lrm.drmaa.libraries import PBS, SLURM, Library
from koala_adapter.lrm.drmaa.scripts import ScriptStore
from koala_adapter.lrm.drmaa.transport import DrmaaTransport
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState
from koala_adapter.sitesetup.checks import ClusterCheck
from koala_adapter.testing import LrmConformance, LrmUnderTest, Trial, eventually, new_context
from koala_drmaa import PLUGIN
from koala_drmaa.lrm import DrmaaLrm, DrmaaSettings
from tests.fakes.gridengine.cell import FakeCell
from tests.fakes.gridengine.engine import QUEUE
from tests.fakes.scripts import is_alive
from tests.undertest import started_plugin

# The plugin ``drmaa`` on a fake library: the conformance kit, and a helper that dies, hangs or cannot load.

SLOTS = 3
PATIENT, IMPATIENT = 60.0, 1.0
"""Seconds for a call into the library: one that returns on any machine, and one that hangs."""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCell]:
    """Give a fake cell for all tests of this module."""
    cell = FakeCell(tmp_path_factory.mktemp("fake") / "cell", slots=SLOTS)
    yield cell
    cell.close()


def settings_of(cell: FakeCell) -> DrmaaSettings:
    """Return settings for the fake library."""
    return DrmaaSettings(
        processors=SLOTS,
        environment=cell.helper_variables,
        native_specification="-shell n",
        request_timeout=PATIENT,
    )


class DrmaaConformance(LrmConformance):
    """The conformance kit on a fake library."""

    unknown = "999999.1"

    def settings(self, cell: FakeCell) -> DrmaaSettings:
        """Return settings for the library."""
        return settings_of(cell)

    @pytest.fixture
    async def under_test(self, cell: FakeCell, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on the library."""
        async with started_plugin(
            PLUGIN,
            self.settings(cell),
            tmp_path,
            processors=SLOTS,
            unknown_id=LrmJobId(self.unknown),
            real=False,
            namesake_job=cell.namesake_job,
            stop_lrm=cell.stop,
            start_lrm=cell.start,
            patience=120,
            poll_interval=0.05,
            walltime_precision=120,
        ) as under:
            yield under
            left = [job.id for job in await under.lrm.jobs() if job.state is not LrmJobState.ENDED]
            await under.lrm.cancel(left)


class TestDrmaaOnFake(DrmaaConformance):
    """On one that does all that is asked for."""

    async def test_script_file_is_private(self, trial: Trial) -> None:
        trial.lrm.render(trial.prepare().submission)
        await trial.submit(held=True)
        directory = trial.under_test.context.state_directory / "scripts"
        assert directory.stat().st_mode & 0o777 == 0o700
        assert [path.stat().st_mode & 0o777 for path in directory.iterdir()] in ([0o600], [])


@pytest.fixture
async def lrm(cell: FakeCell, tmp_path: Path) -> AsyncIterator[DrmaaLrm]:
    """Give the plugin on the fake library, started."""
    lrm = DrmaaLrm(new_context(tmp_path), settings_of(cell))
    await lrm.start()
    yield lrm
    left = [job.id for job in await lrm.jobs() if job.state is not LrmJobState.ENDED]
    await lrm.cancel(left)
    await lrm.close()


def submission(key: str, count: int = 2) -> Submission:
    """Return a submission in hold: its jobs stay."""
    return Submission(
        key=BatchKey(key), count=count, script="#!/bin/sh\nexit 0\n", walltime=60, held=True, output_directory="/tmp"
    )


def helper_of(lrm: DrmaaLrm) -> int:
    """Return the process id of the running helper."""
    pid = lrm.client.helper_pid
    assert pid is not None
    return pid


async def test_idle_helper_killed(lrm: DrmaaLrm) -> None:
    await lrm.submit(submission("before"))
    first = helper_of(lrm)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: _dead(first), bool, what="helper is dead", seconds=120)
    assert {job.name for job in await lrm.jobs()} == {"before"}
    assert helper_of(lrm) != first


async def _dead(pid: int) -> bool:
    return not is_alive(pid)


async def test_helper_dies_after_the_submission_went_out(lrm: DrmaaLrm, cell: FakeCell) -> None:
    """The submission is unavailable, then listed as UNKNOWN under its key, never as absent; cancelling forgets it."""
    cell.misbehave("crash-after-submission")
    with pytest.raises(LrmUnavailableError):
        await lrm.submit(submission("torn", count=3))
    cell.misbehave("crash-after-submission", on=False)
    jobs = await lrm.jobs(name_prefix="torn")
    assert [(job.name, job.state, job.array_index) for job in jobs] == [
        ("torn", LrmJobState.UNKNOWN, index) for index in (1, 2, 3)
    ]
    await lrm.cancel([job.id for job in jobs])
    assert await lrm.jobs(name_prefix="torn") == ()


async def test_helper_that_dies_again_and_again_is_given_a_pause(
    lrm: DrmaaLrm, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koala_adapter.lrm.helper.FIRST_PAUSE", 3600.0)
    cell.misbehave("crash-after-submission")
    for number in range(2):
        with pytest.raises(LrmUnavailableError, match="died"):
            await lrm.submit(submission(f"again{number}"))
    cell.misbehave("crash-after-submission", on=False)
    with pytest.raises(LrmUnavailableError, match="started again in"):
        await lrm.jobs()
    lrm.client._retry_at = anyio.current_time()
    left = await lrm.jobs()
    await lrm.cancel([job.id for job in left])


async def test_hanging_library(lrm: DrmaaLrm, cell: FakeCell) -> None:
    cell.misbehave("hang")
    hung = helper_of(lrm)
    lrm.client._timeout = IMPATIENT
    with pytest.raises(LrmUnavailableError, match="did not answer"):
        await lrm.submit(submission("hung"))
    lrm.client._timeout = PATIENT
    cell.misbehave("hang", on=False)
    assert not is_alive(hung)
    await lrm.cancel([job.id for job in await lrm.jobs(name_prefix="hung")])


async def test_who_waits_is_told_what_was_found(lrm: DrmaaLrm, cell: FakeCell) -> None:
    cell.misbehave("hang")
    errors: list[LrmError] = []

    async def submit(key: str) -> None:
        try:
            await lrm.submit(submission(key))
        except LrmError as error:
            errors.append(error)

    lrm.client._timeout = IMPATIENT
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(submit, f"waits{number}")
    lrm.client._timeout = PATIENT
    cell.misbehave("hang", on=False)
    assert [type(error) for error in errors] == [LrmUnavailableError, *[LrmUnreachableError] * 3]
    left = await lrm.jobs(name_prefix="waits")
    assert len({job.name for job in left}) == 1
    await lrm.cancel([job.id for job in left])


async def test_cancelled_caller(lrm: DrmaaLrm) -> None:
    for patience in (0.0, 0.001, 0.003, 0.01):
        with anyio.move_on_after(patience):
            await lrm.submit(submission(f"cancelled{str(patience).partition('.')[2]}", count=5))
        assert len(await lrm.submit(submission(f"next{str(patience).partition('.')[2]}", count=2))) == 2


async def test_closing_ends_the_helper(lrm: DrmaaLrm) -> None:
    pid = helper_of(lrm)
    await lrm.close()
    assert not is_alive(pid)
    await lrm.version()


async def test_static_tls_is_cured_by_preloading(cell: FakeCell, tmp_path: Path) -> None:
    cell.misbehave("static-tls")
    lrm = DrmaaLrm(new_context(tmp_path), settings_of(cell))
    await lrm.start()
    try:
        assert await lrm.version() == "SGE 8.1.9 (DRMAA 1.0)"
        assert (lrm.client.launch.loading, lrm.client.launch.preload) == (Loading.PRELOAD, "libm.so.6")
    finally:
        cell.misbehave("static-tls", on=False)
        await lrm.close()


@pytest.fixture
async def singles(tmp_path: Path) -> AsyncIterator[tuple[DrmaaLrm, FakeCell]]:
    """Give the plugin on a fake library that passes for pbs-drmaa: elements of its bulks are told no index."""
    cell = FakeCell(tmp_path / "cell", slots=SLOTS)
    cell.call_library("PBS Pro 23.06 (fake)")
    settings = settings_of(cell)
    lrm = DrmaaLrm(new_context(tmp_path), settings)
    await lrm.start()
    yield lrm, cell
    await lrm.close()
    cell.close()


async def test_what_the_library_is_decides(singles: tuple[DrmaaLrm, FakeCell]) -> None:
    lrm, _ = singles
    assert (lrm.array_index_variable, lrm.job_id_variable) == ("KOALA_INDEX", "PBS_JOBID")
    assert not lrm.capabilities.suspend
    with pytest.raises(LrmUnsupportedError, match="pbs-drmaa"):
        await lrm.suspend([LrmJobId("1.1")])
    _, abilities, _ = await lrm.check()
    assert abilities.ok
    assert "one job for each, with KOALA_INDEX" in abilities.found


async def test_each_placeholder_knows_its_number(singles: tuple[DrmaaLrm, FakeCell], tmp_path: Path) -> None:
    lrm, _ = singles
    script = f'#!/bin/sh\ntouch "{tmp_path}/started.${lrm.array_index_variable}"\n'
    ids = await lrm.submit(Submission(key=BatchKey("three"), count=3, script=script, walltime=60))
    assert len(set(ids)) == 3

    async def started() -> set[str]:
        return {path.suffix async for path in anyio.Path(tmp_path).glob("started.*")}

    await eventually(started, lambda seen: seen == {".1", ".2", ".3"}, what="three numbers", seconds=120)
    assert {(job.id, job.array_index) for job in await lrm.jobs(name_prefix="three")} == {
        (id_, index) for index, id_ in enumerate(ids, start=1)
    }


async def test_crash_between_two_jobs(singles: tuple[DrmaaLrm, FakeCell]) -> None:
    """A library that dies at the third of four jobs costs its helper: the first two are known, the others UNKNOWN."""
    lrm, cell = singles
    cell.misbehave("crash-at-third")
    first = helper_of(lrm)
    with pytest.raises(LrmUnavailableError, match="died"):
        await lrm.submit(submission("torn", count=4))
    jobs = {job.array_index: job for job in await lrm.jobs(name_prefix="torn")}
    assert [jobs[index].state for index in (1, 2, 3, 4)] == [LrmJobState.HELD] * 2 + [LrmJobState.UNKNOWN] * 2
    assert helper_of(lrm) != first
    await lrm.cancel([job.id for job in jobs.values()])
    left = await lrm.jobs(name_prefix="torn")
    assert [job.state for job in left] == [LrmJobState.ENDED] * 2


async def test_the_queue_of_the_cluster_works(cell: FakeCell, tmp_path: Path) -> None:
    """DRMAA lists no queues: ``queue`` of a cluster is neither looked for nor refused, and placeholders go there."""
    table = {"name": "a", "plugin": "drmaa", "queue": QUEUE, "requests_per_minute": 6000}
    config = ClusterConfig.model_validate(table).model_copy(update={"settings": settings_of(cell)})
    check = ClusterCheck(
        config=config, plugins={"drmaa": PLUGIN}, directory=tmp_path, tell=lambda _: None, center=None, timeout=1
    )
    results = await check.run()
    assert [result for result in results if not result.ok] == []
    assert any(QUEUE in result.found for result in results if result.subject == f"queue {QUEUE}")


async def test_library_of_another_system(cell: FakeCell, tmp_path: Path) -> None:
    """A library that is not that of the system which is read would send jobs elsewhere: it is refused, and told."""
    context = new_context(tmp_path)
    client = DrmaaClient(context, HelperLaunch(library=None, variables=cell.helper_variables))
    transport = DrmaaTransport(client, ScriptStore(tmp_path / "scripts", THIS_HOST), expected=SLURM)
    await client.open()
    try:
        with pytest.raises(LrmRejectedError, match=r"one for SGE 8\.1\.9, not for Slurm"):
            await transport.submit(submission("astray"), (), index_variable=None)
        found, _ = await transport.check()
        assert not found.ok
        assert "settings" in found.remedy
    finally:
        await transport.close()
    assert not list((tmp_path / "scripts").glob("*"))


async def test_missing_library(tmp_path: Path) -> None:
    settings = DrmaaSettings(processors=1, library=Path("/nonexistent/libdrmaa.so"))
    lrm = DrmaaLrm(new_context(tmp_path), settings)
    await lrm.start()
    with pytest.raises(LrmUnavailableError, match=r"/nonexistent/libdrmaa\.so"):
        await lrm.jobs()
    library, scripts = await lrm.check()
    await lrm.close()
    assert not library.ok
    assert library.remedy
    assert scripts.ok


async def test_helper_does_not_outlive_its_parent(cell: FakeCell, tmp_path: Path) -> None:
    """When the process that started it is killed, the helper ends although nobody told it to."""
    program = textwrap.dedent("""
        import sys, time, anyio
        from pathlib import Path
        from koala_adapter.testing import new_context
        from koala_drmaa.lrm import DrmaaLrm
        from koala_drmaa.lrm import DrmaaSettings

        async def main():
            settings = DrmaaSettings.model_validate_json(sys.argv[2])
            lrm = DrmaaLrm(new_context(Path(sys.argv[1])), settings)
            await lrm.start()
            print(lrm.client.helper_pid, flush=True)
            time.sleep(600)

        anyio.run(main)
    """)
    argv = [sys.executable, "-c", program, str(tmp_path), settings_of(cell).model_dump_json()]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths}
    # ASYNC220: it is to be killed without notice, and outlives no await of the event loop.
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        pid = int(await anyio.to_thread.run_sync(parent.stdout.readline))
        assert is_alive(pid)
        parent.kill()
    await eventually(lambda: _dead(pid), bool, what="the helper has ended", seconds=120)


# The conformance kit on the plugin ``drmaa`` with libraries as odd as slurm-drmaa and pbs-drmaa.


class OddLibraryConformance(DrmaaConformance):
    """The conformance kit; what a library must not be asked is refused, and skipped."""

    kind: str
    library: Library
    # What goes through a library in a way of its own.
    BY_DAY = frozenset(
        {
            "test_array_elements_end_apart",
            "test_cancel_one_of_several",
            "test_cancel_what_is_not_there",
            "test_check_is_content",
            "test_exit_code",
            "test_found_again_by_name",
            "test_held_submission_waits",
            "test_one_request_gives_ids_in_order",
            "test_rejected_submission_leaves_nothing",
            "test_release_of_a_held_submission",
            "test_states_go_forward",
            "test_unavailable",
            "test_unsupported_is_said",
            "test_walltime_is_requested",
            "test_what_crashes_or_lies_is_not_offered",
            "test_what_is_rendered_is_sent",
        }
    )

    def settings(self, cell: FakeCell) -> DrmaaSettings:
        """Return settings with the options that the plugin knows for the library."""
        return DrmaaSettings(processors=SLOTS, environment=cell.variables_of(self.kind), request_timeout=60)

    async def test_what_crashes_or_lies_is_not_offered(self, trial: Trial) -> None:
        assert not trial.lrm.capabilities.suspend
        batch = await trial.submit(held=True)
        assert all(("." in id_) == (self.library is PBS) and "_" not in id_ for id_ in batch.ids)


class TestSlurmDrmaa(OddLibraryConformance):
    """slurm-drmaa."""

    kind, library, unknown = "slurm", SLURM, "999999"


class TestPbsDrmaa(OddLibraryConformance):
    """pbs-drmaa."""

    kind, library, unknown = "pbs", PBS, "999999.vm"


# The plugin ``drmaa`` with a library, compiled here, that really crashes: it costs one helper process, and no job.

SOURCE = Path(__file__).parent / "fakes" / "crashinglibrary.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library."""
    if shutil.which("gcc") is None:
        pytest.skip("missing: gcc")
    path = tmp_path_factory.mktemp("library") / "libdrmaa.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", path, SOURCE], check=True)
    return path


class Crashing:
    """The plugin on that library, and what makes it crash."""

    def __init__(self, library: Path, directory: Path) -> None:
        """Nothing is started yet."""
        self._where = directory / "where"
        self._jobs = directory / "jobs"
        self.gate = directory / "gate"
        """While this file is there, no submission ends."""
        variables = {
            "CRASHING_AT": str(self._where),
            "CRASHING_JOBS": str(self._jobs),
            "CRASHING_GATE": str(self.gate),
        }
        settings = DrmaaSettings(library=library, processors=4, environment=variables, request_timeout=60)
        self.lrm = DrmaaLrm(new_context(directory), settings)

    def crash_at(self, function: str) -> None:
        """Have a function crash from now on; none with an empty name."""
        self._where.write_text(function)

    def submitted(self) -> list[str]:
        """Return the ids of all jobs that the library has submitted."""
        return self._jobs.read_text().split()

    async def states(self, key: str) -> list[LrmJobState]:
        """Return the states of a batch in the order of its indices."""
        jobs = {job.array_index: job.state for job in await self.lrm.jobs(name_prefix=key)}
        return [state for _, state in sorted(jobs.items(), key=lambda item: item[0] or 0)]


@pytest.fixture
async def crashing(library: Path, tmp_path: Path) -> AsyncIterator[Crashing]:
    """Give the plugin, started, with two jobs that run."""
    crashing = Crashing(library, tmp_path)
    await crashing.lrm.start()
    await crashing.lrm.submit(crashes_submission("before"))
    yield crashing
    await crashing.lrm.close()


def crashes_submission(key: str, count: int = 2) -> Submission:
    return Submission(key=BatchKey(key), count=count, script="#!/bin/sh\n", walltime=60)


@pytest.mark.parametrize("function", ["control", "job_ps"])
async def test_crash_of_a_request(crashing: Crashing, function: str) -> None:
    first = crashing.lrm.client.helper_pid
    ids = [job.id for job in await crashing.lrm.jobs()]
    crashing.crash_at(function)
    with pytest.raises(LrmUnavailableError, match="died"):
        await (crashing.lrm.hold(ids) if function == "control" else crashing.lrm.jobs())
    crashing.crash_at("")

    async def back() -> list[LrmJobState]:
        try:
            return await crashing.states("before")
        except LrmUnavailableError:
            return []

    await eventually(back, lambda seen: seen == [LrmJobState.RUNNING] * 2, what="both are known", seconds=120)
    assert crashing.lrm.client.helper_pid not in {None, first}
    assert crashing.submitted() == ids


async def test_crash_of_a_submission(crashing: Crashing) -> None:
    """What may be in is UNKNOWN, never absent, so that it is not submitted a second time; the rest goes on."""
    crashing.crash_at("run_job")
    with pytest.raises(LrmUnavailableError, match="died"):
        await crashing.lrm.submit(crashes_submission("torn", 3))
    crashing.crash_at("")
    assert len(crashing.submitted()) == 3
    assert await crashing.states("torn") == [LrmJobState.UNKNOWN] * 3
    assert await crashing.states("before") == [LrmJobState.RUNNING] * 2
    assert len(await crashing.lrm.submit(crashes_submission("after"))) == 2


async def test_a_cancel_does_not_wait_for_a_long_submission(crashing: Crashing) -> None:
    first = [job.id for job in await crashing.lrm.jobs()]
    done: list[str] = []

    async def submit() -> None:
        await crashing.lrm.submit(crashes_submission("long", 5 * SINGLE_AT_ONCE))
        done.append("submitted")

    async def cancel() -> None:
        await crashing.lrm.cancel(first)
        done.append("cancelled")

    async def number() -> int:
        return len(crashing.submitted())

    async def waiting() -> int:
        return crashing.lrm.client._lock.statistics().tasks_waiting

    crashing.gate.touch()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(submit)
        await eventually(number, lambda seen: seen > len(first), what="the first portion is on its way", seconds=120)
        tasks.start_soon(cancel)
        await eventually(waiting, bool, what="the cancel waits for its turn", seconds=120)
        crashing.gate.unlink()
    assert done == ["cancelled", "submitted"]
    assert await crashing.states("long") == [LrmJobState.RUNNING] * 5 * SINGLE_AT_ONCE


async def test_crash_at_the_start(library: Path, tmp_path: Path) -> None:
    crashing = Crashing(library, tmp_path)
    crashing.crash_at("init")
    await crashing.lrm.start()
    found, _ = await crashing.lrm.check()
    assert not found.ok
    assert found.remedy
    crashing.crash_at("")

    async def answers() -> str:
        try:
            return await crashing.lrm.version()
        except LrmUnavailableError:
            return ""

    version = await eventually(answers, bool, what="the library answers", seconds=120)
    assert version == "PBS that crashes (DRMAA 1.0)"
    await crashing.lrm.close()
