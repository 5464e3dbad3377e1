# SPDX-License-Identifier: Apache-2.0
"""KIS, the information service for one cluster: what it looks like now, polled with restraint.

All who ask share one poll. When the LRM fails again and again it is left alone for growing pauses; when nothing of ours
is unfinished it is asked four times less often; when something is about to change, or a running job would take what
comes free, more often, at first at once, but never so often that submissions would have to wait long for the bound of
requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.batchsystem.listing import Listing, answering, read_listing
from koala_adapter.batchsystem.waitingjobs import processors_wanted
from koala_adapter.batchsystem.watcher import Watcher
from koala_adapter.config.sitefile import shortest_poll_interval
from koala_adapter.errors import LrmError, LrmUnavailableError
from koala_adapter.plugin.attribution import possibly_ours
from koala_adapter.plugin.limits import CircuitBreaker, PollPace
from koala_adapter.service.reconciliation import processors_held

if TYPE_CHECKING:
    from collections.abc import Callable

    from koala_adapter.config.sitefile import ClusterConfig
    from koala_adapter.plugin import Lrm

IDLE_FACTOR = 4

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading(Listing):
    """One poll of a cluster: of its jobs only those with names of ours that are not certainly another user's."""

    of_all_users: bool = False
    """Whether the jobs of all users were listed for it."""
    others_waiting: tuple[int, ...] = ()
    """Then: the processors that each waiting job of others asks for, in the order of their queue."""

    @property
    def ours(self) -> int:
        """Processors our placeholders occupy."""
        return processors_held(self.jobs)


class Poller:
    """Reads one cluster at intervals and hands each reading, or the reason why there is none, to its owner."""

    def __init__(  # noqa: PLR0913 - all that it asks and tells
        self,
        config: ClusterConfig,
        lrm: Lrm,
        *,
        name_prefix: str,
        user: str,
        clock: Callable[[], float],
        on_reading: Callable[[ClusterReading], bool],
        on_failure: Callable[[str], None],
        others_matter: Callable[[], bool] = lambda: False,
        busy: Callable[[], bool] = lambda: True,
        growth_waits: Callable[[], bool] = lambda: False,
    ) -> None:
        """``on_reading`` returns True when the next poll should not be put off; ``clock`` gives the time.

        ``name_prefix`` and ``user``: what our jobs are called there, and whose they are.
        ``others_matter`` tells whether the next poll is to show which jobs of others wait: it lists those of all users.
        ``busy`` tells whether a job of ours is unfinished: it is polled less often while none is.
        ``growth_waits`` tells whether a running job would take processors that come free: it is polled more often then.
        """
        self._config = config
        self._lrm = lrm
        self._prefix = name_prefix
        self._user = user
        self._clock = clock
        self._on_reading = on_reading
        self._on_failure = on_failure
        self._others_matter = others_matter
        self._busy = busy
        self._growth_waits = growth_waits
        self._wanted = anyio.Event()
        shortest = shortest_poll_interval(config.requests_per_minute, lrm.requests_per_poll)
        self._pace = PollPace(shortest_interval=shortest)
        self.breaker = CircuitBreaker(pause=config.poll_interval)
        self._watcher = Watcher(self._read, breaker=self.breaker, on_trouble=self._note_trouble)
        self.latest: ClusterReading | None = None

    @property
    def failure(self) -> str | None:
        """Why the last poll was not answered; None when it was."""
        return None if self._watcher.failure is None else self._watcher.failure.message

    def poll_soon(self) -> None:
        """Have the next poll come as early as the bounds allow."""
        self._wanted.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            restless = await self._poll()
            now = anyio.current_time()
            self._pace.polled(now)
            await anyio.sleep(min(self._config.poll_interval, self._pace.pause(now)))
            if not restless:
                interval = self._config.poll_interval * (1 if self._busy() else IDLE_FACTOR)
                with anyio.move_on_after(max(0.0, now + interval - anyio.current_time())):
                    await self._wanted.wait()
            self._wanted = anyio.Event()

    async def _poll(self) -> bool:
        if self._watcher.resting:
            return False
        try:
            reading = await self._watcher.look()
        except LrmError as error:
            self._on_failure(error.message)
            return not self.breaker.open
        self.latest = reading
        return self._on_reading(reading) or self._growth_waits()

    def _note_trouble(self, error: LrmError | None) -> None:
        if error is None:
            log.info("cluster answers again", cluster=self._config.name)
        else:
            log.warning("cluster does not answer", cluster=self._config.name, error=str(error))

    async def _read(self) -> ClusterReading:
        return await read_cluster(
            self._config,
            self._lrm,
            name_prefix=self._prefix,
            user=self._user,
            read_at=self._clock(),
            others=self._lrm.capabilities.lists_others and self._others_matter(),
        )


async def read_cluster(
    config: ClusterConfig, lrm: Lrm, *, name_prefix: str, user: str, read_at: float, others: bool = False
) -> ClusterReading:
    """Read the jobs of a user with names of ours, then nodes; with ``others`` what others wait for. Raises LrmError."""
    prefix = "" if others else name_prefix
    listing = await read_listing(lrm, cluster=config.name, read_at=read_at, name_prefix=prefix)
    queue, nodes = config.queue, listing.nodes
    if queue is not None:
        nodes = tuple(node for node in nodes if not node.queues or queue in node.queues)
        if not nodes:
            raise LrmUnavailableError(f"no node serves queue {queue!r}", hint="check `queue` in the site file")
    with answering(config.name):
        jobs = possibly_ours(listing.jobs, user=user, name_prefix=name_prefix)
        ours = {job.id for job in jobs}
        foreign = (job for job in listing.jobs if job.id not in ours) if others else ()
        waiting = processors_wanted(foreign, nodes, time_of_day=time.time())
    return ClusterReading(read_at=read_at, nodes=nodes, jobs=jobs, of_all_users=others, others_waiting=waiting)
