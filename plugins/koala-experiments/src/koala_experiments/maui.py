# SPDX-License-Identifier: Apache-2.0
"""Experiment maui-backfill: Maui's backfill and Metacluster over five traces (Gergel 2011).

Mean waits and mean slowdowns. In this order: where the traces are, the paper's claims beside what came out, and the
experiment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import inf, nan
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from koala_adapter.errors import SimulationError
from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Finding, Result, Table
from koala_adapter.simulation import metrics
from koala_adapter.simulation import workload as swf
from koala_adapter.simulation.models import BOUNDARY, PREFIX, make_model
from koala_adapter.simulation.replay import Policy, Site, replay
from koala_experiments.framework import Experiment, Setting, table_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koala_adapter.report.page import Cell
    from koala_experiments.framework import Options


# -- Traces on this machine ----------------------------------------------------------------------------------
# The traces of the Parallel Workloads Archive: where they are, and where they can be had. The archive allows their use
# with acknowledgement; they are not part of this program.

ADDRESS = "https://www.cs.huji.ac.il/labs/parallel/workload/"
VARIABLE = "KOALA_TRACES"
ENDINGS = ("", ".swf.gz", ".swf")


def trace_directories(given: str = "") -> list[Path]:
    """Return the directories in which traces are looked for; only ``given`` when that is not empty."""
    if given:
        return [Path(given).expanduser()]
    named = os.environ.get(VARIABLE)
    here = [Path(named)] if named else []
    return [*here, Path("traces"), Path("../shared/traces"), Path.home() / ".cache" / "koala" / "traces"]


def find_trace(names: Sequence[str], directories: Sequence[Path]) -> Path | None:
    """Return the first existing file of these traces (names without ending); None when there is none."""
    paths = (directory / f"{name}{ending}" for name, directory, ending in product(names, directories, ENDINGS))
    return next(filter(Path.is_file, paths), None)


def advice(page: str) -> str:
    """Return how to download a trace from its page in the archive."""
    return f"get it from {ADDRESS}{page}/ and put it into ~/.cache/koala/traces, or name its directory in ${VARIABLE}"


# -- Findings, figures and tables ----------------------------------------------------------------------------
# The paper's claims on Maui's backfill and Metacluster beside what came out. This part does no I/O.

FIRSTFIT, BESTFIT, GREEDY, METACLUSTER = "FIRSTFIT", "BESTFIT", "GREEDY", "Metacluster"
ALL_POLICIES = (FIRSTFIT, BESTFIT, GREEDY, METACLUSTER)
COMPARED = (FIRSTFIT, BESTFIT, METACLUSTER)
"""The three of the paper."""
CLOSE = 13.0
"""Percent by which the paper's mean waits differ at most."""
FAR = 3.5
"""Times by which the paper's slowdowns differ on DAS2-fs3."""
SHORT_DOMINATE = 0.85
"""Share of jobs below 1000 s from which on short jobs dominate a trace."""
TELLING = 0.01
"""Share of jobs that must wait under some policy for a trace to tell policies apart."""
LARGE_DOMINATE = 0.65
"""Share of jobs below 1000 s up to which large jobs dominate a trace."""
FS3 = "DAS2-fs3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measured values of one simulation, or their mean over the seeds."""

    trace: str
    policy: str
    exact: bool
    jobs: int
    wait: float
    slowdown: float
    bounded: float
    short: float
    """Share of jobs below 1000 s."""
    run: float
    """Mean run time, seconds."""
    utilization: float
    waiting: float
    """Share of jobs that wait at all, from 0 to 1."""
    modelled: bool = False
    """Whether a model stood in for the trace."""


Quantity: TypeAlias = "Callable[[Measured], float]"
WAIT: Quantity = attrgetter("wait")
SLOWDOWN: Quantity = attrgetter("slowdown")
Values: TypeAlias = dict[str, dict[str, Measured]]
"""By trace and policy."""


def by_trace(found: Sequence[Measured], *, exact: bool) -> Values:
    """Return the results with requested or with exact run times; a model's count as both."""
    requested = {one.trace for one in found if not one.exact}
    values: Values = {}
    for one in found:
        if one.exact == exact or one.trace not in requested:
            values.setdefault(one.trace, {})[one.policy] = one
    return values


