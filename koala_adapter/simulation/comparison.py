# SPDX-License-Identifier: Apache-2.0
"""Several traces under several policies side by side: what `koala simulate` does, without its options.

One *case* is one trace or model under one policy. It is read and replayed in a process of its own, and what comes back
is small: totals, and curves for the figures. What is large, a line for each job, the process writes itself. First a
single case and its results, then all cases together and their page.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.report.figures import Figure, Series, thinned
from koala_adapter.report.page import Cell, Heading, Result, Table, csv_text, write_result
from koala_adapter.simulation import metrics
from koala_adapter.simulation import workload as swf
from koala_adapter.simulation.models import MODELS, PREFIX, make_model
from koala_adapter.simulation.parallel import ProgressBoard, ProgressMark, watched
from koala_adapter.simulation.platform import PLATFORMS, Platform, load_platform
from koala_adapter.simulation.replay import Policy, Replay, Site, replay, within_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.simulation.metrics import JobMetrics, Summary
    from koala_adapter.simulation.workload import Irregularity, Workload


# -- One case ------------------------------------------------------------------------------------------------
# Read, replayed and measured; its curves, figures and tables.

COARSE = 60
"""Points of the utilization over time: with more, several policies could not be told apart."""
FINE = 200
"""Points of the queue length over time."""
DAY = 86_400
WHOLE = 100.0
"""Percent."""
POINTS = 1500
"""Points of a distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One simulation of a comparison: trace, policy and platform."""

    source: str
    """Path of a trace, or ``model:NAME``."""
    name: str
    """What the trace is called in the results; no two traces have the same."""
    policy: Policy
    sites: Sequence[Site] = ()
    """Clusters; empty: one with ``processors``."""
    platform: str = ""
    """What the command line calls them: a file, or a platform by name."""
    processors: int | None = None
    """None: as the trace or the model says."""
    jobs: int | None = None
    """At most so many, the first ones."""
    seed: int = 0
    """Of a model, of local users and of failures."""
    kill_at_limit: bool = False
    dependencies: bool = False
    """Whether jobs wait for the preceding jobs that the trace names."""
    memory: bool = False
    """Whether the memory that jobs ask for counts."""
    out: Path | None = None
    """Directory for what there is of each job, and whether curves are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Data of one case's curves in the figures."""

    waits: tuple[Sequence[float], Sequence[float]]
    """Waits (s), and the percentage of jobs that do not wait longer."""
    utilization: tuple[Sequence[float], Sequence[float]]
    """Days since the first submission, and the percentage in use on average until the next."""
    queue: tuple[Sequence[float], Sequence[float]]
    """Days since the first submission, and the jobs that wait on average until the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of one case: summary, curves, and what was irregular about its trace."""

    trace: str
    policy: str
    processors: int
    skipped: int
    """Jobs left out."""
    irregularities: Sequence[Irregularity]
    summary: Summary
    counters: Mapping[str, int]
    """What the policy counted."""
    seconds: float
    """For the simulation, without reading the trace."""
    interrupted: bool
    curves: Curves | None

    @property
    def label(self) -> str:
        """Short name of the case, unique among those compared; used in file names."""
        return f"{self.trace}-{self.policy}"

    def to_json(self) -> dict[str, object]:
        """Return the case as `koala simulate --json` prints it."""
        return {
            "trace": self.trace,
            "policy": self.policy,
            "processors": self.processors,
            "skipped": self.skipped,
            **asdict(self.summary),
            "jobs_per_second": self.summary.jobs / self.seconds if self.seconds > 0 else None,
            "irregularities": [
                {"kind": one.kind, "count": one.count, "line": one.line, "left_out": one.left_out}
                for one in self.irregularities
            ],
            "extras": dict(self.counters),
            "interrupted": self.interrupted,
        }


