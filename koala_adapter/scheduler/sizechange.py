# SPDX-License-Identifier: Apache-2.0
"""Changes of the size of running jobs, as records: those under way, and those that are over, for reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from koala_adapter.model import ClusterName, PlaceholderId
from koala_adapter.scheduler.timers import Due

# -- Changes of size under way -------------------------------------------------------------------------------
# A change of a running malleable component goes through phases (CoreGRID TR-0092); which may follow which is written
# in ``states.CHANGE_TRANSITIONS``. A wish of an application may be met on several clusters: then the change has a part
# for each claim. All parts are offered, gathered, taken in and given up together.


class ChangePhase(StrEnum):
    """Phases of a change of size."""

    NEW = "new"
    """It is in no record yet."""
    ASKED = "asked"
    """Processors are offered, or asked back; the application has not answered."""
    PROMISED = "promised"
    """The application insists on more than is free; other jobs are shrunk for it."""
    GATHERING = "gathering"
    """The accepted number of placeholders is submitted; the application keeps running."""
    TAKING = "taking"
    """All of them are held; the application takes them in."""
    RELEASING = "releasing"
    """The application gives processors up; their placeholders go back to the LRM."""
    OVER = "over"
    """It is in no record any more."""


@dataclass(slots=True)
class Part:
    """Part of a change that concerns one claim."""

    claim: int
    """Index of the claim in its job."""
    processors: int
    """Asked from the application, or by it: positive to grow, negative to shrink."""
    accepted: int = 0
    """Processors that the application takes or gives up; known after ASKED."""
    done: int = 0
    """Processors that it gave up so far."""
    stubs: list[PlaceholderId] = field(default_factory=list)
    """Placeholders gathered for it that the application has not been told of."""
    ranks: list[int] = field(default_factory=list)
    """Ranks that it is taking in; of an adaptive component that gives up processors, those that leave."""


@dataclass(slots=True)
class Change:
    """A change of the size of one component of a running job."""

    number: int
    """Number of its message; answers repeat it."""
    component: str
    parts: list[Part]
    """The first is where the change began; only a growth has several."""
    phase: ChangePhase = ChangePhase.NEW
    reason: str = ""
    """What it is for, for people."""
    in_step: bool = False
    """The step of the cluster waits for its answer."""
    shrunk_others: bool = False
    """Others were asked to make room for it: that is done once."""
    due: Due | None = None
    """When it is given up; None: never, or that is past."""
    adaptation: int = 0
    """Number under which the processes of an adaptive component carry it out; 0: they do not stand at the point yet."""
    point: int = 0
    """The point of their progress at which they stood then."""
    made: bool = False
    """They have carried it out."""
    agreement: str = ""
    """What the application calls the negotiation that it began and that led to it; empty: koala began."""
    asker: int | None = None
    """Rank of the process that began it."""
    wish: int = 0
    """Processors that the application asked for."""
    memory_mib: int = 0
    """Memory that each of them comes with; 0: what all placeholders of the cluster have."""
    submitted_again: bool = False
    """Its stubs did not arrive at their batch system, and others were submitted: that is done once."""
    least: int = 1
    """Fewer processors than this are of no use to the application that asked for them."""
    countered: bool = False
    """It asked for more than that: it has been offered this part of it, which is kept for it until it answers."""

    @property
    def processors(self) -> int:
        """Processors of all parts; negative when the component shrinks."""
        return sum(part.processors for part in self.parts)

    @property
    def accepted(self) -> int:
        """Accepted processors of all parts."""
        return sum(part.accepted for part in self.parts)

    @property
    def done(self) -> int:
        """Released processors of all parts."""
        return sum(part.done for part in self.parts)

    @property
    def stubs(self) -> list[PlaceholderId]:
        """Placeholders gathered for all parts."""
        return [stub for part in self.parts for stub in part.stubs]

    @property
    def ranks(self) -> list[int]:
        """Ranks of all parts that come or go."""
        return [rank for part in self.parts for rank in part.ranks]

    def kept(self, part: Part) -> int:
        """Return the processors reserved for a part before placeholders are submitted."""
        reserved = self.phase is ChangePhase.PROMISED or (self.phase is ChangePhase.ASKED and part.processors > 0)
        return part.processors if reserved else 0

    def coming(self, part: Part) -> int:
        """Return by how many processors a part may still grow its claim."""
        if self.phase is ChangePhase.GATHERING:
            return part.accepted
        return 0 if self.phase is ChangePhase.TAKING else max(0, part.processors)

    def leaving(self, part: Part) -> int:
        """Return how many processors a part may take from its claim."""
        return part.accepted - part.done if self.phase is ChangePhase.RELEASING else max(0, -part.processors)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Past change of a component's size, for reports."""

    at: float
    """When it was over."""
    component: str
    cluster: ClusterName
    before: int
    """Processors that the component had on this cluster."""
    after: int
    reason: str
    waited: float = 0.0
    """Seconds between the submission of its placeholders and ``at``; 0 where it has become smaller."""


SIZE_CHANGES_KEPT = 20
"""So many of the latest changes of a job are kept."""
