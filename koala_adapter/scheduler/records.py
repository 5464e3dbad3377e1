# SPDX-License-Identifier: Apache-2.0
"""State of the scheduler: records of jobs, claims, placeholders and submissions, and the whole of them.

Records change only inside ``Scheduler.handle``; their states and what they count only in ``states.py``. They are plain
data, so a snapshot can be stored (``pydantic.TypeAdapter(State)``, as JSON). No record is a set of strings or depends
on a random order: a restored snapshot continues exactly as the original would. Those of clusters are in
``clusters.py``, those of changes of size in ``sizechange.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import PlainSerializer, PlainValidator

from koala_adapter.model import (
    BatchKey,
    ClusterName,
    Component,
    HoldOwner,
    Job,
    JobId,
    Launcher,
    LrmJobId,
    PlaceholderId,
    RunnerName,
    TaskEnd,
)
from koala_adapter.outcome import JobOutcome, JobState, PlaceholderState, TaskUsage
from koala_adapter.scheduler.actions import Rank
from koala_adapter.scheduler.clusters import CONNECTIONS_LAST, WAITS_KEPT, ClusterRecord, ClusterTable, Wait
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.sizechange import SIZE_CHANGES_KEPT, Change, ChangePhase, Part, SizeChange
from koala_adapter.scheduler.timers import Due, TimerKind
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from koala_adapter.slots import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Ended attempt of a job, after which another may follow."""

    number: int
    """From 1."""
    launched_at: float
    ended_at: float
    outcome: JobOutcome
    clusters: tuple[ClusterName, ...] = ()
    """Where it ran."""


ATTEMPTS_KEPT = 20
"""So many of the latest attempts of a job are kept."""


# -- Placeholders, submissions, claims, jobs, and the whole state --------------------------------------------


@dataclass(slots=True)
class PlaceholderRecord:
    """State of a placeholder (VJobProxy in the Virtual Job Model)."""

    id: PlaceholderId
    cluster: ClusterName
    job_id: JobId
    component: str
    state: PlaceholderState
    submitted_at: float
    walltime: int
    lrm_id: LrmJobId | None = None
    host: str = ""
    address: str = ""
    started_at: float | None = None
    held_at: float | None = None
    ends_at: float | None = None
    silent_since: float | None = None
    suspended_since: float | None = None
    """Since when its LRM lists it as suspended; None: it does not."""
    ending_since: float | None = None
    timers: dict[TimerKind, Due] = field(default_factory=dict)
    """When it is looked at again, and what for."""
    slot_processors: int = 1
    """Processors of its cluster that its slot takes."""
    stub: bool = False
    """It is gathered for an application that grows and has not been told of it yet."""
    on_hold_since: float | None = None
    """Since when it is seen in hold in its LRM, or waiting for something else than processors; None: it is not."""
    in_hold: bool = True
    """Then: it is in hold; False: it is queued."""
    hold_lasts: bool = False
    """Then: only a change of a limit, or of what the site does, lets it start."""
    holder: HoldOwner | None = None
    """Who holds it there; None: its LRM does not tell."""
    hold_reason: str = ""
    """The LRM's own word for that hold."""

    @property
    def held(self) -> bool:
        """Whether the processor is held and no process runs on it."""
        return self.state is PlaceholderState.HELD and self.silent_since is None

    @property
    def waiting(self) -> bool:
        """Whether the placeholder waits in its LRM's queue or is being submitted."""
        return self.state in {PlaceholderState.SUBMITTED, PlaceholderState.QUEUED}

    def lasts(self, now: float, seconds: float) -> bool:
        """Return whether its LRM leaves it running for so many seconds more.

        Where neither LRM nor agent said when it ends, what was asked from the LRM counts.
        """
        ends_at = self.ends_at
        if ends_at is None and self.started_at is not None:
            ends_at = self.started_at + self.walltime
        return ends_at is None or ends_at - now >= seconds


