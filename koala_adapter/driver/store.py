# SPDX-License-Identifier: Apache-2.0
"""The journal as the loop needs it: its interface, rebuilding a state from it, and a journal in memory.

A state is rebuilt from the latest snapshot and the later events, without those on which the scheduler fails.
"""

from __future__ import annotations

import traceback
from contextlib import closing
from typing import TYPE_CHECKING, Protocol, TypeAlias

import structlog

from koala_adapter.errors import JobRefusedError, RecoveryError
from koala_adapter.outcome import PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.actions import Action, SubmitPlaceholders
from koala_adapter.scheduler.context import RecordedBatches, batch_number

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterable

    from koala_adapter.model import BatchKey, PlaceholderId
    from koala_adapter.scheduler import Scheduler
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.knownpolicies import Policies
    from koala_adapter.scheduler.records import BatchRecord, State

    MakeScheduler: TypeAlias = Callable[[State | None], Scheduler]


# -- Rebuilding the scheduler's state from a journal ---------------------------------------------------------

MOST_FAILURES = 10
"""Events of one journal that may fail when they are replayed: beyond that the journal and this program do not fit."""

log = structlog.get_logger()


class EventStore(Protocol):
    """Journal as seen by its only writer (protocol)."""

    def append(self, event: Event) -> int:
        """Store an event and return its number. Raises JournalBlockedError when it cannot: then it never happened."""

    def sync(self) -> None:
        """Force what was appended to disk. Raises JournalBlockedError."""

    def probe(self) -> None:
        """Test whether the journal can be written. Raises JournalBlockedError."""

    def snapshot_in_groups(self, state: State, number: int) -> Generator[None, None, None]:
        """Store the state as of an event, with a pause after each group of records.

        The state must not change before the end, and the snapshot does not count before it. Raises JournalBlockedError.
        """

    def recover(self) -> tuple[State | None, Generator[tuple[int, Event], None, None]]:
        """Return the latest snapshot (or None) and the later events, without those set aside."""

    def set_aside(self, number: int, event: Event, failure: str) -> None:
        """Exclude an event from the state, and keep it with the traceback of its failure.

        Raises JournalBlockedError.
        """

    def note_batch(self, batch: BatchRecord) -> None:
        """Record the name of a submission until a snapshot includes it. Raises JournalBlockedError."""

    def batches(self) -> list[BatchRecord]:
        """Return the submissions recorded since the latest snapshot, and perhaps earlier ones, by number."""

    def largest_batch_number(self) -> int:
        """Return the largest known number of a submission."""


def rebuilt(store: EventStore, make: MakeScheduler) -> Scheduler:
    """Return the scheduler that :func:`rebuild` builds, if all policies are here by which its events were decided.

    Without them, jobs would be refused in the replay that waited or ran in truth. Raises ConfigurationError, with
    nothing written.
    """
    return rebuild(store, make, check_policies=True)[0]


def rebuild(store: EventStore, make: MakeScheduler, *, check_policies: bool = False) -> tuple[Scheduler, list[Event]]:
    """Build the scheduler from snapshot and events; return it with the events on which it failed.

    Each of these is set aside, and all begun anew. Whatever is left out, submissions have the names that they were made
    under, and no other ever gets one of these. Raises RecoveryError when too many fail, and then sets none aside;
    raises JournalError.
    """
    failures: dict[int, tuple[Event, str]] = {}
    while len(failures) <= MOST_FAILURES:
        state, events = store.recover()
        scheduler = make(state)
        if check_policies:
            events = _with_policies(scheduler.policies, state, events)
        recorded = RecordedBatches(store.batches(), after=scheduler.state.batches_made)
        made: list[BatchRecord] = []
        with closing(events):
            failed = _replay(scheduler, (one for one in events if one[0] not in failures), recorded, made)
        if failed is None:
            for number, (event, failure) in failures.items():
                store.set_aside(number, event, failure)
                report_defect(number, event, failure)
            known = {batch.key for batch in store.batches()}
            for batch in made:
                if batch.key not in known:
                    store.note_batch(batch)
            scheduler.state.batches_made = max(scheduler.state.batches_made, store.largest_batch_number())
            return scheduler, [event for event, _ in failures.values()]
        number, event, failure = failed
        failures[number] = (event, failure)
    message = f"the state cannot be built from the journal: the scheduler fails on more than {MOST_FAILURES} events"
    latest = failure.strip().rpartition("\n")[2]
    raise RecoveryError(
        f"{message}, such as {number}: {latest}", hint="nothing was lost; report it, or use the version that wrote it"
    )


