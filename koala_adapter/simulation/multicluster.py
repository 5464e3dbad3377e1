# SPDX-License-Identifier: Apache-2.0
"""KOALA on several clusters, on counts of processors: placement queue, placement policies, malleability.

Every decision is taken by the code that decides live: the policies of
:mod:`koala_adapter.scheduler.placement.ownpolicies` and :mod:`koala_adapter.scheduler.malleable.policies`, in the order
of :mod:`koala_adapter.scheduler.malleable.jobmanagement`; here is only the world around them. A processor is a number,
not a placeholder, which is what makes a million jobs feasible. All that happens at one instant happens first (ends,
then local users and changes under way, then submissions); then it is decided.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.scheduler.malleable.jobmanagement import JobManagement
from koala_adapter.simulation.background_load import local_users, outages
from koala_adapter.simulation.counted_clusters import CountedClusters
from koala_adapter.simulation.counted_placement import CountedPlacement, lane_of
from koala_adapter.simulation.counted_resizing import CountedResizing
from koala_adapter.simulation.engine import Engine
from koala_adapter.simulation.simulated_cluster import BackgroundActivity, Part, Run, SimulatedCluster
from koala_adapter.simulation.simulated_jobs import Outcome
from koala_adapter.simulation.waiting_line import WaitingLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from koala_adapter.scheduler.placement.policy import PlacedComponent
    from koala_adapter.simulation.application_models import Application
    from koala_adapter.simulation.platform import Platform
    from koala_adapter.simulation.simulated_jobs import JobResult, SimulatedJob
    from koala_adapter.simulation.waiting_line import Lane

NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the scheduler is set, and what the world costs it. Times in seconds."""

    approach: Approach = Approach.PWA
    malleability: str = "fpsma"
    """Name of a malleability policy."""
    poll_interval: float = 0.0
    """Time between two looks of the information service at local users; 0: it sees them at once."""
    placeholder_delay: float = 0.0
    """From the submission of placeholders to idle processors until they are held."""
    start_delay: float = 0.0
    """From the launch of processes on held placeholders until they compute."""
    end_delay: float = 0.0
    """From the end of a job's work until the scheduler knows of it; counted before the job begins to compute."""
    release_delay: float = 0.0
    """From the end of a process until the scheduler knows that its processor is idle."""
    seed: int = 0
    """Of local users and failures."""
    timeline: bool = True
    """Whether used processors and messages are recorded over time."""
    policies: Policies = OWN
    """Those that jobs and ``malleability`` may name."""

    def __post_init__(self) -> None:
        """Raises SimulationError for an unknown malleability policy."""
        if self.malleability not in self.policies.malleability_names:
            hint = f"there is {', '.join(self.policies.malleability_names)}"
            raise SimulationError(f"there is no malleability policy {self.malleability}", hint=hint)


