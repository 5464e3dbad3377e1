# SPDX-License-Identifier: Apache-2.0
"""State machines of jobs, placeholders and changes, the ledger that moves and counts them, and the roster of jobs.

The tables say which state may follow which, and when; any other move is a defect of the scheduler and is refused by the
ledger.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from koala_adapter.errors import TransitionError
from koala_adapter.model import ClusterName, Component, JobId, JobKind, PlaceholderId
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.malleable.policies import MalleableJob, Order, RunningJobs
from koala_adapter.scheduler.sizechange import Change, ChangePhase, Part
from koala_adapter.slots import PLAIN, Slot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.scheduler.clusters import ClusterRecord
    from koala_adapter.scheduler.records import BatchRecord, Claim, JobRecord, PlaceholderRecord, State


# -- Transition tables ---------------------------------------------------------------------------------------

_CANCELLED = "its user cancels it"
_STOPPED = "a process ends badly, or the walltime is over"
_LOST = "one of its processors is lost"
_NO_ATTEMPT = "its latest attempt has ended so, and no other one follows"
_ATTEMPT = "it has ended otherwise than well, and another attempt may follow"
_KILLED = "a process or placeholder is cancelled in its batch system"

JOB_TRANSITIONS: Mapping[JobState, Mapping[JobState, str]] = MappingProxyType(
    {
        JobState.WAITING: {
            JobState.CLAIMING: "it is placed, or gets all its processors from another job",
            JobState.CANCELLED: _CANCELLED,
            JobState.NOT_PLACED: "its tries are used up",
            JobState.REFUSED: "it can never run",
            JobState.FAILED: _NO_ATTEMPT,
            JobState.LOST: _NO_ATTEMPT,
        },
        JobState.CLAIMING: {
            JobState.WAITING: "nothing is left of its claim",
            JobState.LAUNCHING: "all its processors are held",
            JobState.CANCELLED: _CANCELLED,
            JobState.NOT_PLACED: "its tries are used up",
            JobState.REFUSED: "it can never run where it is still accepted",
        },
        JobState.LAUNCHING: {
            JobState.RUNNING: "all its processes run",
            JobState.WAITING: _ATTEMPT,
            JobState.COMPLETED: "all its processes have ended well",
            JobState.FAILED: _STOPPED,
            JobState.CANCELLED: f"{_CANCELLED}, or {_KILLED}",
            JobState.LOST: _LOST,
        },
        JobState.RUNNING: {
            JobState.WAITING: _ATTEMPT,
            JobState.COMPLETED: "all its processes have ended well",
            JobState.FAILED: _STOPPED,
            JobState.CANCELLED: f"{_CANCELLED}, or {_KILLED}",
            JobState.LOST: _LOST,
        },
        JobState.COMPLETED: {},
        JobState.FAILED: {},
        JobState.CANCELLED: {
            JobState.FAILED: "the batch system tells afterwards that memory or walltime were exceeded",
            JobState.LOST: "the batch system tells afterwards that a node was lost",
        },
        JobState.LOST: {},
        JobState.NOT_PLACED: {},
        JobState.REFUSED: {},
    }
)
"""For each state of a job the states that may follow it, and when they do. A new job is waiting."""

_STARTS = "its batch system lists it as running"
_REPORTS = "its agent reports"
_UNWANTED = "it is not wanted any more, or is about to end"

PLACEHOLDER_TRANSITIONS: Mapping[PlaceholderState, Mapping[PlaceholderState, str]] = MappingProxyType(
    {
        PlaceholderState.SUBMITTED: {
            PlaceholderState.QUEUED: "its batch system has taken it",
            PlaceholderState.STARTED: _STARTS,
            PlaceholderState.HELD: _REPORTS,
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.QUEUED: {
            PlaceholderState.STARTED: _STARTS,
            PlaceholderState.HELD: _REPORTS,
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.STARTED: {
            PlaceholderState.HELD: _REPORTS,
            PlaceholderState.ENDING: "its agent does not report in time, or it is not wanted any more",
        },
        PlaceholderState.HELD: {
            PlaceholderState.LAUNCHED: "its job is launched, or takes it in as it grows",
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.LAUNCHED: {
            PlaceholderState.HELD: "its job has completed, and another job gets it",
            PlaceholderState.ENDING: _UNWANTED,
        },
        PlaceholderState.ENDING: {},
    }
)
"""For each state of a placeholder the states that may follow it. A new one is submitted; a gone one is dropped."""


_GIVEN_UP = "it comes to nothing, or its job ends"

CHANGE_TRANSITIONS: Mapping[ChangePhase, Mapping[ChangePhase, str]] = MappingProxyType(
    {
        ChangePhase.NEW: {
            ChangePhase.ASKED: "processors are offered, or asked back",
            ChangePhase.PROMISED: "the application insists on more than is free",
            ChangePhase.GATHERING: "what the application or its owner wants is free",
            ChangePhase.RELEASING: "the application gives processors back of its own accord",
            ChangePhase.OVER: "what the application wants cannot be had",
        },
        ChangePhase.ASKED: {
            ChangePhase.GATHERING: "the application takes processors, and they are free",
            ChangePhase.RELEASING: "the application agrees to give processors up",
            ChangePhase.OVER: "the application declines or does not answer in time, or its job ends",
        },
        ChangePhase.PROMISED: {
            ChangePhase.ASKED: "less is free than was promised, and that is offered",
            ChangePhase.GATHERING: "what was promised is free",
            ChangePhase.OVER: _GIVEN_UP,
        },
        ChangePhase.GATHERING: {
            ChangePhase.TAKING: "all its placeholders are held",
            ChangePhase.OVER: _GIVEN_UP,
        },
        ChangePhase.TAKING: {ChangePhase.OVER: f"all new processes run; or {_GIVEN_UP}"},
        ChangePhase.RELEASING: {ChangePhase.OVER: "all processors are given up, or that takes too long"},
        ChangePhase.OVER: {},
    }
)
"""For each phase of a change the phases that may follow it. A new one is in no record, nor one that is over."""

_OURS = frozenset({PlaceholderState.HELD, PlaceholderState.LAUNCHED})

AnyState = TypeVar("AnyState", JobState, PlaceholderState, ChangePhase)


def _check(what: str, table: Mapping[AnyState, Mapping[AnyState, str]], source: AnyState, target: AnyState) -> None:
    """Raise TransitionError for a move that the table does not have."""
    if target not in table[source]:
        raise TransitionError(f"{what} cannot go from {source.value!r} to {target.value!r}")


# -- The ledger: the only writer of states and counts --------------------------------------------------------
# What a cluster, job or submission counts can be computed from placeholders and changes of size, and is when a
# scheduler starts (:meth:`Ledger.recount`); from then on the counts follow each move. A move that the transition tables
# do not have is refused as a defect. A test reads the source of the other modules: none of them assigns what the ledger
# keeps.


class Ledger:
    """Moves jobs, placeholders and changes between states, and keeps all counts."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._with_slots: dict[JobId, None] = {}
        """Jobs some of whose slots are more than a processor, until they are known to have ended."""
        for record in state.jobs.values():
            self._note_slots(record)
        self.recount()

    def recount(self) -> None:
        """Work out all counts from the placeholders, and from the changes of size that are under way."""
        state = self.state
        for cluster in state.clusters.values():
            cluster.managed = cluster.queued = cluster.ending = cluster.offered = cluster.gathering = 0
            cluster.processors_queued = 0
            cluster.pending = {}
        for batch in state.batches.values():
            batch.live = 0
        for record in state.jobs.values():
            record.live = record.held = record.processors_held = 0
            for claim in record.claims:
                self._count_places(claim, len(claim.places))
            for change in record.changes.values():
                self._count_change(record, change, 1)
        for placeholder in state.placeholders.values():
            self._count_live(placeholder, 1)
            self._count(placeholder, 1)

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def add_job(self, record: JobRecord) -> None:
        """Add a new, waiting job."""
        self.state.jobs[record.job.id] = record
        self._note_slots(record)

    def move_job(self, record: JobRecord, target: JobState) -> None:
        """Move a job to another state. Raises TransitionError."""
        _check(f"job {record.job.id}", JOB_TRANSITIONS, record.state, target)
        record.state = target

    def drop_job(self, record: JobRecord) -> None:
        """Remove an ended job without placeholders."""
        del self.state.jobs[record.job.id]

    def shapes_on(self, cluster: ClusterName) -> tuple[Slot, ...]:
        """Return slot shapes, other than one processor, of unfinished jobs for a cluster."""
        shapes: dict[Slot, None] = {}
        for job_id in list(self._with_slots):
            record = self.state.jobs.get(job_id)
            if record is None or (record.state.final and not record.live):
                del self._with_slots[job_id]
                continue
            shapes.update(dict.fromkeys(record.job.shapes_on(cluster)))
        return tuple(shapes)

    def _note_slots(self, record: JobRecord) -> None:
        if any(component.slot != PLAIN or component.slots for component in record.job.components):
            self._with_slots[record.job.id] = None

    # ---- placeholders ---------------------------------------------------------------------------------------------

    def add_batch(self, batch: BatchRecord, placeholders: Iterable[PlaceholderRecord]) -> None:
        """Add a submission with its placeholders."""
        self.state.batches[batch.key] = batch
        for placeholder in placeholders:
            self.state.placeholders[placeholder.id] = placeholder
            self._count_live(placeholder, 1)
            self._count(placeholder, 1)

    def move(self, placeholder: PlaceholderRecord, target: PlaceholderState) -> None:
        """Move a placeholder to another state, if it is not there. Raises TransitionError."""
        if placeholder.state is target:
            return
        _check(f"placeholder {placeholder.id}", PLACEHOLDER_TRANSITIONS, placeholder.state, target)
        if placeholder.waiting and target is PlaceholderState.QUEUED:
            placeholder.state = target
            return
        self._note_held(placeholder)
        self._count(placeholder, -1)
        placeholder.state = target
        self._count(placeholder, 1)

    def reassign(self, placeholder: PlaceholderRecord, taker: JobRecord, component: str) -> None:
        """Give a held placeholder to another job. Raises TransitionError."""
        if placeholder.state is not PlaceholderState.HELD:
            what = f"placeholder {placeholder.id}"
            _check(what, PLACEHOLDER_TRANSITIONS, placeholder.state, PlaceholderState.HELD)
        self._note_held(placeholder)
        self._count(placeholder, -1)
        self.state.jobs[placeholder.job_id].live -= 1
        taker.live += 1
        placeholder.job_id, placeholder.component = taker.job.id, component
        placeholder.state = PlaceholderState.HELD
        self._note_held(placeholder)
        self._count(placeholder, 1)

    def exchange(self, held: PlaceholderRecord, pending: PlaceholderRecord) -> None:
        """Swap two placeholders between their jobs: a processor for a place in the queue of its cluster."""
        self._note_held(held)
        self._note_held(pending)
        self._count(held, -1)  # what waits is counted by cluster and submission only, which stay the same
        held.job_id, pending.job_id = pending.job_id, held.job_id
        held.component, pending.component = pending.component, held.component
        self._count(held, 1)
        self.state.batches[pending.id.batch].mixed = True

    def remove(self, placeholder: PlaceholderRecord) -> None:
        """Remove a placeholder that is gone; with the last one, its submission."""
        self._note_held(placeholder)
        self._count(placeholder, -1)
        self._count_live(placeholder, -1)
        del self.state.placeholders[placeholder.id]
        batch = self.state.batches[placeholder.id.batch]
        if batch.live == 0:
            del self.state.batches[batch.key]

    # ---- changes of size ------------------------------------------------------------------------------------------

    def move_change(
        self, record: JobRecord, change: Change, phase: ChangePhase, parts: list[Part] | None = None
    ) -> None:
        """Move a change to another phase, with other ``parts``. Raises TransitionError.

        A new change comes into the record of its job, and one that is over goes from there.
        """
        _check(f"change {change.number} of job {record.job.id}", CHANGE_TRANSITIONS, change.phase, phase)
        self._count_change(record, change, -1)
        change.phase = phase
        change.parts = change.parts if parts is None else parts
        if phase is ChangePhase.OVER:
            record.changes.pop(change.number, None)
        else:
            record.changes[change.number] = change
        self._count_change(record, change, 1)

    def add_places(self, claim: Claim, placeholders: Sequence[PlaceholderId]) -> None:
        """Count placeholders queued for a wanted size."""
        claim.places = [*claim.places, *placeholders]
        self._count_places(claim, len(placeholders))

    def remove_places(self, claim: Claim, placeholders: Sequence[PlaceholderId]) -> None:
        """Stop counting such placeholders: they are taken, given back or lost."""
        claim.places = [id_ for id_ in claim.places if id_ not in placeholders]
        self._count_places(claim, -len(placeholders))

    def reserve(self, cluster: ClusterRecord, processors: int) -> None:
        """Reserve processors for a moment; negative: free them."""
        cluster.offered += processors

    def _count_change(self, record: JobRecord, change: Change, one: int) -> None:
        """Add (``one`` = 1) or subtract a change in its clusters' counts."""
        for part in change.parts:
            claim = record.claims[part.claim]
            if claim.cluster is not None:
                cluster, each = self.state.clusters[claim.cluster], one * claim.slot_processors
                cluster.offered += each * change.kept(part)
                cluster.gathering += each * part.accepted if change.phase is ChangePhase.GATHERING else 0

    def _count_places(self, claim: Claim, count: int) -> None:
        """Change the number of placeholders that running jobs have not taken yet."""
        if claim.cluster is not None:
            self.state.clusters[claim.cluster].gathering += count * claim.slot_processors

    # ---- counts ---------------------------------------------------------------------------------------------------

    def _note_held(self, placeholder: PlaceholderRecord) -> None:
        """Add the processor time of a placeholder's job up to now."""
        record, now = self.state.jobs[placeholder.job_id], self.state.now or 0.0
        record.held_seconds, record.held_until = record.held_for(now), now

    def _count_live(self, placeholder: PlaceholderRecord, one: int) -> None:
        """Add (``one`` = 1) or subtract a placeholder that has not ended."""
        state = self.state
        state.clusters[placeholder.cluster].managed += one * placeholder.slot_processors
        state.batches[placeholder.id.batch].live += one
        state.jobs[placeholder.job_id].live += one

    def _count(self, placeholder: PlaceholderRecord, one: int) -> None:
        """Add (``one`` = 1) or subtract a placeholder in the counts of its state."""
        if placeholder.waiting:
            cluster, batch = self.state.clusters[placeholder.cluster], placeholder.id.batch
            cluster.queued += one
            cluster.processors_queued += one * placeholder.slot_processors
            left = cluster.pending.get(batch, 0) + one
            if left > 0:
                cluster.pending[batch] = left
            else:
                cluster.pending.pop(batch, None)
        elif placeholder.state in _OURS:
            record, slot = self.state.jobs[placeholder.job_id], self.state.slot_of(placeholder)
            record.processors_held += one * (placeholder.slot_processors if slot.exclusive else slot.threads)
            record.held += one if placeholder.state is PlaceholderState.HELD else 0
        elif placeholder.state is PlaceholderState.ENDING:
            self.state.clusters[placeholder.cluster].ending += one * placeholder.slot_processors


