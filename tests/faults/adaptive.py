# SPDX-License-Identifier: Apache-2.0
"""Adaptive applications of a service in the simulated world: its own code for them, up to their simulated processes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from koala_adapter.application.notes import parse_note
from koala_adapter.negotiation.serviceside.document import HEADER_SIZE
from koala_adapter.outcome import LAUNCHED_STATES
from koala_adapter.runners.adaptive import AdaptiveRunner
from tests.faults.agents import TO_AGENT
from tests.faults.programs import Program, Traits
from tests.faults.workers import application_of
from tests.unit.service.standincore import Center

if TYPE_CHECKING:
    from collections.abc import Collection

    from koala_adapter.application.process import Process
    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler.records import JobRecord
    from tests.faults.agents import SimulatedAgent, Task
    from tests.faults.driver import SimulatedService

STEP_LASTS = (0.3, 6.0)
"""Seconds between two points of a program, at least and at most."""


class Adaptive(Center):
    """The adaptive applications of one service: what that service knows of them, and their processes."""

    def __init__(self, service: SimulatedService) -> None:
        self._service = service
        self._runners: dict[JobId, AdaptiveRunner] = {}
        self.calm = False
        """Whether programs do as they should."""
        self.most_wished = 4
        """Processors that a process asks for, or gives back, at most."""
        self.programs: dict[tuple[str, int], Program] = {}
        self.adapted: dict[tuple[str, str, int], set[tuple[object, ...]]] = {}
        """By job, component and number of a change: its point and its members, as the processes were told."""
        self.carried_out: dict[tuple[str, str, int], set[int]] = {}
        """Ranks whose processes were told of a change."""
        self.members: dict[tuple[str, int], tuple[object, ...]] = {}
        """The members that each process computes with, in their order: after the latest change it was told of."""
        self.quiet = False
        """True while nothing new is to be said or reported."""

    def renew(self) -> None:
        """Forget all runners: the service is a new process, which knows nothing yet."""
        self._runners.clear()

    # ---- what the service does ------------------------------------------------------------------------------------

    def adaptive(self, record: JobRecord) -> AdaptiveRunner | None:
        if record.state not in LAUNCHED_STATES:
            return None
        if record.job.id not in self._runners:
            self._runners[record.job.id] = AdaptiveRunner(application_of(record))
        return self._runners[record.job.id]

    def grow(self, record: JobRecord, ranks: Collection[int]) -> None:
        runner = self.adaptive(record)
        for addressed in () if runner is None else runner.grow(application_of(record), ranks):
            self._service.effector.start_in(addressed.placeholder)

    def finished(self, job_id: JobId) -> None:
        """Forget an application that is over."""
        self._runners.pop(job_id, None)

    # ---- agents ---------------------------------------------------------------------------------------------------

    def known(self, record: JobRecord) -> AdaptiveRunner | None:
        """Return the runner of a job that was looked at before."""
        return self._runners.get(record.job.id)

    def tell_application(self, placeholder: PlaceholderId, task: str, data: bytes) -> bool:
        """Send a frame to the process of a task. False when its agent is not connected."""
        assert not self.quiet, f"no look at {task}, which is told {data!r}"
        agent = self._service.connected.get(placeholder)
        if agent is None or agent.connection is None:
            return False
        job_id, _, rank = task.partition(":")
        payload = data[HEADER_SIZE:]
        if payload.startswith(b"ends "):  # at once: it asks for nothing, and other messages fare as they did without it
            program = self.programs.get((job_id, int(rank)))
            if program is not None and program.agent is agent:
                assert program.process.heard(parse_note(payload)) == []
            return True

        def arrive() -> None:
            program = self.programs.get((job_id, int(rank)))
            if program is not None and program.agent is agent:
                program.heard(payload)

        agent.connection.send(TO_AGENT, arrive)
        return True

    def _said(self, agent: SimulatedAgent, task: Task, data: bytes) -> None:
        """Take a frame from a process, if the service has such a one there."""
        record = self._service.state.jobs.get(task.job)  # type: ignore[call-overload]
        if record is None or task.rank >= len(record.ranks) or record.ranks[task.rank].placeholder != agent.id:
            return
        runner = self.adaptive(record)
        if runner is not None:
            self._service.effector.sized.said(record, task.rank, data)

    # ---- processes ------------------------------------------------------------------------------------------------

    def start(self, agent: SimulatedAgent, task: Task, record: JobRecord) -> None:
        """Begin the program of a process that an agent has started."""
        service, job = self._service, record.job
        of_job = random.Random(f"program/{service.faults.seed}/{job.id}")
        pace = of_job.uniform(*STEP_LASTS)
        of_process = random.Random(f"process/{service.faults.seed}/{job.id}/{task.rank}")
        seconds, _ = service.runs[job.id]
        component = record.ranks[task.rank].component

        def say(data: bytes) -> None:
            agent.say(lambda: service.receive(lambda: self._said(agent, task, data)))

        self.programs[task.job, task.rank] = Program(
            agent=agent,
            task=task,
            chance=of_process,
            traits=Traits() if self.calm else Traits.drawn(of_process),
            points=int(seconds / pace) + 1,
            pace=pace,
            most_wished=self.most_wished,
            sizes=of_job.choice([job.component(component).sizes, "function"]),
            say=say,
            changed=lambda process: self._changed(task, component, process),
        )

    def _changed(self, task: Task, component: str, process: Process) -> None:
        """Check that whoever takes part in a change does so at the same point, with the same members."""
        change = process.change
        if change is None:
            return
        which = (task.job, component, change.number)
        told = (change.at, tuple(one.rank for one in change.old), tuple(one.rank for one in change.members))
        self.adapted.setdefault(which, set()).add(told)
        assert len(self.adapted[which]) == 1, f"{which}: processes are told different changes {self.adapted[which]}"
        done = self.carried_out.setdefault(which, set())
        assert task.rank not in done, f"{which}: process {task.rank} changes twice"
        done.add(task.rank)
        known = self.members.get((task.job, task.rank), told[1])
        assert told[1] == known, f"{which}: process {task.rank} computes with {known}, and is told {told[1]}"
        self.members[task.job, task.rank] = told[2]
        for rank in told[1]:
            if rank == task.rank or rank in done:
                continue
            other = self.programs.get((task.job, rank))
            if other is not None and other.alive:
                assert other.process.state in {"waiting", "changing", "done"}, f"{which}: {rank} does not stand there"
                assert other.process.at == change.at, f"{which}: {rank} stands elsewhere"
