# SPDX-License-Identifier: Apache-2.0
"""KOALA on several clusters, simulated on counts of processors: queue, placement, malleability.

Every decision is taken by the code that decides live: the policies of :mod:`koala_adapter.scheduler.knownpolicies` and
:mod:`koala_adapter.scheduler.malleable.policies`, in the order of
:mod:`koala_adapter.scheduler.malleable.jobmanagement`. Here is the simulation, about which job management decides; its
clusters, the jobs on them and placement are in :mod:`koala_adapter.simulation.countedclusters`.

A processor is a number, not a placeholder, which is what makes a million jobs feasible. All that happens at one instant
happens first (ends, then local users and changes under way, then submissions); then it is decided.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.errors import SimulationError
from koala_adapter.scheduler.claiming.queue import LaneQueue
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.malleable.jobmanagement import DecidedClusters, JobManagement, Need, ShrunkFor
from koala_adapter.scheduler.malleable.policies import Direction, RunningJobs, Step, carry_out
from koala_adapter.scheduler.parameters import Approach
from koala_adapter.simulation.applications import Application, JobResult, Outcome, SimulatedJob
from koala_adapter.simulation.countedclusters import (
    NEVER,
    CountedPlacement,
    Lane,
    Run,
    RunComponent,
    SimulatedCluster,
    hold,
    lane_of,
)
from koala_adapter.simulation.platform import MOST_PROCESSORS, Platform
from koala_adapter.simulation.world import Engine, schedule_background

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.placement.policy import PlacedComponent

# Running jobs change their size at once, or with the delays of real runners, as MRunner does it (TR-0092). Growing, the
# new placeholders start while the application keeps running; when all are held it stands still for the cost of the
# change, then goes on with more. Shrinking, it stands still first, goes on with fewer, and only then are the processors
# given back. What is given back comes free when its batch system says so; until then room is being made.


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a simulation: policies, approach, delays. Times in seconds."""

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
        if self.malleability not in self.policies.malleability:
            hint = f"there is {', '.join(self.policies.malleability)}"
            raise SimulationError(f"there is no malleability policy {self.malleability}", hint=hint)


