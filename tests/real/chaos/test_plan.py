# SPDX-License-Identifier: Apache-2.0
"""The plans of chaos: the same for the same seed, and with all that they are for. Needs no batch system."""

from __future__ import annotations

from pathlib import Path

from koala_adapter.config.jobfile import load_job_text
from koala_adapter.model import JobId, JobKind, Launcher
from tests.real.chaos.jobs import End
from tests.real.chaos.plan import KINDS, NEED_SERVICE, OF_CONTROLLER, OF_SERVICE, Deed, Plan, Step, make_plan

SECONDS = 120.0
PLANS = [make_plan(seed, SECONDS) for seed in range(40)]


def test_a_plan_is_a_function_of_seed_and_length() -> None:
    """The same seed and length give the same plan; another seed, or another length, another one."""
    assert make_plan(7, SECONDS) == PLANS[7]
    assert str(make_plan(7, SECONDS)) == str(PLANS[7])
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


def test_a_step_is_told_in_a_line() -> None:
    """The line names what, where and how much."""
    step = Step(at=3.2, deed=Deed.LOCAL_JOB, number=1, cluster="a", processors=2, seconds=4.5)
    assert str(step) == "   3.2 s  a local user's job on a, 2 processors for 4.5 s"
    assert str(Plan(seed=1, seconds=5, steps=(step,))) == f"plan of seed 1 for 5 s\n{step}\n"


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
