# SPDX-License-Identifier: Apache-2.0
"""Experiment placement: WF, CF, CM and FCM compared on DAS-3 with input files (CoreGRID TR-0092).

The same jobs, input files and local users for each policy. A job asks for processors in equal components; for flexible
cluster minimization the same number in one component that may be split. Before it runs, the input files that a cluster
lacks are moved there while the processors are held, each from where that is fastest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from koala_adapter.model import ClusterName, Component, InputFile, Job, JobId, JobKind
from koala_adapter.report.figures import Figure
from koala_adapter.report.page import Cell, Finding, Result, Table
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.scheduler.placement.policies import missing_files, transfer_seconds
from koala_adapter.scheduler.placement.policy import ClusterView
from koala_adapter.simulation.placeholders import Rigid, SimulatedService, run_to_end, with_local_users
from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel
from koala_adapter.simulation.world import Engine
from koala_experiments.framework import (
    ALSO_POLICIES,
    Comparison,
    Experiment,
    Measure,
    Options,
    Setting,
    mean_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.scheduler.knownpolicies import Policies
    from koala_adapter.scheduler.records import JobRecord


# -- Jobs with input files -----------------------------------------------------------------------------------
# Which cluster holds which file, which job reads which, and how long moving it takes. A simple table of bandwidths
# between clusters: transfers do not slow each other down.

CLUSTERS = (("Vrije", 85), ("Amsterdam", 41), ("Delft", 68), ("MultimediaN", 46), ("Leiden", 32))
"""DAS-3: name and nodes, one process on each."""
SIZES = (8, 16, 32, 64)
"""Processors of a job."""
COMPONENTS = (1, 2, 4)
LARGEST_COMPONENT = 32
FILES, REPLICAS = 40, 2
"""Data sets, and the number of clusters that hold each."""
GIB = 1024**3
FILE_SIZE = (1 * GIB, 10 * GIB)
RATES = (10.0, 40.0, 110.0)
"""MiB/s between two clusters, drawn for each pair: a busy, an ordinary and a fast path."""
RUN = (600.0, 1800.0)


@dataclass(frozen=True, slots=True)
class StagedJob:
    """A job of the workload with its input files, the same for each policy."""

    at: float
    size: int
    components: int
    run: float
    file: InputFile

    def job(self, number: int, policy: str, *, flexible: bool) -> Job:
        """Return the job for one policy; ``flexible``: as one component that may be split."""
        count = 1 if flexible else self.components
        return Job(
            id=JobId(str(number)),
            name=f"job {number}",
            kind=JobKind.RIGID,
            components=tuple(
                Component(
                    name=f"c{index}",
                    command=("program",),
                    minimum=self.size // count,
                    maximum=self.size // count,
                    input_files=(self.file,),
                    flexible=flexible,
                )
                for index in range(count)
            ),
            walltime=int(20 * RUN[1]),
            user="user",
            submitted_at=self.at,
            placement=policy,
        )


def workload(seed: int, *, jobs: int, interval: float, start: float) -> list[StagedJob]:
    """Return the jobs of one repetition: Poisson arrivals ``interval`` seconds apart on average, from ``start`` on."""
    chance = random.Random(f"{seed}/jobs")
    files = [
        InputFile(source=f"/data/{number}", target="input", size=chance.randint(*FILE_SIZE)) for number in range(FILES)
    ]
    made = []
    at = start
    for _ in range(jobs):
        at += chance.expovariate(1.0 / interval)
        size = chance.choice(SIZES)
        counts = [count for count in COMPONENTS if size // count <= LARGEST_COMPONENT]
        made.append(StagedJob(at, size, chance.choice(counts), chance.uniform(*RUN), chance.choice(files)))
    return made


def das3(seed: int) -> list[ClusterParameters]:
    """Return DAS-3's clusters with the files on them and the bandwidths between them."""
    chance = random.Random(f"{seed}/site")
    names = [ClusterName(name) for name, _ in CLUSTERS]
    held: dict[ClusterName, list[str]] = {name: [] for name in names}
    for number in range(FILES):
        for name in chance.sample(names, REPLICAS):
            held[name].append(f"/data/{number}")
    rates = {frozenset((one, other)): chance.choice(RATES) for one in names for other in names if one < other}
    return [
        ClusterParameters(
            name=name,
            files=tuple(held[name]),
            bandwidth_from=tuple((other, rates[frozenset((name, other))]) for other in names if other != name),
        )
        for name in names
    ]