@dataclass(slots=True)
class BatchRecord:
    """One submission of n placeholders."""

    key: BatchKey
    cluster: ClusterName
    job_id: JobId
    component: str
    count: int
    submitted_at: float
    lrm_ids: tuple[LrmJobId, ...] | None = None
    """None until the LRM's answer is known."""
    taken_at: float | None = None
    """When that became known: a listing asked for before may have missed it. None: not noted."""
    uncertain: str | None = None
    """Why it is unknown whether the submission arrived."""
    live: int = 0
    """Placeholders of it that have not ended."""
    reserved_until: float | None = None
    """When they are to have started that run in a reservation; None: they run in none."""
    mixed: bool = False
    """Placeholders of it may belong to other jobs: some were exchanged."""

    @property
    def contents(self) -> tuple[object, ...]:
        """The submission without its name: a replay that makes it again gives it that name again."""
        return self.submitted_at, self.job_id, self.component, self.cluster, self.count


@dataclass(slots=True)
class Staging:
    """Large input files of a job that are brought to a cluster before its processors are wanted."""

    size: int
    """Bytes, as far as known."""
    missing: int
    """Bytes that have yet to arrive."""
    heard_at: float
    """When they were asked for, or were heard of, last."""
    rate: float | None = None
    """Bytes a second, as measured or expected; None: not known."""
    source: str = ""
    """Site from which they come; empty: from this host."""
    done: bool = False

    def missing_at(self, now: float) -> float:
        """Return the bytes that have probably yet to arrive."""
        return max(0.0, self.missing - (self.rate or 0.0) * (now - self.heard_at))

    def ready_at(self) -> float | None:
        """Return when all files will probably be there; None: not known."""
        if self.done or not self.missing:
            return self.heard_at
        return self.heard_at + self.missing / self.rate if self.rate else None


@dataclass(slots=True)
class Reservation:
    """Processors that a batch system was asked to reserve for one claim."""

    name: str
    cluster: ClusterName
    component: str
    count: int
    start_at: float
    seconds: float
    handle: str = ""
    """What the batch system calls it; empty: it has not answered."""


@dataclass(slots=True)
class Claim:
    """Cluster, placeholders and processes of one component of a job."""

    component: str
    processors: int = 0
    """Slots wanted; 0 while the component has no placement."""
    slot_processors: int = 1
    """Processors of its cluster that each of them takes."""
    cluster: ClusterName | None = None
    placeholders: list[PlaceholderId] = field(default_factory=list)
    piece: int | None = None
    """Its share of the minimum of a flexible component that was split; None while that is whole."""
    excluded: dict[ClusterName, str] = field(default_factory=dict)
    """Clusters that refused this component for good, and what they said; its own cluster: it grows there no more."""
    waited: float | None = None
    """Seconds from the submission of its placeholders until the last one was held; kept when they are gone."""
    lrm_ids: tuple[LrmJobId, ...] = ()
    """LRM ids of the placeholders that it ended with; kept when they are gone."""
    last_request: int = 0
    """Number of the latest request of the application for more processors."""
    postponed: float | None = None
    """What it misses is submitted when files of the job are nearly there, and not before this; None: it is claimed."""
    places: list[PlaceholderId] = field(default_factory=list)
    """Placeholders in the queue of its cluster for a size that its owner wants; held ones until they are taken in."""

    @property
    def growth_refused(self) -> str:
        """Reason of the cluster for rejecting placeholders for growth; empty: none were rejected."""
        return "" if self.cluster is None else self.excluded.get(self.cluster, "")

    @property
    def missing(self) -> int:
        """Placeholders still to be submitted."""
        return self.processors - len(self.placeholders)

    def unplace(self) -> list[PlaceholderId]:
        """Remove the claim from its cluster; return its placeholders."""
        left = self.placeholders
        self.cluster, self.processors, self.placeholders, self.postponed = None, 0, [], None
        return left

    def sized(self, component: Component) -> Component:
        """Return the component in this claim's size: the whole or a piece."""
        return component if self.piece is None else replace(component, minimum=self.piece, maximum=self.piece)