class Multicluster:
    """The simulated world. Interrupted between two instants, :attr:`outcome` has what came out so far."""

    def __init__(
        self,
        platform: Platform,
        workload: Iterable[SimulatedJob],
        settings: Settings,
        *,
        on_end: Callable[[JobResult], object] | None = None,
    ) -> None:
        """Build it. ``workload`` is in order of submission and read as it is needed; ``on_end`` takes the results."""
        self.outcome = Outcome()
        self.settings = settings
        self.clusters = [SimulatedCluster(model, index) for index, model in enumerate(platform.clusters)]
        self._workload = iter(workload)
        self._arriving = next(self._workload, None)
        self._on_end = on_end or self.outcome.jobs.append
        self._engine = Engine()
        self._resizing = CountedResizing(
            self._engine,
            placeholder_delay=settings.placeholder_delay + settings.start_delay,
            release_delay=settings.release_delay,
            released=self._released,
        )
        self._waiting = WaitingLine()
        self._live: dict[int, Run] = {}
        self._ends: list[tuple[float, int, int, Run]] = []
        self._placing = CountedPlacement(self.clusters, settings.policies)
        self._frees = self._placing.frees
        self._sites = CountedClusters(
            approach=settings.approach,
            malleability=settings.policies.malleability_policy(settings.malleability),
            placing=self._placing,
            waiting=self._waiting,
            resizing=self._resizing,
            start=self._start,
            released=self._released,
        )
        self._management = JobManagement(self._sites)
        self._restarts: dict[int, int] = {}
        self._answers: dict[tuple[int, int, int], dict[tuple[int, int], int]] = {}
        self._rates: dict[int, tuple[Application, Sequence[float]]] = {}
        self._activities = [self._begin_activity(platform, cluster) for cluster in self.clusters]

    # ---- the course of time ---------------------------------------------------------------------------------------

    def run(self, until: float = NEVER) -> Outcome:
        """Let all that is ahead happen, up to ``until``; return :attr:`outcome`."""
        engine, ends = self._engine, self._ends
        while self._arriving is not None or self._live or self._waiting:
            while ends and (ends[0][2] != ends[0][3].version or ends[0][3].over):
                heapq.heappop(ends)  # a forecast that no longer holds
            arrival = NEVER if self._arriving is None else self._arriving.submitted_at
            end = ends[0][0] if ends else NEVER
            other = engine.next_time
            now = min(arrival, end) if other is None else min(arrival, end, other)
            if now > until or now == NEVER:
                break
            self._instant(max(now, engine.now))
        self.outcome.unfinished = len(self._live) + len(self._waiting)
        self.outcome.grow_messages = self._resizing.grow_messages
        self.outcome.shrink_messages = self._resizing.shrink_messages
        return self.outcome

    def _instant(self, now: float) -> None:
        engine, ends = self._engine, self._ends
        engine.now = now
        while ends and ends[0][0] <= now:
            _, _, version, run = heapq.heappop(ends)
            if version == run.version and not run.over:
                self._ended(run)
        if engine.waiting:
            engine.run(until=now)
        arrived = False
        while self._arriving is not None and self._arriving.submitted_at <= now:
            arrived |= self._submitted(self._arriving)
            self._arriving = next(self._workload, None)
        if arrived or self._sites.changed:
            self._decide()
        self._forecast()

    def _submitted(self, job: SimulatedJob) -> bool:
        lane = lane_of(job)
        never = self._placing.never(job, lane)
        if never is not None:
            self.outcome.refused.append((job, never))
            return False
        if not self._waiting and not self._sites.touched and self._try(job, lane):
            return True  # nobody was before it, and nothing else happened: no need to stand in line
        self._waiting.push(job, lane)
        return lane not in self._sites.hopeless

    def _try(self, job: SimulatedJob, lane: Lane) -> bool:
        """Start a job at once if its policy places it and its claim succeeds; tell whether it did."""
        placed = self._placing.place(lane)
        return placed is not None and self._start(job, placed)

    def _ended(self, run: Run) -> None:
        run.account(self._engine.now)
        self._leave(run)
        self._on_end(run.result(self._engine.now))
        self.outcome.ended_at = self._engine.now

    def _leave(self, run: Run) -> None:
        """Take back all that a run holds."""
        run.over = True
        del self._live[run.job.number]
        for part in run.parts:
            part.cluster.running.remove(part)
            if part.pending < 0:
                part.cluster.making_room += part.pending
        run.parts.clear()  # or run and parts would hold each other, for the collector to find
        for cluster, processors in run.held.items():
            self._resizing.give_back(cluster, processors)

    def _decide(self) -> None:
        self._sites.changed = True
        self._management.decide()
        self._sites.decided()

    # ---- start and end ----------------------------------------------------------------------------------------------

    def _start(self, job: SimulatedJob, placed: Sequence[PlacedComponent]) -> bool:
        """Claim the processors of a placement; False when local users have them."""
        held: dict[SimulatedCluster, int] = {}
        for component in placed:
            cluster = self._placing.cluster(component.cluster)
            held[cluster] = held.get(cluster, 0) + component.processors
        lost = [cluster for cluster, processors in held.items() if processors > cluster.usable]
        for cluster in lost:  # the failed claim tells what the information service has not seen yet
            self.outcome.failed_claims += 1
            cluster.see()
            self._frees[cluster.index] = cluster.free
        if lost:
            return False
        now = self._engine.now + self.settings.placeholder_delay
        total = sum(held.values())
        run = Run(
            job=job, rates=self._rates_of(job.application), held=held, size=total, total=total, largest=total,
            started_at=now, since=now, left=job.work, speed=min(cluster.speed for cluster in held),
            restarts=self._restarts.get(job.number, 0),
        )  # fmt: skip
        self._live[job.number] = run
        idle = self.settings.start_delay + self.settings.end_delay
        if idle > 0:
            run.standing += 1
            self._engine.after(self.settings.placeholder_delay + idle, lambda: self._computes(run))
        for cluster, processors in held.items():
            cluster.managed += processors
            self._frees[cluster.index] = cluster.free
            self._sites.touched[cluster] = None
            if job.malleable:
                self._join(run, cluster, processors)
        self._resizing.touch(run)
        return True

    def _computes(self, run: Run) -> None:
        if not run.over:
            self._resizing.touch(run)
            run.standing -= 1

    def _join(self, run: Run, cluster: SimulatedCluster, processors: int) -> None:
        """Let the malleability policy of a cluster have a part of a run that has started."""
        application = run.job.application
        part = Part(
            run,
            cluster,
            processors,
            minimum=min(application.minimum, processors),
            maximum=max(application.maximum * processors // run.total, processors),
            number=run.job.number,
            now=run.started_at,
        )
        part.answers = self._answers.setdefault((id(application), part.minimum, part.maximum), {})
        cluster.unwanted = None
        run.parts.append(part)
        cluster.running.add(part)
        if self.settings.placeholder_delay > 0:
            cluster.running.begin(part)
            self._engine.after(self.settings.placeholder_delay, lambda: self._began(part))

    def _began(self, part: Part) -> None:
        if not part.run.over:
            part.cluster.running.end(part)
            self._sites.touch(part.cluster)

    def _rates_of(self, application: Application) -> Sequence[float]:
        found = self._rates.get(id(application))
        if found is None:
            rates = [0.0, *(1.0 / seconds for seconds in application.times()[1:])]
            found = self._rates[id(application)] = application, rates
        return found[1]

    def _forecast(self) -> None:
        """Work out anew when the runs end whose rate has changed, and record what the world looks like."""
        now, resizing, ends = self._engine.now, self._resizing, self._ends
        for run in resizing.changed:
            run.changed = False
            if not run.over and (at := run.forecast(max(now, run.since))) < NEVER:
                heapq.heappush(ends, (at, run.job.number, run.version, run))
        resizing.changed.clear()
        if len(ends) > 64 + 8 * len(self._live):
            ends[:] = [entry for entry in ends if entry[2] == entry[3].version and not entry[3].over]
            heapq.heapify(ends)
        if self.settings.timeline:
            self._record(now)

    def _record(self, now: float) -> None:
        outcome = self.outcome
        managed, local = sum(c.managed for c in self.clusters), sum(c.local_used for c in self.clusters)
        if not outcome.used or outcome.used[-1][1:] != (managed, local):
            outcome.used.append((now, managed, local))
        grown = self._resizing.grow_messages - outcome.grow_messages
        shrunk = self._resizing.shrink_messages - outcome.shrink_messages
        if grown or shrunk:
            outcome.messages.append((now, grown, shrunk))
            outcome.grow_messages += grown
            outcome.shrink_messages += shrunk

    # ---- what happens without our doing ---------------------------------------------------------------------------

    def _begin_activity(self, platform: Platform, cluster: SimulatedCluster) -> BackgroundActivity:
        activity = BackgroundActivity(self._engine, cluster, self._others_changed, self._evict)
        load, failures = platform.background_of(cluster.model), platform.failures_of(cluster.model)
        if load is not None:
            activity.local_users(local_users(cluster.model, load, self.settings.seed))
        if failures is not None:
            activity.failures(outages(cluster.model, failures, self.settings.seed))
        if self.settings.poll_interval > 0 and (load is not None or failures is not None):
            self._engine.after(self.settings.poll_interval, lambda: self._poll(cluster))
        return activity

    def _others_changed(self, cluster: SimulatedCluster) -> None:
        if self.settings.poll_interval <= 0:
            self._see(cluster)

    def _poll(self, cluster: SimulatedCluster) -> None:
        self._see(cluster)
        self._engine.after(self.settings.poll_interval, lambda: self._poll(cluster))

    def _see(self, cluster: SimulatedCluster) -> None:
        """Let the information service see what is out of our reach."""
        if cluster.see():
            self._sites.touch(cluster)
        else:
            self._frees[cluster.index] = cluster.free

    def _released(self, cluster: SimulatedCluster) -> None:
        """Give local jobs that wait what has come free on a cluster; the rest is ours again."""
        self._activities[cluster.index].released()
        self._others_changed(cluster)
        self._sites.touch(cluster)

    def _evict(self, cluster: SimulatedCluster, index: int) -> None:
        """End the run that holds a processor of a cluster, because its node failed, and submit the job again."""
        for run in self._live.values():
            index -= run.held.get(cluster, 0)
            if index < 0:
                break
        else:
            return
        self._restarts[run.job.number] = run.restarts + 1
        self._leave(run)
        self._waiting.push(run.job, lane_of(run.job))


def simulate(platform: Platform, workload: Iterable[SimulatedJob], settings: Settings) -> Outcome:
    """Return the outcome of a whole simulation."""
    return Multicluster(platform, workload, settings).run()
