# SPDX-License-Identifier: Apache-2.0
"""How jobs end: by their ranks, by losses, by the user, by walltime; and what becomes of their placeholders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koala_adapter.errors import EXIT_CANCELLED, EXIT_LOST, EXIT_WALLTIME
from koala_adapter.model import EndReason, JobId, Launcher, MpiResize, PlaceholderId, RunnerName, TaskEnd
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import CorrectOutcome, OfferProcessors, RequestProcessors, TakeProcessors
from koala_adapter.scheduler.ends import PATIENCE
from koala_adapter.scheduler.parameters import Parameters
from tests.unit.scheduler.malleable_site import AdaptiveSite, malleable, part
from tests.unit.scheduler.scheduler_site import WELL, Site, component, ends, job, launches, of_kind, submissions


def running(*components: int, walltime: int = 600) -> Site:
    site = Site({"a": 8}, Parameters(reuse=False))
    site.start(job("1", *components, walltime=walltime))
    return site


def test_last_good_end_completes_the_job() -> None:
    site = running(2, 1)
    for rank in (0, 0, 0, 2):  # told three times it is still one rank
        assert site.rank_ends("1", rank) == []
    assert site.record("1").state is JobState.RUNNING
    actions = site.rank_ends("1", 1)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.reason, outcome.exit_code) == (JobState.COMPLETED, EndReason.EXITED, 0)
    assert len(ends(actions)) == 3


def test_jobs_are_forgotten_when_they_are_over_and_not_before() -> None:
    """Of one whose processes or placeholders are not all gone, everything stays known."""
    site = running(2)
    forget = ev.JobsForgotten(time=site.now, job_ids=(JobId("1"), JobId("9")))
    site.post(forget)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 0)
    site.rank_ends("1", 1)
    site.post(forget)
    assert site.record("1").state is JobState.COMPLETED
    site.end_ending()
    site.post(forget)
    assert JobId("1") not in site.state.jobs
    assert site.state.finished == []
    assert site.post(forget) == []


@pytest.mark.parametrize(
    ("reason", "code", "signal", "state", "expected", "said"),
    [
        (EndReason.EXITED, 3, None, JobState.FAILED, 3, " exited with status 3"),
        (EndReason.SIGNALLED, None, 11, JobState.FAILED, 139, " was killed by signal 11"),
        (EndReason.MEMORY, None, 9, JobState.FAILED, 137, " was killed because it used too much memory"),
        (EndReason.WALLTIME, None, 15, JobState.FAILED, EXIT_WALLTIME, " was stopped at the job's walltime of 600 s"),
        (EndReason.LAUNCH_FAILED, 127, None, JobState.FAILED, 127, ": launch failed: no such file: program"),
        (EndReason.LOST, None, None, JobState.LOST, EXIT_LOST, ": lost"),
        (EndReason.NODE_LOST, None, None, JobState.LOST, EXIT_LOST, ": node lost"),
        (EndReason.CANCELLED, None, None, JobState.CANCELLED, EXIT_CANCELLED, ": cancelled"),
    ],
)
def test_first_bad_end_ends_the_job(
    *, reason: EndReason, code: int | None, signal: int | None, state: JobState, expected: int, said: str
) -> None:
    site = running(3)
    detail = "no such file: program" if reason is EndReason.LAUNCH_FAILED else ""
    actions = site.rank_ends("1", 1, TaskEnd(reason=reason, exit_code=code, signal=signal, detail=detail))
    outcome = site.outcome("1")
    assert (outcome.state, outcome.reason, outcome.exit_code) == (state, reason, expected)
    assert outcome.detail == f"rank 1 (component 'c0'){said}"
    assert len(ends(actions)) == 3
    site.rank_ends("1", 2, TaskEnd(reason=EndReason.EXITED, exit_code=9))
    assert site.outcome("1").exit_code == expected


@pytest.mark.parametrize(
    ("reason", "state", "code"),
    [
        (EndReason.NODE_LOST, JobState.LOST, EXIT_LOST),
        (EndReason.LOST, JobState.LOST, EXIT_LOST),
        (EndReason.EXITED, JobState.LOST, EXIT_LOST),
        (EndReason.SIGNALLED, JobState.LOST, EXIT_LOST),
        (EndReason.CANCELLED, JobState.CANCELLED, EXIT_CANCELLED),
        (EndReason.WALLTIME, JobState.FAILED, EXIT_WALLTIME),
        (EndReason.MEMORY, JobState.FAILED, 1),
    ],
)
@pytest.mark.parametrize("announced", [True, False])
def test_lost_placeholder_ends_a_launched_job(
    reason: EndReason, state: JobState, code: int, *, announced: bool
) -> None:
    """Whether the agent still says so or only the LRM: the job ends for that reason and the rest is cleaned up."""
    site = running(2)
    lost, other = (p.id for p in site.claimed("1"))
    kind = ev.PlaceholderEnding if announced else ev.PlaceholderEnded
    actions = site.post(kind(time=site.now, placeholder=lost, reason=reason, detail="said the LRM"))
    outcome = site.outcome("1")
    assert (outcome.state, outcome.reason, outcome.exit_code) == (state, reason, code)
    assert outcome.detail == (
        f"rank 0 (component 'c0'): {reason.value}, placeholder {lost} on a, host a-{lost}: said the LRM"
    )
    assert str(other) in ends(actions)


SIGNALLED = "the placeholder got SIGTERM"


def told_to_go() -> tuple[Site, PlaceholderId]:
    """Return a site where the agent of one of the placeholders of job 1 got a signal and so ended the job."""
    site = running(2)
    placeholder = site.record("1").ranks[1].placeholder
    site.post(
        ev.PlaceholderEnding(time=site.now, placeholder=placeholder, reason=EndReason.CANCELLED, detail=SIGNALLED)
    )
    assert site.outcome("1").exit_code == EXIT_CANCELLED
    return site, placeholder


@pytest.mark.parametrize(
    ("reason", "state", "code"),
    [
        (EndReason.WALLTIME, JobState.FAILED, EXIT_WALLTIME),
        (EndReason.NODE_LOST, JobState.LOST, EXIT_LOST),
        (EndReason.MEMORY, JobState.FAILED, 1),
    ],
)
def test_batch_system_knows_why_a_placeholder_was_told_to_go(reason: EndReason, state: JobState, code: int) -> None:
    """A signal says nothing of its cause; what the batch system says of the placeholder's end is the outcome."""
    site, placeholder = told_to_go()
    (corrected,) = of_kind(CorrectOutcome, site.ended(placeholder, reason, "TimeLimit"))
    outcome = site.record("1").outcome
    assert outcome == corrected.outcome
    assert outcome is not None
    assert (site.record("1").state, outcome.state, outcome.exit_code) == (state, state, code)
    assert "TimeLimit" in outcome.detail
    assert f"rank 1 (component 'c0'): {reason.value}" in outcome.detail


