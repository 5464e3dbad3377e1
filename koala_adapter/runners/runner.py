# SPDX-License-Identifier: Apache-2.0
"""The interface of runners, the runner of plain processes, and sending launches to agents.

A runner translates between one job and the agents that hold its processors. The scheduler says which rank goes into
which placeholder; a runner says what each agent has to start, and what the tasks' starts and ends mean for the ranks.
It keeps no state that cannot be rebuilt: after a restart of the service the agents report their tasks, and the runner
answers with what is still to be started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from koala_adapter.errors import ConfigurationError
from koala_adapter.model import CACHED, Component, InputFile, Job, JobId, PlaceholderId, TaskEnd
from koala_adapter.runners.nodes import HOST, ClusterSoftware, RelayPlan
from koala_adapter.scheduler.events import Event, RankEnded, RankStarted
from koala_adapter.scheduler.parameters import lacking
from koala_adapter.vjm.channel import Forward, Launch, LaunchFile, Signal, TimeWarning
from koala_adapter.vjm.jobscript import END_MARGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.scheduler.actions import Rank
    from koala_adapter.scheduler.records import JobRecord, PlaceholderRecord


# -- When the processes of a job are ended because their time is over ----------------------------------------


def process_ends_at(
    record: JobRecord, rank: Rank, placeholders: Mapping[PlaceholderId, PlaceholderRecord], now: float
) -> float:
    """Return the time at which a process is ended: the end of the job's walltime or of its placeholder."""
    launched_at = now if record.launched_at is None else record.launched_at
    placeholder = placeholders.get(rank.placeholder)
    own = None if placeholder is None else placeholder.ends_at
    of_job = launched_at + record.job.walltime
    return of_job if own is None else min(of_job, own - END_MARGIN)


def job_ends_at(record: JobRecord, placeholders: Mapping[PlaceholderId, PlaceholderRecord], now: float) -> float:
    """Return when the first process of a launched job is ended, and with it the job if its processes are in step."""
    here = (rank for rank in record.ranks if rank.rank not in record.departed and rank.rank not in record.ends)
    return min((process_ends_at(record, rank, placeholders, now) for rank in here), default=now + record.job.walltime)


LAUNCHER_TASK = "launcher"
"""Name of the task that is the launcher of an MPI program."""
OPENMP_THREADS = "OMP_NUM_THREADS"
"""Set to the threads of each rank, unless the job sets it: OpenMP would use all processors of the node."""


def task_id(job_id: JobId, of: int | str) -> str:
    """Return the id of a job's task: that of a rank, or LAUNCHER_TASK."""
    return f"{job_id}:{of}"


# -- The interface -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressedLaunch:
    """A launch with its placeholder."""

    placeholder: PlaceholderId
    launch: Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressedSignal:
    """A signal with its placeholder."""

    placeholder: PlaceholderId
    signal: Signal


Order: TypeAlias = "AddressedLaunch | AddressedSignal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """Launches and events that follow from a task's output."""

    launches: tuple[AddressedLaunch, ...] = ()
    events: tuple[Event, ...] = ()


def by_placeholder(ranks: Iterable[Rank]) -> Mapping[PlaceholderId, Sequence[Rank]]:
    """Return ranks by placeholder."""
    found: dict[PlaceholderId, list[Rank]] = {}
    for rank in ranks:
        found.setdefault(rank.placeholder, []).append(rank)
    return found


