# SPDX-License-Identifier: Apache-2.0
"""Maui's backfill and Metacluster over five traces: mean waits and mean slowdowns.

Gergel, Kustikova and Senin compared FIRSTFIT and BESTFIT of Maui with their Metacluster on traces of the Parallel
Workloads Archive. Here the same policies, and GREEDY, are replayed on the releases of these traces that are on this
machine; a trace that is not there is left out, or, for the two of DAS-2, replaced by a model with its published
figures. The page says which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.simulation import metrics, swf
from koala_adapter.simulation.experiments.framework import Experiment, Setting
from koala_adapter.simulation.maui_findings import BESTFIT, FIRSTFIT, GREEDY, METACLUSTER, Measured, result
from koala_adapter.simulation.platform_replay import Site
from koala_adapter.simulation.replay import Policy, replay
from koala_adapter.simulation.trace_archive import advice, find_trace, trace_directories
from koala_adapter.simulation.workload_models import BOUNDARY, PREFIX, make_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from koala_adapter.simulation.experiments.framework import Options, Result

BEST_METRIC = "processor-seconds"
"""BACKFILLMETRIC of the paper: PROCSECONDS."""
POLICIES = {
    FIRSTFIT: Policy(name="firstfit"),
    BESTFIT: Policy(name="bestfit", metric=BEST_METRIC),
    GREEDY: Policy(name="greedy", metric=BEST_METRIC),
    METACLUSTER: Policy(name="metacluster"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One of the five traces."""

    name: str
    """As the paper calls it."""
    releases: Sequence[str]
    """Names in the archive, the wanted one first."""
    page: str
    """In the archive."""
    model: str = ""
    """What takes its place when it is not there."""


