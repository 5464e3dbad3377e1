# SPDX-License-Identifier: Apache-2.0
"""Experiments koala-pra and koala-pwa: KOALA's malleable jobs on a simulated DAS-3 (CoreGRID TR-0092).

Precedence to running applications (figure 7) and to waiting ones (figure 8). In this order: the workloads, one run,
what both experiments have in common, koala-pra, koala-pwa.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Finding, Result, Table
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import FREE, ReconfigurationCost, SimulatedJob, ft, gadget2
from koala_adapter.simulation.metrics import Steps
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import DAS3
from koala_experiments.framework import ALSO_POLICIES, Comparison, Experiment, Measure, Options, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.simulation.applications import Outcome
    from koala_experiments.framework import Estimate


# -- Workloads -----------------------------------------------------------------------------------------------
# From a seed: 300 jobs, half of them NAS FT and half GADGET-2, chosen uniformly. Wm: all malleable, one every 120 s.
# Wmr: half malleable, half rigid. W'm and W'mr: the same, one every 30 s. Malleable jobs start on 2 processors, rigid
# ones have 2.

JOBS = 300
INITIAL = 2
"""Processors of a malleable job at its start, and of a rigid job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KoalaWorkload:
    """Parameters of one of the papers' workloads."""

    name: str
    interarrival: float
    """Seconds between two submissions."""
    rigid: float
    """Share of rigid jobs."""


WM = KoalaWorkload(name="Wm", interarrival=120.0, rigid=0.0)
WMR = KoalaWorkload(name="Wmr", interarrival=120.0, rigid=0.5)
WM_HIGH = KoalaWorkload(name="W'm", interarrival=30.0, rigid=0.0)
WMR_HIGH = KoalaWorkload(name="W'mr", interarrival=30.0, rigid=0.5)
WORKLOADS: Mapping[str, KoalaWorkload] = {workload.name: workload for workload in (WM, WMR, WM_HIGH, WMR_HIGH)}


def koala_workload(
    workload: KoalaWorkload,
    seed: int,
    *,
    jobs: int = JOBS,
    poisson: bool = False,
    cost: ReconfigurationCost = FREE,
    malleable: bool = True,
) -> list[SimulatedJob]:
    """Return the jobs of a workload: half of each application, the exact share of rigid jobs, shuffled.

    ``poisson`` makes the times between submissions exponential instead of equal; ``malleable=False`` makes all jobs
    rigid, which is what the malleable ones are compared with. Applications, order and times do not depend on that.
    """
    chance = random.Random(f"{seed}/{workload.name}")
    applications = [ft(cost), gadget2(cost)]
    kinds = _shuffled(chance, jobs, 0.5)
    rigid = _shuffled(chance, jobs, workload.rigid)
    time = 0.0
    found = []
    for number in range(jobs):
        found.append(
            SimulatedJob(
                number=number,
                submitted_at=time,
                application=applications[kinds[number]],
                initial=INITIAL,
                malleable=malleable and not rigid[number],
            )
        )
        time += chance.expovariate(1.0 / workload.interarrival) if poisson else workload.interarrival
    return found


def _shuffled(chance: random.Random, count: int, share: float) -> list[bool]:
    """Return a shuffled list of booleans with the given share of true ones."""
    true = round(count * share)
    values = [True] * true + [False] * (count - true)
    chance.shuffle(values)
    return values


# -- One run -------------------------------------------------------------------------------------------------
# A workload on DAS-3, and what is kept of it: the numbers behind figures 7 and 8.

RIGID = "rigid"
"""Stands for a malleability policy where all jobs are rigid: what malleability is compared with."""
AS_SET = "as set"
"""Name of the conditions that settings give."""
BINS = 120
"""Parts into which the time axis of the timelines is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Costs and background load of a run."""

    name: str = AS_SET
    background: float = 0.0
    """Share of each cluster that local users ask for."""
    threshold: int = 0
    """Processors of each cluster that are left to local users."""
    delay: float = 0.0
    """Seconds until placeholders are held."""
    cost: float = 0.0
    """Seconds for which a job stands still when its size changes."""
    poll: float = 0.0
    """Seconds between two looks at local users; 0: they are seen at once."""


