# SPDX-License-Identifier: Apache-2.0
"""A world of clusters, local users, one service and its jobs, with what must hold after every single step."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.errors import DefectError, JobRefusedError, JournalBlockedError
from koala_adapter.model import Claiming, ClusterName, EndReason, JobId, JobKind, RunnerName, TaskEnd
from koala_adapter.outcome import JobState, PlaceholderState
from koala_adapter.scheduler import events as ev
from koala_adapter.scheduler.knownpolicies import OWN
from koala_adapter.scheduler.malleable.policies import MALLEABILITY_POLICIES
from koala_adapter.scheduler.parameters import Approach, ClusterParameters, Parameters
from koala_adapter.scheduler.placement.policies import PLACEMENT_POLICIES
from koala_adapter.scheduler.sizechange import ChangePhase
from koala_adapter.scheduler.timers import TimerKind
from koala_adapter.slots import Slot
from tests.faults.driver import SimulatedService
from tests.faults.effector import STRANGER
from tests.faults.faults import STRANGE, Faults, strange_policies
from tests.faults.files import Knowledge, with_files
from tests.faults.laws import AdaptiveLaws, WorkerLaws, adaptive_job, check_adaptive_outcome, check_outcome, of_workers
from tests.faults.lrm import Clock, Element, SimulatedLrm
from tests.unit.scheduler.scheduler_site import component, job, recount

if TYPE_CHECKING:
    from koala_adapter.model import Component, Job
    from koala_adapter.scheduler.records import JobRecord, State

FAULTY = 1500.0
"""Seconds for which things go wrong."""
QUIET = 6 * 3600.0
"""Seconds within which everything must be over after that."""
JOBS = 12
PARAMETERS = Parameters(
    instance="w",
    placeholder_life=120.0,
    backoff=20.0,
    longest_backoff=200.0,
    registration_timeout=60.0,
    pause=120.0,
    lease=90.0,
    guard_scans=10,
    least_time_to_grow=10.0,  # of the 400 seconds that most jobs have
)
WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)
ILL = TaskEnd(reason=EndReason.EXITED, exit_code=3)

SPREAD_WISH = 12
"""Processors that a process asks for at most where jobs are on several clusters."""


class World:
    """Everything of one schedule of faults."""

    def __init__(  # noqa: PLR0913 - as many as there are kinds of worlds
        self,
        seed: int,
        *,
        calm: bool = False,
        malleable: bool = False,
        crowded: bool = False,
        strange: bool = False,
        workers: bool = False,
        adaptive: bool = False,
        spread: bool = False,
        owned: bool = False,
        files: bool = False,
    ) -> None:
        """Build clusters, jobs, local load and faults from the seed; nothing goes wrong in a calm world.

        ``malleable``: most jobs grow and shrink, under an approach and a policy drawn from the seed. ``crowded``: many
        local users come and go, under PWA. ``strange``: the policies are the site's own, and answer anything.
        ``workers``: most malleable jobs are of a head and workers. ``adaptive``: most of them are of processes that
        change together; with both, some are the one and some the other. ``spread``: these are on all clusters, and
        grow by their own wishes alone, which are for more than one cluster has. ``owned``: jobs have the sizes that
        their owners want, who often want others, and many
        local users come and go. ``files``: many have large input files, which travel to some of the clusters.
        """
        self.seed = seed
        self._laws = WorkerLaws() if workers else None
        self._adaptive_laws = AdaptiveLaws() if adaptive else None
        self.malleable = malleable
        self.strange = strange
        self._busy = crowded or owned
        self.clock = Clock()
        self.faults = Faults(seed=seed) if calm else Faults.drawn(seed)
        self.chance = self.faults.chance
        self.lrms = {
            ClusterName(name): SimulatedLrm(
                self.clock,
                name,
                nodes=self.chance.randint(2, 4),
                per_node=self.chance.randint(1, 2) * (2 if malleable else 1),
                shows_ended=self.chance.random() < 0.5,
            )
            for name in "abc"[: self.chance.randint(2, 3)]
        }
        clusters = tuple(ClusterParameters(name=name, threshold=self.chance.randint(0, 1)) for name in self.lrms)
        if files:
            far = random.Random(f"{seed}:far")
            clusters = tuple(
                replace(
                    one,
                    stages=far.random() < 0.8,
                    bandwidth=far.choice([None, 0.5, 4.0]),
                    reserves=far.random() < 0.8,
                    claiming=far.choice(list(Claiming)),
                )
                for one in clusters
            )
        self._files = files
        self.capacity = {one.name: self.lrms[one.name].processors - one.threshold for one in clusters}
        parameters = PARAMETERS
        if malleable:
            parameters = replace(
                PARAMETERS,
                approach=self.chance.choice(
                    [Approach.NONE]
                    if spread or owned
                    else [Approach.PWA]
                    if crowded
                    else [Approach.NONE, Approach.PRA, Approach.PWA, Approach.PWA]
                ),
                malleability_policy=self.chance.choice(sorted(MALLEABILITY_POLICIES)),
                answer_timeout=30.0,
                release_timeout=90.0,
            )
        if strange:
            parameters = replace(parameters, malleability_policy=STRANGE)
        policies = strange_policies(seed) if strange else OWN
        self.service = SimulatedService(self.clock, self.lrms, self.faults, parameters, clusters, policies=policies)
        self.service.effector.adaptive.calm = calm
        self.service.effector.adaptive.most_wished = SPREAD_WISH if spread else 4
        self._spread = spread
        self.service.effector.applications.resized_by_owners = 0.7 if owned else 0.1
        self.cancelled: set[str] = set()
        self.handed_in: set[JobId] = set()
        """Jobs that were taken."""
        self._clean_at = self.clock.now + FAULTY
        """When the user has jobs cleaned away: no earlier, as what chance chooses from the jobs would change."""
        self._cleaned: dict[JobId, JobRecord] = {}
        """Records of jobs that the service was told to forget."""
        self._locals = 0
        self._checked = 0
        """Events after which the service was checked last."""
        self._submissions = dict.fromkeys(self.lrms, 0)
        """The same of each batch system."""
        self._plan(calm=calm)
        if files:
            Knowledge(self.service, settled_at=self.clock.now + FAULTY)

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _plan(self, *, calm: bool) -> None:
        end = self.clock.now + FAULTY
        for number in range(JOBS):
            self._during(lambda number=number: self._submit(number))
        for _ in range(self.chance.randint(*((60, 120) if self._busy else (0, 6)))):
            self._during(self._local_user)
        for _ in range(self.chance.randint(20, 80) if self.malleable else 0):
            self._during(self.service.effector.stir)
        trouble = [self._outage, self._node_fails, self._crash, self._kill_one, self._cut_one, self._cancel_one]
        trouble += [self._reboot, self._stall, self._fill_journal]
        for _ in range(0 if calm else self.chance.randint(2, 14)):
            self._during(self.chance.choice(trouble))
        self.clock.at(end, self.faults.stop)
        self.clock.at(self._clean_at, self._clean)

    def _during(self, action: object) -> None:
        self.clock.after(self.chance.uniform(1.0, FAULTY), action)  # type: ignore[arg-type]

    def _submit(self, number: int) -> None:
        if not self.service.at_work:
            self.clock.after(10.0, lambda: self._submit(number))
            return
        one = self._job(number)
        longest = 390.0 if self.malleable else 200.0
        self.service.runs[one.id] = (self.chance.uniform(1.0, longest), self.chance.choice([WELL, WELL, WELL, ILL]))
        self._hand_in(one)

    def _hand_in(self, one: Job) -> None:
        """Hand a job in, again and again until it is taken, as a user does who is told that it was not."""
        if self.service.at_work:
            # Refused: it was in the journal when the service was killed, so it is there already.
            with suppress(DefectError, JournalBlockedError, JobRefusedError):
                self.service.count_slots(one)
                self.service.enter(ev.JobSubmitted(time=self.service.now, job=one))
        if one.id in self.service.state.jobs:
            self.handed_in.add(one.id)
        else:
            self.clock.after(10.0, lambda: self._hand_in(one))

    def _job(self, number: int) -> Job:
        """Return a job that fits the site: components on different clusters, or small ones anywhere."""
        parts: list[Component] = []
        for name in self.chance.sample(list(self.lrms), self.chance.randint(1, len(self.lrms))):
            minimum = self.chance.randint(1, max(1, self.capacity[name]))
            maximum = minimum + self.chance.choice([0, 0, 3])
            pinned = name if self.chance.random() < 0.6 else None
            parts.append(component(f"on-{name}", minimum, maximum, cluster=pinned))
        one = job(
            f"j{number}", *parts, walltime=400, submitted_at=self.service.now, priority=self.chance.choice([0, 0, 1])
        )
        one = self._tried_again(self._with_slots(self._placed(one)))
        one = with_files(one, seed=self.seed) if self._files else one
        if not self.malleable or self.chance.random() < 0.2:
            return self._shared(one)
        if self._adaptive_laws is not None and (
            self._laws is None or random.Random(f"{self.seed}:{number}").random() < 0.5
        ):
            return adaptive_job(one, list(self.lrms), seed=self.seed, spread=self._spread)
        if self._laws is not None:
            return of_workers(one, list(self.lrms), seed=self.seed)
        flexible: list[Component] = []
        for part in one.components:
            minimum = min(part.minimum, self.chance.randint(1, 3))
            maximum = minimum + self.chance.randint(0, 9)
            initial = self.chance.choice([None, maximum])
            flexible.append(replace(part, minimum=minimum, maximum=maximum, initial=initial))
        return replace(one, kind=JobKind.MALLEABLE, components=tuple(flexible))

    def _tried_again(self, one: Job) -> Job:
        """Return a job that may run again when it fails, is lost, or has come to the end of its walltime."""
        chance = random.Random(f"{self.seed}:attempts:{one.id}")
        return replace(one, retries=chance.choice([0, 0, 1, 2]), requeue_on_walltime=chance.random() < 0.3)

    def _with_slots(self, one: Job) -> Job:
        """Return a job some of whose ranks need two processors each, on one node, where clusters have such nodes."""
        chance = random.Random(f"{self.seed}:slots:{one.id}")
        parts = []
        for part in one.components:
            name = part.cluster
            fits = name is not None and self.lrms[name].per_node > 1 and self.capacity[name] > 1
            if name is not None and fits and not self._spread and chance.random() < 0.4:
                most = self.capacity[name] // 2
                minimum = max(1, min(part.minimum // 2, most))
                maximum = max(minimum, part.maximum // 2)
                parts.append(replace(part, minimum=minimum, maximum=maximum, slot=Slot(threads=2)))
            else:
                parts.append(part)
        return replace(one, components=tuple(parts))

    def _shared(self, one: Job) -> Job:
        """Return a job some of whose slots of two processors have two ranks each."""
        chance = random.Random(f"{self.seed}:shared:{one.id}")
        slots = [replace(part.slot, ranks=chance.choice([1, part.slot.threads])) for part in one.components]
        parts = (replace(part, slot=slot) for part, slot in zip(one.components, slots, strict=True))
        return replace(one, components=tuple(parts))

    def _placed(self, one: Job) -> Job:
        """Return a job with a placement policy of its own; where that splits, some components are split, and larger."""
        chance = random.Random(f"{self.seed}/{one.id}")
        policy = chance.choice(["worst-fit", *sorted(PLACEMENT_POLICIES)])
        one = replace(one, placement=policy)
        if self.strange:
            one = replace(one, placement=STRANGE, maximum_tries=chance.randint(1, 40))
        if self.malleable or not (self.strange or PLACEMENT_POLICIES[policy].splits):
            return one
        parts: list[Component] = []
        for part in one.components:
            more = chance.randint(0, 2) if part.cluster is None and len(one.components) == 1 else 0
            largest = sum(self.capacity.values())
            minimum = max(1, min(part.minimum + more, largest))
            maximum = max(minimum, part.maximum)
            parts.append(replace(part, flexible=part.cluster is None, minimum=minimum, maximum=maximum))
        rigid = all(part.minimum == part.maximum for part in parts)
        return replace(one, kind=JobKind.RIGID if rigid else JobKind.MOLDABLE, components=tuple(parts))

    def _local_user(self) -> None:
        lrm = self.chance.choice(list(self.lrms.values()))
        seconds = self.chance.uniform(20.0, 60.0 if self._busy else 600.0)

        def start(element: Element) -> None:
            self.clock.after(seconds, lambda: lrm.exited(element))

        self._locals += 1
        lrm.submit(
            f"local{self._locals}",
            self.chance.randint(1, min(4, lrm.processors) if self._busy else lrm.processors),
            walltime=1e9,
            user="bob",
            on_start=start,
        )

    def _outage(self) -> None:
        lrm = self.chance.choice(list(self.lrms.values()))
        lrm.up = False
        self.clock.after(self.chance.uniform(5.0, 400.0), lambda: setattr(lrm, "up", True))

    def _node_fails(self) -> None:
        lrm = self.chance.choice(list(self.lrms.values()))
        node = self.chance.choice(list(lrm.nodes))
        lrm.fail_node(node)
        self.clock.after(self.chance.uniform(10.0, 600.0), lambda: lrm.repair_node(node))

    def _crash(self) -> None:
        if self.service.up:
            self.service.crash()
            self.clock.after(self.chance.uniform(0.0, 200.0), self.service.restart)

    def _reboot(self) -> None:
        """The machine of the service ends, and comes back with a time of day that is hours ahead or behind."""
        if self.service.up:
            self.service.crash()
            seconds = self.chance.uniform(-7200.0, 7200.0)
            self.clock.after(self.chance.uniform(0.0, 200.0), lambda: self.service.reboot(seconds))

    def _stall(self) -> None:
        self.service.stall(self.chance.choice([10.0, 40.0, 80.0, 200.0]))

    def _fill_journal(self) -> None:
        if self.service.up:
            self.service.fill_journal(self.chance.uniform(1.0, 100.0))

    def _kill_one(self) -> None:
        """A placeholder of ours is killed, with or without a warning to its agent."""
        if self.service.connected and self.chance.random() < 0.5:
            agent = self.chance.choice(list(self.service.connected.values()))
            self.service.warned(agent, EndReason.CANCELLED)
            self.clock.after(5.0, lambda: agent.lrm.kill(agent.element, EndReason.CANCELLED))
            return
        lrm = self.chance.choice(list(self.lrms.values()))
        ours = lrm.live(self.service.prefix)
        if ours:
            lrm.kill(self.chance.choice(ours), self.chance.choice([EndReason.CANCELLED, EndReason.MEMORY]))

    def _cut_one(self) -> None:
        """An agent loses its connection, for a moment or for longer than its lease."""
        if self.service.connected:
            agent = self.chance.choice(list(self.service.connected.values()))
            agent.mute = True
            agent.break_connection()
            self.clock.after(self.chance.uniform(1.0, 200.0), lambda: setattr(agent, "mute", False))

    def _cancel_one(self) -> None:
        jobs = list(self.service.state.jobs)
        if jobs and self.service.at_work:
            chosen = self.chance.choice(jobs)
            self.cancelled.add(chosen)
            with suppress(DefectError, JournalBlockedError):
                self.service.enter(ev.CancelRequested(time=self.service.now, job_id=JobId(chosen)))

    def _clean(self) -> None:
        """The user has half of the jobs cleaned away, whether they are over or not."""
        if not self.service.at_work:
            self._clean_at = self.clock.now + 10.0
            self.clock.at(self._clean_at, self._clean)
            return
        chosen = sorted(self.handed_in)[::2]
        before = dict(self.service.state.jobs)
        self._cleaned |= {id_: before[id_] for id_ in chosen if id_ in before}
        with suppress(DefectError, JournalBlockedError):
            self.service.enter(ev.JobsForgotten(time=self.service.now, job_ids=tuple(chosen)))
        gone = before.keys() - self.service.state.jobs.keys() - self._set_aside()
        # Events that came before this one may have been handled with it, and a job may be over by them.
        assert all(before[id_].state.final and not before[id_].live for id_ in gone), "forgotten before it was over"

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the schedule to its end, with every check after every step."""
        last = self.clock.now + FAULTY + QUIET
        while not self.over():
            assert self.clock.step()
            assert self.clock.now < last, f"not over: {self._unfinished()}"
            self.check()
        self._check_end()

    def over(self) -> bool:
        """Tell whether all jobs were submitted and ended, and nothing of ours is left anywhere."""
        service = self.service
        if self.clock.now < self._clean_at or not service.sound or service.state.placeholders:
            return False
        if len({*service.outcomes, *self._set_aside()}) != JOBS:
            return False
        return not any(lrm.live(service.prefix) for lrm in self.lrms.values())

    @property
    def records(self) -> dict[JobId, JobRecord]:
        """What is, or was until the user had it cleaned away, known of each job."""
        return {**self._cleaned, **self.service.state.jobs}

    def _set_aside(self) -> set[JobId]:
        """Return the jobs that were taken and whose submission was set aside afterwards, as the operator is told.

        A defect that shows only when a journal is replayed can do that. They are not begun again by themselves, as they
        may have run.
        """
        store = self.service.store
        events = (store.events[number - 1] for number in store.left_out)
        aside = {event.job.id for event in events if isinstance(event, ev.JobSubmitted)}
        return aside & self.handed_in - self.service.state.jobs.keys()

    def _unfinished(self) -> str:
        records = [r for r in self.service.state.jobs.values() if not r.state.final]
        left = {name: [str(e.id) for e in lrm.live(self.service.prefix)] for name, lrm in self.lrms.items()}
        return f"{records} {left}"

    def check(self) -> None:
        for name, lrm in self.lrms.items():
            ours = sum(element.processors for element in lrm.live(self.service.prefix))
            assert ours <= self.capacity[name], f"{ours} processors on {name}, capacity {self.capacity[name]}"
            if len(lrm.submissions) != self._submissions[name]:
                self._submissions[name] = len(lrm.submissions)
                assert len(lrm.submissions) == len(set(lrm.submissions)), "submitted twice"
        if len(self.service.journal) == self._checked or not self.service.sound:
            return
        self._checked = len(self.service.journal)
        recount(self.service.state)
        assert all(len(one) == 1 for one in self.service.outcomes.values()), "two outcomes"
        assert max(self.service.process_starts.values(), default=0) <= 1, "a rank was started twice"
        check_progress(self.service.state)
        if self._laws is not None:
            self._laws.check(self.service.state)
        if self._adaptive_laws is not None:
            self._adaptive_laws.check(self.service.state, self.clock.now, self.service.disturbed_at)

    def _check_end(self) -> None:
        strange = [e for lrm in self.lrms.values() for e in lrm.elements.values() if e.user == STRANGER]
        assert all(e.live for e in strange if e.index % 2 == 0), "a stranger's job was cancelled"
        records = self.records
        assert not self.service.state.batches
        assert not self.service.effector.transfers.reserved, "a reservation is left"
        assert all(record.state.final for record in records.values())
        for id_, (outcome,) in self.service.outcomes.items():
            completed = outcome.state is JobState.COMPLETED
            latest = (id_, records[id_].attempts_over)
            starts = {rank: n for (*of, rank), n in self.service.process_starts.items() if tuple(of) == latest}
            assert records[id_].retries_made <= records[id_].job.retries, "tried too often"
            runner = records[id_].job.runner
            if runner is RunnerName.WORKERS:
                check_outcome(records[id_], self.service.process_ends)
            elif runner is RunnerName.ADAPTIVE:
                check_adaptive_outcome(records[id_], self.service.process_ends, starts)
            elif completed:
                assert starts == dict.fromkeys(range(len(records[id_].ranks)), 1), (
                    "completed without having run everywhere"
                )
            assert (outcome.exit_code == 0) == completed
            if outcome.state is JobState.CANCELLED and outcome.detail.startswith("cancelled by"):
                assert id_ in self.cancelled


