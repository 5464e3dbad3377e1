# SPDX-License-Identifier: Apache-2.0
"""The event loop: an event is journaled, then handled by the scheduler, then its actions are carried out.

While the journal cannot be written, nothing of that happens: events, and actions that need the journal, wait in order,
and requests of users are refused. Events also wait while a snapshot is written group by group, because the state must
not change before its end; read-only requests are answered meanwhile. An event on which the scheduler fails (a defect of
koala) is set aside: the state, which may be half changed, is dropped and rebuilt from the journal without that event.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

import structlog

from koala_adapter.driver.store import EventStore, batches_in, failure_text, rebuild, report_defect
from koala_adapter.errors import DefectError, JobRefusedError, JournalBlockedError, KoalaError, RecoveryError
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler.events import Event, TimeReached, TimersPostponed

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from koala_adapter.driver.store import MakeScheduler
    from koala_adapter.scheduler import Scheduler
    from koala_adapter.scheduler.actions import Action
    from koala_adapter.scheduler.records import BatchRecord


# -- The effector: carries out actions -----------------------------------------------------------------------


class Effector(Protocol):
    """Carries out the scheduler's actions, in reality or simulation; results come back as events (protocol)."""

    def carry_out(self, action: Action) -> None:
        """Carry out one action, of whatever kind.

        May raise JournalBlockedError, and is called again with the same action when the journal can be written.
        """


# -- The loop ------------------------------------------------------------------------------------------------

POSTPONEMENT = 60.0
"""Seconds for which the timers are put off on which the scheduler failed."""
SNAPSHOT_INTERVAL = 5000
"""Events between two snapshots of the scheduler's state."""
ENOUGH_AT_THE_END = 5
"""Such a part of these events is worth a snapshot when a service ends."""

log = structlog.get_logger()


class LoopOwner(Protocol):
    """Owner of a loop, told of handled events and failures (protocol)."""

    def handled(self, event: Event) -> None:
        """Called after an event was handled and before its actions are carried out.

        May raise JournalBlockedError.
        """

    def settled(self) -> None:
        """Called when no event is left to be handled, or all wait for the journal."""

    def halted(self) -> None:
        """Called when the journal cannot be written; call :meth:`EventLoop.try_again` later."""

    def snapshot_begun(self) -> None:
        """Called when a snapshot is to be written; call :meth:`EventLoop.write_snapshot_group` until it is complete."""

    def state_rebuilt(self, set_aside: Sequence[Event]) -> None:
        """Called after events were set aside: repeat what agents and batch systems had told by them.

        The first is the latest of all. Where there are more, the state is no longer that in which it happened.
        """

    def failed(self, error: KoalaError) -> None:
        """Called when the state cannot be rebuilt: the loop stops, and the journal has all events."""


