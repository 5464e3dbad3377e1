# SPDX-License-Identifier: Apache-2.0
"""Fakes of Slurm and PBS: the conformance kit, and starts of held jobs on chosen nodes of a fake Slurm."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import Lrm, PinnedStart
from koala_adapter.lrm.commands import CommandResult
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState
from koala_adapter.testing import LrmConformance, LrmUnderTest, RecordingRunner, eventually, new_context
from koala_adapter.testing.trial import begin_start
from koala_pbs import PLUGIN as PBS
from koala_pbs import PbsSettings
from koala_slurm import PLUGIN, SlurmSettings
from koala_slurm import PLUGIN as SLURM
from koala_slurm.lrm import SlurmLrm
from tests.fakes.pbs import FakePbs
from tests.fakes.slurm import PYSLURM, FakeSlurm
from tests.fakes.slurm.state import Store
from tests.undertest import StartsByOperator, queued_job, started_plugin

# The conformance kit on the plugin ``slurm`` with a fake Slurm: runs on every machine. With an older release, and on
# Grid Engine, the kit runs on real daemons.

OPTIONS = ("--ntasks=1", "--cpus-per-task=1", "--time=10", "--output=/dev/null")


class SlurmConformance(LrmConformance):
    """The conformance kit on a fake with accounting."""

    release = "25.11.7"
    library = False

    @pytest.fixture
    async def under_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on a fake cluster of its own."""
        fake = FakeSlurm(tmp_path / "fake", accounting=True, release=self.release)
        monkeypatch.syspath_prepend(PYSLURM)
        settings = SlurmSettings(
            conf=fake.conf,
            bin_directory=fake.bin_directory,
            submit_by="commands",
            access="pyslurm" if self.library else "commands",
            command_timeout=40,
        )

        async def stop() -> None:
            fake.stop_server()

        async def start() -> None:
            fake.start_server()

        async with started_plugin(
            SLURM,
            settings,
            tmp_path,
            processors=fake.processors,
            unknown_id=LrmJobId("999999_1"),
            real=False,
            foreign_job=lambda processors: queued_job(
                fake.run, "sbatch", "scancel", *OPTIONS, "--job-name=other", f"--array=1-{processors}"
            ),
            namesake_job=lambda name, count: queued_job(
                fake.run, "sbatch", "scancel", *OPTIONS, "--hold", f"--job-name={name}", f"--array=1-{count}"
            ),
            stop_lrm=stop,
            start_lrm=start,
            patience=120,
            poll_interval=0.05,
        ) as under:
            if self.library:
                # Then changes of single jobs go through it, too. A check would leave partitions that are remembered.
                await under.lrm.jobs()
                assert isinstance(under.lrm, SlurmLrm)
                assert under.lrm.library is not None
                assert "by pyslurm" in str(under.lrm.library.choice)
            yield under
        await anyio.to_thread.run_sync(fake.close)


class TestSlurm(SlurmConformance):
    """By commands."""

    # One test of each kind, and what depends on the moment; on real daemons (tests/real) the whole kit is run by day.
    BY_DAY = frozenset(
        {
            "test_a_start_that_was_confirmed_may_be_confirmed_again",
            "test_a_strangers_job_of_the_same_name",
            "test_array_elements_end_apart",
            "test_cancel_all_kinds_at_once",
            "test_cancel_suspended",
            "test_check_is_content",
            "test_definition_and_lrm_agree",
            "test_exit_code",
            "test_foreign_job_is_seen",
            "test_found_by_a_second_session",
            "test_held_submission_waits",
            "test_jobs_survive_unavailability",
            "test_keys_of_a_slot_are_expressed_or_refused",
            "test_modify_walltime",
            "test_nodes_add_up",
            "test_poll_stays_within_its_bound",
            "test_queues",
            "test_rejected_submission_leaves_nothing",
            "test_requeue",
            "test_secret_is_on_no_command_line",
            "test_start_on_a_busy_node_is_accepted",
            "test_start_on_chosen_node",
            "test_states_go_forward",
            "test_suspend_and_resume",
            "test_unavailable",
            "test_unsupported_is_said",
            "test_walltime_is_requested",
            "test_what_is_rendered_is_sent",
        }
    )


class TestSlurmByLibrary(SlurmConformance):
    """By pyslurm, which lists, and changes single jobs; all else is done by commands."""

    library = True
    BY_DAY = frozenset(
        {
            "test_cancel_one_of_several",
            "test_check_is_content",
            "test_exit_code",
            "test_hold_and_release",
            "test_jobs_are_listed_oldest_first",
            "test_jobs_say_whose_they_are",
            "test_modify_walltime",
            "test_poll_stays_within_its_bound",
            "test_start_on_chosen_node",
            "test_states_go_forward",
            "test_suspend_and_resume",
            "test_times_are_told",
            "test_unavailable",
        }
    )


