# SPDX-License-Identifier: Apache-2.0
"""State of the scheduler: records of jobs, claims, placeholders, submissions and clusters.

Records change only inside ``Scheduler.handle``; their states and what they count only in ``states.py``. They are plain
data, so a snapshot can be stored (``pydantic.TypeAdapter(State)``, as JSON). No record is a set of strings or depends
on a random order: a restored snapshot continues exactly as the original would. In order: timers, changes of size, jobs
from outside koala, clusters, tables by cluster, then placeholders, submissions, claims, jobs and the whole state.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, Self, TypeVar

from pydantic import PlainSerializer, PlainValidator

from koala_adapter.model import (
    BatchKey,
    ClusterName,
    Component,
    HoldOwner,
    Job,
    JobId,
    Launcher,
    LrmJobId,
    PlaceholderId,
    RunnerName,
    TaskEnd,
)
from koala_adapter.outcome import JobOutcome, JobState, PlaceholderState, TaskUsage
from koala_adapter.scheduler.actions import Rank
from koala_adapter.scheduler.malleable.policies import Step
from koala_adapter.scheduler.parameters import (
    ClusterParameters,
    Parameters,
    absent,
)
from koala_adapter.slots import PLAIN, Slot, SlotCount
from koala_adapter.wire.messages import adapter_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


# -- Timers: what is to be looked at when --------------------------------------------------------------------


class TimerKind(StrEnum):
    """Purposes of timers."""

    SCAN = "scan"
    LIFE = "life"
    RECLAIM = "reclaim"
    REGISTRATION = "registration"
    KEPT = "kept"
    """A placeholder has been kept waiting by a limit of its own, or by the site, for a while."""
    SILENCE = "silence"
    WALLTIME = "walltime"
    ENDING = "ending"
    BACKOFF = "backoff"
    CHANGE = "change"
    WORKERS = "workers"
    """A malleable job may grow again whose workers had ended by themselves; or it is over, because none is left."""
    NEAR_END = "near end"
    """A malleable job has so little of its walltime left that it grows no more."""
    ATTEMPT = "attempt"
    """Placeholders of the latest attempt of a job that are not gone are not waited for any longer."""
    RESERVATION = "reservation"
    """A cluster has not answered whether it reserves processors."""
    STAGING = "staging"
    """Placeholders are of use now, as the files of a job are nearly there; or nothing was heard of these for long."""
    CONNECTIONS = "connections"
    """Agents have not told in time whether nodes of the clusters of a job can connect."""
    LAST_RANKS = "last ranks"
    """The launcher of an MPI job has ended well, and processes of it have not ended."""
    PAUSE = "pause"


class Due(NamedTuple):
    """Time of a timer as stored in the record that it concerns."""

    at: float
    number: int
    """Of those for the same time, the one that was set first comes first."""


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    """Time, kind and subject of a timer, as sorted by time."""

    at: float
    number: int
    kind: TimerKind = field(compare=False)
    job_id: JobId | None = field(default=None, compare=False)
    placeholder: PlaceholderId | None = field(default=None, compare=False)
    cluster: ClusterName | None = field(default=None, compare=False)


# -- Changes of size under way -------------------------------------------------------------------------------
# A change of a running malleable component goes through phases (CoreGRID TR-0092); which may follow which is written
# in ``states.CHANGE_TRANSITIONS``. A wish of an application may be met on several clusters: then the change has a part
# for each claim. All parts are offered, gathered, taken in and given up together.


class ChangePhase(StrEnum):
    """Phases of a change of size."""

    NEW = "new"
    """It is in no record yet."""
    ASKED = "asked"
    """Processors are offered, or asked back; the application has not answered."""
    PROMISED = "promised"
    """The application insists on more than is free; other jobs are shrunk for it."""
    GATHERING = "gathering"
    """The accepted number of placeholders is submitted; the application keeps running."""
    TAKING = "taking"
    """All of them are held; the application takes them in."""
    RELEASING = "releasing"
    """The application gives processors up; their placeholders go back to the LRM."""
    OVER = "over"
    """It is in no record any more."""


@dataclass(slots=True)
class Part:
    """Part of a change that concerns one claim."""

    claim: int
    """Index of the claim in its job."""
    processors: int
    """Asked from the application, or by it: positive to grow, negative to shrink."""
    accepted: int = 0
    """Processors that the application takes or gives up; known after ASKED."""
    done: int = 0
    """Processors that it gave up so far."""
    stubs: list[PlaceholderId] = field(default_factory=list)
    """Placeholders gathered for it that the application has not been told of."""
    ranks: list[int] = field(default_factory=list)
    """Ranks that it is taking in; of an adaptive component that gives up processors, those that leave."""


@dataclass(slots=True)
class Change:
    """A change of the size of one component of a running job."""

    number: int
    """Number of its message; answers repeat it."""
    component: str
    parts: list[Part]
    """The first is where the change began; only a growth has several."""
    phase: ChangePhase = ChangePhase.NEW
    reason: str = ""
    """What it is for, for people."""
    in_step: bool = False
    """The step of the cluster waits for its answer."""
    shrunk_others: bool = False
    """Others were asked to make room for it: that is done once."""
    due: Due | None = None
    """When it is given up; None: never, or that is past."""
    adaptation: int = 0
    """Number under which the processes of an adaptive component carry it out; 0: they do not stand at the point yet."""
    point: int = 0
    """The point of their progress at which they stood then."""
    made: bool = False
    """They have carried it out."""
    agreement: str = ""
    """What the application calls the negotiation that it began and that led to it; empty: koala began."""
    asker: int | None = None
    """Rank of the process that began it."""
    wish: int = 0
    """Processors that the application asked for."""
    memory_mib: int = 0
    """Memory that each of them comes with; 0: what all placeholders of the cluster have."""
    submitted_again: bool = False
    """Its stubs did not arrive at their batch system, and others were submitted: that is done once."""
    least: int = 1
    """Fewer processors than this are of no use to the application that asked for them."""
    countered: bool = False
    """It asked for more than that: it has been offered this part of it, which is kept for it until it answers."""

    @property
    def processors(self) -> int:
        """Processors of all parts; negative when the component shrinks."""
        return sum(part.processors for part in self.parts)

    @property
    def accepted(self) -> int:
        """Accepted processors of all parts."""
        return sum(part.accepted for part in self.parts)

    @property
    def done(self) -> int:
        """Released processors of all parts."""
        return sum(part.done for part in self.parts)

    @property
    def stubs(self) -> list[PlaceholderId]:
        """Placeholders gathered for all parts."""
        return [stub for part in self.parts for stub in part.stubs]

    @property
    def ranks(self) -> list[int]:
        """Ranks of all parts that come or go."""
        return [rank for part in self.parts for rank in part.ranks]

    def kept(self, part: Part) -> int:
        """Return the processors reserved for a part before placeholders are submitted."""
        reserved = self.phase is ChangePhase.PROMISED or (self.phase is ChangePhase.ASKED and part.processors > 0)
        return part.processors if reserved else 0

    def coming(self, part: Part) -> int:
        """Return by how many processors a part may still grow its claim."""
        if self.phase is ChangePhase.GATHERING:
            return part.accepted
        return 0 if self.phase is ChangePhase.TAKING else max(0, part.processors)

    def leaving(self, part: Part) -> int:
        """Return how many processors a part may take from its claim."""
        return part.accepted - part.done if self.phase is ChangePhase.RELEASING else max(0, -part.processors)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """Past change of a component's size, for reports."""

    at: float
    """When it was over."""
    component: str
    cluster: ClusterName
    before: int
    """Processors that the component had on this cluster."""
    after: int
    reason: str
    waited: float = 0.0
    """Seconds between the submission of its placeholders and ``at``; 0 where it has become smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Ended attempt of a job, after which another may follow."""

    number: int
    """From 1."""
    launched_at: float
    ended_at: float
    outcome: JobOutcome
    clusters: tuple[ClusterName, ...] = ()
    """Where it ran."""