def result(found: Sequence[Measured], notes: Sequence[str]) -> Result:
    """Return the experiment's findings, figures and tables."""
    requested, exact = by_trace(found, exact=False), by_trace(found, exact=True)
    return Result(
        findings=findings(requested, exact),
        figures=[
            _bars(requested, "wait", "mean wait (s)", WAIT),
            _bars(requested, "slowdown", "mean slowdown", SLOWDOWN),
            _relative(requested, "relative-wait", "mean wait", WAIT),
            _relative(requested, "relative-slowdown", "mean slowdown", SLOWDOWN),
            _relative(exact, "exact-wait", "mean wait, exact estimates", WAIT),
            _relative(exact, "exact-slowdown", "mean slowdown, exact estimates", SLOWDOWN),
        ],
        tables=[
            _table("requested", "With the requested times as estimates", requested),
            _table("exact", "With exact estimates", exact),
        ],
        notes=[*notes, *_silent(requested)],
    )


def _silent(values: Values) -> list[str]:
    """Return a note on traces on which policies do not differ."""
    return [
        f"On {trace} at most {100 * max(one.waiting for one in some.values()):.2f} % of the jobs wait, so it cannot "
        "tell policies apart; it does not count where one policy is to be better than another."
        for trace, some in values.items()
        if trace not in telling(values)
    ]


def telling(values: Values) -> Values:
    """Return the traces on which policies can differ; on others hardly any job waits."""
    return {trace: some for trace, some in values.items() if max(one.waiting for one in some.values()) >= TELLING}


def findings(all_requested: Values, all_exact: Values) -> list[Finding]:
    """Return the paper's claims with results on the traces on which policies differ."""
    requested, exact = telling(all_requested), {trace: all_exact[trace] for trace in telling(all_requested)}
    return [
        _waits_close(all_requested, all_exact),
        _slowdowns_differ_more(requested, exact),
        _far_on_fs3(all_requested),
        _best_is_worse(requested, exact),
        _better(requested, exact, winner=FIRSTFIT, loser=METACLUSTER, short=True),
        _better(requested, exact, winner=METACLUSTER, loser=FIRSTFIT, short=False),
    ]


def spread(values: dict[str, Measured], measure: Quantity) -> float:
    """Return by how many percent the worst of the three policies exceeds the best; infinite when that is 0."""
    some = [measure(values[policy]) for policy in COMPARED]
    if min(some) > 0:
        return 100 * (max(some) / min(some) - 1)
    return inf if max(some) > 0 else 0.0


def _spreads(values: Values, measure: Quantity) -> dict[str, float]:
    return {trace: spread(some, measure) for trace, some in values.items()}


def _listed(spreads: dict[str, float]) -> str:
    return ", ".join(f"{trace} {_percent(value)}" for trace, value in spreads.items())


def _percent(spread: float) -> str:
    return f"{spread:.1f} %" if spread < inf else "without bound (the best has none)"


def _waits_close(requested: Values, exact: Values) -> Finding:
    spreads, others = _spreads(requested, WAIT), _spreads(exact, WAIT)
    largest = max(spreads.values())
    close = sum(value < CLOSE for value in spreads.values())
    return Finding(
        claim=f"The mean waits of FIRSTFIT, BESTFIT and Metacluster differ by less than {CLOSE:.0f} % on each trace.",
        outcome=f"Worst over best: {_listed(spreads)}. With exact estimates: {_listed(others)}.",
        holds=largest < CLOSE if any(one.waiting for some in requested.values() for one in some.values()) else None,
        margin=f"less on {close} of {len(spreads)} traces; {_percent(largest)} where they differ most",
    )


def _slowdowns_differ_more(requested: Values, exact: Values) -> Finding:
    waits, slowdowns = _spreads(requested, WAIT), _spreads(requested, SLOWDOWN)
    more = [trace for trace in waits if slowdowns[trace] > waits[trace]]
    return Finding(
        claim="The mean slowdowns differ much more than the mean waits do.",
        outcome=f"Worst over best slowdown: {_listed(slowdowns)}. With exact estimates: "
        f"{_listed(_spreads(exact, SLOWDOWN))}.",
        holds=len(more) == len(waits) if waits else None,
        margin=f"more than the waits on {len(more)} of {len(waits)} traces" + (f": {', '.join(more)}" if more else ""),
    )


