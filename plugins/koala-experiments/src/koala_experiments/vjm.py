# SPDX-License-Identifier: Apache-2.0
"""Experiments vjm-deadlock and vjm-selection: what virtual jobs gain for co-allocation (Xing 2009).

First the deadlock of two co-allocated jobs and how virtual jobs break it, then the selection of resources by waiting
history, and their reorganization.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component, Job, JobId, JobKind
from koala_adapter.report.figures import Figure, Series
from koala_adapter.report.page import Cell, Finding, Result, Table
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.simulation.placeholders import (
    Allocation,
    BatchSystem,
    QueuedJob,
    Rigid,
    SimulatedService,
    run_to_end,
    with_local_users,
)
from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel
from koala_adapter.simulation.world import FIRST, Engine
from koala_experiments.framework import (
    Comparison,
    Experiment,
    Measure,
    Options,
    Setting,
    estimate,
    mean_of,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# -- vjm-deadlock --------------------------------------------------------------------------------------------
# Deadlock between two co-allocated jobs: certain with direct submission, broken by virtual jobs.
#
# Clusters A and B have three nodes each; user 1 has priority on A, user 2 on B; at the same moment each submits a job
# of six nodes. Each gets one cluster and waits for the other. Each user has a co-allocator of his own, so none of them
# sees both jobs. Besides the two variants of the paper there is one in which placeholders are held for ever: it shows
# that it is the life cycle, and not the placeholder, that breaks the deadlock.

A, B = ClusterName("A"), ClusterName("B")
NODES = 3
USERS = ("user1", "user2")
HORIZON = 24 * 3600.0
"""Seconds after which a job that has not started is taken never to."""
DIRECT = "direct submission"
HELD_FOR_EVER = "virtual jobs without life cycle"
VIRTUAL = "virtual jobs"
DEADLOCK_VARIANTS = (DIRECT, HELD_FOR_EVER, VIRTUAL)


@dataclass(frozen=True, slots=True)
class DeadlockOutcome:
    """Times and outcomes of the two jobs."""

    launched: tuple[float | None, ...]
    """Seconds after the submission; None: never, within the horizon."""
    finished: tuple[float | None, ...]
    hand_backs: int
    bars: tuple[Allocation, ...]
    """Who had each node when; places 0 to 2 are on A, 3 to 5 on B."""


def simulate_deadlock(variant: str, seed: int, *, run: float, life: float) -> DeadlockOutcome:
    """Simulate two competing jobs.

    ``run``: seconds that each job runs. ``life``: of a placeholder, seconds, in the variant VIRTUAL.
    """
    engine = Engine()
    systems = [
        BatchSystem(engine, A, NODES, priorities={"user1": 1}),
        BatchSystem(engine, B, NODES, priorities={"user2": 1}),
    ]
    for system in systems:
        system.allocations = []
    if variant == DIRECT:
        return _direct(run, engine, systems)
    return _virtual(run, life if variant == VIRTUAL else 10 * HORIZON, seed, engine, systems)


# ---- direct submission ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Parts:
    """A job submitted as separate parts to batch systems, each of which waits on its nodes for the others."""

    user: str
    run: float
    engine: Engine
    jobs: list[QueuedJob]
    launched_at: float | None = None
    finished_at: float | None = None

    def started(self, _job: QueuedJob) -> None:
        """Record the start of a part; begin the work with the last one."""
        if self.launched_at is None and all(job.running for job in self.jobs):
            self.launched_at = self.engine.now
            self.engine.after(self.run, self.finish, rank=FIRST)

    def finish(self) -> None:
        """End all parts."""
        self.finished_at = self.engine.now
        for job in self.jobs:
            job.on_end = lambda _job, _reason: None


def _direct(run: float, engine: Engine, systems: Sequence[BatchSystem]) -> DeadlockOutcome:
    jobs = []
    for user in USERS:
        parts = _Parts(user, run, engine, [])
        for system in systems:
            piece = QueuedJob(user, NODES, 2 * HORIZON, parts.started, lambda _job, _reason: None)
            parts.jobs.append(piece)
            system.submit(piece)
        jobs.append(parts)
    engine.run(until=HORIZON)
    launched, finished = tuple(one.launched_at for one in jobs), tuple(one.finished_at for one in jobs)
    return DeadlockOutcome(launched, finished, 0, tuple(_deadlock_bars(systems, launched, finished)))


# ---- virtual jobs ---------------------------------------------------------------------------------------------------


def _virtual(run: float, life: float, seed: int, engine: Engine, systems: Sequence[BatchSystem]) -> DeadlockOutcome:
    clusters = [ClusterParameters(name=system.name) for system in systems]
    services = [
        SimulatedService(
            engine,
            systems,
            Parameters(instance=user, placeholder_life=life),
            clusters,
            program_of=lambda _record: Rigid(run),
            user=user,
            seed=seed,
        )
        for user in USERS
    ]
    engine.run(until=1.0)
    begin = engine.now
    for user, service in zip(USERS, services, strict=True):
        service.submit(_deadlock_job(user, seed, run, begin))
    run_to_end(engine, services, until=begin + HORIZON)
    marks = [next(iter(service.jobs.values())) for service in services]
    launched = tuple(None if one.launched_at is None else one.launched_at - begin for one in marks)
    finished = tuple(None if one.ended_at is None else one.ended_at - begin for one in marks)
    hand_backs = sum(record.hand_backs for service in services for record in service.state.jobs.values())
    return DeadlockOutcome(launched, finished, hand_backs, tuple(_deadlock_bars(systems, launched, finished, begin)))


def _deadlock_job(user: str, seed: int, run: float, now: float) -> Job:
    return Job(
        id=JobId(f"{user}-{seed}"),
        name=user,
        kind=JobKind.RIGID,
        components=tuple(
            Component(name=f"on-{name}", command=("program",), minimum=NODES, maximum=NODES, cluster=name)
            for name in (A, B)
        ),
        walltime=int(2 * run) + 1,
        user=user,
        submitted_at=now,
    )


def _deadlock_bars(
    systems: Sequence[BatchSystem],
    launched: Sequence[float | None],
    finished: Sequence[float | None],
    begin: float = 0.0,
) -> Iterator[Allocation]:
    """Yield the bars of all nodes, waiting and running apart; all times but ``begin`` are from that on."""
    spans = dict(zip(USERS, zip(launched, finished, strict=True), strict=True))
    for number, system in enumerate(systems):
        still = [
            Allocation(place=place, who=job.user, begins_at=job.started_at or 0.0, ends_at=begin + HORIZON)
            for place, job in system.running.items()
        ]
        for one in [*(system.allocations or ()), *still]:
            held, freed = one.begins_at - begin, one.ends_at - begin
            start, end = (HORIZON if at is None else at for at in spans[one.who])
            middle = min(max(start, held), freed)
            for who, since, until in (("waits", held, middle), ("runs", middle, min(end, freed))):
                if until > since:
                    yield Allocation(
                        place=number * NODES + one.place, who=f"{one.who} {who}", begins_at=since, ends_at=until
                    )


# ---- what came out --------------------------------------------------------------------------------------------------


def run_deadlock(options: Options) -> Result:
    """Run the experiment vjm-deadlock."""
    run_seconds, life = float(options.settings["run"]), float(options.settings["life"])
    simulation = partial(simulate_deadlock, run=run_seconds, life=life)
    outcomes = options.compare(simulation, DEADLOCK_VARIANTS).outcomes
    return Result(
        findings=_deadlock_findings(outcomes, run_seconds),
        figures=[_timeline(name, outcomes[name][0]) for name in (DIRECT, VIRTUAL)] + [_starts(outcomes[VIRTUAL])],
        tables=[_deadlock_table(outcomes)],
        notes=(
            (
                f"Simulated: two clusters of {NODES} nodes, strict order of priority in each; each job runs "
                f"{run_seconds:.0f} s; placeholder life {life:.0f} s, less a part that differs by instance and try; "
                "agents report 1 to 3 s after their placeholder starts; clusters are polled every 15 s."
            ),
            f"Never means: not within {HORIZON / 3600:.0f} simulated hours.",
            (
                "The paper's control center serves both users and re-assigns virtual jobs between them; here each has "
                "a service of his own, as the program runs for real, so the two know nothing of each other and the "
                "processors pass through the batch systems."
            ),
        ),
    )


def _never(outcomes: Sequence[DeadlockOutcome]) -> int:
    return sum(start is None for one in outcomes for start in one.launched)


def _deadlock_findings(outcomes: Mapping[str, Sequence[DeadlockOutcome]], run_seconds: float) -> list[Finding]:
    jobs = 2 * len(outcomes[DIRECT])
    virtual = [one for one in outcomes[VIRTUAL] if None not in one.finished]
    apart = [sorted(start for start in one.launched if start is not None) for one in virtual]
    gaps = [second - first for first, second in apart]
    ends = [max(end for end in one.finished if end is not None) for one in virtual]
    finish = estimate(ends) if ends else None
    said = (
        f"all {jobs} jobs finished; the later job began {min(gaps):.0f} s or more after the earlier one, which runs "
        f"{run_seconds:.0f} s; both were over after {finish.mean:.0f} ± {finish.half_width:.0f} s (95 %)"
        if finish is not None and len(virtual) == len(outcomes[VIRTUAL])
        else f"{_never(outcomes[VIRTUAL])} of {jobs} jobs never started"
    )
    return [
        Finding(
            claim="With the pieces submitted directly, neither job ever starts and both clusters are blocked.",
            outcome=f"{_never(outcomes[DIRECT])} of {jobs} jobs never started; all nodes were held and none was used",
            holds=_never(outcomes[DIRECT]) == jobs,
        ),
        Finding(
            claim="With virtual jobs both finish, one after the other.",
            outcome=said,
            holds=len(virtual) == len(outcomes[VIRTUAL]) and min(gaps) >= run_seconds,
            margin=f"the cost of the deadlock: {finish.mean - 2 * run_seconds:.0f} s beyond two runs" if finish else "",
        ),
        Finding(
            claim="It is the bounded life of virtual jobs that breaks the deadlock.",
            outcome=f"held for ever, {_never(outcomes[HELD_FOR_EVER])} of {jobs} jobs never started",
            holds=_never(outcomes[HELD_FOR_EVER]) == jobs and _never(outcomes[VIRTUAL]) == 0,
        ),
    ]


def _timeline(name: str, outcome: DeadlockOutcome) -> Figure:
    whos = [f"{user} {what}" for user in USERS for what in ("waits", "runs")]
    last = max((end for end in outcome.finished if end is not None), default=1800.0)
    shown = [bar for bar in outcome.bars if bar.begins_at < last]
    series = []
    for who in whos:
        bars = [bar for bar in shown if bar.who == who]
        series.append(
            Series(
                label=f"{who.replace('user', 'user ').replace('waits', 'holds and waits')}",
                x=[bar.begins_at / 60 for bar in bars],
                y=[bar.place for bar in bars],
                high=[min(bar.ends_at, last) / 60 for bar in bars],
            )
        )
    return Figure(
        name="timeline-direct" if name == DIRECT else "timeline-virtual",
        title=f"Who has which node: {name}",
        x_label="time since the submission (min)",
        y_label="node",
        series=[one for one in series if one.x],
        kind="timeline",
        categories=[f"{cluster}{number}" for cluster in (A, B) for number in range(1, NODES + 1)],
        caption="First seed." + (" It goes on like this for ever." if name == DIRECT else ""),
    )


def _starts(outcomes: Sequence[DeadlockOutcome]) -> Figure:
    finished = [[t for t in one.launched if t is not None] for one in outcomes if None not in one.launched]
    shares = [(index + 1) / len(finished) for index in range(len(finished))]
    return Figure(
        name="starts",
        title="When the two jobs start, with virtual jobs",
        x_label="time since the submission (s)",
        y_label="share of the repetitions",
        series=[
            Series(label="the first job", x=[0.0, *sorted(min(one) for one in finished)], y=[0.0, *shares]),
            Series(label="the second job", x=[0.0, *sorted(max(one) for one in finished)], y=[0.0, *shares]),
        ],
        kind="step",
        y_range=(0.0, 1.05),
    )


def _deadlock_table(outcomes: Mapping[str, Sequence[DeadlockOutcome]]) -> Table:
    rows: list[dict[str, Cell]] = []
    for variant, found in outcomes.items():
        starts = [sorted(t for t in one.launched if t is not None) for one in found if None not in one.launched]
        rows.append({
            "variant": variant,
            "jobs": 2 * len(found),
            "never started": _never(found),
            "first start (s)": mean_of([first for first, _ in starts]),
            "second start (s)": mean_of([second for _, second in starts]),
            "hand-backs per pair": fmean(one.hand_backs for one in found),
        })  # fmt: skip
    return table_of("variants", "Both jobs in each variant", rows, "Means over the seeds.")


DEADLOCK_EXPERIMENT = Experiment(
    name="vjm-deadlock",
    summary="Two jobs that each hold what the other needs: direct submission against virtual jobs.",
    paper="the virtual job model (Xing, Jilin University, 2009; Ding, Wei and others, 2007 to 2009)",
    run=run_deadlock,
    seeds=30,
    settings=(
        Setting(name="run", default="300", meaning="Seconds that each job runs.", least=1),
        Setting(name="life", default="900", meaning="Life of a placeholder that waits for others, seconds.", least=1),
    ),
)


# -- vjm-selection -------------------------------------------------------------------------------------------
# What resource selection by waiting history and resource reorganization gain.
#
# Clusters that differ in size and load serve their local users first come, first served. Co-allocated jobs come on top,
# through placeholders. Selection is compared with worst fit, which goes by the idle processors that it sees, and with
# cluster minimization, which shares with it that few clusters are used; each without reorganization, and with exchanges
# after which a job starts. All variants see the same local users and jobs.

HOUR = 3600.0
CLUSTERS = (("north", 64, 0.9), ("east", 48, 0.8), ("south", 40, 0.6), ("west", 32, 0.4))
"""Name, processors, and the share of them that local users ask for."""
MEAN_RUN, MEAN_SIZE = 1800.0, 8.0
"""Of the jobs of local users: seconds and processors."""
SIZES = (4, 8, 12)
"""Processors of a component."""
WARM_UP = 4 * HOUR
"""Local users are there for so long before the first job."""
WORST_FIT, SELECTION = "worst-fit", "waiting-history"
FEWEST = "cluster-minimization"
PLACEMENTS = (WORST_FIT, FEWEST, SELECTION)
OFF, STARTING = "no reorganization", "exchanges that start a job"
MODES = (OFF, STARTING)
SELECTION_VARIANTS = tuple((policy, mode) for policy in PLACEMENTS for mode in MODES)


@dataclass(frozen=True, slots=True)
class SelectionOutcome:
    """Measured values of one simulation."""

    waits: tuple[float, ...]
    """Co-allocation time of each job, seconds: from its submission until all its processors are held."""
    clusters: float | None
    """Mean number of clusters of a job; None when no job was started."""
    held: float | None
    """Processor-seconds held and not used, for each processor-second used; None when none was."""
    hand_backs: int
    exchanges: int
    unfinished: int


def simulate_selection(
    variant: tuple[str, str], seed: int, *, jobs: int, interval: float, life: float, load: float
) -> SelectionOutcome:
    """Simulate many jobs with a policy and a mode.

    ``interval``: mean seconds between two jobs. ``life``: of a placeholder, seconds. ``load``: by what the demand of
    the local users is multiplied.
    """
    policy, mode = variant
    engine = Engine()
    systems = []
    for name, processors, utilization in CLUSTERS:
        others = BackgroundLoad(utilization=min(1.0, utilization * load), mean_run=MEAN_RUN, mean_size=MEAN_SIZE)
        systems.append(with_local_users(engine, ClusterModel(name=name, nodes=processors), others, seed))
    chance = random.Random(f"{seed}/jobs")
    runs: dict[JobId, float] = {}
    service = SimulatedService(
        engine,
        systems,
        Parameters(placeholder_life=life, reorganize=mode != OFF, maximum_tries=1_000_000),
        [ClusterParameters(name=system.name) for system in systems],
        program_of=lambda record: Rigid(runs[record.job.id]),
        seed=seed,
    )
    at = WARM_UP
    for number in range(jobs):
        at += chance.expovariate(1.0 / interval)
        sizes = [chance.choice(SIZES) for _ in range(chance.choice((2, 2, 3)))]
        job = _selection_job(f"{number}", sizes, policy, at)
        runs[job.id] = chance.uniform(300.0, 1500.0)
        engine.at(at, partial(service.submit, job))
    engine.run(until=at + 1.0)
    run_to_end(engine, [service], until=at + 200 * HOUR)
    return _outcome(service, runs)


def _selection_job(name: str, sizes: Sequence[int], policy: str, at: float) -> Job:
    return Job(
        id=JobId(name),
        name=name,
        kind=JobKind.RIGID,
        components=tuple(
            Component(name=f"c{number}", command=("program",), minimum=size, maximum=size)
            for number, size in enumerate(sizes)
        ),
        walltime=1800,
        user="user",
        submitted_at=at,
        placement=policy,
    )


def _outcome(service: SimulatedService, runs: dict[JobId, float]) -> SelectionOutcome:
    started = {id_: one for id_, one in service.jobs.items() if one.co_allocation is not None}
    used = sum(runs[id_] * sum(one.clusters.values()) for id_, one in started.items())
    records = service.state.jobs.values()
    return SelectionOutcome(
        waits=tuple(one.co_allocation for one in started.values() if one.co_allocation is not None),
        clusters=mean_of([len(one.clusters) for one in started.values()]),
        held=(service.held_seconds - used) / used if used else None,
        hand_backs=sum(record.hand_backs for record in records),
        exchanges=sum(record.exchanges for record in records),
        unfinished=len(service.jobs) - len(started),
    )


# ---- what came out --------------------------------------------------------------------------------------------------

Outcomes = Comparison[tuple[str, str], SelectionOutcome]
WAIT = Measure[SelectionOutcome]("co-allocation time", lambda one: mean_of(one.waits))
HELD = Measure[SelectionOutcome]("held idle per used", lambda one: one.held)
USED_CLUSTERS = Measure[SelectionOutcome]("clusters per job", lambda one: one.clusters)
NEVER_BOTH = "in no repetition were jobs started under both"


def run_selection(options: Options) -> Result:
    """Run the experiment vjm-selection."""
    simulation = partial(
        simulate_selection,
        jobs=int(options.settings["jobs"]),
        interval=float(options.settings["interval"]),
        life=float(options.settings["life"]),
        load=float(options.settings["load"]),
    )
    return selection_result(options.compare(simulation, SELECTION_VARIANTS), _notes(options))


def selection_result(outcomes: Outcomes, notes: Sequence[str]) -> Result:
    """Return findings, figures and table of all variants."""
    return Result(
        findings=_selection_findings(outcomes),
        figures=(
            _distribution(outcomes),
            _selection_bars(
                outcomes,
                "means",
                "Mean co-allocation time",
                "mean co-allocation time (min)",
                WAIT.over(60),
                caption="The intervals are wide because the load differs between repetitions; the findings compare "
                "pairs.",
            ),
            _selection_bars(
                outcomes, "held-idle", "Processors held without use", "processor-seconds held idle per one used", HELD
            ),
        ),
        tables=(_selection_table(outcomes),),
        notes=notes,
    )


def _selection_findings(outcomes: Outcomes) -> list[Finding]:
    def compared(claim: str, before: tuple[str, str], after: tuple[str, str]) -> Finding:
        found = outcomes.paired(WAIT, before, after)
        if found is None:
            return Finding(claim=claim, outcome=NEVER_BOTH, holds=None)
        gain, base = found.gain, found.before
        change = f"{abs(100 * gain.mean / base):.0f} % {'shorter' if gain.mean >= 0 else 'longer'}" if base else ""
        return Finding(
            claim=claim,
            outcome=f"{base:.0f} s on average became {base - gain.mean:.0f} s, a gain of {gain.mean:.0f} ± "
            f"{gain.half_width:.0f} s (95 %, the same jobs and local users){found.cannot}",
            holds=found.holds,
            margin=change,
        )

    def waste(policy: str) -> Finding:
        claim = f"Reorganization wastes less of what is held ({policy}, {STARTING})."
        found = outcomes.paired(HELD, (policy, OFF), (policy, STARTING))
        if found is None:
            return Finding(claim=claim, outcome=NEVER_BOTH, holds=None)
        gain, base = found.gain, found.before
        return Finding(
            claim=claim,
            outcome=f"processor-seconds held idle for each one used: {base:.2f} without, {base - gain.mean:.2f} with "
            f"reorganization; difference {gain.mean:.3f} ± {gain.half_width:.3f} (95 %){found.cannot}",
            holds=found.holds,
            margin=f"{abs(100 * gain.mean / base):.0f} % {'less' if gain.mean >= 0 else 'more'}" if base else "",
        )

    selection = "Selection by waiting history shortens the co-allocation time, compared with"
    sooner = "lets jobs have their processors sooner than giving them back"
    exchanges = f"Reorganization by exchanges that start a job {sooner}"
    return [
        *(compared(f"{selection} worst fit ({mode}).", (WORST_FIT, mode), (SELECTION, mode)) for mode in MODES),
        compared(
            f"{selection} cluster minimization ({STARTING}; not a claim of the papers).",
            (FEWEST, STARTING),
            (SELECTION, STARTING),
        ),
        *(compared(f"{exchanges} ({policy}).", (policy, OFF), (policy, STARTING)) for policy in PLACEMENTS),
        *(waste(policy) for policy in PLACEMENTS),
    ]


def _distribution(outcomes: Outcomes) -> Figure:
    series = []
    for policy in PLACEMENTS:
        for mode in (OFF, STARTING):
            waits = sorted(max(1.0, wait) for one in outcomes.outcomes[policy, mode] for wait in one.waits)
            shares = [(number + 1) / len(waits) for number in range(len(waits))]
            series.append(Series(label=f"{policy}{', exchanges' if mode == STARTING else ''}", x=waits, y=shares))
    return Figure(
        name="co-allocation-time",
        title="Co-allocation time of the jobs of all repetitions",
        x_label="from the submission until all processors are held (s)",
        y_label="share of the jobs",
        series=series,
        x_log=True,
        y_range=(0.0, 1.02),
        caption="A job whose processors are all idle needs about three seconds: its agents report.",
    )


def _selection_bars(
    outcomes: Outcomes, name: str, title: str, y_label: str, measure: Measure[SelectionOutcome], *, caption: str = ""
) -> Figure:
    return Figure(
        name=name,
        title=f"{title}, with 95 % confidence intervals",
        x_label="placement policy",
        y_label=y_label,
        series=[outcomes.series(mode, measure, [(policy, mode) for policy in PLACEMENTS]) for mode in MODES],
        kind="bars",
        categories=PLACEMENTS,
        caption=caption,
    )


def _selection_table(outcomes: Outcomes) -> Table:
    rows: list[dict[str, Cell]] = []
    for (policy, mode), found in outcomes.outcomes.items():
        waits = [wait for one in found for wait in one.waits]
        rows.append({
            "variant": f"{policy}, {mode}",
            "mean (s)": mean_of(waits),
            "median (s)": median(waits) if waits else None,
            "95th percentile (s)": sorted(waits)[int(0.95 * len(waits))] if waits else None,
            "clusters per job": outcomes.mean((policy, mode), USED_CLUSTERS),
            "held idle per used": outcomes.mean((policy, mode), HELD),
            "hand-backs per run": fmean(one.hand_backs for one in found),
            "exchanges per run": fmean(one.exchanges for one in found),
            "never started": sum(one.unfinished for one in found),
        })  # fmt: skip
    caption = "Co-allocation times; exchanges count placeholders, hand-backs count jobs that gave back at once."
    return table_of("variants", "All variants", rows, caption)


def _notes(options: Options) -> tuple[str, ...]:
    described = ", ".join(f"{name} {processors} ({100 * share:.0f} %)" for name, processors, share in CLUSTERS)
    settings = options.settings
    return (
        (
            f"Clusters with processors and the share that local users ask for: {described}, multiplied by "
            f"{settings['load']}. Their jobs: Poisson arrivals, exponential run times of {MEAN_RUN:.0f} s, geometric "
            f"sizes of {MEAN_SIZE:.0f} on average, strictly first come, first served: processors stay idle in front of "
            "a large job while placeholders wait behind it."
        ),
        (
            f"Each run: {settings['jobs']} jobs of 2 or 3 components of {', '.join(map(str, SIZES))} processors, "
            f"Poisson arrivals every {settings['interval']} s, run times of 300 to 1500 s; placeholder life "
            f"{settings['life']} s."
        ),
        (
            "The papers give neither loads nor traces for these claims, so the workload is ours, and so is cluster "
            "minimization beside it: it tells what waiting history adds to merely using fewer clusters. The program "
            "makes only exchanges that start a job. With them, waiting jobs may also run in what is about to be handed "
            "back (backfill)."
        ),
        (
            "The load was settled by looking at results of the seeds 0 to 19: higher ones overload the clusters, at "
            "lower ones hardly any job waits. So those seeds flatter; --seed 100 gives repetitions that nobody had "
            "looked at, and there fewer of the claims can be told."
        ),
    )


SELECTION_EXPERIMENT = Experiment(
    name="vjm-selection",
    summary="What selection by waiting history and reorganization gain for co-allocated jobs on loaded clusters.",
    paper="the virtual job model (Xing, Jilin University, 2009; Ding, Wei and others, 2007 to 2009)",
    run=run_selection,
    seeds=40,
    settings=(
        Setting(name="jobs", default="100", meaning="Co-allocated jobs in each run.", least=1, whole=True),
        Setting(name="interval", default="600", meaning="Mean time between two of them, seconds.", least=1),
        Setting(name="life", default="900", meaning="Life of a placeholder that waits for others, seconds.", least=1),
        Setting(name="load", default="0.65", meaning="By what the demand of the local users is multiplied.", least=0),
    ),
)
