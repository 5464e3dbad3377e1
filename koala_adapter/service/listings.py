# SPDX-License-Identifier: Apache-2.0
"""What a listing of an LRM proves about placeholders: ends, holds, and the judgement of them all. Pure.

In this order: suspended placeholders, what ends of placeholders mean, placeholders in hold, and the judge that turns a
listing of one cluster, or a failed one, into events for the scheduler and jobs to cancel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from koala_adapter.lrm.listing import attribute, placeholder_of, tells_of
from koala_adapter.model import ACTIVE, OCCUPYING, BatchKey, EndReason, LrmJobId, LrmJobState, PlaceholderId
from koala_adapter.outcome import PlaceholderState
from koala_adapter.scheduler.events import (
    BatchAbsent,
    BatchSubmitted,
    ClusterPolled,
    ClusterUnavailable,
    Event,
    Hold,
    HoldsSeen,
    PlaceholderEnded,
    PlaceholderEnding,
    PlaceholderStarted,
    SuspensionsSeen,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.model import ClusterName, LrmJob
    from koala_adapter.scheduler.records import BatchRecord, PlaceholderRecord, State


# -- Suspended placeholders ----------------------------------------------------------------------------------


def new_suspensions(
    state: State, cluster: ClusterName, listing: Iterable[LrmJob], *, now: float
) -> SuspensionsSeen | None:
    """Return suspended placeholders of a listing; None when they are unchanged."""
    suspended = {job.id for job in listing if job.state is LrmJobState.SUSPENDED}
    ours = state.placeholders.on(cluster).values()
    seen = tuple(one.id for one in ours if one.lrm_id in suspended and not one.waiting)
    if seen == tuple(one.id for one in ours if one.suspended_since is not None):
        return None
    return SuspensionsSeen(time=now, cluster=cluster, placeholders=seen)


# -- What ends of placeholders mean --------------------------------------------------------------------------

_OVER = frozenset({LrmJobState.ENDED, LrmJobState.ENDING})
_AGENT_ENDS = {
    1: (EndReason.LAUNCH_FAILED, "its agent could not begin"),
    3: (EndReason.CANCELLED, "the control center refused its agent"),
    4: (EndReason.LOST, "its agent had no contact to the control center for the time of its lease"),
    5: (EndReason.CANCELLED, "its agent was ended by the batch system or by its walltime"),
    127: (EndReason.LAUNCH_FAILED, "its node has no usable Python 3.6 or newer"),
}
"""What the exit statuses of vjm/agent/holding.py and of its job script mean."""
_BEFORE_ITS_START = {
    EndReason.CANCELLED: "it was deleted before it was seen to run",
    EndReason.LAUNCH_FAILED: "its batch system could not start it, as when a prolog fails",
}
"""What ends of placeholders mean that were still waiting at the last look."""
_BELIEVED_AT_ONCE = frozenset({EndReason.NODE_LOST, EndReason.WALLTIME, EndReason.MEMORY, EndReason.CANCELLED})


def end_reason(job: LrmJob) -> EndReason | None:
    """Return why a listed job counts as ended."""
    if job.state is LrmJobState.HELD and job.reason.startswith("error"):
        return EndReason.LAUNCH_FAILED
    return job.end if job.state is LrmJobState.ENDING else None


def processors_held(listing: Iterable[LrmJob], state: State | None = None) -> int:
    """Return how many places of the cluster listed jobs of ours occupy, by their slots.

    The batch system may count more processors for it, such as both threads of a core. A placeholder that ``state``
    does not know counts as one.
    """
    known = {} if state is None else state.placeholders
    states = OCCUPYING | {LrmJobState.UNKNOWN}
    occupying = (known.get(placeholder_of(job)) for job in listing if job.state in states)
    return sum(1 if placeholder is None else placeholder.slot_processors for placeholder in occupying)


# -- Placeholders in hold, or that wait for something other than processors ----------------------------------


def new_holds(
    state: State, cluster: ClusterName, listing: Iterable[LrmJob], *, now: float, told: bool
) -> HoldsSeen | None:
    """Return held placeholders of a listing; None when they are unchanged.

    ``told``: the listing tells whose holds they are; else what was told before still holds.
    """
    kept = (
        job for job in listing if job.state is LrmJobState.HELD or (job.state is LrmJobState.QUEUED and job.blocked)
    )
    held = {job.id: job for job in kept if end_reason(job) is None}
    waiting = [p for p in state.placeholders.on(cluster).values() if p.waiting]
    found = [(one, held[one.lrm_id]) for one in waiting if one.lrm_id is not None and one.lrm_id in held]
    seen = tuple(
        Hold(
            placeholder=one.id,
            holder=None if job.blocked else job.hold if told else one.holder,
            reason=_reason(state, one, job),
            in_hold=not job.blocked,
            lasts=job.kept,
        )
        for one, job in found
    )
    known = tuple(
        Hold(placeholder=one.id, holder=one.holder, reason=one.hold_reason, in_hold=one.in_hold, lasts=one.hold_lasts)
        for one in waiting
        if one.on_hold_since is not None
    )
    return None if seen == known else HoldsSeen(time=now, cluster=cluster, holds=seen)


def _reason(state: State, placeholder: PlaceholderRecord, job: LrmJob) -> str:
    if job.blocked and state.is_reserved(placeholder):
        return "for their reservation"
    return "" if job.reason == job.state.value else job.reason


# -- The judge of one cluster --------------------------------------------------------------------------------
# A placeholder missing from a listing is *unknown* until a second witness agrees: a later listing while its agent is
# out of contact, or the last message of the agent. An end that the LRM lists is believed, after the agent had one
# more poll to report how it ended. Listings of real batch systems are judged as well as those of the fault schedules
# in the tests.

ABSENCES_NEEDED = 2
RESTLESS_FOR = 120.0
"""Seconds for which an end is expected at any moment; after them the LRM is asked as often as always."""
SETTLE = 45.0
"""Seconds after which a submission whose outcome is unknown cannot arrive any more: beyond every command's time-out."""
REPEAT_POLLED = 60.0
"""An unchanged reading is reported again after so many seconds."""


