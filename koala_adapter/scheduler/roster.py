# SPDX-License-Identifier: Apache-2.0
"""Which malleable jobs run on which cluster: the records of jobs as the malleability policies look at them.

Like the placement queue it is made from the records when the scheduler starts, and follows them from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import JobKind
from koala_adapter.scheduler.malleable.runningjobs import MalleableJob, RunningJobs
from koala_adapter.scheduler.outcome import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koala_adapter.model import ClusterName, Component, JobId
    from koala_adapter.scheduler.malleable.runningjobs import Order
    from koala_adapter.scheduler.records import Claim, JobRecord


class RunningClaim(MalleableJob):
    """A component of a running malleable job on its cluster."""

    __slots__ = ("claim", "cluster", "job_id")

    def __init__(self, record: JobRecord, number: int, cluster: ClusterName) -> None:
        """``number``: index of its claim."""
        claim = record.claims[number]
        minimum, maximum = _limits(record, claim)
        super().__init__(minimum=minimum, maximum=maximum, size=claim.processors, started_at=0.0, number=number)
        self.order = order_of(record, number)
        self.job_id = record.job.id
        self.claim = number
        self.cluster = cluster


class Roster:
    """All running malleable jobs, by cluster."""

    def __init__(self, jobs: Iterable[JobRecord] = ()) -> None:
        """Take those of the jobs that run according to their records."""
        self._clusters: dict[ClusterName, RunningJobs[RunningClaim]] = {}
        self._members: dict[tuple[JobId, int], RunningClaim] = {}
        self.limited: dict[JobId, None] = {}
        """Running jobs whose owners have said what size they want."""
        self.touched: dict[JobId, None] = {}
        """Malleable jobs to which something has happened since this was cleared."""
        for record in jobs:
            self.update(record)

    def __len__(self) -> int:
        """Number of running malleable components."""
        return len(self._members)

    def __contains__(self, cluster: ClusterName) -> bool:
        """Tell whether malleable jobs run on a cluster."""
        return cluster in self._clusters

    def clusters(self) -> list[ClusterName]:
        """Return the clusters on which malleable jobs run, in the order of their names."""
        return sorted(self._clusters)

    def on(self, cluster: ClusterName) -> RunningJobs[RunningClaim]:
        """Return the malleable jobs of a cluster."""
        return self._clusters.get(cluster) or RunningJobs()

    def update(self, record: JobRecord) -> None:
        """Follow what has happened to a job: it started, ended, changed, or can or cannot change any more."""
        if record.job.kind is not JobKind.MALLEABLE:
            return
        self.touched[record.job.id] = None
        runs = record.state is JobState.RUNNING
        if record.sizes_wanted and runs:
            self.limited[record.job.id] = None
        else:
            self.limited.pop(record.job.id, None)
        for number, claim in enumerate(record.claims):
            member = self._members.get((record.job.id, number))
            if member is None:
                if runs and claim.cluster is not None and not record.job.is_head(claim.component):
                    self._add(RunningClaim(record, number, claim.cluster), busy=is_busy(record, claim))
            elif not runs:
                self._remove(member)
            else:
                self._follow(member, record, claim)

    def _follow(self, member: RunningClaim, record: JobRecord, claim: Claim) -> None:
        running, busy = self._clusters[member.cluster], is_busy(record, claim)
        if busy:
            running.begin(member)
        minimum, maximum = _limits(record, claim)
        if (minimum, maximum) == (member.minimum, member.maximum):
            running.resize(member, claim.processors)
        else:
            running.rebound(member, minimum=minimum, maximum=maximum, size=claim.processors)
        if not busy:
            running.end(member)

    def _add(self, member: RunningClaim, *, busy: bool) -> None:
        member.busy = busy
        self._members[member.job_id, member.claim] = member
        self._clusters.setdefault(member.cluster, RunningJobs()).add(member)

    def _remove(self, member: RunningClaim) -> None:
        del self._members[member.job_id, member.claim]
        running = self._clusters[member.cluster]
        running.remove(member)
        if not len(running):
            del self._clusters[member.cluster]


def is_busy(record: JobRecord, claim: Claim) -> bool:
    """Tell whether a running malleable job is to be left alone: it changes already, or is about to end."""
    return claim.change is not None or bool(record.ends)


def order_of(record: JobRecord, number: int) -> Order:
    """Return the place of a claim in the order of start. Not by the clock, which may be set back."""
    return float(record.start_number), number


def bounds(record: JobRecord, claim: Claim) -> tuple[int, int]:
    """Return the fewest and most processors that a claim of a running malleable job may have.

    A flexible component has a claim on each cluster, and its bounds are those of all of them together: what the others
    are about to give up is not counted on, what they are about to get is.
    """
    component = record.job.component(claim.component)
    minimum, maximum = component.minimum, record.sizes_wanted.get(component.name, component.maximum)
    if component.flexible:
        others = [one for one in record.claims if one.component == claim.component and one is not claim]
        minimum -= sum(one.processors - one.leaving for one in others)
        maximum -= sum(one.processors + one.coming for one in others)
    if record.growth_rests:
        maximum = min(maximum, claim.processors)
    return max(0, minimum), max(0, maximum)


def _limits(record: JobRecord, claim: Claim) -> tuple[int, int]:
    """Return the bounds of a claim, wide enough for what it has: workers that are lost bring it below its minimum."""
    minimum, maximum = bounds(record, claim)
    if record.ends_soon:
        maximum = 0
    return min(minimum, claim.processors), max(maximum, claim.processors)


def initial_size(component: Component) -> int:
    """Return the processors with which a component of a malleable job starts, if so many are idle."""
    wanted = component.minimum if component.initial is None else component.initial
    return max(component.minimum, min(component.maximum, wanted))
