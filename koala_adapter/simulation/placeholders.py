# SPDX-License-Identifier: Apache-2.0
"""The whole scheduler on simulated batch systems: placeholders in their queues, in virtual time.

The very :class:`~koala_adapter.scheduler.Scheduler` that runs live gets the events that the service would post, and
what it wants done is done to simulated clusters after the delays that a real site has. So what is measured here is what
the live program would do. First come the programs of jobs, then a batch system, then the service.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, assert_never

from koala_adapter.driver.loop import EventLoop
from koala_adapter.driver.store import MemoryStore
from koala_adapter.errors import KoalaError, SimulationError
from koala_adapter.model import ClusterName, EndReason, Job, JobId, LrmJobId, PlaceholderId, TaskEnd
from koala_adapter.outcome import JobOutcome, PlaceholderState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.simulation.applications import FREE, ReconfigurationCost
from koala_adapter.simulation.world import FIRST, LAST, SETTLED, Engine, EventHandle, LocalUse, schedule_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.simulation.platform import BackgroundLoad, ClusterModel


# -- Programs ------------------------------------------------------------------------------------------------


class Program(Protocol):
    """Execution times, cost of changes and answers of a job's program: rigid, or of :mod:`simulation.applications`."""

    @property
    def cost(self) -> ReconfigurationCost:
        """What a change of size costs."""

    def execution_time(self, processors: int) -> float:
        """Return the execution time (seconds) on ``processors`` processors (at least 1)."""

    def answer(self, size: int, amount: int) -> int:
        """Return how many processors the program accepts of a proposed change (positive: grow, negative: shrink)."""


@dataclass(frozen=True, slots=True)
class Rigid:
    """A program of fixed execution time that never changes its size."""

    seconds: float
    cost: ReconfigurationCost = FREE

    def execution_time(self, processors: int) -> float:  # noqa: ARG002 - it has all it was launched on
        """Return the fixed execution time."""
        return self.seconds

    def answer(self, size: int, amount: int) -> int:  # noqa: ARG002 - see above
        """Decline every change."""
        return 0


@dataclass(slots=True)
class _Execution:
    """A program while it runs."""

    program: Program
    size: int
    since: float
    """When it was last accounted for; later than now while it stands still for a change."""
    left: float = 1.0
    """Share of its work."""
    end: EventHandle | None = None

    def resize(self, change: int, now: float) -> None:
        """Continue with another number of processors, after standing still for the cost of the change."""
        self.left -= max(0.0, now - self.since) / self.program.execution_time(self.size)
        self.since = max(self.since, now) + self.program.cost.seconds(change)
        self.size += change


# -- Batch system --------------------------------------------------------------------------------------------
# Seen from outside: a queue in strict order, processors, users of whom some go first.
#
# Nothing passes the head of the queue, as in a site that runs first come, first served. So processors may be idle while
# a placeholder waits: what a meta-scheduler sees of a cluster is not what it would get.