@dataclass(frozen=True, kw_only=True)
class Application:
    """A placed job with all that its runner needs to know."""

    job: Job
    ranks: tuple[Rank, ...]
    files: Mapping[str, tuple[LaunchFile, ...]]
    """Component name to its input files."""
    replicas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Cluster name to the paths there of input files, by their sources."""
    places: tuple[str, ...] = ()
    """Directories in which nodes may find large input files by their digests."""
    share: str = ""
    """Name of the directory in which the agents of the job on one node share large input files."""
    library: tuple[LaunchFile, ...] = ()
    """The application library, for ranks of adaptive components."""
    software: Mapping[str, ClusterSoftware] = field(default_factory=dict)
    """Cluster name to what its nodes have."""
    attempt: int = 1
    """Number of the attempt."""
    relay: RelayPlan | None = None
    """How ranks reach those, or koala's host, that they cannot reach by themselves; None: nothing is relayed."""

    # Worked out once: thousands of ranks ask for them.

    @cached_property
    def _addresses(self) -> Mapping[str, str]:
        clusters = dict.fromkeys(rank.cluster for rank in self.ranks)
        return {
            cluster: ",".join(self.address_for(cluster, rank) for rank in self.ranks)
            for cluster in (clusters if self.relay is not None else [""])
        }

    def address_for(self, cluster: str, rank: Rank) -> str:
        """Return the address by which processes on a cluster reach a rank."""
        own = rank.address or rank.host
        return own if self.relay is None else self.relay.address_for(cluster, rank.rank, rank.cluster, own)

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return Counter(rank.component for rank in self.ranks)

    @cached_property
    def _head(self) -> Rank | None:
        return next((rank for rank in self.ranks if self.job.is_head(rank.component)), None)

    @cached_property
    def ranks_numbered(self) -> Mapping[int, Rank]:
        """Ranks by number."""
        return {rank.rank: rank for rank in self.ranks}

    @cached_property
    def ranks_in(self) -> Mapping[PlaceholderId, Sequence[Rank]]:
        """Ranks by placeholder."""
        return by_placeholder(self.ranks)

    def environment(self, rank: Rank) -> tuple[tuple[str, str], ...]:
        """Return the variables that koala adds to a rank's environment."""
        component = self.job.component(rank.component)
        threads = str(component.slot.threads_of_rank)
        own = {
            "KOALA_JOB_ID": self.job.id,
            "KOALA_JOB_NAME": self.job.name,
            "KOALA_RANK": str(rank.rank),
            "KOALA_SIZE": str(len(self.ranks)),
            "KOALA_COMPONENT": rank.component,
            "KOALA_COMPONENT_RANK": str(rank.component_rank),
            "KOALA_COMPONENT_SIZE": str(self._sizes[rank.component]),
            "KOALA_CLUSTER": rank.cluster,
            "KOALA_THREADS": threads,
            "KOALA_ADDRESSES": self._addresses["" if self.relay is None else rank.cluster],
            "KOALA_ATTEMPT": str(self.attempt),
        }
        if self._head is not None:
            own["KOALA_HEAD_ADDRESS"] = self.address_for(rank.cluster, self._head)
        if self.relay is not None and self.job.host_ports:
            own["KOALA_HOST_ADDRESS"] = self.relay.host_address(rank.cluster)
        if self.relay is not None and self.job.relay:
            own["KOALA_RELAY_ADDRESS"] = self.relay.common_address(rank)
        given = {OPENMP_THREADS: threads, **dict(self.job.environment), **dict(component.environment)}
        return tuple({**given, **own}.items())

    def forwards(self, rank: Rank) -> tuple[Forward, ...]:
        """Return what a rank's agent listens at before the rank starts."""
        host = "" if self.relay is None else self.relay.host_address(rank.cluster)
        if self.relay is None or not self.job.host_ports or host != self.relay.address(HOST):
            return ()
        return (Forward(job=self.job.id, number=0, peer=HOST, address=host, ports=self.job.host_ports),)

    def component(self, rank: Rank) -> Component:
        """Return the component of a rank."""
        return self.job.component(rank.component)

    @property
    def warning(self) -> TimeWarning | None:
        """Signal that tells ranks to save their state before the walltime ends."""
        job = self.job
        if not job.checkpoint_signal:
            return None
        return TimeWarning(signal=job.checkpoint_signal, after=float(job.walltime - job.warn_before))

    def setup(self, rank: Rank) -> tuple[str, ...]:
        """Return the shell lines that run before a rank."""
        return self._software(rank).setup_of(self.component(rank))

    def container(self, rank: Rank) -> tuple[str, ...]:
        """Return the words before a rank's command that run it in a container; empty without one."""
        component = self.component(rank)
        given = dict([(OPENMP_THREADS, ""), *self.job.environment, *component.environment])
        return self._software(rank).container_of(component, tuple(given))

    def program(self, rank: Rank) -> tuple[str, ...]:
        """Return a rank's command."""
        return (*self.container(rank), *self.component(rank).command)

    def files_of(self, rank: Rank) -> tuple[LaunchFile, ...]:
        """Return the input files of a rank."""
        replicas = self.replicas.get(rank.cluster, {})
        named = [_named(file, replicas[file.source]) for file in self.component(rank).files_named]
        return (*self.files.get(rank.component, ()), *named)

    def check_clusters(self) -> None:
        """Raise ConfigurationError when a cluster has no more the software, or a file, of its ranks."""
        for rank in {(one.cluster, one.component): one for one in self.ranks}.values():
            cluster, component, found = rank.cluster, self.component(rank), self._software(rank)
            lack = lacking(component, found.software, found.container_runtime)
            if lack is not None:
                raise ConfigurationError(f"cluster {cluster}, component {component.name!r}: {lack}")
            for file in component.input_files:
                if file.logical and file.source not in self.replicas.get(cluster, {}):
                    raise ConfigurationError(f"the catalogue of cluster {cluster} has {file.source} no more")

    def _software(self, rank: Rank) -> ClusterSoftware:
        return self.software.get(rank.cluster, ClusterSoftware())


def _named(file: InputFile, place: str) -> LaunchFile:
    """Return a file with a logical name as a launch has it: a link, or a content of the cache of its site."""
    if not place.startswith(CACHED):
        return LaunchFile(target=file.target, mode=0, link=place)
    digest, size = place.removeprefix(CACHED).split("/")
    return LaunchFile(target=file.target, mode=0o600, digest=digest, size=int(size))


