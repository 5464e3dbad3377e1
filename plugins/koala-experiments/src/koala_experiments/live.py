# SPDX-License-Identifier: Apache-2.0
"""Experiment koala-live: KOALA's workloads in small on live clusters, beside the simulator's prediction.

That is the check of the simulator against reality (CoreGRID TR-0092). The prediction is made twice: with the delays
that were measured in the live run, and without any, which is what the experiments on DAS-3 assume. First come the
workloads in small, then the comparison with its figures, tables and findings, then the experiment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

import koala_experiments
from koala_adapter.errors import SimulationError
from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Finding, Result, Table
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import ft, gadget2
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import DAS3, ClusterModel, Platform
from koala_experiments.framework import Experiment, LiveRun, Options, Setting, table_of
from koala_experiments.malleable import (
    BINS,
    NAMES,
    PAPER,
    POLICIES,
    WORKLOADS,
    axis_to,
    combination,
    figures,
    koala_workload,
    mean_timeline,
    record_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from koala_adapter.report.page import Cell
    from koala_adapter.simulation.applications import JobResult, Outcome, SimulatedJob
    from koala_experiments.framework import LiveOutcome
    from koala_experiments.malleable import Record

# -- Workloads in small and their simulation -----------------------------------------------------------------
# All times are those of the workload, in seconds: a live run goes through them at a pace of so many seconds of the
# workload per second.


def clusters_in_small(divisor: float) -> tuple[ClusterModel, ...]:
    """Return DAS-3's clusters with processors divided by ``divisor``, at least two each."""
    return tuple(
        one.model_copy(update={"nodes": max(2, round(one.processors / divisor)), "processors_per_node": 1})
        for one in DAS3.clusters
    )


def workload_in_small(name: str, seed: int, *, jobs: int, divisor: float) -> list[SimulatedJob]:
    """Return the first jobs of a workload, with the applications' largest sizes divided by ``divisor``.

    How long they take on so many processors, and when they are submitted, is as it was.
    """
    found = koala_workload(WORKLOADS[name], seed, jobs=jobs)
    smaller = {
        one.name: replace(one, maximum=max(one.minimum + 1, round(one.maximum / divisor))) for one in (ft(), gadget2())
    }
    return [replace(job, application=smaller[job.application.name]) for job in found]


def predicted(run: LiveRun, live: LiveOutcome, *, delays: bool) -> Outcome:
    """Return the simulator's prediction of a run; ``delays``: with the delays measured in it."""
    settings = Settings(approach=run.approach, malleability=run.malleability)
    return simulate(platform_of(live), run.jobs, with_delays(settings, live) if delays else settings)


def platform_of(live: LiveOutcome) -> Platform:
    """Return a live run's clusters as a platform."""
    return Platform(name="live", clusters=tuple(live.clusters))


def with_delays(settings: Settings, live: LiveOutcome) -> Settings:
    """Return simulation settings with the delays measured in a live run."""
    return replace(
        settings,
        placeholder_delay=live.held_after,
        start_delay=live.computes_after,
        end_delay=live.known_after,
        release_delay=live.free_after,
    )


# -- Live runs beside their predictions ----------------------------------------------------------------------

NEAR = 0.15
"""A prediction is called near when it differs from the live run by at most this share."""
MEASURES = (
    ("used", "used processors", "processors used while jobs were submitted"),
    ("execution", "execution (s)", "mean execution time"),
    ("response", "response (s)", "mean response time"),
)
"""What is compared: property of a record, heading with unit, words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A live run with its two predictions by the simulator."""

    run: LiveRun
    workload: str
    """Name of its workload."""
    outcome: LiveOutcome
    live: Record
    simulated: Record
    """With the delays that were measured."""
    undelayed: Record
    """Without any."""
    jobs: Sequence[tuple[JobResult, JobResult]]
    """Each job that ended in both, by number: live, and as simulated with the delays."""

    @property
    def label(self) -> str:
        """Policy, workload and approach as text."""
        return f"{self.run.approach.value.upper()} {combination(self.run.malleability, self.workload)}"

    def difference(self, what: str, simulated: Record | None = None) -> float:
        """Return the relative excess of the simulated over the live value of a property."""
        found, live = float(getattr(simulated or self.simulated, what)), float(getattr(self.live, what))
        if live == 0.0:  # of so short a run that nothing of it was measured
            return 0.0 if found == 0.0 else 1.0
        return found / live - 1.0