@dataclass(slots=True, eq=False)
class QueuedJob:
    """A job of a batch system; compared by identity."""

    user: str
    processors: int
    walltime: float
    """Seconds after which it is ended."""
    on_start: Callable[[QueuedJob], None]
    on_end: Callable[[QueuedJob, EndReason], None]
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    places: tuple[int, ...] = ()
    """Numbers of its processors while it runs."""
    timer: EventHandle | None = None

    @property
    def running(self) -> bool:
        """True between start and end."""
        return self.started_at is not None and self.ended_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Use of one processor by one job for a time: a bar of a timeline."""

    place: int
    who: str
    begins_at: float
    ends_at: float


class BatchSystem:
    """Simulated batch system of one cluster, whose nodes have one processor each."""

    def __init__(
        self, engine: Engine, name: ClusterName, processors: int, *, priorities: Mapping[str, int] | None = None
    ) -> None:
        """``priorities``: by user; higher goes first, the default is 0."""
        self.engine = engine
        self.name = name
        self.processors = processors
        self.priorities = dict(priorities or {})
        self.allocations: list[Allocation] | None = None
        """Which job had which processor and when, of jobs that ended; None: not recorded."""
        self._free = list(range(processors))
        self._down: set[int] = set()
        self._queue: list[tuple[int, int, QueuedJob]] = []
        self._running: dict[int, QueuedJob] = {}
        """By the number of the processor."""
        self._entered = 0
        self._wanted = False

    @property
    def idle(self) -> int:
        """Unused processors."""
        return len(self._free)

    @property
    def running(self) -> Mapping[int, QueuedJob]:
        """Jobs that run, by the number of each processor."""
        return self._running

    def submit(self, job: QueuedJob) -> None:
        """Put a job into the queue."""
        self._entered += 1
        job.submitted_at = self.engine.now
        heapq.heappush(self._queue, (-self.priorities.get(job.user, 0), self._entered, job))
        self._schedule_soon()

    def cancel(self, job: QueuedJob) -> None:
        """End a job, or take it out of the queue."""
        self.end(job, EndReason.CANCELLED)

    def end(self, job: QueuedJob, reason: EndReason) -> None:
        """End a job that completed or was killed; no effect on one that has ended."""
        if job.ended_at is not None:
            return
        job.ended_at = self.engine.now
        if job.timer is not None:
            job.timer.cancel()
        for place in job.places:
            del self._running[place]
            if place not in self._down:
                heapq.heappush(self._free, place)
        if job.started_at is not None and self.allocations is not None:
            who = job.user
            self.allocations += [
                Allocation(place=place, who=who, begins_at=job.started_at, ends_at=self.engine.now)
                for place in job.places
            ]
        self._schedule_soon()
        job.on_end(job, reason)

    def local_job(self, use: LocalUse) -> None:
        """Submit the job of a local user."""
        self.submit(local_job("local", use.processors, use.run, self))

    def node_fails(self, node: int) -> None:
        """Remove a processor and end the job on it; no effect on one that is away."""
        if node in self._down:
            return
        self._down.add(node)
        job = self._running.get(node)
        if job is not None:
            self.end(job, EndReason.NODE_LOST)
        else:
            self._free.remove(node)
            heapq.heapify(self._free)

    def node_returns(self, node: int) -> None:
        """Add a failed processor again."""
        if node in self._down:
            self._down.remove(node)
            heapq.heappush(self._free, node)
            self._schedule_soon()

    def _schedule_soon(self) -> None:
        """Schedule the start of jobs after all other events of this instant."""
        if not self._wanted:
            self._wanted = True
            self.engine.after(0.0, self._schedule, rank=LAST)

    def _schedule(self) -> None:
        self._wanted = False
        while self._queue:
            job = self._queue[0][2]
            if job.ended_at is None and job.processors > len(self._free):
                return
            heapq.heappop(self._queue)
            if job.ended_at is None:
                self._start(job)

    def _start(self, job: QueuedJob) -> None:
        job.started_at = self.engine.now
        job.places = tuple(heapq.heappop(self._free) for _ in range(job.processors))
        for place in job.places:
            self._running[place] = job
        job.timer = self.engine.after(job.walltime, lambda: self.end(job, EndReason.WALLTIME), rank=FIRST)
        job.on_start(job)


def local_job(user: str, processors: int, seconds: float, system: BatchSystem) -> QueuedJob:
    """Return a job of a local user that runs for ``seconds`` seconds."""

    def start(job: QueuedJob) -> None:
        system.engine.after(seconds, lambda: system.end(job, EndReason.EXITED), rank=FIRST)

    return QueuedJob(user, processors, 1e12, start, lambda _job, _reason: None)


def with_local_users(engine: Engine, model: ClusterModel, load: BackgroundLoad, seed: int) -> BatchSystem:
    """Create the batch system of a cluster and schedule the submissions of its local users."""
    system = BatchSystem(engine, model.cluster, model.processors)
    schedule_background(engine, system, model, load=load, failures=None, seed=seed)
    return system


# -- Service in virtual time ---------------------------------------------------------------------------------

EXIT_0 = TaskEnd(reason=EndReason.EXITED, exit_code=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays of a real site: submission, start, agent contact, launch, end. In seconds."""

    submit: float = 0.5
    """From the wish to submit until the LRM has the job."""
    agent: tuple[float, float] = (1.0, 3.0)
    """From the start of a placeholder until its agent has reported: drawn evenly between the two."""
    message: float = 0.05
    """To an agent, or back."""
    release: float = 1.0
    """From an agent's end until the LRM shows it."""
    poll: float = 15.0
    """Between two looks at a cluster."""
    transfer: float = 1.0
    """How many times as long as foreseen input files travel."""
    silent_share: float = 0.0
    """Share of the agents that are never heard of."""


@dataclass(slots=True)
class _Held:
    """A placeholder's job in the batch system, and whether its agent has reported."""

    id: PlaceholderId
    system: BatchSystem
    job: QueuedJob
    reported: bool = False


@dataclass(slots=True)
class Milestones:
    """Times of a job's submission, start and end, in seconds."""

    submitted_at: float
    launched_at: float | None = None
    ended_at: float | None = None
    outcome: JobOutcome | None = None
    clusters: dict[ClusterName, int] = field(default_factory=dict)
    """Where it ran, with processors."""

    @property
    def co_allocation(self) -> float | None:
        """Seconds from the submission until all processors were held; None when it never started."""
        return None if self.launched_at is None else self.launched_at - self.submitted_at


