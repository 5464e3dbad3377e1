# SPDX-License-Identifier: Apache-2.0
"""DYNACO, execute: one change that processes make in step, how far it is, and for whom it waits. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from koala_adapter.dynaco.adaptation import AllStand
from koala_adapter.dynaco.processes import Stand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.dynaco.adaptation import Membership, Overdue, WantedChange
    from koala_adapter.dynaco.processes import Process

_ACTIVE = (Stand.RUNNING, Stand.ARMED, Stand.WAITING)


class Stage(IntEnum):
    """How far the change is."""

    GATHERING = 0
    """Members or newcomers are not all in contact yet."""
    ASKING = 1
    """How far are you?"""
    ARMING = 2
    """The point is set; not all stand there."""
    RECORDING = 3
    """All stand there; that is being written down."""
    CHANGING = 4
    CLOSING = 5
    """All are done; that is being written down."""


@dataclass(slots=True)
class ChangeUnderWay:
    """One change of the processes of a component, from the first question to the last answer."""

    wanted: WantedChange
    since: float
    stage: Stage = Stage.GATHERING
    number: int = 0
    at: int = 0
    distance: int = 1
    counts: dict[int, int] = field(default_factory=dict)
    told: bool = False
    """Those who stand have been told the change."""
    warned: bool = False
    """They have been told who holds it up."""
    overdue: Overdue | None = None
    """The process that is taken as lost for that."""

    def ready(self, membership: Membership, processes: Mapping[int, Process]) -> bool:
        """Tell whether all members compute and all newcomers have come, so that a point can be agreed upon."""
        members = [processes.get(rank) for rank in membership.speakers]
        newcomers = [processes.get(rank) for rank in membership.awaited(self.wanted)]
        return all(one is not None and one.stand in _ACTIVE for one in members) and all(
            one is not None and one.stand is Stand.NEW for one in newcomers
        )

    def all_at_point(self, membership: Membership, processes: Mapping[int, Process]) -> bool:
        """Tell whether all members stand at its point, and all newcomers are in contact."""
        members = [processes.get(rank) for rank in membership.speakers]
        newcomers = (processes.get(rank) for rank in membership.awaited(self.wanted))
        return None not in newcomers and all(
            one is not None and one.in_change(self.number, Stand.WAITING) and one.at == self.at for one in members
        )

    def all_stand(self) -> AllStand:
        """Return what the scheduler is told when all stand at the point."""
        return AllStand(number=self.wanted.number, adaptation=self.number, point=self.at, leaving=self.wanted.leaving)

    def unfinished(self, membership: Membership, processes: Mapping[int, Process]) -> list[int]:
        """Return for whom it waits: to be in contact and, once it was told, to be done."""
        waited_for = []
        for rank in (*membership.speakers, *membership.awaited(self.wanted)):
            process = processes.get(rank)
            done = process is not None and (
                not self.told or process.in_change(self.number, Stand.DONE) or process.past(self.number)
            )
            if not done and rank not in membership.ended:
                waited_for.append(rank)
        return waited_for

    def problem(self, membership: Membership, processes: Mapping[int, Process]) -> str:
        """Return why it cannot be made while nobody has been told of it yet; nothing when it can."""
        for rank in membership.speakers:
            if rank in membership.ended:
                return f"process {rank} has ended"
            process = processes.get(rank)
            if process is not None and process.leaving:
                return f"process {rank} is about to exit"
        return ""

    def held_up_by(self, membership: Membership, processes: Mapping[int, Process]) -> str:
        """Return who has kept it from being made; to be asked when its time is over."""
        for rank in membership.speakers:
            if rank not in processes:
                return f"process {rank} was out of contact, and has not come back"
        for rank in membership.awaited(self.wanted):
            if rank not in processes:
                return f"the new process {rank} has not joined"
        return f"{who_has(self.late(membership, processes))} not reached an adaptation point"

    def late(self, membership: Membership, processes: Mapping[int, Process]) -> list[int]:
        """Return those of the old members in contact that do not stand at its point."""
        there = [rank for rank in membership.speakers if rank in processes]
        return [rank for rank in there if not (processes[rank].in_change(self.number, Stand.WAITING) and self.number)]


def who_has(ranks: Sequence[int]) -> str:
    """Return the beginning of a sentence on processes."""
    return f"process {ranks[0]} has" if len(ranks) == 1 else f"processes {', '.join(map(str, ranks))} have"
