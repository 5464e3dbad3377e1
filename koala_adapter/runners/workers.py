# SPDX-License-Identifier: Apache-2.0
"""Runner ``workers``: a head that stays, and workers that come and go one by one while the job runs. Pure.

It is KOALA's MRunner for applications whose workers find their head by themselves (CoreGRID TR-0092), and the front
end of DYNACO: what the scheduler would like is observed, the rule of the component decides, the plan is carried out by
launches and signals, and each worker's end is told by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter.dynaco.execute import Retirements
from koala_adapter.dynaco.observe import GrowOffer
from koala_adapter.dynaco.plan import farewell, shrinkage
from koala_adapter.dynaco.sizerules import OWN_SIZES, Decision
from koala_adapter.runners.growing import GrowingRunner
from koala_adapter.runners.runner import AddressedLaunch
from koala_adapter.vjm.channel import Launch, Signal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import TypeAlias

    from koala_adapter.dynaco.observe import Observation, ShrinkRequest
    from koala_adapter.dynaco.sizerules import SizeRules
    from koala_adapter.model import PlaceholderId, TaskEnd
    from koala_adapter.runners.runner import Application
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.events import Event

KILL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressedSignal:
    """A signal and the placeholder whose agent is to send it."""

    placeholder: PlaceholderId
    signal: Signal


Order: TypeAlias = "AddressedLaunch | AddressedSignal"


class WorkersRunner(GrowingRunner):
    """Starts a process for each rank, and ends those of workers one by one."""

    def __init__(self, application: Application) -> None:
        """See :class:`Runner`."""
        super().__init__(application)
        self._retiring = {one.name: Retirements(float(one.retirement.grace)) for one in application.job.components}
        self._over: set[int] = set()
        """Ranks whose processes have ended, or are no longer part of the job: they cannot be asked for anything."""
        self.answers: dict[int, int] = {}
        """By how many processors it said that it will change, by number of the change, until the records have that."""

    def accepted(self, observation: Observation, rules: SizeRules = OWN_SIZES) -> Decision:
        """Decide how many processors are taken, or given up; ``rules``: those that there are."""
        name = self.application.job.component(observation.component).sizes
        amount = observation.processors if isinstance(observation, GrowOffer) else -observation.processors
        if not amount:
            return Decision(0)
        return rules.decide(
            name, observation.size, amount, observation.minimum, observation.maximum, pending=observation.coming
        )

    def shrink(self, request: ShrinkRequest, count: int, now: float) -> Sequence[Order]:
        """Ask ``count`` workers to end; return what is to be sent to their agents.

        Those that are on their way out already count: asking for the same again asks nobody else.
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
            argv=how.command,
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
        """See Runner."""
        rank = self.rank_of(task)
        if rank is not None:
            self.departed((rank,))
        return super().ended(task, end, now)