def run_case(case: Case, mark: ProgressMark) -> Outcome:
    """Read and replay one case. Raises SimulationError, ConfigurationError, OSError."""
    trace = None if case.source.startswith(PREFIX) else read_source(case.source, whole=case.out is not None)
    if trace is None:
        workload = make_model(case.source, jobs=case.jobs, seed=case.seed, processors=_wanted(case))
    else:
        workload = swf.workload(
            trace, kill_at_limit=case.kill_at_limit, dependencies=case.dependencies, memory=case.memory
        )
    sites = case.sites or (Site(name=workload.name, processors=_processors(case, workload, trace)),)
    workload = within_memory(workload.fitting(max(site.processors for site in sites)), sites)
    if not len(workload):
        raise SimulationError(f"{case.source}: no job of it fits on the processors there are")
    workload = workload if case.jobs is None else workload.first(case.jobs)
    mark.expect(len(workload))
    begin = time.perf_counter()
    played = replay(workload, case.policy, sites, seed=case.seed, watch=mark)
    seconds = time.perf_counter() - begin
    mark(len(workload))
    measured = metrics.job_metrics(played)
    outcome = Outcome(
        trace=case.name,
        policy=case.policy.name,
        processors=played.processors,
        skipped=workload.skipped,
        irregularities=workload.irregularities,
        summary=metrics.summarized(measured, played.processors),
        counters=played.counters,
        seconds=seconds,
        interrupted=played.interrupted,
        curves=None if case.out is None else curves(measured, played.processors),
    )
    if case.out is not None:
        write_jobs(case.out, outcome, played, measured, trace)
    return outcome


def read_source(source: str, *, whole: bool = False) -> swf.Trace:
    """Read a trace, all of it or what a simulation needs. Raises SimulationError."""
    path = Path(source)
    try:
        return swf.read_trace(path, swf.ALL if whole else swf.NEEDED)
    except OSError as error:
        hint = f"give the path of a trace, or a model such as {PREFIX}lublin"
        raise SimulationError(f"{path}: {error.strerror or error}", hint=hint) from error


def _wanted(case: Case) -> int | None:
    return max(site.processors for site in case.sites) if case.sites else case.processors


def _processors(case: Case, workload: Workload, trace: swf.Trace | None) -> int:
    processors = case.processors or workload.processors
    if processors is None and trace is not None and trace.size_entry is not None:
        message = f"{case.source}: the header has no plain number of processors in {trace.size_entry[:60]!r}"
        raise SimulationError(message, hint="say it with --processors N, or correct the line, as in '; MaxProcs: 128'")
    if processors is None:
        message = f"{case.source}: no comment before the first job of this trace says how many processors there are"
        hint = "say it with --processors N, or add a line such as '; MaxProcs: 128' before the first job"
        raise SimulationError(message, hint=hint)
    return processors


def curves(measured: JobMetrics, processors: int) -> Curves:
    """Return what the figures show."""
    begin, end = min(measured.submits, default=0), max(measured.ends, default=0)
    used = metrics.used_processors(measured).binned(begin, end, COARSE)
    queue = metrics.queue_length(measured).binned(begin, end, FINE)
    waits, shares = metrics.cumulative(measured.waits)
    return Curves(
        waits=(thinned(waits, POINTS), thinned(shares, POINTS)),
        utilization=(_days(end - begin, COARSE), [100 * value / processors for value in used]),
        queue=(_days(end - begin, FINE), queue),
    )


def _days(duration: float, parts: int) -> list[float]:
    return [duration * number / parts / DAY for number in range(parts)]


def write_jobs(out: Path, outcome: Outcome, played: Replay, measured: JobMetrics, trace: swf.Trace | None) -> None:
    """Write a line for each job as CSV, and the schedule as a trace. Raises OSError."""
    for name in ("jobs", "traces"):
        (out / name).mkdir(parents=True, exist_ok=True)
    workload = played.workload
    heading = ("job", "processors", "submit_s", "start_s", "end_s", "wait_s", "run_s", "response_s", "slowdown")
    ids = [workload.ids[index] for index in measured.indices]
    names = [played.sites[played.places[index] if played.places else 0].name for index in measured.indices]
    rows = zip(
        ids, measured.sizes, measured.submits, measured.starts, measured.ends, measured.waits, measured.runs,
        measured.responses, measured.slowdowns, measured.bounded_slowdowns, names, strict=True,
    )  # fmt: skip
    text = csv_text([(*heading, "bounded_slowdown", "cluster"), *rows])
    (out / "jobs" / f"{outcome.label}.csv").write_text(text, encoding="utf-8")
    header = [] if trace is None else list(trace.header)
    header += [
        f"; Note: simulated with koala-adapter: policy {outcome.policy} on {outcome.processors} processors;",
        f";       {outcome.summary.jobs} jobs, {outcome.skipped} of the trace are left out",
    ]
    path = out / "traces" / f"{outcome.label}.swf.gz"
    swf.write_trace(path, header, result_columns(workload, measured, trace))


