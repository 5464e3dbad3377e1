# SPDX-License-Identifier: Apache-2.0
"""Immutable values for jobs, components, clusters, nodes, jobs of a batch system and placeholders.

Units: times are in seconds (points in time since the epoch), memory in MiB, sizes in slots. One placeholder holds one
slot: a processor, unless its component needs more (:mod:`koala_adapter.slots`). ``EndReason``, ``JobKind`` and
``TaskEnd`` are in :mod:`koala_adapter.outcome` and exported here, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from koala_adapter.outcome import EndReason as EndReason  # noqa: PLC0414 - a noun like those here, only quicker to import
from koala_adapter.outcome import JobKind as JobKind  # noqa: PLC0414 - a noun like those here, only quicker to import
from koala_adapter.outcome import TaskEnd as TaskEnd  # noqa: PLC0414 - a noun like those here, only quicker to import
from koala_adapter.slots import PLAIN, Slot

JobId = NewType("JobId", str)
ClusterName = NewType("ClusterName", str)
LrmJobId = NewType("LrmJobId", str)
BatchKey = NewType("BatchKey", str)
"""Name of one LRM submission of n placeholders: also its LRM job name, by which it is found again after a crash."""


class Launcher(StrEnum):
    """Way in which a component's processes are started in its placeholders."""

    PROCESS = "process"
    MPI = "mpi"


class MpiResize(StrEnum):
    """How an MPI program comes to another number of processes."""

    SPAWN = "spawn"
    """Processes are spawned, and leave, one at a time (MPI_Comm_spawn)."""
    RESTART = "restart"
    """All end, with the state in files, and the program is started anew."""


class RunnerName(StrEnum):
    """What starts an application's processes in held placeholders, by how its size can change."""

    RANKS = "ranks"
    """The launcher alone: as many processes as there are placeholders, from the start to the end."""
    WORKERS = "workers"
    """A head that stays, and workers that find it by themselves: one comes or goes without the others."""
    ADAPTIVE = "adaptive"
    """Processes that compute in step and use the application library: all of them change together, at one point."""
    SWEEP = "sweep"
    """Launchers that come and go as workers do, and get the tasks of a sweep from the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retirement:
    """Way in which a worker is asked to end: a signal, or a command that is run beside it with a time limit."""

    signal: int = 15
    """Sent to all processes of the worker when there is no ``command``."""
    command: tuple[str, ...] = ()
    """Run on the worker's node, in its environment; empty: none."""
    grace: int = 30
    """Seconds after which a worker that is still there is killed."""


LARGEST_SENT = 20 * 1024 * 1024
"""Bytes of the input files of a component together that each rank gets in the message that launches it."""