class EventLoop:
    """Handles events one by one, each with its actions before the next. Owns the scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: EventStore,
        effector: Effector,
        owner: LoopOwner,
        *,
        make: MakeScheduler,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
        since_snapshot: int = 0,
    ) -> None:
        """``scheduler``: built from ``store``; ``make``: creates an empty one for rebuilding.

        ``snapshot_interval``: events between two snapshots; ``since_snapshot``: so many are in ``store`` already.
        """
        self.scheduler = scheduler
        self._store = store
        self._effector = effector
        self._owner = owner
        self._make = make
        self._events: deque[Event] = deque()
        self._actions: deque[Action] = deque()
        self._batches: deque[BatchRecord] = deque()
        """Submissions that the journal does not know yet, which nothing is asked of the world before."""
        self._failed_on: tuple[int, Event, str] | None = None
        """Event that has left the state half changed and is not set aside yet, with its number and the traceback."""
        self._snapshot_interval = snapshot_interval
        self._since_snapshot = since_snapshot
        self._latest = 0
        """The number of the event that was handled last, in this process."""
        self._snapshot: Generator[None, None, None] | None = None
        """The snapshot that is being written."""
        self._sync_wanted = False
        self._draining = False
        self._halt_told = False
        self._concluding = False
        """Nothing more can be done in the world; events that wait are left to those who will tell them again."""
        self.stopped = False
        """True once the state could not be built again."""
        self.trouble = ""
        """Why nothing is decided at present; empty while all is well."""

    @property
    def in_snapshot(self) -> bool:
        """True while a snapshot is being written."""
        return self._snapshot is not None

    @property
    def holding(self) -> bool:
        """Whether events wait, so that the state may be outdated."""
        return bool(self.trouble) or self.in_snapshot

    def post(self, event: Event) -> None:
        """Handle an event now, or when the journal can be written and no snapshot is being taken."""
        self._events.append(event)
        self._drain()

    def enter(self, event: Event) -> None:
        """Handle the event of a user's request; it is on disk before this returns.

        What is left of a snapshot is written first, without a pause; callers that can wait do so until
        :attr:`in_snapshot` is false.

        Raises JournalBlockedError when it cannot be journaled: then it was never wanted. Raises JobRefusedError when
        the scheduler refuses it, and DefectError when it failed on it: then nothing was changed.
        """
        while self.write_snapshot_group():
            pass
        self.require_journal()
        try:
            number = self._store.append(event)
        except JournalBlockedError as error:
            self.halt(error)
            raise
        self._sync_wanted = True
        try:
            well = self._decide(number, event)
        finally:
            self._drain()
        if not well:
            kind, hint = type(event).__name__, "its log and `koala status` tell more; please report it"
            raise DefectError(
                f"koala failed on this ({kind} {number}), and set it aside: nothing was changed", hint=hint
            )

    def require_journal(self) -> None:
        """Raise JournalBlockedError while events cannot be handled."""
        if self.trouble:
            raise JournalBlockedError(self.trouble, hint="nothing is accepted until it can; make room, then try again")

    def halt(self, error: JournalBlockedError) -> None:
        """Stop handling events until the journal can be written."""
        self.trouble = error.message
        if not self._halt_told:
            self._halt_told = True
            log.error("nothing is decided until the journal can be written", error=error.message)
            self._owner.halted()

    def try_again(self) -> None:
        """Continue if the journal can be written."""
        if self.stopped:
            return
        try:
            self._store.probe()
        except JournalBlockedError as error:
            self.trouble = error.message
        else:
            self.trouble = ""
            self._drain()
            self._halt_told = bool(self.trouble)

    def write_snapshot_group(self) -> bool:
        """Write the next group of a snapshot; after the last one, handle the events that have waited.

        Tell whether there is more to be written. Raises JournalError.
        """
        if self._snapshot is None:
            return False
        try:
            next(self._snapshot)
        except StopIteration:
            self._snapshot = None
        except JournalBlockedError as error:  # the events are there; the next restart only takes longer
            log.warning("no snapshot was taken", error=error.message)
            self._snapshot = None
        if self._snapshot is None:
            self._drain()
        return self._snapshot is not None

    def conclude(self) -> bool:
        """Write a snapshot at an orderly end, if there is much to replay.

        Those that live for one job each would otherwise replay all jobs that there ever were. Tell whether the end is
        orderly: the state is what the journal says, and all that followed from it is done. Raises JournalError.

        Events that wait for the end of a snapshot are not in the journal, and are dropped: batch systems and agents
        tell the next process of them.
        """
        self._concluding = True
        while self.write_snapshot_group():
            pass
        if self.trouble or self._failed_on is not None:
            return False
        if not self._latest:
            return not self._actions
        if self._since_snapshot >= self._snapshot_interval // ENOUGH_AT_THE_END:
            self._since_snapshot = 0
            self._snapshot = self._store.snapshot_in_groups(self.scheduler.state, self._latest)
            while self.write_snapshot_group():
                pass
        return not self._actions

    def _drain(self) -> None:
        if self._draining or self._concluding:
            return
        self._draining = True
        try:
            while not self.trouble and self._has_work:
                self._go_on()
        except JournalBlockedError as error:
            self.halt(error)
        except RecoveryError as error:
            self._stop(error)
        finally:
            self._draining = False
        self._owner.settled()

    @property
    def _has_work(self) -> bool:
        events = self._events and not self.in_snapshot
        return bool(self._failed_on or self._sync_wanted or self._batches or self._actions or events)

    def _go_on(self) -> None:
        if self._failed_on is not None:
            self._set_aside(*self._failed_on)
        elif self._batches:
            self._store.note_batch(self._batches[0])
            self._batches.popleft()
        elif self._sync_wanted:
            self._store.sync()
            self._sync_wanted = False
        elif self._actions:
            action = self._actions.popleft()
            try:
                self._effector.carry_out(action)
            except JournalBlockedError:
                self._actions.appendleft(action)
                raise
        else:
            number = self._store.append(self._events[0])
            event = self._events.popleft()
            try:
                self._decide(number, event)
            except JobRefusedError as error:
                log.warning("the scheduler refused an event", event_type=type(event).__name__, error=error.message)

    def _decide(self, number: int, event: Event) -> bool:
        """Handle a stored event; return False when the scheduler fails on it."""
        try:
            actions = self.scheduler.handle(event)
        except JobRefusedError:  # raised before anything was changed
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a defect, and the state may be half changed
            self._failed_on = (number, event, failure_text(error))
            return False
        self._latest = number
        self._actions.extend(actions)
        self._batches.extend(batches_in(self.scheduler.state, actions))
        self._sync_wanted |= any(isinstance(one, act.SubmitPlaceholders | act.LaunchJob) for one in actions)
        try:
            self._owner.handled(event)
        except JournalBlockedError as error:  # the event has been taken in all the same
            self.halt(error)
        self._since_snapshot += 1
        if self._since_snapshot >= self._snapshot_interval:
            self._since_snapshot = 0
            self._snapshot = self._store.snapshot_in_groups(self.scheduler.state, number)
            self._owner.snapshot_begun()
        return True

    def _set_aside(self, number: int, event: Event, failure: str) -> None:
        """Exclude an event on which the scheduler failed, and continue."""
        self._store.set_aside(number, event, failure)
        report_defect(number, event, failure)
        self.scheduler, further = rebuild(self._store, self._make)
        self._failed_on = None
        if isinstance(event, TimersPostponed):
            raise RecoveryError("the scheduler fails whenever time passes", hint="nothing was lost; see the log")
        if isinstance(event, TimeReached):
            # What was due is due still, and would fail again at once, and every other event with it.
            self._events.appendleft(TimersPostponed(time=event.time, seconds=POSTPONEMENT))
        self._owner.state_rebuilt([event, *further])

    def _stop(self, error: RecoveryError) -> None:
        self.stopped, self.trouble = True, error.message
        log.error("the service stops", error=str(error))
        self._owner.failed(error)
