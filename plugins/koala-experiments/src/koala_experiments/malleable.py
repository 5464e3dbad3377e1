# SPDX-License-Identifier: Apache-2.0
"""Experiments koala-pra and koala-pwa: KOALA's malleable jobs on a simulated DAS-3 (CoreGRID TR-0092).

Precedence to running applications (figure 7) and to waiting ones (figure 8). In this order: the workloads, one run,
what both experiments have in common, koala-pra, koala-pwa.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from koala_adapter.errors import SimulationError
from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Finding, Result, Table
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import FREE, ReconfigurationCost, SimulatedJob, ft, gadget2
from koala_adapter.simulation.multicluster import Settings, simulate
from koala_adapter.simulation.platform import DAS3
from koala_experiments.framework import ALSO_POLICIES, Experiment, Options, Setting, difference, estimate

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
BINS = 120
"""Parts into which the time axis of the timelines is divided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Costs and background load of a run."""

    name: str = "as set"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run of the experiment: policy, workload, conditions and seed."""

    approach: Approach
    malleability: str
    """Name of a policy, or `RIGID`."""
    workload: str
    seed: int
    conditions: Conditions = field(default_factory=Conditions)
    detailed: bool = False
    """Whether the values of all jobs and the timelines are wanted."""
    policies: Policies = OWN
    """Those that there are."""

    @property
    def combination(self) -> str:
        """Policy and workload as in the figures' legends."""
        return f"{self.malleability}/{self.workload}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Measured values of a run. Times in seconds; means over all jobs unless said."""

    case: Case
    average_processors: float
    maximum_processors: float
    execution: float
    malleable_execution: float
    """Of the malleable jobs alone."""
    wait: float
    response: float
    used: float
    """Mean processors of managed jobs while jobs were submitted."""
    makespan: float
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


def run_case(case: Case) -> Record:
    """Simulate a case; return its record."""
    where = case.conditions
    rigid = case.malleability == RIGID
    cost = ReconfigurationCost(fixed=where.cost)
    jobs = koala_workload(WORKLOADS[case.workload], case.seed, cost=cost, malleable=not rigid)
    clusters = tuple(one.model_copy(update={"threshold": where.threshold}) for one in DAS3.clusters)
    platform = DAS3.model_copy(update={"clusters": clusters}).with_background(where.background)
    settings = Settings(
        approach=Approach.NONE if rigid else case.approach,
        malleability="fpsma" if rigid else case.malleability,
        poll_interval=where.poll,
        placeholder_delay=where.delay,
        seed=case.seed,
        policies=case.policies,
    )
    outcome = simulate(platform, jobs, settings)
    if len(outcome.jobs) < len(jobs):
        message = f"{len(jobs) - len(outcome.jobs)} jobs of {case.combination} can never run under these conditions"
        raise SimulationError(message, hint="set a lower threshold")
    return record_of(case, outcome, jobs[-1].submitted_at, time_axis(case.workload))


def record_of(case: Case, outcome: Outcome, last_submission: float, axis: Sequence[float]) -> Record:
    """Return the record of an outcome, simulated or live; ``axis``: of the timelines."""
    results = sorted(outcome.jobs, key=lambda one: one.job.number)
    malleable = [one.execution for one in results if one.job.malleable]
    columns = {
        "average_processors": [one.average_processors for one in results],
        "maximum_processors": [float(one.maximum_processors) for one in results],
        "execution": [one.execution for one in results],
        "response": [one.response for one in results],
    }
    return Record(
        case=case,
        **{name: fmean(column) for name, column in columns.items()},
        malleable_execution=fmean(malleable) if malleable else fmean(columns["execution"]),
        wait=fmean(one.wait for one in results),
        used=mean_used(outcome.used, 0.0, last_submission),
        makespan=outcome.ended_at,
        messages=outcome.grow_messages + outcome.shrink_messages,
        jobs=columns if case.detailed else {},
        used_over_time=used_over_time(outcome.used, axis) if case.detailed else (),
        messages_over_time=_messages_over_time(outcome, axis) if case.detailed else (),
    )


