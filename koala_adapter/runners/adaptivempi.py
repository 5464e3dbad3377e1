# SPDX-License-Identifier: Apache-2.0
"""Runner ``adaptive`` of launcher ``mpi``: an MPI program whose processes are spawned one at a time. Pure.

mpiexec starts the first process alone. That one speaks with koala for all of them and spawns the others, so that each
has an MPI_COMM_WORLD of its own: what shares one cannot leave alone, as MPI_Finalize waits for all of it. So the change
comes before the newcomers: their placeholders are held, and get mpiexec's proxies when the program spawns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from koala_adapter.runners.adaptive import AdaptiveRunner
from koala_adapter.runners.mpi import LAUNCHER_TASK, MpiRunner

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from koala_adapter.model import TaskEnd
    from koala_adapter.runners.runner import AddressedLaunch, Application, Reaction
    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.events import Event


class AdaptiveMpiRunner(AdaptiveRunner):
    """Starts mpiexec and the first process; follows the coordinator, and mpiexec for the processes that are spawned."""

    def __init__(self, application: Application) -> None:
        """See :class:`Runner`."""
        super().__init__(application)
        self._mpi = MpiRunner(application, spawns=True)

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """See :class:`Runner`."""
        return [self._speaking(one) for one in self._mpi.launches_in(rank)]

    def grow(self, application: Application, ranks: Collection[int]) -> Sequence[AddressedLaunch]:
        """Take new ranks in; nothing is started for them until the program spawns them."""
        del ranks
        self.application = self._mpi.application = application
        return ()

    def output_of(self, task: str, stream: str, offset: int, data: bytes, now: float) -> Reaction:
        """See :class:`Runner`."""
        reaction = self._mpi.output_of(task, stream, offset, data, now)
        return replace(reaction, launches=tuple(self._speaking(one) for one in reaction.launches))

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        """See :class:`Runner`."""
        return self._mpi.ended(task, end, now)

    def _speaking(self, one: AddressedLaunch) -> AddressedLaunch:
        """Let the processes of ranks reach koala, though only the first does."""
        if one.launch.task.endswith(f":{LAUNCHER_TASK}"):
            return one
        return replace(one, launch=replace(one.launch, application=True, library=self.application.library))
