# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows of one cluster; one of its records, as those of ``records.py`` are."""

from __future__ import annotations

from dataclasses import dataclass, field

from koala_adapter.model import BatchKey, ClusterName  # noqa: TC001 - pydantic reads the annotations
from koala_adapter.scheduler.changes import ClusterStep, Promise  # noqa: TC001 - pydantic reads the annotations
from koala_adapter.scheduler.othersjob import OthersJob  # noqa: TC001 - pydantic reads the annotations
from koala_adapter.scheduler.parameters import ClusterParameters  # noqa: TC001 - pydantic reads the annotations


@dataclass(slots=True)
class Wait:
    """How long one submission waited in the queue of its LRM: an entry of a cluster's waiting history."""

    batch: BatchKey
    seconds: float
    """Until the latest of its placeholders that is held by now."""


@dataclass(slots=True)
class ClusterRecord:
    """A cluster as last seen, and what we ourselves have there."""

    parameters: ClusterParameters
    processors: int | None = None
    """None until a poll has shown some."""
    largest: int | None = None
    """Yardstick of what can *never* run there: falls to what is seen only after an hour, as one reading may err."""
    smaller_since: float | None = None
    """Since when fewer than ``largest`` are seen."""
    listed: bool = True
    """False while the LRM answers but lists no processors at all, which is never the truth."""
    idle: int = 0
    ours_polled: int = 0
    ours_left: bool = False
    """The last poll showed fewer of ours than the one before: who waits may have been started there since it was asked
    who waits, and before it was asked what is idle."""
    polled_at: float | None = None
    first_look_until: float | None = None
    """How long its first poll is waited for before jobs are queued elsewhere; None: it is not waited for."""
    unavailable: str | None = None
    paused_until: float | None = None
    pause_reason: str = ""
    missing_in_a_row: int = 0
    configured: bool = True
    """False once the site file no longer lists the cluster; its placeholders are still followed."""
    managed: int = 0
    """Placeholders of ours that have not ended, queued ones included."""
    queued: int = 0
    """Those of them that wait in the LRM's queue (or are on their way there)."""
    pending: dict[BatchKey, int] = field(default_factory=dict)
    """The same by submission, oldest first."""
    ending: int = 0
    """Those of them that are on their way out: their processors come free soon."""
    offered: int = 0
    """Processors that are offered or promised to running jobs, so nobody else is placed on them."""
    gathering: int = 0
    """Placeholders submitted for running jobs that grow and have not taken them in yet."""
    refused_answer: str = ""
    """Why the latest answer of its malleability policy, one of the site's own, is not followed; empty when it is."""
    step: ClusterStep | None = None
    """Growing or shrinking of its malleable jobs that is under way."""
    promises: list[Promise] = field(default_factory=list)
    """Applications that insist on more processors, in the order of their requests."""
    unwanted: int | None = None
    """Free processors that no running job would take when they were offered last; None: something has changed since."""
    no_growth_before: float | None = None
    """Pause after processors for growing could not be had, or running jobs were shrunk."""
    levelled_until: float | None = None
    """Until when running jobs are not levelled again (equipartition) while they are the same ``levelled`` ones."""
    levelled: int = 0
    """Number of malleable jobs that ran when they were levelled last."""
    no_shrink_before: float | None = None
    """Pause after running jobs gave up less than they were asked for, or have grown."""
    vain_shrinks: int = 0
    """Steps in a row that were to shrink running jobs and freed nothing, while their sizes were the same."""
    vain_sizes: list[int] = field(default_factory=list)
    """These sizes, in the order of the start of the jobs."""
    vain_until: float | None = None
    """Until when running jobs of these sizes are not asked again."""
    others_waiting: list[OthersJob] = field(default_factory=list)
    """Jobs of others that wait in its queue, in that order, as far as running malleable jobs are shrunk for them."""
    waits: list[Wait] = field(default_factory=list)
    """Waiting history, oldest first, bounded (selection.py)."""

    @property
    def name(self) -> ClusterName:
        """Its name in the site file."""
        return self.parameters.name

    @property
    def capacity(self) -> int:
        """Most placeholders we may ever have there: what is beyond the threshold is left to local users."""
        return max(0, (self.processors or 0) - self.parameters.threshold)

    @property
    def largest_capacity(self) -> int | None:
        """Most placeholders that could ever be there; None while nothing was seen."""
        return None if self.largest is None else max(0, self.largest - self.parameters.threshold)

    @property
    def room(self) -> int:
        """Further placeholders that may be submitted, beside those for which processors are offered."""
        return min(self.capacity - self.managed, self.parameters.placeholders_in_flight - self.queued) - self.offered

    @property
    def load_free(self) -> int:
        """Processors nobody else uses, less all that we have or asked for; negative when more is asked than free."""
        return self.idle + self.ours_polled - self.managed - self.offered

    @property
    def available(self) -> int:
        """Processors a new claim would get at once, as far as the last poll tells."""
        return max(0, min(self.room, self.load_free))