def mean_used(used: Sequence[tuple[float, int, int]], begin: float, end: float) -> float:
    """Return the mean number of managed processors between two times."""
    area = 0.0
    for index, (since, managed, _) in enumerate(used):
        until = used[index + 1][0] if index + 1 < len(used) else end
        area += managed * max(0.0, min(until, end) - max(since, begin))
    return area / (end - begin)


def used_over_time(used: Sequence[tuple[float, int, int]], axis: Sequence[float]) -> list[float]:
    """Return the mean number of managed processors in each part of a time axis."""
    means = []
    index, begin = 0, 0.0
    for end in axis:
        area, at = 0.0, begin
        while index < len(used) and used[index][0] <= end:
            area += (used[index - 1][1] if index else 0) * (used[index][0] - at)
            at = used[index][0]
            index += 1
        area += (used[index - 1][1] if index else 0) * (end - at)
        means.append(area / (end - begin))
        begin = end
    return means


def _messages_over_time(outcome: Outcome, axis: Sequence[float]) -> list[float]:
    sums, total, index = [], 0, 0
    for end in axis:
        while index < len(outcome.messages) and outcome.messages[index][0] <= end:
            total += outcome.messages[index][1] + outcome.messages[index][2]
            index += 1
        sums.append(float(total))
    return sums


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
    Setting(name="background", default="0", meaning="share of each cluster that local users ask for, 0 to 0.95"),
    Setting(name="threshold", default="0", meaning="processors of each cluster left to local users, 0 to 30"),
    Setting(name="delay", default="0", meaning="seconds until placeholders are held, 0 to 3600"),
    Setting(name="cost", default="0", meaning="seconds for which a job stands still when its size changes, 0 to 3600"),
    Setting(name="poll", default="0", meaning="seconds between two looks at local users (0: seen at once), 0 to 3600"),
)
LIMITS = {"background": 0.95, "threshold": 30.0, "delay": 3600.0, "cost": 3600.0, "poll": 3600.0}

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
    """Return the conditions given by settings. Raises SimulationError for an invalid value."""
    values = {}
    for name, most in LIMITS.items():
        text = options.settings[name]
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise SimulationError(f"setting {name}: found {text}, allowed is a number from 0 to {most:g}")
        values[name] = value
    return Conditions(
        background=values["background"],
        threshold=int(values["threshold"]),
        delay=values["delay"],
        cost=values["cost"],
        poll=values["poll"],
    )


class ShownRecords(Protocol):
    """Records of the paper's combinations for the six figures (protocol)."""

    @property
    def workloads(self) -> Sequence[str]:
        """Names of the workloads."""

    @property
    def processors(self) -> int:
        """Processors of all clusters together."""

    def axis(self, workload: str) -> Sequence[float]:
        """Return the time axis of the timelines with a workload."""

    def of(self, policy: str, workload: str) -> Sequence[Record]:
        """Return the records of a combination in order of the seeds."""


