# SPDX-License-Identifier: Apache-2.0
"""Placeholders that a PBS server has moved to another one: two fakes, with the forms seen on two OpenPBS 23.06."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from koala_adapter.errors import LrmUnavailableError
from koala_adapter.lrm import Submission
from koala_adapter.model import BatchKey, EndReason, LrmJobId, LrmJobState
from koala_adapter.testing import new_context
from koala_pbs import PbsSettings
from koala_pbs.client import PbsCommands
from koala_pbs.lrm import make_lrm
from koala_pbs.moved import MovedJobs
from tests.fakes.pbs import FakePbs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.model import LrmJob
    from koala_pbs.lrm import PbsLrm

pytestmark = pytest.mark.anyio

PATIENCE = 120.0
KEY = BatchKey("koala-k-1")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[FakePbs, FakePbs]]:
    """Give two servers; the first can move jobs to the second."""
    home, other = FakePbs(tmp_path / "p", server="home"), FakePbs(tmp_path / "q", server="other")
    yield home, other
    for server in (home, other):
        server.close()


@pytest.fixture
def settings(servers: tuple[FakePbs, FakePbs]) -> PbsSettings:
    """Choose the first."""
    return PbsSettings(conf=servers[0].conf, bin_directory=servers[0].bin_directory)


@pytest.fixture
def context(tmp_path: Path) -> ClusterContext:
    """Give what the core gives a plugin."""
    return new_context(tmp_path)


@pytest.fixture
async def lrm(
    servers: tuple[FakePbs, FakePbs], settings: PbsSettings, context: ClusterContext
) -> AsyncIterator[PbsLrm]:
    """Give the plugin on the first, which had no routing queue when it was asked."""
    home, other = servers
    lrm = make_lrm(context, settings)
    await lrm.start()
    home.move_jobs_to(other)
    yield lrm
    await lrm.close()


def submission(count: int = 1, *, queue: str | None = None, held: bool = False) -> Submission:
    """Return placeholders that sleep."""
    return Submission(key=KEY, count=count, script="#!/bin/sh\nexec sleep 600\n", walltime=600, queue=queue, held=held)


async def seen(lrm: PbsLrm, wanted: Callable[[tuple[LrmJob, ...]], bool]) -> tuple[LrmJob, ...]:
    """Return our jobs when they are as wanted."""
    with anyio.fail_after(PATIENCE):
        while not wanted(jobs := await lrm.jobs(name_prefix=KEY)):  # noqa: ASYNC110 - it is not announced
            await anyio.sleep(0.05)
    return jobs


async def test_a_moved_job_is_followed(lrm: PbsLrm, servers: tuple[FakePbs, FakePbs]) -> None:
    """It is missed, looked for, listed where it is, started, cancelled there, and its end is known."""
    home, other = servers
    (id_,) = await lrm.submit(submission(held=True))
    assert await lrm.moved([id_]) == ()
    home.run("qmove", "workq@other", id_)
    assert await lrm.jobs(name_prefix=KEY) == ()
    (job,) = await lrm.moved([id_])
    assert (job.id, job.elsewhere, job.state) == (id_, "workq@other", LrmJobState.HELD)
    assert await lrm.jobs(name_prefix=KEY) == (job,)
    assert lrm.requests_per_poll == 3
    await lrm.release([id_])
    (job,) = await seen(lrm, lambda jobs: jobs[0].state is LrmJobState.RUNNING)
    assert (job.elsewhere, job.nodes) == ("workq@other", ("n1",))
    await lrm.cancel([id_])
    (job,) = await seen(lrm, lambda jobs: jobs[0].state is LrmJobState.ENDED)
    assert (job.end, job.elsewhere) == (EndReason.CANCELLED, "workq@other")
    assert "koala-k-1" not in other.run("qstat", "-t", "-f", "-F", "json")
    assert lrm.requests_per_poll == 2
    assert await lrm.moved([id_]) == ()


async def test_while_the_other_server_does_not_answer(lrm: PbsLrm, servers: tuple[FakePbs, FakePbs]) -> None:
    """Its jobs are unknown, never gone, and are not taken for cancelled."""
    home, other = servers
    (id_,) = await lrm.submit(submission(held=True))
    home.run("qmove", "workq@other", id_)
    await lrm.moved([id_])
    other.stop_server()
    (job,) = await lrm.jobs(name_prefix=KEY)
    assert (job.id, job.state, job.elsewhere) == (id_, LrmJobState.UNKNOWN, "workq@other")
    with pytest.raises(LrmUnavailableError):
        await lrm.cancel([id_])
    assert [job.id for job in await lrm.jobs(name_prefix=KEY)] == [id_]


@pytest.mark.parametrize("history", [True, False])
async def test_found_while_the_other_server_does_not_answer(
    lrm: PbsLrm,
    servers: tuple[FakePbs, FakePbs],
    settings: PbsSettings,
    context: ClusterContext,
    *,
    history: bool,
) -> None:
    """The history of its own server tells where a job went; without one nothing is known, which is no end."""
    home, other = servers
    (id_,) = await lrm.submit(submission(held=True))
    home.run("qmove", "workq@other", id_)
    other.stop_server()
    fresh = MovedJobs(PbsCommands(context.commands, settings), user=context.user)
    fresh.learn("home", (), history=history)
    if not history:
        with pytest.raises(LrmUnavailableError, match="other"):
            await fresh.find([id_])
        return
    (job,) = await fresh.find([id_])
    assert (job.id, job.state, job.elsewhere) == (id_, LrmJobState.UNKNOWN, "workq@other")


async def test_a_job_that_nobody_knows_was_not_moved(lrm: PbsLrm) -> None:
    """It is gone."""
    assert await lrm.moved([LrmJobId("77.home")]) == ()


async def test_a_routing_queue_to_another_server(
    servers: tuple[FakePbs, FakePbs], settings: PbsSettings, context: ClusterContext
) -> None:
    """It gets single jobs, which are listed from the first on; what was submitted to the other server is not."""
    home, other = servers
    home.move_jobs_to(other)
    router = make_lrm(context, settings)
    await router.start()
    other.run("qsub", "-C", "", "-h", "-N", KEY, "-o", "/dev/null", stdin="#!/bin/sh\n", user=context.user)
    ids = await router.submit(submission(2, queue="away"))
    assert all("[" not in id_ for id_ in ids)
    jobs = await seen(router, lambda jobs: {job.state for job in jobs} == {LrmJobState.RUNNING})
    assert [(job.id, job.elsewhere, job.array_index) for job in jobs] == [
        (id_, "workq@other", number) for number, id_ in enumerate(ids, start=1)
    ]
    await router.cancel(ids)
    ends = await seen(router, lambda jobs: {job.state for job in jobs} == {LrmJobState.ENDED})
    assert {job.end for job in ends} == {EndReason.CANCELLED}
    await router.close()
