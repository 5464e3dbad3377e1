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
    """The scheduler would like the application to change its size."""

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
    """An offer of processors to a component of workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRequest(Observation):
    """Processors are wanted back; the request is to be met as far as the minimum allows."""


@dataclass(frozen=True, slots=True)
class WalltimeNear:
    """The processes of the application are about to be ended, as their time is over. Its size stays as it is."""

    seconds_left: float


@dataclass(slots=True)
class WalltimeMonitor:
    """Sees how far the end of the time of an application is; all times are of one clock, in seconds."""

    warn_before: float
    """So long before the end, the end is near; 0: it never is."""
    ends_at: float | None = None
    """When the processes are ended; None: not known."""
    near: bool = False
    """That the end is near was observed, and it has not moved away since."""

    def move(self, ends_at: float, now: float) -> None:
        """Note that the processes are ended at another time than was known."""
        self.ends_at = ends_at
        self.near = self.near and ends_at - self.warn_before <= now

    def observe(self, now: float) -> WalltimeNear | None:
        """Return the event, once it has come, and then only once."""
        if self.ends_at is None or self.due is None or now < self.due:
            return None
        self.near = True
        return WalltimeNear(max(0.0, self.ends_at - now))

    @property
    def due(self) -> float | None:
        """When to look next; None: not before the end moves."""
        if self.ends_at is None or self.near or not self.warn_before:
            return None
        return self.ends_at - self.warn_before


# -- DYNACO, plan: the actions that lead to the size that was decided on -------------------------------------


@dataclass(frozen=True, slots=True)
class StartProcess:
    """Start the process of a new rank in the placeholder that holds its processor."""

    rank: int


@dataclass(frozen=True, slots=True)
class RetireProcess:
    """Ask the process of a rank to end, wait for that, and kill it when it takes too long."""

    rank: int


Plan: TypeAlias = "tuple[StartProcess | RetireProcess, ...]"
"""For workers the order does not matter: each comes and goes without the others."""


def growth(ranks: Iterable[int]) -> Plan:
    """Return the plan that takes new ranks in."""
    return tuple(StartProcess(rank) for rank in ranks)


def farewell(ranks: Iterable[int]) -> Plan:
    """Return the plan that takes all of some workers out, because their walltime is near."""
    return tuple(RetireProcess(rank) for rank in sorted(ranks))


def shrinkage(ranks: Collection[int], count: int, *, leaving: Collection[int] = ()) -> Plan:
    """Return the plan that takes ``count`` of some ranks out: those that came last go first.

    ``leaving``: ranks that are on their way out for another reason, which are not asked again.
    """
    staying = sorted(rank for rank in ranks if rank not in leaving)
    return tuple(RetireProcess(rank) for rank in reversed(staying[max(0, len(staying) - count) :]))


# -- DYNACO, execute: how far the actions of a plan have come ------------------------------------------------
# Workers have no common point of progress to be adapted at: an action is done as soon as its own process does it.


@dataclass(slots=True)
class Retirements:
    """The processes that were asked to end and have not; times in seconds."""

    grace: float
    """Time that each has before it is killed."""
    _until: dict[int, float] = field(default_factory=dict)

    def begin(self, rank: int, now: float) -> bool:
        """Note that a process is asked to end now; False when it has been asked before."""
        if rank in self._until:
            return False
        self._until[rank] = now + self.grace
        return True

    def ended(self, rank: int) -> None:
        """Note that the process of a rank is over, or lost."""
        self._until.pop(rank, None)

    @property
    def ranks(self) -> frozenset[int]:
        """Ranks of workers that were asked to end."""
        return frozenset(self._until)

    def overdue(self, now: float) -> tuple[int, ...]:
        """Return those whose time is over, which are to be killed."""
        return tuple(rank for rank, until in self._until.items() if until <= now)

    def killed(self, rank: int, now: float) -> None:
        """Note that a process was killed: should it still be there after the same time again, it is killed again."""
        if rank in self._until:
            self._until[rank] = now + max(1.0, self.grace)

    @property
    def next_due(self) -> float | None:
        """When the next one is to be killed; None: there is none."""
        return min(self._until.values(), default=None)


# -- Base class: a runner of jobs that get further ranks while they run --------------------------------------


class GrowingRunner(ProcessRunner):
    """Starts a process for each rank, also for those that come later."""

    def grow(self, application: Application, ranks: Collection[int]) -> Sequence[AddressedLaunch]:
        """Take new ranks in, which ``application`` has beside the former ones; return what is to be started."""
        self.application = application
        wanted = {step.rank for step in growth(ranks)}
        return [launch for rank in application.ranks if rank.rank in wanted for launch in self.launches_in(rank)]


# -- The runner of workers -----------------------------------------------------------------------------------

KILL = 9


class WorkersRunner(GrowingRunner):
    """Starts a process for each rank, and ends those of workers one by one."""

    def __init__(self, application: Application) -> None:
        """Make the runner of a job."""
        super().__init__(application)
        self._retiring = {one.name: Retirements(float(one.retirement.grace)) for one in application.job.components}
        self._over: set[int] = set()
        """Ranks whose processes have ended, or are no longer part of the job: they cannot be asked for anything."""

    def accepted(self, observation: Observation, rules: SizeRules = OWN_SIZES) -> Decision:
        """Decide how many processors are taken, or given up; ``rules``: those that there are."""
        name = self.application.job.component(observation.component).sizes
        amount = observation.processors if isinstance(observation, GrowOffer) else -observation.processors
        if not amount:
            return Decision(0)
        return rules.decide(name, observation.size, amount, observation.minimum, observation.maximum)

    def shrink(self, request: ShrinkRequest, count: int, now: float) -> Sequence[Order]:
        """Ask ``count`` workers to end; return what is to be sent to their agents.

        Those that are on their way out already count: asking for so many again asks no others.
        """
        retiring = self._retiring[request.component]
        mine = {one.rank: one for one in self._workers(request)}
        plan = shrinkage(mine, count - len(retiring.ranks & mine.keys()), leaving=retiring.ranks)
        return [order for step in plan if retiring.begin(step.rank, now) for order in self._ask(mine[step.rank])]

    @property
    def staying(self) -> Sequence[Rank]:
        """The workers that are there and have not been asked to end."""
        job = self.application.job
        return [
            rank
            for rank in self.application.ranks
            if not job.is_head(rank.component)
            and rank.rank not in self._over
            and rank.rank not in self._retiring[rank.component].ranks
        ]

    def retire(self, ranks: Collection[int], now: float) -> Sequence[Order]:
        """Ask workers to end as their walltime is near; return what is to be sent to their agents."""
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
            if (rank.component, self.cluster_of(rank)) == (request.component, request.cluster)
            and rank.rank not in self._over
        ]

    def cluster_of(self, rank: Rank) -> str:
        """Return the cluster of a rank."""
        return rank.cluster or self.application.clusters[rank.component]

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
        """Return what is to be repeated to the agent of a rank that came into contact again."""
        retiring = self._retiring[rank.component]
        if rank.rank not in retiring.ranks:
            return ()
        if rank.rank in retiring.overdue(now):
            return [self._signal(rank, KILL)]
        return self._ask(rank)

    def kills(self, now: float) -> Sequence[Order]:
        """Return the signals for workers that were asked to end and have not in their time."""
        orders: list[Order] = []
        for rank in self.application.ranks:
            retiring = self._retiring[rank.component]
            if rank.rank in retiring.overdue(now):
                retiring.killed(rank.rank, now)
                orders.append(self._signal(rank, KILL))
        return orders

    def departed(self, ranks: Collection[int]) -> None:
        """Note that some ranks are no longer part of the job, whether their processes told of their end or not."""
        self._over.update(ranks)
        for retiring in self._retiring.values():
            for rank in retiring.ranks & set(ranks):
                retiring.ended(rank)

    @property
    def next_kill(self) -> float | None:
        """When `kills` is to be asked next; None: not before something else happens."""
        times = (one.next_due for one in self._retiring.values())
        return min((time for time in times if time is not None), default=None)

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        """Take note that a process has ended."""
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
    """Starts a launcher for each rank, and has launchers leave one by one."""

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
        """Ask by a signal that the task, which gets it, too, does not notice."""
        asked = Signal(task=self.task_of(rank.rank), signal=URGENT)
        return [AddressedSignal(placeholder=rank.placeholder, signal=asked)]