def result_columns(
    workload: Workload, measured: JobMetrics, trace: swf.Trace | None
) -> dict[swf.Field, Sequence[float]]:
    """Return the columns of a schedule as a trace: what the trace had, with the waits and run times simulated."""
    rows = [workload.rows[index] for index in measured.indices]
    columns: dict[swf.Field, Sequence[float]] = {}
    if trace is not None:
        columns |= {field: [column[row] for row in rows] for field, column in trace.columns.items()}
    else:
        columns[swf.Field.REQUESTED_PROCESSORS] = measured.sizes
        columns[swf.Field.REQUESTED_TIME] = [workload.estimates[index] for index in measured.indices]
        columns[swf.Field.STATUS] = [1] * len(rows)
    columns |= {
        swf.Field.JOB: [workload.ids[index] for index in measured.indices],
        swf.Field.SUBMITTED: measured.submits,
        swf.Field.WAIT: measured.waits,
        swf.Field.RUN: measured.runs,
        swf.Field.ALLOCATED: measured.sizes,
    }
    return columns


def result(outcomes: Sequence[Outcome]) -> Result:
    """Return figures and tables of several outcomes, as a page shows them; each trace has its own figures."""
    traces = list(dict.fromkeys(outcome.trace for outcome in outcomes))
    notes = []
    for trace in traces:
        one = next(outcome for outcome in outcomes if outcome.trace == trace)
        notes += [f"{trace}: {irregularity}." for irregularity in one.irregularities]
    notes += [
        f"{one.trace} under {one.policy} was interrupted: only {one.summary.jobs} jobs."
        for one in outcomes
        if one.interrupted
    ]
    figures = [
        figure for trace in traces for figure in _figures(trace, [one for one in outcomes if one.trace == trace])
    ]
    return Result(findings=(), figures=figures, tables=[_table(outcomes), _percentiles(outcomes)], notes=notes)


def _figures(trace: str, outcomes: Sequence[Outcome]) -> list[Figure]:
    known = [(one.policy, one.curves) for one in outcomes if one.curves is not None]
    # From the share of jobs that do not wait at all under any policy: on a quiet machine nearly all of them.
    span = WHOLE - min((some.waits[1][0] for _, some in known if some.waits[1]), default=0.0) or WHOLE
    days = "time since the first submission (days)"
    return [
        Figure(
            name=f"{trace}-wait",
            title=f"{trace}: distribution of the wait",
            x_label="wait (s)",
            y_label="jobs that wait no longer (%)",
            kind="step",
            x_log=True,
            y_range=(WHOLE - 1.05 * span, WHOLE + 0.05 * span),
            series=[
                Series(label=policy, x=[max(1.0, wait) for wait in some.waits[0]], y=some.waits[1])
                for policy, some in known
            ],
            caption="Waits below 1 s are drawn at 1 s.",
        ),
        Figure(
            name=f"{trace}-utilization",
            title=f"{trace}: processors in use",
            x_label=days,
            y_label="utilization (%)",
            kind="step",
            y_range=(0, 101),
            series=[Series(label=policy, x=some.utilization[0], y=some.utilization[1]) for policy, some in known],
            caption=f"Means over {COARSE} equal parts of the time.",
        ),
        Figure(
            name=f"{trace}-queue",
            title=f"{trace}: waiting jobs",
            x_label=days,
            y_label="waiting jobs",
            kind="step",
            series=[Series(label=policy, x=some.queue[0], y=some.queue[1]) for policy, some in known],
            caption=f"Means over {FINE} equal parts of the time.",
        ),
    ]


def _table(outcomes: Sequence[Outcome]) -> Table:
    columns = (
        "trace", "policy", "processors", "jobs", "left out", "mean wait (s)", "mean slowdown",
        "mean bounded slowdown (10 s)", "utilization (%)", "makespan (s)", "mean waiting jobs", "most waiting jobs",
    )  # fmt: skip
    rows = [
        (
            one.trace, one.policy, one.processors, one.summary.jobs, one.skipped, one.summary.mean_wait,
            one.summary.mean_slowdown, one.summary.mean_bounded_slowdown, 100 * one.summary.utilization,
            one.summary.makespan, one.summary.mean_queue, one.summary.largest_queue,
        )
        for one in outcomes
    ]  # fmt: skip
    return Table(name="summary", title="Totals", columns=columns, rows=rows)