@pytest.mark.parametrize("reason", [EndReason.CANCELLED, EndReason.LOST, EndReason.EXITED])
def test_ends_that_tell_no_cause_correct_nothing(reason: EndReason) -> None:
    site, placeholder = told_to_go()
    assert of_kind(CorrectOutcome, site.ended(placeholder, reason)) == []
    assert site.outcome("1").exit_code == EXIT_CANCELLED


def test_other_placeholders_and_cancellations_by_the_user_are_not_corrected() -> None:
    """Only the placeholder by which the job ended can tell why."""
    site, placeholder = told_to_go()
    other = site.record("1").ranks[0].placeholder
    assert of_kind(CorrectOutcome, site.ended(other, EndReason.WALLTIME)) == []
    site = running(2)
    placeholder = site.record("1").ranks[0].placeholder
    site.cancel("1")
    assert of_kind(CorrectOutcome, site.ended(placeholder, EndReason.WALLTIME)) == []
    assert site.outcome("1").exit_code == EXIT_CANCELLED


def test_walltime_counts_from_the_launch() -> None:
    """A job that does not stop by itself is stopped, while launching as well as while running."""
    for start in (True, False):
        site = Site({"a": 4})
        site.submit(job("1", 2, walltime=600))
        site.pass_time(3000.0)
        site.take_all()
        site.hold_all("1")
        if start:
            for rank in (0, 1):
                site.post(ev.RankStarted(time=site.now, job_id=JobId("1"), rank=rank))
        assert ends(site.pass_time(599.0)) == []
        assert len(set(ends(site.pass_time(2.0)))) == 2
        outcome = site.outcome("1")
        assert (outcome.state, outcome.exit_code) == (JobState.FAILED, EXIT_WALLTIME)
        assert outcome.detail == "stopped at the job's walltime of 600 s"


