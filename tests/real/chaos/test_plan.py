# SPDX-License-Identifier: Apache-2.0
"""Plans of chaos and the checks of what they leave, without a batch system."""

from __future__ import annotations

from pathlib import Path

import pytest

from koala_adapter.config.jobfile import load_job_text
from koala_adapter.model import EndReason, JobId, JobKind, Launcher
from koala_adapter.outcome import JobOutcome, JobState
from tests.real.chaos.checks import Consequence, History, ledger_violations, mpi_output_is_good
from tests.real.chaos.jobs import End, PlannedComponent, PlannedJob
from tests.real.chaos.plan import KINDS, NEED_SERVICE, OF_CONTROLLER, OF_SERVICE, Deed, make_plan
from tests.real.chaos.stage import printed_violations

# -- The plans of chaos: the same for the same seed, and with all that they are for. Needs no batch system.


SECONDS = 120.0
PLANS = [make_plan(seed, SECONDS) for seed in range(40)]


def test_a_plan_is_a_function_of_seed_and_length() -> None:
    """The same seed and length give the same plan; another seed, or another length, another one."""
    assert make_plan(7, SECONDS) == PLANS[7]
    assert PLANS[7].steps != PLANS[8].steps
    assert make_plan(7, 60.0).steps != PLANS[7].steps


def test_plans_contain_what_they_are_for() -> None:
    """Over some seeds: every kind of fault, every end, both launchers, both kinds, one to three components."""
    assert {step.deed for plan in PLANS for step in plan.steps} == set(Deed)
    jobs = [job for plan in PLANS for job in plan.jobs]
    assert {job.end for job in jobs} == set(End)
    assert {(job.mpi, job.moldable) for job in jobs} == {(False, False), (False, True), (True, False), (True, True)}
    assert {len(job.components) for job in jobs} == {1, 2, 3}
    assert all(len(plan.jobs) >= 15 and plan.faults >= 15 for plan in PLANS)


def test_what_goes_away_comes_back() -> None:
    """Each fault that takes a part away has its end, and the steps are in order of time."""
    for plan in PLANS:
        assert [step.at for step in plan.steps] == sorted(step.at for step in plan.steps)
        begun = [step for step in plan.steps if not step.undo and step.number > 0 and KINDS[step.deed].away[1] > 0]
        assert begun
        for step in begun:
            (end,) = [one for one in plan.steps if one.undo and one.number == step.number]
            assert (end.deed, end.cluster, end.node) == (step.deed, step.cluster, step.node)
            assert end.at >= step.at


def test_nobody_is_asked_who_is_away() -> None:
    """No job is submitted while the service is away, and no batch system used while its controller is."""
    for plan in PLANS:
        away: set[str] = set()
        for step in plan.steps:
            part = "service" if step.deed in OF_SERVICE else step.cluster if step.deed in OF_CONTROLLER else ""
            if part:
                (away.discard if step.undo else away.add)(part)
            elif step.deed in NEED_SERVICE:
                assert "service" not in away, step
            elif step.deed in {Deed.LOCAL_JOB, Deed.CANCEL_BEHIND, Deed.CANCEL_BATCH_BEHIND}:
                assert step.cluster not in away, step
        assert away == set()


def test_job_files_say_what_was_drawn() -> None:
    """Each file is one that koala takes, of the shape that was drawn."""
    for planned in [job for plan in PLANS for job in plan.jobs]:
        text = planned.text(ledger=Path("/x/ledger"), mpi_program=Path("/x/allreduce"), mark={"MARK": "1"})
        job = load_job_text(text, directory=Path("/x"), job_id=JobId("1"), user="root", submitted_at=0)
        assert (job.name, job.walltime) == (planned.name, planned.walltime)
        assert (job.kind is JobKind.MOLDABLE) == planned.moldable
        assert (job.launcher is Launcher.MPI) == planned.mpi
        sizes = [(component.minimum, component.maximum, component.cluster) for component in job.components]
        assert sizes == [(one.minimum, one.maximum, one.cluster) for one in planned.components]
        assert 0 <= planned.culprit < sum(one.minimum for one in planned.components)


