# SPDX-License-Identifier: Apache-2.0
"""Simulated applications that change their size, and the code of the service for them."""

from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, JobId, RunnerName, TaskEnd
from koala_adapter.outcome import LAUNCHED_STATES, JobState, PlaceholderState
from koala_adapter.runners.runner import AddressedLaunch, AddressedSignal, Application
from koala_adapter.runners.workers import KILL, WorkersRunner
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.service.sizes.loop import Sizes
from tests.faults.lrm import TO_AGENT
from tests.unit.service.standins import StandInCore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from koala_adapter.model import Job, PlaceholderId
    from koala_adapter.runners.adaptive import AdaptiveRunner
    from koala_adapter.runners.runner import Order
    from koala_adapter.scheduler.actions import SizeAction
    from koala_adapter.scheduler.events import Event
    from koala_adapter.scheduler.records import Claim, JobRecord, State
    from koala_adapter.service.applications import SpeakingJobs
    from tests.faults.adaptive import Adaptive
    from tests.faults.driver import SimulatedService
    from tests.faults.lrm import SimulatedAgent


class Applications:
    """The malleable applications of one service."""

    def __init__(self, service: SimulatedService) -> None:
        """Talk through the service; what it was told when it crashed is forgotten."""
        self._service = service
        self._chance = service.faults.chance
        self._wishes: dict[str, int] = {}
        self.resized_by_owners = 0.1
        """How often it is the owner of a job who wants something else."""

    def told(self, action: act.OfferProcessors | act.RequestProcessors) -> None:
        """Answer after a while, or never."""
        if self._chance.random() < 0.1:
            return
        most = action.processors + (1 if isinstance(action, act.RequestProcessors) else 0)
        accepted = self._chance.choice([0, action.processors, action.processors, self._chance.randint(0, most)])
        service = self._service

        def answer() -> None:
            service.post(
                ev.OfferAnswered(time=service.now, job_id=action.job_id, number=action.number, accepted=accepted)
            )

        service.later(self._chance.uniform(0.1, 20.0), answer)
        if isinstance(action, act.RequestProcessors) and accepted and self._chance.random() < 0.9:
            service.later(self._chance.uniform(21.0, 60.0), lambda: self._release(action, accepted))

    def _release(self, action: act.RequestProcessors, accepted: int) -> None:
        record = self._service.state.jobs.get(action.job_id)
        if record is not None and record.state is JobState.RUNNING:
            for claim in record.claims:
                if (claim.component, claim.cluster) == (action.component, action.cluster):
                    self._give_up(record, claim, accepted)

    def stir(self) -> None:
        """Let one running application ask for more, or give something up, of its own will."""
        running = [one for one in self._service.state.jobs.values() if one.state is JobState.RUNNING]
        if not running or not self._service.sound:
            return
        record = self._chance.choice(running)
        claim = self._chance.choice(record.claims)
        if self._chance.random() < self.resized_by_owners:
            self._resize(record, claim)
            return
        if record.job.runner is not RunnerName.RANKS:
            return  # processes of the others ask by themselves, or nobody does but the owner
        if self._chance.random() < 0.4:
            self._give_up(record, claim, self._chance.randint(1, 2))
            return
        self._wishes[record.job.id] = number = self._wishes.get(record.job.id, 0) + 1
        self._service.post(
            ev.MoreRequested(
                time=self._service.now,
                job_id=record.job.id,
                component=claim.component,
                number=number,
                processors=self._chance.randint(1, 4),
                mandatory=self._chance.random() < 0.5,
            )
        )

    def _resize(self, record: JobRecord, claim: Claim) -> None:
        """Have the owner want another size, sometimes one that the component cannot have."""
        component = record.job.component(claim.component)
        processors = self._chance.randint(max(1, component.minimum - 1), component.maximum + 1)
        self._service.post(
            ev.SizeWanted(time=self._service.now, job_id=record.job.id, component=component.name, processors=processors)
        )

    def _give_up(self, record: JobRecord, claim: Claim, count: int) -> None:
        going: list[PlaceholderId] = [
            id_
            for id_ in claim.placeholders
            if self._service.state.placeholders[id_].state is PlaceholderState.LAUNCHED
        ]
        chosen = tuple(self._chance.sample(going, min(count, len(going))))
        self._service.post(ev.ProcessorsReleased(time=self._service.now, job_id=record.job.id, placeholders=chosen))


# -- A head and workers, resized by the code of the service itself: a worker ends by itself, when asked, or when killed.


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
        """Order agents; one that is out of contact is told when it comes back."""
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
        self._runners.pop(job_id, None)

    def registered(self, placeholder: PlaceholderId) -> None:
        """Repeat to an agent that came into contact again what it may not have heard."""
        found = self._service.state.placeholders.get(placeholder)
        if found is None or found.state is not PlaceholderState.LAUNCHED:
            return
        record = self._service.state.jobs[found.job_id]
        runner = self._runners.get(record.job.id)
        if runner is not None:
            for rank in runner.application.ranks_in.get(placeholder, ()):
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
        files={},
    )


# -- The service's own code for jobs that change their size, between the simulated service and its applications.


class Sized:
    """Jobs that change their size. It has the place of the service's Applications."""

    def __init__(self, service: SimulatedService, workers: Workers, adaptive: Adaptive) -> None:
        """``workers`` and ``adaptive``: the simulated applications."""
        self._service = service
        self._workers = workers
        self._adaptive = adaptive
        self.speaking_jobs: SpeakingJobs | None = None
        self._core = StandInCore(self, center=adaptive)
        self.sizes = Sizes(self._core, self)  # type: ignore[arg-type] # it is all that is asked of them
        self._look = inf
        """When the earliest deadline is looked at."""
        self._reported: set[tuple[object, ...]] = set()
        """Kind, job and number of what was reported."""

    # ---- the core of the service -----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._service.state

    @property
    def now(self) -> float:
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
        applications = self._adaptive if record.job.runner is RunnerName.ADAPTIVE else self._workers
        applications.grow(record, ranks)

    def order(self, orders: Iterable[Order]) -> None:
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
        self.sizes.resume()
        self.look_again()

    def carry_out(self, action: SizeAction) -> None:
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
        self._workers.registered(placeholder)
        if (found := self._found(placeholder)) is not None:
            record, rank = found
            with self.sizes.speaking(record) as job:
                if job is not None:
                    job.in_contact(record, rank)
        self.look_again()

    def disconnected(self, placeholder: PlaceholderId) -> None:
        if (found := self._found(placeholder)) is not None:
            record, rank = found
            with self.sizes.speaking(record) as job:
                if job is not None:
                    job.out_of_contact(rank)

    def said(self, record: JobRecord, rank: int, data: bytes) -> None:
        with self.sizes.speaking(record) as job:
            if job is not None:
                job.said(record, rank, data)
        self.look_again()

    def _found(self, placeholder: PlaceholderId) -> tuple[JobRecord, int] | None:
        """Return whose process is in a placeholder: an adaptive job that was looked at, and the rank."""
        state = self._service.state
        one = state.placeholders.get(placeholder)
        if one is None or one.state is not PlaceholderState.LAUNCHED:
            return None
        record = state.jobs[one.job_id]
        runner = self._adaptive.known(record)
        ranks = () if runner is None else runner.application.ranks_in.get(placeholder, ())
        return (record, ranks[0].rank) if ranks else None