def compare(run: LiveRun, workload: str, outcome: LiveOutcome) -> Compared:
    """Return a live run with both predictions."""
    axis = axis_of(workload, len(run.jobs))
    outcomes = (outcome.outcome, predicted(run, outcome, delays=True), predicted(run, outcome, delays=False))
    live, simulated, undelayed = (record_of(one, run.jobs[-1].submitted_at, axis) for one in outcomes)
    ends, foretold = ({one.job.number: one for one in each.jobs} for each in outcomes[:2])
    return Compared(
        run=run,
        workload=workload,
        outcome=outcome,
        live=live,
        simulated=simulated,
        undelayed=undelayed,
        jobs=[(ends[number], foretold[number]) for number in sorted(ends.keys() & foretold.keys())],
    )


LONGEST = 600.0
"""Execution time of the longest job at its first size, in seconds."""


def axis_of(workload: str, jobs: int) -> list[float]:
    """Return the time axis of a workload, which ends when a last job of constant size would end."""
    return axis_to(jobs * WORKLOADS[workload].interarrival + LONGEST)


def live_figures(compared: Sequence[Compared], number: int) -> list[Figure]:
    """Return the six parts of a figure of the paper with the live records of one approach."""
    records: dict[tuple[str, str], list[Record]] = {}
    for one in compared:
        records.setdefault((one.run.malleability, one.workload), []).append(one.live)
    return figures(
        number,
        records,
        processors=sum(one.processors for one in compared[0].outcome.clusters),
        axes={one.workload: axis_of(one.workload, len(one.run.jobs)) for one in compared},
    )


# ---- tables ---------------------------------------------------------------------------------------------------------


def comparison_table(compared: Sequence[Compared]) -> Table:
    """Return the table of live and simulated values with their difference in per cent."""
    rows = []
    for one in compared:
        row = _names(one)
        for what, heading, _ in MEASURES:
            row[f"{heading} live"] = _of(one.live, what)
            row[f"{heading} simulated"] = _of(one.simulated, what)
            row[f"{heading} difference (%)"] = round(100.0 * one.difference(what), 1)
        row |= {"wait (s) live": one.live.wait, "simulated wait (s)": one.simulated.wait}
        row |= {"messages live": one.live.messages, "simulated messages": one.simulated.messages}
        rows.append(row)
    caption = (
        "Means over the jobs of each live run, and of the simulator with the delays measured in that run. A negative "
        "difference: the simulator says less than there was."
    )
    return table_of("live-and-simulated", "Live runs and their simulation", rows, caption)


def delays_table(compared: Sequence[Compared]) -> Table:
    """Return the table of measured delays, and of the error of the simulator without delays."""
    rows = [
        {
            **_names(one),
            "until held (s)": one.outcome.held_after,
            "until it computes (s)": one.outcome.computes_after,
            "until its end is known (s)": one.outcome.known_after,
            "until free again (s)": one.outcome.free_after,
            **{
                f"{heading}: difference without delays (%)": round(100.0 * one.difference(what, one.undelayed), 1)
                for what, heading, _ in MEASURES
            },
        }
        for one in compared
    ]
    caption = (
        "Means of the live run, in seconds of the workload: from the submission of a placeholder until it is held, "
        "from the launch of a process until it works, from the end of a job's work until that is known, from the end "
        "of a process until its processor is known to be idle."
    )
    return table_of("delays", "What the live system takes its time for", rows, caption)


def jobs_table(compared: Sequence[Compared]) -> Table:
    """Return the table of all jobs, live and simulated, in which differing courses can be found."""
    rows = []
    for one in compared:
        for live, simulated in one.jobs:
            row = _names(one) | {"job": f"{live.job.application.name.lower()}-{live.job.number}"}
            for what in ("wait", "execution", "response"):
                row[f"{what} (s) live"] = round(getattr(live, what), 1)
                row[f"simulated {what} (s)"] = round(getattr(simulated, what), 1)
            excess = simulated.response / live.response - 1.0 if live.response else 0.0
            row["response difference (%)"] = round(100.0 * excess, 1)
            row["largest size live"] = live.maximum_processors
            row["simulated largest size"] = simulated.maximum_processors
            row["sizes live"] = " ".join(f"{size}@{at:.0f}" for at, size in one.outcome.sizes.get(live.job.number, ()))
            rows.append(row)
    caption = (
        "Each job as it was submitted. A share of single jobs goes another way than foretold: who gets a processor "
        "that comes free depends on who is seen to want it at that moment. Sizes: from when on, in seconds of the "
        "workload from the first submission."
    )
    return table_of("jobs", "Single jobs", rows, caption)


def _names(one: Compared) -> dict[str, Cell]:
    policy = NAMES[one.run.malleability]
    return {"approach": one.run.approach.value.upper(), "policy": policy, "workload": one.workload}


def _of(record: Record, what: str) -> float:
    return float(getattr(record, what))