ATTEMPTS_KEPT = 20
"""So many of the latest attempts of a job are kept."""
SIZE_CHANGES_KEPT = 20
"""So many of the latest changes of a job are kept."""


@dataclass(slots=True)
class ClusterStep:
    """A step of the malleability policy on a cluster."""

    step: Step
    awaited: int = 0
    """Messages of the present round that are not settled."""
    reason: str = ""
    """What the processors are for, for people."""
    value: int = 0
    """Processors that it began with."""
    withheld: int = 0
    """Processors that were free, too, and more than one step may give out."""
    lapsed: bool = False
    """An application could not answer in time: what is left over may be wanted."""


@dataclass(frozen=True, slots=True)
class Promise:
    """Processors of a cluster that are owed to an application."""

    job_id: JobId
    change: int
    """Number of its change, which is PROMISED."""
    polled_at: float | None = None
    """When the cluster had last been looked at."""


# -- A job from outside koala in the queue of a cluster ------------------------------------------------------


@dataclass(slots=True)
class ForeignJob:
    """Waiting job of another user."""

    processors: int
    blocked_from: float | None = None
    """From when on it seems to wait for something else, because so many processors are idle; None: they are not."""


# -- One cluster: as last seen, and the claims on it ---------------------------------------------------------


@dataclass(slots=True)
class Wait:
    """Waiting time of one submission in its LRM's queue."""

    batch: BatchKey
    seconds: float
    """Until the latest of its placeholders that is held by now."""


WAITS_KEPT = 20
"""Entries of a waiting history: what was earlier says little of the load now."""


class SlotRoom(NamedTuple):
    """Numbers of slots of one shape on a cluster."""

    slot_processors: int
    """Processors of the cluster that one takes."""
    capacity: int | None
    """Most that could ever be ours; None while nothing was seen."""
    room: int
    """Further ones that may be submitted."""
    available: int
    """Those of them that would start at once, as far as the last poll tells."""
    load_free: int
    """Slots that no other user has, less all that we have or asked for; may be negative."""


CONNECTIONS_LAST = 86400.0
"""Seconds for which it counts whether nodes of two clusters were seen to connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Whether nodes of a cluster could connect to those of another one when it was tried last."""

    connects: bool
    seen_at: float