def _percentiles(outcomes: Sequence[Outcome]) -> Table:
    names = [f"p{rank}" for rank in metrics.PERCENTILES]
    columns = ["trace", "policy"]
    columns += [f"wait {name} (s)" for name in names] + [f"bounded slowdown {name}" for name in names]
    rows: list[list[Cell]] = [
        [
            one.trace,
            one.policy,
            *(one.summary.percentiles["wait"][name] for name in names),
            *(one.summary.percentiles["bounded_slowdown"][name] for name in names),
        ]
        for one in outcomes
    ]
    caption = "The value that so many percent of the jobs do not exceed; p100 is the largest."
    return Table(name="percentiles", title="Percentiles", columns=columns, rows=rows, caption=caption)


# -- All cases -----------------------------------------------------------------------------------------------
# What they are called, their clusters, their outcomes, and the page.


def trace_names(traces: Iterable[str]) -> dict[str, str]:
    """Return what each trace is called, no two alike. Raises SimulationError for an unknown model."""
    names: dict[str, str] = {}
    for trace in dict.fromkeys(traces):
        name = trace.removeprefix(PREFIX)
        if trace.startswith(PREFIX):
            if name not in MODELS:
                hint = f"there is {', '.join(PREFIX + model for model in MODELS)}"
                raise SimulationError(f"there is no workload model {name}", hint=hint)
        else:
            name = Path(trace).name.removesuffix(".gz").removesuffix(".swf")
        number = sum(other == name or other.startswith(f"{name}~") for other in names.values())
        names[trace] = f"{name}~{number + 1}" if number else name
    return names


def find_platform(platform: str) -> Platform:
    """Return the platform of a file, or one by its name. Raises ConfigurationError, OSError."""
    path = Path(platform)
    return PLATFORMS[platform] if platform in PLATFORMS and not path.exists() else load_platform(path)


def sites_of(platform: Platform) -> tuple[Site, ...]:
    """Return the clusters of a platform as the sites of a replay."""
    return tuple(
        Site(
            name=cluster.name,
            processors=cluster.processors - cluster.threshold,
            speed=cluster.speed,
            cluster=cluster,
            local_users=platform.background_of(cluster),
            failures=platform.failures_of(cluster),
        )
        for cluster in platform.clusters
    )


def run_cases(cases: Sequence[Case], processes: int, show: Callable[[int, int, int | None], None]) -> list[Outcome]:
    """Run all cases in parallel; return their outcomes in order. After Ctrl-C: the outcomes so far.

    ``show`` hears how many jobs of a case, given by its index, have ended, and of how many, if that is known.
    """
    found: dict[int, Outcome] = {}

    def update(board: ProgressBoard) -> None:
        for index, (done, total) in enumerate(board.progress):
            show(index, done, total or None)

    for index, outcome in watched(run_case, cases, processes, update):
        found[index] = outcome
        if not outcome.interrupted:
            show(index, outcome.summary.jobs, outcome.summary.jobs)
        if outcome.interrupted and min(processes, len(cases)) == 1:
            break
    return [found[index] for index in sorted(found) if found[index].summary.jobs or not found[index].interrupted]


def heading(cases: Sequence[Case]) -> Heading:
    """Return what stands at the top of the page."""
    first = cases[0]
    policies = list(dict.fromkeys(case.policy.name for case in cases))
    sources = list(dict.fromkeys(case.source for case in cases))
    words = ["koala", "simulate", *sources, *(word for name in policies for word in ("--policy", name))]
    words += ["--platform", first.platform] if first.platform else []
    options = {"--processors": first.processors, "--jobs": first.jobs, "--seed": first.seed or None}
    words += [word for name, value in options.items() if value is not None for word in (name, str(value))]
    words += ["--metric", first.policy.metric] if first.policy.metric != "processors" else []
    words += ["--depth", str(first.policy.depth)] if first.policy.depth > 1 else []
    words += ["--kill-at-limit"] if first.kill_at_limit else []
    words += ["--dependencies"] if first.dependencies else []
    words += ["--memory"] if first.memory else []
    lead = f"{', '.join(dict.fromkeys(case.name for case in cases))} under {', '.join(policies)}."
    return Heading(title="Simulation", lead=lead, command=shlex.join([*words, "--out", "DIR"]))


def write_page(out: Path, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> Path:
    """Write page, figures and data of several outcomes; returns the page."""
    return write_result(out, heading(cases), result(outcomes))