class Variant(NamedTuple):
    """A combination of policy and workload, and the name of the conditions under which it is simulated."""

    policy: str
    """Name of a malleability policy, or `RIGID`."""
    workload: str
    conditions: str = AS_SET


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Measured values of a run. Times in seconds; means over all jobs unless said."""

    average_processors: float
    maximum_processors: float
    execution: float
    malleable_execution: float
    """Of the malleable jobs alone."""
    wait: float
    response: float
    used: float
    """Mean processors of managed jobs while jobs were submitted."""
    messages: int
    jobs: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By the name of a property above: one value for each job. Only of detailed runs."""
    used_over_time: Sequence[float] = ()
    """Mean processors of managed jobs in each part of the time axis."""
    messages_over_time: Sequence[float] = ()
    """Messages sent until the end of each part."""


def time_axis(workload: str) -> list[float]:
    """Return a workload's time axis in seconds: equal parts to a tenth after the last submission."""
    return axis_to(JOBS * WORKLOADS[workload].interarrival * 1.1)


def axis_to(last: float) -> list[float]:
    """Return the ends of equal parts of the time from 0 to ``last``."""
    return [last * (part + 1) / BINS for part in range(BINS)]


def run_variant(
    variant: Variant, seed: int, *, approach: Approach, conditions: Mapping[str, Conditions], policies: Policies = OWN
) -> Record:
    """Simulate a variant, with a policy of ``policies``; return its record, with details where figures show it."""
    where = conditions[variant.conditions]
    rigid = variant.policy == RIGID
    cost = ReconfigurationCost(fixed=where.cost)
    jobs = koala_workload(WORKLOADS[variant.workload], seed, cost=cost, malleable=not rigid)
    clusters = tuple(one.model_copy(update={"threshold": where.threshold}) for one in DAS3.clusters)
    platform = DAS3.model_copy(update={"clusters": clusters}).with_background(where.background)
    settings = Settings(
        approach=Approach.NONE if rigid else approach,
        malleability="fpsma" if rigid else variant.policy,
        poll_interval=where.poll,
        placeholder_delay=where.delay,
        seed=seed,
        policies=policies,
    )
    outcome = simulate(platform, jobs, settings)
    detailed = variant.conditions == AS_SET and variant.policy in POLICIES
    return record_of(outcome, jobs[-1].submitted_at, time_axis(variant.workload) if detailed else ())


def record_of(outcome: Outcome, last_submission: float, axis: Sequence[float]) -> Record:
    """Return the record of an outcome, simulated or live; ``axis``: of the timelines, empty: without details."""
    results = sorted(outcome.jobs, key=lambda one: one.job.number)
    malleable = [one.execution for one in results if one.job.malleable]
    columns = {
        "average_processors": [one.average_processors for one in results],
        "maximum_processors": [float(one.maximum_processors) for one in results],
        "execution": [one.execution for one in results],
        "response": [one.response for one in results],
    }
    used = Steps(times=[at for at, _, _ in outcome.used], values=[managed for _, managed, _ in outcome.used])
    return Record(
        **{name: fmean(column) for name, column in columns.items()},
        malleable_execution=fmean(malleable) if malleable else fmean(columns["execution"]),
        wait=fmean(one.wait for one in results),
        used=used.mean(0.0, last_submission),
        messages=outcome.grow_messages + outcome.shrink_messages,
        jobs=columns if axis else {},
        used_over_time=means_over(used, axis) if axis else (),
        messages_over_time=_messages_over_time(outcome, axis),
    )


def means_over(used: Steps, axis: Sequence[float]) -> list[float]:
    """Return the mean in each part of a time axis, which begins at 0."""
    edges = [0.0, *axis]
    return [area / (end - begin) for area, (begin, end) in zip(used.areas(edges), pairwise(edges), strict=True)]


def _messages_over_time(outcome: Outcome, axis: Sequence[float]) -> list[float]:
    times = [at for at, _, _ in outcome.messages]
    sent = [0, *accumulate(grown + shrunk for _, grown, shrunk in outcome.messages)]
    return [float(sent[bisect_right(times, end)]) for end in axis]


# -- What both experiments have in common --------------------------------------------------------------------
# Cases, the six figures, tables, findings, settings.

