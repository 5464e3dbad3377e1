# SPDX-License-Identifier: Apache-2.0
"""Runners ``workers`` and ``sweep``: a head that stays, and workers that come and go one by one.

It is KOALA's MRunner for applications whose workers find their head by themselves (CoreGRID TR-0092), and the front end
of DYNACO: the wishes of the scheduler are observed, the size rule of the component decides, the plan is carried out by
launches and signals, and the end of each worker is reported by itself. The parts stand in this order; the runners come
last. All of it only computes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from koala_adapter.runners.runner import AddressedLaunch, AddressedSignal, ProcessRunner
from koala_adapter.sizes import OWN_SIZES, Decision
from koala_adapter.vjm.channel import Launch, Signal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from koala_adapter.model import ClusterName, TaskEnd
    from koala_adapter.runners.runner import Application, Order
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.events import Event
    from koala_adapter.sizes import SizeRules


# -- DYNACO, observe: what may make a running application adapt ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Base of events that ask the application to change."""

    component: str
    cluster: ClusterName
    processors: int
    """By how many."""
    size: int
    """Processors that the component has on all clusters."""
    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowOffer(Observation):
    """Offer of processors to a component of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRequest(Observation):
    """Request for processors, to be met as far as the minimum allows."""


@dataclass(frozen=True, slots=True)
class WalltimeNear:
    """Event: the application's processes will soon be ended at the end of their walltime."""

    seconds_left: float


@dataclass(slots=True)
class WalltimeMonitor:
    """Tells once when the end of the walltime is near; all times are of one clock."""

    warn_before: float
    """So long before the end, the end is near; 0: it never is."""
    ends_at: float | None = None
    """When the processes are ended; None: not known."""
    near: bool = False
    """That the end is near was observed, and it has not moved away since."""

    def move(self, ends_at: float, now: float) -> None:
        """Set another end of the walltime."""
        self.ends_at = ends_at
        self.near = self.near and ends_at - self.warn_before <= now

    def observe(self, now: float) -> WalltimeNear | None:
        """Return the event when it is due, once only."""
        if self.ends_at is None or self.due is None or now < self.due:
            return None
        self.near = True
        return WalltimeNear(max(0.0, self.ends_at - now))

    @property
    def due(self) -> float | None:
        """Time at which to call `observe`; None: not before the end is moved."""
        if self.ends_at is None or self.near or not self.warn_before:
            return None
        return self.ends_at - self.warn_before


# -- DYNACO, plan: the actions that lead to the size that was decided on -------------------------------------


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Plan step: start the process of a new rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class RetireProcess:
    """Plan step: ask a process to end, wait, and kill it if it takes too long."""

    rank: int


Plan: TypeAlias = "tuple[StartProcess | RetireProcess, ...]"
"""For workers the order does not matter: each comes and goes without the others."""


def growth(ranks: Iterable[int]) -> Plan:
    """Return the plan for adding ranks."""
    return tuple(StartProcess(rank) for rank in ranks)


def farewell(ranks: Iterable[int]) -> Plan:
    """Return the plan for retiring workers whose walltime is near."""
    return tuple(RetireProcess(rank) for rank in sorted(ranks))


def shrinkage(ranks: Collection[int], count: int, *, leaving: Collection[int] = ()) -> Plan:
    """Return the plan for retiring ``count`` ranks, latest first.

    ``leaving``: ranks that are on their way out for another reason, which are not asked again.
    """
    staying = sorted(rank for rank in ranks if rank not in leaving)
    return tuple(RetireProcess(rank) for rank in reversed(staying[max(0, len(staying) - count) :]))


# -- DYNACO, execute: how far the actions of a plan have come ------------------------------------------------
# Workers have no common point of progress to be adapted at: an action is done as soon as its own process does it.


