# SPDX-License-Identifier: Apache-2.0
"""Transfers of input files in the simulated world: slow, fast, silent, refused, lost with the service."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.model import InputFile
from koala_adapter.outcome import JobState
from koala_adapter.scheduler import events as ev

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName, Job, JobId
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.records import JobRecord
    from tests.faults.driver import SimulatedService

MIB = 1024 * 1024
NAMES = ("lfn:one", "lfn:two")
"""Logical names that catalogues have now and then."""
LOOK = 60.0
"""Seconds between two looks at what the scheduler is to be told of catalogues and of the network."""


def with_files(one: Job, *, seed: int) -> Job:
    """Return a job some of whose components have large input files."""
    chance = random.Random(f"files/{seed}/{one.id}")
    parts = []
    for part in one.components:
        size = chance.choice([0, 30, 100, 400]) * MIB
        files = (InputFile(source=f"/data/{size}", target="data", size=size),) if size else ()
        if chance.random() < 0.3:
            files = (*files, InputFile(source=chance.choice(NAMES), target="set"))
        parts.append(replace(part, input_files=files))
    return replace(one, components=tuple(parts))


@dataclass(slots=True)
class Transfer:
    """Files of a job that are on their way to a cluster, or there."""

    life: int
    """The process of the service that brings them."""
    missing: int
    rate: float


class Transfers:
    """What one service brings to its clusters. What has arrived stays, also when the service is killed."""

    def __init__(self, service: SimulatedService) -> None:
        self._service = service
        self._chance = random.Random(f"transfers/{service.faults.seed}")
        self._under_way: dict[tuple[JobId, ClusterName], Transfer] = {}
        self._left: dict[tuple[JobId, ClusterName], int] = {}
        """Bytes of earlier transfers that had yet to arrive."""
        self.reserved: dict[str, str] = {}
        """Reservations that batch systems have made, by name."""
        self.begun = self.stopped = self.failed = 0

    def of(self, job_id: JobId) -> list[Transfer]:
        """Return the transfers of a job that this process of the service has begun and not stopped."""
        life = self._service.life
        return [one for (id_, _), one in self._under_way.items() if id_ == job_id and one.life == life]

    def begin(self, action: act.StageFiles) -> None:
        assert action.files, "nothing is to be brought"
        key, life = (action.job_id, action.cluster), self._service.life
        known = self._under_way.get(key)
        if known is not None and known.life == life:
            self._tell(key, known)
            return
        self.begun += 1
        size = self._left.setdefault(key, sum(file.size or 0 for file in action.files))
        transfer = Transfer(life, size, self._chance.uniform(0.5, 8.0) * MIB)
        self._under_way[key] = transfer
        refused = self._service.faults.refusal > 0 and self._chance.random() < 0.1
        then = partial(self._fail, key, transfer) if refused else partial(self._move, key, transfer, 0.0)
        self._service.later(0.0, then)

    def stop(self, action: act.StopStaging) -> None:
        self.stopped += 1
        self._under_way.pop((action.job_id, action.cluster), None)

    def _move(self, key: tuple[JobId, ClusterName], transfer: Transfer, seconds: float) -> None:
        """Tell how far a transfer is, now and then; some fall silent for long, and some become slower or faster."""
        if self._under_way.get(key) is not transfer:
            return
        self._left[key] = transfer.missing = max(0, transfer.missing - int(seconds * transfer.rate))
        if self._chance.random() < 0.8 or not transfer.missing:
            self._tell(key, transfer)
        if transfer.missing:
            seconds = self._chance.choice([5.0, 20.0, 100.0])
            transfer.rate = max(MIB / 4, transfer.rate * self._chance.choice([0.5, 1.0, 1.0, 2.0]))
            self._service.later(seconds, partial(self._move, key, transfer, seconds))

    def _tell(self, key: tuple[JobId, ClusterName], transfer: Transfer) -> None:
        service, (job_id, cluster) = self._service, key
        if transfer.missing:
            rate = transfer.rate if self._chance.random() < 0.8 else None
            event: ev.Event = ev.StagingProgressed(
                time=service.now, job_id=job_id, cluster=cluster, missing_bytes=transfer.missing, rate=rate
            )
        else:
            event = ev.FilesStaged(time=service.now, job_id=job_id, cluster=cluster)
        service.later(service.faults.delay(), lambda: service.post(replace(event, time=service.now)))

    def reserve(self, action: act.ReserveProcessors) -> None:
        """Answer, often late, and sometimes not at all."""
        service, name = self._service, action.name
        reason = "refused" if self._chance.random() < 0.3 else ""
        if not reason:
            self.reserved[name] = action.cluster
        if self._chance.random() < 0.1:
            return
        event: ev.Event = ev.ReservationMade(time=service.now, job_id=action.job_id, name=name, handle=name)
        if reason:
            event = ev.ReservationRefused(time=service.now, job_id=action.job_id, name=name, reason=reason)
        service.later(service.faults.delay(), lambda: service.post(replace(event, time=service.now)))

    def remove_reservations(self) -> None:
        """Remove what belongs to no job, as the service does when one is given back, and when it begins."""
        wanted = {one.name for record in self._service.state.jobs.values() for one in record.reservations}
        self.reserved = {name: cluster for name, cluster in self.reserved.items() if name in wanted}

    def _fail(self, key: tuple[JobId, ClusterName], transfer: Transfer) -> None:
        if self._under_way.get(key) is transfer:
            self.failed += 1
            del self._under_way[key]
            service, (job_id, cluster) = self._service, key
            reason = "no space left on device"
            service.post(ev.StagingFailed(time=service.now, job_id=job_id, cluster=cluster, reason=reason))

    def check_launch(self, record: JobRecord) -> None:
        """Check that all files are there that the ranks of a job need."""
        for claim in record.claims:
            cluster = claim.cluster
            if cluster is not None and claim.processors:
                lack = self._service.state.clusters[cluster].lacks(record.job.component(claim.component))
                assert lack is None, f"launched on {cluster}: {lack}"
            if cluster is None or not record.job.component(claim.component).has_large_files:
                continue
            if self._service.state.clusters[cluster].parameters.stages:
                assert self._left.get((record.job.id, cluster)) == 0, "launched before its files were there"


class Knowledge:
    """What a service knows of the network and of catalogues, which changes while things go wrong."""

    def __init__(self, service: SimulatedService, *, settled_at: float) -> None:
        """``settled_at``: from then on all catalogues have all names."""
        self._service = service
        self._settled_at = settled_at
        self._chance = random.Random(f"knowledge/{service.faults.seed}")
        self._probes = random.Random(f"reach/{service.faults.seed}")
        self._names: dict[ClusterName, set[str]] = {name: set() for name in service.lrms}
        self._look()

    def _look(self) -> None:
        """Change what there is, and tell the scheduler what it does not know, as a service does while it runs."""
        service = self._service
        for name, names in self._names.items():
            if service.clock.now >= self._settled_at:
                names |= set(NAMES)
            elif self._chance.random() < 0.2:
                names ^= {self._chance.choice(NAMES)}
            if service.at_work and name in service.state.clusters:
                self._tell(name, names)
        service.clock.after(LOOK, self._look)

    def _tell(self, name: ClusterName, names: set[str]) -> None:
        service, known = self._service, self._service.state.clusters[name].found
        records = service.state.jobs.values()
        placed = [record.job for record in records if not record.state.final and record.state is not JobState.WAITING]
        in_use = {file.source for one in placed for file in one.input_files}
        found = tuple((one, f"/sets/{one}") for one in sorted(names) if one not in known)
        gone = tuple(one for one in known if one not in names and one not in in_use)
        if found or gone:
            service.post(ev.FilesFound(time=service.now, cluster=name, found=found, gone=gone))
        if self._chance.random() < 0.1:
            bandwidth = self._chance.choice([None, 0.5, 4.0, 50.0])
            service.post(ev.BandwidthKnown(time=service.now, cluster=name, bandwidth=bandwidth))
        if self._probes.random() < 0.1:
            connects = service.clock.now >= self._settled_at or self._probes.random() < 0.5
            other = self._probes.choice([*self._names])
            service.post(ev.NodesConnect(time=service.now, cluster=name, other=other, connects=connects))
