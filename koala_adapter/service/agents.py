# SPDX-License-Identifier: Apache-2.0
"""Between agents and scheduler: decides whom the control center lets in, and turns what agents say into events."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import ConfigurationError
from koala_adapter.net.freeport import lasting_ports
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.outcome import PlaceholderState
from koala_adapter.vjm import agentevents as agents
from koala_adapter.vjm import certificate, credentials
from koala_adapter.vjm.center import ControlCenter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from anyio.abc import TaskGroup

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.model import ClusterName, PlaceholderId
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.applications import Applications
    from koala_adapter.service.clusterdriver import ClusterDriver
    from koala_adapter.service.journal import Journal
    from koala_adapter.vjm.channel import Launch, Signal

RELEASE_GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL when an application is ended."""
REJECTION_LOG_INTERVAL = 10.0
"""Seconds between two lines in the log about peers that did not prove themselves."""
PORT_PATIENCE = 60.0
PORT_PAUSE = 2.0

log = structlog.get_logger()


class Reception:
    """Runs the control center of a service: accepts agents of wanted placeholders, and reports what agents say."""

    def __init__(  # noqa: PLR0913 - all that it needs of the service
        self,
        directory: Path,
        site: SiteConfig,
        *,
        journal: Journal,
        state: Callable[[], State],
        clock: Callable[[], float],
        report: Callable[[ev.Event], None],
        applications: Applications,
        clusters: Mapping[ClusterName, ClusterDriver],
        tell: Callable[[], None],
    ) -> None:
        """Nothing listens before :meth:`open`.

        ``directory``: of the certificate. ``tell``: something changed that is no event, such as new output.
        """
        self._certificate = certificate.load_or_create(directory)
        self._journal = journal
        self._state = state
        self._clock = clock
        self._report = report
        self._applications = applications
        self._clusters = clusters
        self._tell = tell
        self._rejection_logged_at = 0.0
        self._settings = site.control_center
        self._center = ControlCenter(
            ssl_context=certificate.server_context(self._certificate),
            authenticate=self._authenticate,
            sessions=journal,
            on_event=self._on_agent,
            output_path=applications.output_path,
            on_output=self._on_output,
            on_unwritten=self._on_unwritten,
            on_written=self._on_written,
            results=applications.results,
            on_rejected=self._on_rejected,
            lease=site.parameters.lease,
            heartbeat=site.control_center.heartbeat,
        )
        self.port: int | None = None
        """Where agents find it; None before it listens."""

    @property
    def fingerprint(self) -> str:
        """What agents compare the control center's certificate with."""
        return self._certificate.fingerprint

    @property
    def connected(self) -> AbstractSet[PlaceholderId]:
        """The placeholders whose agents are connected."""
        return self._center.connected

    def in_contact(self, placeholder: PlaceholderId) -> bool:
        """Tell whether the agent of a placeholder is connected."""
        return placeholder in self._center.connected

    def release(self, placeholder: PlaceholderId) -> bool:
        """Tell an agent to end. False when it is not connected."""
        return self._center.release(placeholder, RELEASE_GRACE)

    def launch(self, placeholder: PlaceholderId, launch: Launch) -> bool:
        """Send an order to start a task. False when the agent is not connected. Raises ProtocolError."""
        return self._center.launch(placeholder, launch)

    def disconnect(self, placeholder: PlaceholderId, reason: str) -> None:
        """Have an agent come back and tell again what it knows, if it is connected."""
        self._center.disconnect(placeholder, reason)

    def signal(self, placeholder: PlaceholderId, signal: Signal) -> bool:
        """Send a signal to a task. False when the agent is not connected."""
        return self._center.signal(placeholder, signal)

    def tell_application(self, placeholder: PlaceholderId, task: str, frame: bytes) -> bool:
        """Send a frame to the process of a task. False when the agent is not connected."""
        return self._center.tell_application(placeholder, task, frame)

    def disconnect_all(self, reason: str) -> None:
        """Have all agents come back and tell again what they know."""
        self._center.disconnect_all(reason)

    async def open(self, tasks: TaskGroup) -> None:
        """Begin to listen within ``tasks``. Raises ConfigurationError."""
        self.port = await self._bind(tasks)
        self._journal.set_value("port", str(self.port))

    async def _bind(self, tasks: TaskGroup) -> int:
        """Listen where agents that are already out expect it; with none out, on another port if that one is taken."""
        settings = self._settings
        kept = int(self._journal.value("port") or "0")
        if settings.port or (kept and self._state().placeholders):
            return await self._insist(tasks, settings.listen, settings.port or kept)
        likely = lasting_ports()
        for port in (kept, *likely) if kept else likely:
            with suppress(ConfigurationError):
                return int(await tasks.start(self._center.serve, settings.listen, port))
        return int(await tasks.start(self._center.serve, settings.listen, 0))

    async def _insist(self, tasks: TaskGroup, host: str, port: int) -> int:
        """Listen on this port; while agents expect us there, wait for somebody else to leave it."""
        until = anyio.current_time() + (PORT_PATIENCE if self._state().placeholders else 0)
        while True:
            try:
                return int(await tasks.start(self._center.serve, host, port))
            except ConfigurationError as error:
                if anyio.current_time() >= until:
                    raise
                log.warning("agents expect us on a port that is taken", port=port, error=error.message)
            await anyio.sleep(PORT_PAUSE)

    def _authenticate(self, placeholder: PlaceholderId, token: str) -> bool:
        expected = self._journal.token_hash(placeholder.batch)
        known = placeholder in self._state().placeholders
        return expected is not None and known and credentials.matches(token, expected)

    def _on_agent(self, event: agents.AgentEvent) -> None:
        match event:
            case agents.AgentRegistered():
                self._agent_registered(event)
            case agents.AgentDisconnected():
                self._agent_disconnected(event)
            case agents.AgentRefused():
                text = "an agent with a valid token was refused: its placeholder is taken (run twice, or token stolen)"
                log.warning(text, placeholder=str(event.placeholder), host=event.host, address=event.address)
            case agents.AgentTaskStarted():
                self._applications.started(event.placeholder, event.task)
            case agents.AgentTaskEnded():
                self._applications.ended(event.placeholder, event.task, event.end)
            case agents.ApplicationSaid():
                self._applications.said(event.placeholder, event.task, event.frame)
            case agents.AgentEnding():
                self._report(
                    ev.PlaceholderEnding(
                        time=self._clock(), placeholder=event.placeholder, reason=event.reason, detail=event.detail
                    )
                )

    def _on_rejected(self, address: str, fault: str) -> None:
        """Log a peer that did not prove itself, but not every one: whoever reaches the port can be one."""
        if self._clock() - self._rejection_logged_at > REJECTION_LOG_INTERVAL:
            self._rejection_logged_at = self._clock()
            log.warning("turned away somebody at the control center", address=address, fault=fault)

    def _on_unwritten(self, task: str, stream: str, file: Path, why: str) -> None:
        if self._applications.unwritten.note(task, stream, file, why):
            self._tell()

    def _on_written(self, task: str, stream: str) -> None:
        self._applications.unwritten.written(task, stream)
        self._tell()

    def _on_output(self, task: str, stream: str, offset: int, data: bytes) -> None:
        self._applications.output(task, stream, offset, data)
        self._tell()

    def _agent_registered(self, event: agents.AgentRegistered) -> None:
        now = self._clock()
        ends_at = None if event.ends_in is None else now + event.ends_in
        self._report(
            ev.PlaceholderHeld(
                time=now, placeholder=event.placeholder, host=event.host, address=event.address, ends_at=ends_at
            )
        )
        self._applications.registered(event.placeholder, event.tasks)

    def _agent_disconnected(self, event: agents.AgentDisconnected) -> None:
        self._applications.disconnected(event.placeholder)
        record = self._state().placeholders.get(event.placeholder)
        if record is None:
            return
        driver = self._clusters.get(record.cluster)
        if record.state is PlaceholderState.ENDING and driver is not None:
            if event.closed:
                driver.judge.farewell(event.placeholder)
            driver.poller.poll_soon()
            self._tell()
        else:
            self._report(ev.PlaceholderSilent(time=self._clock(), placeholder=event.placeholder, detail=event.detail))
            if driver is not None:
                driver.poller.poll_soon()