LOGICAL = "lfn:"
"""How the source of an input file begins that is a logical name."""
CACHED = "cached:"
"""How the place of such a file begins that koala has put into the cache of a site; SHA-256, a slash and size follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file that each rank finds in its working directory when it starts: a copy, or a link to one of its cluster."""

    source: str
    """Absolute path on the submitting host; or LOGICAL and a name that the catalogues of clusters have."""
    target: str
    """Path relative to the rank's working directory."""
    size: int | None = None
    """Bytes, of a directory those of all its files; None: not known."""

    @property
    def logical(self) -> bool:
        """Whether the file has a logical name, for which catalogues have paths."""
        return self.source.startswith(LOGICAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of a job that runs in one cluster: a command in ``minimum`` to ``maximum`` slots (equal if rigid)."""

    name: str
    command: tuple[str, ...]
    minimum: int
    maximum: int
    cluster: ClusterName | None = None
    """The cluster the user insists on; None leaves the choice to the placement policy."""
    launcher: Launcher = Launcher.PROCESS
    input_files: tuple[InputFile, ...] = ()
    output_files: tuple[str, ...] = ()
    """Glob patterns, relative to a rank's directory, of the files that are fetched from each rank when it has ended."""
    environment: tuple[tuple[str, str], ...] = ()
    """Added to the job's environment for this component."""
    initial: int | None = None
    """Processors that a component of a malleable job starts with, where so many are idle; None: its minimum."""
    flexible: bool = False
    """The placement policy may split it over several clusters (KOALA's flexible request), if it does so at all.

    In a malleable job it may grow on any cluster.
    """
    sizes: str = "any"
    """Sizes that it can have while the job runs: ``any``, ``power-of-two`` or ``multiple-of-N``.

    Of an adaptive component only a bound: which of them it takes, its processes say.
    """
    point_patience: int = 60
    """Seconds in which the processes of an adaptive component must all stand at one adaptation point."""
    done_patience: int = 600
    """Seconds in which they must then have carried the change out."""
    retirement: Retirement = Retirement()
    """How a worker among its processes is asked to end."""
    slot: Slot = PLAIN
    """What each of its ranks needs."""
    slots: tuple[tuple[ClusterName, Slot], ...] = ()
    """What they need on some clusters, where that is something else, such as another queue."""
    setup: tuple[str, ...] = ()
    """Lines that a shell runs on the node before each rank, which then starts in the environment that they leave."""
    software: tuple[str, ...] = ()
    """Names of software in the site file. It can only run on clusters that have all of it."""
    container: str = ""
    """Image in which its ranks run, by the container runtime of their cluster; empty: none."""

    @property
    def has_large_files(self) -> bool:
        """Tell whether its input files are too large for the message that launches a rank."""
        return sum(file.size or 0 for file in self.input_files) > LARGEST_SENT

    @property
    def files_travel(self) -> bool:
        """Tell whether input files may have to be brought to a site before its ranks can start there."""
        return any(file.logical for file in self.input_files) or self.has_large_files

    @property
    def files_sent(self) -> tuple[InputFile, ...]:
        """Input files of the submitting host."""
        return tuple(file for file in self.input_files if not file.logical)

    @property
    def files_named(self) -> tuple[InputFile, ...]:
        """Input files with logical names."""
        return tuple(file for file in self.input_files if file.logical)

    def slot_on(self, cluster: ClusterName) -> Slot:
        """Return what each of its ranks needs on a cluster."""
        return dict(self.slots).get(cluster, self.slot) if self.slots else self.slot

    @property
    def takes_any_size(self) -> bool:
        """Whether every size within its bounds can be used."""
        return self.sizes == "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAxis:
    """Parameters of a sweep that vary together: a list of values, a range, or a file."""

    names: tuple[str, ...]
    count: int
    rows: tuple[tuple[str, ...], ...] = ()
    """Values of each name, in their order."""
    first: str | None = None
    """A decimal number, to which ``step`` is added each time."""
    step: str = "1"
    file: str | None = None
    """Absolute path on the submitting host of a file with a value on each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Tasks of a sweep: the component's command with parameter values in place of names."""

    axes: tuple[SweepAxis, ...]
    together: bool = False
    """The first values of all axes are a task, and so on; else each value is combined with each other one."""
    repeats: int = 2
    """How often a task that fails is tried again."""
    continues: JobId | None = None
    """The first of the jobs of this sweep, where an earlier one was stopped."""
    is_array: bool = False
    """It was written as an array: its parameter is the index of the task."""


class AfterEnd(StrEnum):
    """How a job must have ended before the job that depends on it starts."""

    OK = "ok"
    """It has completed."""
    FAILED = "failed"
    """It has ended otherwise."""
    ANY = "any"


class Notified(StrEnum):
    """Events of a job that its user is notified of."""

    START = "start"
    END = "end"
    """However it ends."""
    FAIL = "fail"
    """It ends otherwise than well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class After:
    """Dependency on the end of another job."""

    job: JobId
    """Before the submission also a name: that of the latest job that has it."""
    end: AfterEnd = AfterEnd.OK


class RetriedEnd(StrEnum):
    """Ends of a job after which it is tried again, beside exit statuses."""

    FAILED = "failed"
    """A rank ended with another status than 0, was killed by a signal, or could not be started."""
    LOST = "lost"
    """A node, or the contact to an agent, was lost."""
    MEMORY = "memory"
    """A rank was killed because it used more memory than it had."""
    WALLTIME = "walltime"
    """Its walltime was over."""


GOES_ON_STATUS = 75
"""Exit status of a rank that has saved its state and is not finished (EX_TEMPFAIL of sysexits(3))."""


class Claiming(StrEnum):
    """How the processors of a job are claimed."""

    PLACEHOLDERS = "placeholders"
    RESERVE = "reserve"
    """By a reservation of the batch system, and placeholders in it; by placeholders alone where that is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One parallel job as submitted; nothing in it changes afterwards."""

    id: JobId
    name: str
    kind: JobKind
    components: tuple[Component, ...]
    walltime: int
    """Seconds that the job may run, from the launch of its ranks."""
    user: str
    submitted_at: float
    priority: int = 0
    """Higher goes first; equal priorities go in order of submission."""
    placement: str = "worst-fit"
    """Name of the placement policy."""
    claiming: Claiming | None = None
    """How its processors are claimed; None: as its clusters say."""
    maximum_tries: int | None = None
    """Placement tries after which the submission fails; None: the site's number."""
    environment: tuple[tuple[str, str], ...] = ()
    working_directory: str | None = None
    """Directory on the nodes in which ranks start; None: a private temporary directory of each placeholder."""
    runner: RunnerName = RunnerName.RANKS
    mpi_resize: MpiResize = MpiResize.RESTART
    """Of an adaptive job of launcher mpi."""
    warn_before: int = 0
    """Seconds before its walltime ends at which an adaptive program is told, workers are asked to end, or
    ``checkpoint_signal`` is sent; 0: never."""
    checkpoint_signal: int = 0
    """Sent to the processes of a rank job that have a handler for it, so that they save their state; 0: none."""
    requeue_on_walltime: bool = False
    """It waits and runs again when its walltime is over, or a rank has ended with GOES_ON_STATUS."""
    retries: int = 0
    """How often it runs again after an end that is one of ``retry_on``."""
    retry_on: tuple[RetriedEnd | int, ...] = (RetriedEnd.FAILED, RetriedEnd.LOST)
    """A number is an exit status."""
    sweep: Sweep | None = None
    """What a job with runner ``sweep`` does."""
    after: tuple[After, ...] = ()
    """Jobs that must have ended before it starts."""
    notify: tuple[Notified, ...] = ()
    """What of it is told."""
    relay: bool = False
    """Ranks whose nodes cannot connect reach each other through koala."""
    host_ports: tuple[int, ...] = ()
    """Ports of koala's host to which ranks may connect, through koala where their nodes cannot."""

    def shapes_on(self, cluster: ClusterName) -> tuple[Slot, ...]:
        """Return the shapes of slots, other than one processor, of components that may go to a cluster."""
        there = (one.slot_on(cluster) for one in self.components if one.cluster in {None, cluster})
        return tuple(dict.fromkeys(slot.shape for slot in there if not slot.is_plain))

    def changes_size(self, name: str) -> bool:
        """Tell whether a component may change its size while the job runs."""
        component = self.component(name)
        return self.kind.varies and component.minimum < component.maximum

    def is_head(self, name: str) -> bool:
        """Whether a component is (part of) the head of workers: it keeps its size to the end."""
        component = self.component(name)
        bears_others = self.runner not in {RunnerName.RANKS, RunnerName.SWEEP}
        return bears_others and component.minimum == component.maximum

    def goes_on_after(self, end: TaskEnd) -> bool:
        """Whether a rank's end means that the job is to be started again from its saved state."""
        return self.requeue_on_walltime and end.reason is EndReason.EXITED and end.exit_code == GOES_ON_STATUS

    @property
    def input_files(self) -> tuple[InputFile, ...]:
        """Input files of all its components."""
        return tuple(file for component in self.components for file in component.input_files)

    @property
    def has_workers(self) -> bool:
        """Whether its processes come and go one by one."""
        return self.runner in {RunnerName.WORKERS, RunnerName.SWEEP}

    def adapts(self, name: str) -> bool:
        """Whether a component's processes use the application library and change together."""
        return self.runner is RunnerName.ADAPTIVE and self.changes_size(name)

    @property
    def launcher(self) -> Launcher:
        """The launcher all components share (the job file sees to that)."""
        return self.components[0].launcher

    def component(self, name: str) -> Component:
        """Return the component called ``name``. Raises KeyError when there is none."""
        for component in self.components:
            if component.name == name:
                return component
        raise KeyError(name)


class NodeState(StrEnum):
    """What a node can be used for now."""

    UP = "up"
    DRAINING = "draining"
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """GPUs of one kind on a node."""

    kind: str
    """The LRM's word for the kind, such as ``a100``; empty: it has none."""
    count: int
    used: int = 0
    """Those of them that jobs have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A compute node as its LRM describes it."""

    name: str
    state: NodeState
    processors: int
    """Configured processors."""
    processors_used: int
    """Processors allocated to jobs of all users."""
    memory_mib: int | None = None
    load: float | None = None
    """Operating-system load average, when the LRM tells."""
    queues: tuple[str, ...] = ()
    """Partitions or queues that the node serves."""
    raw_state: str = ""
    """The LRM's own word for the state."""
    reason: str = ""
    """Why it is down or draining, when the LRM tells."""
    features: tuple[str, ...] = ()
    architecture: str = ""
    operating_system: str = ""
    memory_used_mib: int | None = None
    """Memory allocated to jobs, when the LRM counts it."""
    disk_mib: int | None = None
    """Space on its own disk, when the LRM tells."""
    gpus: tuple[NodeGpus, ...] = ()
    untold: tuple[str, ...] = ()
    """Keys of a slot, of gpus, gpu_kind and features, of which the LRM does not tell what the node has."""
    grain: int = 1
    """Processors that a job gets at a time here, such as the threads of a core: it has a multiple of them."""
    queue_grains: tuple[tuple[str, int], ...] = ()
    """Queues whose jobs get another number at a time; an empty name stands for jobs that name none."""
    counts_grains: bool = True
    """``processors_used`` counts whole ones; else each processor that is used may keep others from its core."""
    whole_queues: tuple[str, ...] = ()
    """Queues that give the node to one job as a whole; among them an empty name, if jobs that name no queue get it so.
    """
    closed_queues: tuple[str, ...] = ()
    """Queues of the node that take or start no job now; an empty name stands for jobs that name none."""
    queue_places: tuple[tuple[str, int, int], ...] = ()
    """Queues whose jobs each take something else here, such as a GPU: how many jobs that allows ever, and now.

    An empty name stands for jobs that name no queue.
    """

    def grain_in(self, queue: str | None) -> int:
        """Return the number of processors in which a queue (or list of queues) allocates a node."""
        if not self.queue_grains:
            return self.grain
        own, names = dict(self.queue_grains), (queue or "").split(",")
        return max(own.get(name, self.grain) for name in names)

    def gives(self, job: LrmJob, processors: int) -> int:
        """Return how many processors a job gets here when it asks for ``processors``: whole cores, or all."""
        whole = job.exclusive or any(name in self.whole_queues for name in job.queue.split(","))
        grain = self.grain_in(job.queue)
        wanted = self.processors if whole else job.cores(processors, grain) * grain
        return max(processors, min(wanted, self.processors))

    def places(self, queue: str | None) -> int:
        """Return how many jobs of one processor, or placeholders, the node takes when nothing else runs on it."""
        ever, _ = self._place_limits(queue)
        if (queue or "") in self.whole_queues:
            return min(1, self.processors, ever)
        return min(-(-self.processors // self.grain_in(queue)), ever)

    def places_idle(self, queue: str | None) -> int:
        """Return how many jobs of one processor, or placeholders, could start now."""
        if (queue or "") in self.closed_queues:
            return 0
        _, now = self._place_limits(queue)
        if (queue or "") in self.whole_queues:
            return min(1, self.processors_idle, now) if self.processors_used == 0 else 0
        if not self.counts_grains:
            cores = -(-self.processors // self.grain_in(queue))
            return min(self.processors_idle, max(0, cores - self.processors_used), now)
        return min(self.processors_idle // self.grain_in(queue), now)

    def _place_limits(self, queue: str | None) -> tuple[int, int]:
        """Return how many jobs of a queue (or list of queues) ``queue_places`` allows in all and now."""
        limits = {name: (ever, now) for name, ever, now in self.queue_places}
        found = [limits.get(name, (self.processors, self.processors)) for name in (queue or "").split(",")]
        return max(ever for ever, _ in found), max(now for _, now in found)

    @property
    def processors_idle(self) -> int:
        """Processors that a new job could get now; 0 unless the node is up."""
        return self._unused if self.state is NodeState.UP else 0

    @property
    def processors_out_of_service(self) -> int:
        """Unused processors that no job can get, as the node is not up."""
        return 0 if self.state is NodeState.UP else self._unused

    @property
    def _unused(self) -> int:
        return max(0, self.processors - self.processors_used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A partition (Slurm) or cluster queue (Grid Engine, PBS)."""

    name: str
    up: bool
    processors: int
    walltime_limit: int | None = None
    """Seconds; None: no limit."""
    default: bool = False


class HoldOwner(StrEnum):
    """Owner of the hold of a waiting job, who may release it."""

    USER = "user"
    OPERATOR = "operator"
    """The site: an operator, a submission hook, or an outside scheduler that owns the order."""
    SYSTEM = "system"


class LrmJobState(StrEnum):
    """State of an LRM job in words common to all LRMs. What a plugin does not recognize is UNKNOWN, never a guess."""

    QUEUED = "queued"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    ENDED = "ended"
    UNKNOWN = "unknown"


WAITING = frozenset({LrmJobState.QUEUED, LrmJobState.HELD})
ACTIVE = frozenset({LrmJobState.STARTING, LrmJobState.RUNNING, LrmJobState.SUSPENDED})
OCCUPYING = ACTIVE | {LrmJobState.ENDING}
"""States in which a job has its processors. Suspended jobs keep their memory and come back; ending ones still clean."""


_ELEMENT = re.compile(r"(?<=\[)[0-9]+(?=\])|[0-9]+$")
"""In the id of an element: ``12_3``, ``12.3`` or ``12[3].server``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LrmJob:
    """A job (or one element of a job array) as its LRM shows it."""

    id: LrmJobId
    name: str
    state: LrmJobState
    user: str
    """Login name of its owner; empty when the LRM does not tell, never a guess."""
    processors: int
    array_index: int | None = None
    """1-based index within the array of submission ``name``; None for a job that is no array element."""
    nodes: tuple[str, ...] = ()
    queue: str = ""
    reason: str = ""
    """The LRM's own word on why the job waits or ended."""
    end: EndReason | None = None
    """Set only when ``state`` is ENDED, or ENDING, and the LRM says why."""
    exit_code: int | None = None
    signal: int | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ends_at: float | None = None
    """End of the walltime while running; time of the end afterwards."""
    raw_state: str = ""
    walltime: int | None = None
    """Seconds the job asked for (or the queue gives it); None: no limit, or not known."""
    eligible_at: float | None = None
    """Earliest start: its begin time. None: at once."""
    dependency: str = ""
    """The jobs that it waits for, in its LRM's own words."""
    dependent: bool = False
    """It waits for other jobs, and may not be started before them."""
    blocked: bool = False
    """It waits for something else than free processors, such as a limit or a licence, as far as the LRM tells.

    A reason that may mean that others have the processors, whatever words it is in, does not make it blocked.
    """
    kept: bool = False
    """Neither free processors nor the ends of other jobs let it start: a limit that it exceeds alone, or the site, must
    change."""
    obstacle: str = ""
    """Why an outside scheduler cannot start it as things are, were all processors free; empty when it could."""
    hold: HoldOwner | None = None
    """Who holds it; only when ``state`` is HELD."""
    layout: tuple[tuple[str, int], ...] = ()
    """Pairs (node, processors held there) while it runs, in the order of its tasks."""
    processors_per_task: int = 1
    nodes_wanted: int | None = None
    """Number of nodes it insists on; None: any number within the two bounds that follow."""
    nodes_least: int = 1
    """Nodes that it must have at least."""
    nodes_most: int | None = None
    """Nodes that it may have at most; None: any number."""
    tasks_per_node: int | None = None
    threads_per_core: int | None = None
    """Of each core that it has, as many processors at most are its own; None: all. Only while it waits."""
    tasks_per_core: int | None = None
    """Tasks that share a core at most; None: any number. Only while it waits."""
    memory_per_processor_mib: int | None = None
    memory_per_node_mib: int | None = None
    features: tuple[str, ...] = ()
    """Node features, all of which its nodes must have."""
    any_feature: tuple[str, ...] = ()
    """Node features, one of which each of its nodes must have."""
    possible_nodes: tuple[str, ...] | None = None
    """Nodes that have now what else it asks for on each, such as generic resources; None: nothing."""
    disk_per_node_mib: int | None = None
    gpus_per_node: int = 0
    """GPUs that each of its nodes must have free for it, at least, as far as its LRM tells. Only while it waits."""
    exclusive: bool = False
    """It has its nodes for itself."""
    requested_nodes: tuple[str, ...] = ()
    """Nodes it must run on (pins of ours included)."""
    excluded_nodes: tuple[str, ...] = ()
    group: str = ""
    account: str = ""
    working_directory: str = ""
    comment: str = ""
    """Its user's, where its LRM has such a thing."""
    requeues: int = 0
    """How often it was queued again after it had run; its time of submission may be that of the last time."""
    tied: bool = False
    """It waits, and may still be tied to the nodes on which we started it: plugins do not tell this, the record of
    starts does."""

    @property
    def array(self) -> str | None:
        """Id of the job array that it is an element of; None for other jobs."""
        return None if self.array_index is None else _ELEMENT.sub("", self.id)

    def cores(self, processors: int, threads: int) -> int:
        """Return how many cores of ``threads`` threads it takes for so many processors on a node."""
        own = min(self.threads_per_core or threads, threads)
        shared = min(self.tasks_per_core or own, own)
        if own == shared == threads or self.processors_per_task == 1:
            return -(-processors // shared)
        return -(-processors // self.processors_per_task) * -(-self.processors_per_task // own)

    def processors_on(self, cores: int, threads: int) -> int:
        """Return the most processors, in whole tasks, that it can have on a node with so many free cores."""
        own = min(self.threads_per_core or threads, threads)
        shared = min(self.tasks_per_core or own, own)
        if own == shared == threads or self.processors_per_task == 1:
            return cores * shared
        return cores // -(-self.processors_per_task // own) * self.processors_per_task

    @property
    def node_bounds(self) -> tuple[int, int | None]:
        """Minimum and maximum number of nodes (None: no maximum)."""
        if self.nodes_wanted is not None:
            return self.nodes_wanted, self.nodes_wanted
        return self.nodes_least, self.nodes_most

    @property
    def nodes_asked(self) -> str:
        """Number of nodes that it asks for, in words."""
        least, most = self.node_bounds
        if most is None:
            return f"at least {least} nodes" if least > 1 else "any number of nodes"
        if least == most:
            return f"{least} nodes" if least != 1 else "one node"
        return f"{least} to {most} nodes"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PlaceholderId:
    """Identity of a placeholder: its submission and its element (from 1)."""

    batch: BatchKey
    index: int

    def __str__(self) -> str:
        """``BATCH.INDEX``."""
        return f"{self.batch}.{self.index}"