def check_changes(state: State, record: JobRecord) -> None:
    """Check that each change of size has something ahead that will end it."""
    for change in record.changes.values():
        first = record.claims[change.parts[0].claim].cluster  # that it waits for, if it waits for others
        step = None if first is None else state.clusters[first].step
        if change.phase is ChangePhase.TAKING:
            assert not record.started.issuperset(change.ranks), "has taken all and does not go on"
        elif change.adaptation and not change.made:
            assert TimerKind.WALLTIME in record.timers, "a change that nobody ends"
        elif change.phase is not ChangePhase.PROMISED or step is None or not step.awaited:
            assert change.due is not None, "a change for ever"


def check_claims(state: State, record: JobRecord) -> None:
    """Check that a claim has something ahead that will complete it or give it up."""
    id_ = record.job.id
    postponed = any(claim.postponed is not None for claim in record.claims)
    claims = (claim for claim in record.claims if claim.postponed is None)
    missing = any(claim.cluster is None or claim.missing for claim in claims)
    if missing or not postponed:
        known = f"{id_}: missing {missing}, reclaim {record.reclaim_at}"
        assert missing == (record.reclaim_at is not None), known
    travels = any(not one.done for one in record.staging.values())
    timers = {TimerKind.STAGING, TimerKind.RESERVATION} & record.timers.keys()
    assert not (postponed or travels) or timers, f"{id_} waits for files for ever"
    if record.held:
        assert record.life_ends_at is not None, f"{id_} holds for ever"
    if not (missing or postponed or travels):
        assert any(not p.held for p in state.placeholders_of(record)), f"{id_} holds all and does not start"


def check_progress(state: State) -> None:
    """Check that every job and every ending placeholder has something ahead that will move it."""
    for id_, record in state.jobs.items():
        if record.state is JobState.WAITING:
            if record.not_before is None and not record.between_attempts:
                assert state.scan_due is not None, f"{id_} waits and nobody scans"
        elif record.state is JobState.CLAIMING:
            check_claims(state, record)
        elif record.state.final:
            assert not record.staging, f"{id_} has ended, and its files are not let go of"
        else:
            assert TimerKind.WALLTIME in record.timers
        check_changes(state, record)
    for placeholder in state.placeholders.values():
        if placeholder.state is PlaceholderState.ENDING:
            assert TimerKind.ENDING in placeholder.timers
