# SPDX-License-Identifier: Apache-2.0
"""The scheduler of a live batch system (``koala schedule``), its metrics and watcher, and giving the queue back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import anyio
import structlog

from koala_adapter.errors import JournalError, LrmError, LrmUnavailableError
from koala_adapter.host import metrics as metric
from koala_adapter.host.clock import ServiceClock
from koala_adapter.host.metrics import Meter, process_meter
from koala_adapter.lrm.listing import Listing, Watcher, answering, read_listing
from koala_adapter.lrm.rate import CircuitBreaker
from koala_adapter.lrm.starts import Starter, Starts
from koala_adapter.model import LrmJob, LrmJobId, LrmJobState, Queue
from koala_adapter.ordering.asking import Overview, shifted
from koala_adapter.ordering.jobs import JobEvent, Phase
from koala_adapter.ordering.passes import MisfitRules, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from koala_adapter.lrm import Lrm
    from koala_adapter.lrm.startlog import Pin, StartLog
    from koala_adapter.ordering.mirror import Mirror
    from koala_adapter.ordering.shadow import ShadowReport


# -- Metrics of one queue ------------------------------------------------------------------------------------


class QueueMeter:
    """Metrics of decisions and of the queue's state."""

    def __init__(self, cluster: str) -> None:
        """Create a meter without counts."""
        self.meter = process_meter("schedule")
        self._cluster = cluster

    def tell(self, happened: Iterable[JobEvent]) -> None:
        """Count an event of the queue."""
        for one in happened:
            self.meter.add(metric.QUEUE_EVENTS, self._cluster, one.kind.value)

    def read_queue(self, overview: Callable[[], Overview]) -> None:
        """Update the queue's gauges whenever metrics are read."""

        def read(meter: Meter) -> None:
            found = overview()
            counts = {
                "waiting": found.waiting,
                "starting": found.starting,
                "running": found.running,
                "left out": found.left_out,
            }
            for state, count in counts.items():
                meter.set(metric.QUEUE_JOBS, self._cluster, state, value=count)
            meter.set(metric.QUEUE_PROCESSORS, self._cluster, value=found.processors)
            meter.set(metric.QUEUE_FREE, self._cluster, value=found.free)

        self.meter.read_with(read)

    def read_shadow(self, report: Callable[[], ShadowReport]) -> None:
        """Update the gauges of a shadow's differences whenever metrics are read."""

        def read(meter: Meter) -> None:
            found = report()
            for start, count in {"earlier": found.earlier, "later": found.later, "same": found.same}.items():
                meter.set(metric.SHADOW_JOBS, self._cluster, start, value=count)
            ours, theirs = found.mean_wait_ours, found.mean_wait_theirs
            meter.set(metric.SHADOW_WAIT, self._cluster, "koala", value=ours)
            meter.set(metric.SHADOW_WAIT, self._cluster, "lrm", value=theirs)
            meter.set(metric.SHADOW_GAIN, self._cluster, value=theirs - ours)

        self.meter.read_with(read)


# -- Watching a batch system at intervals, or earlier on request ---------------------------------------------
# It is asked earlier when something is expected to have changed.

QUEUES_AGAIN = 60.0
"""Seconds after which the queues are listed again: they change rarely."""
SLOWEST_START = 60.0
CLUSTER = "the cluster that is scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Intervals at which a batch system is listed, in seconds."""

    interval: float
    """Between two looks while nothing is about to change."""
    shortest: float
    """Between two looks at least."""


async def start_plugin(lrm: Lrm, *, on_trouble: Callable[[str], None]) -> None:
    """Start a plugin, waiting as long as its batch system does not answer.

    ``on_trouble`` hears when it does not answer (why), and when it answers after that (empty).
    """
    pause, failed = 1.0, False
    while True:
        try:
            with answering(CLUSTER):
                await lrm.start()
        except LrmError as error:
            if not failed:
                on_trouble(str(error))
            failed = True
            await anyio.sleep(pause)
            pause = min(SLOWEST_START, pause * 2)
        else:
            break
    if failed:
        on_trouble("")


