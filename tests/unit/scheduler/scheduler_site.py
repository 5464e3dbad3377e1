# SPDX-License-Identifier: Apache-2.0
"""A site for tests of the scheduler: gives it events at a virtual time and keeps what it wants done.

After every event the scheduler's counts are compared with a recount, so each test checks them on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

import pytest
from pydantic import TypeAdapter

from koala_adapter.model import (
    BatchKey,
    ClusterName,
    Component,
    EndReason,
    Job,
    JobId,
    JobKind,
    Launcher,
    LrmJobId,
    PlaceholderId,
    TaskEnd,
)
from koala_adapter.outcome import JobOutcome, JobState, PlaceholderState
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, EndPlaceholders, FinishJob, LaunchJob, SubmitPlaceholders
from koala_adapter.scheduler.explain import explain
from koala_adapter.scheduler.knownpolicies import OWN, Policies
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.scheduler.records import Claim, JobRecord, PlaceholderRecord, State
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.scheduler.states import bounds

STATE = TypeAdapter(State)
WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
A, B, C = ClusterName("a"), ClusterName("b"), ClusterName("c")

A_ = TypeVar("A_", bound=Action)


def component(
    name: str, minimum: int, maximum: int | None = None, *, cluster: str | None = None, mpi: bool = False
) -> Component:
    """Return a component of ``minimum`` processors, moldable when ``maximum`` is given."""
    return Component(
        name=name,
        command=("program",),
        minimum=minimum,
        maximum=minimum if maximum is None else maximum,
        cluster=None if cluster is None else ClusterName(cluster),
        launcher=Launcher.MPI if mpi else Launcher.PROCESS,
    )


def job(
    id_: str,
    *components: Component | int,
    walltime: int = 600,
    submitted_at: float = 0.0,
    priority: int = 0,
    maximum_tries: int | None = None,
    placement: str = "worst-fit",
) -> Job:
    """Return a job; a component given as a number is a rigid one of that size on any cluster."""
    made = tuple(one if isinstance(one, Component) else component(f"c{n}", one) for n, one in enumerate(components))
    rigid = all(one.minimum == one.maximum for one in made)
    return Job(
        id=JobId(id_),
        name=f"job {id_}",
        kind=JobKind.RIGID if rigid else JobKind.MOLDABLE,
        components=made,
        walltime=walltime,
        user="alice",
        submitted_at=submitted_at,
        priority=priority,
        maximum_tries=maximum_tries,
        placement=placement,
    )


def recount(state: State) -> None:
    """Compare every count that the scheduler keeps with what it counts."""
    had = processors_had(state)
    placeholders = state.placeholders.values()
    managed = processors_by_cluster(placeholders)
    queued = Counter(p.cluster for p in placeholders if p.waiting)
    processors_queued = processors_by_cluster(p for p in placeholders if p.waiting)
    for name, cluster in state.clusters.items():
        assert cluster.managed == managed[name], f"{name}: managed"
        assert cluster.queued == queued[name], f"{name}: queued"
        assert cluster.processors_queued == processors_queued[name], f"{name}: processors queued"
    live = Counter(p.job_id for p in placeholders)
    held = Counter(p.job_id for p in placeholders if p.state is PlaceholderState.HELD)
    for id_, record in state.jobs.items():
        assert record.live == live[id_], f"job {id_}: live"
        assert record.held == held[id_], f"job {id_}: held"
        assert record.processors_held == had[id_], f"job {id_}: processors held"
        if not record.state.final:
            claimed = [one for claim in record.claims for one in claim.placeholders]
            assert len(claimed) == len(set(claimed)), f"job {id_}: a placeholder is claimed twice"
            assert all(state.placeholders[one].job_id == id_ for one in claimed), f"job {id_}: claims another's"
    recount_changes(state)
    batches = Counter(p.id.batch for p in placeholders)
    assert {key: batch.live for key, batch in state.batches.items()} == dict(batches)


def processors_had(state: State) -> Counter[JobId]:
    """Return the processors that jobs have, by job."""
    found: Counter[JobId] = Counter()
    for placeholder in state.placeholders.values():
        if placeholder.state in {PlaceholderState.HELD, PlaceholderState.LAUNCHED}:
            slot = state.slot_of(placeholder)
            found[placeholder.job_id] += placeholder.slot_processors if slot.exclusive else slot.threads
    return found


def processors_by_cluster(placeholders: Iterable[PlaceholderRecord]) -> Counter[ClusterName]:
    """Return the processors that the slots of placeholders take, by cluster."""
    found: Counter[ClusterName] = Counter()
    for placeholder in placeholders:
        found[placeholder.cluster] += placeholder.slot_processors
    return found


def recount_changes(state: State) -> None:
    """Compare the counts that concern malleable jobs with what they count, and sizes with their bounds."""
    ending = processors_by_cluster(p for p in state.placeholders.values() if p.state is PlaceholderState.ENDING)
    offered: Counter[ClusterName | None] = Counter()
    gathering: Counter[ClusterName | None] = Counter()
    awaited: Counter[ClusterName | None] = Counter()
    stubs: set[PlaceholderId] = set()
    for id_, record in state.jobs.items():
        for claim in record.claims:
            if record.state is JobState.RUNNING and record.job.kind is JobKind.MALLEABLE:
                check_bounds(record, claim)
            stubs.update(claim.places)
            gathering[claim.cluster] += len(claim.places) * claim.slot_processors
            assert not claim.places or record.state is JobState.RUNNING, f"job {id_}: waits for more after its end"
        for number, change in record.changes.items():
            assert record.state is JobState.RUNNING, f"job {id_}: changes"
            assert number == change.number, f"job {id_}: a change has another number"
            assert change.phase not in {ChangePhase.NEW, ChangePhase.OVER}, f"job {id_}: no change that is under way"
            stubs.update(change.stubs)
            awaited[record.claims[change.parts[0].claim].cluster] += change.in_step
            for part in change.parts:
                claim = record.claims[part.claim]
                if change.phase is ChangePhase.GATHERING:
                    gathering[claim.cluster] += part.accepted * claim.slot_processors
                if change.phase is ChangePhase.PROMISED or (change.phase is ChangePhase.ASKED and part.processors > 0):
                    offered[claim.cluster] += part.processors * claim.slot_processors
    assert {p.id for p in state.placeholders.values() if p.stub} == stubs, "stubs"
    for name, cluster in state.clusters.items():
        assert cluster.ending == ending[name], f"{name}: ending"
        assert cluster.offered == offered[name], f"{name}: offered"
        assert cluster.gathering == gathering[name], f"{name}: gathering"
        assert (0 if cluster.step is None else cluster.step.awaited) == awaited[name], f"{name}: awaited"


def check_bounds(record: JobRecord, claim: Claim) -> None:
    """Compare the size of a claim of a running malleable job with its bounds."""
    minimum, maximum = bounds(record, claim)
    component_ = record.job.component(claim.component)
    if record.job.has_workers:  # they may end by themselves
        minimum = 0
    elif component_.flexible:
        # By the bounds of one claim the others get all that they are offered, which can be too much.
        minimum = 0
        total = sum(one.processors for one in record.claims if one.component == claim.component)
        assert component_.minimum <= total <= component_.maximum, f"job {record.job.id}: out of bounds"
    if minimum == 0 or claim.component in record.sizes_wanted:
        maximum = component_.maximum  # it may have more than is wanted now
    lost = claim.processors - len(claim.placeholders)  # after their ranks had ended
    assert 0 <= lost <= len(record.ends), f"job {record.job.id}: size"
    assert minimum <= claim.processors <= maximum, f"job {record.job.id}: out of bounds"


class Site:
    """A scheduler with clusters of idle processors, at a virtual time that begins at 1000 s."""

    def __init__(
        self,
        processors: Mapping[str, int],
        parameters: Parameters | None = None,
        *clusters: ClusterParameters,
        policies: Policies = OWN,
        unseen: tuple[str, ...] = (),
    ) -> None:
        """``clusters``: those whose parameters are not the defaults. ``unseen``: further ones, not polled yet."""
        self.now = 1000.0
        self.scheduler = Scheduler(policies=policies)
        self.parameters = parameters or Parameters()
        special = {one.name: one for one in clusters}
        self.clusters = tuple(
            special.get(ClusterName(name), ClusterParameters(name=ClusterName(name))) for name in (*processors, *unseen)
        )
        self.events: list[ev.Event] = []
        self.actions: list[Action] = []
        self.held_seconds: Counter[JobId] = Counter()
        """For how long jobs have had processors, added up apart from the scheduler."""
        self.post(ev.Configured(time=self.now, parameters=self.parameters, clusters=self.clusters))
        for name, count in processors.items():
            self.poll(name, count)

    @property
    def state(self) -> State:
        return self.scheduler.state

    def post(self, event: ev.Event) -> list[Action]:
        """Give the scheduler an event and return what it wants done."""
        self.events.append(event)
        had, before = processors_had(self.state), self.state.now
        actions = self.scheduler.handle(event)
        self.actions += actions
        recount(self.state)
        now = self.state.now or 0.0
        for id_, processors in had.items():
            self.held_seconds[id_] += processors * (now - (before or 0.0))  # type: ignore[assignment] # they are no counts
        for id_, record in self.state.jobs.items():
            assert record.held_for(now) == pytest.approx(self.held_seconds[id_])
        return actions

    def poll(
        self, name: str, processors: int, idle: int | None = None, ours: int = 0, *, others: tuple[int, ...] = ()
    ) -> list[Action]:
        """Report a reading of a cluster, all of it idle unless told otherwise; ``others``: what waits in its queue."""
        return self.post(
            ev.ClusterPolled(
                time=self.now,
                cluster=ClusterName(name),
                processors=processors,
                idle=processors if idle is None else idle,
                ours=ours,
                others_waiting=others,
            )
        )

    def submit(self, *jobs: Job) -> list[Action]:
        return [action for one in jobs for action in self.post(ev.JobSubmitted(time=self.now, job=one))]

    def queue(self, *jobs: Job) -> list[PlaceholderId]:
        """Hand in jobs and have their submissions taken by the batch systems; return their placeholders."""
        self.submit(*jobs)
        self.take_all()
        return [placeholder.id for one in jobs for placeholder in self.claimed(one.id)]

    def start(self, one: Job) -> list[Action]:
        """Hand in a job and bring it to running; return what was wanted once it ran."""
        self.submit(one)
        return self.started(one.id)

    def started(self, id_: str) -> list[Action]:
        """Bring a job that has been submitted to running; return what was wanted once it ran."""
        before = len(self.actions)
        self.run(id_)
        return self.actions[before:]

    def finish(self, id_: str) -> None:
        """Have a running job end well, and its placeholders with it."""
        self.complete(id_)
        self.end_ending()

    def cancel(self, id_: str) -> list[Action]:
        return self.post(ev.CancelRequested(time=self.now, job_id=JobId(id_)))

    def pass_time(self, seconds: float) -> list[Action]:
        """Let time pass, with every wake-up that the scheduler asks for."""
        end = self.now + seconds
        done: list[Action] = []
        while (at := self.scheduler.next_wakeup) is not None and at <= end:
            self.now = max(self.now, at)
            done += self.post(ev.TimeReached(time=self.now))
        self.now = end
        return done

    def taken(self, batch: BatchKey) -> list[Action]:
        """Report that the LRM took a submission, with ids ``BATCH:1`` and so on."""
        count = self.state.batches[batch].count
        ids = tuple(LrmJobId(f"{batch}:{index}") for index in range(1, count + 1))
        return self.post(ev.BatchSubmitted(time=self.now, batch=batch, lrm_ids=ids))

    def take_all(self) -> None:
        """Report every submission under way as taken."""
        for batch in list(self.state.batches.values()):
            if batch.lrm_ids is None:
                self.taken(batch.key)

    def hold(self, placeholder: PlaceholderId, ends_at: float | None = None) -> list[Action]:
        """Report that the agent of a placeholder registered."""
        host = f"{self.state.placeholders[placeholder].cluster}-{placeholder}"
        return self.post(
            ev.PlaceholderHeld(time=self.now, placeholder=placeholder, host=host, address="10.0.0.1", ends_at=ends_at)
        )

    def hold_all(self, id_: str, cluster: str | None = None) -> list[Action]:
        """Report the agents of a job that have not, on one cluster or all."""
        done: list[Action] = []
        for placeholder in self.claimed(id_):
            if not placeholder.held and cluster in (None, placeholder.cluster):
                done += self.hold(placeholder.id)
        return done

    def run(self, id_: str) -> None:
        self.take_all()
        self.hold_all(id_)
        for rank in self.record(id_).ranks:
            self.post(ev.RankStarted(time=self.now, job_id=JobId(id_), rank=rank.rank))
        assert self.record(id_).state is JobState.RUNNING

    def rank_ends(self, id_: str, rank: int | None, end: TaskEnd = WELL) -> list[Action]:
        return self.post(ev.RankEnded(time=self.now, job_id=JobId(id_), rank=rank, end=end))

    def complete(self, id_: str) -> list[Action]:
        """Report the good end of all ranks."""
        return [action for rank in self.record(id_).ranks for action in self.rank_ends(id_, rank.rank)]

    def ended(self, placeholder: PlaceholderId, reason: EndReason = EndReason.EXITED, detail: str = "") -> list[Action]:
        return self.post(ev.PlaceholderEnded(time=self.now, placeholder=placeholder, reason=reason, detail=detail))

    def end_ending(self) -> None:
        """Report every placeholder that is to end as gone."""
        for placeholder in list(self.state.placeholders.values()):
            if placeholder.state is PlaceholderState.ENDING:
                self.ended(placeholder.id)

    def record(self, id_: str) -> JobRecord:
        return self.state.jobs[JobId(id_)]

    def outcome(self, id_: str) -> JobOutcome:
        """Return the outcome of a job that has one, as it was announced: exactly once."""
        (announced,) = [one.outcome for one in of_kind(FinishJob, self.actions) if one.job_id == id_]
        assert self.record(id_).outcome == announced
        return announced

    def claimed(self, id_: str) -> list[PlaceholderRecord]:
        """Return the placeholders a job counts on."""
        return self.state.placeholders_of(self.record(id_))

    def explained(self, id_: str = "1", policies: Policies = OWN) -> str:
        """Return what ``koala explain`` says of a job now."""
        position = self.scheduler.queue_position(JobId(id_))
        return explain(self.state, position, self.record(id_), self.now, policies=policies)

    def silence(self, placeholder: PlaceholderId) -> None:
        """Report the connection to an agent as broken."""
        self.post(ev.PlaceholderSilent(time=self.now, placeholder=placeholder, detail="reset"))

    def placed(self, id_: str) -> dict[str, tuple[str | None, int]]:
        """Return cluster and processors of each component."""
        return {claim.component: (claim.cluster, claim.processors) for claim in self.record(id_).claims}


def of_kind(kind: type[A_], actions: list[Action]) -> list[A_]:
    return [action for action in actions if isinstance(action, kind)]


def submissions(actions: list[Action]) -> dict[str, int]:
    """Return how many placeholders are to be submitted to each cluster."""
    counts: Counter[str] = Counter()
    for action in of_kind(SubmitPlaceholders, actions):
        counts[action.cluster] += action.count
    return dict(counts)


def ends(actions: list[Action], *, force: bool | None = None) -> list[str]:
    """Return the placeholders that are to be ended."""
    chosen = [one for one in of_kind(EndPlaceholders, actions) if force in (None, one.force)]
    return [str(placeholder) for one in chosen for placeholder in one.placeholders]


def launches(actions: list[Action]) -> list[str]:
    return [one.job_id for one in of_kind(LaunchJob, actions)]


def copied(state: State) -> State:
    return STATE.validate_json(STATE.dump_json(state))
