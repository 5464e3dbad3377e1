# SPDX-License-Identifier: Apache-2.0
"""Whether nodes of clusters at different sites can connect: agents that are in contact try it, and it is remembered.

Both directions of a pair of clusters are tried, one after the other, when an agent of each is in contact and it is not
known. The scheduler is told by events; what it knows is forgotten after a day.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.host.containment import contained
from koala_adapter.scheduler.events import NodesConnect
from koala_adapter.vjm.channel import Probed, ProbeListen, ProbeReach, Probing

if TYPE_CHECKING:
    from koala_adapter.model import ClusterName
    from koala_adapter.scheduler.records import PlaceholderRecord
    from koala_adapter.service.core import Core

ANSWER = 15.0
"""Seconds for an agent to do its part of a probe."""
AGAIN = 600.0
"""Seconds before a probe is tried again that gave no result, such as with an agent that went meanwhile."""

log = structlog.get_logger()


class Reachability:
    """Finds out which clusters' nodes can connect to those of which others."""

    def __init__(self, core: Core) -> None:
        """Nothing is tried before :meth:`run`."""
        self._core = core
        self._sites = {one.cluster_name: one.site for one in core.site.clusters}
        self._come = anyio.Event()
        self._tried: dict[tuple[ClusterName, ClusterName], float] = {}
        self._answers: dict[str, Probing | Probed | None] = {}
        """What agents have answered, by the names of probes under way."""
        self._answered = anyio.Event()

    def in_contact(self) -> None:
        """Take in that an agent has come into contact."""
        self._come.set()

    def answered(self, answer: Probing | Probed) -> None:
        """Take in what an agent says of a probe."""
        if answer.probe in self._answers:
            self._answers[answer.probe] = answer
            self._answered.set()
            self._answered = anyio.Event()

    async def run(self) -> None:
        """Try what is not known whenever an agent comes into contact, until cancelled."""
        while len(set(self._sites.values())) > 1:
            await self._come.wait()
            self._come = anyio.Event()
            while (pair := self._unknown()) is not None:
                with contained("trying whether nodes connect"):
                    await self._try(*pair)

    def _unknown(self) -> tuple[PlaceholderRecord, PlaceholderRecord] | None:
        """Return agents in contact of two clusters of which it is not known, and note that it is tried."""
        state, now = self._core.state, self._core.now()
        found = (state.placeholders.get(one) for one in self._core.center.connected)
        agents = {one.cluster: one for one in found if one is not None and one.address}
        for cluster, one in agents.items():
            for other, its in agents.items():
                if (
                    self._sites.get(cluster) == self._sites.get(other)
                    or state.connects(cluster, other, now) is not None
                ):
                    continue
                if now - self._tried.get((cluster, other), -AGAIN) >= AGAIN:
                    self._tried[cluster, other] = now
                    return one, its
        return None

    async def _try(self, one: PlaceholderRecord, its: PlaceholderRecord) -> None:
        """Have the agent of one cluster connect to that of another one."""
        answer, center = secrets.token_hex(16), self._core.center
        listens, reaches = secrets.token_hex(16), secrets.token_hex(16)
        listening = await self._ask(listens, center.probe(its.id, ProbeListen(probe=listens, answer=answer)))
        if not isinstance(listening, Probing):
            return
        reach = ProbeReach(probe=reaches, says=listens, address=its.address or "", port=listening.port)
        found = await self._ask(reaches, center.probe(one.id, reach))
        if not isinstance(found, Probed):
            return
        connects = found.answer == answer
        log.info("nodes of clusters connect" if connects else "nodes of clusters do not connect",
                 cluster=one.cluster, other=its.cluster)  # fmt: skip
        self._core.post(NodesConnect(time=self._core.now(), cluster=one.cluster, other=its.cluster, connects=connects))

    async def _ask(self, probe: str, sent: bool) -> Probing | Probed | None:  # noqa: FBT001 - what the center says
        """Return what an agent answers; None: nothing in its time."""
        self._answers[probe] = None
        try:
            with anyio.move_on_after(ANSWER if sent else 0):
                while self._answers[probe] is None:
                    await self._answered.wait()
            return self._answers[probe]
        finally:
            del self._answers[probe]