class Records:
    """Records of all simulated runs."""

    processors = sum(one.processors for one in DAS3.clusters)

    def __init__(self, options: Options, approach: Approach, workloads: Sequence[str]) -> None:
        """Simulate the paper's combinations, baselines, rigid jobs and other conditions."""
        self.workloads = workloads
        self.policies = (
            *POLICIES,
            *BASELINES,
            *options.also(options.policies.malleability_names, (*POLICIES, *BASELINES)),
        )
        """All that are compared under the conditions that are set."""
        conditions = conditions_of(options)
        cases = [
            Case(
                approach=approach,
                malleability=policy,
                workload=workload,
                seed=seed,
                conditions=where,
                detailed=where is conditions and policy in POLICIES,
                policies=options.policies,
            )
            for where in (conditions, *OTHER_CONDITIONS)
            for policy in ((*self.policies, RIGID) if where is conditions else POLICIES)
            for workload in workloads
            for seed in options.all_seeds
        ]
        self._found: dict[tuple[str, str, str], list[Record]] = {}
        for record in options.map(run_case, cases):
            case = record.case
            self._found.setdefault((case.conditions.name, case.malleability, case.workload), []).append(record)
        self.conditions = conditions

    def axis(self, workload: str) -> Sequence[float]:
        """Return the time axis of the timelines with a workload."""
        return time_axis(workload)

    def of(self, policy: str, workload: str, conditions: Conditions | None = None) -> list[Record]:
        """Return the records of a combination in order of the seeds."""
        return self._found[(conditions or self.conditions).name, policy, workload]

    def values(self, policy: str, workload: str, what: str, conditions: Conditions | None = None) -> list[float]:
        """Return a property of a combination for each seed."""
        return [float(getattr(record, what)) for record in self.of(policy, workload, conditions)]

    def estimate(self, policy: str, workload: str, what: str, conditions: Conditions | None = None) -> Estimate:
        """Return a property's estimate over the seeds."""
        return estimate(self.values(policy, workload, what, conditions))


def combination(policy: str, workload: str) -> str:
    """Return the name of a combination in figures and tables."""
    return f"{NAMES[policy]}/{workload}"


def show(value: Estimate, digits: int = 1) -> str:
    """Return a mean with its confidence interval."""
    spread = f" ± {value.half_width:.{digits}f}" if value.repetitions > 1 else ""
    return f"{value.mean:.{digits}f}{spread}"


# ---- figures --------------------------------------------------------------------------------------------------------


def figures(records: ShownRecords, number: int) -> list[Figure]:
    """Return the six parts of figure 7 or 8."""
    distributions = (
        ("a", "average_processors", "Average number of processors of a job", "processors (mean over the execution)"),
        ("b", "maximum_processors", "Maximum number of processors of a job", "processors"),
        ("c", "execution", "Execution time of a job", "execution time (s)"),
        ("d", "response", "Response time of a job", "response time (s)"),
    )
    found = [_distribution(records, f"figure-{number}{letter}", *rest) for letter, *rest in distributions]
    found.append(
        Figure(
            name=f"figure-{number}e",
            title="Processors used by the jobs of the workload over time",
            x_label="time since the first submission (s)",
            y_label=f"used processors (of {records.processors})",
            series=_timelines(records, "used_over_time"),
            caption=f"Mean over the repetitions and over intervals of 1/{BINS} of the axis. {HIDDEN}",
        )
    )
    found.append(
        Figure(
            name=f"figure-{number}f",
            title="Malleability messages sent since the first submission",
            x_label="time since the first submission (s)",
            y_label="messages to grow or shrink",
            series=_timelines(records, "messages_over_time"),
            caption=f"Mean over the repetitions. {HIDDEN}",
        )
    )
    return found


def _distribution(records: ShownRecords, name: str, what: str, title: str, x_label: str) -> Figure:
    series = []
    for policy in POLICIES:
        for workload in records.workloads:
            values = sorted(value for record in records.of(policy, workload) for value in record.jobs[what])
            x, y = _cumulative(values)
            series.append(Series(label=combination(policy, workload), x=x, y=y))
    caption = f"Cumulative over the jobs of all repetitions. {HIDDEN}"
    y_label = "jobs (%) with at most this"
    return Figure(
        name=name, title=title, x_label=x_label, y_label=y_label, series=series, kind="step", caption=caption,
        y_range=(0.0, 102.0),
    )  # fmt: skip


