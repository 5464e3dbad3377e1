# SPDX-License-Identifier: Apache-2.0
"""What may be reached through koala, and what agents are told of it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from koala_adapter.model import ClusterName, JobId, PlaceholderId
from koala_adapter.runners.nodes import HOST
from koala_adapter.scheduler.events import NodesConnect
from koala_adapter.scheduler.parameters import ClusterParameters
from koala_adapter.service.relays import Relays
from koala_adapter.vjm.channel import CenterMessage, Forward, Forwarded, Listening, TunnelAsked
from koala_adapter.vjm.listener import Route
from tests.unit.scheduler.scheduler_site import Site, component, job
from tests.unit.service.standins import Center, StandInCore

if TYPE_CHECKING:
    from anyio.abc import SocketStream

LIVENESS = 60.0


class Told(Center):
    """In the place of the control center: keeps what agents are told, and has the tunnels of none."""

    def __init__(self) -> None:
        self.told: list[tuple[PlaceholderId, Forward]] = []
        self.ended: list[str] = []
        self.heard: list[bytes] = []
        self.tunnels = self

    def tell(self, placeholder: PlaceholderId, message: CenterMessage) -> bool:
        assert isinstance(message, Forward)
        self.told.append((placeholder, message))
        return True

    def end(self, job_id: str) -> None:
        self.ended.append(job_id)

    async def reach(self, _route: Route, stream: SocketStream) -> None:
        self.heard.append(await stream.receive())

    def ports(self, placeholder: PlaceholderId) -> dict[int, tuple[tuple[int, ...], str]]:
        """Return the ports at which an agent listens now, by rank, and where they are forwarded to."""
        return {one.peer: (one.ports, one.direct) for whose, one in self.told if whose == placeholder}


class House:
    """Two jobs of two ranks each, at two sites; the first one is relayed."""

    def __init__(self) -> None:
        far = ClusterParameters(name=ClusterName("far"), site="delft")
        self.world = Site({"near": 4, "far": 4}, None, far)
        parts = (component("x", 1, cluster="near"), component("y", 1, cluster="far"))
        self.world.submit(replace(job("1", *parts), relay=True, host_ports=(4711,)), job("2", *parts))
        for id_ in ("1", "2"):
            self.world.started(id_)
        self.center = Told()
        self.core: Any = StandInCore(self.world, center=self.center)
        clusters = tuple(
            one.model_copy(update={"name": name, "site": site})
            for one, name, site in zip(self.core.site.clusters * 2, ("near", "far"), (None, "delft"), strict=False)
        )
        self.core.site = self.core.site.model_copy(update={"clusters": clusters})
        self.core.name_prefix = "koala-k-"
        self.relays = Relays(self.core)

    def rank(self, job_id: str, number: int) -> PlaceholderId:
        return self.world.record(job_id).ranks[number].placeholder

    async def route(self, placeholder: PlaceholderId, peer: int, port: int, job_id: str = "1") -> Route | None:
        asked = TunnelAsked(batch="b", index=1, token="t", session="s", job=job_id, peer=peer, port=port)
        return await self.relays.route(placeholder, asked)


@pytest.fixture
def house() -> House:
    return House()


async def test_ranks_are_reached_where_they_listen_and_nowhere_else(house: House) -> None:
    """Not before they do, not at other ports, not by ranks of other jobs; and of this host only the job's own ports."""
    near, far, stranger = house.rank("1", 0), house.rank("1", 1), house.rank("2", 0)
    assert await house.route(near, 1, 5000) is None
    house.relays.listens(far, Listening(task="1:1", ports=(5000, 5001)))
    house.relays.listens(far, Listening(task="1:0", ports=(6000,)))  # which is not its own
    house.relays.listens(stranger, Listening(task="1:0", ports=(6000,)))
    assert await house.route(near, 1, 5000) == Route(job_id=JobId("1"), port=5000, placeholder=far, task="1:1")
    assert await house.route(near, HOST, 4711) == Route(job_id=JobId("1"), port=4711)
    refused = [(near, 1, 5002, "1"), (far, 0, 6000, "1"), (near, 7, 5000, "1"), (near, HOST, 22, "1")]
    refused += [(stranger, 1, 5000, "1"), (stranger, HOST, 4711, "1"), (stranger, 1, 5000, "2"), (near, 1, 5000, "2")]
    for placeholder, peer, port, job_id in refused:
        assert await house.route(placeholder, peer, port, job_id) is None, (peer, port, job_id)
    house.relays.task_ended(far, "1:1")
    assert await house.route(near, 1, 5000) is None
    house.relays.forget(JobId("1"))
    assert house.center.ended == ["1"]


async def test_agents_of_all_ranks_are_told(house: House) -> None:
    """Also of what came before them; nodes that were seen to connect need no tunnel."""
    near, far = house.rank("1", 0), house.rank("1", 1)
    house.relays.listens(far, Listening(task="1:1", ports=(5000,)))
    own = house.world.record("1").ranks[1].address
    assert house.center.ports(near) == {1: ((5000,), "")}
    assert house.center.ports(far) == {1: ((5000,), own)}
    house.relays.listens(far, Listening(task="1:1", ports=()))
    assert house.center.ports(near) == {1: ((), "")}
    house.relays.forwards(near, Forwarded(job="1", number=9, fault="the port is taken"))
    house.center.told.clear()
    house.relays.forget(JobId("1"))
    house.world.post(
        NodesConnect(time=house.world.now, cluster=ClusterName("near"), other=ClusterName("far"), connects=True)
    )
    house.relays.listens(far, Listening(task="1:1", ports=(5000,)))
    house.center.told.clear()
    house.relays.in_contact(near)
    assert house.center.ports(near) == {1: ((5000,), own)}


async def test_a_program_of_this_host_that_sends_and_ends_at_once_is_heard(house: House) -> None:
    """Its connection is answered once it is known whose it is; another program may be the next one."""
    port = 20_000 + os.getpid() % 40_000
    plan = house.relays.plan(house.world.record("1").job)
    assert plan is not None
    async with anyio.create_task_group() as tasks:
        house.relays.open(tasks)
        for _ in range(2):
            house.relays.listens(house.rank("1", 1), Listening(task="1:1", ports=(port, 80)))
            with anyio.fail_after(LIVENESS):
                async with await anyio.connect_tcp(plan.address(1), port) as stream:
                    await stream.send(b"hello")
        with anyio.fail_after(LIVENESS):
            while house.center.heard != [b"hello", b"hello"]:  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.01)
        house.relays.listens(house.rank("1", 1), Listening(task="1:1", ports=()))
        with pytest.raises(OSError, match="All connection attempts failed"):
            await anyio.connect_tcp(plan.address(1), port)