@dataclass(slots=True)
class JobRecord:
    """State of a job."""

    job: Job
    claims: list[Claim]
    state: JobState = JobState.WAITING
    tries: int = 0
    """Placement tries that came to nothing, not counting scans since ``queued_at_scan``."""
    queued_at_scan: int | None = None
    """Number of the scan after which it came into the placement queue; None while it is not there."""
    queue_number: int = 0
    """Order among jobs of equal priority and submission time."""
    tries_end_at_scan: int | None = None
    """Number of the scan at which its tries are used up, while it is in the placement queue."""
    timers: dict[TimerKind, Due] = field(default_factory=dict)
    """When it is looked at again, and what for."""
    life_extended: bool = False
    """Its end was put off once, because missing placeholders had just begun to start."""
    reclaim_with_room: bool = False
    """All else is held and only room was lacking: they are claimed again as soon as one of its placeholders is gone."""
    failed_claims: int = 0
    """How often this claim came to nothing so far; sets the length of the next pause."""
    hand_backs: int = 0
    """How often held processors were handed back because others were missing."""
    exchanges: int = 0
    """Held processors that it gave to other jobs for their places in LRM queues, instead of handing them back."""
    reservations: list[Reservation] = field(default_factory=list)
    """Those that were asked for, and are not given back."""
    reservations_asked: int = 0
    not_reserved: str = ""
    """Why its processors are claimed by placeholders, although they were to be reserved; empty: they may be."""
    staging: dict[ClusterName, Staging] = field(default_factory=dict)
    """Input files that are brought, or were, to clusters where its components are placed, or were."""
    refused_answer: str = ""
    """Why the latest answer of its placement policy, one of the site's own, is not followed; empty when it is."""
    last_trouble: str = ""
    """What went wrong last, for ``koala explain``."""
    ranks: tuple[Rank, ...] = ()
    launched_at: float | None = None
    finished_at: float | None = None
    started: set[int] = field(default_factory=set)
    ends: dict[int, TaskEnd] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    """Ranks that an adaptive job has taken in while it ran, in that order: so their processes know each other."""
    departed: set[int] = field(default_factory=set)
    """Ranks whose processors a malleable job has given up."""
    changes: dict[int, Change] = field(default_factory=dict)
    """Changes of its size that are under way, while it runs, by number."""
    sizes_wanted: dict[str, int] = field(default_factory=dict)
    """Most processors that its owner wants a component to have from now on, by its name."""
    sizes_asked_at: float | None = None
    """When it was asked last to give up what it has beyond them."""
    growth_rests: bool = False
    """It does not grow for a while: workers have ended that were not asked to."""
    ends_soon: bool = False
    """It has so little of its walltime left that it grows no more."""
    worker_failures: int = 0
    """How many of them ended badly."""
    last_worker_end: TaskEnd | None = None
    """How the latest of them ended."""
    size_changes: list[SizeChange] = field(default_factory=list)
    """The latest changes of its size, oldest first."""
    start_number: int = 0
    """Order of start among malleable jobs; 0 until it runs."""
    attempts: list[Attempt] = field(default_factory=list)
    """The latest of its runs that were not its last, oldest first."""
    attempts_over: int = 0
    """How many there were."""
    retries_made: int = 0
    """How many of them were followed by a retry; the others have saved their state and went on."""
    ended_by: PlaceholderId | None = None
    """Placeholder whose end, as its agent told it, decided the outcome; its LRM may know better why it ended."""
    launcher_over: bool = False
    """The launcher of all its processes has ended well, or has said that all is done."""
    suspected: JobOutcome | None = None
    """What mpiexec said of its end while an agent was out of contact, whose loss may be the true cause."""
    outcome: JobOutcome | None = None
    live: int = 0
    """Placeholders of this job that have not ended."""
    held: int = 0
    """Those of them that are held."""
    processors_held: int = 0
    """Processors that it has now: of all its placeholders that are held or launched."""
    held_seconds: float = 0.0
    """Processor seconds for which it has had processors, until ``held_until``."""
    held_until: float = 0.0
    held_before_launch: float = 0.0
    """Those before its launch, or the launches of its attempts."""
    held_in_attempts: float = 0.0
    """Those from the launches of earlier attempts on."""
    usages: dict[int, TaskUsage] = field(default_factory=dict)
    """What each rank has used whose agent has told of its end, in all attempts."""
    measured: set[int] = field(default_factory=set)
    """Ranks of the latest attempt whose agents have told that."""
    uncounted: int = 0
    """Ranks of earlier attempts whose agents have not."""

    def held_for(self, now: float) -> float:
        """Return the processor seconds held so far."""
        return self.held_seconds + self.processors_held * max(0.0, now - self.held_until)

    @property
    def not_before(self) -> float | None:
        """End of the pause during which a waiting job is not in the placement queue."""
        return self._due(TimerKind.BACKOFF)

    @property
    def attempt_decided_at(self) -> float | None:
        """Latest time of the decision whether another attempt follows."""
        return self._due(TimerKind.ATTEMPT)

    @property
    def awaits_reservation(self) -> bool:
        """Tell whether a cluster has yet to answer whether it reserves processors."""
        return not self.not_reserved and any(not one.handle for one in self.reservations)

    @property
    def between_attempts(self) -> bool:
        """Return whether an attempt has ended and the next is not decided yet."""
        return self.attempt_decided_at is not None

    @property
    def life_ends_at(self) -> float | None:
        """Time at which held processors are handed back if others are still missing."""
        return self._due(TimerKind.LIFE)

    @property
    def reclaim_at(self) -> float | None:
        """Time at which handed-back processors are claimed again."""
        return self._due(TimerKind.RECLAIM)

    def _due(self, kind: TimerKind) -> float | None:
        due = self.timers.get(kind)
        return None if due is None else due.at

    def note_size(self, claim: Claim, before: int, reason: str, now: float, *, waited: float = 0.0) -> None:
        """Record a claim's change of size from ``before``, for reports.

        ``waited``: seconds since the placeholders of a growth were submitted.
        """
        if claim.cluster is None or claim.processors == before:
            return
        change = SizeChange(
            at=now,
            component=claim.component,
            cluster=claim.cluster,
            before=before,
            after=claim.processors,
            reason=reason,
            waited=waited,
        )
        self.size_changes = [*self.size_changes, change][-SIZE_CHANGES_KEPT:]

    def claim_of(self, placeholder: PlaceholderRecord) -> int | None:
        """Return the index of a placeholder's present or former claim; None: there is none."""
        for number, claim in enumerate(self.claims):
            if (claim.component, claim.cluster) == (placeholder.component, placeholder.cluster):
                return number
        return None

    def ranks_awaited(self) -> list[int]:
        """Return the processes that have not ended, without those of an unfinished growth."""
        new = {rank for one in self.changes.values() if one.phase is ChangePhase.TAKING for rank in one.ranks}
        over = self.ends.keys() | self.departed | new
        return [rank.rank for rank in self.ranks if rank.rank not in over]

    def part_on(self, number: int) -> tuple[Change, Part] | None:
        """Return the change of a claim that is under way, and its part of that; ``number``: index of the claim."""
        for change in self.changes.values():
            for part in change.parts:
                if part.claim == number:
                    return change, part
        return None

    def change_on(self, number: int) -> Change | None:
        """Return the change of a claim that is under way; ``number``: index of the claim."""
        found = self.part_on(number)
        return None if found is None else found[0]

    def is_changing(self, number: int) -> bool:
        """Tell whether a change is under way that another one of a claim must wait for; ``number``: index of the claim.

        A component that cannot have any size changes on one cluster at a time, so that its rule is asked about the size
        that it will have.
        """
        component = self.claims[number].component
        if self.job.component(component).takes_any_size:
            return self.change_on(number) is not None
        return any(change.component == component for change in self.changes.values())

    def size(self, component: str) -> int:
        """Return the processors that a component has on all clusters."""
        return sum(claim.processors for claim in self.claims if claim.component == component)

    def coming(self, component: str | None = None, *, beside: Claim | None = None) -> int:
        """Return by how many processors a component (None: all) may be about to grow; ``beside``: but for one claim."""
        return sum(change.coming(part) for change, part in self._parts(component, beside))

    def leaving(self, component: str | None = None, *, beside: Claim | None = None) -> int:
        """Return how many processors a component (None: all) may be about to give up."""
        return sum(change.leaving(part) for change, part in self._parts(component, beside))

    def _parts(self, component: str | None, beside: Claim | None) -> Iterator[tuple[Change, Part]]:
        for change in self.changes.values():
            if component in {None, change.component}:
                for part in change.parts:
                    if self.claims[part.claim] is not beside:
                        yield change, part

    def is_worker(self, rank: int) -> bool:
        """Return whether a process is a worker, which comes and goes without the others."""
        return self.job.has_workers and not self.job.is_head(self.ranks[rank].component)

    def rank_in(self, placeholder: PlaceholderRecord) -> Rank | None:
        """Return a placeholder's process, of several the first whose end counts; None: there is none.

        It counts if it is still to come, or is neither good nor that of a process which has saved its state.
        """
        there = [rank for rank in self.ranks if rank.placeholder == placeholder.id]
        ends = ((rank, self.ends.get(rank.rank)) for rank in there)
        left = (rank for rank, end in ends if end is None or not (end.ok or self.job.goes_on_after(end)))
        return next(left, there[0] if there else None)

    def is_done(self) -> bool:
        """Return whether all work of a launched job is done, as far as its processes have ended well.

        A sweep is done when that is said; a job of a head and workers with its head; any other with all of its
        processes, and under MPI its launcher.
        """
        if self.job.runner is RunnerName.SWEEP:
            return self.launcher_over
        if self.job.launcher is Launcher.MPI:
            return self.launcher_over and not self.ranks_awaited()
        if self.job.runner is RunnerName.WORKERS:
            head = [rank.rank for rank in self.ranks if self.job.is_head(rank.component)]
            if head:
                return self.ends.keys() >= set(head)
        return len(self.ends) + len(self.departed) == len(self.ranks)

    def unclaim(self, placeholders: set[PlaceholderId]) -> None:
        """Remove placeholders from the claims."""
        if len(placeholders) == 1:  # of thousands that are lost one by one, each is among the first
            (one,) = placeholders
            for claim in self.claims:
                if one in claim.placeholders:
                    claim.placeholders.remove(one)
            return
        for claim in self.claims:
            claim.placeholders = [id_ for id_ in claim.placeholders if id_ not in placeholders]

    def components(self) -> Iterator[tuple[Component, Claim]]:
        """Return each claim with its component in its size."""
        components = iter(self.job.components)
        component = next(components)
        for claim in self.claims:
            while component.name != claim.component:
                component = next(components)
            yield claim.sized(component), claim

    def component_of(self, claim: Claim) -> Component:
        """Return the component of one claim, as :meth:`components` does."""
        return claim.sized(self.job.component(claim.component))