def _with_policies(
    policies: Policies, state: State | None, events: Generator[tuple[int, Event], None, None]
) -> Generator[tuple[int, Event], None, None]:
    """Yield events; raise ConfigurationError before the first that would be decided otherwise than it was."""
    for record in state.jobs.values() if state is not None else ():
        if not record.state.final:
            policies.require_placement(record.job)
    configured = state is None
    with closing(events):
        for number, event in events:
            if isinstance(event, ev.Configured):
                policies.require_malleability(event.parameters, *event.clusters)
            elif isinstance(event, ev.JobSubmitted):
                policies.require_placement(event.job)
            if not configured and state is not None and not isinstance(event, ev.Configured):
                clusters = [record.parameters for record in state.clusters.values() if record.configured]
                policies.require_malleability(state.parameters, *clusters)
            configured = True
            yield number, event


def _replay(
    scheduler: Scheduler, events: Iterable[tuple[int, Event]], recorded: RecordedBatches, made: list[BatchRecord]
) -> tuple[int, Event, str] | None:
    """Replay events; return the first failure. ``made`` gets the submissions."""
    for number, event in events:
        try:
            made += batches_in(scheduler.state, scheduler.handle(event, recorded))
        except JobRefusedError:  # and nothing was changed, as when it happened
            continue
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a defect
            return number, event, failure_text(error)
    return None


def batches_in(state: State, actions: Iterable[Action]) -> list[BatchRecord]:
    """Return the submissions in the actions of an event."""
    return [state.batches[one.batch] for one in actions if isinstance(one, SubmitPlaceholders)]


def tellers(state: State, event: Event) -> list[PlaceholderId]:
    """Return the placeholders whose agents reported an event and can report it again."""
    match event:
        case ev.PlaceholderHeld() | ev.PlaceholderSilent() | ev.PlaceholderEnding():
            return [event.placeholder]
        case ev.RankStarted() | ev.RankEnded() | ev.OfferAnswered() | ev.ProcessorsReleased() | ev.MoreRequested():
            record = state.jobs.get(event.job_id)
            return [] if record is None else [placeholder.id for placeholder in state.placeholders_of(record)]
        case ev.LessRequested() | ev.PointReached() | ev.ChangeMade() | ev.ChangeGivenUp():
            record = state.jobs.get(event.job_id)
            return [] if record is None else [placeholder.id for placeholder in state.placeholders_of(record)]
    return []


def doubts(
    state: State,
    *,
    now: float,
    why: str,
    under_way: Collection[BatchKey],
    in_contact: Callable[[PlaceholderId], bool] = lambda _: False,
) -> list[Event]:
    """Return events that put in doubt what only the former process, or an event set aside, knew.

    Submissions whose outcome is not known, but for those ``under_way`` that this process is sending, and agents that
    have yet to come back: those that are not ``in_contact``.
    """
    found: list[Event] = [
        ev.BatchUncertain(time=now, batch=batch.key, reason=f"{why} meanwhile")
        for batch in state.batches.values()
        if batch.lrm_ids is None and batch.key not in under_way
    ]
    found += [
        ev.PlaceholderSilent(time=now, placeholder=placeholder.id, detail=why)
        for placeholder in state.placeholders.values()
        if placeholder.host and placeholder.state is not PlaceholderState.ENDING and not in_contact(placeholder.id)
    ]
    return found


def failure_text(error: Exception) -> str:
    """Return the traceback of a failure."""
    return "".join(traceback.format_exception(error))


def report_defect(number: int, event: Event, failure: str) -> None:
    """Log an event that is set aside."""
    log.error(
        "the scheduler failed on an event, which is set aside: a defect of koala, please report it",
        number=number,
        event_type=type(event).__name__,
        failure=failure,
    )


# -- A journal in memory -------------------------------------------------------------------------------------
# For drivers that need no recovery: simulations and tests.


class MemoryStore:
    """A journal in memory: all events in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.left_out: dict[int, str] = {}
        """Numbers (from 1) of the events that are set aside, each with the traceback."""
        self._batches: list[BatchRecord] = []

    def append(self, event: Event) -> int:
        """Keep an event and return its number."""
        self.events.append(event)
        return len(self.events)

    def sync(self) -> None:
        """Do nothing: there is no disk."""

    def probe(self) -> None:
        """Do nothing: memory can always be written."""

    def snapshot_in_groups(self, state: State, number: int) -> Generator[None, None, None]:  # noqa: ARG002 - of all stores
        """Take no snapshot: the events are all kept, so none is needed."""
        yield from ()

    def set_aside(self, number: int, event: Event, failure: str) -> None:  # noqa: ARG002 - it is in the list
        """Exclude an event from the state."""
        self.left_out[number] = failure

    def note_batch(self, batch: BatchRecord) -> None:
        """Keep the number and name of a submission."""
        self._batches.append(batch)

    def batches(self) -> list[BatchRecord]:
        """Return the submissions that were noted."""
        return list(self._batches)

    def largest_batch_number(self) -> int:
        """Return the largest number in the name of a submission."""
        return max((batch_number(one.key) for one in self._batches), default=0)

    def recover(self) -> tuple[State | None, Generator[tuple[int, Event], None, None]]:
        """Return the latest snapshot, and the numbered events after it."""
        numbered = enumerate(list(self.events), start=1)
        return None, ((number, event) for number, event in numbered if number not in self.left_out)
