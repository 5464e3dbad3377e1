# SPDX-License-Identifier: Apache-2.0
"""How running jobs change their size in the count-level simulator, at once or with the delays of real runners.

As MRunner does it (TR-0092): growing, the new placeholders start while the application keeps running; when all are
held it stands still for the cost of the change, then goes on with more. Shrinking, it stands still first, goes on with
fewer, and only then are the processors given back. What is given back comes free when its batch system says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.simulation.engine import Engine
    from koala_adapter.simulation.simulated_cluster import Part, Run, SimulatedCluster


class CountedResizing:
    """Carries messages to applications, and out what they accept."""

    def __init__(
        self,
        engine: Engine,
        *,
        placeholder_delay: float,
        release_delay: float = 0.0,
        released: Callable[[SimulatedCluster], None],
    ) -> None:
        """``released`` is called when processors have come free, or a job can change again, after a delay."""
        self._engine = engine
        self._delay = placeholder_delay
        self._release_delay = release_delay
        self._released = released
        self.changed: list[Run] = []
        """Runs whose end must be forecast again."""
        self.changes = 0
        """Changes of size that applications agreed to."""
        self.grow_messages = 0
        self.shrink_messages = 0

    def touch(self, run: Run) -> None:
        """Account for a run before something about it changes at this instant."""
        if not run.changed:
            run.changed = True
            self.changed.append(run)
            run.account(self._engine.now)

    def ask(self, part: Part, amount: int) -> int:
        """Send a message to a part; return what its application accepts (both signed)."""
        if amount > 0:
            self.grow_messages += 1
        else:
            self.shrink_messages += 1
        size = part.size
        accepted = part.answers.get((size, amount))
        if accepted is None:
            answer = part.run.job.application.acceptance.answer
            accepted = part.answers[size, amount] = answer(size, amount, part.minimum, part.maximum)
        if not accepted:
            return 0
        run, cluster = part.run, part.cluster
        if amount > 0:
            most = min(cluster.capacity - cluster.managed, cluster.usable)
            if accepted > most:  # what was believed to be idle is not: placeholders that did not start are ended
                accepted = run.job.application.acceptance.answer(size, max(0, most), part.minimum, part.maximum)
            if accepted:
                run.grown += 1
        else:
            run.shrunk += 1
        if accepted:
            self._change(part, accepted)
        return accepted

    def _change(self, part: Part, amount: int) -> None:
        run = part.run
        self.changes += 1
        part.cluster.unwanted = None
        self.touch(run)
        pause = run.job.application.cost.seconds(amount)
        if pause > 0 or (amount > 0 and self._delay > 0):
            part.cluster.running.begin(part)
            part.pending = amount
            if amount > 0:
                _hold(run, part.cluster, amount)
                self._engine.after(self._delay, lambda: self._all_held(part, pause))
            else:
                part.cluster.making_room -= amount
                run.standing += 1
                self._engine.after(pause, lambda: self._returned(part))
            return
        run.size += amount
        if amount > 0 or self._release_delay <= 0:
            _hold(run, part.cluster, amount)
        else:
            self._let_go(run, part.cluster, -amount)

    def give_back(self, cluster: SimulatedCluster, processors: int) -> None:
        """Have processors that no job has any more come free: at once, or after the delay."""
        if self._release_delay <= 0:
            cluster.managed -= processors
            self._released(cluster)
        else:
            cluster.leaving += processors
            self._engine.after(self._release_delay, lambda: self._freed(cluster, processors))

    def _let_go(self, run: Run, cluster: SimulatedCluster, processors: int) -> None:
        run.held[cluster] -= processors
        run.total -= processors
        self.give_back(cluster, processors)

    def _freed(self, cluster: SimulatedCluster, processors: int) -> None:
        cluster.leaving -= processors
        cluster.managed -= processors
        self._released(cluster)

    def _all_held(self, part: Part, pause: float) -> None:
        if not part.run.over:
            self.touch(part.run)
            part.run.standing += 1
            self._engine.after(pause, lambda: self._grown(part))

    def _grown(self, part: Part) -> None:
        if not part.run.over:
            self._through(part)

    def _returned(self, part: Part) -> None:
        if not part.run.over:
            part.cluster.making_room += part.pending
            if self._release_delay <= 0:
                _hold(part.run, part.cluster, part.pending)
            else:
                self._let_go(part.run, part.cluster, -part.pending)
            self._through(part)

    def _through(self, part: Part) -> None:
        """Go on with the new size."""
        self.touch(part.run)
        part.run.standing -= 1
        part.run.size += part.pending
        part.pending = 0
        part.cluster.running.end(part)
        self._released(part.cluster)


def _hold(run: Run, cluster: SimulatedCluster, amount: int) -> None:
    run.held[cluster] += amount
    run.total += amount
    cluster.managed += amount
    if run.total > run.largest:  # noqa: PLR1730 - max() costs more than all the rest
        run.largest = run.total