# The conformance kit on the plugin ``pbs`` with a fake PBS: runs on every machine.

PBS_OPTIONS = ("-C", "", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")


class PbsConformance(LrmConformance):
    """The conformance kit on a fake with two vnodes of two processors."""

    operator = False

    @pytest.fixture
    async def fake(self, tmp_path: Path) -> AsyncIterator[FakePbs]:
        """Give a fake server of its own."""
        fake = FakePbs(tmp_path / "fake", operators=None if self.operator else ())
        yield fake
        await anyio.to_thread.run_sync(fake.close)

    @pytest.fixture
    async def under_test(self, fake: FakePbs, tmp_path: Path) -> AsyncIterator[LrmUnderTest]:
        """Give the plugin on it."""
        settings = PbsSettings(
            conf=fake.conf, bin_directory=fake.bin_directory, operator=self.operator, command_timeout=40
        )

        async def stop() -> None:
            fake.stop_server()

        async def start() -> None:
            fake.start_server()

        async with started_plugin(
            PBS,
            settings,
            tmp_path,
            processors=fake.processors,
            unknown_id=LrmJobId("999999[1].vm"),
            real=False,
            foreign_job=lambda processors: queued_job(
                fake.run, "qsub", "qdel", *PBS_OPTIONS, "-l", f"select=1:ncpus={processors}"
            ),
            namesake_job=lambda name, count: queued_job(
                fake.run, "qsub", "qdel", *PBS_OPTIONS, "-h", "-N", name, "-J", f"1-{count}"
            ),
            stop_lrm=stop,
            start_lrm=start,
            patience=120,
            poll_interval=0.05,
            walltime_precision=120,
        ) as under:
            yield under


class TestPbsAsUser(PbsConformance):
    """As an ordinary user, whose jobs PBS's scheduler starts."""

    # What he is not allowed, or what PBS's scheduler has a part in; the rest is as for an operator.
    BY_DAY = frozenset(
        {
            "test_a_start_that_was_confirmed_may_be_confirmed_again",
            "test_a_strangers_job_of_the_same_name",
            "test_cancel_all_kinds_at_once",
            "test_cancel_suspended",
            "test_check_is_content",
            "test_definition_and_lrm_agree",
            "test_foreign_job_is_seen",
            "test_held_submission_waits",
            "test_hold_and_release",
            "test_jobs_say_whose_they_are",
            "test_more_jobs_than_processors",
            "test_release_of_a_held_submission",
            "test_requeue",
            "test_start_on_a_busy_node_is_accepted",
            "test_start_on_chosen_node",
            "test_suspend_and_resume",
            "test_unsupported_is_said",
        }
    )


class TestPbsAsOperator(StartsByOperator, PbsConformance):
    """As an operator, who starts jobs by qrun."""

    operator = True


# -- Starting held jobs on chosen nodes of a fake Slurm, of a release before and one after reservations changed.

OLDER, NEWER = "22.05.8", "25.11.7"
"""Releases: by day the one that no real daemons are tested with."""
SLEEP = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture(params=[pytest.param(OLDER, marks=pytest.mark.nightly), NEWER])
def fake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeSlurm]:
    """Give a fake of three nodes of eight processors, whose site hook says who asked for a number of nodes."""
    fake = FakeSlurm(tmp_path / "fake", nodes=3, cpus=8, release=str(request.param), site_hook=True)
    yield fake
    fake.close()


def settings_of(fake: FakeSlurm) -> SlurmSettings:
    return SlurmSettings(conf=fake.conf, bin_directory=fake.bin_directory, submit_by="commands", command_timeout=40)


@pytest.fixture
async def lrm(fake: FakeSlurm, tmp_path: Path) -> AsyncIterator[Lrm]:
    """Give the started plugin."""
    lrm = PLUGIN.factory(new_context(tmp_path), settings_of(fake))
    await lrm.start()
    yield lrm
    await lrm.close()


def submit(fake: FakeSlurm, processors: int, *options: str) -> LrmJobId:
    """Submit a job as a user does and return its id."""
    common = ("--parsable", f"--ntasks={processors}", "--time=10", "--output=/dev/null", "--job-name=user")
    return LrmJobId(fake.run("sbatch", *common, *options, stdin=SLEEP).strip())


def entries(**counts: int) -> tuple[str, ...]:
    """Return one entry for each processor."""
    return tuple(node for node, count in counts.items() for _ in range(count))