PAPER = (
    "J. Buisson, O. Sonmez, H. Mohamed, W. Lammers, D. Epema: Scheduling Malleable Applications in Multicluster "
    "Systems, CoreGRID Technical Report TR-0092, 2007"
)
POLICIES = ("fpsma", "egs")
BASELINES = ("egs-repeated", "equipartition", "folding")
NAMES = {
    "fpsma": "FPSMA",
    "egs": "EGS",
    "egs-repeated": "EGS, repeated",
    "equipartition": "Equipartition",
    "folding": "Folding",
    RIGID: "rigid",
}
CDF_POINTS = 400
"""Points of a cumulative distribution that are kept for its figure."""

HIDDEN = "A line that cannot be seen lies under that of the other policy with the same workload."

SETTINGS = (
    ALSO_POLICIES,
    Setting(
        name="background", default="0", meaning="share of each cluster that local users ask for, 0 to 0.95",
        least=0, most=0.95,
    ),
    Setting(
        name="threshold", default="0", meaning="processors of each cluster left to local users, 0 to 30",
        least=0, most=30, whole=True,
    ),
    Setting(
        name="delay", default="0", meaning="seconds until placeholders are held, 0 to 3600", least=0, most=3600,
    ),
    Setting(
        name="cost", default="0", meaning="seconds for which a job stands still when its size changes, 0 to 3600",
        least=0, most=3600,
    ),
    Setting(
        name="poll", default="0", meaning="seconds between two looks at local users (0: seen at once), 0 to 3600",
        least=0, most=3600,
    ),
)  # fmt: skip

OTHER_CONDITIONS = (
    Conditions(name="local users ask for 50 %", background=0.5, poll=10.0),
    Conditions(name="local users ask for 80 %", background=0.8, poll=10.0),
    Conditions(name="costly changes (20 s until held, 60 s standing still)", delay=20.0, cost=60.0),
    Conditions(name="costly changes, local users 70 %", background=0.7, poll=10.0, delay=20.0, cost=60.0),
)
"""What the paper does not state; see whether the claims depend on it."""

NOTES = (
    (
        "DAS-3 as in the paper (85, 41, 68, 46 and 32 processors), empty but for these jobs unless a setting says "
        "otherwise; the paper ran on the real machine beside its other users, whose load it does not state."
    ),
    (
        "Applications: execution times between the stated points (FT 120 s on 2 and 60 s at best, taken to be on 32; "
        "GADGET-2 600 s on 2 and 240 s at best, on 46) follow a power of the number of processors. The paper's runs "
        "also paid for each change of size; here that is the setting `cost`, 0 by default."
    ),
    (
        "Jobs are submitted at equal distances. A repetition differs from another in the order of applications and of "
        "rigid and malleable jobs, and in what local users do. ± is half of a 95 % confidence interval of the mean."
    ),
    (
        "Local users, where there are any, begin together with the workload, on empty clusters: the first 20 minutes "
        "or so have less of them than was asked for."
    ),
    (
        "EGS is the paper's (figure 5; policy `egs`): one round of messages to all running jobs, also to those at "
        "their minimum or maximum, which decline. What they leave over waits until processors come free."
    ),
    "Messages are offers to grow and requests to shrink, also those that an application answers with nothing.",
)


def conditions_of(options: Options) -> Conditions:
    """Return the conditions given by settings."""
    values = options.settings
    return Conditions(
        background=float(values["background"]),
        threshold=int(values["threshold"]),
        delay=float(values["delay"]),
        cost=float(values["cost"]),
        poll=float(values["poll"]),
    )


AVERAGE = Measure[Record]("mean of average processors", attrgetter("average_processors"))
MAXIMUM = Measure[Record]("mean of maximum processors", attrgetter("maximum_processors"))
EXECUTION = Measure[Record]("mean execution time (s)", attrgetter("execution"))
MALLEABLE_EXECUTION = Measure[Record]("mean execution time of malleable jobs (s)", attrgetter("malleable_execution"))
WAIT = Measure[Record]("mean wait (s)", attrgetter("wait"))
RESPONSE = Measure[Record]("mean response time (s)", attrgetter("response"))
USED = Measure[Record]("mean used processors", attrgetter("used"))
MESSAGES = Measure[Record]("messages", attrgetter("messages"))


