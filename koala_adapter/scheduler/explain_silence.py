# SPDX-License-Identifier: Apache-2.0
"""What ``koala explain`` says of placeholders without contact: what the job loses if that goes on."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING

from koala_adapter.scheduler.durations import duration
from koala_adapter.scheduler.malleable.adapting import ends_alone, newcomer
from koala_adapter.scheduler.malleable.approaches import Approach
from koala_adapter.scheduler.malleable.workerends import is_worker

if TYPE_CHECKING:
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord, State


class Loss(StrEnum):
    """What becomes of a job with the loss of a placeholder, in the words of a sentence."""

    JOB = "the job is lost"
    WORKER = "the job goes on with fewer workers"
    GROWTH = "the growth that they are for is given up"
    NOTHING = "they are taken as gone, which the job does not need any more"


def without_contact(state: State, record: JobRecord, now: float) -> str:
    """Say with how many placeholders of a launched job there is no contact, and what follows when; empty: with all."""
    silent: dict[Loss, list[PlaceholderRecord]] = {}
    for placeholder in state.placeholders_of(record):
        if placeholder.silent_since is not None:
            silent.setdefault(_loss(record, placeholder), []).append(placeholder)
    workers = silent.get(Loss.WORKER, [])
    if workers and _deserted(state, record, len(workers)):
        silent.setdefault(Loss.JOB, []).extend(silent.pop(Loss.WORKER))
    return "".join(_said(state, loss, silent[loss], now) for loss in Loss if loss in silent)


def _loss(record: JobRecord, placeholder: PlaceholderRecord) -> Loss:
    """Return what comes of the loss of one placeholder, as ``placeholder_failed`` decides it."""
    rank = next((rank.rank for rank in record.ranks if rank.placeholder == placeholder.id), None)
    if rank is None:
        return Loss.GROWTH
    if rank in record.departed or (rank in record.ends and record.ends[rank].ok):
        return Loss.NOTHING
    if ends_alone(record, rank):
        return Loss.GROWTH if newcomer(record, rank) else Loss.NOTHING
    return Loss.WORKER if is_worker(record, rank) else Loss.JOB


def _deserted(state: State, record: JobRecord, losses: int) -> bool:
    """Tell whether nobody would be left, and nobody would give the job any processors."""
    if state.parameters.approach is not Approach.NONE or record.sizes_wanted:
        return False
    return sum(claim.processors + claim.coming for claim in record.claims) <= losses


def _said(state: State, loss: Loss, silent: list[PlaceholderRecord], now: float) -> str:
    counts = Counter(placeholder.cluster for placeholder in silent)
    where = ", ".join(f"{count} on {name}" for name, count in counts.items())
    since = min(one.silent_since for one in silent if one.silent_since is not None)
    left = duration(since + state.parameters.lease - now)
    return (
        f" There is no contact with {len(silent)} of its placeholders ({where}); "
        f"if that lasts another {left}, {loss.value}."
    )
