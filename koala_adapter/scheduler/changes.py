# SPDX-License-Identifier: Apache-2.0
"""Changes of size that are under way: what the records of claims and clusters keep of them.

A change of a running malleable component goes through these phases (CoreGRID TR-0092):

- growing: ASKED (an offer is out) → GATHERING (the accepted number of stubs is submitted as placeholders; the
  application keeps running) → TAKING (all are held; it takes them in) → over;
- shrinking: ASKED → RELEASING (it gives up processors, then their placeholders go back to the LRM) → over;
- growing that the application insists on: PROMISED (others are being shrunk for it) → GATHERING → TAKING → over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from koala_adapter.model import ClusterName, JobId, PlaceholderId
from koala_adapter.scheduler.malleable.policies import Step
from koala_adapter.scheduler.timers import Due


class ChangePhase(StrEnum):
    """How far a change has come."""

    ASKED = "asked"
    PROMISED = "promised"
    GATHERING = "gathering"
    TAKING = "taking"
    RELEASING = "releasing"


@dataclass(slots=True)
class Change:
    """A change of the size of one claim."""

    number: int
    """Number of its message; answers repeat it."""
    processors: int
    """Asked from the application, or by it: positive to grow, negative to shrink."""
    phase: ChangePhase
    accepted: int = 0
    """Processors that the application takes or gives up; known after ASKED."""
    done: int = 0
    """Processors that it gave up so far."""
    stubs: list[PlaceholderId] = field(default_factory=list)
    """Placeholders gathered for it that the application has not been told of."""
    ranks: list[int] = field(default_factory=list)
    """Ranks that it is taking in; of an adaptive component that gives up processors, those that leave."""
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
    lead: int = 0
    """Number of the change that this one is a part of, where a wish is met on several clusters; 0: its own."""
    least: int = 1
    """Fewer processors than this are of no use to the application that asked for them."""
    countered: bool = False
    """It asked for more than that: it has been offered this part of it, which is kept for it until it answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """A change of the size of a running component, as it is told afterwards."""

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


@dataclass(slots=True)
class ClusterStep:
    """A step of the malleability policy on a cluster."""

    step: Step
    awaited: int = 0
    """Messages of the present round that are not settled."""
    reason: str = ""
    """What the processors are for, for people."""
    value: int = 0
    """Processors that it began with."""
    withheld: int = 0
    """Processors that were free, too, and more than one step may give out."""
    lapsed: bool = False
    """An application could not answer in time: what is left over may be wanted."""


@dataclass(frozen=True, slots=True)
class Promise:
    """An application to which the scheduler owes processors of a cluster."""

    job_id: JobId
    claim: int
    """Index among the claims of the job."""
    polled_at: float | None = None
    """When the cluster had last been looked at."""