# ---- figures --------------------------------------------------------------------------------------------------------


def comparison_figures(compared: Sequence[Compared]) -> list[Figure]:
    """Return bars of live and simulated means, and timelines of used processors of each run."""
    by_label: dict[str, list[Compared]] = {}
    for one in compared:
        by_label.setdefault(one.label, []).append(one)
    return [
        *(_bars(by_label, what, words) for what, _, words in MEASURES),
        *(_used(label, runs) for label, runs in by_label.items()),
    ]


def _bars(by_label: dict[str, list[Compared]], what: str, words: str) -> Figure:
    picks: tuple[tuple[str, Callable[[Compared], Record]], ...] = (
        ("live", lambda one: one.live),
        ("simulated", lambda one: one.simulated),
        ("simulated without delays", lambda one: one.undelayed),
    )
    series = [
        Series(label=label, y=[fmean(_of(pick(one), what) for one in runs) for runs in by_label.values()])
        for label, pick in picks
    ]
    unit = "processors" if what == "used" else "s"
    return Figure(
        name=f"compared-{what}",
        title=f"Live and simulated: {words}",
        x_label="approach, policy and workload",
        y_label=f"{words} ({unit})" if unit == "s" else words,
        kind="bars",
        categories=list(by_label),
        series=series,
        caption="Means over the jobs and the repetitions.",
    )


def _used(label: str, runs: Sequence[Compared]) -> Figure:
    run, workload = runs[0].run, runs[0].workload
    axis, stem = axis_of(workload, len(run.jobs)), workload.replace("'", "-high-")
    return Figure(
        name=f"used-{run.approach.value}-{run.malleability}-{stem}",
        title=f"{label}: used processors, live and simulated",
        x_label="time since the first submission (s of the workload)",
        y_label="used processors",
        series=[
            mean_timeline("live", axis, [one.live for one in runs], "used_over_time"),
            mean_timeline("simulated", axis, [one.simulated for one in runs], "used_over_time"),
        ],
        caption=f"Means over intervals of 1/{BINS} of the axis, and over the repetitions.",
    )


# ---- findings -------------------------------------------------------------------------------------------------------


def _prediction(compared: Sequence[Compared], what: str, words: str) -> Finding:
    """Judge whether the simulator predicts a measure of the live runs."""
    differences = {one.label: one.difference(what) for one in compared}
    farthest = max(differences, key=lambda label: abs(differences[label]))
    undelayed = [one.difference(what, one.undelayed) for one in compared]
    typical = fmean(abs(one) for one in differences.values())
    return Finding(
        claim=f"The simulator predicts the live runs: {words}, within {100 * NEAR:.0f} %.",
        outcome="; ".join(f"{label}: {100 * value:+.1f} %" for label, value in differences.items())
        + f". Without the measured delays: {100 * min(undelayed):+.1f} % to {100 * max(undelayed):+.1f} %.",
        holds=all(abs(one) <= NEAR for one in differences.values()),
        margin=f"{100 * typical:.1f} % on average, {100 * differences[farthest]:+.1f} % at most ({farthest})",
    )


def order_finding(compared: Sequence[Compared], approach: Approach) -> Finding:
    """Judge whether combinations that differ in simulation have the same order live."""
    mine = [one for one in compared if one.run.approach is approach]
    ranked = sorted(mine, key=lambda one: one.simulated.execution)
    apart = [
        (low, high)
        for low, high in pairwise(ranked)
        if high.simulated.execution > (1.0 + NEAR / 2) * low.simulated.execution
    ]
    wrong = [(low, high) for low, high in apart if low.live.execution > high.live.execution]
    said = " < ".join(f"{one.label} ({one.live.execution:.0f} s live)" for one in ranked)
    return Finding(
        claim=f"Under {approach.value.upper()}, combinations whose simulated execution times differ clearly are in the "
        "same order live.",
        outcome=f"Simulated: {said}.",
        holds=None if not apart else not wrong,
        margin=f"{len(apart) - len(wrong)} of {len(apart)} neighbours that differ by {100 * NEAR / 2:.1f} % or more",
    )


# -- The experiment ------------------------------------------------------------------------------------------

PARTS = {Approach.PRA: (7, ("Wm", "Wmr")), Approach.PWA: (8, ("W'm", "W'mr"))}
"""Of each approach the paper's figure and workloads."""