def test_mpi_job_ends_with_its_launcher() -> None:
    """The ranks' good ends are noted, mpiexec decides; its exit code is the job's."""
    for end, code in ((WELL, 0), (TaskEnd(reason=EndReason.EXITED, exit_code=7), 7)):
        site = Site({"a": 4})
        site.start(job("1", component("x", 2, mpi=True)))
        for rank in (0, 1):
            site.rank_ends("1", rank)
        assert site.record("1").state is JobState.RUNNING
        site.rank_ends("1", None, end)
        assert site.outcome("1").exit_code == code


def test_mpi_rank_that_ends_badly_ends_the_job() -> None:
    site = Site({"a": 4})
    site.start(job("1", component("x", 2, mpi=True)))
    site.rank_ends("1", 1, TaskEnd(reason=EndReason.SIGNALLED, signal=9))
    assert site.outcome("1").exit_code == 137


@pytest.mark.parametrize(
    ("reason", "done", "expected"),
    [
        (EndReason.NODE_LOST, False, (JobState.LOST, EndReason.NODE_LOST, EXIT_LOST)),
        (EndReason.LOST, True, (JobState.FAILED, EndReason.EXITED, 255)),
        (None, False, (JobState.FAILED, EndReason.EXITED, 255)),
    ],
    ids=["the agent is lost", "the lost rank had done its work", "the agent is back"],
)
def test_mpiexec_is_not_believed_while_an_agent_is_out_of_contact(
    reason: EndReason | None, expected: tuple[JobState, EndReason, int], *, done: bool
) -> None:
    """The loss of one placeholder ends mpiexec, too: the user is told of the placeholder, if it is the reason."""
    site = Site({"a": 4})
    site.start(job("1", component("x", 2, mpi=True)))
    silent = site.record("1").ranks[1].placeholder
    site.silence(silent)
    site.rank_ends("1", None, TaskEnd(reason=EndReason.EXITED, exit_code=255))
    assert site.record("1").state is JobState.RUNNING
    if done:
        site.rank_ends("1", 1)
    if reason is None:
        site.hold(silent)
    else:
        site.ended(silent, reason)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.reason, outcome.exit_code) == expected


@pytest.mark.parametrize("rank", [-1, 2, 10**9])
def test_rank_that_does_not_exist_is_ignored(rank: int) -> None:
    site = running(2)
    assert site.rank_ends("1", rank, TaskEnd(reason=EndReason.EXITED, exit_code=1)) == []
    assert site.post(ev.RankStarted(time=site.now, job_id=JobId("1"), rank=rank)) == []
    assert site.record("1").state is JobState.RUNNING


def test_messages_about_unknown_jobs_and_placeholders_are_ignored() -> None:
    site = running(1)
    (id_,) = (p.id for p in site.claimed("1"))
    site.finish("1")
    stray = JobId("stray")
    for event in (
        ev.CancelRequested(time=site.now, job_id=stray),
        ev.RankStarted(time=site.now, job_id=stray, rank=0),
        ev.RankEnded(time=site.now, job_id=stray, rank=0, end=WELL),
        ev.PlaceholderStarted(time=site.now, placeholder=id_),
        ev.PlaceholderHeld(time=site.now, placeholder=id_, host="h", address=""),
        ev.PlaceholderSilent(time=site.now, placeholder=id_, detail=""),
        ev.PlaceholderEnding(time=site.now, placeholder=id_, reason=EndReason.LOST),
        ev.PlaceholderEnded(time=site.now, placeholder=id_, reason=EndReason.LOST),
    ):
        assert site.post(event) == []


