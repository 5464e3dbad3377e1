# SPDX-License-Identifier: Apache-2.0
"""Simulated malleable applications: they answer offers and requests as they please, now and then of their own will."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koala_adapter.model import RunnerName
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev

if TYPE_CHECKING:
    from koala_adapter.model import PlaceholderId
    from koala_adapter.scheduler.records import Claim, JobRecord
    from tests.faults.driver import SimulatedService


class Applications:
    """The malleable applications of one service."""

    def __init__(self, service: SimulatedService) -> None:
        """Talk through the service; what it was told when it crashed is forgotten."""
        self._service = service
        self._chance = service.faults.chance
        self._wishes: dict[str, int] = {}
        self.resized_by_owners = 0.1
        """How often it is the owner of a job who wants something else."""

    def told(self, action: act.OfferProcessors | act.RequestProcessors) -> None:
        """Answer after a while, or never."""
        if self._chance.random() < 0.1:
            return
        most = action.processors + (1 if isinstance(action, act.RequestProcessors) else 0)
        accepted = self._chance.choice([0, action.processors, action.processors, self._chance.randint(0, most)])
        service = self._service

        def answer() -> None:
            service.post(
                ev.OfferAnswered(time=service.now, job_id=action.job_id, number=action.number, accepted=accepted)
            )

        service.later(self._chance.uniform(0.1, 20.0), answer)
        if isinstance(action, act.RequestProcessors) and accepted and self._chance.random() < 0.9:
            service.later(self._chance.uniform(21.0, 60.0), lambda: self._release(action, accepted))

    def _release(self, action: act.RequestProcessors, accepted: int) -> None:
        record = self._service.state.jobs.get(action.job_id)
        if record is not None and record.state is JobState.RUNNING:
            for claim in record.claims:
                if (claim.component, claim.cluster) == (action.component, action.cluster):
                    self._give_up(record, claim, accepted)

    def stir(self) -> None:
        """Let one running application ask for more, or give something up, of its own will."""
        running = [one for one in self._service.state.jobs.values() if one.state is JobState.RUNNING]
        if not running or not self._service.sound:
            return
        record = self._chance.choice(running)
        claim = self._chance.choice(record.claims)
        if self._chance.random() < self.resized_by_owners:
            self._resize(record, claim)
            return
        if record.job.runner is not RunnerName.RANKS:
            return  # processes of the others ask by themselves, or nobody does but the owner
        if self._chance.random() < 0.4:
            self._give_up(record, claim, self._chance.randint(1, 2))
            return
        self._wishes[record.job.id] = number = self._wishes.get(record.job.id, 0) + 1
        self._service.post(
            ev.MoreRequested(
                time=self._service.now,
                job_id=record.job.id,
                component=claim.component,
                number=number,
                processors=self._chance.randint(1, 4),
                mandatory=self._chance.random() < 0.5,
            )
        )

    def _resize(self, record: JobRecord, claim: Claim) -> None:
        """Have the owner want another size, sometimes one that the component cannot have."""
        component = record.job.component(claim.component)
        processors = self._chance.randint(max(1, component.minimum - 1), component.maximum + 1)
        self._service.post(
            ev.SizeWanted(time=self._service.now, job_id=record.job.id, component=component.name, processors=processors)
        )

    def _give_up(self, record: JobRecord, claim: Claim, count: int) -> None:
        going: list[PlaceholderId] = [
            id_
            for id_ in claim.placeholders
            if self._service.state.placeholders[id_].state is PlaceholderState.LAUNCHED
        ]
        chosen = tuple(self._chance.sample(going, min(count, len(going))))
        self._service.post(ev.ProcessorsReleased(time=self._service.now, job_id=record.job.id, placeholders=chosen))