async def run(lrm: Lrm, job: LrmJobId, **counts: int) -> None:
    """Start a job, see it run, and say so."""
    start = await begin_start(lrm, job, entries(**counts))
    await eventually(lrm.jobs, lambda jobs: state_of(jobs, job) is LrmJobState.RUNNING, what="it runs", seconds=120)
    await lrm.confirm_start(start)


def state_of(jobs: Sequence[LrmJob], id_: LrmJobId) -> LrmJobState:
    return next(job.state for job in jobs if job.id == id_)


def layouts(fake: FakeSlurm) -> dict[str, dict[str, int]]:
    """Return where the running jobs are."""
    with Store(fake.conf).locked() as state:
        assert state.reservations == []
        return {job.identity: job.places for job in state.jobs if job.alive}


@pytest.mark.parametrize(
    ("processors", "options", "counts"),
    [
        pytest.param(6, (), {"n2": 4, "n3": 2}, marks=pytest.mark.nightly),
        pytest.param(6, (), {"n2": 2, "n3": 4}, marks=pytest.mark.nightly),
        pytest.param(9, (), {"n1": 3, "n2": 3, "n3": 3}, marks=pytest.mark.nightly),
        (9, (), {"n1": 1, "n2": 6, "n3": 2}),
        (6, ("--nodes=1",), {"n2": 6}),
        (9, ("--nodes=2",), {"n3": 8, "n2": 1}),
        pytest.param(5, ("--nodes=1-3",), {"n3": 5}, marks=pytest.mark.nightly),
        (5, ("--nodes=2-3",), {"n1": 1, "n2": 4}),
    ],
)
async def test_it_runs_with_these_numbers(
    fake: FakeSlurm, lrm: Lrm, processors: int, options: tuple[str, ...], counts: dict[str, int]
) -> None:
    submit(fake, 2)
    job = submit(fake, processors, "--hold", *options)
    await run(lrm, job, **counts)
    assert layouts(fake)[job] == counts


async def test_starts_at_the_same_time_share_nodes(fake: FakeSlurm, lrm: Lrm) -> None:
    """Each gets its numbers although they are looked for and reserved on the same nodes at once."""
    wanted = {
        submit(fake, 6, "--hold"): {"n1": 4, "n2": 2},
        submit(fake, 7, "--hold"): {"n1": 3, "n2": 4},
        submit(fake, 5, "--hold"): {"n2": 2, "n3": 3},
    }
    async with anyio.create_task_group() as group:
        for job, counts in wanted.items():
            group.start_soon(partial(run, lrm, job, **counts))
    assert layouts(fake) == wanted


class Interrupted(RecordingRunner):
    """Lets something happen once, between the look at the idle processors and what is made of it."""

    meanwhile: Callable[[], object] | None = None

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = 40.0,
        urgent: bool = False,
    ) -> CommandResult:
        """Run the command, and after the look what is to happen."""
        result = await super().run(argv, stdin=stdin, environment=environment, timeout=timeout, urgent=urgent)
        if self.meanwhile is not None and any(word.startswith("--nodes=") for word in argv):
            happens, self.meanwhile = self.meanwhile, None
            await anyio.to_thread.run_sync(happens)
        return result


@pytest.mark.parametrize("fake", ["25.11.7"], indirect=True)
@pytest.mark.parametrize("change", ["begins", "ends"])
async def test_others_come_and_go_meanwhile(fake: FakeSlurm, tmp_path: Path, change: str) -> None:
    """When processors became busy or idle since they were counted, they are counted again."""
    runner = Interrupted()
    context = replace(new_context(tmp_path), commands=runner)
    lrm = PLUGIN.factory(context, settings_of(fake))
    await lrm.start()
    other = submit(fake, 2) if change == "ends" else None
    job = submit(fake, 6, "--hold")
    runner.meanwhile = (lambda: fake.run("scancel", other)) if other else (lambda: submit(fake, 2))
    await run(lrm, job, n1=2, n2=4)
    assert runner.meanwhile is None
    assert layouts(fake)[job] == {"n1": 2, "n2": 4}
    assert sum("--nodes=n1,n2" in command.argv for command in runner.commands) > 1


