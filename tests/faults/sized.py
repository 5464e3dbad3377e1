# SPDX-License-Identifier: Apache-2.0
"""The service's own code for jobs that change their size, between the simulated service and its applications."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from koala_adapter.model import RunnerName
from koala_adapter.outcome import PlaceholderState
from koala_adapter.service.sizes.loop import Sizes
from tests.unit.service.standincore import StandInCore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.runners.workers import Order, WorkersRunner
    from koala_adapter.scheduler.actions import SizeAction
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import JobRecord, State
    from koala_adapter.service.applications import ApplicationListener
    from tests.faults.adaptive import Adaptive
    from tests.faults.driver import SimulatedService
    from tests.faults.workers import Workers


class Sized:
    """Jobs that change their size. It has the place of the service's Applications."""

    def __init__(self, service: SimulatedService, workers: Workers, adaptive: Adaptive) -> None:
        """``workers`` and ``adaptive``: the simulated applications."""
        self._service = service
        self._workers = workers
        self._adaptive = adaptive
        self.listener: ApplicationListener | None = None
        self._core = StandInCore(self, center=adaptive)
        self.sizes = Sizes(self._core, self)  # type: ignore[arg-type] # it is all that is asked of them
        self._look = inf
        """When the earliest deadline is looked at."""
        self._reported: set[tuple[object, ...]] = set()
        """Kind, job and number of what was reported."""

    # ---- the core of the service -----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self._service.state

    @property
    def now(self) -> float:
        """The time by the service's clock."""
        return self._service.now

    def post(self, event: Event) -> None:
        """Report an event; a look for which there was no reason may only repeat what waits to be handled."""
        what = (type(event), getattr(event, "job_id", None), getattr(event, "number", None))
        if self._adaptive.quiet:
            assert what in self._reported, f"no look at the job that reports {event}"
            return
        self._reported.add(what)
        self._service.post(event)

    # ---- Applications ----------------------------------------------------------------------------------------------

    def workers(self, record: JobRecord) -> WorkersRunner | None:
        """Return the runner of a job with workers; None: it does not run."""
        return self._workers.workers(record) if record.job.has_workers else None

    def adaptive(self, record: JobRecord) -> AdaptiveRunner | None:
        """Return the runner of an adaptive job; None: it does not run."""
        return self._adaptive.adaptive(record)

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        """Start the processes of new ranks."""
        applications = self._adaptive if record.job.runner is RunnerName.ADAPTIVE else self._workers
        applications.grow(record, ranks)

    def order(self, orders: Iterable[Order]) -> None:
        """Have agents start or signal processes of workers."""
        self._workers.order(orders)

    # ---- what the service does -------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Be a new process of the service, which knows nothing yet."""
        self._workers.renew()
        self._adaptive.renew()
        self._look = inf
        self._reported.clear()
        self.sizes = Sizes(self._core, self)  # type: ignore[arg-type]

    def resume(self) -> None:
        """Take up what the records tell."""
        self.sizes.resume()
        self.look_again()

    def carry_out(self, action: SizeAction) -> None:
        """Carry out an action of the scheduler."""
        self.sizes.carry_out(action)
        self.look_again()

    def handled(self, touched: Iterable[JobId]) -> None:
        """Follow the records after an event; check that it meant nothing for the jobs that it is said not to touch."""
        self.sizes.follow(list(touched))
        self.look_again()
        self._adaptive.quiet = True
        self.sizes.follow(list(self._service.state.jobs))
        self._adaptive.quiet = False

    def look_again(self) -> None:
        """Look at the earliest deadline when it is there."""
        due = self.sizes.next_deadline()
        if due < self._look:
            self._look = due
            self._service.later(max(0.0, due - self._service.now), self._time_passed)

    def _time_passed(self) -> None:
        self._look = inf
        self.sizes.time_passed()
        self.look_again()

    # ---- agents ----------------------------------------------------------------------------------------------------

    def registered(self, placeholder: PlaceholderId) -> None:
        """Take in that an agent is in contact, perhaps again."""
        self._workers.registered(placeholder)
        if (found := self._found(placeholder)) is not None and self.listener is not None:
            self.listener.in_contact(*found)
        self.look_again()

    def disconnected(self, placeholder: PlaceholderId) -> None:
        """Take in that an agent is out of contact."""
        if (found := self._found(placeholder)) is not None and self.listener is not None:
            self.listener.out_of_contact(*found)

    def said(self, record: JobRecord, rank: int, data: bytes) -> None:
        """Take a frame from a process of an adaptive job."""
        if self.listener is not None:
            self.listener.said(record, rank, data)
            self.look_again()

    def _found(self, placeholder: PlaceholderId) -> tuple[JobRecord, int] | None:
        """Return whose process is in a placeholder: an adaptive job that was looked at, and the rank."""
        state = self._service.state
        one = state.placeholders.get(placeholder)
        if one is None or one.state is not PlaceholderState.LAUNCHED:
            return None
        record = state.jobs[one.job_id]
        runner = self._adaptive.known(record)
        rank = None if runner is None else runner.application.ranks_in.get(placeholder)
        return None if rank is None else (record, rank.rank)