class Multicluster(DecidedClusters[SimulatedCluster]):
    """Simulation of KOALA on several clusters. Interrupted, :attr:`outcome` has the results so far."""

    def __init__(
        self,
        platform: Platform,
        workload: Iterable[SimulatedJob],
        settings: Settings,
        *,
        on_end: Callable[[JobResult], object] | None = None,
    ) -> None:
        """Create the clusters. ``workload``: in order of submission, read lazily; ``on_end``: called with results."""
        self.outcome = Outcome()
        self.settings = settings
        self.engine = Engine()
        self.members = [SimulatedCluster(model, index, self) for index, model in enumerate(platform.clusters)]
        """All clusters of the platform."""
        self.runs: dict[int, Run] = {}
        """Jobs that run, by their numbers."""
        self.waiting: LaneQueue[Lane, tuple[float, int], int] = LaneQueue()
        """Numbers of the jobs that wait."""
        self._waiting_jobs: dict[int, tuple[SimulatedJob, Lane]] = {}
        self.placing = CountedPlacement(self.members, settings.policies)
        self._by_name = {cluster.name: cluster for cluster in self.members}
        self._malleability = settings.policies.malleability[settings.malleability]
        self._management = JobManagement(self)
        self._workload = iter(workload)
        self._arriving = next(self._workload, None)
        self._on_end = on_end or self.outcome.jobs.append
        self._ends: list[tuple[float, int, int, Run]] = []
        self._to_forecast: list[Run] = []
        """Runs whose end must be forecast again."""
        self._growth_delay = settings.placeholder_delay + settings.start_delay
        self._restarts: dict[int, int] = {}
        self._answers: dict[tuple[int, int, int], dict[tuple[int, int], int]] = {}
        self._rates: dict[int, tuple[Application, Sequence[float]]] = {}
        self._recorded = (0, 0)
        """Messages to grow and to shrink that are in the timeline."""
        self._accepted = 0
        """Changes of size that applications agreed to."""
        self._undecided = False
        """Whether something has changed that has not been decided about."""
        self._changed_clusters: dict[SimulatedCluster, None] = {}
        """Clusters with processors that have not been offered to running jobs."""
        self._blocked_lanes: set[Lane] = set()
        """Lanes whose jobs cannot be placed before a cluster has more to give."""
        self._gave_nothing: set[SimulatedCluster] = set()
        """Where running jobs were asked to make room in vain, and no cluster has had more to give since."""
        self._awaited: list[SimulatedCluster] = []
        """Where room is being made for the head of the queue."""
        for cluster in self.members:
            load, failures = platform.background_of(cluster.model), platform.failures_of(cluster.model)
            schedule_background(self.engine, cluster, cluster.model, load=load, failures=failures, seed=settings.seed)
            if settings.poll_interval > 0 and (load is not None or failures is not None):
                self.engine.after(settings.poll_interval, partial(self._poll_later, cluster))

    # ---- the course of time ---------------------------------------------------------------------------------------

    def run(self, until: float = NEVER) -> Outcome:
        """Run the simulation until nothing is left or ``until`` is reached; return :attr:`outcome`."""
        engine, ends = self.engine, self._ends
        while self._arriving is not None or self.runs or self.waiting:
            while ends and (ends[0][2] != ends[0][3].version or ends[0][3].over):
                heapq.heappop(ends)  # a forecast that no longer holds
            arrival = NEVER if self._arriving is None else self._arriving.submitted_at
            end = ends[0][0] if ends else NEVER
            other = engine.next_time
            now = min(arrival, end) if other is None else min(arrival, end, other)
            if now > until or now == NEVER:
                break
            self.instant(max(now, engine.now))
        self.outcome.unfinished = len(self.runs) + len(self.waiting)
        return self.outcome

    def instant(self, now: float) -> None:
        """Process all events of the next instant, then make all decisions."""
        engine, ends = self.engine, self._ends
        engine.now = now
        while ends and ends[0][0] <= now:
            _, _, version, run = heapq.heappop(ends)
            if version == run.version and not run.over:
                self._end(run)
        if engine.waiting:
            engine.run(until=now)
        arrived = False
        while self._arriving is not None and self._arriving.submitted_at <= now:
            arrived |= self._submit(self._arriving)
            self._arriving = next(self._workload, None)
        if arrived or self._undecided:
            self._undecided = True
            self._management.decide()
            if not (self.waiting and self.making_room()):
                self._changed_clusters.clear()
        self._forecast()

    def _forecast(self) -> None:
        """Recompute the ends of the runs whose rate has changed, and record use of processors and queue length."""
        now, ends = self.engine.now, self._ends
        for run in self._to_forecast:
            run.changed = False
            if not run.over and (at := run.forecast(max(now, run.since))) < NEVER:
                heapq.heappush(ends, (at, run.job.number, run.version, run))
        self._to_forecast.clear()
        if len(ends) > 64 + 8 * len(self.runs):
            ends[:] = [entry for entry in ends if entry[2] == entry[3].version and not entry[3].over]
            heapq.heapify(ends)
        if self.settings.timeline:
            self._record(now)

    def _record(self, now: float) -> None:
        outcome = self.outcome
        managed, local = sum(c.managed for c in self.members), sum(c.local_used for c in self.members)
        if not outcome.used or outcome.used[-1][1:] != (managed, local):
            outcome.used.append((now, managed, local))
        sent = outcome.grow_messages, outcome.shrink_messages
        if sent != self._recorded:
            outcome.messages.append((now, sent[0] - self._recorded[0], sent[1] - self._recorded[1]))
            self._recorded = sent

    # ---- start and end of a job -----------------------------------------------------------------------------------

    def _submit(self, job: SimulatedJob) -> bool:
        """Add a job to the queue; return whether a decision is wanted."""
        lane = lane_of(job)
        never = self.placing.refusal(job, lane)
        if never is not None:
            self.outcome.refused.append((job, never))
            return False
        if not self.waiting and not self._changed_clusters:  # no job was before it, and nothing else happened
            placed = self.placing.place(lane)
            if placed is not None and self._start(job, placed):
                return True
        self._wait(job, lane)
        return lane not in self._blocked_lanes

    def _wait(self, job: SimulatedJob, lane: Lane) -> None:
        self.waiting.enter(job.number, lane, (job.submitted_at, job.number))
        self._waiting_jobs[job.number] = job, lane

    def _start(self, job: SimulatedJob, placed: Sequence[PlacedComponent]) -> bool:
        """Claim the processors of a placement; return False when local users hold some of them."""
        held: dict[SimulatedCluster, int] = {}
        for component in placed:
            cluster = self._by_name[component.cluster]
            held[cluster] = held.get(cluster, 0) + component.processors
        lost = [cluster for cluster, processors in held.items() if processors > cluster.usable]
        for cluster in lost:  # the failed claim tells what the information service has not seen yet
            self.outcome.failed_claims += 1
            cluster.poll()
        if lost:
            return False
        now = self.engine.now + self.settings.placeholder_delay
        total = sum(held.values())
        run = Run(
            job=job, rates=self._rates_of(job.application), held=held, size=total, total=total, largest=total,
            started_at=now, since=now, left=job.work, speed=min(cluster.speed for cluster in held),
            restarts=self._restarts.get(job.number, 0),
        )  # fmt: skip
        self.runs[job.number] = run
        idle = self.settings.start_delay + self.settings.end_delay
        if idle > 0:
            run.standing += 1
            self.engine.after(self.settings.placeholder_delay + idle, partial(self._start_computing, run))
        for cluster, processors in held.items():
            cluster.managed += processors
            self._changed_clusters[cluster] = None
            if job.malleable:
                self._join(run, cluster, processors)
        self._account(run)
        return True

    def _start_computing(self, run: Run) -> None:
        if not run.over:
            self._account(run)
            run.standing -= 1

    def _join(self, run: Run, cluster: SimulatedCluster, processors: int) -> None:
        """Add the part of a new run that is on ``cluster`` to those that the malleability policy may resize."""
        application = run.job.application
        part = RunComponent(
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
            self.engine.after(self.settings.placeholder_delay, partial(self._started_placeholders, part))

    def _started_placeholders(self, part: RunComponent) -> None:
        if not part.run.over:
            part.cluster.running.end(part)
            self._more_free(part.cluster)

    def _rates_of(self, application: Application) -> Sequence[float]:
        found = self._rates.get(id(application))
        if found is None:
            rates = [0.0, *(1.0 / seconds for seconds in application.times()[1:])]
            found = self._rates[id(application)] = application, rates
        return found[1]

    def _end(self, run: Run) -> None:
        run.account(self.engine.now)
        self._leave(run)
        self._on_end(run.result(self.engine.now))
        self.outcome.ended_at = self.engine.now

    def _leave(self, run: Run) -> None:
        """Release all processors of a run."""
        run.over = True
        del self.runs[run.job.number]
        for part in run.parts:
            part.cluster.running.remove(part)
            if part.pending < 0:
                part.cluster.shrinking += part.pending
        run.parts.clear()  # or run and parts would hold each other, for the collector to find
        for cluster, processors in run.held.items():
            self._drain(cluster, processors)

    def evict(self, cluster: SimulatedCluster, index: int) -> None:
        """End the run that holds a processor of a cluster, because its node failed, and submit the job again."""
        for run in self.runs.values():
            index -= run.held.get(cluster, 0)
            if index < 0:
                break
        else:
            return
        self._restarts[run.job.number] = run.restarts + 1
        self._leave(run)
        self._wait(run.job, lane_of(run.job))

    # ---- what is known to be free -----------------------------------------------------------------------------------

    def _more_free(self, cluster: SimulatedCluster) -> None:
        """Record that a cluster may have more free processors than before, so that waiting jobs are tried again."""
        self._changed_clusters[cluster] = None
        self._blocked_lanes.clear()
        self._gave_nothing.clear()
        self._undecided = True

    def _poll(self, cluster: SimulatedCluster) -> None:
        """Let the information service see what is out of our reach."""
        if cluster.poll():
            self._more_free(cluster)

    def _poll_later(self, cluster: SimulatedCluster) -> None:
        self._poll(cluster)
        self.engine.after(self.settings.poll_interval, partial(self._poll_later, cluster))

    def others_changed(self, cluster: SimulatedCluster) -> None:
        """Poll a cluster whose local use has changed, where polls are immediate; else the next poll sees it."""
        if self.settings.poll_interval <= 0:
            self._poll(cluster)

    def _freed(self, cluster: SimulatedCluster) -> None:
        """Start waiting local jobs on a cluster where processors became free; the rest may go to koala's jobs."""
        cluster.start_locals()
        self.others_changed(cluster)
        self._more_free(cluster)

    def _drain(self, cluster: SimulatedCluster, processors: int) -> None:
        """Release processors that no job uses any more, at once or after the release delay."""
        if self.settings.release_delay <= 0:
            cluster.managed -= processors
            self._freed(cluster)
        else:
            cluster.draining += processors
            self.engine.after(self.settings.release_delay, partial(self._drained, cluster, processors))

    def _drained(self, cluster: SimulatedCluster, processors: int) -> None:
        cluster.draining -= processors
        cluster.managed -= processors
        self._freed(cluster)

    # ---- changes of size, in the order in which a change happens --------------------------------------------------

    def ask(self, part: RunComponent, amount: int) -> int:
        """Propose a change of size to a component; return what its application accepts. Both are signed."""
        if amount > 0:
            self.outcome.grow_messages += 1
        else:
            self.outcome.shrink_messages += 1
        size = part.size
        accepted = part.answers.get((size, amount))
        if accepted is None:
            answer = part.run.job.application.acceptance.answer
            accepted = part.answers[size, amount] = answer(size, amount, part.minimum, part.maximum)
        if not accepted:
            return 0
        run, cluster = part.run, part.cluster
        if amount > 0:
            most = min(cluster.capacity - cluster.managed, cluster.usable)
            if accepted > most:  # what was believed to be idle is not: placeholders that did not start are ended
                accepted = run.job.application.acceptance.answer(size, max(0, most), part.minimum, part.maximum)
            if accepted:
                run.grown += 1
        else:
            run.shrunk += 1
        if accepted:
            self._change(part, accepted)
        return accepted

    def _change(self, part: RunComponent, amount: int) -> None:
        run = part.run
        self._accepted += 1
        part.cluster.unwanted = None
        self._account(run)
        pause = run.job.application.cost.seconds(amount)
        if amount > 0:
            hold(run, part.cluster, amount)
            if pause > 0 or self._growth_delay > 0:
                part.cluster.running.begin(part)
                part.pending = amount
                self.engine.after(self._growth_delay, partial(self._stand_still, part, pause))
                return
        elif pause > 0:
            part.cluster.running.begin(part)
            part.pending = amount
            part.cluster.shrinking -= amount
            run.standing += 1
            self.engine.after(pause, partial(self._finish_shrinking, part))
            return
        else:
            self._give_up(part, amount)
        run.size += amount

    def _stand_still(self, part: RunComponent, pause: float) -> None:
        if not part.run.over:
            self._account(part.run)
            part.run.standing += 1
            self.engine.after(pause, partial(self._continue, part))

    def _finish_shrinking(self, part: RunComponent) -> None:
        if not part.run.over:
            part.cluster.shrinking += part.pending
            self._give_up(part, part.pending)
            self._continue(part)

    def _give_up(self, part: RunComponent, amount: int) -> None:
        """Release ``amount`` processors of a run."""
        hold(part.run, part.cluster, amount)
        if self.settings.release_delay > 0:
            part.cluster.managed -= amount
            self._drain(part.cluster, -amount)

    def _continue(self, part: RunComponent) -> None:
        """Let a component compute again, with its new size."""
        if not part.run.over:
            self._account(part.run)
            part.run.standing -= 1
            part.run.size += part.pending
            part.pending = 0
            part.cluster.running.end(part)
            self._freed(part.cluster)

    def _account(self, run: Run) -> None:
        """Account for a run before its size or speed changes, and have its end computed again."""
        if not run.changed:
            run.changed = True
            self._to_forecast.append(run)
            run.account(self.engine.now)

    # ---- what job management asks ---------------------------------------------------------------------------------

    @property
    def approach(self) -> Approach:
        return self.settings.approach

    def decision_wanted(self) -> bool:
        wanted, self._undecided = self._undecided, False
        return wanted

    def clusters(self) -> Sequence[SimulatedCluster]:
        return list(self._changed_clusters)

    def running(self, cluster: SimulatedCluster) -> RunningJobs[RunComponent]:
        return cluster.running

    def free(self, cluster: SimulatedCluster) -> int:
        return cluster.free

    def room(self, cluster: SimulatedCluster) -> int:
        return cluster.free + cluster.draining

    def ending(self, cluster: SimulatedCluster) -> int:
        return cluster.shrinking + cluster.draining

    def paused(self, cluster: SimulatedCluster, direction: Direction) -> bool:
        """Return whether shrinking on a cluster freed nothing; true until processors become free there."""
        return direction is Direction.SHRINK and cluster in self._gave_nothing

    def rebalances(self, cluster: SimulatedCluster) -> bool:  # noqa: ARG002 - all clusters have one policy
        return self._malleability.rebalances

    def jobs_wait(self) -> bool:
        return len(self.waiting) > 0

    def making_room(self) -> bool:
        """Return whether processors that jobs gave up for the head of the queue are not free yet."""
        self._awaited = [cluster for cluster in self._awaited if cluster.shrinking or cluster.draining]
        return bool(self._awaited)

    def needs_of_head(self) -> Iterable[Need[SimulatedCluster]]:
        head = self.waiting.first(1)
        return self.placing.needs(self._waiting_jobs[head[0]][1]) if head else ()

    # ---- what it decides ------------------------------------------------------------------------------------------

    def continue_changes(self, cluster: SimulatedCluster) -> None:
        """Do nothing: steps are over at once."""

    def scan(self, kept: Sequence[SimulatedCluster]) -> None:  # noqa: ARG002 - the running have taken what they want
        """Start waiting jobs, one lane after another."""
        blocked, place = self._blocked_lanes, self.placing.place
        for _, number in self.waiting.scan(lambda lane: lane not in blocked, most=MOST_PROCESSORS):
            job, lane = self._waiting_jobs[number]
            while (placed := place(lane)) is not None:
                if self._start(job, placed):
                    self.waiting.remove(number)
                    del self._waiting_jobs[number]
                    break
            else:
                blocked.add(lane)

    def keep_room(self, needs: Mapping[ClusterName, int]) -> None:
        """Do nothing: the queue is scanned as soon as something is free."""

    def grow(self, cluster: SimulatedCluster, value: int, *, thorough: bool) -> bool:
        """Carry out one growth step; return whether another one may follow."""
        step = Step(direction=Direction.GROW, remaining=value, thorough=thorough)
        before = self._accepted
        carry_out(self._malleability, cluster.running, step, self.ask)
        if self._accepted > before and not self._malleability.rebalances:
            return True
        cluster.unwanted = cluster.free
        return False

    def shrink(self, cluster: SimulatedCluster, value: int, shrunk_for: ShrunkFor) -> None:  # noqa: ARG002 - for the head
        """Carry out one shrink step, and give what it frees to local users and waiting jobs."""
        before, draining = cluster.free, cluster.draining
        step = Step(direction=Direction.SHRINK, remaining=value)
        carry_out(self._malleability, cluster.running, step, self.ask)
        under_way = cluster.shrinking or cluster.draining > draining
        if under_way:
            self._awaited.append(cluster)
        if cluster.free > before:  # some may have given theirs up at once, others stand still first
            self._freed(cluster)
        elif not under_way:
            self._gave_nothing.add(cluster)
            self._undecided = True


def simulate(platform: Platform, workload: Iterable[SimulatedJob], settings: Settings) -> Outcome:
    """Run a simulation to its end and return its outcome."""
    return Multicluster(platform, workload, settings).run()
