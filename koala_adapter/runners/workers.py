# SPDX-License-Identifier: Apache-2.0
"""Runners ``workers`` and ``sweep``: a head that stays, and workers that come and go one by one.

It is KOALA's MRunner for applications whose workers find their head by themselves (CoreGRID TR-0092), and the front end
of DYNACO: by what the size rule of the component has decided about a wish of the scheduler, launches and signals
follow, and the end of each worker is reported by itself. The runners come last. All of it only computes.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, ClassVar

from koala_adapter.runners.runner import AddressedLaunch, AddressedSignal, Application, Order, ProcessRunner
from koala_adapter.vjm.channel import Launch, Signal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from koala_adapter.model import ClusterName, TaskEnd
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.events import Event


# -- DYNACO, plan: who leaves --------------------------------------------------------------------------------


def leavers(ranks: Collection[int], count: int) -> list[int]:
    """Return ``count`` ranks to be given up, latest first."""
    return sorted(ranks)[: -count - 1 : -1] if count > 0 else []


# -- The runner of workers: DYNACO, execute ------------------------------------------------------------------
# Workers have no common point of progress to be adapted at: an action is done as soon as its own process does it.

KILL = 9


class WorkersRunner(ProcessRunner):
    """Runner that starts one process for each rank and retires workers one by one."""

    kills_after: ClassVar[int] = 0
    """Seconds after the time that its component gives a worker to end, before it is killed."""

    def __init__(self, application: Application) -> None:
        super().__init__(application)
        self._kill_at: dict[int, float] = {}
        """Ranks of workers that were asked to end and have not, with the times at which they are killed."""
        self._over: set[int] = set()
        """Ranks whose processes have ended, or are no longer part of the job: they cannot be asked for anything."""

    def shrink(self, component: str, cluster: ClusterName, count: int, now: float) -> Sequence[Order]:
        """Retire ``count`` workers of a component on a cluster; return the orders for their agents.

        Those that are on their way out already count: asking for so many again asks no others.
        """
        mine = {
            rank.rank: rank
            for rank in self.application.ranks
            if (rank.component, rank.cluster) == (component, cluster) and rank.rank not in self._over
        }
        asked = self._kill_at.keys() & mine.keys()
        leaving = leavers(mine.keys() - asked, count - len(asked))
        return [order for rank in leaving for order in self._retire(mine[rank], now)]

    @property
    def staying(self) -> Sequence[Rank]:
        """Workers that have not been asked to end."""
        job = self.application.job
        return [
            rank
            for rank in self.application.ranks
            if not job.is_head(rank.component) and rank.rank not in self._over and rank.rank not in self._kill_at
        ]

    def retire(self, ranks: Collection[int], now: float) -> Sequence[Order]:
        """Retire workers whose walltime is near; return the orders for their agents."""
        return [order for rank in self.staying if rank.rank in ranks for order in self._retire(rank, now)]

    def _retire(self, rank: Rank, now: float) -> Sequence[Order]:
        self._kill_at[rank.rank] = now + self._patience(rank)
        return self._ask(rank)

    def _patience(self, rank: Rank) -> float:
        """Return the seconds in which a worker that was asked to end must have ended."""
        return float(self.application.component(rank).retirement.grace + self.kills_after)

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
        kill_at = self._kill_at.get(rank.rank)
        if kill_at is None:
            return ()
        return [self._signal(rank, KILL)] if kill_at <= now else self._ask(rank)

    def kills(self, now: float) -> Sequence[Order]:
        """Return kill signals for workers that did not end in time; after the same time they are repeated."""
        overdue = [rank for rank in self.application.ranks if self._kill_at.get(rank.rank, inf) <= now]
        self._kill_at.update((rank.rank, now + max(1.0, self._patience(rank))) for rank in overdue)
        return [self._signal(rank, KILL) for rank in overdue]

    def departed(self, ranks: Collection[int]) -> None:
        """Register that ranks have left the job, reported or not."""
        self._over.update(ranks)
        for rank in ranks:
            self._kill_at.pop(rank, None)

    @property
    def next_kill(self) -> float | None:
        """Time of the next call of `kills`; None: not before another event."""
        return min(self._kill_at.values(), default=None)

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
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

    kills_after = KILLED_LATER

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        library = self.application.library
        command = (*COMMAND, *self.application.container(rank))
        return [
            replace(one, launch=replace(one.launch, argv=command, library=library)) for one in super().launches_in(rank)
        ]

    def _ask(self, rank: Rank) -> Sequence[Order]:
        """Ask a launcher to leave by a signal that its task, which also gets it, ignores."""
        return [self._signal(rank, URGENT)]