def ends_soon(placeholder: PlaceholderRecord, now: float) -> bool:
    """Return whether the end of a placeholder is expected at any moment."""
    since = placeholder.ending_since
    return placeholder.state is PlaceholderState.ENDING and since is not None and now < since + RESTLESS_FOR


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Events that follow from a look."""

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
    """Judges listings of one cluster, with memory of earlier listings and of requests; pure."""

    def __init__(self, cluster: ClusterName, *, user: str, begun_at: float) -> None:
        """``user``: the user whose jobs there are ours.

        ``begun_at``: when this process began; what an earlier one had under way may arrive for a while after that.
        """
        self._cluster = cluster
        self.user = user
        """Whose jobs there are ours; at another site that is known only once it is connected."""
        self._begun_at = begun_at
        self.under_way: set[BatchKey] = set()
        """Submissions being sent, whose outcome is not known yet."""
        self.not_cancelled: set[LrmJobId] = set()
        """Jobs whose cancellation the LRM did not answer."""
        self.disconnected: set[PlaceholderId] = set()
        """Placeholders whose agents closed the connection after they were told to end: one absence proves their end."""
        self.nodes: dict[PlaceholderId, str] = {}
        """Where each placeholder runs, or was seen to run."""
        self.absences: dict[PlaceholderId, int] = {}
        """How many listings in a row have lacked a placeholder whose agent was out of contact."""
        self.ended: set[PlaceholderId] = set()
        """Placeholders that a listing has shown as ended."""
        self._unfound: dict[BatchKey, int] = {}
        """How many listings have not shown a submission of unknown outcome since it could no longer be on its way."""
        self._told: ClusterPolled | None = None
        self._others_waited: tuple[int, ...] = ()
        """What each job of others asked for that waited at the last look."""
        self._others: int | None = None
        """Processors that others had at the last look."""

    # ---- a listing ------------------------------------------------------------------------------------------------

    def judge(
        self,
        state: State,
        polled: ClusterPolled,
        listing: Sequence[LrmJob],
        *,
        read_at: float,
        in_contact: Callable[[PlaceholderId], bool],
        tells_holders: bool = False,
        counted: bool = True,
    ) -> Judgement:
        """Compare a listing with the records.

        ``polled``: what was counted in it, now, with one processor for each of our placeholders. ``listing``: jobs
        with names of ours that are not certainly another user's. ``read_at``: when it was asked for: what was
        submitted later cannot be in it. ``in_contact``: whether a placeholder's agent is connected.
        ``tells_holders``: whether it tells whose holds jobs are in. ``counted``: whether nodes were listed, too.
        """
        now = polled.time
        # Two clusters of ours may be parts of one batch system, and then each listing shows the placeholders of both.
        named = {placeholder_of(job) for job in listing}
        known = {id_: state.placeholders[id_].lrm_id for id_ in named if id_ in state.placeholders}
        found = attribute(listing, known, user=self.user)
        proved = list(self._examine(state, found.jobs, read_at=read_at, now=now, in_contact=in_contact))
        self._forget(state)
        lost = tuple(e for e in proved if isinstance(e, PlaceholderEnded) and e.reason is EndReason.LOST)
        polled = replace(polled, ours=processors_held(listing, state))
        told, changing = self._judge_counts(state, polled) if counted else (None, False)
        events = (
            told,
            *(e for e in proved if e not in lost),
            new_holds(state, self._cluster, listing, now=now, told=tells_holders),
            new_suspensions(state, self._cluster, listing, now=now),
        )
        return Judgement(
            events=tuple(event for event in events if event is not None),
            lost=lost,
            cancel_again=self._cancel_again(state),
            orphans=tuple(job.id for job in found.unaccounted if job.state not in _OVER),
            restless=changing or self._restless(state, now),
        )

    def _examine(
        self,
        state: State,
        jobs: Mapping[PlaceholderId, LrmJob],
        *,
        read_at: float,
        now: float,
        in_contact: Callable[[PlaceholderId], bool],
    ) -> Iterator[Event]:
        """Yield what listed jobs prove of submissions and placeholders."""
        for batch in state.batches.on(self._cluster).values():
            if batch.lrm_ids is None and batch.submitted_at < read_at:
                yield from self._look_for(batch, jobs, now=now)
        for placeholder in state.placeholders.on(self._cluster).values():
            batch = state.batches[placeholder.id.batch]
            if batch.lrm_ids is None:
                continue
            job = jobs.get(placeholder.id)
            # A submission that was under way when the listing was asked for need not be in it.
            if read_at > (batch.submitted_at if job is not None or batch.taken_at is None else batch.taken_at):
                if job is None:
                    yield from self._absent(placeholder, now, in_contact=in_contact(placeholder.id))
                else:
                    yield from self._examine_one(placeholder, job, now)

    def _look_for(self, batch: BatchRecord, jobs: Mapping[PlaceholderId, LrmJob], *, now: float) -> list[Event]:
        ids = [jobs.get(PlaceholderId(batch=batch.key, index=index)) for index in range(1, batch.count + 1)]
        if any(ids):
            found = tuple(LrmJobId("") if job is None else job.id for job in ids)
            return [BatchSubmitted(time=now, batch=batch.key, lrm_ids=found)]
        if batch.key in self.under_way or now <= max(batch.submitted_at, self._begun_at) + SETTLE:
            return []
        seen = self._unfound[batch.key] = self._unfound.get(batch.key, 0) + 1
        if seen >= ABSENCES_NEEDED:
            reason = f"the submission did not arrive ({batch.uncertain or 'interrupted'})"
            return [BatchAbsent(time=now, batch=batch.key, reason=reason)]
        return []

    def _examine_one(self, placeholder: PlaceholderRecord, job: LrmJob, now: float) -> list[Event]:
        self.absences.pop(placeholder.id, None)
        if job.nodes:
            self.nodes[placeholder.id] = job.nodes[0]
        if job.state is LrmJobState.ENDED:
            return self._ended(placeholder, job, now)
        if job.state in ACTIVE:
            if placeholder.state in {PlaceholderState.SUBMITTED, PlaceholderState.QUEUED}:
                return [PlaceholderStarted(time=now, placeholder=placeholder.id)]
        elif placeholder.state is not PlaceholderState.ENDING and (reason := end_reason(job)) is not None:
            return [PlaceholderEnding(time=now, placeholder=placeholder.id, reason=reason, detail=job.reason)]
        return []

    def _ended(self, placeholder: PlaceholderRecord, job: LrmJob, now: float) -> list[Event]:
        reason = job.end or EndReason.LOST
        first_seen = placeholder.id not in self.ended
        self.ended.add(placeholder.id)
        waits_for_agent = placeholder.state is not PlaceholderState.ENDING and reason not in _BELIEVED_AT_ONCE
        if first_seen and waits_for_agent:
            return []
        detail = job.reason
        if reason is EndReason.EXITED and job.exit_code is not None:
            reason, detail = _AGENT_ENDS.get(job.exit_code, (reason, f"its agent ended with status {job.exit_code}"))
        elif reason is EndReason.SIGNALLED and job.signal is not None:
            # Not the reason of Slurm 22.05: it shows JobLaunchFailure.
            detail = f"its agent was killed by signal {job.signal}"
        elif placeholder.waiting and reason in _BEFORE_ITS_START:
            detail = _BEFORE_ITS_START[reason] + (f" ({job.reason})" if job.reason else "")
        return [PlaceholderEnded(time=now, placeholder=placeholder.id, reason=reason, detail=detail)]

    def _absent(self, placeholder: PlaceholderRecord, now: float, *, in_contact: bool) -> list[Event]:
        if in_contact:
            self.absences.pop(placeholder.id, None)
            return []
        seen = self.absences[placeholder.id] = self.absences.get(placeholder.id, 0) + 1
        if seen < (1 if placeholder.id in self.disconnected else ABSENCES_NEEDED):
            return []
        detail = "its batch system does not list it any more and its agent is out of contact"
        if placeholder.waiting:
            detail = (
                "its batch system does not list it any more, and it was not seen to run: it was deleted while it was "
                "queued, or its start failed"
            )
        return [PlaceholderEnded(time=now, placeholder=placeholder.id, reason=EndReason.LOST, detail=detail)]

    def _forget(self, state: State) -> None:
        self._unfound = {key: count for key, count in self._unfound.items() if key in state.batches}
        self.absences = {id_: count for id_, count in self.absences.items() if id_ in state.placeholders}
        self.nodes = {id_: node for id_, node in self.nodes.items() if id_ in state.placeholders}
        self.ended = {id_ for id_ in self.ended if id_ in state.placeholders}
        self.disconnected = {id_ for id_ in self.disconnected if id_ in state.placeholders}

    def _restless(self, state: State, now: float) -> bool:
        """Return whether an end is expected at any moment, or a question is open."""
        ending = any(ends_soon(placeholder, now) for placeholder in state.placeholders.on(self._cluster).values())
        batches = state.batches.on(self._cluster).values()
        uncertain = any(batch.lrm_ids is None and batch.key not in self.under_way for batch in batches)
        return ending or bool(self.absences) or uncertain

    # ---- counts ---------------------------------------------------------------------------------------------------

    def _judge_counts(self, state: State, polled: ClusterPolled) -> tuple[ClusterPolled | None, bool]:
        """Return what to report of the counts, and whether the next look may show others."""
        waiting = both(polled.others_waiting, self._others_waited)
        changing, self._others_waited = waiting != polled.others_waiting, polled.others_waiting
        ours = polled.ours + self._started_meanwhile(state, polled)
        return self._news(state, replace(polled, ours=ours, others_waiting=waiting)), changing

    def _started_meanwhile(self, state: State, polled: ClusterPolled) -> int:
        """Return how many placeholders may have started between listing jobs and nodes.

        Jobs are listed before nodes: one that is started between the two waits still, and others seem to have what it
        occupies. As long as it waits, further processors of others are believed when they have them at two looks, or
        running jobs would give up as much for it as it has already.
        """
        others = max(0, polled.processors - polled.idle - polled.ours)
        before, self._others = self._others, others
        known = state.clusters.get(self._cluster)
        if before is None or known is None:
            return 0
        return max(0, min(known.processors_queued, others - before))

    def failed(self, state: State, reason: str, *, now: float) -> ClusterUnavailable | None:
        """Return what to report of a failed look; None when nothing is new."""
        known = state.clusters.get(self._cluster)
        if known is not None and known.unavailable == reason:
            return None
        return ClusterUnavailable(time=now, cluster=self._cluster, reason=reason)

    def _news(self, state: State, polled: ClusterPolled) -> ClusterPolled | None:
        """Return what was counted; None when it was told before, and not long ago."""
        told, known = self._told, state.clusters.get(self._cluster)
        back = known is not None and known.unavailable is not None
        if (
            told is not None
            and not back
            and polled == replace(told, time=polled.time)
            and polled.time - told.time <= REPEAT_POLLED
        ):
            return None
        # When ours have left, the scheduler decides some things by the next look, which is then told in any case.
        self._told = None if told is not None and polled.ours < told.ours else polled
        return polled

    def _cancel_again(self, state: State) -> tuple[LrmJobId, ...]:
        if not self.not_cancelled:
            return ()
        ending = {
            placeholder.lrm_id
            for placeholder in state.placeholders.on(self._cluster).values()
            if placeholder.state is PlaceholderState.ENDING
        }
        missed, self.not_cancelled = self.not_cancelled, set()
        return tuple(sorted(missed & ending))

    # ---- ends -----------------------------------------------------------------------------------------------------

    def unexplained(self, state: State, lost: Iterable[PlaceholderEnded]) -> dict[PlaceholderId, LrmJobId]:
        """Return LRM ids of lost placeholders whose ends accounting may explain."""
        found: dict[PlaceholderId, LrmJobId] = {}
        for event in lost:
            record = state.placeholders.get(event.placeholder)
            if record is not None and record.lrm_id and record.state is not PlaceholderState.ENDING:
                found[event.placeholder] = record.lrm_id
        return found

    def explained(self, ids: dict[PlaceholderId, LrmJobId], accounted: Iterable[LrmJob]) -> dict[PlaceholderId, LrmJob]:
        """Return the ends of placeholders that accounting knows."""
        known = list(accounted)
        return {id_: job for id_, lrm_id in ids.items() for job in known if tells_of(job, id_, lrm_id, user=self.user)}


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