class PacedWatcher:
    """Lists one batch system at intervals, or earlier when a change is expected."""

    def __init__(
        self, lrm: Lrm, pace: Pace, *, on_trouble: Callable[[str], None], clock: ServiceClock | None = None
    ) -> None:
        """``lrm`` has been started. ``clock``: dates all listings; None: a new one.

        ``on_trouble`` hears when the batch system stops answering (why), and when it answers again (empty).
        """
        self.clock = clock or ServiceClock()
        self._lrm = lrm
        self._pace = pace
        self._watcher = Watcher(
            self._read,
            breaker=CircuitBreaker(pause=pace.interval),
            on_trouble=lambda error: on_trouble("" if error is None else str(error)),
        )
        self._wanted = anyio.Event()
        self._queues: Mapping[str, Queue] = {}
        self._queues_at = -inf

    @property
    def failure(self) -> str | None:
        """Why the last listing failed; None when it succeeded."""
        return None if self._watcher.failure is None else str(self._watcher.failure)

    async def look(self) -> Listing | None:
        """Return a listing; None when the batch system does not answer."""
        if self._watcher.resting:
            return None
        try:
            return await self._watcher.look()
        except LrmError:
            return None

    def list_soon(self) -> None:
        """Schedule the next listing as early as the bounds allow."""
        self._wanted.set()

    async def pause(self, *, restless: bool, due: float | None) -> None:
        """Wait until the next listing. ``due``: at most so many seconds."""
        await anyio.sleep(self._pace.shortest)
        left = self._pace.interval - self._pace.shortest
        if not restless and left > 0:
            with anyio.move_on_after(left if due is None else min(left, max(0.0, due - self._pace.shortest))):
                await self._wanted.wait()
        self._wanted = anyio.Event()

    async def _read(self) -> Listing:
        now, offset = self.clock.now(), self.clock.offset
        listing = await read_listing(self._lrm, cluster=CLUSTER, read_at=now, offset=offset, to_schedule=True)
        if anyio.current_time() > self._queues_at + QUEUES_AGAIN:
            with answering(CLUSTER):
                self._queues = {queue.name: queue for queue in await self._lrm.queues()}
            self._queues_at = anyio.current_time()
        return replace(listing, queues=self._queues)


# -- Giving the queue back to the batch system's own scheduler -----------------------------------------------
# Only jobs held by the site's hook are released. It needs neither ``koala schedule`` nor a record of one; a job
# counts as released when a later listing confirms it.

ROUNDS = 5
"""Listings after which what is still held stays so: new jobs come in as long as the hook is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenBack:
    """Jobs that were released, run on, or stayed held."""

    released: tuple[LrmJobId, ...]
    """They waited in the hook's hold, and are in it no more."""
    running: tuple[LrmJobId, ...]
    """They run, and would have come back in that hold."""
    still_held: Mapping[LrmJobId, str]
    """Why, by job."""


async def give_back(lrm: Lrm, *, pins: Iterable[Pin] = (), tell: Callable[[str], None] = lambda _: None) -> GivenBack:
    """Release jobs that the site's hook holds. ``pins``: recorded starts, whose jobs may be tied to nodes.

    Raises LrmUnavailableError when the batch system does not answer; then it can be repeated.
    """
    held = await _untie(lrm, await lrm.held_by_hook(), pins, tell)
    running = [job.id for job in held if job.state is not LrmJobState.HELD]
    await _release(lrm, running)
    waiting: dict[LrmJobId, None] = {}
    failures: dict[LrmJobId, str] = {}
    now_held = _waiting(held)
    for _ in range(ROUNDS):
        tell(f"releasing {len(now_held)} jobs")
        waiting |= dict.fromkeys(now_held)
        failures = await _release(lrm, now_held)
        now_held = _waiting(await lrm.held_by_hook())
        if set(now_held) <= failures.keys():
            break
    still = {job: failures.get(job, "it came in meanwhile") for job in now_held}
    released = tuple(job for job in waiting if job not in still)
    return GivenBack(released=released, running=tuple(running), still_held=still)


async def _untie(
    lrm: Lrm, held: Sequence[LrmJob], pins: Iterable[Pin], tell: Callable[[str], None]
) -> Sequence[LrmJob]:
    """Untie jobs whose start was interrupted; return the jobs held afterwards."""
    on_record = Starts(pins=pins)
    found = (on_record.pin_of(job) for job in held if job.state is LrmJobState.HELD)
    ours = [pin.start for pin in found if pin is not None and pin.wishes is not None]
    for start in ours:
        tell(f"untying {start.job} from its nodes")
        try:
            await lrm.undo_start(start)
        except LrmUnavailableError:
            raise
        except LrmError:
            # It is gone, or will not be untied: it is released all the same.
            continue
    return await lrm.held_by_hook() if ours else held