class Records(Comparison[Variant, Record]):
    """Records of all simulated runs."""

    def __init__(self, options: Options, approach: Approach, workloads: Sequence[str]) -> None:
        """Simulate the paper's combinations, baselines, rigid jobs and other conditions."""
        self.workloads = workloads
        own = (*POLICIES, *BASELINES)
        self.policies = (*own, *options.also(options.policies.malleability, own))
        """All that are compared under the conditions that are set."""
        conditions = {one.name: one for one in (conditions_of(options), *OTHER_CONDITIONS)}

        variants = [
            Variant(policy, workload, where)
            for where in conditions
            for policy in ((*self.policies, RIGID) if where == AS_SET else POLICIES)
            for workload in workloads
        ]
        simulation = partial(run_variant, approach=approach, conditions=conditions, policies=options.policies)
        super().__init__(options.compare(simulation, variants).outcomes)

    def show(self, variant: Variant, measure: Measure[Record], digits: int = 1) -> str:
        """Return a mean with its confidence interval."""
        return show(self.estimate(variant, measure), digits)


def combination(policy: str, workload: str) -> str:
    """Return the name of a combination in figures and tables."""
    return f"{NAMES[policy]}/{workload}"


def show(value: Estimate, digits: int = 1) -> str:
    """Return a mean with its confidence interval."""
    spread = f" ± {value.half_width:.{digits}f}" if value.repetitions > 1 else ""
    return f"{value.mean:.{digits}f}{spread}"


# ---- figures --------------------------------------------------------------------------------------------------------


def figures(
    number: int,
    records: Mapping[tuple[str, str], Sequence[Record]],
    *,
    processors: int,
    axes: Mapping[str, Sequence[float]],
) -> list[Figure]:
    """Return the six parts of figure 7 or 8.

    ``records``: of each policy and workload, in order of the seeds. ``processors``: of all clusters. ``axes``: time
    axis of the timelines, by workload.
    """

    def timelines(what: str) -> list[Series]:
        return [mean_timeline(combination(*one), axes[one[1]], some, what) for one, some in records.items()]

    distributions = (
        ("a", "average_processors", "Average number of processors of a job", "processors (mean over the execution)"),
        ("b", "maximum_processors", "Maximum number of processors of a job", "processors"),
        ("c", "execution", "Execution time of a job", "execution time (s)"),
        ("d", "response", "Response time of a job", "response time (s)"),
    )
    return [
        *(
            Figure(
                name=f"figure-{number}{letter}",
                title=title,
                x_label=x_label,
                y_label="jobs (%) with at most this",
                series=_distributions(records, what),
                kind="step",
                caption=f"Cumulative over the jobs of all repetitions. {HIDDEN}",
                y_range=(0.0, 102.0),
            )
            for letter, what, title, x_label in distributions
        ),
        Figure(
            name=f"figure-{number}e",
            title="Processors used by the jobs of the workload over time",
            x_label="time since the first submission (s)",
            y_label=f"used processors (of {processors})",
            series=timelines("used_over_time"),
            caption=f"Mean over the repetitions and over intervals of 1/{BINS} of the axis. {HIDDEN}",
        ),
        Figure(
            name=f"figure-{number}f",
            title="Malleability messages sent since the first submission",
            x_label="time since the first submission (s)",
            y_label="messages to grow or shrink",
            series=timelines("messages_over_time"),
            caption=f"Mean over the repetitions. {HIDDEN}",
        ),
    ]


def _distributions(records: Mapping[tuple[str, str], Sequence[Record]], what: str) -> list[Series]:
    """Return cumulative distributions in per cent, thinned for a figure."""
    series = []
    for combined, some in records.items():
        values = sorted(value for record in some for value in record.jobs[what])
        count = len(values)
        picks = sorted({round(part * (count - 1) / CDF_POINTS) for part in range(CDF_POINTS + 1)})
        x = [values[0], *(values[pick] for pick in picks)]
        y = [0.0, *(100.0 * (pick + 1) / count for pick in picks)]
        series.append(Series(label=combination(*combined), x=x, y=y))
    return series