def _cumulative(values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return a cumulative distribution in per cent, thinned for a figure."""
    count = len(values)
    picks = sorted({round(part * (count - 1) / CDF_POINTS) for part in range(CDF_POINTS + 1)})
    x = [values[0], *(values[pick] for pick in picks)]
    y = [0.0, *(100.0 * (pick + 1) / count for pick in picks)]
    return x, y


def _timelines(records: ShownRecords, what: str) -> list[Series]:
    series = []
    for policy in POLICIES:
        for workload in records.workloads:
            columns = zip(*(getattr(record, what) for record in records.of(policy, workload)), strict=True)
            means = [fmean(column) for column in columns]
            series.append(
                Series(label=combination(policy, workload), x=[0.0, *records.axis(workload)], y=[0.0, *means])
            )
    return series


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(records: Records) -> list[Table]:
    """Return the tables of all combinations with baselines, and of the paper's four under other conditions."""
    columns = (
        ("average_processors", "mean of average processors"),
        ("maximum_processors", "mean of maximum processors"),
        ("execution", "mean execution time (s)"),
        ("wait", "mean wait (s)"),
        ("response", "mean response time (s)"),
        ("used", "mean used processors"),
        ("messages", "messages"),
    )
    rows = [
        [NAMES.get(policy, policy), workload, *(show(records.estimate(policy, workload, what)) for what, _ in columns)]
        for workload in records.workloads
        for policy in (*records.policies, RIGID)
    ]
    headings = ["policy", "workload", *(heading for _, heading in columns)]
    caption = (
        "EGS, repeated (`egs-repeated`): shares over the jobs that can change, and shrink rounds until the value is "
        "reached. It, equipartition and folding are not in the paper; rigid: the same jobs on 2 processors."
    )
    return [
        Table(name="policies", title="Policies and baselines", columns=headings, rows=rows, caption=caption),
        _conditions_table(records),
    ]


def _conditions_table(records: Records) -> Table:
    rows = [
        [
            "as set" if where is records.conditions else where.name,
            combination(policy, workload),
            *(show(records.estimate(policy, workload, what, where)) for what in ("execution", "wait", "response")),
            show(records.estimate(policy, workload, "messages", where), 0),
        ]
        for where in (records.conditions, *OTHER_CONDITIONS)
        for workload in records.workloads
        for policy in POLICIES
    ]
    return Table(
        name="conditions",
        title="The same under other conditions",
        columns=[
            "conditions", "combination", "mean execution (s)", "mean wait (s)", "mean response (s)", "messages",
        ],
        rows=rows,
        caption="Local users are seen every 10 s where there are any.",
    )  # fmt: skip


# ---- findings on both experiments -----------------------------------------------------------------------------------


def shorter_execution(records: Records) -> Finding:
    """Judge the claim that malleability shortens execution."""
    return _against_rigid(records, "execution", "Malleability shortens the execution of jobs.", " s", shorter=True)


def higher_utilization(records: Records) -> Finding:
    """Judge the claim that malleability raises utilization."""
    claim = "Malleability raises the utilization of the platform."
    return _against_rigid(records, "used", claim, " processors used", shorter=False)


def _against_rigid(records: Records, what: str, claim: str, unit: str, *, shorter: bool) -> Finding:
    """Compare each combination with the same jobs made rigid, seed by seed."""
    said, margins, holds = [], [], True
    for workload in records.workloads:
        rigid = records.values(RIGID, workload, what)
        said.append(f"{workload} rigid: {show(estimate(rigid))}{unit}")
        for policy in POLICIES:
            values = records.values(policy, workload, what)
            change = difference(values, rigid)
            holds &= change.high < 0 if shorter else change.low > 0
            said.append(f"{combination(policy, workload)}: {show(estimate(values))}{unit}")
            margins.append(100.0 * change.mean / fmean(rigid))
    margin = f"{min(margins):+.0f} % to {max(margins):+.0f} % against rigid jobs of 2 processors"
    return Finding(claim=claim, outcome="; ".join(said) + ".", holds=holds, margin=margin)


# -- koala-pra -----------------------------------------------------------------------------------------------
# Precedence to running applications: figure 7.

PRA_WORKLOADS = ("Wm", "Wmr")


def run_pra(options: Options) -> Result:
    """Run the experiment koala-pra."""
    records = Records(options, Approach.PRA, PRA_WORKLOADS)
    return Result(
        findings=(shorter_execution(records), higher_utilization(records)),
        figures=figures(records, 7),
        tables=tables(records),
        notes=NOTES,
    )


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


def run_pwa(options: Options) -> Result:
    """Run the experiment koala-pwa."""
    records = Records(options, Approach.PWA, PWA_WORKLOADS)
    return Result(
        findings=(
            shorter_execution(records),
            higher_utilization(records),
            _same_execution(records, "execution", "all jobs"),
            _same_execution(records, "malleable_execution", "the malleable jobs alone"),
            _worse_response(records),
        ),
        figures=figures(records, 8),
        tables=tables(records),
        notes=(
            *NOTES,
            f"Nearly the same is taken to mean within {100 * NEARLY:.0f} %, far worse by {100 * FAR:.0f} % at least.",
        ),
    )


def _same_execution(records: Records, what: str, whose: str) -> Finding:
    """Judge the claim that the four combinations have the same execution times."""
    means = {
        combination(policy, workload): records.estimate(policy, workload, what)
        for workload in PWA_WORKLOADS
        for policy in POLICIES
    }
    longest, shortest = (pick(one.mean for one in means.values()) for pick in (max, min))
    return Finding(
        claim=f"The execution times of the four combinations are nearly the same (taken over {whose}).",
        outcome="; ".join(f"{name}: {show(one)} s" for name, one in means.items()) + ".",
        holds=longest / shortest - 1.0 <= NEARLY,
        margin=f"the longest mean exceeds the shortest by {100.0 * (longest / shortest - 1.0):.0f} %",
    )


def _worse_response(records: Records) -> Finding:
    """Judge the claim that EGS with W'm has far worse response times, because jobs wait longer."""
    excess, others = _excess(records, None)
    more_wait = difference(records.values("egs", "W'm", "wait"), records.values("fpsma", "W'm", "wait"))
    more_response = difference(records.values("egs", "W'm", "response"), records.values("fpsma", "W'm", "response"))
    egs = records.estimate("egs", "W'm", "response")
    worst = max(OTHER_CONDITIONS, key=lambda where: _against_fpsma(records, where))
    return Finding(
        claim="EGS with W'm has far worse response times than the other three, because its jobs wait longer.",
        outcome=f"EGS/W'm: {show(egs)} s; the largest of the others: {others:.1f} s. Against FPSMA/W'm it responds "
        f"{show(more_response)} s later, of which {show(more_wait)} s are longer waits. Under the other conditions of "
        f"the table below, the mean response of EGS/W'm comes out worst against FPSMA/W'm with {worst.name}: "
        f"{100.0 * _against_fpsma(records, worst):+.0f} %.",
        holds=excess >= FAR and more_wait.low > 0.5 * more_response.mean,
        margin=f"{100.0 * excess:+.0f} % against the largest of the others",
    )


def _excess(records: Records, where: Conditions | None) -> tuple[float, float]:
    """Return the relative excess of EGS's mean response time with W'm over the largest of the others, and that one."""
    others = max(
        records.estimate(policy, workload, "response", where).mean
        for policy in POLICIES
        for workload in PWA_WORKLOADS
        if (policy, workload) != ("egs", "W'm")
    )
    return records.estimate("egs", "W'm", "response", where).mean / others - 1.0, others


def _against_fpsma(records: Records, where: Conditions) -> float:
    """Return the relative excess of EGS's response time over FPSMA's with W'm."""
    egs, fpsma = (fmean(records.values(policy, "W'm", "response", where)) for policy in ("egs", "fpsma"))
    return egs / fpsma - 1.0


PWA_EXPERIMENT = Experiment(
    name="koala-pwa",
    summary="Malleable jobs on DAS-3, waiting jobs first: FPSMA and EGS with the workloads W'm and W'mr (figure 8).",
    paper=PAPER,
    run=run_pwa,
    seeds=10,
    settings=SETTINGS,
)