@dataclass(slots=True)
class Retirements:
    """Processes asked to end that have not ended; times in seconds."""

    grace: float
    """Time that each has before it is killed."""
    _until: dict[int, float] = field(default_factory=dict)

    def begin(self, rank: int, now: float) -> bool:
        """Register that a process is asked to end; return False when it was before."""
        if rank in self._until:
            return False
        self._until[rank] = now + self.grace
        return True

    def ended(self, rank: int) -> None:
        """Register that a process is over or lost."""
        self._until.pop(rank, None)

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks of workers that were asked to end."""
        return frozenset(self._until)

    def overdue(self, now: float) -> tuple[int, ...]:
        """Return the processes that are to be killed, as their time is over."""
        return tuple(rank for rank, until in self._until.items() if until <= now)

    def killed(self, rank: int, now: float) -> None:
        """Register a kill; after the same time it is repeated."""
        if rank in self._until:
            self._until[rank] = now + max(1.0, self.grace)

    @property
    def next_due(self) -> float | None:
        """Time of the next kill; None: none is planned."""
        return min(self._until.values(), default=None)


# -- Base class: a runner of jobs that get further ranks while they run --------------------------------------


class GrowingRunner(ProcessRunner):
    """Runner of one process for each rank, also for ranks added later."""

    def grow(self, application: Application, ranks: Collection[int]) -> Sequence[AddressedLaunch]:
        """Take new ranks in, which ``application`` has beside the former ones; return what is to be started."""
        self.application = application
        wanted = {step.rank for step in growth(ranks)}
        return [launch for rank in application.ranks if rank.rank in wanted for launch in self.launches_in(rank)]


# -- The runner of workers -----------------------------------------------------------------------------------

KILL = 9


class WorkersRunner(GrowingRunner):
    """Runner that starts one process for each rank and retires workers one by one."""

    def __init__(self, application: Application) -> None:
        """Make the runner of a job."""
        super().__init__(application)
        self._retiring = {one.name: Retirements(float(one.retirement.grace)) for one in application.job.components}
        self._over: set[int] = set()
        """Ranks whose processes have ended, or are no longer part of the job: they cannot be asked for anything."""

    def accepted(self, observation: Observation, rules: SizeRules = OWN_SIZES) -> Decision:
        """Return how many processors are accepted or given up; ``rules``: known size rules."""
        name = self.application.job.component(observation.component).sizes
        amount = observation.processors if isinstance(observation, GrowOffer) else -observation.processors
        if not amount:
            return Decision(0)
        return rules.decide(name, observation.size, amount, observation.minimum, observation.maximum)

    def shrink(self, request: ShrinkRequest, count: int, now: float) -> Sequence[Order]:
        """Retire ``count`` workers; return the orders for their agents.

        Those that are on their way out already count: asking for so many again asks no others.
        """
        retiring = self._retiring[request.component]
        mine = {one.rank: one for one in self._workers(request)}
        plan = shrinkage(mine, count - len(retiring.ranks & mine.keys()), leaving=retiring.ranks)
        return [order for step in plan if retiring.begin(step.rank, now) for order in self._ask(mine[step.rank])]

    @property
    def staying(self) -> Sequence[Rank]:
        """Workers that have not been asked to end."""
        job = self.application.job
        return [
            rank
            for rank in self.application.ranks
            if not job.is_head(rank.component)
            and rank.rank not in self._over
            and rank.rank not in self._retiring[rank.component].ranks
        ]

    def retire(self, ranks: Collection[int], now: float) -> Sequence[Order]:
        """Retire workers whose walltime is near; return the orders for their agents."""
        mine = {rank.rank: rank for rank in self.staying if rank.rank in ranks}
        orders: list[Order] = []
        for step in farewell(mine):
            self._retiring[mine[step.rank].component].begin(step.rank, now)
            orders.extend(self._ask(mine[step.rank]))
        return orders

    def _workers(self, request: ShrinkRequest) -> Sequence[Rank]:
        return [
            rank
            for rank in self.application.ranks
            if (rank.component, rank.cluster) == (request.component, request.cluster) and rank.rank not in self._over
        ]

    def _ask(self, rank: Rank) -> Sequence[Order]:
        component = self.application.component(rank)
        how = component.retirement
        if not how.command:
            return [self._signal(rank, how.signal)]
        launch = Launch(
            task=f"{self.task_of(rank.rank)}.retire",
            argv=(*self.application.container(rank), *how.command),
            setup=self.application.setup(rank),
            environment=self.application.environment(rank),
            working_directory=self.application.job.working_directory,
            time_limit=float(max(1, how.grace)),
        )
        return [AddressedLaunch(placeholder=rank.placeholder, launch=launch)]

    def _signal(self, rank: Rank, number: int) -> AddressedSignal:
        return AddressedSignal(placeholder=rank.placeholder, signal=Signal(task=self.task_of(rank.rank), signal=number))

    def asked_again(self, rank: Rank, now: float) -> Sequence[Order]:
        """Return what must be repeated to the agent of a rank that is in contact again."""
        retiring = self._retiring[rank.component]
        if rank.rank not in retiring.ranks:
            return ()
        if rank.rank in retiring.overdue(now):
            return [self._signal(rank, KILL)]
        return self._ask(rank)

    def kills(self, now: float) -> Sequence[Order]:
        """Return kill signals for workers that did not end in time."""
        orders: list[Order] = []
        for rank in self.application.ranks:
            retiring = self._retiring[rank.component]
            if rank.rank in retiring.overdue(now):
                retiring.killed(rank.rank, now)
                orders.append(self._signal(rank, KILL))
        return orders

    def departed(self, ranks: Collection[int]) -> None:
        """Register that ranks have left the job, reported or not."""
        self._over.update(ranks)
        for retiring in self._retiring.values():
            for rank in retiring.ranks & set(ranks):
                retiring.ended(rank)

    @property
    def next_kill(self) -> float | None:
        """Time of the next call of `kills`; None: not before another event."""
        times = (one.next_due for one in self._retiring.values())
        return min((time for time in times if time is not None), default=None)

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        """Handle the end of a process."""
        rank = self.rank_of(task)
        if rank is not None:
            self.departed((rank,))
        return super().ended(task, end, now)


# -- The runner of sweeps ------------------------------------------------------------------------------------
# Its workers are launchers, which pull the tasks of the sweep from the service.

_SCRIPT = """\
for python in /usr/bin/python3 /usr/libexec/platform-python python3; do
    if command -v "$python" >/dev/null 2>&1; then
        exec "$python" -S -B "${PYTHONPATH%%:*}/koala_sweep.py" "$@"
    fi
