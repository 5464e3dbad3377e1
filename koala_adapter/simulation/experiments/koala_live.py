# SPDX-License-Identifier: Apache-2.0
"""KOALA's malleable jobs in small, on live clusters, beside the simulator's prediction of them (CoreGRID TR-0092)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.simulation.experiments.framework import Experiment, Options, Result, Setting
from koala_adapter.simulation.live_comparison import (
    NEAR,
    Compared,
    LiveRecords,
    compare,
    comparison_figures,
    comparison_table,
    delays_table,
    jobs_table,
    order_finding,
    prediction_findings,
)
from koala_adapter.simulation.live_runs import LiveRun, clusters_in_small, workload_in_small
from koala_adapter.simulation.malleable_report import PAPER, POLICIES, combination, figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.simulation.live_runs import RunsLive

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
    if options.live is None:
        raise SimulationError("koala-live runs real jobs", hint="run it with `koala experiment run koala-live`")
    approaches = _approaches(options)
    compared = [
        _one(options, options.live, approach, policy, workload, seed)
        for approach in approaches
        for policy in POLICIES
        for workload in PARTS[approach][1]
        for seed in options.all_seeds
    ]
    drawn = list(comparison_figures(compared))
    for approach in approaches:
        number, workloads = PARTS[approach]
        mine = [one for one in compared if one.live.case.approach is approach]
        drawn += figures(LiveRecords(mine, workloads), number)
    return Result(
        findings=[*prediction_findings(compared), *(order_finding(compared, one) for one in approaches)],
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


def _one(  # noqa: PLR0917 - what is run
    options: Options, live: RunsLive, approach: Approach, policy: str, workload: str, seed: int
) -> Compared:
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
    outcome = live(wanted, partial(_tell, options, name, len(jobs)))
    return compare(wanted, workload, seed, outcome)


def _tell(options: Options, name: str, total: int, ended: int) -> None:
    options.progress(ended, total, name)


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
