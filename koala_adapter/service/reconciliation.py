# SPDX-License-Identifier: Apache-2.0
"""What a listing of an LRM proves about our placeholders. Pure.

Knowledge has three values: seen, seen gone, unknown. A placeholder missing from a listing is *unknown* until a second
witness agrees: another, later listing while its agent is out of contact, or the agent's own farewell. What the LRM
positively shows as ended is believed, after its agent had one more poll to say how.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from koala_adapter.model import BatchKey, EndReason, LrmJobId, LrmJobState, PlaceholderId
from koala_adapter.plugin.attribution import attribute, placeholder_of
from koala_adapter.scheduler.events import (
    BatchAbsent,
    BatchSubmitted,
    Event,
    PlaceholderEnded,
    PlaceholderEnding,
    PlaceholderStarted,
)
from koala_adapter.scheduler.outcome import PlaceholderState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from koala_adapter.model import ClusterName, LrmJob
    from koala_adapter.scheduler.records import BatchRecord, PlaceholderRecord, State

ABSENCES_NEEDED = 2
RESTLESS_FOR = 120.0
"""Seconds for which an end is expected at any moment; after them the LRM is asked as often as always."""
OCCUPYING = frozenset(
    {LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED, LrmJobState.ENDING, LrmJobState.UNKNOWN}
)
_OVER = frozenset({LrmJobState.ENDED, LrmJobState.ENDING})
_AGENT_ENDS = {
    1: (EndReason.LAUNCH_FAILED, "its agent found nothing to work with; its own output on the node says why"),
    3: (EndReason.CANCELLED, "the control center refused its agent"),
    4: (EndReason.LOST, "its agent had no contact to the control center for the time of its lease"),
    5: (EndReason.CANCELLED, "its agent was ended by the batch system or by its walltime"),
    127: (EndReason.LAUNCH_FAILED, "its node has no usable Python 3.6 or newer"),
}
"""What the exit statuses of vjm/agent/holding.py and of its job script mean."""
_BELIEVED_AT_ONCE = frozenset({EndReason.NODE_LOST, EndReason.WALLTIME, EndReason.MEMORY, EndReason.CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one listing led to."""

    events: tuple[Event, ...]
    orphans: tuple[LrmJobId, ...]
    """Jobs of our user with our name that no record of ours accounts for: to be cancelled."""
    restless: bool
    """Something is expected to change soon, so the next poll should not be put off."""


