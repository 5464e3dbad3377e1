# SPDX-License-Identifier: Apache-2.0
"""Runner ``adaptive``: processes that compute in step, and change together at one point of their progress. Pure.

It is KOALA's MRunner for programs that use the application library (CoreGRID TR-0092). The scheduler's records say
which change is under way; a coordinator for each component brings its processes to it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.dynaco.coordinator import Coordinator
from koala_adapter.dynaco.walltime import WalltimeNotices
from koala_adapter.runners.growing import GrowingRunner
from koala_adapter.runners.membership import membership_of, signature

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.dynaco.adaptation import Membership
    from koala_adapter.runners.runner import AddressedLaunch, Application
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord


class AdaptiveRunner(GrowingRunner):
    """Starts a process for each rank, each with the application library and a way to speak with koala."""

    def __init__(self, application: Application) -> None:
        """See :class:`Runner`."""
        super().__init__(application)
        self.coordinators: Mapping[str, Coordinator] = {
            one.name: Coordinator(float(one.point_patience), float(one.done_patience))
            for one in application.job.components
            if application.job.adapts(one.name)
        }
        """By component."""
        self.memberships: dict[str, Membership] = {}
        """The same, as the records have them."""
        self.notices = WalltimeNotices(float(application.job.warn_before))
        self._signature: object = None

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """See :meth:`Runner.launches_in`."""
        launches = super().launches_in(rank)
        if rank.component not in self.coordinators:
            return launches
        library = self.application.library
        return [replace(one, launch=replace(one.launch, application=True, library=library)) for one in launches]

    def follow(self, record: JobRecord, now: float) -> bool:
        """Take in what the scheduler's records say now; tell whether anything was new."""
        known = signature(record)
        if known == self._signature:
            return False
        self._signature = known
        for name, coordinator in self.coordinators.items():
            self.memberships[name] = membership = membership_of(record, name)
            coordinator.update(membership, now)
        return True

    def component_of(self, rank: int) -> str | None:
        """Return the component of a process that may speak with koala; None: it is none of these."""
        return next((name for name, one in self.memberships.items() if rank in one.places), None)
