# SPDX-License-Identifier: Apache-2.0
"""What became of a submission: taken, refused for good, not arrived, or nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import LrmJobId, PlaceholderId
from koala_adapter.scheduler.claiming.lifecycle import end_placeholder, forget_placeholder, setback
from koala_adapter.scheduler.claiming.waiting import refuse
from koala_adapter.scheduler.outcome import JobState, PlaceholderState
from koala_adapter.scheduler.placement.policy import infeasibility

if TYPE_CHECKING:
    from koala_adapter.model import BatchKey
    from koala_adapter.scheduler.context import Context
    from koala_adapter.scheduler.events import BatchSubmitted, BatchUncertain
    from koala_adapter.scheduler.records import BatchRecord, Claim, JobRecord, PlaceholderRecord, State


def batch_submitted(context: Context, event: BatchSubmitted) -> None:
    """Note the LRM's ids; cancel what was given up while nobody knew them."""
    batch = context.state.batches.get(event.batch)
    if batch is None or batch.lrm_ids is not None:
        return
    batch.lrm_ids, batch.uncertain, batch.taken_at = event.lrm_ids, None, context.now
    for placeholder in _placeholders_in(context.state, batch):
        if placeholder.id.index <= len(event.lrm_ids):
            placeholder.lrm_id = event.lrm_ids[placeholder.id.index - 1]
        if placeholder.state is PlaceholderState.SUBMITTED:
            context.ledger.move(placeholder, PlaceholderState.QUEUED)
        elif placeholder.state is PlaceholderState.ENDING:
            end_placeholder(context, placeholder, force=True)


def batch_uncertain(context: Context, event: BatchUncertain) -> None:
    """Note that nobody knows what became of a submission; whoever drives us looks for it."""
    batch = context.state.batches.get(event.batch)
    if batch is not None and batch.lrm_ids is None:
        batch.uncertain = event.reason


def batch_failed(context: Context, key: BatchKey, reason: str, *, rejected: bool) -> None:
    """Forget the placeholders of a submission that is not there, and claim others.

    What was taken before, or has shown itself since, is there whatever is said now: a late or repeated message.
    """
    batch = context.state.batches.get(key)
    if batch is None or batch.lrm_ids is not None:
        return
    gone = [p for p in _placeholders_in(context.state, batch) if p.started_at is None]
    if batch.live > len(gone):
        batch.lrm_ids, batch.uncertain = (LrmJobId(""),) * batch.count, None
        batch.taken_at = context.now
    if not gone:
        return
    if not rejected:
        context.never_arrived.add(key)
    record = context.state.jobs[gone[0].job_id]
    missed = {placeholder.id for placeholder in gone}
    claim = next((one for one in record.claims if missed.intersection(one.placeholders)), None)
    record.unclaim(missed)
    for placeholder in gone:
        forget_placeholder(context, placeholder)
    if record.state is not JobState.CLAIMING or claim is None:  # what was given up meanwhile, nobody misses
        return
    if rejected and not _exclude(context, record, claim, batch, reason):
        return
    setback(context, record, f"{batch.cluster}: {reason}", pause=not rejected)


def _exclude(context: Context, record: JobRecord, claim: Claim, batch: BatchRecord, reason: str) -> bool:
    """Never place this component on this cluster again; return False when that ends the job."""
    claim.excluded[batch.cluster] = reason
    never = infeasibility(context.requests(record), context.views())
    if never is not None:
        said = f"{batch.cluster} refused the placeholders of {claim.component!r}: {reason}"
        alone = infeasibility([context.request(record, claim)], context.views()) is not None
        refuse(context, record, said if alone else f"{said}; without it, {never}")
        return False
    useless = [context.state.placeholders[id_] for id_ in claim.placeholders]
    claim.placeholders, claim.cluster, claim.processors = [], None, 0
    for placeholder in useless:
        end_placeholder(context, placeholder)
    return True


def _placeholders_in(state: State, batch: BatchRecord) -> list[PlaceholderRecord]:
    ids = (PlaceholderId(batch=batch.key, index=index) for index in range(1, batch.count + 1))
    return [state.placeholders[id_] for id_ in ids if id_ in state.placeholders]