PlaceholderTable = Annotated[
    ClusterTable[PlaceholderId, PlaceholderRecord],
    PlainValidator(
        lambda stored: ClusterTable(
            (one.id, one) for one in adapter_of(list[PlaceholderRecord]).validate_python(stored)
        )
    ),
    PlainSerializer(lambda table: list(table.values()), return_type=list[PlaceholderRecord]),
]
"""JSON has no keys but strings, so a snapshot holds the placeholders as a list."""
BatchTable = Annotated[
    ClusterTable[BatchKey, BatchRecord],
    PlainValidator(
        lambda stored: ClusterTable(adapter_of(dict[BatchKey, BatchRecord]).validate_python(stored).items())
    ),
    PlainSerializer(dict, return_type=dict[BatchKey, BatchRecord]),
]


@dataclass(slots=True)
class State:
    """Whole state of the scheduler."""

    parameters: Parameters = field(default_factory=Parameters)
    now: float | None = None
    """Time of the latest event."""
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    finished: list[JobId] = field(default_factory=list)
    """Jobs that ended last, oldest first; the records of earlier ones are dropped."""
    placeholders: PlaceholderTable = field(default_factory=ClusterTable)
    batches: BatchTable = field(default_factory=ClusterTable)
    clusters: dict[ClusterName, ClusterRecord] = field(default_factory=dict)
    timers_set: int = 0
    batches_made: int = 0
    """The largest number that a submission was given."""
    starts: int = 0
    """Malleable jobs that have started to run."""
    changes_made: int = 0
    """Messages sent to malleable jobs, and requests taken from them."""
    scans: int = 0
    """Scans of the placement queue by its interval timer: each is one try of every waiting job."""
    scan_due: Due | None = None
    """When the next of them is made."""
    tries_end: dict[int, dict[JobId, None]] = field(default_factory=dict)
    """Waiting jobs that will have used up their tries, by the number of the scan at which that happens."""
    enqueued: int = 0
    """How often a job entered the placement queue."""
    dependents: dict[JobId, list[JobId]] = field(default_factory=dict)
    """Jobs that wait for the end of another one, by the id of that."""
    guarded: JobId | None = None
    """Waiting job for which room is kept free of later jobs, so that it does not starve."""
    kept_room: dict[ClusterName, int] = field(default_factory=dict)
    """Processors kept for it."""

    def lease_on(self, cluster: ClusterName) -> float:
        """Return the seconds without contact after which agents on a cluster end."""
        record = self.clusters.get(cluster)
        own = None if record is None else record.parameters.site_lease
        return self.parameters.lease if own is None else own

    def placeholders_of(self, record: JobRecord) -> list[PlaceholderRecord]:
        """Return the placeholders in a job's claims."""
        ids = (id_ for claim in record.claims for id_ in claim.placeholders)
        return [self.placeholders[id_] for id_ in ids if id_ in self.placeholders]

    def slot_of(self, placeholder: PlaceholderRecord) -> Slot:
        """Return the slot that a placeholder holds."""
        component = self.jobs[placeholder.job_id].job.component(placeholder.component)
        return component.slot_on(placeholder.cluster)

    def connects(self, cluster: ClusterName, other: ClusterName, now: float) -> bool | None:
        """Tell whether nodes of a cluster can connect to those of another one; None: it is not known.

        Within a site they are taken to connect.
        """
        record, its = self.clusters.get(cluster), self.clusters.get(other)
        if record is not None and its is not None and record.parameters.site == its.parameters.site:
            return True
        found = None if record is None else record.connections.get(other)
        return None if found is None or now - found.seen_at > CONNECTIONS_LAST else found.connects

    def connections(self, now: float) -> list[tuple[ClusterName, ClusterName, bool, float]]:
        """Return what is known of connections between clusters: from which, to which, whether, and since when."""
        return [
            (cluster.name, other, found.connects, found.seen_at)
            for cluster in self.clusters.values()
            for other, found in cluster.connections.items()
            if now - found.seen_at <= CONNECTIONS_LAST
        ]

    def is_reserved(self, placeholder: PlaceholderRecord) -> bool:
        """Tell whether a placeholder runs in a reservation, which is removed when its job has ended."""
        batch = self.batches.get(placeholder.id.batch)
        return batch is not None and batch.reserved_until is not None

    def note_wait(self, placeholder: PlaceholderRecord, now: float) -> None:
        """Add a placeholder's waiting time to a cluster's history.

        A submission is one entry: a parallel job waits for the last of its processors.
        """
        if self.is_reserved(placeholder):
            return  # it did not wait in the queue
        waits = self.clusters[placeholder.cluster].waits
        seconds = max(0.0, now - placeholder.submitted_at)
        for wait in reversed(waits):
            if wait.batch == placeholder.id.batch:
                wait.seconds = max(wait.seconds, seconds)
                return
        waits.append(Wait(batch=placeholder.id.batch, seconds=seconds))
        del waits[:-WAITS_KEPT]

    def expected_wait(self, cluster: ClusterRecord, now: float) -> float | None:
        """Return the expected waiting time on a cluster: the mean of its history.

        What waits there now has waited long enough already to count, once it exceeds that. None: nothing is known.
        """
        oldest = next((self.batches[key].submitted_at for key in cluster.pending if key in self.batches), None)
        return cluster.mean_wait if oldest is None else max(cluster.mean_wait or 0.0, now - oldest)

    def note_claims(self, record: JobRecord, now: float) -> None:
        """Record a job's placeholders for reports, at its launch and end."""
        for claim in record.claims:
            placeholders = [self.placeholders[id_] for id_ in claim.placeholders if id_ in self.placeholders]
            if placeholders and claim.waited is None:
                asked_at = max(record.job.submitted_at, min(p.submitted_at for p in placeholders))
                claim.waited = max(0.0, max(now if p.held_at is None else p.held_at for p in placeholders) - asked_at)
            known = (*claim.lrm_ids, *(p.lrm_id for p in placeholders if p.lrm_id))
            claim.lrm_ids = tuple(dict.fromkeys(known))
