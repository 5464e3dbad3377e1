# SPDX-License-Identifier: Apache-2.0
"""Deadlock between two co-allocated jobs: certain with direct submission, broken by virtual jobs (Xing 2009).

Clusters A and B have three nodes each; user 1 has priority on A, user 2 on B; at the same moment each submits a job of
six nodes. Each gets one cluster and waits for the other. Each user has a co-allocator of his own, so nobody sees both
jobs. Besides the two variants of the paper there is one in which placeholders are held for ever: it shows that it is
the life cycle, and not the placeholder, that breaks the deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component, Job, JobId, JobKind
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.simulation.confidence import estimate
from koala_adapter.simulation.engine import FIRST, Engine
from koala_adapter.simulation.experiments.framework import (
    Cell,
    Experiment,
    Figure,
    Finding,
    Options,
    Result,
    Series,
    Setting,
    Table,
)
from koala_adapter.simulation.placeholders import SimulatedService, run_to_end
from koala_adapter.simulation.simulated_batch_system import BatchSystem, Occupation, QueuedJob

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

A, B = ClusterName("A"), ClusterName("B")
NODES = 3
USERS = ("user1", "user2")
HORIZON = 24 * 3600.0
"""Seconds after which a job that has not started is taken never to."""
DIRECT = "direct submission"
HELD_FOR_EVER = "virtual jobs without life cycle"
VIRTUAL = "virtual jobs"
VARIANTS = (DIRECT, HELD_FOR_EVER, VIRTUAL)


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation."""

    variant: str
    seed: int
    run: float
    """Seconds that each job runs."""
    life: float
    """Placeholder life, seconds."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A node held by somebody."""

    node: int
    """0 to 2 on A, 3 to 5 on B."""
    who: str
    begins_at: float
    ends_at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the two jobs."""

    launched: tuple[float | None, ...]
    """Seconds after the submission; None: never, within the horizon."""
    finished: tuple[float | None, ...]
    hand_backs: int
    bars: tuple[Bar, ...]


def simulate(case: Case) -> Outcome:
    """Run one simulation."""
    engine = Engine()
    systems = [
        BatchSystem(engine, A, NODES, priorities={"user1": 1}),
        BatchSystem(engine, B, NODES, priorities={"user2": 1}),
    ]
    for system in systems:
        system.occupations = []
    return _direct(case, engine, systems) if case.variant == DIRECT else _virtual(case, engine, systems)


# ---- direct submission ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Parts:
    """A job whose real pieces were submitted at once: they hold their nodes until all of them run."""

    user: str
    run: float
    engine: Engine
    jobs: list[QueuedJob]
    launched_at: float | None = None
    finished_at: float | None = None

    def started(self, _job: QueuedJob) -> None:
        """Begin the work when the last piece has started."""
        if self.launched_at is None and all(job.running for job in self.jobs):
            self.launched_at = self.engine.now
            self.engine.after(self.run, self.finish, rank=FIRST)

    def finish(self) -> None:
        """End all pieces."""
        self.finished_at = self.engine.now
        for job in self.jobs:
            job.on_end = lambda _job, _reason: None


def _direct(case: Case, engine: Engine, systems: Sequence[BatchSystem]) -> Outcome:
    jobs = []
    for user in USERS:
        parts = _Parts(user, case.run, engine, [])
        for system in systems:
            piece = QueuedJob(user, NODES, 2 * HORIZON, parts.started, lambda _job, _reason: None)
            parts.jobs.append(piece)
            system.submit(piece)
        jobs.append(parts)
    engine.run(until=HORIZON)
    bars = [
        Bar(number * NODES + place, f"{job.user} waits", job.started_at, HORIZON)
        for parts in jobs
        for number, job in enumerate(parts.jobs)
        if job.started_at is not None
        for place in job.places
    ]
    launched = tuple(parts.launched_at for parts in jobs)
    return Outcome(launched, tuple(parts.finished_at for parts in jobs), 0, tuple(bars))


# ---- virtual jobs ---------------------------------------------------------------------------------------------------


def _virtual(case: Case, engine: Engine, systems: Sequence[BatchSystem]) -> Outcome:
    life = case.life if case.variant == VIRTUAL else 10 * HORIZON
    clusters = [ClusterParameters(name=system.name) for system in systems]
    services = [
        SimulatedService(
            engine,
            systems,
            Parameters(instance=user, placeholder_life=life),
            clusters,
            run_seconds=lambda _record: case.run,
            user=user,
            seed=case.seed,
        )
        for user in USERS
    ]
    engine.run(until=1.0)
    begin = engine.now
    for user, service in zip(USERS, services, strict=True):
        service.submit(_job(user, case, begin))
    run_to_end(engine, services, until=begin + HORIZON)
    marks = [next(iter(service.jobs.values())) for service in services]
    records = [next(iter(service.state.jobs.values())) for service in services]
    return Outcome(
        tuple(None if one.launched_at is None else one.launched_at - begin for one in marks),
        tuple(None if one.ended_at is None else one.ended_at - begin for one in marks),
        sum(record.hand_backs for record in records),
        tuple(_bars(systems, services, begin)),
    )


def _job(user: str, case: Case, now: float) -> Job:
    return Job(
        id=JobId(f"{user}-{case.seed}"),
        name=user,
        kind=JobKind.RIGID,
        components=tuple(
            Component(name=f"on-{name}", command=("program",), minimum=NODES, maximum=NODES, cluster=name)
            for name in (A, B)
        ),
        walltime=int(2 * case.run) + 1,
        user=user,
        submitted_at=now,
    )


def _bars(systems: Sequence[BatchSystem], services: Sequence[SimulatedService], begin: float) -> Iterator[Bar]:
    """Yield who had which node when, apart for waiting with it and running on it."""
    spans = {
        service.user: (one.launched_at or HORIZON, one.ended_at or HORIZON)
        for service in services
        for one in service.jobs.values()
    }
    for number, system in enumerate(systems):
        still = [
            Occupation(place=place, who=job.user, begins_at=job.started_at or 0.0, ends_at=begin + HORIZON)
            for place, job in system.running.items()
        ]
        for one in [*(system.occupations or ()), *still]:
            node = number * NODES + one.place
            launched, ended = spans[one.who]
            middle = min(max(launched, one.begins_at), one.ends_at)
            for who, start, end in (("waits", one.begins_at, middle), ("runs", middle, min(ended, one.ends_at))):
                if end > start:
                    yield Bar(node, f"{one.who} {who}", start - begin, end - begin)


# ---- what came out --------------------------------------------------------------------------------------------------


def run(options: Options) -> Result:
    """Run all variants for all seeds."""
    run_seconds, life = float(options.settings["run"]), float(options.settings["life"])
    cases = [Case(variant, seed, run_seconds, life) for variant in VARIANTS for seed in options.all_seeds]
    outcomes: dict[str, list[Outcome]] = {variant: [] for variant in VARIANTS}
    for case, outcome in zip(cases, options.map(simulate, cases), strict=True):
        outcomes[case.variant].append(outcome)
    return Result(
        findings=_findings(outcomes, run_seconds),
        figures=[_timeline(name, outcomes[name][0]) for name in (DIRECT, VIRTUAL)] + [_starts(outcomes[VIRTUAL])],
        tables=[_table(outcomes)],
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


def _never(outcomes: Sequence[Outcome]) -> int:
    return sum(start is None for one in outcomes for start in one.launched)


def _findings(outcomes: dict[str, list[Outcome]], run_seconds: float) -> list[Finding]:
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


def _timeline(name: str, outcome: Outcome) -> Figure:
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
                y=[bar.node for bar in bars],
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


def _starts(outcomes: Sequence[Outcome]) -> Figure:
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


def _table(outcomes: dict[str, list[Outcome]]) -> Table:
    rows: list[list[Cell]] = []
    for variant, found in outcomes.items():
        starts = [sorted(t for t in one.launched if t is not None) for one in found if None not in one.launched]
        first, second = (fmean(one[n] for one in starts) if starts else None for n in (0, 1))
        backs = fmean(one.hand_backs for one in found)
        rows.append([variant, 2 * len(found), _never(found), first, second, backs])
    return Table(
        name="variants",
        title="Both jobs in each variant",
        columns=("variant", "jobs", "never started", "first start (s)", "second start (s)", "hand-backs per pair"),
        rows=rows,
        caption="Means over the seeds.",
    )


EXPERIMENT = Experiment(
    name="vjm-deadlock",
    summary="Two jobs that each hold what the other needs: direct submission against virtual jobs.",
    paper="the virtual job model (Xing, Jilin University, 2009; Ding, Wei and others, 2007 to 2009)",
    run=run,
    seeds=30,
    settings=(
        Setting(name="run", default="300", meaning="Seconds that each job runs.", least=1),
        Setting(name="life", default="900", meaning="Life of a placeholder that waits for others, seconds.", least=1),
    ),
)
