# SPDX-License-Identifier: Apache-2.0
"""What koala-pra and koala-pwa have in common: cases, the six figures, tables, findings, settings (TR-0092)."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from koala_adapter.errors import SimulationError
from koala_adapter.simulation.confidence import difference, estimate
from koala_adapter.simulation.experiments.framework import ALSO_POLICIES, Figure, Finding, Series, Setting, Table
from koala_adapter.simulation.malleable_runs import BINS, RIGID, Case, Conditions, Record, run_case, time_axis
from koala_adapter.simulation.platform import DAS3

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koala_adapter.scheduler.malleable.approaches import Approach
    from koala_adapter.simulation.confidence import Estimate
    from koala_adapter.simulation.experiments.framework import Options

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
    """Return the conditions that the settings ask for. Raises SimulationError for a value that is not allowed."""
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
    """The records of the paper's combinations, as the six figures show them."""

    @property
    def workloads(self) -> Sequence[str]:
        """Their names."""

    @property
    def processors(self) -> int:
        """Of all clusters."""

    def axis(self, workload: str) -> Sequence[float]:
        """Return the time axis of the timelines with a workload."""

    def of(self, policy: str, workload: str) -> Sequence[Record]:
        """Return the records of a combination in order of the seeds."""


class Records:
    """The records of all runs, by what was run."""

    processors = sum(one.processors for one in DAS3.clusters)

    def __init__(self, options: Options, approach: Approach, workloads: Sequence[str]) -> None:
        """Run everything: the paper's combinations in detail, baselines, rigid jobs, and other conditions."""
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
        """See ShownRecords."""
        return time_axis(workload)

    def of(self, policy: str, workload: str, conditions: Conditions | None = None) -> list[Record]:
        """Return the records of a combination in order of the seeds."""
        return self._found[(conditions or self.conditions).name, policy, workload]

    def values(self, policy: str, workload: str, what: str, conditions: Conditions | None = None) -> list[float]:
        """Return one property of a combination for each seed."""
        return [float(getattr(record, what)) for record in self.of(policy, workload, conditions)]

    def estimate(self, policy: str, workload: str, what: str, conditions: Conditions | None = None) -> Estimate:
        """Return its mean over the seeds."""
        return estimate(self.values(policy, workload, what, conditions))


def combination(policy: str, workload: str) -> str:
    """Return what figures and tables call a combination."""
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
    """Return the points of a cumulative distribution in per cent, as many as a figure can show."""
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
    """Return all combinations with the baselines, and the paper's four under other conditions."""
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
    """Compare each combination with the same jobs as rigid ones, seed by seed."""
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