@dataclass(slots=True)
class ClusterRecord:
    """State of a cluster: last poll, our placeholders, history."""

    parameters: ClusterParameters
    processors: int | None = None
    """None until a poll has shown some."""
    largest: int | None = None
    """Yardstick of what can *never* run there: falls to the most that was seen in an hour, as one reading may err."""
    smaller_since: float | None = None
    """Since when fewer than ``largest`` are seen."""
    largest_since: int = 0
    """The most that was seen since then."""
    listed: bool = True
    """False while the LRM answers but lists no processors at all, which is never the truth."""
    idle: int = 0
    ours_polled: int = 0
    slots: list[SlotCount] = field(default_factory=list)
    """Counts of the slots of other shapes than one processor that jobs need."""
    ours_left: bool = False
    """The last poll showed fewer of ours than the one before. The LRM lists jobs before nodes: a job that it listed as
    waiting may have started on the processors that came free."""
    polled_at: float | None = None
    first_look_until: float | None = None
    """How long its first poll is waited for before jobs are queued elsewhere; None: it is not waited for."""
    unavailable: str | None = None
    paused_until: float | None = None
    pause_reason: str = ""
    missing_in_a_row: int = 0
    configured: bool = True
    """False once the site file no longer lists the cluster; its placeholders are still followed."""
    managed: int = 0
    """Processors of our placeholders that have not ended, queued ones included."""
    queued: int = 0
    """Placeholders that wait in the LRM's queue (or are on their way there)."""
    processors_queued: int = 0
    """Processors of those."""
    pending: dict[BatchKey, int] = field(default_factory=dict)
    """Queued placeholders by submission, oldest first."""
    ending: int = 0
    """Processors of placeholders that are on their way out: they come free soon."""
    offered: int = 0
    """Processors that are offered or promised to running jobs, so that no other job is placed on them."""
    gathering: int = 0
    """Processors of placeholders submitted for running jobs that grow and have not taken them in yet."""
    observed_bandwidth: float | None = None
    """MiB/s from this host, as they were observed; None: not known."""
    connections: dict[ClusterName, Connection] = field(default_factory=dict)
    """Whether its nodes connect to those of other clusters, as far as that was tried."""
    found: dict[str, str] = field(default_factory=dict)
    """Sources of input files that it has, beside those that the site file states, with their paths there."""
    refused_answer: str = ""
    """Why the latest answer of its malleability policy, one of the site's own, is not followed; empty when it is."""
    step: ClusterStep | None = None
    """Growing or shrinking of its malleable jobs that is under way."""
    promises: list[Promise] = field(default_factory=list)
    """Applications that insist on more processors, in the order of their requests."""
    unwanted: int | None = None
    """Free processors that no running job would take when they were offered last; None: something has changed since."""
    no_growth_before: float | None = None
    """Pause after processors for growing could not be had, or running jobs were shrunk."""
    balanced_until: float | None = None
    """Until when running jobs are not balanced again (equipartition) while they are the same ``balanced`` ones."""
    balanced: int = 0
    """Number of malleable jobs that ran when they were balanced last."""
    no_shrink_before: float | None = None
    """Pause after running jobs gave up less than they were asked for, or have grown."""
    fruitless_shrinks: int = 0
    """Steps in a row that were to shrink running jobs and freed nothing, while their sizes were the same."""
    fruitless_sizes: list[int] = field(default_factory=list)
    """These sizes, in the order of the start of the jobs."""
    fruitless_until: float | None = None
    """Until when running jobs of these sizes are not asked again."""
    others_waiting: list[ForeignJob] = field(default_factory=list)
    """Jobs of others that wait in its queue, in that order, as far as running malleable jobs are shrunk for them."""
    waits: list[Wait] = field(default_factory=list)
    """Waiting history, oldest first, bounded."""

    @property
    def name(self) -> ClusterName:
        """Its name in the site file."""
        return self.parameters.name

    def lacks(self, component: Component) -> str | None:
        """Return what it lacks for the ranks of a component, files included; None when nothing."""
        return self.parameters.lacks(component) or absent(component, self.found)

    @property
    def bandwidth(self) -> float | None:
        """MiB/s from this host: what the site file states, else what was observed; None: not known."""
        stated = self.parameters.bandwidth
        return self.observed_bandwidth if stated is None else stated

    @property
    def mean_wait(self) -> float | None:
        """Mean of the waiting history, in seconds; None: nothing is known."""
        return sum(wait.seconds for wait in self.waits) / len(self.waits) if self.waits else None

    @property
    def capacity(self) -> int:
        """Most placeholders that koala may have there, without the threshold left to local users."""
        return max(0, (self.processors or 0) - self.parameters.threshold)

    @property
    def largest_capacity(self) -> int | None:
        """Most placeholders that were ever possible there; None before the first poll."""
        return None if self.largest is None else max(0, self.largest - self.parameters.threshold)

    def has_counted(self, slot: Slot) -> bool:
        """Return whether slots of a shape were counted.

        A cluster whose polls count none, such as a simulated one, has as many as its processors allow.
        """
        shape = slot.shape
        return not self.parameters.counts_slots or shape == PLAIN or any(one.slot == shape for one in self.slots)

    def count_of(self, slot: Slot) -> SlotCount:
        """Return the counted slots of a shape.

        Where nodes were not looked at for it, it is that of as many processors anywhere.
        """
        shape = slot.shape
        for count in self.slots:
            if count.slot == shape:
                return count
        each = shape.threads
        return SlotCount(slot=shape, most=(self.largest or 0) // each, idle=self.idle // each, processors=each)

    def processors_of(self, slot: Slot) -> int:
        """Return the processors of the cluster that one slot takes."""
        return 1 if slot == PLAIN else self.count_of(slot).processors

    def room_for(self, slot: Slot) -> SlotRoom:
        """Return the room for slots of a shape, in the number of such slots."""
        if slot == PLAIN or slot.is_plain:
            return SlotRoom(1, self.largest_capacity, self.room, self.available, self.load_free)
        count = self.count_of(slot)
        each, in_flight = count.processors, self.parameters.placeholders_in_flight - self.queued
        taken = self.managed - self.ours_polled + self.offered
        if count.other_queue:  # the processors that are counted are those of another queue
            room = min(count.most - -(-self.managed // each), in_flight)
            free = count.idle - self.queued
            return SlotRoom(each, count.most, room, max(0, min(room, free)), free)
        ever = None if self.largest_capacity is None else min(self.largest_capacity // each, count.most)
        room = min((self.capacity - self.managed - self.offered) // each, in_flight - -(-self.offered // each))
        room = min(room, count.most)
        free = min(self.load_free // each, count.idle - -(-taken // each))
        return SlotRoom(each, ever, room, max(0, min(room, free)), free)

    @property
    def room(self) -> int:
        """Number of placeholders that may still be submitted, without processors that are on offer."""
        return min(self.capacity - self.managed, self.parameters.placeholders_in_flight - self.queued) - self.offered

    @property
    def load_free(self) -> int:
        """Processors not used by others minus all that koala has or asked for; may be negative."""
        return self.idle + self.ours_polled - self.managed - self.offered

    @property
    def available(self) -> int:
        """Processors that a new claim would get at once, by the last poll."""
        return max(0, min(self.room, self.load_free))


# -- Tables by key and by cluster ----------------------------------------------------------------------------
# A question about one cluster costs nothing for the records of the other clusters.


class OnCluster(Protocol):
    """A record with a fixed cluster (protocol)."""

    @property
    def cluster(self) -> ClusterName:
        """The cluster."""


Key = TypeVar("Key")
Record = TypeVar("Record", bound=OnCluster)


class ClusterTable(dict[Key, Record]):
    """Table of records that are also indexed by cluster."""

    __slots__ = ("_clusters",)

    def __init__(self, entries: Iterable[tuple[Key, Record]] = ()) -> None:
        super().__init__()
        self._clusters: dict[ClusterName, dict[Key, Record]] = {}
        for key, record in entries:
            self[key] = record

    def on(self, cluster: ClusterName) -> Mapping[Key, Record]:
        """Return the records of a cluster, in the order in which they came."""
        return self._clusters.get(cluster, {})

    def __setitem__(self, key: Key, record: Record) -> None:
        super().__setitem__(key, record)
        self._clusters.setdefault(record.cluster, {})[key] = record

    def __delitem__(self, key: Key) -> None:
        """Remove a record. Raises KeyError."""
        cluster = self[key].cluster
        super().__delitem__(key)
        there = self._clusters[cluster]
        del there[key]
        if not there:
            del self._clusters[cluster]

    # Those of dict would leave the records by cluster as they are; these set and delete entries one by one.
    popitem = MutableMapping.popitem
    clear = MutableMapping.clear
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault

    def pop(self, key: Key, *default: Any) -> Any:  # noqa: ANN401 - as of dict
        """Remove a record and return it; where there is none, return the default or raise KeyError."""
        if default and key not in self:
            return default[0]
        record = self[key]
        del self[key]
        return record

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc] # noqa: ANN401 - what dict takes
        self.update(other)
        return self


# -- Placeholders, submissions, claims, jobs, and the whole state --------------------------------------------


@dataclass(slots=True)
class PlaceholderRecord:
    """State of a placeholder (VJobProxy in the Virtual Job Model)."""

    id: PlaceholderId
    cluster: ClusterName
    job_id: JobId
    component: str
    state: PlaceholderState
    submitted_at: float
    walltime: int
    lrm_id: LrmJobId | None = None
    host: str = ""
    address: str = ""
    started_at: float | None = None
    held_at: float | None = None
    ends_at: float | None = None
    silent_since: float | None = None
    suspended_since: float | None = None
    """Since when its LRM lists it as suspended; None: it does not."""
    ending_since: float | None = None
    timers: dict[TimerKind, Due] = field(default_factory=dict)
    """When it is looked at again, and what for."""
    slot_processors: int = 1
    """Processors of its cluster that its slot takes."""
    stub: bool = False
    """It is gathered for an application that grows and has not been told of it yet."""
    on_hold_since: float | None = None
    """Since when it is seen in hold in its LRM, or waiting for something else than processors; None: it is not."""
    in_hold: bool = True
    """Then: it is in hold; False: it is queued."""
    hold_lasts: bool = False
    """Then: only a change of a limit, or of what the site does, lets it start."""
    holder: HoldOwner | None = None
    """Who holds it there; None: its LRM does not tell."""
    hold_reason: str = ""
    """The LRM's own word for that hold."""

    @property
    def held(self) -> bool:
        """Whether the processor is held and no process runs on it."""
        return self.state is PlaceholderState.HELD and self.silent_since is None

    @property
    def waiting(self) -> bool:
        """Whether it waits in its LRM's queue or is being submitted."""
        return self.state in {PlaceholderState.SUBMITTED, PlaceholderState.QUEUED}

    def lasts(self, now: float, seconds: float) -> bool:
        """Return whether its LRM leaves it running for so many seconds more.

        Where neither LRM nor agent said when it ends, what was asked from the LRM counts.
        """
        ends_at = self.ends_at
        if ends_at is None and self.started_at is not None:
            ends_at = self.started_at + self.walltime
        return ends_at is None or ends_at - now >= seconds


@dataclass(slots=True)
class BatchRecord:
    """One submission of n placeholders."""

    key: BatchKey
    cluster: ClusterName
    job_id: JobId
    component: str
    count: int
    submitted_at: float
    lrm_ids: tuple[LrmJobId, ...] | None = None
    """None until the LRM's answer is known."""
    taken_at: float | None = None
    """When that became known: a listing asked for before may have missed it. None: not noted."""
    uncertain: str | None = None
    """Why it is unknown whether the submission arrived."""
    live: int = 0
    """Placeholders of it that have not ended."""
    reserved_until: float | None = None
    """When they are to have started that run in a reservation; None: they run in none."""
    mixed: bool = False
    """Placeholders of it may belong to other jobs: some were exchanged."""

    @property
    def contents(self) -> tuple[object, ...]:
        """The submission without its name: a replay that makes it again gives it that name again."""
        return self.submitted_at, self.job_id, self.component, self.cluster, self.count


@dataclass(slots=True)
class Staging:
    """Large input files of a job that are brought to a cluster before its processors are wanted."""

    size: int
    """Bytes, as far as known."""
    missing: int
    """Bytes that have yet to arrive."""
    heard_at: float
    """When they were asked for, or were heard of, last."""
    rate: float | None = None
    """Bytes a second, as measured or expected; None: not known."""
    done: bool = False

    def missing_at(self, now: float) -> float:
        """Return the bytes that have probably yet to arrive."""
        return max(0.0, self.missing - (self.rate or 0.0) * (now - self.heard_at))

    def ready_at(self) -> float | None:
        """Return when all files will probably be there; None: not known."""
        if self.done or not self.missing:
            return self.heard_at
        return self.heard_at + self.missing / self.rate if self.rate else None


@dataclass(slots=True)
class Reservation:
    """Processors that a batch system was asked to reserve for one claim."""

    name: str
    cluster: ClusterName
    component: str
    count: int
    start_at: float
    seconds: float
    handle: str = ""
    """What the batch system calls it; empty: it has not answered."""


@dataclass(slots=True)
class Claim:
    """Cluster, placeholders and processes of one component of a job."""

    component: str
    processors: int = 0
    """Slots wanted; 0 while the component has no placement."""
    slot_processors: int = 1
    """Processors of its cluster that each of them takes."""
    cluster: ClusterName | None = None
    placeholders: list[PlaceholderId] = field(default_factory=list)
    piece: int | None = None
    """Its share of the minimum of a flexible component that was split; None while that is whole."""
    excluded: dict[ClusterName, str] = field(default_factory=dict)
    """Clusters that refused this component for good, and what they said; its own cluster: it grows there no more."""
    waited: float | None = None
    """Seconds from the submission of its placeholders until the last one was held; kept when they are gone."""
    lrm_ids: tuple[LrmJobId, ...] = ()
    """LRM ids of the placeholders that it ended with; kept when they are gone."""
    last_request: int = 0
    """Number of the latest request of the application for more processors."""
    postponed: float | None = None
    """What it misses is submitted when files of the job are nearly there, and not before this; None: it is claimed."""
    places: list[PlaceholderId] = field(default_factory=list)
    """Placeholders in the queue of its cluster for a size that its owner wants; held ones until they are taken in."""

    @property
    def growth_refused(self) -> str:
        """Reason of the cluster for rejecting placeholders for growth; empty: none were rejected."""
        return "" if self.cluster is None else self.excluded.get(self.cluster, "")

    @property
    def missing(self) -> int:
        """Placeholders still to be submitted."""
        return self.processors - len(self.placeholders)

    def unplace(self) -> list[PlaceholderId]:
        """Remove the claim from its cluster; return its placeholders."""
        left = self.placeholders
        self.cluster, self.processors, self.placeholders, self.postponed = None, 0, [], None
        return left

    def sized(self, component: Component) -> Component:
        """Return the component in this claim's size: the whole or a piece."""
        return component if self.piece is None else replace(component, minimum=self.piece, maximum=self.piece)


@dataclass(slots=True)
class JobRecord:
    """State of a job."""

    job: Job
    claims: list[Claim]
    state: JobState = JobState.WAITING
    tries: int = 0
    """Placement tries that came to nothing, not counting scans since ``queued_at_scan``."""
    queued_at_scan: int | None = None
    """Number of the scan after which it came into the placement queue; None while it is not there."""
    queue_number: int = 0
    """Order among jobs of equal priority and submission time."""
    tries_end_at_scan: int | None = None
    """Number of the scan at which its tries are used up, while it is in the placement queue."""
    timers: dict[TimerKind, Due] = field(default_factory=dict)
    """When it is looked at again, and what for."""
    life_extended: bool = False
    """Its end was put off once, because missing placeholders had just begun to start."""
    reclaim_with_room: bool = False
    """All else is held and only room was lacking: they are claimed again as soon as one of its placeholders is gone."""
    failed_claims: int = 0
    """How often this claim came to nothing so far; sets the length of the next pause."""
    hand_backs: int = 0
    """How often held processors were handed back because others were missing."""
    exchanges: int = 0
    """Held processors that it gave to other jobs for their places in LRM queues, instead of handing them back."""
    reservations: list[Reservation] = field(default_factory=list)
    """Those that were asked for, and are not given back."""
    reservations_asked: int = 0
    not_reserved: str = ""
    """Why its processors are claimed by placeholders, although they were to be reserved; empty: they may be."""
    staging: dict[ClusterName, Staging] = field(default_factory=dict)
    """Input files that are brought, or were, to clusters where its components are placed, or were."""
    refused_answer: str = ""
    """Why the latest answer of its placement policy, one of the site's own, is not followed; empty when it is."""
    last_trouble: str = ""
    """What went wrong last, for ``koala explain``."""
    ranks: tuple[Rank, ...] = ()
    launched_at: float | None = None
    finished_at: float | None = None
    started: set[int] = field(default_factory=set)
    ends: dict[int, TaskEnd] = field(default_factory=dict)
    joined: list[int] = field(default_factory=list)
    """Ranks that an adaptive job has taken in while it ran, in that order: so their processes know each other."""
    departed: set[int] = field(default_factory=set)
    """Ranks whose processors a malleable job has given up."""
    changes: dict[int, Change] = field(default_factory=dict)
    """Changes of its size that are under way, while it runs, by number."""
    sizes_wanted: dict[str, int] = field(default_factory=dict)
    """Most processors that its owner wants a component to have from now on, by its name."""
    sizes_asked_at: float | None = None
    """When it was asked last to give up what it has beyond them."""
    growth_rests: bool = False
    """It does not grow for a while: workers have ended that were not asked to."""
    ends_soon: bool = False
    """It has so little of its walltime left that it grows no more."""
    worker_failures: int = 0
    """How many of them ended badly."""
    last_worker_end: TaskEnd | None = None
    """How the latest of them ended."""
    size_changes: list[SizeChange] = field(default_factory=list)
    """The latest changes of its size, oldest first."""
    start_number: int = 0
    """Order of start among malleable jobs; 0 until it runs."""
    attempts: list[Attempt] = field(default_factory=list)
    """The latest of its runs that were not its last, oldest first."""
    attempts_over: int = 0
    """How many there were."""
    retries_made: int = 0
    """How many of them were followed by a retry; the others have saved their state and went on."""
    ended_by: PlaceholderId | None = None
    """Placeholder whose end, as its agent told it, decided the outcome; its LRM may know better why it ended."""
    launcher_over: bool = False
    """The launcher of all its processes has ended well, or has said that all is done."""
    suspected: JobOutcome | None = None
    """What mpiexec said of its end while an agent was out of contact, whose loss may be the true cause."""
    outcome: JobOutcome | None = None
    live: int = 0
    """Placeholders of this job that have not ended."""
    held: int = 0
    """Those of them that are held."""
    processors_held: int = 0
    """Processors that it has now: of all its placeholders that are held or launched."""
    held_seconds: float = 0.0
    """Processor seconds for which it has had processors, until ``held_until``."""
    held_until: float = 0.0
    held_before_launch: float = 0.0
    """Those before its launch, or the launches of its attempts."""
    held_in_attempts: float = 0.0
    """Those from the launches of earlier attempts on."""
    usages: dict[int, TaskUsage] = field(default_factory=dict)
    """What each rank has used whose agent has told of its end, in all attempts."""
    measured: set[int] = field(default_factory=set)
    """Ranks of the latest attempt whose agents have told that."""
    uncounted: int = 0
    """Ranks of earlier attempts whose agents have not."""

    def held_for(self, now: float) -> float:
        """Return the processor seconds held so far."""
        return self.held_seconds + self.processors_held * max(0.0, now - self.held_until)

    @property
    def not_before(self) -> float | None:
        """End of the pause during which a waiting job is not in the placement queue."""
        return self._due(TimerKind.BACKOFF)

    @property
    def attempt_decided_at(self) -> float | None:
        """Latest time of the decision whether another attempt follows."""
        return self._due(TimerKind.ATTEMPT)

    @property
    def awaits_reservation(self) -> bool:
        """Tell whether a cluster has yet to answer whether it reserves processors."""
        return not self.not_reserved and any(not one.handle for one in self.reservations)

    @property
    def between_attempts(self) -> bool:
        """Return whether an attempt has ended and the next is not decided yet."""
        return self.attempt_decided_at is not None

    @property
    def life_ends_at(self) -> float | None:
        """Time at which held processors are handed back if others are still missing."""
        return self._due(TimerKind.LIFE)

    @property
    def reclaim_at(self) -> float | None:
        """Time at which handed-back processors are claimed again."""
        return self._due(TimerKind.RECLAIM)

    def _due(self, kind: TimerKind) -> float | None:
        due = self.timers.get(kind)
        return None if due is None else due.at

    def note_size(self, claim: Claim, before: int, reason: str, now: float, *, waited: float = 0.0) -> None:
        """Record a claim's change of size from ``before``, for reports.

        ``waited``: seconds since the placeholders of a growth were submitted.
        """
        if claim.cluster is None or claim.processors == before:
            return
        change = SizeChange(
            at=now,
            component=claim.component,
            cluster=claim.cluster,
            before=before,
            after=claim.processors,
            reason=reason,
            waited=waited,
        )
        self.size_changes = [*self.size_changes, change][-SIZE_CHANGES_KEPT:]

    def claim_of(self, placeholder: PlaceholderRecord) -> int | None:
        """Return the index of a placeholder's present or former claim; None: there is none."""
        for number, claim in enumerate(self.claims):
            if (claim.component, claim.cluster) == (placeholder.component, placeholder.cluster):
                return number
        return None

    def ranks_awaited(self) -> list[int]:
        """Return the processes that have not ended, without those of an unfinished growth."""
        new = {rank for one in self.changes.values() if one.phase is ChangePhase.TAKING for rank in one.ranks}
        over = self.ends.keys() | self.departed | new
        return [rank.rank for rank in self.ranks if rank.rank not in over]

    def part_on(self, number: int) -> tuple[Change, Part] | None:
        """Return the change of a claim that is under way, and its part of that; ``number``: index of the claim."""
        for change in self.changes.values():
            for part in change.parts:
                if part.claim == number:
                    return change, part
        return None

    def change_on(self, number: int) -> Change | None:
        """Return the change of a claim that is under way; ``number``: index of the claim."""
        found = self.part_on(number)
        return None if found is None else found[0]

    def is_changing(self, number: int) -> bool:
        """Tell whether a change is under way that another one of a claim must wait for; ``number``: index of the claim.

        A component that cannot have any size changes on one cluster at a time, so that its rule is asked about the size
        that it will have.
        """
        component = self.claims[number].component
        if self.job.component(component).takes_any_size:
            return self.change_on(number) is not None
        return any(change.component == component for change in self.changes.values())

    def size(self, component: str) -> int:
        """Return the processors that a component has on all clusters."""
        return sum(claim.processors for claim in self.claims if claim.component == component)

    def coming(self, component: str | None = None, *, beside: Claim | None = None) -> int:
        """Return by how many processors a component (None: all) may be about to grow; ``beside``: but for one claim."""
        return sum(change.coming(part) for change, part in self._parts(component, beside))

    def leaving(self, component: str | None = None, *, beside: Claim | None = None) -> int:
        """Return how many processors a component (None: all) may be about to give up."""
        return sum(change.leaving(part) for change, part in self._parts(component, beside))

    def _parts(self, component: str | None, beside: Claim | None) -> Iterator[tuple[Change, Part]]:
        for change in self.changes.values():
            if component in {None, change.component}:
                for part in change.parts:
                    if self.claims[part.claim] is not beside:
                        yield change, part

    def is_worker(self, rank: int) -> bool:
        """Return whether a process is a worker, which comes and goes without the others."""
        return self.job.has_workers and not self.job.is_head(self.ranks[rank].component)

    def rank_in(self, placeholder: PlaceholderRecord) -> Rank | None:
        """Return a placeholder's process, of several the first whose end counts; None: there is none.

        It counts if it is still to come, or is neither good nor that of a process which has saved its state.
        """
        there = [rank for rank in self.ranks if rank.placeholder == placeholder.id]
        ends = ((rank, self.ends.get(rank.rank)) for rank in there)
        left = (rank for rank, end in ends if end is None or not (end.ok or self.job.goes_on_after(end)))
        return next(left, there[0] if there else None)

    def is_done(self) -> bool:
        """Return whether all work of a launched job is done, as far as its processes have ended well.

        A sweep is done when that is said; a job of a head and workers with its head; any other with all of its
        processes, and under MPI its launcher.
        """
        if self.job.runner is RunnerName.SWEEP:
            return self.launcher_over
        if self.job.launcher is Launcher.MPI:
            return self.launcher_over and not self.ranks_awaited()
        if self.job.runner is RunnerName.WORKERS:
            head = [rank.rank for rank in self.ranks if self.job.is_head(rank.component)]
            if head:
                return self.ends.keys() >= set(head)
        return len(self.ends) + len(self.departed) == len(self.ranks)

    def unclaim(self, placeholders: set[PlaceholderId]) -> None:
        """Remove placeholders from the claims."""
        if len(placeholders) == 1:  # of thousands that are lost one by one, each is among the first
            (one,) = placeholders
            for claim in self.claims:
                if one in claim.placeholders:
                    claim.placeholders.remove(one)
            return
        for claim in self.claims:
            claim.placeholders = [id_ for id_ in claim.placeholders if id_ not in placeholders]

    def components(self) -> Iterator[tuple[Component, Claim]]:
        """Return each claim with its component in its size."""
        components = iter(self.job.components)
        component = next(components)
        for claim in self.claims:
            while component.name != claim.component:
                component = next(components)
            yield claim.sized(component), claim

    def component_of(self, claim: Claim) -> Component:
        """Return the component of one claim, as :meth:`components` does."""
        return claim.sized(self.job.component(claim.component))


def _listed(table: ClusterTable[PlaceholderId, PlaceholderRecord]) -> list[PlaceholderRecord]:
    return list(table.values())


def _placeholder_table(stored: object) -> ClusterTable[PlaceholderId, PlaceholderRecord]:
    return ClusterTable((record.id, record) for record in adapter_of(list[PlaceholderRecord]).validate_python(stored))


def _batch_table(stored: object) -> ClusterTable[BatchKey, BatchRecord]:
    return ClusterTable(adapter_of(dict[BatchKey, BatchRecord]).validate_python(stored).items())


PlaceholderTable = Annotated[
    ClusterTable[PlaceholderId, PlaceholderRecord],
    PlainValidator(_placeholder_table),
    PlainSerializer(_listed, return_type=list[PlaceholderRecord]),
]
"""JSON has no keys but strings, so a snapshot holds the placeholders as a list."""
BatchTable = Annotated[
    ClusterTable[BatchKey, BatchRecord],
    PlainValidator(_batch_table),
    PlainSerializer(dict, return_type=dict[BatchKey, BatchRecord]),
]


@dataclass(slots=True)
class State:
    """Whole state of the scheduler."""

    parameters: Parameters = field(default_factory=Parameters)
    now: float | None = None
    """Time of the latest event."""
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    finished: list[JobId] = field(default_factory=list)
    """Jobs that ended last, oldest first; the records of earlier ones are dropped."""
    placeholders: PlaceholderTable = field(default_factory=ClusterTable)
    batches: BatchTable = field(default_factory=ClusterTable)
    clusters: dict[ClusterName, ClusterRecord] = field(default_factory=dict)
    timers_set: int = 0
    batches_made: int = 0
    """The largest number that a submission was given."""
    starts: int = 0
    """Malleable jobs that have started to run."""
    changes_made: int = 0
    """Messages sent to malleable jobs, and requests taken from them."""
    scans: int = 0
    """Scans of the placement queue by its interval timer: each is one try of every waiting job."""
    scan_due: Due | None = None
    """When the next of them is made."""
    tries_end: dict[int, dict[JobId, None]] = field(default_factory=dict)
    """Waiting jobs that will have used up their tries, by the number of the scan at which that happens."""
    enqueued: int = 0
    """How often a job entered the placement queue."""
    dependents: dict[JobId, list[JobId]] = field(default_factory=dict)
    """Jobs that wait for the end of another one, by the id of that."""
    guarded: JobId | None = None
    """Waiting job for which room is kept free of later jobs, so that it does not starve."""
    kept_room: dict[ClusterName, int] = field(default_factory=dict)
    """Processors kept for it."""

    def lease_on(self, cluster: ClusterName) -> float:
        """Return the seconds without contact after which agents on a cluster end."""
        record = self.clusters.get(cluster)
        own = None if record is None else record.parameters.site_lease
        return self.parameters.lease if own is None else own

    def placeholders_of(self, record: JobRecord) -> list[PlaceholderRecord]:
        """Return the placeholders in a job's claims."""
        ids = (id_ for claim in record.claims for id_ in claim.placeholders)
        return [self.placeholders[id_] for id_ in ids if id_ in self.placeholders]

    def slot_of(self, placeholder: PlaceholderRecord) -> Slot:
        """Return the slot that a placeholder holds."""
        component = self.jobs[placeholder.job_id].job.component(placeholder.component)
        return component.slot_on(placeholder.cluster)

    def connects(self, cluster: ClusterName, other: ClusterName, now: float) -> bool | None:
        """Tell whether nodes of a cluster can connect to those of another one; None: it is not known.

        Within a site they are taken to connect.
        """
        record, its = self.clusters.get(cluster), self.clusters.get(other)
        if record is not None and its is not None and record.parameters.site == its.parameters.site:
            return True
        found = None if record is None else record.connections.get(other)
        return None if found is None or now - found.seen_at > CONNECTIONS_LAST else found.connects

    def connections(self, now: float) -> list[tuple[ClusterName, ClusterName, bool, float]]:
        """Return what is known of connections between clusters: from which, to which, whether, and since when."""
        return [
            (cluster.name, other, found.connects, found.seen_at)
            for cluster in self.clusters.values()
            for other, found in cluster.connections.items()
            if now - found.seen_at <= CONNECTIONS_LAST
        ]

    def note_wait(self, placeholder: PlaceholderRecord, now: float) -> None:
        """Add a placeholder's waiting time to a cluster's history.

        A submission is one entry: a parallel job waits for the last of its processors.
        """
        batch = self.batches.get(placeholder.id.batch)
        if batch is not None and batch.reserved_until is not None:
            return  # it did not wait in the queue
        waits = self.clusters[placeholder.cluster].waits
        seconds = max(0.0, now - placeholder.submitted_at)
        for wait in reversed(waits):
            if wait.batch == placeholder.id.batch:
                wait.seconds = max(wait.seconds, seconds)
                return
        waits.append(Wait(batch=placeholder.id.batch, seconds=seconds))
        del waits[:-WAITS_KEPT]

    def note_vain_wait(self, placeholder: PlaceholderRecord, now: float) -> None:
        """Add the waiting time of a placeholder that never started, if it is longer than expected."""
        if now - placeholder.submitted_at > (self.clusters[placeholder.cluster].mean_wait or 0.0):
            self.note_wait(placeholder, now)

    def expected_wait(self, cluster: ClusterRecord, now: float) -> float | None:
        """Return the expected waiting time on a cluster: the mean of its history.

        What waits there now has waited long enough already to count, once it exceeds that. None: nothing is known.
        """
        oldest = next((self.batches[key].submitted_at for key in cluster.pending if key in self.batches), None)
        return cluster.mean_wait if oldest is None else max(cluster.mean_wait or 0.0, now - oldest)

    def note_claims(self, record: JobRecord, now: float) -> None:
        """Record a job's placeholders for reports, at its launch and end."""
        for claim in record.claims:
            placeholders = [self.placeholders[id_] for id_ in claim.placeholders if id_ in self.placeholders]
            if placeholders and claim.waited is None:
                asked_at = max(record.job.submitted_at, min(p.submitted_at for p in placeholders))
                claim.waited = max(0.0, max(now if p.held_at is None else p.held_at for p in placeholders) - asked_at)
            known = (*claim.lrm_ids, *(p.lrm_id for p in placeholders if p.lrm_id))
            claim.lrm_ids = tuple(dict.fromkeys(known))