# -- The checks of chaos find what they are for. Needs no batch system.


LINE = b"rank=1 size=3 host=n1 component=c1 sum=6\n"


def planned(end: End = End.EXITS, number: int = 7) -> PlannedJob:
    """Return a job of two ranks that write two lines each."""
    return PlannedJob(
        name="job1", mpi=False, components=(PlannedComponent(cluster=None, minimum=2, maximum=2),), end=end,
        number=number, culprit=0, seconds=1.0, lines=2, walltime=60, followed=True,
    )  # fmt: skip


def outcome(state: JobState, code: int) -> JobOutcome:
    return JobOutcome(state=state, reason=EndReason.EXITED, exit_code=code)


def test_a_job_ends_as_planned_or_as_what_happened_to_it() -> None:
    """Its own code is good in any case, that of a fault only where the fault was."""
    history = History(planned())
    assert history.violations() == ["job1 has no final state"]
    history.note(outcome(JobState.FAILED, 7))
    history.note(outcome(JobState.FAILED, 7))
    assert history.violations() == []
    history = History(planned())
    history.note(outcome(JobState.LOST, 242))
    (told,) = history.violations()
    assert "ended as lost 242" in told
    assert "may end as failed 7" in told
    history.hit("agent killed", Consequence.LOST)
    assert history.violations() == []


def test_an_outcome_that_changes_is_told() -> None:
    """Even when both are good by themselves."""
    history = History(planned())
    history.hit("koala cancel", Consequence.CANCELLED)
    history.note(outcome(JobState.CANCELLED, 243))
    history.note(outcome(JobState.FAILED, 7))
    (told,) = history.violations()
    assert "several final states" in told


@pytest.mark.parametrize(
    ("ledger", "size", "told"),
    [
        ("job1 0\njob1 1\n", 2, ""),
        ("job1 0\n", None, ""),
        ("", 0, ""),
        ("job1 0\njob1 1\njob1 0\n", 2, "started 2 times: rank job1 0"),
        ("job1 0\n", 2, "job1 ran as ranks ['0'], wanted are 2"),
        ("job1 0\njob1 2\n", 2, "job1 ran as ranks ['0', '2'], wanted are 2"),
        ("job2 0\n", None, "job2 ran as ranks ['0'], wanted are None"),
    ],
)
def test_the_ledger_is_compared_with_the_jobs(ledger: str, size: int | None, told: str) -> None:
    """A rank that was started twice, did not run, or ran and should not is told."""
    assert ledger_violations(ledger, {"job1": size}) == ([told] if told else [])


@pytest.mark.parametrize(
    ("written", "complete", "good"),
    [
        (LINE, True, True),
        (LINE, False, True),
        (b"", False, True),
        (b"", True, False),
        (LINE[:20], False, False),
        (LINE.replace(b"rank=1", b"rank=2"), True, False),
        (LINE.replace(b"sum=6", b"sum=7"), True, False),
    ],
)
def test_the_line_of_an_mpi_rank(written: bytes, *, complete: bool, good: bool) -> None:
    """All of it, once, and with the right sum; nothing only where the job did not complete."""
    assert mpi_output_is_good(written, 1, "out", complete=complete) is good


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        (b"c1/0: job1 0 1\njob1 0 2\n", 0),
        (b"job1 0 1\nkoala: the service went away\nc1/0: job1 0 2\n", 0),
        (b"job1 0 1\n", 1),
        (b"job1 0 2\njob1 0 1\n", 1),
        (b"job1 0 1\njob1 0 2\njob1 0 2\n", 1),
    ],
)
def test_what_is_followed_is_shown_once_and_in_order(printed: bytes, found: int) -> None:
    """With or without marks, between other lines; what is missing, doubled or out of order is told."""
    assert len(printed_violations(printed, planned(), 1)) == found