SETTINGS = (
    Setting(name="jobs", default="20", meaning="jobs of each workload, 2 to 300", least=2, most=300, whole=True),
    Setting(
        name="pace",
        default="50",
        meaning="seconds of the workload in one second, 1 to 1000; the higher, the more do the delays count of what is "
        "real",
        least=1,
        most=1000,
    ),
    Setting(
        name="divisor",
        default="8",
        meaning="clusters and largest sizes are those of the paper divided by this, 1 to 20",
        least=1,
        most=20,
    ),
    Setting(name="approaches", default="pra,pwa", meaning="pra, pwa, or both"),
    Setting(
        name="site",
        default="",
        meaning="Path of a site file whose clusters are used. Default: local clusters, started for it.",
    ),
)

NOTES = (
    (
        "Every run is real: a service, its journal, agents in placeholders, and workers that come and go. What a "
        "worker does is to sleep: the work of each job is a bag of units, and on n workers a unit takes just so long "
        "that the job follows the paper's curve (FT 120 s on 2 processors and 60 s on 32, GADGET-2 600 s on 2 and "
        "240 s on 46) at the pace that is set. So any number of workers fits on one machine."
    ),
    (
        "In small: the clusters of DAS-3 and the largest sizes of the applications are divided by the setting "
        "`divisor`. Jobs are submitted at the times of the paper's workloads. FT takes powers of two only."
    ),
    (
        "All times are those of the workload. All values of live runs come from their journals, replayed; the "
        "simulator has the same jobs, clusters, policy and approach."
    ),
    (
        "A real system takes its time where the simulator of koala-pra and koala-pwa takes none: until placeholders "
        "are held, until processes work, until the end of a job is known, until processors that were given back are "
        "seen to be idle. These times are measured in each live run, and the simulator is given their means. Times "
        "the pace they are large: that is what the column without delays shows, and a lower pace makes smaller."
    ),
    (
        "What is left has these reasons. A delay is not always its mean: many processes that start at once on few "
        "cores start slowly, and nobody computes meanwhile. The scheduler asks jobs one after the other which in the "
        "simulator all answer at one instant, so that some have changed already when the next event comes. The "
        "workers of a job do not end at one instant, but within the length of a unit."
    ),
    (
        "The claims on prediction and order are ours, not the paper's. Unlike those of other experiments, live runs "
        "differ from each other; seeds only choose the order of the jobs."
    ),
)


def run(options: Options) -> Result:
    """Run the experiment."""
    approaches = _approaches(options)
    compared = [
        _one(options, approach, policy, workload, seed)
        for approach in approaches
        for policy in POLICIES
        for workload in PARTS[approach][1]
        for seed in options.all_seeds
    ]
    drawn = list(comparison_figures(compared))
    for approach in approaches:
        drawn += live_figures([one for one in compared if one.run.approach is approach], PARTS[approach][0])
    return Result(
        findings=[
            *(_prediction(compared, what, words) for what, _, words in MEASURES),
            *(order_finding(compared, one) for one in approaches),
        ],
        figures=drawn,
        tables=[comparison_table(compared), delays_table(compared), jobs_table(compared)],
        notes=(*NOTES, f"Near is taken to mean within {100 * NEAR:.0f} %.", _where(compared)),
    )


def _approaches(options: Options) -> Sequence[Approach]:
    names = [one.strip() for one in options.settings["approaches"].split(",") if one.strip()]
    allowed = {one.value: one for one in PARTS}
    if not names or any(one not in allowed for one in names):
        raise SimulationError(f"approaches is {options.settings['approaches']!r}", hint="allowed is pra, pwa or both")
    return [allowed[one] for one in dict.fromkeys(names)]


def _one(options: Options, approach: Approach, policy: str, workload: str, seed: int) -> Compared:
    settings = options.settings
    divisor = float(settings["divisor"])
    jobs = workload_in_small(workload, seed, jobs=int(settings["jobs"]), divisor=divisor)
    wanted = LiveRun(
        approach=approach,
        malleability=policy,
        jobs=jobs,
        clusters=clusters_in_small(divisor),
        pace=float(settings["pace"]),
        site=settings["site"],
    )
    number = f" {seed}" if options.seeds > 1 else ""
    name = f"{approach.value.upper()} {combination(policy, workload)}{number}: jobs ended"
    outcome = koala_experiments.run_live(wanted, lambda ended: options.progress(ended, len(jobs), name))
    return compare(wanted, workload, outcome)


def _where(compared: Sequence[Compared]) -> str:
    clusters = ", ".join(f"{one.name} ({one.processors})" for one in compared[0].outcome.clusters)
    whose = compared[0].run.site or "local ones, started for each run"
    return f"Clusters, with processors: {clusters}; {whose}."


EXPERIMENT = Experiment(
    name="koala-live",
    summary="The workloads of koala-pra and koala-pwa in small, on live clusters, beside the simulator's prediction.",
    paper=PAPER,
    run=run,
    settings=SETTINGS,
)