# ---- cancel ----------------------------------------------------------------------------------------------------------


def cancellable(state: str) -> Site:
    """Return a site with job 1 in the state that is asked for."""
    site = Site({"a": 4}, Parameters(backoff=500.0))
    if state == "queued":
        site.submit(job("other", 3))
    site.submit(job("1", 2))
    if state == "backing off":
        site.take_all()
        for placeholder in site.claimed("1"):
            site.ended(placeholder.id)
    if state in {"partly held", "launching", "running"}:
        site.take_all()
        site.hold(site.claimed("1")[0].id)
    if state in {"launching", "running"}:
        site.hold(site.claimed("1")[1].id)
    if state == "running":
        site.run("1")
    return site


@pytest.mark.parametrize(
    ("state", "word", "placeholders"),
    [
        ("queued", "waiting", 0),
        ("backing off", "waiting", 0),
        ("claiming", "claiming", 2),
        ("partly held", "claiming", 2),
        ("launching", "launching", 2),
        ("running", "running", 2),
    ],
)
def test_cancel_in_every_state(state: str, word: str, placeholders: int) -> None:
    """The job ends at once with its own exit code, everything of it is ended, and nothing of it comes back."""
    site = cancellable(state)
    site.cancel("1")
    outcome = site.outcome("1")
    assert (outcome.state, outcome.reason, outcome.exit_code) == (
        JobState.CANCELLED,
        EndReason.CANCELLED,
        EXIT_CANCELLED,
    )
    assert outcome.detail == f"cancelled by the user while {word}"
    ending = [p for p in site.state.placeholders.values() if p.job_id == "1"]
    assert [p.state for p in ending] == [PlaceholderState.ENDING] * placeholders
    site.take_all()
    before = len(site.actions)
    site.pass_time(5000.0)
    site.end_ending()
    assert launches(site.actions[before:]) == []
    assert submissions([a for a in site.actions[before:] if getattr(a, "job_id", "") == "1"]) == {}
    site.cancel("1")
    assert site.outcome("1").detail == f"cancelled by the user while {word}"


def test_cancel_at_the_moment_of_the_walltime() -> None:
    """Two ends in one event: the first one counts, and only one is announced."""
    site = running(1, walltime=600)
    site.now += 700
    site.cancel("1")
    assert site.outcome("1").reason is EndReason.WALLTIME


# -- MPI jobs are done when mpiexec and all of their processes have ended, whichever of them is heard of last


LATE = PATIENCE + 1
FAILED = TaskEnd(reason=EndReason.EXITED, exit_code=7)


def rigid() -> Site:
    """Return a site on which an MPI job of two processes runs, one of which has ended, and mpiexec too."""
    site = Site({"a": 4})
    site.start(job("1", component("x", 2, mpi=True)))
    site.rank_ends("1", 0)
    site.rank_ends("1", None)
    return site


def adaptive(size: int, *, most: int = 4, how: MpiResize = MpiResize.SPAWN) -> AdaptiveSite:
    """Return a site of four processors on which a malleable MPI job runs."""
    site = AdaptiveSite({"a": 4})
    own = replace(part(1, most), launcher=Launcher.MPI)
    site.start(replace(malleable("1", own, initial=size), runner=RunnerName.ADAPTIVE, mpi_resize=how))
    return site


def shrinking(how: MpiResize | None = MpiResize.SPAWN) -> AdaptiveSite:
    """Return a site whose adaptive job of four (None: without MPI) has let processes 2 and 3 go, which still run."""
    if how is None:
        site = AdaptiveSite({"a": 4})
        site.begin(initial=4, most=4)
    else:
        site = adaptive(4, how=how)
    (request,) = of_kind(RequestProcessors, site.submit(job("2", 2)))
    site.answer(request)
    site.reach(2, 3)
    site.made()
    return site