# -- The roster of running malleable jobs by cluster ---------------------------------------------------------
# It holds the records of jobs as malleability policies see them. Like the placement queue it is made from the records
# when the scheduler starts, and follows them from then on.


class RunningClaim(MalleableJob):
    """Claim of a running malleable job, as malleability policies see it."""

    __slots__ = ("claim", "cluster", "job_id")

    def __init__(self, record: JobRecord, number: int, cluster: ClusterName) -> None:
        """``number``: index of its claim."""
        claim = record.claims[number]
        minimum, size, maximum = _sizes(record, claim)
        super().__init__(minimum=minimum, maximum=maximum, size=size, started_at=0.0, number=number)
        self.order = order_of(record, number)
        self.job_id = record.job.id
        self.claim = number
        self.cluster = cluster


class Roster:
    """All running malleable jobs by cluster."""

    def __init__(self, jobs: Iterable[JobRecord] = ()) -> None:
        """Start with the jobs whose records say that they run."""
        self._clusters: dict[ClusterName, RunningJobs[RunningClaim]] = {}
        self._members: dict[tuple[JobId, int], RunningClaim] = {}
        self.limited: dict[JobId, None] = {}
        """Running jobs whose owners have said what size they want."""
        self.touched: dict[JobId, None] = {}
        """Malleable jobs to which something has happened since this was cleared."""
        for record in jobs:
            self.update(record)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, cluster: ClusterName) -> bool:
        return cluster in self._clusters

    def clusters(self) -> list[ClusterName]:
        """Return the clusters on which malleable jobs run, in the order of their names."""
        return sorted(self._clusters)

    def on(self, cluster: ClusterName) -> RunningJobs[RunningClaim]:
        """Return the malleable jobs of a cluster."""
        return self._clusters.get(cluster) or RunningJobs()

    def update(self, record: JobRecord) -> None:
        """Update from a job's record: it started, ended, changed, or may or may not change."""
        if not record.job.kind.varies:
            return
        self.touched[record.job.id] = None
        runs = record.state is JobState.RUNNING
        if record.sizes_wanted and runs:
            self.limited[record.job.id] = None
        else:
            self.limited.pop(record.job.id, None)
        for number, claim in enumerate(record.claims):
            member = self._members.get((record.job.id, number))
            if member is None:
                if runs and claim.cluster is not None and not record.job.is_head(claim.component):
                    self._add(RunningClaim(record, number, claim.cluster), busy=is_busy(record, number))
            elif not runs:
                self._remove(member)
            else:
                self._follow(member, record, number)

    def _follow(self, member: RunningClaim, record: JobRecord, number: int) -> None:
        claim, running, busy = record.claims[number], self._clusters[member.cluster], is_busy(record, number)
        if busy:
            running.begin(member)
        minimum, size, maximum = _sizes(record, claim)
        running.rebound(member, minimum=minimum, maximum=maximum, size=size)
        if not busy:
            running.end(member)

    def _add(self, member: RunningClaim, *, busy: bool) -> None:
        member.busy = busy
        self._members[member.job_id, member.claim] = member
        self._clusters.setdefault(member.cluster, RunningJobs()).add(member)

    def _remove(self, member: RunningClaim) -> None:
        del self._members[member.job_id, member.claim]
        running = self._clusters[member.cluster]
        running.remove(member)
        if not len(running):
            del self._clusters[member.cluster]