def _waiting(jobs: Sequence[LrmJob]) -> list[LrmJobId]:
    return [job.id for job in jobs if job.state is LrmJobState.HELD]


async def _release(lrm: Lrm, jobs: Sequence[LrmJobId]) -> dict[LrmJobId, str]:
    """Release jobs, one by one if refused together; return the refused ones with the reasons."""
    if not jobs:
        return {}
    try:
        await lrm.give_back(jobs)
    except LrmUnavailableError:
        raise
    except LrmError as error:
        if len(jobs) == 1:
            return {jobs[0]: error.message}
    else:
        return {}
    middle = len(jobs) // 2
    return {**await _release(lrm, jobs[:middle]), **await _release(lrm, jobs[middle:])}


# -- The scheduler: look, decide, record, start, check the start ---------------------------------------------
# The batch system remains the truth. While it does not answer, nothing is decided and nothing is lost; when this
# process is killed, the next one finds its starts on record.

log = structlog.get_logger()


class OutsideScheduler:
    """Schedules the queue of one batch system from outside."""

    def __init__(
        self,
        watcher: PacedWatcher,
        mirror: Mirror,
        misfit_rules: MisfitRules,
        starter: Starter,
        record: StartLog,
        *,
        tell: Callable[[Sequence[JobEvent]], None],
    ) -> None:
        """``tell``: called after each listing with the events since, in times of day.

        The watcher's plugin has been started, and its clock is ours and the starter's, whose starts are the mirror's.
        """
        self._watcher = watcher
        self.mirror = mirror
        self._misfit_rules = misfit_rules
        self._starter = starter
        self._record = record
        self._tell = tell
        self._observed_at = 0.0

    async def run(self, *, once: bool = False) -> None:
        """Schedule until cancelled; ``once``: make one pass and return when its starts have shown.

        What does not run when it is cancelled is held again. While starts cannot be put on record nothing is started.
        """
        try:
            await self._run(once=once)
        finally:
            await self._starter.leave()

    async def _run(self, *, once: bool) -> None:
        async with anyio.create_task_group() as tasks:
            decided = False
            while True:
                listing = await self._watcher.look()
                if listing is not None:
                    await self._follow(listing, tasks, deciding=not (once and decided))
                    decided = True
                if once and decided and not self.restless:
                    break
                now = self._watcher.clock.now()
                due = self.mirror.next_due(now)
                await self._watcher.pause(restless=self.restless, due=None if due is None else due - now)

    @property
    def restless(self) -> bool:
        """Return whether starts are under way that a listing should show soon."""
        return any(entry.phase in {Phase.STARTING, Phase.RETURNING} for entry in self.mirror.entries.values())

    async def _follow(self, listing: Listing, tasks: TaskGroup, *, deciding: bool) -> None:
        """Process a listing: update, decide, and start or undo starts."""
        mirror = self.mirror
        if self._watcher.clock.step():
            self._note_clock()
        due = mirror.next_due(self._observed_at)
        mirror.observe(listing)
        self._observed_at = listing.read_at
        for job_id in mirror.starts_to_undo():
            await self._starter.undo_start(job_id)
        tasks.start_soon(self._starter.give_back)
        for job_id in self._starter.to_confirm():
            tasks.start_soon(self._starter.confirm, job_id)
        starts: list[Pin] = []
        if deciding and (mirror.dirty or mirror.unfinished or (due is not None and due <= listing.read_at)):
            starts = decide(mirror, self._misfit_rules, listing.read_at)
        for job_id in await self._starter.put_on_record([start.job_id for start in starts]):
            tasks.start_soon(self._start, job_id)
        self._tell_all()

    def _note_clock(self) -> None:
        try:
            self._record.note_clock(self._watcher.clock.reading())
        except JournalError as error:
            # What is lost is that the time of day was set, should this process end before it is noted again.
            log.warning("the clock's reading cannot be put on record", error=str(error))

    async def _start(self, job_id: LrmJobId) -> None:
        """Begin the start of one job; the next listings show the result."""
        await self._starter.ask(job_id)
        self._watcher.list_soon()

    def _tell_all(self) -> None:
        happened, self.mirror.happened = self.mirror.happened, []
        offset = self._watcher.clock.offset
        self._tell([shifted(one, offset) for one in happened])
