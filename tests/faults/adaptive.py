# SPDX-License-Identifier: Apache-2.0
"""Adaptive applications in the simulated world: the code of the service for them, and their simulated processes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from koala_adapter.application.bargains import Bargains
from koala_adapter.application.notes import KoalaAppError, note_payload, one_line, parse_note
from koala_adapter.application.process import Process
from koala_adapter.application.sizes import size_rule
from koala_adapter.model import EndReason, TaskEnd
from koala_adapter.negotiation import HEADER_SIZE, NegotiationError, frame
from koala_adapter.outcome import LAUNCHED_STATES
from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.workers import KILL
from koala_adapter.vjm.channel import Application
from tests.faults.applications import application_of
from tests.faults.lrm import TO_AGENT
from tests.unit.service.standins import Center

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from koala_adapter.application.bargains import Key
    from koala_adapter.model import JobId, PlaceholderId
    from koala_adapter.scheduler.records import JobRecord
    from koala_adapter.vjm.channel import CenterMessage
    from tests.faults.driver import SimulatedService
    from tests.faults.lrm import SimulatedAgent, Task


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
        self._runners.pop(job_id, None)

    # ---- agents ---------------------------------------------------------------------------------------------------

    def known(self, record: JobRecord) -> AdaptiveRunner | None:
        """Return the runner of a job that was looked at before."""
        return self._runners.get(record.job.id)

    def tell(self, placeholder: PlaceholderId, message: CenterMessage) -> bool:
        """Send a frame to the process of a task. False when its agent is not connected."""
        assert isinstance(message, Application)
        task, data = message.task, message.data
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


# -- Processes: the states and negotiations of the application library itself, and what they do that they should not.


WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
DEATHS = (TaskEnd(reason=EndReason.EXITED, exit_code=3), TaskEnd(reason=EndReason.SIGNALLED, signal=KILL))
NONSENSE = (b"dance change=1", b"armed change=1 at=-3", b"\xff\xfe", b"<NT/>", b"done change=999", b"leaving please")


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a process does that it should not."""

    dies_after: float = inf
    """Seconds; how it ends then is drawn, too."""
    joins: bool = True
    """It speaks with koala at all."""
    stuck: tuple[float, float] = (inf, inf)
    """Between these seconds of its life it reaches no point."""
    answers: bool = True
    """It answers templates."""
    finishes: bool = True
    """It says of a change that it is done."""
    leaves: bool = True
    """It ends when it was taken out."""
    nonsense: float = 0.0
    """Chance of saying something that is no message, at each point."""
    wishes: float = 0.05
    """Chance of asking for more, or giving some back, at each point."""

    @classmethod
    def drawn(cls, chance: random.Random) -> Traits:
        """Return those of a process of a world in which things go wrong."""

        def rarely(share: float) -> bool:
            return chance.random() < share

        begins = chance.uniform(1.0, 250.0)
        return cls(
            dies_after=chance.uniform(1.0, 300.0) if rarely(0.04) else inf,
            joins=not rarely(0.03),
            stuck=(begins, begins + chance.choice([40.0, 150.0, inf])) if rarely(0.05) else (inf, inf),
            answers=not rarely(0.06),
            finishes=not rarely(0.02),
            leaves=not rarely(0.1),
            nonsense=0.05 if rarely(0.05) else 0.0,
            wishes=chance.choice([0.0, 0.02, 0.1]),
        )