done
echo "no python3 on $(uname -n)" >&2
exit 127
"""
COMMAND = ("/bin/sh", "-c", _SCRIPT, "koala-sweep")
"""Any Python from 3.6 on; what is imported is in the library, where PYTHONPATH begins. Behind it: what stands before
the command of each task."""


URGENT = 23
"""SIGURG: what is no launcher does not notice it."""
KILLED_LATER = 10
"""Seconds after a launcher's own time for its task, in which it must have gone."""


class SweepRunner(WorkersRunner):
    """Runner that starts a launcher for each rank and retires launchers one by one."""

    def __init__(self, application: Application) -> None:
        """Make the runner of a job."""
        super().__init__(application)
        for component in application.job.components:
            self._retiring[component.name] = Retirements(float(component.retirement.grace + KILLED_LATER))

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """Return the processes of a placeholder that are to be launched."""
        library = self.application.library
        command = (*COMMAND, *self.application.container(rank))
        return [
            replace(one, launch=replace(one.launch, argv=command, library=library)) for one in super().launches_in(rank)
        ]

    def _ask(self, rank: Rank) -> Sequence[Order]:
        """Ask a launcher to leave by a signal that its task, which also gets it, ignores."""
        asked = Signal(task=self.task_of(rank.rank), signal=URGENT)
        return [AddressedSignal(placeholder=rank.placeholder, signal=asked)]
