# SPDX-License-Identifier: Apache-2.0
"""Starting held jobs on chosen vnodes of a fake PBS, as a user and as an operator; submissions in pieces."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError, LrmUnsupportedError
from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState
from koala_adapter.testing import RecordingRunner, eventually, new_context
from koala_pbs import PLUGIN, PbsSettings
from tests.fakes.pbs import FakePbs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext, Lrm
    from koala_adapter.model import LrmJob

pytestmark = pytest.mark.anyio

SLEEP = "#!/bin/sh\nexec sleep 600\n"
OPERATOR = getpass.getuser()
SELECT = "2:ncpus=2:mem=100mb"


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakePbs]:
    """Give a fake of three vnodes of four processors, whose site hook holds every job."""
    fake = FakePbs(tmp_path / "fake", nodes=3, cpus=4, site_hook=True)
    yield fake
    fake.close()


@pytest.fixture
def context(tmp_path: Path) -> ClusterContext:
    """Give what the core gives a plugin."""
    return new_context(tmp_path)


async def started(fake: FakePbs, context: ClusterContext, *, operator: bool) -> Lrm:
    """Return the started plugin."""
    lrm = PLUGIN.factory(context, PbsSettings(conf=fake.conf, bin_directory=fake.bin_directory, operator=operator))
    await lrm.start()
    return lrm


@pytest.fixture
async def user(fake: FakePbs, context: ClusterContext) -> AsyncIterator[Lrm]:
    """Give the plugin that has PBS's scheduler start jobs."""
    lrm = await started(fake, context, operator=False)
    yield lrm
    await lrm.close()


@pytest.fixture
async def operator(fake: FakePbs, context: ClusterContext) -> AsyncIterator[Lrm]:
    """Give the plugin that starts jobs itself."""
    lrm = await started(fake, context, operator=True)
    yield lrm
    await lrm.close()


def submit(fake: FakePbs, *options: str, select: str = SELECT, place: str = "scatter") -> LrmJobId:
    """Submit a job as another user does and return its id."""
    common = ("-C", "", "-N", "theirs", "-o", "/dev/null", "-j", "oe", "-l", "walltime=600")
    return LrmJobId(fake.run("qsub", *common, "-l", f"select={select}", "-l", f"place={place}", *options, stdin=SLEEP))


async def job_of(lrm: Lrm, id_: LrmJobId) -> LrmJob:
    """Return a job as it is listed."""
    return next(job for job in await lrm.jobs() if job.id == id_)


async def runs(lrm: Lrm, id_: LrmJobId) -> LrmJob:
    """Wait until a job runs, and return it."""

    async def look() -> LrmJob:
        return await job_of(lrm, id_)

    return await eventually(look, lambda job: job.state is LrmJobState.RUNNING, what="it runs", seconds=120)


