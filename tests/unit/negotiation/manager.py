# SPDX-License-Identifier: Apache-2.0
"""Resource management with some free processors behind the service's own port, for programs that connect to it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from koala_adapter import negotiation as nt
from koala_adapter.model import JobId
from koala_adapter.negotiation.templates import RMS
from koala_adapter.service.sizes.port import NegotiationPort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from koala_adapter.host.accepting import Admission
    from koala_adapter.service.sizes.port import Access


class Manager:
    """Grants what is free, and reports what is agreed on as allocated."""

    def __init__(self, free: int = 6, *, offers: int = 0, admission: Admission | None = None) -> None:
        """``offers``: processors that each program is offered when it comes."""
        self.free = free
        self.port = NegotiationPort("127.0.0.1", self)
        if admission is not None:
            self.port._listener.admission = admission
        self.endpoints: dict[JobId, nt.Endpoint] = {}
        self._offers = offers

    async def access(self, job_id: str = "1") -> Access:
        """Return how a program gets in, once."""
        return await self.port.access(JobId(job_id))

    @property
    def connections(self) -> int:
        """Programs that are connected."""
        return self.port._listener.connections

    def endpoint(self, job_id: JobId) -> nt.Endpoint:
        """Return the end of a job's negotiations, made now if need be."""
        return self.endpoints.setdefault(job_id, nt.Endpoint(RMS, "head", "node7"))

    def program_came(self, job_id: JobId) -> None:
        """Say what may not have arrived, and offer what is to be offered."""
        endpoint = self.endpoint(job_id)
        endpoint.resumed()
        if self._offers:
            endpoint.tell(nt.template("1", RMS, "head", "node7", [nt.resource("CPU", self._offers)]), 0)
        self._say(job_id)

    def program_said(self, job_id: JobId, payload: bytes) -> None:
        """Answer what a program has said."""
        endpoint = self.endpoint(job_id)
        for event in endpoint.hear(nt.parse(payload), 0):
            if event.template is None:
                continue
            if event.kind == "offer":
                endpoint.tell(nt.decide(event.template, {"CPU": self.free}), 0)
            elif event.kind in {"accepted", "agreed"}:
                if event.kind == "accepted":
                    endpoint.tell(nt.committed(event.template), 0)
                endpoint.tell(nt.consumed(event.template), 0)
                self.free -= event.template.quantity("CPU")
        self._say(job_id)

    def program_went(self, job_id: JobId) -> None:
        """Lose what is not agreed on."""
        self.endpoint(job_id).disconnected(0)

    def _say(self, job_id: JobId) -> None:
        for template in self.endpoint(job_id).take_outbox():
            self.port.say(job_id, nt.build(template))


@asynccontextmanager
async def listening(manager: Manager) -> AsyncIterator[Manager]:
    """Have a manager listen by TCP."""
    async with anyio.create_task_group() as tasks:
        manager.port.open(tasks)
        yield manager
        tasks.cancel_scope.cancel()
