# SPDX-License-Identifier: Apache-2.0
"""The one writer of what is counted, and of the states of jobs and placeholders.

What a cluster, job or submission counts can be worked out from placeholders and changes of size, and is when a
scheduler begins (:meth:`Ledger.recount`); from then on the counts follow each move that is made here. A move that the
tables of ``transitions.py`` do not have is a defect and is refused. A test reads the source of the others: none of them
assigns what this module keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.scheduler.changes import ChangePhase
from koala_adapter.scheduler.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.transitions import check_job, check_placeholder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.changes import Change
    from koala_adapter.scheduler.clusterrecord import ClusterRecord
    from koala_adapter.scheduler.records import BatchRecord, Claim, JobRecord, PlaceholderRecord, State


class Ledger:
    """Counts what a state holds, and moves its jobs and placeholders between states."""

    def __init__(self, state: State) -> None:
        """Count what is there."""
        self.state = state
        self.recount()

    def recount(self) -> None:
        """Work out all counts from the placeholders, and from the changes of size that are under way."""
        state = self.state
        for cluster in state.clusters.values():
            cluster.managed = cluster.queued = cluster.ending = cluster.offered = cluster.gathering = 0
            cluster.pending = {}
        for batch in state.batches.values():
            batch.live = 0
        for record in state.jobs.values():
            record.live = record.held = 0
            for claim in record.claims:
                self._count_change(claim, 1)
                self._count_places(claim, len(claim.places))
        for placeholder in state.placeholders.values():
            self._count_live(placeholder, 1)
            self._count(placeholder, 1)

    # ---- jobs -----------------------------------------------------------------------------------------------------

    def add_job(self, record: JobRecord) -> None:
        """Take in a new job, which waits."""
        self.state.jobs[record.job.id] = record

    def move_job(self, record: JobRecord, target: JobState) -> None:
        """Bring a job into another state. Raises TransitionError."""
        check_job(record.job.id, record.state, target)
        record.state = target

    def drop_job(self, record: JobRecord) -> None:
        """Forget a job that has ended and has no placeholders any more."""
        del self.state.jobs[record.job.id]

    # ---- placeholders ---------------------------------------------------------------------------------------------

    def add_batch(self, batch: BatchRecord, placeholders: Iterable[PlaceholderRecord]) -> None:
        """Take in a submission with its placeholders."""
        self.state.batches[batch.key] = batch
        for placeholder in placeholders:
            self.state.placeholders[placeholder.id] = placeholder
            self._count_live(placeholder, 1)
            self._count(placeholder, 1)

    def move(self, placeholder: PlaceholderRecord, target: PlaceholderState) -> None:
        """Bring a placeholder into another state, if it is not there already. Raises TransitionError."""
        if placeholder.state is target:
            return
        check_placeholder(placeholder.id, placeholder.state, target)
        if placeholder.waiting and target is PlaceholderState.QUEUED:
            placeholder.state = target
            return
        self._count(placeholder, -1)
        placeholder.state = target
        self._count(placeholder, 1)

    def reassign(self, placeholder: PlaceholderRecord, taker: JobRecord, component: str) -> None:
        """Give a processor to another job, which holds it from now on. Raises TransitionError."""
        if placeholder.state is not PlaceholderState.HELD:
            check_placeholder(placeholder.id, placeholder.state, PlaceholderState.HELD)
        self._count(placeholder, -1)
        self.state.jobs[placeholder.job_id].live -= 1
        taker.live += 1
        placeholder.job_id, placeholder.component = taker.job.id, component
        placeholder.state = PlaceholderState.HELD
        self._count(placeholder, 1)

    def exchange(self, held: PlaceholderRecord, pending: PlaceholderRecord) -> None:
        """Swap two placeholders between their jobs: a processor for a place in the queue of its cluster."""
        self._count(held, -1)  # what waits is counted by cluster and submission only, which stay the same
        held.job_id, pending.job_id = pending.job_id, held.job_id
        held.component, pending.component = pending.component, held.component
        self._count(held, 1)
        self.state.batches[pending.id.batch].mixed = True

    def remove(self, placeholder: PlaceholderRecord) -> None:
        """Drop the record of a placeholder that is gone; with the last one, that of its submission."""
        self._count(placeholder, -1)
        self._count_live(placeholder, -1)
        del self.state.placeholders[placeholder.id]
        batch = self.state.batches[placeholder.id.batch]
        if batch.live == 0:
            del self.state.batches[batch.key]

    # ---- changes of size ------------------------------------------------------------------------------------------

    def begin_change(self, claim: Claim, change: Change, phase: ChangePhase, *, accepted: int = 0) -> None:
        """Note that a change of the size of a claim is under way from now on, in this phase."""
        change.phase, change.accepted = phase, accepted
        claim.change = change
        self._count_change(claim, 1)

    def advance_change(self, claim: Claim, phase: ChangePhase, *, accepted: int | None = None) -> None:
        """Bring the change of a claim into its next phase."""
        if claim.change is None:
            return
        self._count_change(claim, -1)
        claim.change.phase = phase
        if accepted is not None:
            claim.change.accepted = accepted
        self._count_change(claim, 1)

    def end_change(self, claim: Claim) -> None:
        """Note that the change of a claim, if there is one, is over: nothing is kept for it any more."""
        self._count_change(claim, -1)
        claim.change = None

    def add_places(self, claim: Claim, placeholders: Sequence[PlaceholderId]) -> None:
        """Note that placeholders were queued for the size that the owner of a running job wants."""
        claim.places = [*claim.places, *placeholders]
        self._count_places(claim, len(placeholders))

    def remove_places(self, claim: Claim, placeholders: Sequence[PlaceholderId]) -> None:
        """Note that some of them are not for that any more: they are taken in, given back, or lost."""
        claim.places = [id_ for id_ in claim.places if id_ not in placeholders]
        self._count_places(claim, -len(placeholders))

    def reserve(self, cluster: ClusterRecord, processors: int) -> None:
        """Keep processors from everybody for a moment; a negative number gives them free again."""
        cluster.offered += processors

    def _count_change(self, claim: Claim, one: int) -> None:
        """Add a change to what is offered, promised or gathered on its cluster, or (``one`` = -1) take it out."""
        change = claim.change
        if change is None or claim.cluster is None:
            return
        cluster = self.state.clusters[claim.cluster]
        if change.phase is ChangePhase.GATHERING:
            cluster.gathering += one * change.accepted
        elif change.phase is ChangePhase.PROMISED or (change.phase is ChangePhase.ASKED and change.processors > 0):
            cluster.offered += one * change.processors

    def _count_places(self, claim: Claim, count: int) -> None:
        """Add so many placeholders to those that running jobs have not taken in yet."""
        if claim.cluster is not None:
            self.state.clusters[claim.cluster].gathering += count

    # ---- counts ---------------------------------------------------------------------------------------------------

    def _count_live(self, placeholder: PlaceholderRecord, one: int) -> None:
        """Add a placeholder to those that have not ended, or (``one`` = -1) take it out of them."""
        state = self.state
        state.clusters[placeholder.cluster].managed += one
        state.batches[placeholder.id.batch].live += one
        state.jobs[placeholder.job_id].live += one

    def _count(self, placeholder: PlaceholderRecord, one: int) -> None:
        """Add a placeholder to the counts that depend on its state, or (``one`` = -1) take it out of them."""
        if placeholder.waiting:
            cluster, batch = self.state.clusters[placeholder.cluster], placeholder.id.batch
            cluster.queued += one
            left = cluster.pending.get(batch, 0) + one
            if left > 0:
                cluster.pending[batch] = left
            else:
                cluster.pending.pop(batch, None)
        elif placeholder.state is PlaceholderState.HELD:
            self.state.jobs[placeholder.job_id].held += one
        elif placeholder.state is PlaceholderState.ENDING:
            self.state.clusters[placeholder.cluster].ending += one