class TestByScheduler:
    """As the user of a job, or whoever may alter and release it."""

    async def test_a_job_is_tied_and_comes_back_held(self, user: Lrm, fake: FakePbs, context: ClusterContext) -> None:
        """Queued again it is in the site's hold, shown as its user asked, and untied when it is taken back."""
        job = submit(fake)
        before = await job_of(user, job)
        await user.start_on(job, ["n2", "n2", "n3", "n3"])
        seen = await runs(user, job)
        assert seen.layout == (("n2", 2), ("n3", 2))
        await user.confirm_start(job)
        fake.run("qrerun", job, user=OPERATOR)

        async def waits() -> LrmJob:
            return await job_of(user, job)

        seen = await eventually(waits, lambda one: one.state is LrmJobState.HELD, what="it is held", seconds=120)
        assert seen.tied
        assert (seen.node_bounds, seen.requested_nodes) == (before.node_bounds, ())
        assert list((context.state_directory / "tied").iterdir())
        await user.undo_start(job)
        seen = await job_of(user, job)
        assert (seen.tied, seen.hold, seen.node_bounds) == (False, before.hold, before.node_bounds)
        assert not list((context.state_directory / "tied").iterdir())

    async def test_another_process_goes_on_after_a_kill(
        self, user: Lrm, fake: FakePbs, context: ClusterContext
    ) -> None:
        """What the job had asked for is on disk; also what is started again is then tied to the new vnodes alone."""
        job = submit(fake)
        fake.set_scheduling(on=False)
        await user.start_on(job, ["n2", "n2", "n3", "n3"])
        later = await started(fake, context, operator=False)
        assert (await job_of(later, job)).tied
        await later.start_on(job, ["n1", "n1", "n3", "n3"])
        fake.set_scheduling(on=True)
        assert (await runs(later, job)).layout == (("n1", 2), ("n3", 2))
        fake.run("qdel", job)
        await eventually(later.jobs, lambda jobs: not jobs, what="it is gone", seconds=120)
        assert not list((context.state_directory / "tied").iterdir())

    async def test_what_is_refused_leaves_the_job_as_it_was(self, fake: FakePbs, tmp_path: Path) -> None:
        """Also when only the release is refused: the site's hold needs an operator."""
        other = FakePbs(tmp_path / "other", nodes=3, cpus=4, operators=(), site_hook=True)
        lrm = await started(other, new_context(tmp_path / "context"), operator=False)
        job = submit(other)
        before = await job_of(lrm, job)
        for nodes in (["n1", "n1", "n2", "n2"], ["n1"] * 3 + ["n2"], ["n1", "n2"]):
            with pytest.raises(LrmRejectedError):
                await lrm.start_on(job, nodes)
        assert await job_of(lrm, job) == before
        assert fake.processors == other.processors
        other.close()

    async def test_elements_are_refused(self, user: Lrm, fake: FakePbs) -> None:
        """PBS alters and releases whole arrays only; the way out is said."""
        submit(fake, "-J", "1-2", select="1:ncpus=1")
        first = (await user.jobs())[0].id
        with pytest.raises(LrmRejectedError, match="operator = true"):
            await user.start_on(first, ["n1"])
        assert not user.capabilities.pin_elements
        with pytest.raises(LrmUnsupportedError, match="operator = true"):
            await user.suspend([first])


class TestByOperator:
    """As an operator, with qrun."""

    async def test_a_job_runs_at_once_and_keeps_its_hold(self, operator: Lrm, fake: FakePbs) -> None:
        """Also with PBS's own scheduling off; queued again it is held."""
        fake.set_scheduling(on=False)
        job = submit(fake)
        await operator.start_on(job, ["n2", "n2", "n3", "n3"])
        seen = await job_of(operator, job)
        assert (seen.state, seen.layout) == (LrmJobState.RUNNING, (("n2", 2), ("n3", 2)))
        await operator.confirm_start(job)
        await operator.requeue([job])

        async def state() -> LrmJobState:
            return (await job_of(operator, job)).state

        await eventually(state, lambda now: now is LrmJobState.HELD, what="it is held again", seconds=120)
        await operator.undo_start(job)
        assert (await job_of(operator, job)).requeues == 1

    async def test_nothing_is_put_where_there_is_no_room(self, operator: Lrm, fake: FakePbs) -> None:
        """PBS would: so all starts at the same time are looked at one after the other."""
        jobs = [submit(fake, select="1:ncpus=3") for _ in range(2)]
        await operator.start_on(jobs[0], ["n1"] * 3)
        with pytest.raises(LrmRejectedError, match="where 1 are idle"):
            await operator.start_on(jobs[1], ["n1"] * 3)
        fake.set_offline("n2")
        for nodes in (["n2"] * 3, ["n9"] * 3):
            with pytest.raises(LrmRejectedError):
                await operator.start_on(jobs[1], nodes)
        assert (await job_of(operator, jobs[1])).state is LrmJobState.HELD

    async def test_elements_start_one_by_one(self, operator: Lrm, fake: FakePbs) -> None:
        """The others of the array stay in hold."""
        submit(fake, "-J", "1-3", select="1:ncpus=1")
        second = next(job.id for job in await operator.jobs() if job.array_index == 2)
        await operator.start_on(second, ["n3"])
        seen = {job.array_index: job for job in await operator.jobs()}
        assert [seen[index].state for index in (1, 2, 3)] == [
            LrmJobState.HELD,
            LrmJobState.RUNNING,
            LrmJobState.HELD,
        ]
        assert seen[2].nodes == ("n3",)


