# SPDX-License-Identifier: Apache-2.0
"""Simulated applications of a head and workers, resized by the code of the service itself.

A worker ends by itself, well or badly, or because it is asked to: soon, late, or only when it is killed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, JobId, TaskEnd
from koala_adapter.outcome import LAUNCHED_STATES, PlaceholderState
from koala_adapter.runners.runner import AddressedLaunch, Application
from koala_adapter.runners.workers import KILL, AddressedSignal, WorkersRunner
from tests.faults.agents import TO_AGENT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from koala_adapter.model import Job, PlaceholderId
    from koala_adapter.runners.workers import Order
    from koala_adapter.scheduler.records import JobRecord
    from tests.faults.agents import SimulatedAgent
    from tests.faults.driver import SimulatedService

FOR_EVER = 1e9
WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
ILL = TaskEnd(reason=EndReason.EXITED, exit_code=3)
TERMINATED = TaskEnd(reason=EndReason.SIGNALLED, signal=15)
KILLED = TaskEnd(reason=EndReason.SIGNALLED, signal=KILL)


class Workers:
    """The applications of a head and workers of one service: what that service knows of them, and what they do."""

    def __init__(self, service: SimulatedService) -> None:
        self._service = service
        self._runners: dict[JobId, WorkersRunner] = {}
        self.retired = 0
        """Processes that ended because they were asked to."""

    def renew(self) -> None:
        """Forget all runners: the service is a new process, which knows nothing yet."""
        self._runners.clear()

    # ---- what the service does ---------------------------------------------------------------------------------------

    def workers(self, record: JobRecord) -> WorkersRunner | None:
        if record.state not in LAUNCHED_STATES:
            return None
        if record.job.id not in self._runners:
            self._runners[record.job.id] = WorkersRunner(application_of(record))
        return self._runners[record.job.id]

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        runner = self.workers(record)
        for addressed in () if runner is None else runner.grow(application_of(record), ranks):
            self._service.effector.start_in(addressed.placeholder)

    def order(self, orders: Iterable[Order]) -> None:
        """See Applications; who is out of contact is told when it comes back."""
        for order in orders:
            task = order.signal.task if isinstance(order, AddressedSignal) else order.launch.task
            self._check_there(task.removesuffix(".retire"))
            agent = self._service.connected.get(order.placeholder)
            if agent is None or agent.connection is None:
                continue
            if isinstance(order, AddressedSignal):
                self._send(agent, order.signal.task, kills=order.signal.signal == KILL)
            elif isinstance(order, AddressedLaunch) and order.launch.task.endswith(".retire"):
                self._send(agent, order.launch.task.removesuffix(".retire"), kills=False)

    def _check_there(self, task: str) -> None:
        """Check that nothing is asked of a worker that is gone: who asked would wait for it in vain."""
        job_id, _, rank = task.partition(":")
        record = self._service.state.jobs[JobId(job_id)]
        assert int(rank) not in record.departed, f"{task} has left, and is asked to leave"

    def finished(self, job_id: JobId) -> None:
        """Forget an application that is over."""
        self._runners.pop(job_id, None)

    def registered(self, placeholder: PlaceholderId) -> None:
        """Repeat to an agent that came into contact again what it may not have heard."""
        found = self._service.state.placeholders.get(placeholder)
        if found is None or found.state is not PlaceholderState.LAUNCHED:
            return
        record = self._service.state.jobs[found.job_id]
        runner = self._runners.get(record.job.id)
        rank = None if runner is None else runner.application.ranks_in.get(placeholder)
        if runner is not None and rank is not None:
            self.order(runner.asked_again(rank, self._service.now))

    # ---- what the processes do ---------------------------------------------------------------------------------------

    def life(self, job: Job, rank: int) -> tuple[float, TaskEnd]:
        """Return after how many seconds a worker ends by itself, and how."""
        chance = random.Random(f"life/{self._service.faults.seed}/{job.id}/{rank}")
        headed = any(job.is_head(one.name) for one in job.components)
        if headed and chance.random() < 0.6:
            return FOR_EVER, WELL
        return chance.uniform(1.0, 300.0), chance.choice([WELL, WELL, ILL])

    def _send(self, agent: SimulatedAgent, name: str, *, kills: bool) -> None:
        job_id, _, rank = name.partition(":")

        def arrive() -> None:
            task = agent.tasks.get(int(rank)) if agent.job == job_id else None
            if task is None or task.end is not None:
                return
            if kills:
                self.retired += 1
                agent.end_task(task, KILLED)
            elif not task.asked:
                task.asked = True
                chance = random.Random(f"asked/{self._service.faults.seed}/{name}")
                seconds, end = (
                    chance.choice([0.0, chance.uniform(0.0, 40.0), FOR_EVER]),
                    chance.choice([WELL, TERMINATED]),
                )
                self.retired += seconds < FOR_EVER
                agent.clock.after(seconds, lambda: agent.end_task(task, end))

        if agent.connection is not None:
            agent.connection.send(TO_AGENT, arrive)


def application_of(record: JobRecord) -> Application:
    """Return a job with the ranks that it has now."""
    return Application(
        job=record.job,
        ranks=tuple(rank for rank in record.ranks if rank.rank not in record.departed),
        clusters={claim.component: claim.cluster or "" for claim in record.claims},
        files={},
    )