SOURCES = (
    Source(name="CTC-SP2", releases=("CTC-SP2-1995-2", "CTC-SP2-1996-3.1-cln"), page="l_ctc_sp2"),
    Source(name="NASA-iPSC", releases=("NASA-iPSC-1993-3.1-cln",), page="l_nasa_ipsc"),
    Source(name="SDSC-DS", releases=("SDSC-DS-2004-2.1-cln",), page="l_sdsc_ds"),
    Source(name="DAS2-fs3", releases=("DAS2-fs3-2003-1",), page="l_das2", model="das2-fs3"),
    Source(name="DAS2-fs4", releases=("DAS2-fs4-2003-1",), page="l_das2", model="das2-fs4"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation."""

    trace: str
    path: Path | None
    """None: a model."""
    model: str
    seed: int
    policy: str
    exact: bool
    """Whether the estimates are the run times, in place of the requested times."""
    jobs: int | None


def simulated(case: Case) -> Measured:
    """Run one simulation."""
    if case.path is None:
        workload = make_model(case.model, seed=case.seed, jobs=case.jobs)
    else:
        workload = swf.workload(swf.read_trace(case.path, swf.NEEDED), jobs=case.jobs)
    processors = workload.processors
    if processors is None:
        raise SimulationError(f"{case.path}: the header does not say how many processors there are")
    if case.exact:
        workload = replace(workload, estimates=workload.runs)
    workload = workload.fitting(processors)
    played = replay(workload, POLICIES[case.policy], [Site(name=case.trace, processors=processors)])
    if played.interrupted:
        raise KeyboardInterrupt
    measured = metrics.job_metrics(played)
    summary = metrics.summarized(measured, processors)
    return Measured(
        trace=case.trace,
        policy=case.policy,
        exact=case.exact,
        jobs=summary.jobs,
        wait=summary.mean_wait,
        slowdown=summary.mean_slowdown,
        bounded=summary.mean_bounded_slowdown,
        short=sum(run < BOUNDARY for run in workload.runs) / len(workload),
        run=summary.mean_run,
        utilization=summary.utilization,
        waiting=sum(wait > 0 for wait in measured.waits) / len(workload),
        modelled=case.path is None,
    )


def run(options: Options) -> Result:
    """Replay all traces under all policies, with requested times and with exact ones."""
    jobs = int(options.settings["jobs"] or 0) or None
    directories = trace_directories(options.settings["traces"])
    cases: list[Case] = []
    notes: list[str] = []
    for source in SOURCES:
        path = find_trace(source.releases, directories)
        notes.append(_remark(source, path))
        if path is None and not source.model:
            continue
        # With a model the estimates are exact already, and each seed is another workload.
        for seed in options.all_seeds if path is None else (0,):
            for exact in (True,) if path is None else (False, True):
                cases += [
                    Case(
                        trace=source.name,
                        path=path,
                        model=source.model,
                        seed=seed,
                        policy=policy,
                        exact=exact,
                        jobs=jobs,
                    )
                    for policy in POLICIES
                ]
    found = averaged(options.map(simulated, cases))
    return result(found, [*notes, *NOTES])


ESTIMATES = (
    "Sizes are allocated processors; jobs without run time or size are left out; estimates are the requested times, "
    "never below the run time. The paper does not say what it took for estimates, so the second table has the same "
    "with exact ones. A model has exact estimates only."
)
SETTINGS = (
    f"BESTFIT and GREEDY go by {BEST_METRIC}; one job has a reservation; the order of the queue is that of arrival. "
    "With these settings FIRSTFIT is EASY. Metacluster is one cluster under its simplest backfill: only what ends "
    "before the reservation begins may overtake."
)
SHARES = (
    "The share of jobs below 1000 s tells where short jobs dominate (85 % and more) and where large ones do (65 % and "
    "less); the paper gives these shares, not a limit."
)
THANKS = "Traces: Parallel Workloads Archive, with thanks to those named in their headers."
NOTES = (ESTIMATES, SETTINGS, SHARES, THANKS)


def _remark(source: Source, path: Path | None) -> str:
    """Return what a reader must know of where a trace comes from."""
    if path is None and source.model:
        return (
            f"{source.name} is not on this machine and is replaced by {PREFIX}{source.model}: number of jobs, mean run "
            "time and share of jobs below 1000 s as the paper gives them, one year and 64 processors; sizes, daily "
            "cycle and bursts after Lublin and Feitelson. Waits on it say little about the trace itself, which had "
            f"users who send many jobs at once. To use the trace: {advice(source.page)}."
        )
    if path is None:
        return f"{source.name} is not on this machine and left out: {advice(source.page)}."
    if path.name.startswith(source.releases[0]):
        return f"{source.name} is {path.name}."
    return f"{source.name} is {path.name} in place of {source.releases[0]}: {advice(source.page)}."


def averaged(found: Sequence[Measured]) -> list[Measured]:
    """Return the means over the seeds, in order of first occurrence."""
    groups: dict[tuple[str, str, bool], list[Measured]] = {}
    for one in found:
        groups.setdefault((one.trace, one.policy, one.exact), []).append(one)
    return [
        replace(
            group[0],
            wait=fmean(one.wait for one in group),
            slowdown=fmean(one.slowdown for one in group),
            bounded=fmean(one.bounded for one in group),
            short=fmean(one.short for one in group),
            run=fmean(one.run for one in group),
            utilization=fmean(one.utilization for one in group),
            waiting=fmean(one.waiting for one in group),
        )
        for group in groups.values()
    ]


EXPERIMENT = Experiment(
    name="maui-backfill",
    summary="Mean wait and mean slowdown of FIRSTFIT, BESTFIT, GREEDY and Metacluster over five traces.",
    paper="V. P. Gergel, V. D. Kustikova and A. V. Senin, Nizhny Novgorod, 2011: Metacluster and Maui over WIKI.",
    run=run,
    seeds=3,
    settings=(
        Setting(
            name="traces", default="", meaning="directory with the traces; else $KOALA_TRACES, ~/.cache/koala/traces"
        ),
        Setting(
            name="jobs", default="", meaning="at most so many jobs of each trace, the first ones", least=1, whole=True
        ),
    ),
)