async def test_pieces_where_arrays_are_small(tmp_path: Path) -> None:
    """Each piece is a request; the placeholders have the indices 1 to n, also where arrays are forbidden."""
    for largest, requests in ((2, 3), (1, 5)):
        fake = FakePbs(tmp_path / f"fake{largest}", nodes=1, cpus=1, max_array_size=largest)
        context = new_context(tmp_path / f"context{largest}")
        lrm = await started(fake, context, operator=False)
        submission = Submission(key=BatchKey("koala-p"), count=5, script=SLEEP, walltime=60)
        before = context.commands.window.total
        ids = await lrm.submit(submission)
        assert context.commands.window.total - before == requests
        jobs = {job.id: job.array_index for job in await lrm.jobs(name_prefix="koala-p")}
        assert jobs == {id_: index for index, id_ in enumerate(ids, start=1)}
        assert "first of" in lrm.render(submission).note
        await lrm.cancel(ids)
        fake.close()


async def test_a_queue_that_refuses_arrays_gets_single_jobs(tmp_path: Path) -> None:
    """Where it has not said so before, because that was set meanwhile, its refusal does; it is asked that once."""
    fake = FakePbs(tmp_path / "fake", nodes=1, cpus=1)
    context = new_context(tmp_path / "context")
    lrm = await started(fake, context, operator=False)
    fake.conf.write_text(json.dumps({**json.loads(fake.conf.read_text()), "max_array_size": 1}))
    submission = Submission(key=BatchKey("koala-p"), count=3, script=SLEEP, walltime=60)
    for requests in (4, 3):
        before = context.commands.window.total
        ids = await lrm.submit(submission)
        assert context.commands.window.total - before == requests
        assert len(set(ids)) == 3
    fake.close()


async def test_a_refusal_for_something_else_leaves_arrays_as_they_are(tmp_path: Path) -> None:
    """A routing queue says the same of a walltime that is too long; the next submission is one array again."""
    fake = FakePbs(tmp_path / "fake", nodes=1, cpus=1)
    context = new_context(tmp_path / "context")
    lrm = await started(fake, context, operator=False)
    qsub, real = fake.bin_directory / "qsub", tmp_path / "qsub"
    qsub.rename(real)
    qsub.write_text("#!/bin/sh\necho 'qsub: Job rejected by all possible destinations' >&2\nexit 170\n")
    qsub.chmod(0o755)
    submission = Submission(key=BatchKey("koala-p"), count=3, script=SLEEP, walltime=60)
    with pytest.raises(LrmRejectedError, match="rejected by all possible destinations"):
        await lrm.submit(submission)
    real.replace(qsub)
    before = context.commands.window.total
    await lrm.submit(submission)
    assert context.commands.window.total - before == 1
    fake.close()


async def test_a_piece_that_is_refused_takes_the_others_back(tmp_path: Path) -> None:
    """Nothing of a refused submission stays; without an answer it is looked for by its name."""
    fake = FakePbs(tmp_path / "fake", max_array_size=2)
    context = new_context(tmp_path)
    lrm = await started(fake, context, operator=False)
    assert isinstance(context.commands, RecordingRunner)
    qsub = fake.bin_directory / "qsub"
    real = qsub.with_name("qsub.real")
    qsub.rename(real)
    refusal = "echo 'qsub: Access to queue is denied' >&2; exit 169"
    qsub.write_text(f'#!/bin/sh\nfor word; do [ "$word" != 3-4 ] || {{ {refusal}; }}; done\nexec {real} "$@"\n')
    qsub.chmod(0o755)
    # The fake tells its commands by their names.
    real.rename(tmp_path / "qsub")
    qsub.write_text(qsub.read_text().replace(str(real), str(tmp_path / "qsub")))
    submission = Submission(key=BatchKey("koala-p"), count=4, script=SLEEP, walltime=60)
    with pytest.raises(LrmRejectedError, match="Access to queue is denied"):
        await lrm.submit(submission)

    async def left() -> list[LrmJobState]:
        return [job.state for job in await lrm.jobs() if job.state is not LrmJobState.ENDED]

    await eventually(left, lambda states: not states, what="nothing is left", seconds=120)
    fake.stop_server()
    with pytest.raises(LrmUnavailableError):
        await lrm.submit(submission)
    fake.close()