@pytest.mark.parametrize("fake", ["22.05.8"], indirect=True)
async def test_a_controller_that_was_upgraded(fake: FakeSlurm, lrm: Lrm) -> None:
    """A start is refused, as the release is remembered; before the next one it is asked for again."""
    job = submit(fake, 6, "--hold")
    fake.conf.write_text(fake.conf.read_text().replace("22.05.8", "25.11.7"))
    with pytest.raises(LrmRejectedError, match="no longer valid"):
        await begin_start(lrm, job, entries(n2=4, n3=2))
    await run(lrm, job, n2=4, n3=2)
    assert layouts(fake)[job] == {"n2": 4, "n3": 2}


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ((), {"n1": 3, "n2": 3}),
        ((), {"n1": 4, "n2": 2}),
        (("--nodes=1-3",), {"n1": 4, "n2": 2}),
        (("--nodes=2",), {"n1": 3, "n2": 3}),
    ],
)
async def test_a_start_that_fails_leaves_what_the_user_asked_for(
    fake: FakeSlurm, lrm: Lrm, options: tuple[str, ...], counts: dict[str, int]
) -> None:
    blocking = [submit(fake, 8, "--nodes=1") for _ in range(3)]
    job = submit(fake, 6, "--hold", *options)
    start = PinnedStart(job=job, nodes=entries(**counts), original=await lrm.original_request(job))
    if len(set(counts.values())) == 1:
        await lrm.start_on(start)
        assert state_of(await lrm.jobs(), job) is LrmJobState.QUEUED
    else:
        with pytest.raises(LrmUnavailableError):
            await lrm.start_on(start)
    await lrm.undo_start(start)
    assert Counter(job.state for job in await lrm.jobs())[LrmJobState.RUNNING] == len(blocking)
    assert_as_asked(fake, job, options)


def assert_as_asked(fake: FakeSlurm, job: LrmJobId, options: tuple[str, ...]) -> None:
    """Check that a waiting job of six processors has what its user asked for, and nothing of ours."""
    with Store(fake.conf).locked() as state:
        (seen,) = (one for one in state.jobs if one.identity == job)
        assert state.reservations == []
    low, _, high = (options[0].partition("=")[2] if options else "1").partition("-")
    assert (seen.state, seen.reason, seen.processors, seen.wanted) == ("PENDING", "JobHeldUser", 6, [])
    assert (seen.nodes_low, seen.reservation) == (int(low), "")
    # An upper bound that nobody asked for cannot be taken away, only made so large that it is none.
    assert seen.nodes_high in ({int(high or low)} if options else {0, 100_000})


class Killed(BaseException):
    """Nothing is done any more."""


class Mortal(RecordingRunner):
    """Runs the commands of a process that is killed before one of them, or in which all is done."""

    dies_at: str = ""
    dead = False

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
        timeout: float = 40.0,
        urgent: bool = False,
    ) -> CommandResult:
        """Run a command, or die."""
        self.dead |= bool(self.dies_at) and any(word.startswith(self.dies_at) for word in argv)
        if self.dead:
            raise Killed
        return await super().run(argv, stdin=stdin, environment=environment, timeout=timeout, urgent=urgent)


@pytest.mark.parametrize(
    ("begins", "word"),
    [
        ("to start", "create"),
        ("to start", "NumNodes=2-2"),
        ("to start", "NumCPUs=6"),
        ("to start", "release"),
        ("to confirm", "uhold"),
        ("to confirm", "Reservation="),
        ("to confirm", "delete"),
        ("to take back", "uhold"),
        ("to take back", "ReqNodeList="),
        ("to take back", "NumCPUs=6"),
    ],
)
async def test_killed_before_any_request_of_a_start(fake: FakeSlurm, tmp_path: Path, begins: str, word: str) -> None:
    """The next process finds what was reserved and tied: the job runs where it should, or is as its user asked."""
    runner = Mortal()
    context = replace(new_context(tmp_path), commands=runner)
    doomed = PLUGIN.factory(context, settings_of(fake))
    await doomed.start()
    counts = {"n1": 3, "n2": 3} if begins == "to take back" else {"n1": 4, "n2": 2}
    blocking = [submit(fake, 8, "--nodes=1") for _ in range(3)] if begins == "to take back" else []
    job = submit(fake, 6, "--hold")
    start = PinnedStart(job=job, nodes=entries(**counts), original=await doomed.original_request(job))
    if begins != "to start":
        await doomed.start_on(start)
    steps = {"to start": doomed.start_on, "to confirm": doomed.confirm_start, "to take back": doomed.undo_start}
    runner.dies_at = word
    with pytest.raises(Killed):
        await steps[begins](start)
    following = PLUGIN.factory(new_context(tmp_path), settings_of(fake))
    await following.start()
    await (following.confirm_start if begins == "to confirm" else following.undo_start)(start)
    await following.close()
    with Store(fake.conf).locked() as state:
        states = {one.identity: one.state for one in state.jobs}
    assert {states[one] for one in blocking} <= {"RUNNING"}
    if begins == "to confirm":
        assert layouts(fake) == {job: counts}
    else:
        assert_as_asked(fake, job, ())