def _far_on_fs3(requested: Values) -> Finding:
    values = requested[FS3]
    ratio = 1 + spread(values, SLOWDOWN) / 100
    listed = ", ".join(f"{policy} {values[policy].slowdown:,.1f}" for policy in COMPARED)
    modelled = values[FIRSTFIT].modelled
    on_model = " on the model that stands in for the trace, which cannot tell of the trace itself" if modelled else ""
    return Finding(
        claim=f"On DAS2-fs3 the worst mean slowdown is over {FAR} times the best.",
        outcome=f"{ratio:.2f} times{on_model}: {listed}.",
        holds=None if modelled else ratio > FAR,
        margin=f"{ratio:.2f} in place of {FAR}",
    )


def _best_is_worse(requested: Values, exact: Values) -> Finding:
    counted = [
        [trace for trace, some in values.items() if measure(some[BESTFIT]) > measure(some[FIRSTFIT])]
        for values in (requested, exact)
        for measure in (WAIT, SLOWDOWN)
    ]
    total = len(requested)
    waits, slowdowns, exact_waits, exact_slowdowns = (len(some) for some in counted)
    return Finding(
        claim="BESTFIT is worse than FIRSTFIT.",
        outcome=f"Longer mean wait on {waits} of {total} traces, larger mean slowdown on {slowdowns}; with exact "
        f"estimates on {exact_waits} and {exact_slowdowns}.",
        holds=waits == slowdowns == total if total else None,
        margin=_changes(requested, BESTFIT, FIRSTFIT),
    )


def _better(requested: Values, exact: Values, *, winner: str, loser: str, short: bool) -> Finding:
    def chosen(values: Values) -> Values:
        return {
            trace: some
            for trace, some in values.items()
            if (some[winner].short >= SHORT_DOMINATE if short else some[winner].short <= LARGE_DOMINATE)
        }

    def won(values: Values, measure: Quantity) -> int:
        return sum(measure(some[winner]) < measure(some[loser]) for some in chosen(values).values())

    some = chosen(requested)
    kind = "short" if short else "large"
    claim = f"{'Maui' if short else 'Metacluster'} is better where {kind} jobs dominate."
    if not some:
        return Finding(claim=claim, outcome=f"There is no trace in which {kind} jobs dominate.", holds=None)
    waits, slowdowns = won(requested, WAIT), won(requested, SLOWDOWN)
    only_models = all(values[winner].modelled for values in some.values())
    shares = ", ".join(f"{trace} ({values[winner].short:.0%} below 1000 s)" for trace, values in some.items())
    return Finding(
        claim=claim,
        outcome=f"{winner} against {loser} on {shares}: shorter mean wait on {waits} of {len(some)}, smaller mean "
        f"slowdown on {slowdowns}; with exact estimates on {won(exact, WAIT)} and {won(exact, SLOWDOWN)}."
        + (" All of it on models, which cannot tell of the traces themselves." if only_models else ""),
        holds=None if only_models else waits == slowdowns == len(some),
        margin=_changes(some, winner, loser),
    )


def _changes(values: Values, one: str, other: str) -> str:
    parts = []
    for trace, some in values.items():
        waits = 100 * (some[one].wait / some[other].wait - 1) if some[other].wait else 0.0
        slowdowns = 100 * (some[one].slowdown / some[other].slowdown - 1)
        parts.append(f"{trace}: wait {waits:+.1f} %, slowdown {slowdowns:+.1f} %")
    return "; ".join(parts)


def _bars(values: Values, name: str, label: str, measure: Quantity) -> Figure:
    return Figure(
        name=name,
        title=f"{label[0].upper()}{label[1:]} by trace and policy".replace(" (s)", ""),
        x_label="trace",
        y_label=f"{label}, logarithmic",
        kind="bars",
        y_log=True,
        categories=list(values),
        series=[Series(label=policy, y=[measure(some[policy]) for some in values.values()]) for policy in ALL_POLICIES],
        caption="Estimates are the requested times; exact for models.",
    )


def _relative(values: Values, name: str, label: str, measure: Quantity) -> Figure:
    return Figure(
        name=name,
        title=f"{label[0].upper()}{label[1:]}, compared with FIRSTFIT",
        x_label="trace",
        y_label="percent of that under FIRSTFIT",
        kind="bars",
        categories=list(values),
        series=[
            Series(
                label=policy,
                y=[_share(measure(some[policy]), measure(some[FIRSTFIT])) for some in values.values()],
            )
            for policy in ALL_POLICIES
        ],
        caption="Nothing is drawn where there is none under FIRSTFIT.",
    )


