# SPDX-License-Identifier: Apache-2.0
"""What all parts of a service share: its site, its journal, its clock, its scheduler and its control center."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from koala_adapter.lrm.commands import login_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from koala_adapter.config.sitefile import SiteConfig
    from koala_adapter.driver.loop import EventLoop
    from koala_adapter.host.clock import ServiceClock
    from koala_adapter.lrm.lrmhost import LrmHost
    from koala_adapter.model import ClusterName, LrmJobId, PlaceholderId
    from koala_adapter.scheduler import Scheduler
    from koala_adapter.scheduler.records import State
    from koala_adapter.service.journal import Journal
    from koala_adapter.sizes import SizeRules
    from koala_adapter.slots import Slot
    from koala_adapter.vjm.center import ControlCenter


class Nudge:
    """Wakes the one task that waits for it; what comes while that is busy is not lost."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Let the task go on."""
        self._event.set()

    def clear(self) -> None:
        """Forget what has come so far."""
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Wait until something has come, and forget it."""
        await self._event.wait()
        self.clear()


class Core:
    """State and services shared by all parts of one service."""

    loop: EventLoop
    """Set once, before anything runs."""
    center: ControlCenter
    """Set once, before anything runs."""

    def __init__(
        self, site: SiteConfig, directory: Path, journal: Journal, clock: ServiceClock, size_rules: SizeRules
    ) -> None:
        """``directory``: the state directory."""
        self.site = site
        self.directory = directory
        self.journal = journal
        self.clock = clock
        self.size_rules = size_rules
        self.negotiations = journal.negotiations
        self.name_prefix = f"koala-{journal.instance()}-"
        """How the names of our LRM jobs begin."""
        self.user = login_name()
        """The owner of our LRM jobs."""
        self.lrm_hosts: dict[str, LrmHost] = {}
        """Where the batch systems are, by cluster."""
        self.changed = anyio.Event()
        """Set (and replaced) whenever something changed that a report may show."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler; replaced when an event is set aside, so do not keep it."""
        return self.loop.scheduler

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self.loop.scheduler.state

    @property
    def trouble(self) -> str:
        """Why the journal cannot be written, so that nothing is decided; empty when it can."""
        return self.loop.trouble

    @property
    def holding(self) -> bool:
        """Whether events wait, so that the state may be outdated."""
        return self.loop.holding

    @property
    def busy(self) -> bool:
        """Whether any job has no outcome or has placeholders."""
        return any(not record.state.final or record.live for record in self.state.jobs.values())

    def now(self) -> float:
        """Return the time by the service clock."""
        return self.clock.now()

    def note_change(self) -> None:
        """Wake all who wait for :attr:`changed`."""
        self.changed.set()
        self.changed = anyio.Event()

    def in_contact(self, placeholder: PlaceholderId) -> bool:
        """Tell whether the agent of a placeholder is connected."""
        return placeholder in self.center.connected

    def slots_on(self, cluster: ClusterName) -> Mapping[LrmJobId, Slot]:
        """Return the slots that placeholders hold on a cluster, by their ids there."""
        placeholders = self.state.placeholders.on(cluster).values()
        return {one.lrm_id: self.state.slot_of(one) for one in placeholders if one.lrm_id is not None}
