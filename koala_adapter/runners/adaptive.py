# SPDX-License-Identifier: Apache-2.0
"""Runner ``adaptive``: processes that compute in step, and change together at one point of their progress.

It is KOALA's MRunner for programs that use the application library (CoreGRID TR-0092). The scheduler's records say
which change is under way; a coordinator for each component brings its processes to it. In order: notices of the end of
the walltime, the membership by the records, the runner. All of it only computes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.model import Launcher
from koala_adapter.runners.coordinator import Coordinator
from koala_adapter.runners.notes import LARGEST_NUMBER, Membership, Note, Place, Tell, WantedChange, note
from koala_adapter.runners.runner import AddressedLaunch, Application, ProcessRunner
from koala_adapter.runners.workers import leavers
from koala_adapter.scheduler.sizechange import Change, ChangePhase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from koala_adapter.runners.nodes import RelayPlan
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord


# -- Notices of the end of the walltime ----------------------------------------------------------------------
# An application with a library of its own keeps its size and is told (DYNACO). A process hears how long it may still
# run as soon as it is in contact, again when that changes, and once more when the end is near; it also hears when that
# will be, for the time in which it may be out of contact. Its reaction, such as writing its state to a file, is its own
# decision. Nothing has to be remembered over a restart: a process that comes into contact again is told again.
#
# Libraries of earlier versions do not know the note and would complain of it; a process that wants it says so in its
# hello.

SLACK = 1.0
"""Seconds; an end that is known better than so is not told again."""


class WalltimeNotices:
    """Messages to the processes of one job about the end of their walltime."""

    def __init__(self, warn_before: float) -> None:
        """``warn_before``: seconds before the end at which it is near; 0: never."""
        self._warn_before = warn_before
        self._ends_at: float | None = None
        """When the first process is ended; None: not known."""
        self._near = False
        """That the end is near was noticed, and it has not moved away since."""
        self._hearing: set[int] = set()
        """Ranks in contact whose library knows the note."""
        self._tells: list[Tell] = []

    def ends(self, at: float, ranks: Iterable[int], now: float) -> None:
        """Set the time at which the first process is ended, and the processes."""
        self._hearing.intersection_update(ranks)
        if self._ends_at is None or abs(self._ends_at - at) >= SLACK:
            self._ends_at = at
            self._near = bool(self._warn_before) and at - self._warn_before <= now
            self._tell(self._hearing, now)

    def heard_hello(self, rank: int, hello: Note, now: float) -> None:
        """Register that a process is in contact."""
        self._hearing.discard(rank)
        if hello.words.get("ends") == "1":
            self._hearing.add(rank)
            self._tell((rank,), now)

    def lost(self, rank: int) -> None:
        """Register that a process is out of contact or over."""
        self._hearing.discard(rank)

    def time_passed(self, now: float) -> None:
        """Create the messages that are due."""
        due = self.next_deadline()
        if due is not None and due <= now:
            self._near = True
            self._tell(self._hearing, now)

    def next_deadline(self) -> float | None:
        """Return the next time at which `time_passed` must be called; None: not before another event."""
        if self._ends_at is None or self._near or not self._warn_before:
            return None
        return self._ends_at - self._warn_before

    def take_tells(self) -> list[Tell]:
        """Return the messages to be sent, and clear them."""
        tells, self._tells = self._tells, []
        return tells

    @property
    def warned(self) -> int:
        """Number of processes in contact that know of the near end."""
        return len(self._hearing) if self._near else 0

    def _tell(self, ranks: Iterable[int], now: float) -> None:
        if self._ends_at is None:
            return
        left = min(LARGEST_NUMBER, int(max(0.0, self._ends_at - now)))
        words = {"in": left, "near": int(self._near), "warn": int(self._warn_before)}
        said = note("ends", **words)
        self._tells.extend(Tell(rank, said) for rank in sorted(ranks))


# -- Processes of a component and changes under way, from the records ----------------------------------------


def signature(record: JobRecord) -> object:
    """Return a cheap value that changes with every change of a job's sizes."""
    changes = tuple(
        (change.number, change.phase, change.accepted, change.done, change.adaptation, change.made)
        for change in record.changes.values()
    )
    return (record.state, len(record.ranks), len(record.departed), len(record.ends), changes)