class Staging:
    """Simulates transfers of input files, to all clusters in parallel, and counts them."""

    def __init__(self, site: Sequence[ClusterParameters]) -> None:
        """``site``: files of each cluster and bandwidths."""
        self._views: dict[ClusterName, ClusterView] = {
            one.name: ClusterView(
                name=one.name,
                capacity=None,
                room=0,
                available=0,
                load_free=0,
                walltime_limit=None,
                files=one.files,
                bandwidth_from=one.bandwidth_from,
            )
            for one in site
        }
        self.times: dict[JobId, float] = {}
        """Seconds that the files of each job needed."""
        self.moved: dict[JobId, int] = {}
        """Bytes that were moved for it."""

    def seconds(self, record: JobRecord) -> float:
        """Return how long the transfers take that a job needs on its clusters."""
        longest, moved = 0.0, 0
        for name in {claim.cluster for claim in record.claims if claim.cluster is not None}:
            view = self._views[name]
            missing = missing_files(record.job.components[0], view)
            longest = max(longest, transfer_seconds(missing, view, self._views))
            moved += sum(file.size or 0 for file in missing)
        self.times[record.job.id], self.moved[record.job.id] = longest, moved
        return longest


# -- The experiment ------------------------------------------------------------------------------------------

MINUTE = 60.0
HOUR = 3600.0
WARM_UP = 2 * HOUR
WF, CF, CM, FCM = "worst-fit", "close-to-files", "cluster-minimization", "flexible-cluster-minimization"
POLICIES = (WF, CF, CM, FCM)
SHORT = {WF: "WF", CF: "CF", CM: "CM", FCM: "FCM"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Means over the jobs of a run; None for kinds of jobs that did not occur."""

    wait: float | None
    """Seconds from the submission until all processors are held."""
    wait_large: float | None
    """Seconds until jobs of the largest size hold all their processors."""
    transfer: float | None
    """Seconds that input files need."""
    response: float | None
    """Seconds from the submission to the end."""
    clusters: float | None
    """Clusters of a job."""
    spread: float
    """Standard deviation over the clusters of the share of processors that our jobs use on average."""
    moved: float | None
    """GiB moved for a job."""


def simulate(
    policy: str, seed: int, *, jobs: int, interval: float, local: float, slowdown: float, policies: Policies
) -> Outcome:
    """Simulate a policy, one of ``policies``.

    ``interval``: mean seconds between two of the ``jobs``. ``local``: share of the processors that local users ask for.
    ``slowdown``: by how much of its run time a job is longer for each cluster beyond the first.
    """
    engine = Engine()
    load = BackgroundLoad(utilization=local, mean_run=1200.0, mean_size=6.0)
    systems = [with_local_users(engine, ClusterModel(name=name, nodes=nodes), load, seed) for name, nodes in CLUSTERS]
    site = das3(seed)
    works = workload(seed, jobs=jobs, interval=interval, start=WARM_UP)
    staging = Staging(site)

    def program(record: JobRecord) -> Rigid:
        run = works[int(record.job.id)].run
        clusters = {claim.cluster for claim in record.claims}
        return Rigid(staging.seconds(record) + run * (1 + slowdown * (len(clusters) - 1)))

    service = SimulatedService(
        engine,
        systems,
        Parameters(maximum_tries=1_000_000, finished_kept=jobs),
        site,
        program_of=program,
        seed=seed,
        policies=policies,
    )
    splits = policies.placement_policy(policy, Parameters()).splits
    for number, work in enumerate(works):
        engine.at(work.at, partial(service.submit, work.job(number, policy, flexible=splits)))
    engine.run(until=works[-1].at)
    run_to_end(engine, [service], until=works[-1].at + 200 * HOUR)
    return _outcome(service, works, staging, engine.now - WARM_UP)


def _outcome(service: SimulatedService, works: Sequence[StagedJob], staging: Staging, seconds: float) -> Outcome:
    done = {id_: one for id_, one in service.jobs.items() if one.launched_at is not None and one.ended_at is not None}
    waits = {id_: (one.launched_at or 0.0) - one.submitted_at for id_, one in done.items()}
    large = [wait for id_, wait in waits.items() if works[int(id_)].size == SIZES[-1]]
    used = dict.fromkeys((ClusterName(name) for name, _ in CLUSTERS), 0.0)
    for one in done.values():
        for name, processors in one.clusters.items():
            used[name] += processors * ((one.ended_at or 0.0) - (one.launched_at or 0.0))
    return Outcome(
        wait=mean_of(list(waits.values())),
        wait_large=mean_of(large),
        transfer=mean_of(list(staging.times.values())),
        response=mean_of([(one.ended_at or 0.0) - one.submitted_at for one in done.values()]),
        clusters=mean_of([len(one.clusters) for one in done.values()]),
        spread=pstdev(used[ClusterName(name)] / (nodes * seconds) for name, nodes in CLUSTERS),
        moved=fmean(staging.moved.values()) / GIB if staging.moved else None,
    )


# ---- what came out --------------------------------------------------------------------------------------------------

Outcomes = Comparison[str, Outcome]


def run(options: Options) -> Result:
    """Run all policies for all seeds."""
    settings = options.settings
    simulation = partial(
        simulate,
        jobs=int(settings["jobs"]),
        interval=float(settings["interval"]),
        local=float(settings["local"]),
        slowdown=float(settings["slowdown"]),
        policies=options.policies,
    )
    compared = (*POLICIES, *options.also(options.policies.placement, POLICIES))
    return comparison(options.compare(simulation, compared), _notes(options))


def comparison(outcomes: Outcomes, notes: Sequence[str]) -> Result:
    """Return findings, figures and table of all policies."""
    return Result(findings=_findings(outcomes), figures=_figures(outcomes), tables=(_table(outcomes),), notes=notes)


WAIT = Measure[Outcome]("wait (s)", lambda one: one.wait)
WAIT_LARGE = Measure[Outcome]("wait of the largest jobs (s)", lambda one: one.wait_large)
TRANSFER = Measure[Outcome]("transfer of input files (s)", lambda one: one.transfer)
RESPONSE = Measure[Outcome]("response (s)", lambda one: one.response)
USED = Measure[Outcome]("clusters of a job", lambda one: one.clusters, 2)
MOVED = Measure[Outcome]("moved (GiB)", lambda one: one.moved, 2)
SPREAD = Measure[Outcome]("spread of utilization", lambda one: one.spread, 3)
MEASURES = (WAIT, WAIT_LARGE, TRANSFER, RESPONSE, USED, MOVED, SPREAD)


def _findings(outcomes: Outcomes) -> list[Finding]:
    def less(claim: str, measure: Measure[Outcome], smaller: str, larger: str) -> Finding:
        found, digits = outcomes.paired(measure, larger, smaller), measure.digits
        if found is None:
            return Finding(claim=claim, outcome=f"mean {measure.name}: in no run is there such a job", holds=None)
        change = -100 * found.gain.mean / found.before if found.before else 0.0
        return Finding(
            claim=claim,
            outcome=f"mean {measure.name}: {SHORT[smaller]} {found.after:.{digits}f}, {SHORT[larger]} "
            f"{found.before:.{digits}f}; difference {found.gain.mean:.{digits}f} ± "
            f"{found.gain.half_width:.{digits}f} (95 %, the same jobs){found.cannot}",
            holds=found.holds,
            margin=f"{change:+.0f} %",
        )

    return [
        less("Worst fit balances the load over the clusters, more than cluster minimization does.", SPREAD, WF, CM),
        less(
            "Worst fit leaves too few processors in one cluster for large components: CM starts large jobs sooner.",
            WAIT_LARGE,
            CM,
            WF,
        ),
        less("Close to files needs less time for transfers than worst fit.", TRANSFER, CF, WF),
        less("Cluster minimization uses fewer clusters than worst fit.", USED, CM, WF),
        less("Splitting jobs by the idle processors shortens the time in the queue: FCM against CM.", WAIT, FCM, CM),
        less("The same for jobs of 64 processors.", WAIT_LARGE, FCM, CM),
    ]


def _bars(
    outcomes: Outcomes, name: str, title: str, label: str, measures: Mapping[str, Measure[Outcome]], *, unit: float = 1
) -> Figure:
    return Figure(
        name=name,
        title=title,
        x_label="placement policy",
        y_label=label,
        series=[outcomes.series(what, measure.over(unit)) for what, measure in measures.items()],
        kind="bars",
        categories=[SHORT.get(policy, policy) for policy in outcomes.outcomes],
        caption="Means over the repetitions with 95 % confidence intervals.",
    )


def _figures(outcomes: Outcomes) -> list[Figure]:
    return [
        _bars(
            outcomes,
            "times",
            "Where the time goes",
            "mean time of a job (min)",
            {"wait": WAIT, "transfer of input files": TRANSFER, "response": RESPONSE},
            unit=MINUTE,
        ),
        _bars(
            outcomes,
            "waits",
            "Wait of all jobs and of the largest",
            "mean wait (min)",
            {"all jobs": WAIT, "jobs of 64 processors": WAIT_LARGE},
            unit=MINUTE,
        ),
        _bars(outcomes, "clusters", "Clusters of a job", "mean number of clusters", {"": USED}),
        _bars(outcomes, "moved", "Input files moved", "mean volume for a job (GiB)", {"": MOVED}),
    ]


def _table(outcomes: Outcomes) -> Table:
    rows: list[list[Cell]] = [
        [policy, *(outcomes.mean(policy, measure) for measure in MEASURES)] for policy in outcomes.outcomes
    ]
    return Table(
        name="policies",
        title="All policies",
        columns=("policy", *(measure.name for measure in MEASURES)),
        rows=rows,
        caption="Means over jobs and repetitions; the spread is the standard deviation over the clusters of the share "
        "of processors that our jobs use.",
    )


def _notes(options: Options) -> tuple[str, ...]:
    settings = options.settings
    sizes = ", ".join(f"{name} {nodes}" for name, nodes in CLUSTERS)
    return (
        (
            f"DAS-3 ({sizes} nodes), local users who ask for {settings['local']} of each cluster, first come, first "
            f"served. {settings['jobs']} jobs of {', '.join(map(str, SIZES))} processors in 1, 2 or 4 equal components "
            f"of at most {LARGEST_COMPONENT}, Poisson arrivals every {settings['interval']} s, run times "
            f"{RUN[0]:.0f} to {RUN[1]:.0f} s, longer by {settings['slowdown']} of it for each cluster beyond the first."
        ),
        (
            f"Each job reads one of {FILES} data sets of 1 to 10 GiB, each held by {REPLICAS} of the clusters; between "
            f"two clusters {', '.join(f'{rate:.0f}' for rate in RATES)} MiB/s, drawn for each pair; transfers do not "
            "slow each other down, and take place while the processors are held."
        ),
        (
            "The paper describes the policies and does not measure them against each other, so the workload is ours; "
            "the claims are what its description promises. KOALA keeps a job that does not fit at once in its own "
            "queue; here its placeholders wait in the queues of the clusters, under every policy, which takes away "
            "much of what splitting a job by the idle processors gains."
        ),
    )


EXPERIMENT = Experiment(
    name="placement",
    summary="KOALA's placement policies compared: wait, clusters of a job, transfer of input files.",
    paper="KOALA's placement policies as CoreGRID TR-0092 (2007) describes them",
    run=run,
    seeds=12,
    settings=(
        ALSO_POLICIES,
        Setting(name="jobs", default="100", meaning="Jobs in each run.", least=1, whole=True),
        Setting(name="interval", default="400", meaning="Mean time between two of them, seconds.", least=1),
        Setting(
            name="local",
            default="0.25",
            meaning="Share of each cluster that local users ask for, 0 to 1.",
            least=0,
            most=1,
        ),
        Setting(
            name="slowdown",
            default="0.1",
            meaning="Part of its run time that each cluster beyond the first costs.",
            least=0,
        ),
    ),
)
