# SPDX-License-Identifier: Apache-2.0
"""What follows from a listing of one cluster, or a failed one: events for the scheduler, jobs to be cancelled. Pure.

The same object judges the listings of real batch systems and those of the schedules of faults.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason
from koala_adapter.plugin.attribution import tells_of
from koala_adapter.scheduler.events import ClusterPolled, ClusterUnavailable, PlaceholderEnded
from koala_adapter.scheduler.outcome import PlaceholderState
from koala_adapter.service.listedholds import new_holds
from koala_adapter.service.listedmoves import new_moves
from koala_adapter.service.reconciliation import Reconciler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from koala_adapter.model import BatchKey, ClusterName, LrmJob, LrmJobId, PlaceholderId
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import BatchRecord, State

SETTLE = 45.0
"""Seconds after which a submission whose outcome is unknown cannot arrive any more: beyond every command's time-out."""
REPEAT_POLLED = 60.0
"""An unchanged reading is reported again after so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterObservation:
    """What one look at a cluster showed."""

    read_at: float
    """When it was asked for: what was submitted later cannot be in it."""
    processors: int
    idle: int
    ours: int
    jobs: Sequence[LrmJob]
    """Jobs with names of ours that are not certainly another user's."""
    tells_holders: bool = False
    """Whether they tell whose holds they are in."""
    others_waiting: tuple[int, ...] = ()
    """Processors that each waiting job of others asks for, as far as that was looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What follows from a look."""

    events: tuple[Event, ...]
    """What is certain."""
    lost: tuple[PlaceholderEnded, ...]
    """Placeholders that are gone; accounting may know better how they ended."""
    cancel_again: tuple[LrmJobId, ...]
    """What the LRM did not hear when it was told to cancel it, and what is wanted still."""
    orphans: tuple[LrmJobId, ...]
    """Jobs of our user with our name that no record of ours accounts for: to be cancelled."""
    restless: bool
    """Something is expected to change soon, so the next look should not be put off."""