def membership_of(record: JobRecord, component: str, relay: RelayPlan | None = None) -> Membership:
    """Return a component's processes and the change that the scheduler wants of them."""
    ranks = [one for one in record.ranks if one.component == component and one.rank not in record.departed]
    changes = [one for one in record.changes.values() if one.component == component and one.phase in _MOVING]
    outside = [
        one for one in changes if one.phase is ChangePhase.TAKING or one.made
    ]  # not yet members, or not any more
    not_members = {rank for change in outside for rank in change.ranks}
    # In the order in which they joined, which is what their processes were told: ranks are given when placeholders are
    # there, and a later change may have its own first.
    order = {rank: place for place, rank in enumerate(record.joined)}
    members = sorted((one for one in ranks if one.rank not in not_members), key=lambda one: order.get(one.rank, -1))
    head = next((one for one in record.ranks if record.job.is_head(one.component)), None)
    limits = record.job.component(component)
    return Membership(
        members=tuple(one.rank for one in members),
        places={one.rank: _place(one) for one in ranks},
        wanted=tuple(_wanted(record, change, members) for change in changes),
        ended=frozenset(one.rank for one in ranks if one.rank in record.ends),
        minimum=limits.minimum,
        maximum=limits.maximum,
        head=None if head is None else _place(head),
        relay=relay,
        first_only=record.job.launcher is Launcher.MPI,
    )


_MOVING = (ChangePhase.TAKING, ChangePhase.RELEASING)


def able_to_leave(members: Sequence[Rank], cluster: str) -> list[int]:
    """Return the processes of a component that may leave a cluster: all but the first, which bears the others."""
    return [one.rank for one in members[1:] if one.cluster == cluster]


def _wanted(record: JobRecord, change: Change, members: Sequence[Rank]) -> WantedChange:
    joining: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    if change.phase is ChangePhase.TAKING:
        joining = tuple(change.ranks)
    elif change.adaptation:
        leaving = tuple(change.ranks)
    else:
        able = able_to_leave(members, record.claims[change.parts[0].claim].cluster or "")
        leaving = tuple(sorted(leavers(able, change.accepted - change.done)))
    return WantedChange(
        number=change.number,
        joining=joining,
        leaving=leaving,
        reason=change.reason,
        adaptation=change.adaptation,
        point=change.point,
        made=change.made,
    )


def _place(rank: Rank) -> Place:
    return Place(rank=rank.rank, cluster=rank.cluster, address=rank.address or rank.host)


# -- The runner ----------------------------------------------------------------------------------------------


class AdaptiveRunner(ProcessRunner):
    """Runner with one process for each rank, each with the application library and a link to koala."""

    speaks = True

    def __init__(self, application: Application) -> None:
        super().__init__(application)
        self.coordinators: Mapping[str, Coordinator] = {
            one.name: Coordinator(application.job.id, float(one.point_patience), float(one.done_patience))
            for one in application.job.components
            if application.job.adapts(one.name)
        }
        """By component."""
        self.memberships: dict[str, Membership] = {}
        """The members of each component, as the records have them."""
        self.notices = WalltimeNotices(float(application.job.warn_before))
        self._signature: object = None

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        launches = super().launches_in(rank)
        if rank.component not in self.coordinators:
            return launches
        library = self.application.library
        return [replace(one, launch=replace(one.launch, application=True, library=library)) for one in launches]

    def follow(self, record: JobRecord, now: float) -> bool:
        """Update the coordinators from the scheduler's records; return whether anything changed."""
        known = signature(record)
        if known == self._signature:
            return False
        self._signature = known
        for name, coordinator in self.coordinators.items():
            self.memberships[name] = membership = membership_of(record, name, self.application.relay)
            coordinator.update(membership, now)
        return True

    def component_of(self, rank: int) -> str | None:
        """Return the component of a process with a link to koala; None for other processes."""
        return next((name for name, one in self.memberships.items() if rank in one.places), None)