def mean_timeline(label: str, axis: Sequence[float], records: Sequence[Record], what: str) -> Series:
    """Return the mean of a timeline over records, from 0 on."""
    columns = zip(*(getattr(record, what) for record in records), strict=True)
    return Series(label=label, x=[0.0, *axis], y=[0.0, *map(fmean, columns)])


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(records: Records) -> list[Table]:
    """Return the tables of all combinations with baselines, and of the paper's four under other conditions."""
    measures = (AVERAGE, MAXIMUM, EXECUTION, WAIT, RESPONSE, USED, MESSAGES)
    policies = Table(
        name="policies",
        title="Policies and baselines",
        columns=["policy", "workload", *(measure.name for measure in measures)],
        rows=[
            [NAMES.get(policy, policy), load, *(records.show(Variant(policy, load), measure) for measure in measures)]
            for load in records.workloads
            for policy in (*records.policies, RIGID)
        ],
        caption="EGS, repeated (`egs-repeated`): shares over the jobs that can change, and shrink rounds until the "
        "value is reached. It, equipartition and folding are not in the paper; rigid: the same jobs on 2 processors.",
    )
    others = Table(
        name="conditions",
        title="The same under other conditions",
        columns=["conditions", "combination", "mean execution (s)", "mean wait (s)", "mean response (s)", "messages"],
        rows=[
            [
                where,
                combination(policy, load),
                *(records.show(Variant(policy, load, where), measure) for measure in (EXECUTION, WAIT, RESPONSE)),
                records.show(Variant(policy, load, where), MESSAGES, 0),
            ]
            for where in (AS_SET, *(one.name for one in OTHER_CONDITIONS))
            for load in records.workloads
            for policy in POLICIES
        ],
        caption="Local users are seen every 10 s where there are any.",
    )
    return [policies, others]


# ---- findings on both experiments -----------------------------------------------------------------------------------


def common_findings(records: Records) -> list[Finding]:
    """Judge the claims that malleability shortens execution and raises utilization."""
    return [
        _against_rigid(records, EXECUTION, "Malleability shortens the execution of jobs.", " s", shorter=True),
        _against_rigid(
            records, USED, "Malleability raises the utilization of the platform.", " processors used", shorter=False
        ),
    ]


def _against_rigid(records: Records, measure: Measure[Record], claim: str, unit: str, *, shorter: bool) -> Finding:
    """Compare each combination with the same jobs made rigid, seed by seed."""
    said, margins, holds = [], [], True
    for workload in records.workloads:
        rigid = Variant(RIGID, workload)
        said.append(f"{workload} rigid: {records.show(rigid, measure)}{unit}")
        for policy in POLICIES:
            malleable = Variant(policy, workload)
            change = records.difference(measure, malleable, rigid)
            holds &= change.high < 0 if shorter else change.low > 0
            said.append(f"{combination(policy, workload)}: {records.show(malleable, measure)}{unit}")
            margins.append(100.0 * change.mean / records.estimate(rigid, measure).mean)
    margin = f"{min(margins):+.0f} % to {max(margins):+.0f} % against rigid jobs of 2 processors"
    return Finding(claim=claim, outcome="; ".join(said) + ".", holds=holds, margin=margin)


def compared_result(
    records: Records, number: int, findings: Sequence[Finding] = (), notes: Sequence[str] = ()
) -> Result:
    """Return the result of an experiment, whose figure in the paper is ``number``; ``findings``, ``notes``: its own."""
    shown = {
        (policy, workload): records.outcomes[Variant(policy, workload)]
        for policy in POLICIES
        for workload in records.workloads
    }
    axes = {workload: time_axis(workload) for workload in records.workloads}
    return Result(
        findings=(*common_findings(records), *findings),
        figures=figures(number, shown, processors=DAS3.processors, axes=axes),
        tables=tables(records),
        notes=(*NOTES, *notes),
    )


# -- koala-pra -----------------------------------------------------------------------------------------------
# Precedence to running applications: figure 7.

PRA_WORKLOADS = ("Wm", "Wmr")


def run_pra(options: Options) -> Result:
    """Run the experiment koala-pra."""
    return compared_result(Records(options, Approach.PRA, PRA_WORKLOADS), 7)