class Runner(ABC):
    """Translates between the scheduler's records and the processes of one job; pure."""

    speaks: ClassVar[bool] = False
    """Whether its processes say something of themselves, in notes and templates."""

    def __init__(self, application: Application) -> None:
        """``application``: the job with its ranks."""
        self.application = application

    @abstractmethod
    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        """Return all that can be started now in a rank's placeholder."""

    def launches(self) -> Iterator[AddressedLaunch]:
        """Return all that can be started now; starting a task twice is harmless."""
        for rank in self.application.ranks:
            yield from self.launches_in(rank)

    def asked_again(self, rank: Rank, now: float) -> Sequence[Order]:
        """Return what must be repeated to the agent of a rank that is in contact again."""
        del rank, now
        return ()

    def grow(self, application: Application, ranks: Collection[int]) -> Sequence[AddressedLaunch]:
        """Add new ranks (``application`` has them all); return what is to be started."""
        self.application = application
        return [launch for rank in application.ranks if rank.rank in ranks for launch in self.launches_in(rank)]

    def output_of(self, task: str, stream: str, offset: int, data: bytes, now: float) -> Reaction:
        """Process output of a task from ``offset`` on; earlier output may be repeated."""
        del task, stream, offset, data, now
        return Reaction()

    def started(self, task: str, now: float) -> Sequence[Event]:
        """Return the event that follows from a task's start."""
        rank = self.rank_of(task)
        return () if rank is None else (RankStarted(time=now, job_id=self.application.job.id, rank=rank),)

    def ended(self, task: str, end: TaskEnd, now: float) -> Sequence[Event]:
        """Return the event that follows from a task's end."""
        return (RankEnded(time=now, job_id=self.application.job.id, rank=self.rank_of(task), end=end),)

    def task_of(self, rank: int) -> str:
        """Return the task id of a rank."""
        return task_id(self.application.job.id, rank)

    def rank_of(self, task: str) -> int | None:
        """Return the rank of a task; None for the application's launcher."""
        _, _, tail = task.partition(":")
        return int(tail) if tail.isdecimal() else None


# -- Sending launches, those with large input files a few at a time ------------------------------------------
# Each rank gets the files of its component in its own message: 500 ranks with a program of 5 MiB need more than 3 GiB
# of messages, of which only a bounded part may be in memory.

IN_FLIGHT = 64 * 1024 * 1024
"""Bytes of files that may be on their way; a single launch may have more."""


class Sending:
    """Queue of launches, which bounds how many with files are on their way."""

    def __init__(self, order: Callable[[AddressedLaunch], bool]) -> None:
        """``order``: sends a launch; returns False when its agent is not connected."""
        self._order = order
        self._waiting: deque[AddressedLaunch] = deque()
        self._under_way: dict[str, tuple[PlaceholderId, int]] = {}
        self._bytes = 0
        self._pumping = False

    def add(self, launches: Iterable[AddressedLaunch]) -> None:
        """Send launches as soon as there is room for them."""
        self._waiting.extend(launches)
        self._pump()

    def arrived(self, task: str) -> None:
        """Register that an agent has received a launch."""
        self._drop([task])

    def lost(self, placeholder: PlaceholderId) -> None:
        """Register that an agent is out of contact; launches on their way to it are lost."""
        self._drop([task for task, (whose, _) in self._under_way.items() if whose == placeholder])

    def forget(self, job_id: JobId) -> None:
        """Drop all launches of a job that is over."""
        prefix = f"{job_id}:"
        self._waiting = deque(one for one in self._waiting if not one.launch.task.startswith(prefix))
        self._drop([task for task in self._under_way if task.startswith(prefix)])

    def _drop(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            _, size = self._under_way.pop(task, (None, 0))
            self._bytes -= size
        self._pump()

    def _pump(self) -> None:
        if self._pumping:  # an order that fails ends its job, which is then forgotten
            return
        self._pumping = True
        try:
            while self._waiting and (not self._bytes or self._bytes + _size(self._waiting[0]) <= IN_FLIGHT):
                one = self._waiting.popleft()
                if self._order(one) and (size := _size(one)):
                    _, before = self._under_way.get(one.launch.task, (None, 0))
                    self._under_way[one.launch.task] = (one.placeholder, size)
                    self._bytes += size - before
        finally:
            self._pumping = False


ENTRY = 256
"""Bytes for a file that travels by itself."""


def _size(one: AddressedLaunch) -> int:
    return sum(ENTRY if file.digest else len(file.content) for file in one.launch.files)


# -- The runner of launcher ``process`` ----------------------------------------------------------------------
# Every rank is the component's command, started in its own placeholder.


class ProcessRunner(Runner):
    """Runner of one process for each rank."""

    def launches_in(self, rank: Rank) -> Sequence[AddressedLaunch]:
        application = self.application
        launch = Launch(
            task=self.task_of(rank.rank),
            argv=application.program(rank),
            setup=application.setup(rank),
            environment=application.environment(rank),
            working_directory=application.job.working_directory,
            files=application.files_of(rank),
            places=application.places,
            share=application.share,
            time_limit=float(application.job.walltime),
            warning=application.warning,
            output_files=application.component(rank).output_files,
            relayed=application.relay is not None and application.relay.ranks,
            forwards=application.forwards(rank),
        )
        return (AddressedLaunch(placeholder=rank.placeholder, launch=launch),)