class SimulatedService:
    """The scheduler of one user in virtual time, with simulated batch systems and agents."""

    def __init__(  # noqa: PLR0913 - what a service and its world consist of
        self,
        engine: Engine,
        systems: Sequence[BatchSystem],
        parameters: Parameters,
        clusters: Sequence[ClusterParameters],
        *,
        program_of: Callable[[JobRecord], Program],
        user: str = "user",
        delays: Delays | None = None,
        seed: int = 0,
        policies: Policies = OWN,
    ) -> None:
        """``program_of``: what a job runs, asked at its launch."""
        self.engine = engine
        self.systems: Mapping[ClusterName, BatchSystem] = {system.name: system for system in systems}
        self.user = user
        self.delays = delays or Delays()
        self.jobs: dict[JobId, Milestones] = {}
        self._store = MemoryStore()
        self.held_seconds = 0.0
        """Processor-seconds of all placeholders that are gone, used or not."""
        self._program_of = program_of
        self._executions: dict[JobId, _Execution] = {}
        self._rng = random.Random(f"{seed}/{user}")
        self._placeholders: dict[PlaceholderId, _Held] = {}
        self._running: dict[ClusterName, int] = dict.fromkeys(self.systems, 0)
        self._started_since_poll: dict[ClusterName, list[PlaceholderId]] = {}
        """Placeholders that started since the last poll."""
        self._polled: dict[ClusterName, tuple[int, int, int]] = {}
        self._transfers: dict[tuple[JobId, ClusterName], EventHandle] = {}
        """Input files that are on their way, or have arrived."""
        self._wakeup: float | None = None
        make = partial(Scheduler, policies=policies)
        self._loop = EventLoop(make(), self._store, self, self, make=make)
        self._post(ev.Configured(time=engine.now, parameters=parameters, clusters=tuple(clusters)))
        for name in self.systems:
            self._poll(name)

    @property
    def journal(self) -> list[ev.Event]:
        """All events, as the live service keeps them: replayed, they give the same decisions."""
        return self._store.events

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self._loop.scheduler.state

    @property
    def unfinished(self) -> int:
        """Jobs that have not ended."""
        return sum(one.ended_at is None for one in self.jobs.values())

    def submit(self, job: Job) -> None:
        """Hand in a job now."""
        self.jobs[job.id] = Milestones(submitted_at=self.engine.now)
        self._post(ev.JobSubmitted(time=self.engine.now, job=job))

    # ---- events and actions ---------------------------------------------------------------------------------------

    def _post(self, event: ev.Event) -> None:
        self._loop.post(event)

    def handled(self, event: ev.Event) -> None:
        """Do nothing: what follows from an event is carried out as actions."""

    def settled(self) -> None:
        """Called after the last received event was handled."""
        wakeup = self._loop.scheduler.next_wakeup
        if wakeup is not None and (self._wakeup is None or wakeup < self._wakeup):
            self._wakeup = wakeup
            self.engine.at(wakeup, partial(self._wake, wakeup))

    def halted(self) -> None:
        """Raise AssertionError: what is kept in memory can always be written."""

    def snapshot_begun(self) -> None:
        """Do nothing: no other work waits here."""
        while self._loop.write_snapshot_group():
            pass

    def state_rebuilt(self, set_aside: Sequence[ev.Event]) -> None:
        """Raise: in a simulation the scheduler must not fail."""
        kind = type(set_aside[0]).__name__
        raise SimulationError(f"the scheduler failed on an event of the simulation ({kind}); the log has the traceback")

    def failed(self, error: KoalaError) -> None:
        """Raise: the scheduler's state cannot be restored."""
        raise error

    def _wake(self, wakeup: float) -> None:
        if self._wakeup == wakeup:
            self._wakeup = None
            self._post(ev.TimeReached(time=self.engine.now))

    def carry_out(self, action: act.Action) -> None:  # noqa: C901, PLR0912 - one case for each kind of action
        """Carry out an action in the simulated world."""
        engine, soon = self.engine, self.delays.message
        match action:
            case act.SubmitPlaceholders():
                engine.after(self.delays.submit, partial(self._arrive, action))
            case act.EndPlaceholders():
                engine.after(soon, partial(self._end, action), rank=FIRST)
            case act.ReserveProcessors():
                self._reserve_processors(action)
            case act.StageFiles():
                self._stage_files(action)
            case act.StopStaging():
                transfer = self._transfers.pop((action.job_id, action.cluster), None)
                if transfer is not None:
                    transfer.cancel()
            case act.LaunchJob():
                self._launch_job(action)
            case act.OfferProcessors():
                engine.after(soon, partial(self._answer, action, 1))
            case act.RequestProcessors():
                engine.after(soon, partial(self._answer, action, -1))
            case act.TakeProcessors():
                engine.after(soon, partial(self._take, action), rank=SETTLED)
            case act.FinishJob():
                milestones = self.jobs[action.job_id]
                milestones.ended_at, milestones.outcome = engine.now, action.outcome
            case act.CorrectOutcome():
                self.jobs[action.job_id].outcome = action.outcome
            case act.ReportRefusedAnswer():  # a policy that gives invalid answers makes the simulation worthless
                raise SimulationError(action.reason, hint="mend the policy; see `koala docs policies`")
            case act.WithdrawOffer() | act.GrantProcessors():
                pass  # no program asks for processors itself, or waits for those that it accepted
            case act.EndReservation() | act.ReadPlaceholderOutput() | act.EndAttempt():
                pass  # nothing is reserved; silent agents write nothing; those of an attempt end with placeholders
            case _:
                assert_never(action)

    # ---- placeholders ---------------------------------------------------------------------------------------------

    def _arrive(self, action: act.SubmitPlaceholders) -> None:
        system, batch = self.systems[action.cluster], action.batch
        for index in range(1, action.count + 1):
            id_ = PlaceholderId(batch=batch, index=index)
            start, gone = partial(self._started, id_), partial(self._gone, id_)
            job = QueuedJob(self.user, 1, float(action.walltime), start, gone)
            self._placeholders[id_] = _Held(id_, system, job)
            system.submit(job)
        ids = tuple(LrmJobId(f"{batch}_{index}") for index in range(1, action.count + 1))
        self._post(ev.BatchSubmitted(time=self.engine.now, batch=batch, lrm_ids=ids))

    def _started(self, id_: PlaceholderId, _job: QueuedJob) -> None:
        name = self._placeholders[id_].system.name
        self._running[name] += 1
        self._started_since_poll.setdefault(name, []).append(id_)
        delay = self._rng.uniform(*self.delays.agent)
        if self.delays.silent_share == 0.0 or self._rng.random() >= self.delays.silent_share:
            self.engine.after(delay, partial(self._reported, id_))

    def _reported(self, id_: PlaceholderId) -> None:
        one = self._placeholders.get(id_)
        placeholder = self.state.placeholders.get(id_)
        if one is None or placeholder is None or not one.job.running or one.job.started_at is None:
            return
        one.reported = True
        host = f"{one.system.name}-{one.job.places[0]}"
        ends_at = one.job.started_at + one.job.walltime
        self._post(ev.PlaceholderHeld(time=self.engine.now, placeholder=id_, host=host, address=host, ends_at=ends_at))

    def _gone(self, id_: PlaceholderId, job: QueuedJob, reason: EndReason) -> None:
        if job.started_at is not None:
            self.held_seconds += self.engine.now - job.started_at
            self._running[self._placeholders[id_].system.name] -= 1
        del self._placeholders[id_]
        self.engine.after(self.delays.release, partial(self._told_gone, id_, reason), rank=FIRST)

    def _told_gone(self, id_: PlaceholderId, reason: EndReason) -> None:
        self._post(ev.PlaceholderEnded(time=self.engine.now, placeholder=id_, reason=reason))

    # ---- files ----------------------------------------------------------------------------------------------------

    def _reserve_processors(self, action: act.ReserveProcessors) -> None:
        """Refuse: a simulated batch system has a queue alone."""
        refused = ev.ReservationRefused(
            time=self.engine.now, job_id=action.job_id, name=action.name, reason="simulated clusters do not reserve"
        )
        self._post(refused)

    def _stage_files(self, action: act.StageFiles) -> None:
        """Send what a cluster lacks, at the bandwidth that is known of it; where none is, it is there at once."""
        transfer = (action.job_id, action.cluster)
        if transfer not in self._transfers:
            foreseen = self.state.jobs[action.job_id].staging[action.cluster].ready_at() or self.engine.now
            seconds = (foreseen - self.engine.now) * self.delays.transfer
            self._transfers[transfer] = self.engine.after(seconds, partial(self._staged, *transfer), rank=FIRST)

    def _staged(self, job_id: JobId, cluster: ClusterName) -> None:
        self._post(ev.FilesStaged(time=self.engine.now, job_id=job_id, cluster=cluster))

    def _end(self, action: act.EndPlaceholders) -> None:
        for id_ in action.placeholders:
            one = self._placeholders.get(id_)
            placeholder = self.state.placeholders.get(id_)
            if one is not None and placeholder is not None and placeholder.state is PlaceholderState.ENDING:
                one.system.end(one.job, EndReason.EXITED if one.reported else EndReason.CANCELLED)

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def _launch_job(self, action: act.LaunchJob) -> None:
        """Start the ranks of a job."""
        record = self.state.jobs[action.job_id]
        milestones = self.jobs[action.job_id]
        milestones.launched_at = self.engine.now
        milestones.clusters = {}
        for claim in record.claims:
            if claim.cluster is not None:
                milestones.clusters[claim.cluster] = milestones.clusters.get(claim.cluster, 0) + claim.processors
        run = partial(self._run, action, self._program_of(record))
        self.engine.after(self.delays.message, run, rank=SETTLED)

    def _run(self, action: act.LaunchJob, program: Program) -> None:
        former = self._executions.get(action.job_id)
        if former is not None and former.end is not None:
            former.end.cancel()
        self._executions[action.job_id] = _Execution(program, len(action.ranks), self.engine.now)
        self._start_ranks(action)
        self._foresee_end(action.job_id)

    def _start_ranks(self, action: act.LaunchJob | act.TakeProcessors) -> None:
        for rank in action.ranks:
            self._post(ev.RankStarted(time=self.engine.now, job_id=action.job_id, rank=rank.rank))

    def _foresee_end(self, job_id: JobId) -> None:
        one = self._executions[job_id]
        if one.end is not None:
            one.end.cancel()
        seconds = one.since - self.engine.now + one.left * one.program.execution_time(one.size)
        one.end = self.engine.after(seconds + self.delays.message, partial(self._ended, job_id), rank=FIRST)

    def _ended(self, job_id: JobId) -> None:
        del self._executions[job_id]
        record = self.state.jobs.get(job_id)
        for rank in () if record is None else list(record.ranks):
            if rank.placeholder in self._placeholders:
                self._post(ev.RankEnded(time=self.engine.now, job_id=job_id, rank=rank.rank, end=EXIT_0))

    # ---- changes of size ------------------------------------------------------------------------------------------

    def _answer(self, action: act.OfferProcessors | act.RequestProcessors, sign: int) -> None:
        one, record = self._executions.get(action.job_id), self.state.jobs.get(action.job_id)
        claim = None if one is None or record is None else record.claims[0]
        accepted = 0
        if one is not None and claim is not None:
            accepted = one.program.answer(claim.processors, sign * action.processors)
        going = tuple(claim.placeholders[accepted:]) if claim is not None and accepted < 0 else ()
        answered = ev.OfferAnswered(
            time=self.engine.now, job_id=action.job_id, number=action.number, accepted=abs(accepted)
        )
        self._post(answered)
        if one is not None and going:
            one.resize(accepted, self.engine.now)
            self._foresee_end(action.job_id)
            self.engine.after(one.program.cost.seconds(accepted), partial(self._release, action.job_id, going))

    def _release(self, job_id: JobId, going: tuple[PlaceholderId, ...]) -> None:
        self._post(ev.ProcessorsReleased(time=self.engine.now, job_id=job_id, placeholders=going))

    def _take(self, action: act.TakeProcessors) -> None:
        one = self._executions.get(action.job_id)
        if one is not None:
            one.resize(len(action.ranks), self.engine.now)
            self._foresee_end(action.job_id)
            self._start_ranks(action)

    # ---- polling --------------------------------------------------------------------------------------------------

    def _poll(self, name: ClusterName) -> None:
        system = self.systems[name]
        for id_ in self._started_since_poll.pop(name, ()):
            if id_ in self._placeholders and not self._placeholders[id_].reported:
                self._post(ev.PlaceholderStarted(time=self.engine.now, placeholder=id_))
        reading = (system.processors, system.idle, self._running[name])
        if self._polled.get(name) != reading:
            self._polled[name] = reading
            self._post(
                ev.ClusterPolled(
                    time=self.engine.now, cluster=name, processors=reading[0], idle=reading[1], ours=reading[2]
                )
            )
        self.engine.after(self.delays.poll, partial(self._poll, name))


def run_to_end(engine: Engine, services: Sequence[SimulatedService], *, until: float) -> bool:
    """Run until every job has ended and no placeholder is left; return False when ``until`` came first."""
    while any(service.unfinished or service.state.placeholders for service in services):
        following = engine.next_time
        if following is None or following > until:
            return False
        engine.step()
    return True
