# SPDX-License-Identifier: Apache-2.0
"""MPI jobs are done when mpiexec and all of their processes have ended, whichever of them is heard of last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.model import EndReason, Launcher, MpiResize, RunnerName, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import OfferProcessors, RequestProcessors, TakeProcessors
from koala_adapter.scheduler.reports import PATIENCE
from tests.unit.scheduler.malleable_site import AdaptiveSite, malleable, part
from tests.unit.scheduler.scheduler_site import Site, component, job, of_kind

LATE = PATIENCE + 1
FAILED = TaskEnd(reason=EndReason.EXITED, exit_code=7)


def rigid() -> Site:
    """Return a site on which an MPI job of two processes runs, one of which has ended, and mpiexec too."""
    site = Site({"a": 4})
    site.submit(job("1", component("x", 2, mpi=True)))
    site.run("1")
    site.rank_ends("1", 0)
    site.rank_ends("1", None)
    return site


def adaptive(size: int, *, most: int = 4, how: MpiResize = MpiResize.SPAWN) -> AdaptiveSite:
    """Return a site of four processors on which a malleable MPI job runs."""
    site = AdaptiveSite({"a": 4})
    own = replace(part(1, most), launcher=Launcher.MPI)
    site.start(replace(malleable("1", own, initial=size), runner=RunnerName.ADAPTIVE, mpi_resize=how))
    return site


def shrinking(how: MpiResize = MpiResize.SPAWN) -> AdaptiveSite:
    """Return a site whose malleable MPI job of four has let the processes 2 and 3 go, which have not ended."""
    site = adaptive(4, how=how)
    site.submit(job("2", 2))
    (request,) = of_kind(RequestProcessors, site.actions)
    site.answer(request)
    site.reach(2, 3)
    site.made()
    return site


def test_the_last_process_ends_after_mpiexec() -> None:
    """What their agents tell may come in any order."""
    site = rigid()
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 1)
    assert (site.outcome("1").state, site.outcome("1").exit_code) == (JobState.COMPLETED, 0)


def test_mpiexec_ends_while_a_process_runs() -> None:
    """That the process did its work nobody can say."""
    site = rigid()
    site.pass_time(LATE)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 1)
    assert outcome.detail == "mpiexec ended with status 0 while 1 process was running: rank 1"


def test_the_last_process_ends_badly_after_mpiexec() -> None:
    """It is believed, as before."""
    site = rigid()
    site.rank_ends("1", 1, FAILED)
    assert (site.outcome("1").state, site.outcome("1").exit_code) == (JobState.FAILED, 7)


def test_an_agent_that_is_out_of_contact_is_waited_for() -> None:
    """It has perhaps a good end to tell."""
    site = rigid()
    silent = site.record("1").ranks[1].placeholder
    site.post(ev.PlaceholderSilent(time=site.now, placeholder=silent, detail=""))
    site.pass_time(LATE)
    assert site.record("1").state is JobState.RUNNING
    site.post(ev.PlaceholderHeld(time=site.now, placeholder=silent, host="n1", address=""))
    site.rank_ends("1", 1)
    assert site.outcome("1").state is JobState.COMPLETED


def test_mpiexec_ends_in_a_shrink() -> None:
    """After the first of two that leave: the job is not done, though nobody has ended badly."""
    site = shrinking()
    site.end(3)
    site.rank_ends("1", None)
    assert site.record("1").state is JobState.RUNNING
    site.pass_time(LATE)
    outcome = site.outcome("1")
    assert outcome.state is JobState.FAILED
    assert outcome.detail == "mpiexec ended with status 0 while 3 processes were running: ranks 0, 1, 2"


def test_a_leaver_is_the_last_to_end() -> None:
    """The others have done all of their work while it left."""
    site = shrinking()
    for rank in (0, 1, 3):
        site.end(rank)
    site.rank_ends("1", None)
    assert site.record("1").state is JobState.RUNNING
    site.end(2)
    assert site.outcome("1").state is JobState.COMPLETED


def test_mpiexec_has_the_last_word_after_a_leaver() -> None:
    """All have said that they ended well; that is not the end of the job, as little as in a rigid one."""
    site = shrinking()
    for rank in (0, 1, 3, 2):
        site.end(rank)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", None, FAILED)
    assert (site.outcome("1").state, site.outcome("1").exit_code) == (JobState.FAILED, 7)


def test_processes_that_had_not_begun_are_not_waited_for() -> None:
    """The program is done before a growth brings them in."""
    site = adaptive(2)
    (offer,) = of_kind(OfferProcessors, site.actions)
    assert of_kind(TakeProcessors, [*site.answer(offer), *site.hold_stubs()])
    site.end(0)
    site.end(1)
    site.rank_ends("1", None)
    assert site.outcome("1").state is JobState.COMPLETED


def test_each_process_of_a_program_that_is_started_anew_is_waited_for() -> None:
    """However long its files take: its agent watches over it by itself."""
    site = shrinking(MpiResize.RESTART)
    for rank in (2, 3, 0):
        site.end(rank)
    site.rank_ends("1", None)
    site.pass_time(LATE)
    assert site.record("1").state is JobState.RUNNING
    site.end(1)
    assert site.outcome("1").state is JobState.COMPLETED


@pytest.mark.parametrize("mpi", [False, True])
def test_leavers_that_do_not_end_do_not_keep_a_job_from_its_end(*, mpi: bool) -> None:
    """All others have ended while they were waited for."""
    site = shrinking()
    if not mpi:
        site = AdaptiveSite({"a": 4})
        site.begin(initial=4, most=4)
        site.submit(job("2", 2))
        (request,) = of_kind(RequestProcessors, site.actions)
        site.answer(request)
        site.reach(2, 3)
        site.made()
    site.end(0)
    site.end(1)
    site.pass_time(site.state.parameters.release_timeout + 1)
    if mpi:
        assert site.record("1").state is JobState.RUNNING
        site.rank_ends("1", None)
    assert site.outcome("1").state is JobState.COMPLETED
