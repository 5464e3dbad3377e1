# SPDX-License-Identifier: Apache-2.0
"""What peers of the control center may have it keep before they have proved themselves."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.streams.tls import TLSStream

from koala_adapter.model import BatchKey, PlaceholderId
from koala_adapter.vjm import center, channel
from koala_adapter.vjm.center import ControlCenter
from koala_adapter.vjm.certificate import load_or_create, server_context
from koala_adapter.vjm.listener import AgentListener, AgentRegistered

if TYPE_CHECKING:
    from pathlib import Path

    from koala_adapter.vjm.listener import AgentEvent

pytestmark = pytest.mark.anyio

LIVENESS = 60.0
PEERS = 20
LINE = 200_000
"""Bytes of a Hello that does not end, below the longest that is taken."""


class Served(AgentListener):
    """A control center, and what it tells."""

    def __init__(self, directory: Path) -> None:
        self.events: list[AgentEvent] = []
        self.rejected: list[str] = []
        context = server_context(load_or_create(directory))
        self.center = ControlCenter(self, context, lease=LIVENESS, heartbeat=LIVENESS)

    def admits(self, placeholder: PlaceholderId, token: str) -> bool:
        del placeholder
        return token == "good"

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        del placeholder
        return None

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """Forget the owner."""

    def output_path(self, placeholder: PlaceholderId, task: str) -> None:
        """Drop the output."""

    def on_event(self, event: AgentEvent) -> None:
        self.events.append(event)

    def on_rejected(self, address: str, fault: str) -> None:
        del address
        self.rejected.append(fault)


async def connected(stack: AsyncExitStack, port: int) -> TLSStream:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    transport = await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
    return await TLSStream.wrap(transport, server_side=False, ssl_context=context, standard_compatible=False)


async def test_peers_without_a_proof_cost_a_bounded_amount_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they have sent is bounded for all together; an agent with an ordinary Hello is let in meanwhile."""
    monkeypatch.setattr(center, "UNPROVEN_BYTES", 1_000_000)
    monkeypatch.setattr(center, "UNPROVEN_SHARE", 20_000)
    served = Served(tmp_path)
    async with anyio.create_task_group() as tasks, AsyncExitStack() as strangers:
        port = await tasks.start(served.center.serve, "127.0.0.1", 0)
        most = 0

        async def send(stream: TLSStream) -> None:
            for _ in range(LINE // 10_000):
                try:
                    await stream.send(b"x" * 10_000)
                except anyio.BrokenResourceError:
                    return

        with anyio.fail_after(LIVENESS):
            for _ in range(PEERS):
                await send(await connected(strangers, port))
            while not served.rejected:  # noqa: ASYNC110 - it is not announced
                await anyio.sleep(0.01)
            most = served.center._unproven
            hello = channel.Hello(
                batch=BatchKey("b"),
                index=1,
                token="good",
                session="s",
                lrm_id="1",
                host="n1",
                address="",
                pid=1,
                ends_in=None,
                python="3",
            )
            agent = await connected(strangers, port)
            await agent.send(channel.encode(hello))
            await agent.receive()
            await strangers.aclose()
            while served.center._unproven:  # noqa: ASYNC110 - it is not announced
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert any(isinstance(event, AgentRegistered) for event in served.events)
    assert "peers that have not proved themselves have sent too much" in served.rejected
    assert most < 1_000_000 + PEERS * 20_000