def _share(value: float, base: float) -> float:
    """Return a value in percent of a base; NaN when the base is 0 or missing."""
    return 100 * value / base if base else nan


def _table(name: str, title: str, values: Values) -> Table:
    rows: list[dict[str, Cell]] = [
        {
            "trace": trace,
            "policy": policy,
            "jobs": one.jobs,
            "below 1000 s (%)": 100 * one.short,
            "mean run (s)": one.run,
            "utilization (%)": 100 * one.utilization,
            "mean wait (s)": one.wait,
            "mean slowdown": one.slowdown,
            "mean bounded slowdown (10 s)": one.bounded,
        }
        for trace, some in values.items()
        for policy, one in some.items()
    ]
    return table_of(name, title, rows)


# -- The experiment ------------------------------------------------------------------------------------------
# Gergel, Kustikova and Senin compared FIRSTFIT and BESTFIT of Maui with their Metacluster on traces of the Parallel
# Workloads Archive. Here the same policies, and GREEDY, are replayed on the releases of these traces that are on this
# machine; a trace that is not there is left out, or, for the two of DAS-2, replaced by a model with its published
# figures. The page says which.

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
    """One of the five traces of the paper."""

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


@dataclass(frozen=True, slots=True)
class Case:
    """A simulation: trace, policy, kind of run times, seed."""

    source: Source
    path: Path | None
    """Of the trace; None: its model."""
    seed: int
    policy: str
    exact: bool
    """Whether the estimates are the run times, in place of the requested times."""


def simulated(case: Case, *, jobs: int | None) -> Measured:
    """Simulate a case; ``jobs``: at most so many, the first ones."""
    if case.path is None:
        workload = make_model(case.source.model, seed=case.seed, jobs=jobs)
    else:
        workload = swf.workload(swf.read_trace(case.path, swf.NEEDED))
    processors = workload.processors
    if processors is None:
        raise SimulationError(f"{case.path}: the header does not say how many processors there are")
    if case.exact:
        workload = replace(workload, estimates=workload.runs)
    workload = workload.fitting(processors)
    if not len(workload):
        raise SimulationError(f"{case.path}: no job of it fits on the {processors} processors there are")
    workload = workload if jobs is None else workload.first(jobs)
    played = replay(workload, POLICIES[case.policy], [Site(name=case.source.name, processors=processors)])
    if played.interrupted:
        raise KeyboardInterrupt
    measured = metrics.job_metrics(played)
    summary = metrics.summarized(measured, processors)
    return Measured(
        trace=case.source.name,
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
    """Replay all traces under all policies, with requested and with exact run times."""
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
        cases += [
            Case(source, path, seed, policy, exact)
            for seed in (options.all_seeds if path is None else (0,))
            for exact in ((True,) if path is None else (False, True))
            for policy in POLICIES
        ]
    found = averaged(options.map(partial(simulated, jobs=jobs), cases))
    return result(found, [*notes, *NOTES])


NOTES = (
    (
        "Sizes are allocated processors; jobs without run time or size are left out; estimates are the requested "
        "times, never below the run time. The paper does not say what it took for estimates, so the second table has "
        "the same with exact ones. A model has exact estimates only."
    ),
    (
        f"BESTFIT and GREEDY go by {BEST_METRIC}; one job has a reservation; the order of the queue is that of "
        "arrival. With these settings FIRSTFIT is EASY. Metacluster is one cluster under its simplest backfill: only "
        "what ends before the reservation begins may overtake."
    ),
    (
        "The share of jobs below 1000 s tells where short jobs dominate (85 % and more) and where large ones do (65 % "
        "and less); the paper gives these shares, not a limit."
    ),
    "Traces: Parallel Workloads Archive, with thanks to those named in their headers.",
)


def _remark(source: Source, path: Path | None) -> str:
    """Return a note on the origin of a trace."""
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


AVERAGED = ("wait", "slowdown", "bounded", "short", "run", "utilization", "waiting")
"""What is averaged over seeds."""


def averaged(found: Sequence[Measured]) -> list[Measured]:
    """Return the means over seeds, in order of first occurrence."""
    groups: dict[tuple[str, str, bool], list[Measured]] = {}
    for one in found:
        groups.setdefault((one.trace, one.policy, one.exact), []).append(one)
    averages = []
    for group in groups.values():
        means: dict[str, Any] = {name: fmean(getattr(one, name) for one in group) for name in AVERAGED}
        averages.append(replace(group[0], **means))
    return averages


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
