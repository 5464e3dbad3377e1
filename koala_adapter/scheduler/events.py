# SPDX-License-Identifier: Apache-2.0
"""Events: everything that can happen to the scheduler, as immutable values.

Every event carries its time (seconds since the epoch), because the scheduler has no clock. The journal stores exactly
these values and recovery replays them, so fields may only be added, and with a default.
"""

from __future__ import annotations

from dataclasses import dataclass

from koala_adapter.model import (
    BatchKey,
    ClusterName,
    EndReason,
    HoldOwner,
    Job,
    JobId,
    LrmJobId,
    PlaceholderId,
    TaskEnd,
)
from koala_adapter.outcome import TaskUsage
from koala_adapter.scheduler.parameters import ClusterParameters, Parameters
from koala_adapter.slots import SlotCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at ``time``."""

    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured(Event):
    """The site as it is from now on; first event of every start, so that a replay decides as the original did."""

    parameters: Parameters
    clusters: tuple[ClusterParameters, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeReached(Event):
    """The time that :attr:`Scheduler.next_wakeup` named has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimersPostponed(Event):
    """The scheduler failed on the timers that are due: they are tried again ``seconds`` later."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Event):
    """A user handed in a job."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """The user wants the job ended and everything of it gone."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsForgotten(Event):
    """The user wants nothing more to be known of jobs that ended long ago; one that goes on is left as it is."""

    job_ids: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPolled(Event):
    """A cluster as seen by one poll of its nodes and jobs."""

    cluster: ClusterName
    processors: int
    """Configured processors, whatever the state of their nodes."""
    idle: int
    """Processors a new job could get now."""
    ours: int
    """Processors that our own placeholders occupied in the same reading."""
    others_waiting: tuple[int, ...] = ()
    """Processors that each waiting job of others asks for, in the order of their queue. Known only where running
    malleable jobs would be shrunk for them."""
    slots: tuple[SlotCount, ...] = ()
    """Counts of the slots of other shapes that jobs need which have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsCounted(Event):
    """Slots of shapes that a job is about to need, counted on what the latest poll of a cluster showed."""

    cluster: ClusterName
    slots: tuple[SlotCount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthKnown(Event):
    """The bandwidth to a cluster has changed noticeably, or is not known any more."""

    cluster: ClusterName
    bandwidth: float | None
    """MiB/s from this host, as it was observed; None: not known."""
    source: ClusterName | None = None
    """Cluster at another site that the files come from, in the place of this host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesConnect(Event):
    """An agent on one cluster has tried to connect to a node of another one."""

    cluster: ClusterName
    other: ClusterName
    connects: bool
    age: float = 0.0
    """Seconds since then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesFound(Event):
    """The set of jobs' input files that a cluster has was found out, or has changed."""

    cluster: ClusterName
    found: tuple[tuple[str, str], ...] = ()
    """Sources of input files, with their paths there; empty: koala has put it there."""
    gone: tuple[str, ...] = ()
    """Those that it has no more, or that no job needs."""
    bringable: tuple[tuple[str, int | None], ...] | None = None
    """All logical names that it lacks and that can be brought to it from elsewhere, with bytes, where that is known.

    None: as before.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUnavailable(Event):
    """The LRM does not answer; what we knew of it is out of date. Ends with the next ClusterPolled."""

    cluster: ClusterName
    reason: str
    awaited: bool = False
    """It has been asked for the first time, by a new service, and will probably answer soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A placeholder that does not start before it is released in its LRM, or before something else happens."""

    placeholder: PlaceholderId
    holder: HoldOwner | None = None
    """None: the LRM does not tell."""
    reason: str = ""
    """The LRM's own word."""
    in_hold: bool = True
    """False: it is queued, and waits for something else than free processors."""
    lasts: bool = False
    """Then: only a change of a limit, or of what the site does, lets it start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldsSeen(Event):
    """All placeholders of ours that a cluster's LRM has in hold, or queued for something else than free processors.

    Those that are not named wait for processors.
    """

    cluster: ClusterName
    holds: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionsSeen(Event):
    """All placeholders of ours that a cluster's LRM lists as suspended; those that are not named are not."""

    cluster: ClusterName
    placeholders: tuple[PlaceholderId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSubmitted(Event):
    """The LRM took a submission (or it was found there by its key)."""

    batch: BatchKey
    lrm_ids: tuple[LrmJobId, ...]
    """In the order of the indices 1 to n."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRejected(Event):
    """The LRM refused a submission for good."""

    batch: BatchKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchUncertain(Event):
    """A submission of unknown outcome: the LRM may have taken it. It is looked for by its key first."""

    batch: BatchKey
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAbsent(Event):
    """A submission certainly did not arrive: it was looked for after every chance of its arriving had passed."""

    batch: BatchKey
    reason: str
    pauses: bool = False
    """Whether its cluster is paused, because other submissions would fail in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingProgressed(Event):
    """How far input files of a job are on their way to a cluster; told again when the estimate of their end changes."""

    job_id: JobId
    cluster: ClusterName
    missing_bytes: int
    """What has yet to arrive."""
    source: str = ""
    """Site from which it comes directly; empty: from this host."""
    rate: float | None = None
    """Bytes a second, as measured; None: nothing has arrived yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesStaged(Event):
    """All input files of a job that StageFiles named are at a cluster."""

    job_id: JobId
    cluster: ClusterName


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingFailed(Event):
    """Input files of a job cannot be brought to a cluster, now or later."""

    job_id: JobId
    cluster: ClusterName
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationMade(Event):
    """A batch system has reserved what ReserveProcessors asked for."""

    job_id: JobId
    name: str
    handle: str
    """What the batch system calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRefused(Event):
    """A batch system does not reserve what ReserveProcessors asked for."""

    job_id: JobId
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderStarted(Event):
    """The LRM says that a placeholder runs; its agent may not have reported yet."""

    placeholder: PlaceholderId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderHeld(Event):
    """The agent of a placeholder reported (again): its processor is ours."""

    placeholder: PlaceholderId
    host: str
    address: str
    ends_at: float | None = None
    """When the LRM will end the placeholder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderSilent(Event):
    """The connection to an agent broke. It may come back while its lease lasts."""

    placeholder: PlaceholderId
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderEnding(Event):
    """The agent of a placeholder said that it must end (walltime, a signal); its processor is not free yet."""

    placeholder: PlaceholderId
    reason: EndReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderEnded(Event):
    """A placeholder is certainly gone from its LRM."""

    placeholder: PlaceholderId
    reason: EndReason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderSaid(Event):
    """What a placeholder that never reported wrote to its own output: the way to the cause."""

    cluster: ClusterName
    job_id: JobId
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStarted(Event):
    """The process of a rank runs."""

    job_id: JobId
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnded(Event):
    """The process of a rank ended; ``rank`` None stands for the launcher of the whole application (mpiexec)."""

    job_id: JobId
    rank: int | None
    end: TaskEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMeasured(Event):
    """The agent of a rank told what that has used until its end. Nothing is decided by it."""

    job_id: JobId
    rank: int
    usage: TaskUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswered(Event):
    """A malleable application answered OfferProcessors or RequestProcessors."""

    job_id: JobId
    number: int
    """That of the message."""
    accepted: int
    """Processors that it will take or give up; 0 declines. It may give up more than requested."""
    reason: str = ""
    """Why it declines, as it says."""
    memory_declined: bool = False
    """It takes the processors without the memory that was offered with them."""
    lapsed: bool = False
    """It has not declined: its time ran out as the service was down, and it may be asked anew."""
    trouble: str = ""
    """What is wrong with the rule by which it was to be answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorsReleased(Event):
    """A malleable application no longer uses some processors: as it was asked to, or of its own will.

    What would bring a component below its minimum stays its own.
    """

    job_id: JobId
    placeholders: tuple[PlaceholderId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoreRequested(Event):
    """A malleable application asks for more processors. The answer is GrantProcessors."""

    job_id: JobId
    component: str
    number: int
    """1 for its first request, then counting up: a request that is told twice is taken once."""
    processors: int
    mandatory: bool = False
    """True: others are shrunk for it if need be."""
    agreement: str = ""
    """What the application calls this negotiation; empty: it cannot negotiate, and gets what it is granted."""
    rank: int | None = None
    """Rank of the process that asks."""
    least: int = 1
    """Fewer are of no use to it."""
    memory_mib: int = 0
    """Memory that each of the new processors must come with; 0: what all placeholders of the cluster have."""
    memory_required: bool = False
    """Processors without that memory are of no use to it."""
    cluster: str = ""
    """Where they must be; empty: wherever the component may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LessRequested(Event):
    """A malleable application wants to give processors up. The answer is GrantProcessors; then it is as if asked to."""

    job_id: JobId
    component: str
    processors: int
    agreement: str
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PointReached(Event):
    """All processes of an adaptive component stand at the point of a change, and its newcomers have joined.

    From now on it is carried out. The processes are told once this is in the journal.
    """

    job_id: JobId
    number: int
    """That of the change, which is TAKING or RELEASING."""
    adaptation: int
    """What the processes call it."""
    point: int
    leaving: tuple[int, ...] = ()
    """Ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeMade(Event):
    """All processes of an adaptive component have carried a change out: they are let go on when this is journaled."""

    job_id: JobId
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeGivenUp(Event):
    """An adaptive component has given up a change of its size, and goes on with the processes that it has."""

    job_id: JobId
    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeWanted(Event):
    """The owner of a running malleable job wants a component to have this many processors.

    It gets no more from then on, gives up what it has beyond, and gets as many as can be had.
    """

    job_id: JobId
    component: str
    processors: int


EVENT_TYPES: tuple[type[Event], ...] = tuple(
    one for one in list(globals().values()) if isinstance(one, type) and issubclass(one, Event) and one is not Event
)
"""All kinds of events; :data:`koala_adapter.scheduler.core.HANDLERS` has each."""