@dataclass
class Program:
    """One process, from its start to its end."""

    agent: SimulatedAgent
    task: Task
    chance: random.Random
    traits: Traits
    points: int
    """So many and it ends."""
    pace: float
    """Seconds between two points, about."""
    most_wished: int
    """Processors that it asks for, or gives back, at once."""
    sizes: str
    say: Callable[[bytes], None]
    """Have a frame go to koala."""
    changed: Callable[[Process], None]
    """Take in the announcement of a change in which this process takes part."""
    process: Process = field(init=False)
    bargains: Bargains = field(init=False)
    _asked: Key | None = None
    """What a call waits for the answer to."""
    _look: float = inf

    def __post_init__(self) -> None:
        """Join, or not."""
        clock = self.agent.clock
        self._begun = clock.now
        self.process = Process(self.task.rank, f"port {self.task.rank}", self.sizes, 1000 + self.task.rank)
        self.bargains = Bargains(size_rule(self._function if self.sizes == "function" else self.sizes), "node")
        if self.traits.dies_after < inf:
            clock.after(self.traits.dies_after, lambda: self.end(self.chance.choice(DEATHS)))
        if self.traits.joins:
            self._say(self.process.connected())
            self.agent.at_break.append(lambda: self.heard(b"away"))
        self._later(self.pace)

    def _function(self, size: int, offered: int) -> int:
        """Want any size; now and then fail, or want what was not offered."""
        if self.chance.random() < 0.1:
            raise RuntimeError("no idea")
        return size + self.chance.choice([0, offered, offered, offered // 2, 2 * offered])

    @property
    def alive(self) -> bool:
        return self.agent.alive and self.task.end is None and self.agent.tasks.get(self.task.rank) is self.task

    def end(self, how: TaskEnd) -> None:
        """Exit, or be killed, if that has not happened."""
        if self.alive:
            self.agent.end_task(self.task, how)

    # ---- with koala, as the library's session does ----------------------------------------------------------------

    def heard(self, payload: bytes) -> None:
        if not self.alive or not self.traits.joins:
            return
        before, state = self.process.change, self.process.state
        try:
            if payload.startswith(b"<"):
                if self.traits.answers:
                    self.bargains.receive(payload, self.agent.clock.now)
            else:
                note = parse_note(payload)
                self._say(self.process.heard(note))
                if note.verb == "who":
                    self.bargains.resumed()
        except (KoalaAppError, NegotiationError) as error:
            self._complain(f"what koala has said cannot be followed: {error}")
        if before is not None and self.process.change is None:
            self.bargains.changed(before)
        if self.process.change is None:
            self.bargains.members_are(max(1, len(self.process.members)), self.process.bounds)
        elif before is None:
            self.changed(self.process)
        if state in {"new", "waiting", "done"} and self.process.state not in {"new", "waiting", "done"}:
            self._later(self.pace)  # the call that has waited returns
        self._negotiate()

    def _say(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.say(frame(payload))

    def _complain(self, text: str) -> None:
        self._say([note_payload("error", text=one_line(text))])

    def _negotiate(self) -> None:
        self.bargains.time_passed(self.agent.clock.now)
        for text in self.bargains.complaints:
            self._complain(text)
        del self.bargains.complaints[:]
        self._say(self.bargains.take_payloads())
        due = self.bargains.next_deadline()
        if due is not None and due < self._look:
            self._look = due
            self.agent.clock.at(due, self._time_passed)

    def _time_passed(self) -> None:
        self._look = inf
        if self.alive and self.traits.joins:
            self._negotiate()

    # ---- what the program does ------------------------------------------------------------------------------------

    def _later(self, seconds: float) -> None:
        self.agent.clock.after(seconds * self.chance.uniform(0.5, 1.5), self._go_on)

    def _go_on(self) -> None:
        """Do the next thing, unless a call of the library waits: its return goes on with this."""
        if not self.alive or self._stuck_now() or self._waits_for_answer():
            return
        match self.process.state:
            case "new" | "waiting" | "done":
                return
            case "changing":
                if self.traits.finishes:
                    self._say(self.process.finish())
                return
            case "left":
                self._leave()
                return
        if self.process.reached >= self.points:
            self.end(WELL)
            return
        self._reach()
        if self.process.state != "waiting":
            self._wish()
            self._later(self.pace)

    def _stuck_now(self) -> bool:
        begins, ends = self.traits.stuck
        age = self.agent.clock.now - self._begun
        if not begins <= age < ends:
            return False
        if ends < inf:
            self.agent.clock.at(self._begun + ends + 1.0, self._go_on)
        return True

    def _reach(self) -> None:
        if self.chance.random() < self.traits.nonsense:
            self._say([self.chance.choice(NONSENSE)])
        self.process.reached += 1
        if self.process.attention:
            self._say(self.process.stand())

    def _leave(self) -> None:
        if self.traits.leaves:
            self._say(self.process.leave())
            self.agent.clock.after(0.1, lambda: self.end(WELL))

    def _wish(self) -> None:
        if self.chance.random() >= self.traits.wishes:
            return
        direction, mandatory = self.chance.choice(["grow", "grow", "shrink"]), self.chance.random() < 0.5
        try:
            self.process.check_asking()
            self._asked = self.bargains.ask(
                direction,
                self.chance.randint(1, self.most_wished),
                self.process.own_number,
                self.agent.clock.now,
                mandatory=mandatory and direction == "grow",
            )
        except KoalaAppError as error:
            self._complain(str(error))
        self._negotiate()

    def _waits_for_answer(self) -> bool:
        """Tell whether the call that asks for another size has not returned; look again after a while."""
        if self._asked is None:
            return False
        if self.bargains.answer(self._asked) is None:
            self.agent.clock.after(1.0, self._go_on)
            return True
        self._asked = None
        return False
