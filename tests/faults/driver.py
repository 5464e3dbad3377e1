# SPDX-License-Identifier: Apache-2.0
"""A service in the simulated world: the loop and the judges of the real one, with polls, agents and ways to fail.

It can be killed at any moment, at each write of its journal among them, and started again; it can be stopped for a
while; its scheduler can have defects.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from koala_adapter.driver.loop import EventLoop
from koala_adapter.driver.store import doubts, rebuilt, tellers
from koala_adapter.lrm.listing import count_slots, possibly_ours, processors_wanted
from koala_adapter.model import EndReason, JobId, PlaceholderId, TaskEnd
from koala_adapter.outcome import PlaceholderState, TaskUsage
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.knownpolicies import OWN
from koala_adapter.service.listings import ListingJudge, processors_held
from tests.faults.effector import SimulatedEffector
from tests.faults.faults import FaultyStore, Killed
from tests.faults.lrm import TO_CENTER, Connection, SimulatedAgent, Task
from tests.unit.driver.standins import Defects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from koala_adapter.errors import KoalaError
    from koala_adapter.model import ClusterName, Job, LrmJob
    from koala_adapter.outcome import JobOutcome
    from koala_adapter.scheduler import actions as act
    from koala_adapter.scheduler.knownpolicies import Policies
    from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
    from koala_adapter.scheduler.records import State
    from koala_adapter.slots import Slot, SlotCount
    from tests.faults.faults import Faults
    from tests.faults.lrm import Clock, SimulatedLrm

POLL_INTERVAL = 15.0
SNAPSHOT_INTERVAL = 90
"""Events between two snapshots: some in each schedule."""
USED = TaskUsage(user_seconds=1.0, system_seconds=0.5, memory_bytes=2**20, read_bytes=1, written_bytes=2)
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
    | ev.LessRequested
    | ev.PointReached
    | ev.ChangeMade
    | ev.ChangeGivenUp
)
"""Events that may be told twice."""


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
        policies: Policies = OWN,
    ) -> None:
        """``runs``: for each job how long its ranks run and how they end (50 s and well unless told)."""
        self.clock = clock
        self.offset = 0.0
        """Seconds by which the service's clock is ahead of the world's."""
        self.lrms = lrms
        self.faults = faults
        self.parameters = parameters
        self.site = clusters
        self.user = user
        self.runs = dict(runs or {})
        self.store = FaultyStore(faults.strikes)
        self.defects = Defects(
            before=faults.fails_before, within=faults.fails_within, after=faults.fails_after, policies=policies
        )
        self.outcomes: dict[JobId, list[JobOutcome]] = {}
        self.taken: list[act.TakeProcessors] = []
        self.process_starts: dict[tuple[str, int, int], int] = {}
        """How often each rank of each attempt of a job was started."""
        self.process_ends: dict[tuple[str, int], TaskEnd] = {}
        """How processes ended, whether anybody heard of it or not."""
        self.connected: dict[PlaceholderId, SimulatedAgent] = {}
        self.judges: dict[ClusterName, ListingJudge] = {}
        self._lied: set[ClusterName] = set()
        """Clusters whose last listing was false."""
        self._inbox: list[ev.Event | Callable[[], None]] = []
        self.disturbed_at = clock.now
        """When something happened to it last, beside what happens to its clusters and agents."""
        self._stalled_until = 0.0
        self.effector = SimulatedEffector(self)
        self.up = False
        self.life = 0
        """Which process of the service this is; what an earlier one had under way is lost with it."""
        self.rebuilt_often = 0
        self._disconnecting = False
        """Connections are being broken by us."""
        self._loop = self._new_loop()
        self._begin()

    @property
    def now(self) -> float:
        """The time by the service's clock."""
        return self.clock.now + self.offset

    @property
    def prefix(self) -> str:
        """How the names of our LRM jobs begin."""
        return f"koala-{self.parameters.instance}-"

    @property
    def state(self) -> State:
        return self._loop.scheduler.state

    @property
    def journal(self) -> list[ev.Event]:
        """All events, those that were set aside among them."""
        return self.store.events

    @property
    def sound(self) -> bool:
        """Tell whether its state is whole: it lives, and no event waits."""
        return self.up and not self._loop.holding

    @property
    def at_work(self) -> bool:
        """Tell whether it answers: also while a snapshot is being written."""
        return self.up and not self._loop.trouble and self.clock.now >= self._stalled_until

    # ---- life ----------------------------------------------------------------------------------------------------

    def _new_loop(self) -> EventLoop:
        return EventLoop(
            rebuilt(self.store, self.defects.make),
            self.store,
            self.effector,
            self,
            make=self.defects.make,
            snapshot_interval=SNAPSHOT_INTERVAL,
        )

    def _begin(self) -> None:
        self.up = True
        self._disturb(self.clock.now)
        self.connected = {}
        self.judges = {name: ListingJudge(name, user=self.user, begun_at=self.now) for name in self.lrms}
        self._inbox = []
        self._wakeup: float | None = None
        self.effector.sized.renew()
        for id_, record in self.state.jobs.items():
            if record.outcome is not None and id_ not in self.outcomes:  # as the archive does
                self.outcomes[id_] = [record.outcome]
        self.post(ev.Configured(time=self.now, parameters=self.parameters, clusters=self.site))
        self._doubt("restarted")
        self.effector.resume()
        for name in self.lrms:
            self.later(0.0, partial(self._poll, name))

    def _doubt(self, why: str, in_contact: Callable[[PlaceholderId], bool] = lambda _: False) -> None:
        under_way = {key for judge in self.judges.values() for key in judge.under_way}
        for event in doubts(self.state, now=self.now, why=why, under_way=under_way, in_contact=in_contact):
            self.post(event)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do something after a while, if this process of the service still lives; when it goes on, if it is stopped."""
        life = self.life

        def act() -> None:
            if not self.up or self.life != life:
                return
            if self.clock.now < self._stalled_until:
                self.clock.at(self._stalled_until, act)
            else:
                action()

        self.clock.after(delay, act)

    def crash(self) -> None:
        self.up = False
        self.life += 1
        for agent in list(self.connected.values()):
            agent.break_connection()

    def restart(self) -> None:
        """Come back from the journal: the replayed state is the one that was lost, also from the beginning."""
        if not self.up:
            self._guarded(self._come_back)

    def _come_back(self) -> None:
        lost, self._loop = self.state, self._new_loop()
        if not self.store.killed_within:
            assert self.state == lost, "a replay from the snapshot differs"
        snapshots, self.store.snapshots = self.store.snapshots, []
        assert rebuilt(self.store, self.defects.make).state == self.state, "a replay from the beginning differs"
        self.store.snapshots = snapshots
        self.store.killed_within = self.store.full = False
        self._stalled_until = 0.0
        self._begin()

    def reboot(self, seconds: float) -> None:
        """Come back with a time of day that was set meanwhile; the service clock never goes back."""
        if not self.up:
            latest = self._loop.scheduler.state.now or 0.0
            self.offset = max(self.offset + seconds, latest - self.clock.now)
        self.restart()

    def stall(self, seconds: float) -> None:
        """Do nothing for a while; agents that hear nothing for long take the connection for broken."""
        self._stalled_until = max(self._stalled_until, self.clock.now + seconds)
        self._disturb(self._stalled_until)
        self.later(0.0, self._catch_up)
        if seconds > self.parameters.lease / 2:
            for agent in list(self.connected.values()):
                self.clock.after(self.parameters.lease / 2, agent.break_connection)

    def _disturb(self, until: float) -> None:
        self.disturbed_at = max(self.disturbed_at, until)

    def _catch_up(self) -> None:
        arrived, self._inbox = self._inbox, []
        for one in arrived:
            if isinstance(one, ev.Event):
                self.post(replace(one, time=self.now))
            else:
                self._guarded(one)

    def fill_journal(self, seconds: float) -> None:
        self.store.full = True
        self._disturb(self.clock.now + seconds)

        def make_room() -> None:
            self.store.full = False
            self._guarded(self._loop.try_again)

        self.later(seconds, make_room)

    # ---- events ----------------------------------------------------------------------------------------------------

    def post(self, event: ev.Event) -> None:
        """Have an event handled and the actions done; some events are told twice."""
        self._post_once(event)
        if isinstance(event, REPEATABLE) and self.faults.hit(self.faults.duplicate):
            self._post_once(replace(event))

    def _post_once(self, event: ev.Event) -> None:
        if not self.up:
            return
        if self.clock.now < self._stalled_until:
            self._inbox.append(event)
            return
        if not isinstance(event, ev.RankMeasured):  # by which nothing is decided: known seeds keep their schedules
            self.faults.doom(event)
        self._guarded(lambda: self._loop.post(event))

    def receive(self, arrive: Callable[[], None]) -> None:
        """Take in what comes on a connection and is no event by itself."""
        if not self.up:
            return
        if self.clock.now < self._stalled_until:
            self._inbox.append(arrive)
        else:
            self._guarded(arrive)

    def enter(self, event: ev.Event) -> None:
        """Take in what a user wants. Raises JournalBlockedError, JobRefusedError, DefectError."""
        self.faults.doom(event)
        self._guarded(lambda: self._loop.enter(event))

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Killed:
            self.crash()
            self.clock.after(self.faults.chance.uniform(0.0, 60.0), self.restart)

    def handled(self, event: ev.Event) -> None:
        if isinstance(event, ev.PlaceholderEnded) and event.placeholder in self.connected:
            agent = self.connected[event.placeholder]
            if agent.connection is not None:
                agent.connection.send(0, agent.finish)
        self.effector.sized.handled(self._loop.scheduler.touched(event))

    def settled(self) -> None:
        wakeup = None if self._loop.holding else self._loop.scheduler.next_wakeup
        if wakeup is not None and (self._wakeup is None or wakeup < self._wakeup):
            self._wakeup = wakeup
            self.later(max(0.0, wakeup - self.now), self._wake)

    def _wake(self) -> None:
        self._wakeup = None
        self.post(ev.TimeReached(time=self.now))

    def halted(self) -> None:
        assert self.store.full

    def snapshot_begun(self) -> None:
        """See LoopOwner: other things happen between two groups of it."""
        self.later(self.faults.chance.uniform(0.0, 0.5), self._write_snapshot_group)

    def _write_snapshot_group(self) -> None:
        self._guarded(self._loop.write_snapshot_group)
        if self.up and self._loop.in_snapshot:
            self.snapshot_begun()

    def state_rebuilt(self, set_aside: Sequence[ev.Event]) -> None:
        """See LoopOwner: as the service does."""
        self.rebuilt_often += 1
        self.effector.transfers.remove_reservations()
        self._disturb(self.clock.now)
        asked = tellers(self.state, set_aside[0]) if len(set_aside) == 1 else list(self.connected)
        self._disconnecting = True
        for id_ in asked:
            if id_ in self.connected:
                self.connected[id_].break_connection()
        self._disconnecting = False
        self._doubt("an event was set aside", in_contact=lambda id_: id_ in self.connected)
        self.effector.sized.handled(self.state.jobs)

    def failed(self, error: KoalaError) -> None:
        raise AssertionError(error)

    # ---- agents ----------------------------------------------------------------------------------------------------

    def dialled(self, agent: SimulatedAgent) -> Connection | None:
        """Take an agent in, if it is one of ours; bring it and ourselves up to date."""
        if not self.at_work:
            return None
        if agent.id not in self.state.placeholders:
            self.clock.after(0.0, agent.finish)
            return None
        connection = Connection(self.clock, self.faults.delay)
        self.connected[agent.id] = agent
        self.clock.after(0.0, lambda: self._registered(agent) if connection.open else None)
        return connection

    def _registered(self, agent: SimulatedAgent) -> None:
        self.post(
            ev.PlaceholderHeld(
                time=self.now,
                placeholder=agent.id,
                host=agent.element.node,
                address=agent.element.node,
                ends_at=self.now + agent.ends_in,
            )
        )
        for task in list(agent.tasks.values()):
            self.heard(agent.id, task)
        self.effector.start_in(agent.id)
        self.effector.sized.registered(agent.id)

    def hung_up(self, agent: SimulatedAgent) -> None:
        self.connected.pop(agent.id, None)
        placeholder = self.state.placeholders.get(agent.id)
        if not self.up or placeholder is None:
            return
        self.effector.sized.disconnected(agent.id)
        if placeholder.state is PlaceholderState.ENDING:
            if not agent.alive and not self._disconnecting:
                self.judges[placeholder.cluster].disconnected.add(agent.id)
        else:
            self.post(ev.PlaceholderSilent(time=self.now, placeholder=agent.id, detail="connection reset"))

    def warned(self, agent: SimulatedAgent, reason: EndReason) -> None:
        """Hear from an agent that it is about to be ended."""
        ending = ev.PlaceholderEnding(time=self.now, placeholder=agent.id, reason=reason, detail="SIGTERM")
        if agent.connection is not None:
            agent.connection.send(TO_CENTER, lambda: self.post(replace(ending, time=self.now)))

    def heard(self, placeholder: PlaceholderId, task: Task) -> None:
        """Hear from an agent of one of its processes."""
        record = self.state.jobs.get(JobId(task.job)) if self.up else None
        if record is not None and task.rank < len(record.ranks) and record.ranks[task.rank].placeholder == placeholder:
            self.post(ev.RankStarted(time=self.now, job_id=JobId(task.job), rank=task.rank))
            if task.end is not None:
                self.post(ev.RankMeasured(time=self.now, job_id=JobId(task.job), rank=task.rank, usage=USED))
                self.post(ev.RankEnded(time=self.now, job_id=JobId(task.job), rank=task.rank, end=task.end))

    # ---- polling ---------------------------------------------------------------------------------------------------

    def _poll(self, name: ClusterName) -> None:
        self.later(POLL_INTERVAL, partial(self._poll, name))
        lrm = self.lrms[name]
        if not lrm.up:
            if not self._loop.holding and (event := self.judges[name].failed(self.state, "no answer", now=self.now)):
                self.post(event)
            return
        listing = possibly_ours(lrm.listing(self.prefix), user=self.user, name_prefix=self.prefix)
        others = self._others_waiting(name)
        counts = (lrm.processors, lrm.idle)
        lies = name not in self._lied and self.faults.hit(self.faults.lie)
        if lies:
            self._lied.add(name)  # for one poll: what two in a row say is believed
            kind = self.faults.chance.randrange(3)
            listing = () if kind != 0 else listing
            counts = (0, 0) if kind != 1 else counts
        shapes = self._loop.scheduler.shapes_on(name)
        polled = ev.ClusterPolled(
            time=self.now,
            cluster=name,
            processors=counts[0],
            idle=counts[1],
            ours=processors_held(listing),
            others_waiting=others,
            slots=self._count(name, shapes),
        )
        self.later(self.faults.chance.uniform(0.1, 2.0), lambda: self._read(polled, listing, lies=lies))

    def _count(self, name: ClusterName, shapes: Iterable[Slot]) -> tuple[SlotCount, ...]:
        nodes = self.lrms[name].described_nodes
        return tuple(count_slots(nodes, shape, queue=None) for shape in shapes)

    def count_slots(self, job: Job) -> None:
        """Count the slots of other shapes that a new job needs, as a service does before it takes it."""
        for name in [name for name in self.lrms if name in self.state.clusters]:
            known = {count.slot for count in self.state.clusters[name].slots}
            new = [shape for shape in job.shapes_on(name) if shape not in known]
            if new:
                self.enter(ev.SlotsCounted(time=self.now, cluster=name, slots=self._count(name, new)))

    def _others_waiting(self, name: ClusterName) -> tuple[int, ...]:
        if not self._loop.scheduler.shrinks_for_others(name):
            return ()
        ours = {job.id for job in possibly_ours(self.lrms[name].listing(""), user=self.user, name_prefix=self.prefix)}
        foreign = (job for job in self.lrms[name].listing("") if job.id not in ours)
        return processors_wanted(foreign, self.lrms[name].described_nodes, time_of_day=self.clock.now)

    def _read(self, polled: ev.ClusterPolled, listing: tuple[LrmJob, ...], *, lies: bool) -> None:
        if self._loop.holding:
            return
        name = polled.cluster
        if not lies:  # only now: a true listing that is not looked at comes between no two false ones
            self._lied.discard(name)
        judgement = self.judges[name].judge(
            self.state,
            replace(polled, time=self.now),
            listing,
            read_at=polled.time,
            in_contact=lambda id_: id_ in self.connected,
        )
        for event in judgement.events:
            self.post(event)
        for event in judgement.lost:  # once accounting has been asked, which knows nothing here
            self.later(self.faults.delay(), partial(self._lost, event))
        self.effector.cancel(name, [*judgement.cancel_again, *judgement.orphans])

    def _lost(self, event: ev.PlaceholderEnded) -> None:
        self.post(event)