PRA_EXPERIMENT = Experiment(
    name="koala-pra",
    summary="Malleable jobs on DAS-3, running jobs first: FPSMA and EGS with the workloads Wm and Wmr (figure 7).",
    paper=PAPER,
    run=run_pra,
    seeds=10,
    settings=SETTINGS,
)


# -- koala-pwa -----------------------------------------------------------------------------------------------
# Precedence to waiting applications: figure 8.

PWA_WORKLOADS = ("W'm", "W'mr")
NEARLY = 0.10
"""Execution times are called nearly the same when the longest exceeds the shortest by at most this share."""
FAR = 0.25
"""A response time is called far worse when it exceeds all others by at least this share."""


EGS, FPSMA = Variant("egs", "W'm"), Variant("fpsma", "W'm")


def run_pwa(options: Options) -> Result:
    """Run the experiment koala-pwa."""
    records = Records(options, Approach.PWA, PWA_WORKLOADS)
    findings = (
        _same_execution(records, EXECUTION, "all jobs"),
        _same_execution(records, MALLEABLE_EXECUTION, "the malleable jobs alone"),
        _worse_response(records),
    )
    near = f"Nearly the same is taken to mean within {100 * NEARLY:.0f} %, far worse by {100 * FAR:.0f} % at least."
    return compared_result(records, 8, findings, [near])


def _same_execution(records: Records, measure: Measure[Record], whose: str) -> Finding:
    """Judge the claim that the four combinations have the same execution times."""
    combined = [Variant(policy, workload) for workload in PWA_WORKLOADS for policy in POLICIES]
    means = [records.estimate(one, measure).mean for one in combined]
    excess = max(means) / min(means) - 1.0
    said = (f"{combination(one.policy, one.workload)}: {records.show(one, measure)} s" for one in combined)
    return Finding(
        claim=f"The execution times of the four combinations are nearly the same (taken over {whose}).",
        outcome="; ".join(said) + ".",
        holds=excess <= NEARLY,
        margin=f"the longest mean exceeds the shortest by {100.0 * excess:.0f} %",
    )


def _worse_response(records: Records) -> Finding:
    """Judge the claim that EGS with W'm has far worse response times, because jobs wait longer."""
    combined = [Variant(policy, workload) for policy in POLICIES for workload in PWA_WORKLOADS]
    others = max(records.estimate(one, RESPONSE).mean for one in combined if one != EGS)
    excess = records.estimate(EGS, RESPONSE).mean / others - 1.0
    more_wait = records.difference(WAIT, EGS, FPSMA)
    more_response = records.difference(RESPONSE, EGS, FPSMA)
    under = {where.name: _against_fpsma(records, where.name) for where in OTHER_CONDITIONS}
    worst = max(under, key=under.__getitem__)
    return Finding(
        claim="EGS with W'm has far worse response times than the other three, because its jobs wait longer.",
        outcome=f"EGS/W'm: {records.show(EGS, RESPONSE)} s; the largest of the others: {others:.1f} s. Against "
        f"FPSMA/W'm it responds {show(more_response)} s later, of which {show(more_wait)} s are longer waits. Under "
        "the other conditions of the table below, the mean response of EGS/W'm comes out worst against FPSMA/W'm with "
        f"{worst}: {100.0 * under[worst]:+.0f} %.",
        holds=excess >= FAR and more_wait.low > 0.5 * more_response.mean,
        margin=f"{100.0 * excess:+.0f} % against the largest of the others",
    )


def _against_fpsma(records: Records, where: str) -> float:
    """Return the relative excess of EGS's response time over FPSMA's with W'm under some conditions."""
    egs, fpsma = (records.estimate(one._replace(conditions=where), RESPONSE).mean for one in (EGS, FPSMA))
    return egs / fpsma - 1.0


PWA_EXPERIMENT = Experiment(
    name="koala-pwa",
    summary="Malleable jobs on DAS-3, waiting jobs first: FPSMA and EGS with the workloads W'm and W'mr (figure 8).",
    paper=PAPER,
    run=run_pwa,
    seeds=10,
    settings=SETTINGS,
)
