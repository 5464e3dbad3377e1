# SPDX-License-Identifier: Apache-2.0
"""The control center to which placeholders on trial report: one of its own, for ``koala check`` alone."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from koala_adapter.errors import ConfigurationError
from koala_adapter.service.scriptmaker import ScriptMaker
from koala_adapter.vjm import agentevents, certificate, credentials
from koala_adapter.vjm.center import ControlCenter

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.model import PlaceholderId, TaskEnd

LEASE = 60.0
"""Should we be killed, a placeholder ends by itself so many seconds later."""
HEARTBEAT = 5.0


@dataclass(slots=True)
class Visit:
    """What is known of one placeholder."""

    token: str
    registered: anyio.Event = field(default_factory=anyio.Event)
    agent: agentevents.AgentRegistered | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    end: TaskEnd | None = None
    session: str | None = None


class TrialCenter:
    """A control center for trials only."""

    def __init__(self, site: SiteConfig, directory: Path, *, state: Path) -> None:
        """``directory``: private and temporary; ``state``: the service's. Nothing listens before :meth:`serve`."""
        self.state = state
        self._site = site
        self._directory = directory
        self._visits: dict[PlaceholderId, Visit] = {}
        self.rejected: list[str] = []
        """Peers that connected and did not prove themselves: address and fault."""
        own = certificate.load_or_create(directory / "certificate")
        self._fingerprint = own.fingerprint
        self.center = ControlCenter(
            ssl_context=certificate.server_context(own),
            authenticate=lambda id_, token: (
                id_ in self._visits and secrets.compare_digest(self._visits[id_].token, token)
            ),
            sessions=self,
            on_event=self._on_event,
            output_path=lambda placeholder, task: directory / f"{placeholder}.{task}",
            lease=LEASE,
            heartbeat=HEARTBEAT,
            on_rejected=lambda address, fault: self.rejected.append(f"{address}: {fault}"),
        )
        self.port = 0

    def bound_session(self, placeholder: PlaceholderId) -> str | None:
        """See SessionRegistry."""
        return self._visits[placeholder].session

    def bind(self, placeholder: PlaceholderId, session_hash: str) -> None:
        """See SessionRegistry."""
        self._visits[placeholder].session = session_hash

    async def serve(self, tasks: TaskGroup) -> None:
        """Listen where the service would, on its own port if that is free, else on another.

        Raises ConfigurationError when it cannot listen at all.
        """
        settings = self._site.control_center
        try:
            self.port = await tasks.start(self.center.serve, settings.listen, settings.port)
        except ConfigurationError:
            if not settings.port:
                raise
            self.port = await tasks.start(self.center.serve, settings.listen, 0)

    def expect(self, *placeholders: PlaceholderId) -> list[Visit]:
        """Make a token for the placeholders of a submission and let them in."""
        token = credentials.new_token()
        visits = [Visit(token=token) for _ in placeholders]
        self._visits.update(zip(placeholders, visits, strict=True))
        return visits

    @property
    def scripts(self) -> ScriptMaker:
        """What makes job scripts that report here."""
        return ScriptMaker(site=self._site, port=self.port, fingerprint=self._fingerprint, directory=self.state)

    def printed(self, placeholder: PlaceholderId, task: str) -> str:
        """Return what a command in a placeholder printed."""
        try:
            return (self._directory / f"{placeholder}.{task}.out").read_text(errors="replace").strip()
        except OSError:
            return ""

    def _on_event(self, event: agentevents.AgentEvent) -> None:
        visit = self._visits.get(event.placeholder)
        if visit is None:
            return
        if isinstance(event, agentevents.AgentRegistered):
            visit.agent = event
            visit.registered.set()
        elif isinstance(event, agentevents.AgentTaskEnded):
            visit.end = event.end
            visit.ended.set()
