# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows: records of jobs, placeholders, submissions and clusters.

The records change only inside ``Scheduler.handle``; what they count, and their states, only in ``ledger.py``. They are
plain data, so that a snapshot of them can be stored (``pydantic.TypeAdapter(State)``, as JSON). Nothing here is a set
of strings or is ordered by chance: a snapshot goes on exactly as the original would have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

from pydantic import PlainSerializer, PlainValidator

from koala_adapter.adapters import adapter_of
from koala_adapter.model import (
    BatchKey,
    ClusterName,
    Component,
    HoldOwner,
    Job,
    JobId,
    LrmJobId,
    PlaceholderId,
    TaskEnd,
)
from koala_adapter.scheduler.actions import Rank
from koala_adapter.scheduler.changes import SIZE_CHANGES_KEPT, Change, ChangePhase, SizeChange
from koala_adapter.scheduler.clusterrecord import ClusterRecord
from koala_adapter.scheduler.clustertable import ClusterTable
from koala_adapter.scheduler.outcome import JobOutcome, JobState, PlaceholderState
from koala_adapter.scheduler.parameters import Parameters
from koala_adapter.scheduler.timers import Due, TimerKind

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True)
class PlaceholderRecord:
    """One virtual job (VJobProxy in the Virtual Job Model)."""

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
    ending_since: float | None = None
    timers: dict[TimerKind, Due] = field(default_factory=dict)
    """When it is looked at again, and what for."""
    stub: bool = False
    """It is gathered for an application that grows and has not been told of it yet."""
    exchanged: bool = False
    """It was given to another job that did not start with it: the second time it is handed back."""
    on_hold_since: float | None = None
    """Since when it is seen in hold in its LRM; None: it is not."""
    holder: HoldOwner | None = None
    """Who holds it there; None: its LRM does not tell."""
    hold_reason: str = ""
    """The LRM's own word for that hold."""
    elsewhere: str = ""
    """Where its LRM has moved it; empty: it is on its cluster."""

    @property
    def held(self) -> bool:
        """True while its processor is ours and free for a launch."""
        return self.state is PlaceholderState.HELD and self.silent_since is None

    @property
    def waiting(self) -> bool:
        """True while it waits in its LRM's queue, or is on its way there."""
        return self.state in {PlaceholderState.SUBMITTED, PlaceholderState.QUEUED}

    def lasts(self, now: float, seconds: float) -> bool:
        """Tell whether its LRM leaves it running for so long.

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
    """Why nobody knows whether the submission arrived."""
    live: int = 0
    """Placeholders of it that have not ended."""
    mixed: bool = False
    """Placeholders of it may belong to other jobs: some were exchanged."""


@dataclass(slots=True)
class Claim:
    """What one component of a job has been given and holds."""

    component: str
    processors: int = 0
    """Wanted; 0 while the component has no placement."""
    cluster: ClusterName | None = None
    placeholders: list[PlaceholderId] = field(default_factory=list)
    piece: int | None = None
    """Its share of the minimum of a flexible component that was split; None while that is whole."""
    excluded: dict[ClusterName, str] = field(default_factory=dict)
    """Clusters that refused this component for good, and what they said."""
    waited: float | None = None
    """Seconds from the submission of its placeholders until the last one was held; kept when they are gone."""
    lrm_ids: tuple[LrmJobId, ...] = ()
    """LRM ids of the placeholders that it ended with; kept when they are gone."""
    change: Change | None = None
    """Change of its size that is under way, while the job runs."""
    last_request: int = 0
    """Number of the latest request of the application for more processors."""
    places: list[PlaceholderId] = field(default_factory=list)
    """Placeholders in the queue of its cluster for a size that its owner wants; held ones until they are taken in."""

    @property
    def missing(self) -> int:
        """Placeholders still to be submitted."""
        return self.processors - len(self.placeholders)

    @property
    def coming(self) -> int:
        """Processors by which it may be about to grow."""
        change = self.change
        if change is None or change.processors < 0 or change.phase is ChangePhase.TAKING:
            return 0
        return change.accepted if change.phase is ChangePhase.GATHERING else change.processors

    @property
    def leaving(self) -> int:
        """Processors that it may be about to give up."""
        change = self.change
        if change is None or change.processors > 0:
            return 0
        return change.accepted - change.done if change.phase is ChangePhase.RELEASING else -change.processors

    def sized(self, component: Component) -> Component:
        """Return the component of this claim in the size that the claim has: a piece of it, or the whole."""
        return component if self.piece is None else replace(component, minimum=self.piece, maximum=self.piece)


@dataclass(slots=True)
class JobRecord:
    """A job and its progress."""

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
    retake_with_room: bool = False
    """All else is held and only room was lacking: they are claimed again as soon as one of its placeholders is gone."""
    setbacks: int = 0
    """How often this claim came to nothing so far; sets the length of the next pause."""
    hand_backs: int = 0
    """How often held processors were handed back because others were missing."""
    exchanges: int = 0
    """Held processors that it gave to other jobs for their places in LRM queues, instead of handing them back."""
    refused_answer: str = ""
    """Why the latest answer of its placement policy, one of the site's own, is not followed; empty when it is."""
    last_trouble: str = ""
    """What went wrong last, for ``koala explain``."""
    ranks: tuple[Rank, ...] = ()
    launched_at: float | None = None
    finished_at: float | None = None
    started: set[int] = field(default_factory=set)
    ends: dict[int, TaskEnd] = field(default_factory=dict)
    departed: set[int] = field(default_factory=set)
    """Ranks whose processors a malleable job has given up."""
    sizes_wanted: dict[str, int] = field(default_factory=dict)
    """Most processors that its owner wants a component to have from now on, by its name."""
    sizes_asked_at: float | None = None
    """When it was asked last to give up what it has beyond them."""
    growth_rests: bool = False
    """It does not grow for a while: workers have ended of which nobody had asked it."""
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
    ended_by: PlaceholderId | None = None
    """Placeholder whose end, as its agent told it, decided the outcome; its LRM may know better why it ended."""
    launcher_over: bool = False
    """Who speaks for all of its processes has ended well, or has said that all is done."""
    suspected: JobOutcome | None = None
    """What mpiexec said of its end while an agent was out of contact, whose loss may be the true cause."""
    outcome: JobOutcome | None = None
    live: int = 0
    """Placeholders of this job that have not ended."""
    held: int = 0
    """Those of them that are held."""

    @property
    def not_before(self) -> float | None:
        """Back-off: a waiting job is not in the placement queue before this."""
        return self._due(TimerKind.BACKOFF)

    @property
    def life_ends_at(self) -> float | None:
        """When what it holds is handed back, if processors are still missing then."""
        return self._due(TimerKind.LIFE)

    @property
    def retake_at(self) -> float | None:
        """When the processors that were handed back are claimed again."""
        return self._due(TimerKind.RETAKE)

    def _due(self, kind: TimerKind) -> float | None:
        due = self.timers.get(kind)
        return None if due is None else due.at

    def note_size(self, claim: Claim, before: int, reason: str, now: float, *, waited: float = 0.0) -> None:
        """Keep for people that the size of a claim has changed from ``before`` to what it is now.

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
        """Return the index of the claim that a placeholder belongs, or belonged, to; None: there is none."""
        for number, claim in enumerate(self.claims):
            if (claim.component, claim.cluster) == (placeholder.component, placeholder.cluster):
                return number
        return None

    def ranks_awaited(self) -> list[int]:
        """Return the processes that have not ended; those that a growth was still to bring in need not have begun."""
        changes = [claim.change for claim in self.claims if claim.change is not None]
        new = {rank for change in changes if change.phase is ChangePhase.TAKING for rank in change.ranks}
        over = self.ends.keys() | self.departed | new
        return [rank.rank for rank in self.ranks if rank.rank not in over]

    def unclaim(self, placeholders: set[PlaceholderId]) -> None:
        """Take placeholders out of the claims: they are no longer counted on."""
        if len(placeholders) == 1:  # of thousands that are lost one by one, each is among the first
            (one,) = placeholders
            for claim in self.claims:
                if one in claim.placeholders:
                    claim.placeholders.remove(one)
            return
        for claim in self.claims:
            claim.placeholders = [id_ for id_ in claim.placeholders if id_ not in placeholders]

    def components(self) -> Iterator[tuple[Component, Claim]]:
        """Return what each claim is for, beside it: a component, or a piece of a flexible one in its size."""
        components = iter(self.job.components)
        component = next(components)
        for claim in self.claims:
            while component.name != claim.component:
                component = next(components)
            yield claim.sized(component), claim

    def component_of(self, claim: Claim) -> Component:
        """Return what one claim is for, as :meth:`components` does."""
        return claim.sized(self.job.component(claim.component))


def _listed(table: ClusterTable[PlaceholderId, PlaceholderRecord]) -> list[PlaceholderRecord]:
    return list(table.values())


def _placeholder_table(stored: object) -> ClusterTable[PlaceholderId, PlaceholderRecord]:
    return ClusterTable((record.id, record) for record in adapter_of(list[PlaceholderRecord]).validate_python(stored))


def _batch_table(stored: object) -> ClusterTable[BatchKey, BatchRecord]:
    return ClusterTable(adapter_of(dict[BatchKey, BatchRecord]).validate_python(stored).items())


PlaceholderTable = Annotated[
    ClusterTable[PlaceholderId, PlaceholderRecord],
    PlainValidator(_placeholder_table),
    PlainSerializer(_listed, return_type=list[PlaceholderRecord]),
]
"""JSON has no keys but strings, so a snapshot holds the placeholders as a list."""
BatchTable = Annotated[
    ClusterTable[BatchKey, BatchRecord],
    PlainValidator(_batch_table),
    PlainSerializer(dict, return_type=dict[BatchKey, BatchRecord]),
]


@dataclass(slots=True)
class State:
    """All that the scheduler knows."""

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
    guarded: JobId | None = None
    """Waiting job for which room is kept free of later jobs, so that it does not starve."""
    kept_room: dict[ClusterName, int] = field(default_factory=dict)
    """Processors kept for it."""

    def placeholders_of(self, record: JobRecord) -> list[PlaceholderRecord]:
        """Return the placeholders in the claims of a job (not those already given up or gone)."""
        ids = (id_ for claim in record.claims for id_ in claim.placeholders)
        return [self.placeholders[id_] for id_ in ids if id_ in self.placeholders]

    def note_claims(self, record: JobRecord, now: float) -> None:
        """Write down what is to be known of a job's placeholders when they are gone: at its launch and at its end."""
        for claim in record.claims:
            placeholders = [self.placeholders[id_] for id_ in claim.placeholders if id_ in self.placeholders]
            if placeholders and claim.waited is None:
                asked_at = max(record.job.submitted_at, min(p.submitted_at for p in placeholders))
                claim.waited = max(0.0, max(now if p.held_at is None else p.held_at for p in placeholders) - asked_at)
            known = (*claim.lrm_ids, *(p.lrm_id for p in placeholders if p.lrm_id))
            claim.lrm_ids = tuple(dict.fromkeys(known))