@pytest.mark.parametrize(("end", "state", "code"), [(WELL, JobState.COMPLETED, 0), (FAILED, JobState.FAILED, 7)])
def test_the_last_process_ends_after_mpiexec(end: TaskEnd, state: JobState, code: int) -> None:
    """What their agents tell may come in any order."""
    site = rigid()
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 1, end)
    assert (site.outcome("1").state, site.outcome("1").exit_code) == (state, code)


def test_mpiexec_ends_while_a_process_runs() -> None:
    site = rigid()
    site.pass_time(LATE)
    outcome = site.outcome("1")
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 1)
    assert outcome.detail == "mpiexec ended with status 0 while 1 process was running: rank 1"


def test_an_agent_that_is_out_of_contact_is_waited_for() -> None:
    site = rigid()
    silent = site.record("1").ranks[1].placeholder
    site.silence(silent)
    site.pass_time(LATE)
    assert site.record("1").state is JobState.RUNNING
    site.hold(silent)
    site.rank_ends("1", 1)
    assert site.outcome("1").state is JobState.COMPLETED


def test_mpiexec_ends_in_a_shrink() -> None:
    """After the first of two that leave: the job is not done, though nobody has ended badly."""
    site = shrinking()
    site.rank_ends("1", 3)
    site.rank_ends("1", None)
    assert site.record("1").state is JobState.RUNNING
    site.pass_time(LATE)
    outcome = site.outcome("1")
    assert outcome.state is JobState.FAILED
    assert outcome.detail == "mpiexec ended with status 0 while 3 processes were running: ranks 0, 1, 2"


def test_a_leaver_is_the_last_to_end() -> None:
    site = shrinking()
    for rank in (0, 1, 3):
        site.rank_ends("1", rank)
    site.rank_ends("1", None)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 2)
    assert site.outcome("1").state is JobState.COMPLETED


def test_mpiexec_has_the_last_word_after_a_leaver() -> None:
    """All have said that they ended well; that is not the end of the job, as little as in a rigid one."""
    site = shrinking()
    for rank in (0, 1, 3, 2):
        site.rank_ends("1", rank)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", None, FAILED)
    assert (site.outcome("1").state, site.outcome("1").exit_code) == (JobState.FAILED, 7)


def test_processes_that_had_not_begun_are_not_waited_for() -> None:
    """The program is done before a growth brings them in."""
    site = adaptive(2)
    (offer,) = of_kind(OfferProcessors, site.actions)
    assert of_kind(TakeProcessors, [*site.answer(offer), *site.hold_stubs()])
    site.rank_ends("1", 0)
    site.rank_ends("1", 1)
    site.rank_ends("1", None)
    assert site.outcome("1").state is JobState.COMPLETED


def test_each_process_of_a_program_that_is_started_anew_is_waited_for() -> None:
    """However long its files take: its agent watches over it by itself."""
    site = shrinking(MpiResize.RESTART)
    for rank in (2, 3, 0):
        site.rank_ends("1", rank)
    site.rank_ends("1", None)
    site.pass_time(LATE)
    assert site.record("1").state is JobState.RUNNING
    site.rank_ends("1", 1)
    assert site.outcome("1").state is JobState.COMPLETED


@pytest.mark.parametrize("how", [None, MpiResize.SPAWN])
def test_leavers_that_do_not_end_do_not_keep_a_job_from_its_end(how: MpiResize | None) -> None:
    """All others have ended while they were waited for."""
    site = shrinking(how)
    site.rank_ends("1", 0)
    site.rank_ends("1", 1)
    site.pass_time(site.state.parameters.release_timeout + 1)
    if how is not None:
        assert site.record("1").state is JobState.RUNNING
        site.rank_ends("1", None)
    assert site.outcome("1").state is JobState.COMPLETED