@dataclass(slots=True)
class Reconciler:
    """Remembers, for one cluster, what earlier listings left open."""

    cluster: ClusterName
    user: str
    """Whose jobs there are ours."""
    absences: dict[PlaceholderId, int] = field(default_factory=dict)
    ended: set[PlaceholderId] = field(default_factory=set)
    _unfound: dict[BatchKey, int] = field(default_factory=dict)
    """How many listings have not shown a submission of unknown outcome since it could no longer be on its way."""
    farewells: set[PlaceholderId] = field(default_factory=set)
    """Placeholders whose agents closed the connection after they were told to end."""

    def examine(
        self,
        state: State,
        listing: Iterable[LrmJob],
        *,
        read_at: float,
        now: float,
        in_contact: Callable[[PlaceholderId], bool],
        settled: Callable[[BatchRecord], bool],
    ) -> Findings:
        """Compare a listing, read at ``read_at``, with what we believe.

        ``in_contact`` tells whether a placeholder's agent is connected; ``settled`` whether a submission of unknown
        outcome can no longer arrive.
        """
        listing = tuple(listing)
        # Two clusters of ours may be parts of one batch system, and then each listing shows the placeholders of both.
        named = {placeholder_of(job) for job in listing}
        known = {id_: state.placeholders[id_].lrm_id for id_ in named if id_ in state.placeholders}
        found = attribute(listing, known, user=self.user)
        events: list[Event] = []
        batches = state.batches.on(self.cluster).values()
        for batch in batches:
            if batch.lrm_ids is None and batch.submitted_at < read_at:
                events += self._look_for(batch, found.jobs, now=now, settled=settled(batch))
        for placeholder in state.placeholders.on(self.cluster).values():
            batch = state.batches[placeholder.id.batch]
            if batch.lrm_ids is None:
                continue
            job = found.jobs.get(placeholder.id)
            # A submission that was under way when the listing was asked for need not be in it.
            if read_at > (batch.submitted_at if job is not None or batch.taken_at is None else batch.taken_at):
                events += self._examine_one(placeholder, job, now, in_contact(placeholder.id))
        self._forget(state)
        orphans = tuple(job.id for job in found.unaccounted if job.state not in _OVER)
        return Findings(events=tuple(events), orphans=orphans, restless=self._restless(state, now, uncertain=batches))

    def _look_for(
        self, batch: BatchRecord, jobs: Mapping[PlaceholderId, LrmJob], *, now: float, settled: bool
    ) -> list[Event]:
        ids = [jobs.get(PlaceholderId(batch=batch.key, index=index)) for index in range(1, batch.count + 1)]
        if any(ids):
            found = tuple(LrmJobId("") if job is None else job.id for job in ids)
            return [BatchSubmitted(time=now, batch=batch.key, lrm_ids=found)]
        if not settled:
            return []
        seen = self._unfound[batch.key] = self._unfound.get(batch.key, 0) + 1
        if seen >= ABSENCES_NEEDED:
            reason = f"the submission did not arrive ({batch.uncertain or 'interrupted'})"
            return [BatchAbsent(time=now, batch=batch.key, reason=reason)]
        return []

    def _examine_one(
        self,
        placeholder: PlaceholderRecord,
        job: LrmJob | None,
        now: float,
        in_contact: bool,  # noqa: FBT001
    ) -> list[Event]:
        if job is None:
            return self._absent(placeholder, now, in_contact=in_contact)
        self.absences.pop(placeholder.id, None)
        if job.state is LrmJobState.ENDED:
            return self._ended(placeholder, job, now)
        if job.state in {LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED}:
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
        return [PlaceholderEnded(time=now, placeholder=placeholder.id, reason=reason, detail=detail)]

    def _absent(self, placeholder: PlaceholderRecord, now: float, *, in_contact: bool) -> list[Event]:
        if in_contact:
            self.absences.pop(placeholder.id, None)
            return []
        seen = self.absences[placeholder.id] = self.absences.get(placeholder.id, 0) + 1
        needed = 1 if placeholder.id in self.farewells else ABSENCES_NEEDED
        if seen < needed:
            return []
        detail = "its batch system does not list it any more and its agent is out of contact"
        return [PlaceholderEnded(time=now, placeholder=placeholder.id, reason=EndReason.LOST, detail=detail)]

    def _forget(self, state: State) -> None:
        self._unfound = {key: count for key, count in self._unfound.items() if key in state.batches}
        self.absences = {id_: count for id_, count in self.absences.items() if id_ in state.placeholders}
        self.ended = {id_ for id_ in self.ended if id_ in state.placeholders}
        self.farewells = {id_ for id_ in self.farewells if id_ in state.placeholders}

    def _restless(self, state: State, now: float, *, uncertain: Iterable[BatchRecord]) -> bool:
        ending = any(
            placeholder.ending_since is not None and now < placeholder.ending_since + RESTLESS_FOR
            for placeholder in state.placeholders.on(self.cluster).values()
            if placeholder.state is PlaceholderState.ENDING
        )
        return ending or bool(self.absences) or any(batch.lrm_ids is None for batch in uncertain)


def end_reason(job: LrmJob) -> EndReason | None:
    """Return why a job that its LRM still lists can be counted on no more."""
    if job.state is LrmJobState.HELD and job.reason.startswith("error"):
        return EndReason.LAUNCH_FAILED
    return job.end if job.state is LrmJobState.ENDING else None


def processors_held(listing: Iterable[LrmJob]) -> int:
    """Return how many of the cluster's processors our jobs in a listing occupy."""
    return sum(job.processors for job in listing if job.state in OCCUPYING and not job.elsewhere)