class ListingJudge:
    """Remembers, for one cluster, what earlier looks and requests left open."""

    def __init__(self, cluster: ClusterName, *, user: str, begun_at: float) -> None:
        """``user``: whose jobs there are ours.

        ``begun_at``: when this process began; what an earlier one had under way may arrive for a while after that.
        """
        self._cluster = cluster
        self._user = user
        self._begun_at = begun_at
        self._reconciler = Reconciler(cluster=cluster, user=user)
        self._told: tuple[int, int, int, tuple[int, ...]] | None = None
        self._told_at = 0.0
        self._others_waited: tuple[int, ...] = ()
        """What each job of others asked for that waited at the last look."""
        self._others: int | None = None
        """Processors that others had at the last look."""
        self._under_way: set[BatchKey] = set()
        self._not_cancelled: set[LrmJobId] = set()

    # ---- what is under way ----------------------------------------------------------------------------------------

    @property
    def under_way(self) -> frozenset[BatchKey]:
        """Submissions that this process itself is sending: their outcome is about to be known."""
        return frozenset(self._under_way)

    def sending(self, batch: BatchKey) -> None:
        """Hear that a submission is being sent."""
        self._under_way.add(batch)

    def answered(self, batch: BatchKey) -> None:
        """Hear that the outcome of a submission is known, or will not be known."""
        self._under_way.discard(batch)

    def not_cancelled(self, ids: Iterable[LrmJobId]) -> None:
        """Hear that the LRM did not answer when it was told to cancel these."""
        self._not_cancelled.update(ids)

    def farewell(self, placeholder: PlaceholderId) -> None:
        """Hear that the agent of an ending placeholder has closed its connection."""
        self._reconciler.farewells.add(placeholder)

    # ---- looks ----------------------------------------------------------------------------------------------------

    def judge(
        self, state: State, look: ClusterObservation, *, now: float, in_contact: Callable[[PlaceholderId], bool]
    ) -> Judgement:
        """Compare what was seen with what we believe. ``in_contact``: whether a placeholder's agent is connected."""
        findings = self._reconciler.examine(
            state,
            look.jobs,
            read_at=look.read_at,
            now=now,
            in_contact=in_contact,
            settled=lambda batch: self._settled(batch, now),
        )
        lost = tuple(e for e in findings.events if isinstance(e, PlaceholderEnded) and e.reason is EndReason.LOST)
        waiting = both(look.others_waiting, self._others_waited)
        self._others_waited = look.others_waiting
        started = self._started_meanwhile(state, look)
        events: list[Event] = [
            *self._counts(state, replace(look, ours=look.ours + started, others_waiting=waiting), now),
            *(e for e in findings.events if e not in lost),
        ]
        holds = new_holds(state, self._cluster, look.jobs, now=now, told=look.tells_holders)
        if holds is not None:
            events.append(holds)
        moves = new_moves(state, self._cluster, look.jobs, now=now)
        if moves is not None:
            events.append(moves)
        return Judgement(
            events=tuple(events),
            lost=lost,
            cancel_again=self._cancel_again(state),
            orphans=findings.orphans,
            restless=findings.restless or waiting != look.others_waiting,
        )

    def _started_meanwhile(self, state: State, look: ClusterObservation) -> int:
        """Return how many placeholders may have been started between the two halves of a look.

        Jobs are listed before nodes: one that is started between the two waits still, and others seem to have what it
        occupies. As long as it waits, further processors of others are believed when they have them at two looks, or
        running jobs would give up as much for it as it has already.
        """
        others = max(0, look.processors - look.idle - look.ours)
        before, self._others = self._others, others
        known = state.clusters.get(self._cluster)
        if before is None or known is None:
            return 0
        return max(0, min(known.queued, others - before))

    def failed(self, state: State, reason: str, *, now: float) -> ClusterUnavailable | None:
        """Return what is to be told of a look that failed; None when that is known."""
        known = state.clusters.get(self._cluster)
        if known is not None and known.unavailable == reason:
            return None
        return ClusterUnavailable(time=now, cluster=self._cluster, reason=reason)

    def _counts(self, state: State, look: ClusterObservation, now: float) -> list[Event]:
        counts = (look.processors, look.idle, look.ours, look.others_waiting)
        known = state.clusters.get(self._cluster)
        back = known is not None and known.unavailable is not None
        if counts == self._told and not back and now - self._told_at <= REPEAT_POLLED:
            return []
        # When ours have left, the scheduler decides some things by the next look, which is then told in any case.
        left = self._told is not None and look.ours < self._told[2]
        self._told, self._told_at = None if left else counts, now
        return [
            ClusterPolled(
                time=now,
                cluster=self._cluster,
                processors=look.processors,
                idle=look.idle,
                ours=look.ours,
                others_waiting=look.others_waiting,
            )
        ]

    def _settled(self, batch: BatchRecord, now: float) -> bool:
        since = max(batch.submitted_at, self._begun_at)
        return batch.key not in self._under_way and now > since + SETTLE

    def _cancel_again(self, state: State) -> tuple[LrmJobId, ...]:
        if not self._not_cancelled:
            return ()
        ending = {
            placeholder.lrm_id
            for placeholder in state.placeholders.on(self._cluster).values()
            if placeholder.state is PlaceholderState.ENDING
        }
        missed, self._not_cancelled = self._not_cancelled, set()
        return tuple(sorted(missed & ending))

    # ---- ends -----------------------------------------------------------------------------------------------------

    def unexplained(self, state: State, lost: Iterable[PlaceholderEnded]) -> dict[PlaceholderId, LrmJobId]:
        """Return LRM ids, as far as known, of lost placeholders that were not to end: accounting may know why."""
        found: dict[PlaceholderId, LrmJobId] = {}
        for event in lost:
            record = state.placeholders.get(event.placeholder)
            if record is not None and record.lrm_id and record.state is not PlaceholderState.ENDING:
                found[event.placeholder] = record.lrm_id
        return found

    def explained(self, ids: dict[PlaceholderId, LrmJobId], accounted: Iterable[LrmJob]) -> dict[PlaceholderId, LrmJob]:
        """Return what accounting knows of each of these placeholders."""
        known = list(accounted)
        return {id_: job for id_, lrm_id in ids.items() for job in known if tells_of(job, id_, lrm_id, user=self._user)}


def both(waiting: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of the jobs of others that waited at the last look, too.

    Jobs are listed before nodes. One that comes and is started between the two is seen both to wait and to occupy what
    it would wait for; at the next look it does not wait any more.
    """
    left = Counter(before)
    found: list[int] = []
    for size in waiting:
        if left[size] > 0:
            left[size] -= 1
            found.append(size)
    return tuple(found)