def is_busy(record: JobRecord, number: int) -> bool:
    """Return whether a claim must not be changed: it is changing or about to end."""
    return bool(record.ends) or record.is_changing(number)


def order_of(record: JobRecord, number: int) -> Order:
    """Return the place of a claim in the order of start."""
    return float(record.start_number), number


def bounds(record: JobRecord, claim: Claim) -> tuple[int, int]:
    """Return the fewest and most processors that a claim of a running malleable job may have.

    A flexible component has a claim on each cluster, and its bounds are those of all of them together: what the others
    are about to give up is not counted on, what they are about to get is.
    """
    component = record.job.component(claim.component)
    minimum, maximum = component.minimum, record.sizes_wanted.get(component.name, component.maximum)
    if component.flexible:
        others = sum(one.processors for one in record.claims if one.component == claim.component and one is not claim)
        minimum -= others - record.leaving(claim.component, beside=claim)
        maximum -= others + record.coming(claim.component, beside=claim)
    if record.growth_rests or claim.growth_refused:
        maximum = min(maximum, claim.processors)
    return max(0, minimum), max(0, maximum)


def _sizes(record: JobRecord, claim: Claim) -> tuple[int, int, int]:
    """Return least, present and greatest size of a claim, in processors of its cluster.

    The bounds are wide enough for what it has: workers that are lost bring it below its minimum.
    """
    minimum, maximum = bounds(record, claim)
    if record.ends_soon:
        maximum = 0
    if record.job.kind is JobKind.EVOLVING:  # it is offered nothing, and asked for nothing
        minimum, maximum = claim.processors, claim.processors
    each, size = claim.slot_processors, claim.processors
    return min(minimum, size) * each, size * each, max(maximum, size) * each


def initial_size(component: Component) -> int:
    """Return the processors with which a component of a malleable job starts, if so many are idle."""
    wanted = component.minimum if component.initial is None else component.initial
    return max(component.minimum, min(component.maximum, wanted))
