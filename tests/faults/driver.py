# SPDX-License-Identifier: Apache-2.0
"""Drives the scheduler against the simulated world as the service drives it against the real one.

It keeps the journal, does the actions, polls, looks for submissions of unknown outcome with the very same witness as
the service (``koala_adapter.service.reconciliation``), and can be killed and started again at any moment.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.model import EndReason, JobId, LrmJob, PlaceholderId, TaskEnd
from koala_adapter.plugin.attribution import possibly_ours
from koala_adapter.scheduler import Scheduler
from koala_adapter.scheduler import actions as act
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.outcome import LAUNCHED_STATES, PlaceholderState
from koala_adapter.service.reconciliation import Witness, processors_held
from tests.faults.agents import TO_AGENT, TO_CENTER, Connection, SimulatedAgent, Task
from tests.faults.applications import Applications
from tests.faults.faults import SubmissionFate
from tests.unit.scheduler.scheduler_site import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koala_adapter.model import BatchKey, ClusterName
    from koala_adapter.scheduler.outcome import JobOutcome
    from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
    from koala_adapter.scheduler.records import BatchRecord, State
    from tests.faults.clock import Clock
    from tests.faults.faults import Faults
    from tests.faults.lrm import Element, SimulatedLrm

POLL_INTERVAL = 15.0
SETTLE = 45.0
"""Seconds after which a submission cannot arrive any more."""
REPEATABLE = (
    ev.BatchSubmitted
    | ev.BatchRejected
    | ev.BatchUncertain
    | ev.BatchAbsent
    | ev.ClusterPolled
    | ev.PlaceholderStarted
    | ev.PlaceholderHeld
    | ev.PlaceholderEnded
    | ev.PlaceholderEnding
    | ev.RankStarted
    | ev.RankEnded
    | ev.OfferAnswered
    | ev.ProcessorsReleased
    | ev.MoreRequested
)
"""Events that may be told twice."""


STRANGER = "mallory"
UNUSED = 100_000
"""Submissions of so high a number are none of ours, although their names look so."""


class SimulatedService:
    """One user's service."""

    def __init__(
        self,
        clock: Clock,
        lrms: Mapping[ClusterName, SimulatedLrm],
        faults: Faults,
        parameters: Parameters,
        clusters: tuple[ClusterParameters, ...],
        *,
        user: str = "alice",
        runs: Mapping[str, tuple[float, TaskEnd]] | None = None,
    ) -> None:
        """``runs``: for each job how long its ranks run and how they end (50 s and well unless told)."""
        self.clock = clock
        self.lrms = lrms
        self.faults = faults
        self.parameters = parameters
        self.site = clusters
        self.user = user
        self.runs = dict(runs or {})
        self.scheduler = Scheduler()
        self.journal: list[ev.Event] = []
        self.snapshot: tuple[int, State] = (0, copied(self.scheduler.state))
        self.outcomes: dict[JobId, list[JobOutcome]] = {}
        self.launched: list[act.LaunchJob] = []
        self.taken: list[act.TakeProcessors] = []
        self.process_starts: dict[tuple[str, int], int] = {}
        self.keys: set[str] = set()
        self.lied: set[ClusterName] = set()
        """Clusters whose last listing was false."""
        self._agents: dict[str, SimulatedAgent] = {}
        self.applications = Applications(self)
        self.up = True
        self.life = 0
        """Which process of the service this is; what an earlier one had under way is lost with it."""
        self._begin()

    @property
    def prefix(self) -> str:
        """How the names of our LRM jobs begin."""
        return f"koala-{self.parameters.instance}-"

    @property
    def state(self) -> State:
        """What the scheduler knows."""
        return self.scheduler.state

    # ---- life ----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.connected: dict[PlaceholderId, SimulatedAgent] = {}
        self.under_way: set[BatchKey] = set()
        self.witnesses = {name: Witness(cluster=name, user=self.user) for name in self.lrms}
        self.looked: dict[BatchKey, int] = {}
        self.polled: dict[ClusterName, tuple[int, int, int]] = {}
        self.began_at = self.clock.now
        self._wakeup: float | None = None
        self.post(ev.Configured(time=self.clock.now, parameters=self.parameters, clusters=self.site))
        for batch in list(self.state.batches.values()):
            if batch.lrm_ids is None:
                self.post(ev.BatchUncertain(time=self.clock.now, batch=batch.key, reason="restarted"))
        for placeholder in list(self.state.placeholders.values()):
            if placeholder.host and placeholder.state is not PlaceholderState.ENDING:
                self.post(ev.PlaceholderSilent(time=self.clock.now, placeholder=placeholder.id, detail="restarted"))
        for name in self.lrms:
            self.later(0.0, partial(self._poll, name))

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do something after a while, if this process of the service still lives."""
        life = self.life
        self.clock.after(delay, lambda: action() if self.up and self.life == life else None)

    def crash(self) -> None:
        """End at once, with everything under way."""
        self.up = False
        for agent in list(self.connected.values()):
            agent.break_connection()

    def restart(self) -> None:
        """Come back from the journal: the replayed state is the one that was lost, also from the snapshot."""
        lost = self.scheduler.state
        number, state = self.snapshot
        self.scheduler = replayed(Scheduler(copied(state)), self.journal[number:])
        assert self.scheduler.state == lost, "a replay from the snapshot differs"
        assert replayed(Scheduler(), self.journal).state == lost, "a replay from the beginning differs"
        self.up = True
        self.life += 1
        self._begin()

    # ---- events and actions ----------------------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Journal an event, have it handled and the actions done; some events are told twice."""
        self._post_once(event)
        if isinstance(event, REPEATABLE) and self.faults.hit(self.faults.duplicate):
            self._post_once(event)

    def _post_once(self, event: ev.Event) -> None:
        self.journal.append(event)
        actions = self.scheduler.handle(event)
        if self.faults.hit(0.01):
            self.snapshot = (len(self.journal), copied(self.state))
        for action in actions:
            self._act(action)
        wakeup = self.scheduler.next_wakeup
        if wakeup is not None and (self._wakeup is None or wakeup < self._wakeup):
            self._wakeup = wakeup
            self.later(max(0.0, wakeup - self.clock.now), self._wake)

    def _wake(self) -> None:
        self._wakeup = None
        self.post(ev.TimeReached(time=self.clock.now))

    def _act(self, action: act.Action) -> None:
        match action:
            case act.SubmitPlaceholders():
                assert action.batch not in self.keys, "a submission is repeated under the same key"
                self.keys.add(action.batch)
                self._submit(action)
            case act.EndPlaceholders():
                self._end(action)
            case act.LaunchJob():
                self._check_launch(action)
                self.launched.append(action)
                for rank in action.ranks:
                    self._launch(rank.placeholder)
            case act.TakeProcessors():
                self._check_taken(action)
                for rank in action.ranks:
                    self._launch(rank.placeholder)
            case act.OfferProcessors() | act.RequestProcessors():
                self.applications.told(action)
            case act.JobFinished():
                self.outcomes.setdefault(action.job_id, []).append(action.outcome)

    def _check_launch(self, action: act.LaunchJob) -> None:
        record = self.state.jobs[action.job_id]
        sizes = {claim.component: 0 for claim in record.claims}
        for rank in action.ranks:
            sizes[rank.component] += 1
            placeholder = self.state.placeholders[rank.placeholder]
            assert placeholder.held_at is not None, "launched into a placeholder that was never held"
            assert placeholder.silent_since is None, "launched into a silent placeholder"
            assert placeholder.job_id == action.job_id, "launched into another job's placeholder"
        for component in record.job.components:
            assert component.minimum <= sizes[component.name] <= component.maximum, "launched on a wrong size"
        assert len({rank.placeholder for rank in action.ranks}) == len(action.ranks)

    def _check_taken(self, action: act.TakeProcessors) -> None:
        record = self.state.jobs[action.job_id]
        assert all(self.state.placeholders[rank.placeholder].held_at is not None for rank in action.ranks)
        assert all(self.state.placeholders[rank.placeholder].silent_since is None for rank in action.ranks)
        assert action.ranks == record.ranks[-len(action.ranks) :]
        self.taken.append(action)

    # ---- submissions -----------------------------------------------------------------------------------------------

    def _submit(self, action: act.SubmitPlaceholders) -> None:
        lrm, key = self.lrms[action.cluster], action.batch
        self.under_way.add(key)
        fate = self.faults.fate()

        def arrive() -> None:
            if not lrm.up:
                self.later(
                    0.0, lambda: self._answer(key, ev.BatchUncertain(time=self.clock.now, batch=key, reason="down"))
                )
                return
            ids = lrm.submit(
                key,
                action.count,
                walltime=action.walltime,
                user=self.user,
                on_start=lambda element: self._started(lrm, element),
                on_killed=lambda element: self._agents.pop(element.id).killed(),
            )
            if self.faults.imitated():
                for name in (key, f"{self.prefix}{UNUSED + len(lrm.submissions)}"):
                    lrm.imitate(name, action.count + 1, user=STRANGER)
            answer = ev.BatchSubmitted(time=self.clock.now, batch=key, lrm_ids=ids)
            if fate is SubmissionFate.TAKEN:
                self.later(self.faults.delay(), lambda: self._answer(key, answer))

        if fate is SubmissionFate.REFUSED:
            refusal = ev.BatchRejected(time=self.clock.now, batch=key, reason="refused")
            self.later(1.0, lambda: self._answer(key, refusal))
            return
        if fate is not SubmissionFate.TAKEN:
            doubt = ev.BatchUncertain(time=self.clock.now, batch=key, reason="no answer")
            self.later(30.0, lambda: self._answer(key, doubt))
        if fate is not SubmissionFate.UNKNOWN_OUT:
            # The command runs in a process of its own, so it may outlive the service.
            late = fate is SubmissionFate.UNKNOWN_LATE
            self.clock.after(self.faults.chance.uniform(30.0, 40.0) if late else 0.3, arrive)

    def _answer(self, key: BatchKey, event: ev.Event) -> None:
        self.under_way.discard(key)
        self.post(replace(event, time=self.clock.now))

    def _settled(self, batch: BatchRecord) -> bool:
        since = max(batch.submitted_at, self.began_at)
        if batch.key in self.under_way or self.clock.now <= since + SETTLE:
            return False
        self.looked[batch.key] = self.looked.get(batch.key, 0) + 1
        return self.looked[batch.key] > 1

    # ---- agents ----------------------------------------------------------------------------------------------------

    def _started(self, lrm: SimulatedLrm, element: Element) -> None:
        agent = SimulatedAgent(self.clock, lrm, element, self, lease=self.parameters.lease)
        agent.mute = self.faults.hit(self.faults.mute)
        self._agents[element.id] = agent

    def dialled(self, agent: SimulatedAgent) -> Connection | None:
        """Take an agent in, if it is one of ours; bring it and ourselves up to date."""
        if not self.up:
            return None
        if agent.id not in self.state.placeholders:
            self.clock.after(0.0, agent.finish)
            return None
        connection = Connection(self.clock, self.faults.delay)
        self.connected[agent.id] = agent
        self.clock.after(0.0, lambda: self._registered(agent) if connection.open else None)
        return connection

    def _registered(self, agent: SimulatedAgent) -> None:
        now = self.clock.now
        self.post(
            ev.PlaceholderHeld(
                time=now,
                placeholder=agent.id,
                host=agent.element.node,
                address=agent.element.node,
                ends_at=now + agent.ends_in,
            )
        )
        for task in list(agent.tasks.values()):
            self._heard(task)
        self._launch(agent.id)

    def hung_up(self, agent: SimulatedAgent) -> None:
        """Take note of a broken connection."""
        self.connected.pop(agent.id, None)
        placeholder = self.state.placeholders.get(agent.id)
        if not self.up or placeholder is None:
            return
        if placeholder.state is PlaceholderState.ENDING:
            self.witnesses[placeholder.cluster].farewells.add(agent.id)
        else:
            self.post(ev.PlaceholderSilent(time=self.clock.now, placeholder=agent.id, detail="connection reset"))

    def warned(self, agent: SimulatedAgent, reason: EndReason) -> None:
        """Hear from an agent that it is about to be ended."""
        ending = ev.PlaceholderEnding(time=self.clock.now, placeholder=agent.id, reason=reason, detail="SIGTERM")
        if agent.connection is not None:
            agent.connection.send(TO_CENTER, lambda: self.post(replace(ending, time=self.clock.now)))

    def _end(self, action: act.EndPlaceholders) -> None:
        to_cancel = []
        for placeholder, lrm_id in zip(action.placeholders, action.lrm_ids, strict=True):
            agent = self.connected.get(placeholder)
            if agent is not None and agent.connection is not None:
                agent.connection.send(TO_AGENT, agent.finish)
            if lrm_id and (action.force or agent is None):
                to_cancel.append(lrm_id)
        lrm = self.lrms[action.cluster]
        self.later(self.faults.delay(), lambda: lrm.cancel(to_cancel) if lrm.up else None)

    def _launch(self, id_: PlaceholderId) -> None:
        """Send an agent the task that it should have; it passes over what it knows."""
        agent, placeholder = self.connected.get(id_), self.state.placeholders.get(id_)
        if agent is None or agent.connection is None or placeholder is None:
            return
        record = self.state.jobs[placeholder.job_id]
        if placeholder.state is not PlaceholderState.LAUNCHED or record.state not in LAUNCHED_STATES:
            return
        rank = next(rank.rank for rank in record.ranks if rank.placeholder == id_)
        seconds, end = self.runs.get(record.job.id, (50.0, TaskEnd(reason=EndReason.EXITED, exit_code=0)))

        def tell(task: Task) -> None:
            if agent.connection is not None and self.up:
                agent.connection.send(TO_CENTER, lambda: self._heard(Task(task.job, task.rank, task.end)))

        def deliver() -> None:
            if agent.start(record.job.id, rank, seconds, end, tell):
                started = (record.job.id, rank)
                self.process_starts[started] = self.process_starts.get(started, 0) + 1

        agent.connection.send(TO_AGENT, deliver)

    def _heard(self, task: Task) -> None:
        if self.up:
            self.post(ev.RankStarted(time=self.clock.now, job_id=JobId(task.job), rank=task.rank))
            if task.end is not None:
                self.post(ev.RankEnded(time=self.clock.now, job_id=JobId(task.job), rank=task.rank, end=task.end))

    # ---- polling ---------------------------------------------------------------------------------------------------

    def _poll(self, name: ClusterName) -> None:
        self.later(POLL_INTERVAL, partial(self._poll, name))
        lrm = self.lrms[name]
        if not lrm.up:
            self.post(ev.ClusterUnavailable(time=self.clock.now, cluster=name, reason="no answer"))
            self.polled.pop(name, None)
            return
        listing = possibly_ours(lrm.listing(self.prefix), user=self.user, name_prefix=self.prefix)
        counts = (lrm.processors, lrm.idle)
        if name not in self.lied and self.faults.hit(self.faults.lie):
            self.lied.add(name)  # for one poll: what two in a row say is believed
            kind = self.faults.chance.randrange(3)
            listing = () if kind != 0 else listing
            counts = (0, 0) if kind != 1 else counts
        else:
            self.lied.discard(name)
        read_at = self.clock.now
        self.later(self.faults.chance.uniform(0.1, 2.0), lambda: self._read(name, listing, counts, read_at))

    def _read(self, name: ClusterName, listing: tuple[LrmJob, ...], counts: tuple[int, int], read_at: float) -> None:
        reading = (*counts, processors_held(listing))
        if self.polled.get(name) != reading:
            self.polled[name] = reading
            self.post(
                ev.ClusterPolled(
                    time=self.clock.now, cluster=name, processors=reading[0], idle=reading[1], ours=reading[2]
                )
            )
        findings = self.witnesses[name].examine(
            self.state,
            listing,
            read_at=read_at,
            now=self.clock.now,
            in_contact=lambda id_: id_ in self.connected,
            settled=self._settled,
        )
        for event in findings.events:
            self.post(event)
        if findings.orphans:
            self.lrms[name].cancel(findings.orphans)


def replayed(scheduler: Scheduler, journal: list[ev.Event]) -> Scheduler:
    """Return the scheduler after the events of a journal."""
    for event in journal:
        scheduler.handle(event)
    return scheduler
